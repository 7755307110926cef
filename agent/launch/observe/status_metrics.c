/* See status_metrics.h. Families are rows of a table; a row knows where its number is. */
#include "agent/launch/observe/status_metrics.h"

#include <inttypes.h>
#include <math.h>
#include <stddef.h>
#include <string.h>

enum number { NUMBER_REAL, NUMBER_U64, NUMBER_U32, NUMBER_BOOL };

struct family {
    const char *name, *unit, *help; /* the name ends with the unit; "": none */
    bool counts;                    /* a counter; otherwise a gauge */
    enum number kind;
    size_t at;
};

#define REAL(type, field) NUMBER_REAL, offsetof(type, field)
#define U64(type, field) NUMBER_U64, offsetof(type, field)
#define U32(type, field) NUMBER_U32, offsetof(type, field)

static const struct family of_run[] = {
    {"elapsed_seconds", "seconds", "Time since the start of the run, earlier legs included.", false,
     REAL(struct status, elapsed_s)},
    {"updated_timestamp_seconds", "seconds", "When the status was written, in seconds since 1970.", false,
     REAL(struct status, unix_s)},
    {"environment_steps", "", "Environment steps.", true, U64(struct status, steps)},
    {"learner_steps", "", "Learner steps.", true, U64(struct status, learner_steps)},
    {"progress_ratio", "ratio", "Progress towards the nearest stop condition.", false, REAL(struct status, progress)},
    {"environment_steps_per_second", "", "Environment steps per second, lately.", false,
     REAL(struct status, steps_rate)},
    {"learner_steps_per_second", "", "Learner steps per second, lately.", false, REAL(struct status, updates_rate)},
    {"inserts_per_second", "", "Inserts into the table per second, lately.", false, REAL(struct status, inserts_rate)},
    {"samples_per_second", "", "Samples of the table per second, lately.", false, REAL(struct status, samples_rate)},
    {"samples_per_insert", "", "Samples per insert, lately.", false, REAL(struct status, spi)},
    {"actor_idle_ratio", "ratio", "Share of their time for which actors wait.", false, REAL(struct status, actor_idle)},
    {"learner_idle_ratio", "ratio", "Share of their time for which learners wait.", false,
     REAL(struct status, learner_idle)},
    {"return", "", "Mean return of the newest evaluation.", false, REAL(struct status, value)},
    {"best_return", "", "Mean return of the best evaluation.", false, REAL(struct status, best)},
    {"exploring_return", "", "Mean return of the actors, which explore.", false, REAL(struct status, actor_value)},
    {"table_items", "", "Items in the table.", false, U64(struct status, size)},
    {"table_capacity_items", "", "Items that the table may hold.", false, U64(struct status, max_size)},
    {"limiter_cursor", "", "Cursor of the table's limiter.", false, REAL(struct status, cursor)},
    {"actors", "", "Actors that run.", false, U32(struct status, actors)},
    {"actors_wanted", "", "Actors that should run.", false, U32(struct status, actors_wanted)},
    {"learners", "", "Learners that run.", false, U32(struct status, learners)},
    {"learners_wanted", "", "Learners that should run.", false, U32(struct status, learners_wanted)},
    {"restarts", "", "Processes that were started again.", true, U32(struct status, restarts)},
    {"memory_bytes", "bytes", "Memory of all processes.", false, U64(struct status, memory)},
    {"cores", "", "Processors that all processes use, lately.", false, REAL(struct status, cpu)},
};

static const struct family of_process[] = {
    {"process_memory_bytes", "bytes", "Memory of a process.", false, U64(struct status_process, memory)},
    {"process_cores", "", "Processors that a process uses, lately.", false, REAL(struct status_process, cpu)},
    {"process_restarts", "", "How often a process was started again.", true, U32(struct status_process, restarts)},
};

static const struct family of_host[] = {
    {"host_ready", "", "1 if the host is there, 0 if it is not.", false, NUMBER_BOOL,
     offsetof(struct status_host, ready)},
    {"host_actors", "", "Actors that run on a host.", false, U32(struct status_host, actors)},
    {"host_learners", "", "Learners that run on a host.", false, U32(struct status_host, learners)},
    {"host_memory_bytes", "bytes", "Memory of the run's processes on a host.", false, U64(struct status_host, memory)},
    {"host_cores", "", "Processors that the run's processes use on a host.", false, REAL(struct status_host, cpu)},
    {"host_losses", "", "How often a host was lost.", true, U32(struct status_host, losses)},
};
#define ROWS(table) table, sizeof(table) / sizeof *(table)

