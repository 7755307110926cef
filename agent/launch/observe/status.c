/* A status as JSON and back. One table of members drives both ways. */
#include "agent/launch/observe/status.h"

#include <json-c/json.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/why/why.h"
#include "proto/base/json_map.h"

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

bool status_is_limited(const struct status *self)
{
    for (int cause = 0; cause < WHY_CAUSES; cause++)
        if (!why_limits((enum why_cause)cause) && strcmp(self->cause, why_cause_names[cause]) == 0)
            return false;
    return self->waits[0] != '\0';
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
    TEXT(waits),
    TEXT(advice),
    TEXT(cause),
    TEXT(blocked),
    TEXT(blocked_table),
    TEXT(bad),
    NUMBER(network_rate, NAN),
    NUMBER(network_measured, NAN),
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

/* ---- out ---- */

static void put_doubles(struct json *out, const char *name, const double *values, uint32_t n)
{
    json_key(out, name);
    json_open(out, '[');
    for (uint32_t i = 0; i < n; i++)
        json_number(out, values[i]);
    json_close(out, ']');
}

/* `list` may be NULL: an empty list. */
static void put_list(struct json *out, const char *name, const struct json_row *rows, const void *list, size_t size,
                     uint32_t n)
{
    json_key(out, name);
    json_open(out, '[');
    for (uint32_t i = 0; list && i < n; i++) {
        json_open(out, '{');
        json_map_write(out, rows, (const char *)list + i * size);
        json_close(out, '}');
    }
    json_close(out, ']');
}

char *status_to_json(const struct status *self, bool whole)
{
    struct json out = {0};
    json_open(&out, '{');
    json_map_write(&out, status_rows, self);
    if (whole) {
        put_list(&out, "processes", process_rows, self->processes, sizeof *self->processes, self->n_processes);
        put_list(&out, "hosts", host_rows, self->hosts, sizeof *self->hosts, self->n_hosts);
        bool some = self->values && self->value_steps;
        put_doubles(&out, "value_steps", self->value_steps, some ? self->n_values : 0);
        put_doubles(&out, "values", self->values, some ? self->n_values : 0);
    }
    json_close(&out, '}');
    return json_take(&out);
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
static bool get_values(struct json_object *object, struct status_copy *out)
{
    struct json_object *steps = NULL, *values = NULL;
    uint32_t n = array_length(object, "values", &values), n_steps = array_length(object, "value_steps", &steps);
    n = n < n_steps ? n : n_steps;
    uint32_t first = n > STATUS_MAX_VALUES ? n - STATUS_MAX_VALUES : 0, keep = n - first;
    out->status.n_values = 0;
    if (!keep)
        return true;
    out->value_steps = calloc(keep, sizeof *out->value_steps);
    out->values = calloc(keep, sizeof *out->values);
    if (!out->value_steps || !out->values)
        return false;
    for (uint32_t i = 0; i < keep; i++) {
        out->value_steps[i] = json_map_real(json_object_array_get_idx(steps, first + i), NAN);
        out->values[i] = json_map_real(json_object_array_get_idx(values, first + i), NAN);
    }
    out->status.n_values = keep;
    out->status.value_steps = out->value_steps;
    out->status.values = out->values;
    return true;
}

/* Reads at most `most` objects of a list, which may be missing. Returns an array: free(). NULL: there is none, *n is 0; or no
 * memory, *n is not. */
static void *get_list(struct json_object *object, const char *name, const struct json_row *rows, size_t size,
                      uint32_t most, uint32_t *n)
{
    struct json_object *list = NULL;
    uint32_t there = array_length(object, name, &list);
    there = there < most ? there : most;
    char *out = there ? calloc(there, size) : NULL;
    *n = out ? 0 : there;
    for (uint32_t i = 0; out && i < there; i++) {
        struct json_object *one = json_object_array_get_idx(list, i);
        if (json_object_is_type(one, json_type_object))
            json_map_read(one, rows, out + size * (*n)++);
    }
    return out;
}

static bool get_lists(struct json_object *object, struct status_copy *out)
{
    struct status *status = &out->status;
    out->processes =
        get_list(object, "processes", process_rows, sizeof *out->processes, STATUS_MAX_PROCESSES, &status->n_processes);
    out->hosts = get_list(object, "hosts", host_rows, sizeof *out->hosts, STATUS_MAX_HOSTS, &status->n_hosts);
    status->processes = out->processes;
    status->hosts = out->hosts;
    return (out->processes || status->n_processes == 0) && (out->hosts || status->n_hosts == 0);
}

static bool is_phase(struct json_object *value)
{
    const char *text = json_object_is_type(value, json_type_string) ? json_object_get_string(value) : "";
    for (uint32_t i = 0; i < PHASES; i++)
        if (strcmp(text, phase_names[i]) == 0)
            return true;
    return false;
}

bool status_from_json(const char *text, struct status_copy *out)
{
    *out = (struct status_copy){0};
    struct json_object *object = text ? json_tokener_parse(text) : NULL, *phase = NULL;
    json_object_object_get_ex(object, "phase", &phase);
    bool ok = is_phase(phase);
    if (ok)
        json_map_read(object, status_rows, &out->status);
    ok = ok && get_values(object, out) && get_lists(object, out);
    if (!ok)
        status_copy_fini(out);
    json_object_put(object);
    return ok;
}

void status_copy_fini(struct status_copy *self)
{
    free(self->value_steps);
    free(self->values);
    free(self->processes);
    free(self->hosts);
    *self = (struct status_copy){0};
}
