/* A status as JSON and back. One table of members drives both ways. */
#include "agent/launch/process/status.h"

#include <json-c/json.h>
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "proto/base/json_map.h"
#include "proto/base/need.h"

#define STATUS_MAX_PROCESSES 4096u
#define STATUS_MAX_HOSTS 1024u

static const char *const phase_names[PHASES] = {
    [PHASE_STARTING] = "starting", [PHASE_FILLING] = "filling",     [PHASE_RUNNING] = "running",
    [PHASE_STOPPING] = "stopping", [PHASE_MEASURING] = "measuring", [PHASE_DONE] = "done",
    [PHASE_STOPPED] = "stopped",   [PHASE_FAILED] = "failed",
};

const char *phase_name(enum phase phase)
{
    return (unsigned)phase < PHASES ? phase_names[phase] : "unknown";
}

enum phase phase_find(const char *name)
{
    enum phase phase = 0;
    while (phase < PHASES && strcmp(name, phase_names[phase]) != 0)
        phase++;
    return phase;
}

struct why_run status_facts(const struct status *self)
{
    return (struct why_run){.actors = self->actors,
                            .learners = self->learners,
                            .actor_idle = self->actor_idle,
                            .learner_idle = self->learner_idle,
                            .cpu = self->cpu,
                            .cores = self->cores,
                            .others = self->others};
}

#define TEXT(field) JSON_ROW(struct status, field)
#define COUNT(field) JSON_ROW(struct status, field)
#define NUMBER(field, none) JSON_REAL(struct status, field, none)
#define SHARE(side, cause, which) JSON_ROW_AS(#side "_idle_" #cause, struct status, idle_by.side[which], NAN)

static const struct json_row status_rows[] = {
    TEXT(name),
    TEXT(folder),
    JSON_WORD(struct status, phase, phase_names, PHASE_STARTING),
    NUMBER(unix_s, 0),
    NUMBER(elapsed_s, 0),
    TEXT(reason),
    COUNT(steps),
    COUNT(learner_steps),
    COUNT(stop_steps),
    COUNT(stop_learner_steps),
    NUMBER(stop_value, INFINITY),
    NUMBER(stop_time_s, 0),
    NUMBER(progress, NAN),
    NUMBER(eta_s, NAN),
    NUMBER(steps_rate, 0),
    NUMBER(updates_rate, 0),
    NUMBER(inserts_rate, 0),
    NUMBER(samples_rate, 0),
    NUMBER(spi, NAN),
    NUMBER(spi_target, 0),
    NUMBER(actor_idle, NAN),
    NUMBER(learner_idle, NAN),
    SHARE(actor, sample, IDLE_SAMPLE),
    SHARE(actor, credit, IDLE_CREDIT),
    SHARE(actor, parameters, IDLE_PARAMETERS),
    SHARE(actor, counters, IDLE_COUNTERS),
    SHARE(learner, sample, IDLE_SAMPLE),
    SHARE(learner, parameters, IDLE_PARAMETERS),
    SHARE(learner, reduce, IDLE_REDUCE),
    SHARE(learner, updates, IDLE_UPDATES),
    SHARE(learner, counters, IDLE_COUNTERS),
    NUMBER(planned_inserts, NAN),
    NUMBER(planned_samples, NAN),
    NUMBER(planned_actor_idle, NAN),
    NUMBER(planned_learner_idle, NAN),
    COUNT(size),
    COUNT(max_size),
    NUMBER(min_size, 0),
    NUMBER(cursor, NAN),
    NUMBER(cursor_low, NAN),
    NUMBER(cursor_high, NAN),
    NUMBER(value, NAN),
    NUMBER(best, NAN),
    NUMBER(actor_value, NAN),
    COUNT(n_values),
    COUNT(n_processes),
    COUNT(n_hosts),
    COUNT(actors),
    COUNT(actors_wanted),
    COUNT(learners),
    COUNT(learners_wanted),
    COUNT(shards),
    TEXT(shards_reason),
    COUNT(restarts),
    COUNT(memory),
    COUNT(memory_limit),
    NUMBER(cpu, 0),
    NUMBER(cores, 0),
    NUMBER(others, 0),
    TEXT(event),
    NUMBER(event_unix_s, 0),
    {0},
};

#define PROCESS(field) JSON_ROW(struct status_process, field)

static const struct json_row process_rows[] = {
    PROCESS(name),
    JSON_WORD(struct status_process, role, role_names, ROLE_ACTOR),
    PROCESS(pid),
    PROCESS(restarts),
    PROCESS(memory),
    PROCESS(cpu),
    PROCESS(state),
    PROCESS(host),
    {0},
};

#define HOST(field) JSON_ROW(struct status_host, field)
#define HOST_REAL(field, none) JSON_REAL(struct status_host, field, none)