/* ---- text ---- */

/* "name=\"value\"", escaped; control characters become '?', bytes beyond ASCII stay. */
static void add_label(struct text *out, const char *name, const char *value)
{
    text_add(out, "%s=\"", name);
    for (; *value; value++) {
        if (*value == '"' || *value == '\\')
            text_add(out, "\\%c", *value);
        else
            text_add(out, "%c", (unsigned char)*value < 0x20 ? '?' : *value);
    }
    text_add(out, "\"");
}

static void add_head(struct text *out, const struct family *family)
{
    text_add(out, "# HELP replay_run_%s %s\n", family->name, family->help);
    text_add(out, "# TYPE replay_run_%s %s\n", family->name, family->counts ? "counter" : "gauge");
    if (family->unit[0])
        text_add(out, "# UNIT replay_run_%s %s\n", family->name, family->unit);
}

static double value_of(const struct family *family, const void *record)
{
    const char *at = (const char *)record + family->at;
    switch (family->kind) {
    case NUMBER_REAL:
        return *(const double *)(const void *)at;
    case NUMBER_U64:
        return (double)*(const uint64_t *)(const void *)at;
    case NUMBER_U32:
        return *(const uint32_t *)(const void *)at;
    case NUMBER_BOOL:
        return *(const bool *)(const void *)at;
    }
    return NAN;
}

static void add_sample(struct text *out, const struct family *family, const char *labels, double value)
{
    text_add(out, "replay_run_%s%s{%s} %.17g\n", family->name, family->counts ? "_total" : "", labels, value);
}

/* ---- families ---- */

/* Families of records that are told apart by a label: processes, hosts. */
struct group {
    const struct family *families;
    size_t n_families;
    const void *records;
    uint32_t n;
    size_t size, name; /* of a record; of its name in it */
    const char *label;
};

static void add_group(struct text *out, const struct group *group, const char *run)
{
    for (size_t f = 0; f < group->n_families && group->n; f++) {
        add_head(out, &group->families[f]);
        for (uint32_t i = 0; i < group->n; i++) {
            const char *record = (const char *)group->records + i * group->size;
            double value = value_of(&group->families[f], record);
            struct text labels = {0};
            text_add(&labels, "%s,", run);
            add_label(&labels, group->label, record + group->name);
            if (isfinite(value))
                add_sample(out, &group->families[f], text_get(&labels), value);
            text_fini(&labels);
        }
    }
}

static void add_phase(struct text *out, const struct status *status, const char *run)
{
    text_add(out,
             "# HELP replay_run_phase 1 for the phase of the run, 0 for all others.\n# TYPE replay_run_phase gauge\n");
    for (enum phase phase = 0; phase < PHASES; phase++)
        text_add(out, "replay_run_phase{%s,phase=\"%s\"} %d\n", run, phase_name(phase), phase == status->phase);
}

void status_metrics(struct text *out, const struct status *status)
{
    struct text run = {0};
    add_label(&run, "run", status->name);
    for (size_t i = 0; i < sizeof of_run / sizeof *of_run; i++) {
        double value = value_of(&of_run[i], status);
        if (!isfinite(value))
            continue;
        add_head(out, &of_run[i]);
        add_sample(out, &of_run[i], text_get(&run), value);
    }
    add_phase(out, status, text_get(&run));
    const struct group processes = {ROWS(of_process),
                                    status->processes,
                                    status->processes ? status->n_processes : 0,
                                    sizeof *status->processes,
                                    offsetof(struct status_process, name),
                                    "process"};
    const struct group hosts = {ROWS(of_host),
                                status->hosts,
                                status->hosts ? status->n_hosts : 0,
                                sizeof *status->hosts,
                                offsetof(struct status_host, name),
                                "host"};
    add_group(out, &processes, text_get(&run));
    add_group(out, &hosts, text_get(&run));
    text_add(out, "# EOF\n");
    text_fini(&run);
}
