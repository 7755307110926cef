/* What this machine offers: affinity, and the limits of our control groups. */
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
#include "proto/base/io.h"

#define MOST_CPUS 65536
#define FULL 0.85         /* share of busy cores from which on programs take them from each other */
#define LEAST_OTHERS 0.08 /* share of the cores: less than this is kernel work and rounding of its ticks */

/* The processors that this process may use: CPU_FREE. NULL: not known. */
static cpu_set_t *allowed_cpus(void)
{
    cpu_set_t *set = CPU_ALLOC(MOST_CPUS);
    if (set && sched_getaffinity(0, CPU_ALLOC_SIZE(MOST_CPUS), set) == 0)
        return set;
    CPU_FREE(set);
    return NULL;
}

/* Finds the first line "name 123", "name: 123" or "name\t: word". Returns what follows the name; NULL: there is no such line. */
static const char *named_value(const char *text, const char *name)
{
    size_t length = strlen(name);
    while (strncmp(text, name, length) != 0 || !strchr(" \t:", text[length])) {
        text += strcspn(text, "\n");
        if (*text++ == '\0')
            return NULL;
    }
    return text + length + strspn(text + length, " \t:");
}

/* ---- control groups (version 2) ---- */

struct group {
    char path[1024]; /* folder of the group */
    size_t root;     /* length of the path of the highest group */
};

/* Our own group, the line "0::/user.slice" of a file. */
static bool find_group(struct group *self, const char *root)
{
    char path[512], text[4096];
    snprintf(path, sizeof path, "%s/proc/self/cgroup", root);
    io_text(path, text, sizeof text);
    const char *own = named_value(text, "0");
    int length = own ? (int)strcspn(own, "\n") : 0;
    self->root = (size_t)snprintf(self->path, sizeof self->path, "%.400s/sys/fs/cgroup", root);
    snprintf(self->path + self->root, sizeof self->path - self->root, "%.*s", length > 1 ? length : 0, own ? own : "");
    return length > 0;
}

/* Reads up to two numbers from a file of the group; returns how many there are ("max" is none). */
static int read_numbers(const struct group *self, const char *name, double *first, double *second)
{
    char path[1200], line[256] = "";
    snprintf(path, sizeof path, "%s/%s", self->path, name);
    int n = io_text(path, line, sizeof line) ? sscanf(line, "%lf %lf", first, second) : 0;
    return n > 0 ? n : 0;
}

/* Moves to the group above; false: this is the highest one. A container may see its own group as the root, with the
 * path of the host. */
static bool go_up(struct group *self)
{
    char *slash = strrchr(self->path + self->root, '/');
    if (slash)
        *slash = '\0';
    return slash != NULL;
}

double machine_cores_below(const char *root, double most)
{
    struct group group;
    if (find_group(&group, root)) {
        do {
            double quota = 0.0, period = 0.0;
            if (read_numbers(&group, "cpu.max", &quota, &period) == 2 && quota > 0 && period > 0)
                most = fmin(most, quota / period);
        } while (go_up(&group));
    }
    return most;
}

double machine_cores(void)
{
    cpu_set_t *set = allowed_cpus();
    long count = set ? CPU_COUNT_S(CPU_ALLOC_SIZE(MOST_CPUS), set) : sysconf(_SC_NPROCESSORS_ONLN);
    CPU_FREE(set);
    return machine_cores_below("", count > 0 ? (double)count : 1.0);
}

/* ---- memory ---- */

/* The number of a line of a file. */
static double named_number(const char *path, const char *name)
{
    char text[8192];
    io_text(path, text, sizeof text);
    const char *value = named_value(text, name);
    return value ? strtod(value, NULL) : NAN;
}

/* Bytes that the group may still take. File pages that are not in use are freed when memory is needed. */
static double room(const struct group *self)
{
    double most = 0.0, used = 0.0, unused;
    char path[1200];
    if (read_numbers(self, "memory.max", &most, &unused) < 1)
        return INFINITY;
    if (read_numbers(self, "memory.current", &used, &unused) < 1)
        used = 0.0;
    snprintf(path, sizeof path, "%s/memory.stat", self->path);
    double files = named_number(path, "inactive_file");
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
    if (find_group(&group, root)) {
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

static bool cpu_value(const char *text, const char *name, char *out, size_t size)
{
    const char *value = named_value(text, name);
    snprintf(out, size, "%.*s", value ? (int)strcspn(value, "\n") : 0, value ? value : "");
    return out[0] != '\0';
}

const char *machine_model(char *out, size_t size)
{
    char text[4096] = "", name[96] = "", maker[24] = "", part[24] = "";
    struct utsname machine = {0};
    io_text("/proc/cpuinfo", text, sizeof text);
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
        if (cpu >= MOST_CPUS || !allowed((uint32_t)cpu, context))
            continue;
        out->busy_ns += busy_ticks(end) * tick_ns;
        out->cores++;
    }
    return out->cores > 0;
}

static bool in_set(uint32_t cpu, const void *context)
{
    return CPU_ISSET_S(cpu, CPU_ALLOC_SIZE(MOST_CPUS), (const cpu_set_t *)context);
}

bool machine_load_read(struct machine_load *out)
{
    struct timespec own = {0};
    cpu_set_t *set = allowed_cpus();
    FILE *file = fopen("/proc/stat", "re");
    char *text = NULL;
    size_t size = 0;
    *out = (struct machine_load){.at_ns = clock_ns()};
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &own);
    out->own_ns = own.tv_sec * NS_PER_S + own.tv_nsec;
    bool ok = set && file && getdelim(&text, &size, '\0', file) > 0 && machine_load_parse(text, in_set, set, out);
    free(text);
    if (file)
        fclose(file);
    CPU_FREE(set);
    return ok;
}

double machine_load_busy(const struct machine_load *before, const struct machine_load *after)
{
    int64_t ns = after->at_ns - before->at_ns;
    bool known = before->cores > 0 && after->cores == before->cores && ns > 0 && after->busy_ns >= before->busy_ns;
    return known ? (double)(after->busy_ns - before->busy_ns) / (double)ns : 0.0;
}

double machine_load_others(const struct machine_load *before, const struct machine_load *after, double ours)
{
    double busy = machine_load_busy(before, after), cores = after->cores;
    if (!(busy > 0))
        return 0;
    double own = (double)(after->own_ns - before->own_ns) / (double)(after->at_ns - before->at_ns);
    double others = busy - own - fmax(0, ours);
    return busy >= FULL * cores && others >= LEAST_OTHERS * cores ? fmin(others, cores) : 0;
}