static const struct json_row host_rows[] = {
    HOST(name),
    HOST(model),
    HOST(state),
    HOST(ready),
    HOST(actors),
    HOST(actors_wanted),
    HOST(learners),
    HOST(learners_wanted),
    HOST(times),
    HOST(losses),
    HOST_REAL(cpu, 0),
    HOST_REAL(cores, 0),
    HOST_REAL(machine_cpu, NAN),
    HOST_REAL(mean_cpu, NAN),
    HOST_REAL(lost_s, 0),
    HOST(memory),
    HOST_REAL(round_trip_ms, NAN),
    {0},
};

/* What only status.json has. */
static const struct json_row list_rows[] = {
    JSON_POINTER(struct status, processes, n_processes, process_rows, STATUS_MAX_PROCESSES),
    JSON_POINTER(struct status, hosts, n_hosts, host_rows, STATUS_MAX_HOSTS),
    {0},
};

/* ---- out ---- */

static void put_doubles(struct json *out, const char *name, const double *values, uint32_t n)
{
    json_begin(out, name, '[');
    for (uint32_t i = 0; i < n; i++)
        json_number(out, values[i]);
    json_close(out, ']');
}

char *status_to_json(const struct status *self, bool whole)
{
    struct json out = {0};
    json_open(&out, '{');
    json_map_write(&out, status_rows, self);
    json_map_write(&out, why_rows, &self->why);
    if (whole) {
        json_map_write(&out, list_rows, self);
        bool some = self->values && self->value_steps;
        put_doubles(&out, "value_steps", self->value_steps, some ? self->n_values : 0);
        put_doubles(&out, "values", self->values, some ? self->n_values : 0);
    }
    json_close(&out, '}');
    return json_need(&out);
}

/* ---- in ---- */

static uint32_t array_length(struct json_object *object, const char *name, struct json_object **array)
{
    if (!json_object_object_get_ex(object, name, array) || !json_object_is_type(*array, json_type_array))
        return 0;
    size_t n = json_object_array_length(*array);
    return n > UINT32_MAX ? UINT32_MAX : (uint32_t)n;
}

/* Keeps the newest evaluations if there are more than STATUS_MAX_VALUES. */
static void get_values(struct json_object *object, struct status *out)
{
    struct json_object *steps = NULL, *values = NULL;
    uint32_t n = array_length(object, "values", &values), n_steps = array_length(object, "value_steps", &steps);
    n = n < n_steps ? n : n_steps;
    uint32_t first = n > STATUS_MAX_VALUES ? n - STATUS_MAX_VALUES : 0, keep = n - first;
    out->n_values = keep;
    if (!keep)
        return;
    double *block = need_alloc((size_t)keep * 2 * sizeof *block); /* the steps, then the values */
    out->value_steps = block;
    out->values = block + keep;
    for (uint32_t i = 0; i < keep; i++) {
        block[i] = json_map_real(json_object_array_get_idx(steps, first + i), NAN);
        block[keep + i] = json_map_real(json_object_array_get_idx(values, first + i), NAN);
    }
}

bool status_from_json(const char *text, struct status *out)
{
    *out = (struct status){0};
    struct json_object *object = text ? json_tokener_parse(text) : NULL;
    bool ok = phase_find(json_map_text(object, "phase")) < PHASES;
    if (ok) {
        json_map_read(object, status_rows, out);
        json_map_read(object, why_rows, &out->why);
        json_map_read(object, list_rows, out);
        get_values(object, out);
    }
    json_object_put(object);
    return ok;
}

void status_fini(struct status *self)
{
    free((void *)(uintptr_t)self->value_steps);
    free((void *)(uintptr_t)self->processes);
    free((void *)(uintptr_t)self->hosts);
    *self = (struct status){0};
}

/* Figures as OpenMetrics text. Families are rows of a table; a row knows where its number is. */

struct status_family {
    const char *name, *help;
    bool counts;         /* a counter; otherwise a gauge */
    struct json_row row; /* where its number is */
};

static const struct status_family of_run[] = {
    {"elapsed_seconds", "Time since the start of the run, earlier legs included.", false, COUNT(elapsed_s)},
    {"updated_timestamp_seconds", "When the status was written, in seconds since 1970.", false, COUNT(unix_s)},
    {"environment_steps", "Environment steps.", true, COUNT(steps)},
    {"learner_steps", "Learner steps.", true, COUNT(learner_steps)},
    {"progress_ratio", "Progress towards the nearest stop condition.", false, COUNT(progress)},
    {"environment_steps_per_second", "Environment steps per second, lately.", false, COUNT(steps_rate)},
    {"learner_steps_per_second", "Learner steps per second, lately.", false, COUNT(updates_rate)},
    {"inserts_per_second", "Inserts into the table per second, lately.", false, COUNT(inserts_rate)},
    {"samples_per_second", "Samples of the table per second, lately.", false, COUNT(samples_rate)},
    {"samples_per_insert", "Samples per insert, lately.", false, COUNT(spi)},
    {"actor_idle_ratio", "Share of their time for which actors wait.", false, COUNT(actor_idle)},
    {"learner_idle_ratio", "Share of their time for which learners wait.", false, COUNT(learner_idle)},
    {"return", "Mean return of the newest evaluation.", false, COUNT(value)},
    {"best_return", "Mean return of the best evaluation.", false, COUNT(best)},
    {"exploring_return", "Mean return of the actors' newest episodes.", false, COUNT(actor_value)},
    {"table_items", "Items in the table.", false, COUNT(size)},
    {"table_capacity_items", "Items that the table may hold.", false, COUNT(max_size)},
    {"limiter_cursor", "Cursor of the table's limiter.", false, COUNT(cursor)},
    {"actors", "Actors that run.", false, COUNT(actors)},
    {"actors_wanted", "Actors that should run.", false, COUNT(actors_wanted)},
    {"learners", "Learners that run.", false, COUNT(learners)},
    {"learners_wanted", "Learners that should run.", false, COUNT(learners_wanted)},
    {"restarts", "Processes that were started again.", true, COUNT(restarts)},
    {"memory_bytes", "Memory of all processes.", false, COUNT(memory)},
    {"cores", "Processors that all processes use, lately.", false, COUNT(cpu)},
};

