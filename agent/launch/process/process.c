/* One child: its start and end, its log, and what it uses. */
#include "agent/launch/process/process.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "agent/launch/process/spawn.h"
#include "proto/base/clock.h"
#include "proto/base/error.h"
#include "proto/base/io.h"
#include "proto/base/need.h"
#include "proto/base/utf8.h"

#define FILES_MOST 16384 /* descriptors: some for each process and each host */

/* Says what happened and what to do about it. */
static rp_status explain(const char *name, int error, rp_error *err)
{
    bool path = strchr(name, '/') != NULL;
    const char *advice = "";
    rp_status status = RP_FAILED_PRECONDITION;
    if (error == ENOENT && !path) {
        advice = "; no folder of PATH has such a program: write ./NAME for one that is in this folder";
        status = RP_NOT_FOUND;
    } else if (error == ENOENT && access(name, F_OK) == 0) {
        advice = "; the file is there, but what its first line (#!) or its loader names is not";
    } else if (error == ENOENT || error == ENOTDIR) {
        advice = "; check the path: it is relative to the folder that replay-launch was started in";
        status = RP_NOT_FOUND;
    } else if (error == EACCES) {
        advice = "; make it executable: chmod +x";
    } else if (error == ENOEXEC) {
        advice = "; it is no program of this machine: a script needs a first line like #!/usr/bin/env python3";
    } else if (error == EAGAIN || error == ENOMEM) {
        return err_set(err, RP_RESOURCE_EXHAUSTED, "could not start %.300s: too many processes, or no memory", name);
    } else if (error == E2BIG) {
        advice = "; its arguments and environment are too long";
    }
    return err_set(err, status, "could not start %.300s: %s%s", name, strerror(error), advice);
}

/* The guard knows the group before that can have more processes. */
static void tell_guard(void *guard, bool begins)
{
    guard_tell(guard, begins ? (int32_t)getpid() : -(int32_t)getpid());
}

static rp_status start(struct process *self, const struct process_options *options, int log, rp_error *err)
{
    const int *streams = options->log ? (const int[]){SPAWN_NULL, log, log} : options->streams;
    const struct spawn spawn = {.argv = options->argv,
                                .environment = options->environment,
                                .in = streams[0],
                                .out = streams[1],
                                .err = streams[2],
                                .dies_with_us = true,
                                .in_child = tell_guard,
                                .ctx = options->guard};
    int error;
    pid_t pid = spawn_start(&spawn, &error);
    if (pid < 0)
        return explain(options->argv[0] ? options->argv[0] : "", error, err);
    self->pid = pid;
    guard_tell(options->guard, (int32_t)pid);
    return RP_OK;
}

/* Opens the log, and notes where the output of this start begins. Returns the descriptor; -1: err says why. */
static int open_log(struct process *self, const char *path, rp_error *err)
{
    struct stat info;
    if ((size_t)snprintf(self->log, sizeof self->log, "%s", path) >= sizeof self->log) {
        err_fill(err, RP_INVALID_ARGUMENT, "the path of the log of %s is longer than %zu bytes: %.100s...", self->name,
                 sizeof self->log - 1, path);
        return -1;
    }
    int log = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
    if (log < 0 || fstat(log, &info) != 0) {
        err_fill(err, RP_IO, "the log %.300s cannot be written: %s", path, strerror(errno));
        if (log >= 0)
            close(log);
        return -1;
    }
    self->log_start = info.st_size;
    return log;
}

rp_status process_start(struct process *self, const struct process_options *options, int64_t now_ns, rp_error *err)
{
    rp_error why = {0};
    *self = (struct process){.started_ns = now_ns, .guard = options->guard, .place = options->place};
    snprintf(self->name, sizeof self->name, "%s", options->name);
    int log = options->log ? open_log(self, options->log, &why) : -1;
    if (options->log && log < 0)
        return err_set(err, (rp_status)why.status, "%s", why.text);
    rp_status status =
        self->place ? self->place->start(self->place, self, options, err) : start(self, options, log, err);
    if (log >= 0)
        close(log);
    self->running = status == RP_OK;
    return status;
}

