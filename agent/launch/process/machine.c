/* What this machine offers: affinity, and the limits of our control groups (both versions). */
#include "agent/launch/process/machine.h"

#include <math.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#include "proto/base/clock.h"

#define MOST_CPUS 65536
#define STAT_CPUS 16384
#define FULL 0.85         /* share of busy cores from which on programs take them from each other */
#define LEAST_OTHERS 0.08 /* share of the cores: less than this is kernel work and rounding of its ticks */

static double affinity(void)
{
    for (int n = 1024; n <= MOST_CPUS; n *= 4) {
        size_t size = CPU_ALLOC_SIZE(n);
        cpu_set_t *set = CPU_ALLOC(n);
        int count = set && sched_getaffinity(0, size, set) == 0 ? CPU_COUNT_S(size, set) : 0;
        CPU_FREE(set);
        if (count > 0)
            return count;
    }
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    return online > 0 ? (double)online : 1.0;
}

/* ---- control groups ---- */

struct group {
    const char *root;
    char base[512]; /* where the controller is mounted */
    char path[512]; /* path of our group below the mount: "", or "/a/b" */
    bool old;       /* version 1 */
};

/* True if the comma-separated list contains the word. */
static bool has_word(const char *list, size_t length, const char *word)
{
    size_t size = strlen(word);
    for (const char *at = list; at < list + length;) {
        size_t part = strcspn(at, ",:");
        if (part == size && strncmp(at, word, size) == 0)
            return true;
        at += part + 1;
    }
    return false;
}

/* A line "4:cpu,cpuacct:/docker/x" or "0::/user.slice". */
static bool parse_group(struct group *self, char *line, const char *controller)
{
    char *list = strchr(line, ':'), *path = list ? strchr(list + 1, ':') : NULL;
    if (!path)
        return false;
    list++;
    size_t length = (size_t)(path - list);
    path++;
    path[strcspn(path, "\n")] = '\0';
    if (length > 0 && !has_word(list, length, controller))
        return false;
    self->old = length > 0;
    snprintf(self->path, sizeof self->path, "%s", strcmp(path, "/") == 0 ? "" : path);
    if (length == 0)
        snprintf(self->base, sizeof self->base, "%s/sys/fs/cgroup", self->root);
    else
        snprintf(self->base, sizeof self->base, "%s/sys/fs/cgroup/%s", self->root, controller);
    return true;
}

/* Version 1 wins where it has the controller. */
static bool find_group(struct group *self, const char *root, const char *controller)
{
    char name[512], line[1024];
    struct group one = {.root = root};
    bool found = false;
    snprintf(name, sizeof name, "%s/proc/self/cgroup", root);
    FILE *file = fopen(name, "re");
    if (!file)
        return false;
    while (fgets(line, sizeof line, file)) {
        if (!parse_group(&one, line, controller) || (found && !one.old))
            continue;
        *self = one;
        found = true;
    }
    fclose(file);
    return found;
}

/* Reads up to two numbers from a file of the group; returns how many there are ("max" is none). */
static int read_numbers(const struct group *self, const char *name, double *first, double *second)
{
    char path[1200], line[256] = "";
    snprintf(path, sizeof path, "%s%s/%s", self->base, self->path, name);
    FILE *file = fopen(path, "re");
    if (!file)
        return 0;
    bool read = fgets(line, sizeof line, file) != NULL;
    fclose(file);
    int n = read ? sscanf(line, "%lf %lf", first, second) : 0;
    return n > 0 ? n : 0;
}

/* Moves to the group above; false: this is the highest one. A container may see its own group as the root, with the
 * path of the host. */
static bool go_up(struct group *self)
{
    char *slash = strrchr(self->path, '/');
    if (!slash)
        return false;
    *slash = '\0';
    return true;
}

static double quota(const struct group *self)
{
    double most = 0.0, period = 0.0, unused;
    if (!self->old)
        return read_numbers(self, "cpu.max", &most, &period) == 2 && period > 0 ? most / period : INFINITY;
    if (read_numbers(self, "cpu.cfs_quota_us", &most, &unused) < 1 ||
        read_numbers(self, "cpu.cfs_period_us", &period, &unused) < 1 || most <= 0 || period <= 0)
        return INFINITY;
    return most / period;
}

double machine_cores_below(const char *root, double most)
{
    struct group group;
    if (find_group(&group, root, "cpu")) {
        do {
            double limit = quota(&group);
            most = limit > 0 ? fmin(most, limit) : most;
        } while (go_up(&group));
    }
    return most;
}

double machine_cores(void)
{
    return machine_cores_below("", affinity());
}

/* ---- memory ---- */

/* A line "Name: 123 kB" or "name 123" of a file. */
static double named_number(const char *path, const char *name)
{
    char line[256];
    double value = NAN;
    size_t length = strlen(name);
    FILE *file = fopen(path, "re");
    while (file && isnan(value) && fgets(line, sizeof line, file))
        if (strncmp(line, name, length) == 0 && (line[length] == ':' || line[length] == ' '))
            value = strtod(line + length + 1, NULL);
    if (file)
        fclose(file);
    return value;
}