static const struct status_family of_process[] = {
    {"process_memory_bytes", "Memory of a process.", false, PROCESS(memory)},
    {"process_cores", "Processors that a process uses, lately.", false, PROCESS(cpu)},
    {"process_restarts", "How often a process was started again.", true, PROCESS(restarts)},
};

static const struct status_family of_host[] = {
    {"host_ready", "1 if the host is there, 0 if it is not.", false, HOST(ready)},
    {"host_actors", "Actors that run on a host.", false, HOST(actors)},
    {"host_learners", "Learners that run on a host.", false, HOST(learners)},
    {"host_memory_bytes", "Memory of the run's processes on a host.", false, HOST(memory)},
    {"host_cores", "Processors that the run's processes use on a host.", false, HOST(cpu)},
    {"host_losses", "How often a host was lost.", true, HOST(losses)},
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

static void add_head(struct text *out, const struct status_family *family)
{
    text_add(out, "# HELP replay_run_%s %s\n", family->name, family->help);
    text_add(out, "# TYPE replay_run_%s %s\n", family->name, family->counts ? "counter" : "gauge");
    static const char *const units[] = {"_seconds", "_bytes", "_ratio"};
    for (size_t i = 0; i < sizeof units / sizeof units[0]; i++)
        if (text_ends(family->name, units[i]))
            text_add(out, "# UNIT replay_run_%s %s\n", family->name, units[i] + 1);
}

static double status_value_of(const struct status_family *family, const void *record)
{
    const void *at = (const char *)record + family->row.offset;
    enum json_kind kind = family->row.kind;
    return kind == JSON_KIND_REAL   ? *(const double *)at
           : kind == JSON_KIND_U64  ? (double)*(const uint64_t *)at
           : kind == JSON_KIND_BOOL ? *(const bool *)at
                                    : *(const uint32_t *)at;
}

/* ---- families ---- */

/* Families of records: the run itself, or processes and hosts, which a label tells apart. */
struct status_group {
    const struct status_family *families;
    size_t n_families;
    const void *records;
    uint32_t n;
    size_t size, name; /* of a record; of its name in it */
    const char *label; /* NULL: none */
};

static void add_group(struct text *out, const struct status_group *group, const char *run)
{
    for (size_t f = 0; f < group->n_families; f++) {
        const struct status_family *family = &group->families[f];
        bool headed = false;
        for (uint32_t i = 0; group->records && i < group->n; i++) {
            const char *record = (const char *)group->records + i * group->size;
            double value = status_value_of(family, record);
            if (!isfinite(value))
                continue;
            if (!headed)
                add_head(out, family);
            headed = true;
            text_add(out, "replay_run_%s%s{%s%s", family->name, family->counts ? "_total" : "", run,
                     group->label ? "," : "");
            if (group->label)
                add_label(out, group->label, record + group->name);
            text_add(out, "} %.17g\n", value);
        }
    }
}

void status_metrics(struct text *out, const struct status *status)
{
    struct text run = {0};
    add_label(&run, "run", status->name);
    const struct status_group groups[] = {
        {ROWS(of_run), status, 1, 0, 0, NULL},
        {ROWS(of_process), status->processes, status->n_processes, sizeof *status->processes,
         offsetof(struct status_process, name), "process"},
        {ROWS(of_host), status->hosts, status->n_hosts, sizeof *status->hosts, offsetof(struct status_host, name),
         "host"},
    };
    for (size_t i = 0; i < sizeof groups / sizeof groups[0]; i++)
        add_group(out, &groups[i], text_get(&run));
    text_add(out,
             "# HELP replay_run_phase 1 for the phase of the run, 0 for all others.\n# TYPE replay_run_phase gauge\n");
    for (enum phase phase = 0; phase < PHASES; phase++)
        text_add(out, "replay_run_phase{%s,phase=\"%s\"} %d\n", text_get(&run), phase_name(phase),
                 phase == status->phase);
    text_add(out, "# EOF\n");
    text_fini(&run);
}