static bool child_ended(struct process *self, int *status)
{
    siginfo_t info = {0};
    int rc = waitid(P_PID, (id_t)self->pid, &info, WEXITED | WNOHANG | WNOWAIT);
    if (rc == 0 && info.si_pid == 0)
        return false;
    if (rc != 0 && errno != ECHILD)
        return false;
    *status = 255 << 8; /* somebody else has taken the true status */
    /* The process is still there as a zombie, so no other group can have its number. */
    if (rc == 0)
        kill(-self->pid, SIGKILL);
    guard_tell(self->guard, -(int32_t)self->pid);
    if (rc == 0)
        *status = spawn_reap(self->pid);
    return true;
}

bool process_ended(struct process *self, int *status)
{
    if (!self->running || !(self->place ? self->place->ended(self->place, self, status) : child_ended(self, status)))
        return false;
    self->running = false;
    self->pid = 0;
    return true;
}

void process_ask(struct process *self, int64_t now_ns)
{
    if (!self->running || self->asked_ns != 0)
        return;
    self->asked_ns = now_ns != 0 ? now_ns : 1;
    if (self->place)
        self->place->end(self->place, self, false);
    else
        kill(self->pid, SIGTERM);
}

void process_kill(struct process *self)
{
    if (!self->running)
        return;
    self->killed = true;
    if (self->place)
        self->place->end(self->place, self, true);
    else
        kill(-self->pid, SIGKILL);
}

const char *process_describe(int status, char *out, size_t size)
{
    const char *name = WIFSIGNALED(status) ? sigabbrev_np(WTERMSIG(status)) : NULL; /* some have none */
    if (status == PROCESS_LOST)
        snprintf(out, size, "its host is lost");
    else if (WIFEXITED(status))
        snprintf(out, size, "exit status %d", WEXITSTATUS(status));
    else if (WIFSIGNALED(status))
        snprintf(out, size, "killed by %s%s (%s)", name ? "SIG" : "a signal", name ? name : "",
                 strsignal(WTERMSIG(status)));
    else
        snprintf(out, size, "no start");
    return out;
}

void process_raise_files(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= FILES_MOST)
        return;
    limit.rlim_cur = limit.rlim_max < FILES_MOST ? limit.rlim_max : FILES_MOST;
    setrlimit(RLIMIT_NOFILE, &limit);
}

/* ---- the log: it is kept from growing without bound, and its last lines are made fit for a terminal and for JSON ---- */

enum { WINDOW = 65536, LINE_MOST = 400 };

/* Reads the last bytes since the start, at most WINDOW of them; out has room for WINDOW + 1. */
static size_t read_window(const struct process *self, char *out)
{
    struct stat info;
    size_t used = 0;
    int fd = open(self->log, O_RDONLY | O_CLOEXEC);
    if (fd >= 0 && fstat(fd, &info) == 0) {
        off_t from = info.st_size < self->log_start ? 0 : (off_t)self->log_start; /* another program has cut the log */
        if (info.st_size - from > WINDOW)
            from = info.st_size - WINDOW;
        for (ssize_t n; used < WINDOW && (n = pread(fd, out + used, WINDOW - used, from + (off_t)used)) > 0;)
            used += (size_t)n;
    }
    if (fd >= 0)
        close(fd);
    out[used] = '\0';
    return used;
}

/* Returns the length of the escape sequence at s: colours and the like. */
static size_t escape_length(const char *s, const char *end)
{
    const char *at = s + 1;
    if (at < end && *at == '[') {
        at++;
        while (at < end && *at >= 0x20 && *at < 0x40)
            at++;
        return (size_t)(at - s) + (at < end && *at >= 0x40);
    }
    if (at < end && *at == ']') { /* a title: ends with a bell or another escape */
        while (at < end && *at != '\a' && *at != '\033')
            at++;
        return (size_t)(at - s) + (at < end && *at == '\a');
    }
    return 1;
}