/* Bytes that the group may still take. File pages that are not in use are freed when memory is needed. */
static double room(const struct group *self)
{
    double most = 0.0, used = 0.0, unused;
    char path[1200];
    if (read_numbers(self, self->old ? "memory.limit_in_bytes" : "memory.max", &most, &unused) < 1 || most >= 9e18)
        return INFINITY;
    if (read_numbers(self, self->old ? "memory.usage_in_bytes" : "memory.current", &used, &unused) < 1)
        used = 0.0;
    snprintf(path, sizeof path, "%s%s/memory.stat", self->base, self->path);
    double files = named_number(path, self->old ? "total_inactive_file" : "inactive_file");
    return fmax(0.0, most - fmax(0.0, used - (isnan(files) ? 0.0 : files)));
}

double machine_memory_below(const char *root)
{
    char path[512];
    snprintf(path, sizeof path, "%s/proc/meminfo", root);
    double most = named_number(path, "MemAvailable") * 1024.0;
    struct group group;
    if (isnan(most))
        most = INFINITY;
    if (find_group(&group, root, "memory")) {
        do
            most = fmin(most, room(&group));
        while (go_up(&group));
    }
    return isfinite(most) ? 0.8 * most : 0.0;
}

double machine_memory(void)
{
    return machine_memory_below("");
}

/* ---- processor ---- */

/* Copies the value of a line "name : value" of /proc/cpuinfo, the first one. */
static bool cpu_value(const char *text, const char *name, char *out, size_t size)
{
    const char *at = strstr(text, name), *colon = at ? strchr(at, ':') : NULL;
    if (!colon || (at != text && at[-1] != '\n'))
        return false;
    colon += 1 + strspn(colon + 1, " \t");
    snprintf(out, size, "%.*s", (int)strcspn(colon, "\n"), colon);
    return out[0] != '\0';
}

const char *machine_model(char *out, size_t size)
{
    char text[4096] = "", name[96] = "", maker[24] = "", part[24] = "";
    struct utsname machine = {0};
    FILE *file = fopen("/proc/cpuinfo", "re");
    if (file) {
        text[fread(text, 1, sizeof text - 1, file)] = '\0';
        fclose(file);
    }
    uname(&machine);
    if (!cpu_value(text, "model name", name, sizeof name) && cpu_value(text, "CPU implementer", maker, sizeof maker) &&
        cpu_value(text, "CPU part", part, sizeof part))
        snprintf(name, sizeof name, "implementer %s part %s", maker, part);
    snprintf(out, size, "%s (%.32s)", name[0] ? name : "processor", machine.machine);
    return out;
}

/* ---- load, from the lines "cpuN user nice system idle iowait irq softirq steal ..." of /proc/stat ---- */

/* The fields of a line from the first number on. Idle and iowait (the fourth and fifth) are not work; the fields
 * after steal (the eighth) are included in the first two. */
static int64_t busy_ticks(const char *at)
{
    int64_t busy = 0;
    for (int field = 0; field < 8; field++) {
        char *end;
        long long value = strtoll(at, &end, 10);
        if (end == at)
            break;
        busy += field == 3 || field == 4 || value < 0 ? 0 : value;
        at = end;
    }
    return busy;
}

bool machine_load_parse(const char *text, bool (*allowed)(uint32_t cpu, const void *context), const void *context,
                        struct machine_load *out)
{
    long ticks = sysconf(_SC_CLK_TCK);
    int64_t tick_ns = NS_PER_S / (ticks > 0 ? ticks : 100);
    out->busy_ns = 0;
    out->cores = 0;
    for (const char *line = text; line; line = strchr(line, '\n')) {
        line += *line == '\n';
        char *end;
        if (strncmp(line, "cpu", 3) != 0 || line[3] < '0' || line[3] > '9')
            continue;
        unsigned long cpu = strtoul(line + 3, &end, 10);
        if (cpu >= STAT_CPUS || !allowed((uint32_t)cpu, context))
            continue;
        out->busy_ns += busy_ticks(end) * tick_ns;
        out->cores++;
    }
    return out->cores > 0;
}

static bool in_set(uint32_t cpu, const void *context)
{
    return CPU_ISSET_S(cpu, CPU_ALLOC_SIZE(STAT_CPUS), (const cpu_set_t *)context);
}

static bool read_stat(struct machine_load *out)
{
    cpu_set_t *set = CPU_ALLOC(STAT_CPUS);
    FILE *file = fopen("/proc/stat", "re");
    char *text = NULL;
    size_t size = 0;
    bool ok = set && file && sched_getaffinity(0, CPU_ALLOC_SIZE(STAT_CPUS), set) == 0 &&
              getdelim(&text, &size, '\0', file) > 0 && machine_load_parse(text, in_set, set, out);
    free(text);
    if (file)
        fclose(file);
    CPU_FREE(set);
    return ok;
}

bool machine_load_read(struct machine_load *out)
{
    struct clock clock = clock_system();
    struct timespec own = {0};
    *out = (struct machine_load){.at_ns = clock_now(&clock)};
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &own);
    out->own_ns = own.tv_sec * NS_PER_S + own.tv_nsec;
    return read_stat(out);
}

double machine_load_others(const struct machine_load *before, const struct machine_load *after, double ours)
{
    double ns = (double)(after->at_ns - before->at_ns), cores = after->cores;
    if (before->cores == 0 || after->cores != before->cores || !(ns > 0) || after->busy_ns < before->busy_ns)
        return 0;
    double busy = (double)(after->busy_ns - before->busy_ns) / ns, own = (double)(after->own_ns - before->own_ns) / ns;
    double others = busy - own - fmax(0, ours);
    return busy >= FULL * cores && others >= LEAST_OTHERS * cores ? fmin(others, cores) : 0;
}
