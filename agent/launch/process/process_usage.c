/* Processor time and memory of a process and its descendants, from /proc. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "agent/launch/process/process.h"
#include "proto/base/clock.h"

enum { FAMILY_MOST = 256 };

struct family {
    pid_t list[FAMILY_MOST];
    uint32_t count;
};

/* Reads a short file of /proc. False: the file does not exist, or no longer. */
static bool read_small(const char *path, char *out, size_t size)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    size_t used = 0;
    for (ssize_t n; used + 1 < size && (n = read(fd, out + used, size - 1 - used)) > 0;)
        used += (size_t)n;
    close(fd);
    out[used] = '\0';
    return used > 0;
}

static void add_children(struct family *self, pid_t pid, const char *task)
{
    char path[96], text[4096];
    snprintf(path, sizeof path, "/proc/%d/task/%.20s/children", (int)pid, task);
    if (!read_small(path, text, sizeof text))
        return;
    char *at = text;
    for (char *end; self->count < FAMILY_MOST; at = end) {
        long child = strtol(at, &end, 10);
        if (end == at || child <= 1)
            return;
        self->list[self->count++] = (pid_t)child;
    }
}

/* A child belongs to the thread that forked it. */
static void add_children_of_all(struct family *self, pid_t pid)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/task", (int)pid);
    DIR *tasks = opendir(path);
    if (!tasks)
        return;
    for (struct dirent *task; (task = readdir(tasks));) {
        if (task->d_name[0] != '.')
            add_children(self, pid, task->d_name);
    }
    closedir(tasks);
}

/* The process clock counts in nanoseconds and includes ended threads; the ticks in /proc/PID/stat are the fallback. */
static int64_t own_cpu_ns(pid_t pid, uint64_t ticks, int64_t tick_ns)
{
    clockid_t clock;
    struct timespec at;
    if (clock_getcpuclockid(pid, &clock) == 0 && clock_gettime(clock, &at) == 0)
        return at.tv_sec * NS_PER_S + at.tv_nsec;
    return (int64_t)ticks * tick_ns;
}

/* What the file `stat` of a process or thread says. */
struct times {
    char state;
    uint64_t user, system;
    int64_t ended_user, ended_system;
};

static bool read_times(const char *path, struct times *out)
{
    char text[1024];
    if (!read_small(path, text, sizeof text))
        return false;
    const char *rest = strrchr(text, ')'); /* the name before it may contain anything */
    return rest &&
           sscanf(rest, ") %c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %" SCNu64 " %" SCNu64 " %" SCNd64 " %" SCNd64,
                  &out->state, &out->user, &out->system, &out->ended_user, &out->ended_system) == 5;
}

static bool add_cpu(pid_t pid, struct process_usage *out, char *state)
{
    char path[64];
    struct times times;
    int64_t tick_ns = NS_PER_S / sysconf(_SC_CLK_TCK);
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    if (!read_times(path, &times))
        return false;
    *state = times.state;
    out->cpu_ns +=
        own_cpu_ns(pid, times.user + times.system, tick_ns) + (times.ended_user + times.ended_system) * tick_ns;
    return true;
}

/* Processor time of the main thread. The scheduler counts in nanoseconds; where it does not tell, the ticks of `stat` count. */
static int64_t main_ns(pid_t pid)
{
    char path[64], text[128];
    struct times times;
    snprintf(path, sizeof path, "/proc/%d/task/%d/schedstat", (int)pid, (int)pid);
    int64_t ns = read_small(path, text, sizeof text) ? strtoll(text, NULL, 10) : 0;
    snprintf(path, sizeof path, "/proc/%d/task/%d/stat", (int)pid, (int)pid);
    if (ns == 0 && read_times(path, &times))
        ns = (int64_t)(times.user + times.system) * (NS_PER_S / sysconf(_SC_CLK_TCK));
    return ns;
}

/* Takes the processor time of the main thread if it is the most so far. */
static void add_main(pid_t pid, struct process_usage *out)
{
    int64_t ns = main_ns(pid);
    if (ns > out->main_ns)
        out->main_ns = ns;
}

static uint64_t kib_after(const char *text, const char *key)
{
    const char *at = strstr(text, key);
    return at ? strtoull(at + strlen(key), NULL, 10) : 0;
}

static void add_memory(pid_t pid, struct process_usage *out)
{
    char path[64], text[4096];
    snprintf(path, sizeof path, "/proc/%d/status", (int)pid);
    if (read_small(path, text, sizeof text))
        out->memory += 1024 * (kib_after(text, "\nRssAnon:") + kib_after(text, "\nRssShmem:"));
}

bool process_usage(const struct process *self, struct process_usage *out)
{
    struct family family = {.list = {self->pid}, .count = 1};
    *out = (struct process_usage){0};
    if (!self->running)
        return false;
    if (self->place)
        return self->place->usage(self->place, self, out);
    for (uint32_t i = 0; i < family.count; i++) {
        char state = '\0';
        if (!add_cpu(family.list[i], out, &state)) {
            if (i == 0)
                return false;
            continue; /* ended meanwhile */
        }
        if (i == 0)
            out->stopped = state == 'T';
        add_main(family.list[i], out);
        add_memory(family.list[i], out);
        add_children_of_all(&family, family.list[i]);
    }
    return true;
}

uint32_t process_children(const struct process *self, struct process_child *out, uint32_t most)
{
    struct family family = {0};
    uint32_t n = 0;
    if (!self->running || self->place)
        return 0;
    add_children_of_all(&family, self->pid);
    for (uint32_t i = 0; i < family.count && n < most; i++) {
        struct process_usage usage = {0};
        char state = '\0';
        if (add_cpu(family.list[i], &usage, &state))
            out[n++] = (struct process_child){family.list[i], usage.cpu_ns, state == 'T'};
    }
    return n;
}