/* Keeps what a terminal would show of the line, without control characters. Works in place; returns the length. */
static size_t clean_line(char *line, size_t size)
{
    char *end = line + size, *from = line;
    size_t n = 0;
    while (end > line && end[-1] == '\r')
        end--;
    for (char *s = line; s < end; s++) {
        if (*s == '\r') /* a progress bar: only its last state counts */
            from = s + 1;
    }
    for (char *s = from; s < end; s++) {
        unsigned char c = (unsigned char)*s;
        if (c == '\033') {
            s += escape_length(s, end) - 1;
        } else if (c == 0xc2 && s + 1 < end && (unsigned char)s[1] >= 0x80 && (unsigned char)s[1] < 0xa0) {
            line[n++] = '?'; /* control characters of two bytes */
            s++;
        } else {
            line[n++] = c == '\t' ? ' ' : c < 0x20 || c == 0x7f ? '?' : *s;
        }
    }
    while (n > 0 && line[n - 1] == ' ')
        n--;
    utf8_clean(line, n);
    return n;
}

static bool continues(char c)
{
    return ((unsigned char)c & 0xc0) == 0x80;
}

/* Keeps the two ends of a line that is too long. Works in place; returns the length. */
static size_t shorten(char *line, size_t size)
{
    static const char gap[] = " ... ";
    if (size <= LINE_MOST)
        return size;
    size_t head = LINE_MOST / 2, tail = LINE_MOST / 2 - (sizeof gap - 1);
    while (head > 0 && continues(line[head]))
        head--;
    while (tail > 0 && continues(line[size - tail]))
        tail--;
    memcpy(line + head, gap, sizeof gap - 1);
    memmove(line + head + sizeof gap - 1, line + size - tail, tail);
    return head + sizeof gap - 1 + tail;
}

bool process_cut_log(struct process *self, int64_t most)
{
    struct stat info;
    /* The process appends: after the cut it writes at the new end. */
    if (most <= 0 || stat(self->log, &info) != 0 || info.st_size <= most || truncate(self->log, 0) != 0)
        return false;
    self->log_start = 0;
    return true;
}

const char *process_tail(const struct process *self, char *out, size_t size, uint32_t lines)
{
    if (size == 0)
        return out;
    char *window = need_alloc(WINDOW + 1);
    /* Lines are filled in from the end, then moved to the front. */
    size_t at = size - 1, end = read_window(self, window);
    out[at] = '\0';
    for (uint32_t n = 0; n < lines && end > 0;) {
        size_t start = end;
        while (start > 0 && window[start - 1] != '\n')
            start--;
        size_t length = shorten(window + start, clean_line(window + start, end - start));
        size_t need = length + (n > 0);
        if (length > 0 && need > at)
            break;
        if (length > 0) {
            at -= need;
            memcpy(out + at, window + start, length);
            if (n > 0)
                out[at + length] = '\n';
            n++;
        }
        end = start > 0 ? start - 1 : 0;
    }
    memmove(out, out + at, size - at);
    free(window);
    return out;
}

/* ---- processor time and memory of a process and its descendants, from /proc ---- */

enum { FAMILY_MOST = 256 };

struct family {
    pid_t list[FAMILY_MOST];
    uint32_t count;
};

