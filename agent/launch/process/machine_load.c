/* See machine_load.h. From the lines "cpuN user nice system idle iowait irq softirq steal ..." of /proc/stat. */
#include "agent/launch/process/machine_load.h"

#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "proto/base/clock.h"

#define FULL 0.85         /* share of busy cores from which on programs take them from each other */
#define LEAST_OTHERS 0.08 /* share of the cores: less than this is kernel work and rounding of its ticks */
#define MOST_CPUS 16384

/* ---- reading ---- */

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

static bool read_stat(struct machine_load *out)
{
    cpu_set_t *set = CPU_ALLOC(MOST_CPUS);
    FILE *file = fopen("/proc/stat", "re");
    char *text = NULL;
    size_t size = 0;
    bool ok = set && file && sched_getaffinity(0, CPU_ALLOC_SIZE(MOST_CPUS), set) == 0 &&
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

/* ---- comparing ---- */

double machine_load_others(const struct machine_load *before, const struct machine_load *after, double ours)
{
    double ns = (double)(after->at_ns - before->at_ns), cores = after->cores;
    if (before->cores == 0 || after->cores != before->cores || !(ns > 0) || after->busy_ns < before->busy_ns)
        return 0;
    double busy = (double)(after->busy_ns - before->busy_ns) / ns, own = (double)(after->own_ns - before->own_ns) / ns;
    double others = busy - own - fmax(0, ours);
    return busy >= FULL * cores && others >= LEAST_OTHERS * cores ? fmin(others, cores) : 0;
}
