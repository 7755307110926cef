#include "broker/program/threads.h"

#include <dirent.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "proto/base/clock.h"
#include "proto/base/io.h"

#define FRESH_NS (100 * NS_PER_MS)
#define INTERVAL_NS NS_PER_S

/* Names a thread: the first is the core thread, those of libzmq say what they do. */
static void thread_name(long id, char *out, size_t size)
{
    char path[64], name[32];
    snprintf(path, sizeof path, "/proc/self/task/%ld/comm", id);
    if (id == (long)getpid() || !io_text(path, name, sizeof name))
        snprintf(name, sizeof name, "%s", id == (long)getpid() ? "core" : "other");
    name[strcspn(name, "\n")] = '\0';
    int number;
    if (sscanf(name, "ZMQbg/IO/%d", &number) == 1)
        snprintf(out, size, "io/%d", number);
    else
        snprintf(out, size, "%s",
                 strcmp(name, "ZMQbg/Reaper") == 0 ? "reaper"
                 : strncmp(name, "MHD-", 4) == 0   ? "http"
                                                   : name);
}

static double thread_cpu(long id)
{
    char path[64], text[128];
    unsigned long long ns = 0;
    snprintf(path, sizeof path, "/proc/self/task/%ld/schedstat", id);
    if (io_text(path, text, sizeof text))
        sscanf(text, "%llu", &ns);
    return (double)ns / (double)NS_PER_S;
}

/* Returns the row of a name, which is added if it is new. NULL: there are too many. */
static struct thread_use *find(struct threads *self, const char name[32])
{
    uint32_t i = 0;
    while (i < self->n && strcmp(self->list[i].name, name) != 0)
        i++;
    if (i == THREADS_MOST)
        return NULL;
    if (i == self->n) {
        struct thread_use *use = &self->list[self->n++];
        memcpy(use->name, name, sizeof use->name);
        replay__thread_info__init(self->row_list[i] = &self->rows[i]);
        self->rows[i].name = use->name;
    }
    return &self->list[i];
}

static void look_at_threads(struct threads *self)
{
    double before[THREADS_MOST] = {0};
    for (uint32_t i = 0; i < self->n; i++) {
        before[i] = self->list[i].now_s;
        self->list[i].now_s = 0;
    }
    self->process.thread_count = 0;
    DIR *tasks = opendir("/proc/self/task");
    for (const struct dirent *entry; tasks && (entry = readdir(tasks));) {
        char name[32];
        long id = strtol(entry->d_name, NULL, 10);
        if (id <= 0)
            continue;
        self->process.thread_count++;
        thread_name(id, name, sizeof name);
        struct thread_use *use = find(self, name);
        if (use)
            use->now_s += thread_cpu(id);
    }
    if (tasks)
        closedir(tasks);
    /* Adds what each name has used since the last look. Where a thread has ended meanwhile, its last moments are missing. */
    for (uint32_t i = 0; i < self->n; i++)
        if (self->list[i].now_s > before[i])
            self->rows[i].cpu_s += self->list[i].now_s - before[i];
}

static uint64_t count_files(void)
{
    uint64_t n = 0;
    DIR *files = opendir("/proc/self/fd");
    for (const struct dirent *entry; files && (entry = readdir(files));)
        n += entry->d_name[0] != '.';
    if (files)
        closedir(files);
    return n ? n - 1 : 0; /* without the one that lists them */
}

/* Returns when this process started: once, as its age does not change it. */
static double start_time(void)
{
    char text[1024];
    unsigned long long ticks = 0;
    const char *end = io_text("/proc/self/stat", text, sizeof text) ? strrchr(text, ')') : NULL;
    if (!end || sscanf(end + 1, " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %llu",
                       &ticks) != 1)
        return 0;
    return (double)(clock_of(CLOCK_REALTIME) - clock_of(CLOCK_BOOTTIME)) / (double)NS_PER_S +
           (double)ticks / (double)sysconf(_SC_CLK_TCK);
}

static void look_at_process(Replay__ProcessInfo *self)
{
    char text[256];
    unsigned long long size = 0, resident = 0;
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    if (io_text("/proc/self/statm", text, sizeof text))
        sscanf(text, "%llu %llu", &size, &resident);
    self->pid = (uint64_t)getpid();
    self->virtual_bytes = size * page;
    self->resident_bytes = resident * page;
    self->open_files = count_files();
    self->cpu_s = (double)clock_of(CLOCK_PROCESS_CPUTIME_ID) / (double)NS_PER_S;
    if (self->start_s == 0)
        self->start_s = start_time();
}

void threads_look(struct threads *self, int64_t now_ns)
{
    if (self->looked_ns && now_ns - self->looked_ns < FRESH_NS)
        return;
    if (self->n && now_ns - self->before_ns >= INTERVAL_NS) {
        for (uint32_t i = 0; i < self->n; i++)
            self->list[i].before_s = self->rows[i].cpu_s;
        self->n_before = self->n;
        self->before_ns = self->looked_ns;
    }
    if (!self->looked_ns)
        replay__process_info__init(&self->process);
    self->looked_ns = now_ns;
    look_at_threads(self);
    look_at_process(&self->process);
    double seconds = self->n_before ? (double)(now_ns - self->before_ns) / (double)NS_PER_S : 0;
    for (uint32_t i = 0; seconds > 0 && i < self->n_before; i++)
        self->rows[i].busy = (self->rows[i].cpu_s - self->list[i].before_s) / seconds;
    self->process.threads = self->row_list;
    self->process.n_threads = self->n;
}