static void add_children(struct family *self, pid_t pid, const char *task)
{
    char path[96], text[4096];
    snprintf(path, sizeof path, "/proc/%d/task/%.20s/children", (int)pid, task);
    if (!io_text(path, text, sizeof text))
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

/* What the file `stat` of a process or thread says. */
struct times {
    char state;
    uint64_t user, system;
    int64_t ended_user, ended_system;
};

static bool read_times(const char *path, struct times *out)
{
    char text[1024];
    if (!io_text(path, text, sizeof text))
        return false;
    const char *rest = strrchr(text, ')'); /* the name before it may contain anything */
    return rest &&
           sscanf(rest, ") %c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %" SCNu64 " %" SCNu64 " %" SCNd64 " %" SCNd64,
                  &out->state, &out->user, &out->system, &out->ended_user, &out->ended_system) == 5;
}

/* The process clock counts in nanoseconds and includes ended threads. */
static bool add_cpu(pid_t pid, struct process_usage *out, char *state)
{
    char path[64];
    struct times times;
    clockid_t clock;
    struct timespec own = {0};
    int64_t tick_ns = NS_PER_S / sysconf(_SC_CLK_TCK);
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    if (!read_times(path, &times))
        return false;
    *state = times.state;
    if (clock_getcpuclockid(pid, &clock) == 0)
        clock_gettime(clock, &own);
    out->cpu_ns += own.tv_sec * NS_PER_S + own.tv_nsec + (times.ended_user + times.ended_system) * tick_ns;
    return true;
}

/* Takes the processor time of the main thread if it is the most so far. The scheduler counts in nanoseconds; where it does not tell, the
 * ticks of `stat` count. */
static void add_main(pid_t pid, struct process_usage *out)
{
    char path[64], text[128];
    struct times times;
    snprintf(path, sizeof path, "/proc/%d/task/%d/schedstat", (int)pid, (int)pid);
    int64_t ns = io_text(path, text, sizeof text) ? strtoll(text, NULL, 10) : 0;
    snprintf(path, sizeof path, "/proc/%d/task/%d/stat", (int)pid, (int)pid);
    if (ns == 0 && read_times(path, &times))
        ns = (int64_t)(times.user + times.system) * (NS_PER_S / sysconf(_SC_CLK_TCK));
    out->main_ns = ns > out->main_ns ? ns : out->main_ns;
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
    if (io_text(path, text, sizeof text))
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

/* ---- a program that answers ---- */

#define POLL_MS 5
/* Longer answers are cut: an array of Slurm has at most some thousand tasks. */
#define MOST_TEXT (1 << 20)

rp_status call_start(struct call *self, const char *const *argv, const char *const *environment, int64_t limit_ns,
                     rp_error *err)
{
    call_fini(self);
    *self = (struct call){.limit_ns = limit_ns,
                          .streams = {SPAWN_NULL, memfd_create("out", MFD_CLOEXEC), memfd_create("err", MFD_CLOEXEC)}};
    const struct process_options options = {
        .name = "call", .argv = argv, .environment = environment, .streams = self->streams};
    rp_status status = process_start(&self->process, &options, clock_ns(), err);
    if (status != RP_OK)
        call_fini(self);
    return status;
}

/* Returns what a file in memory holds. */
static char *read_stream(int fd)
{
    struct stat info = {0};
    fstat(fd, &info);
    size_t size = info.st_size < MOST_TEXT ? (size_t)info.st_size : MOST_TEXT;
    char *text = need_alloc(size + 1);
    ssize_t n = pread(fd, text, size, 0);
    text[n > 0 ? n : 0] = '\0';
    return text;
}

bool call_ended(struct call *self)
{
    if (!self->process.running)
        return false;
    struct stat out = {0}, errors = {0};
    fstat(self->streams[1], &out);
    fstat(self->streams[2], &errors);
    /* What it writes lies in memory until it ends. */
    self->late =
        clock_ns() - self->process.started_ns > self->limit_ns || out.st_size + errors.st_size > 64 * MOST_TEXT;
    if (self->late)
        process_kill(&self->process);
    if (!process_ended(&self->process, &self->status))
        return false;
    self->out = read_stream(self->streams[1]);
    self->err = read_stream(self->streams[2]);
    return true;
}

bool call_succeeded(const struct call *self)
{
    return !self->late && WIFEXITED(self->status) && WEXITSTATUS(self->status) == 0;
}

bool call_await(struct call *self)
{
    while (!call_ended(self))
        poll(NULL, 0, POLL_MS);
    return call_succeeded(self);
}

void call_fini(struct call *self)
{
    process_kill(&self->process);
    while (self->process.running && !process_ended(&self->process, &self->status))
        poll(NULL, 0, 1);
    for (int i = 1; i < 3; i++)
        if (self->streams[i] > 0)
            close(self->streams[i]);
    free(self->out);
    free(self->err);
    *self = (struct call){0};
}
