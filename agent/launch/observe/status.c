/* A status as JSON and back. One table of members drives both ways. */
#include "agent/launch/observe/status.h"

#include <json-c/json.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/base/json.h"

#define STATUS_MAX_PROCESSES 4096u

static const char *const phase_names[PHASES] = {
    [PHASE_STARTING] = "starting", [PHASE_FILLING] = "filling",     [PHASE_RUNNING] = "running",
    [PHASE_STOPPING] = "stopping", [PHASE_MEASURING] = "measuring", [PHASE_DONE] = "done",
    [PHASE_STOPPED] = "stopped",   [PHASE_FAILED] = "failed",
};

const char *phase_name(enum phase phase)
{
    return (unsigned)phase < PHASES ? phase_names[phase] : "unknown";
}

enum member_type { MEMBER_TEXT, MEMBER_DOUBLE, MEMBER_U64, MEMBER_U32, MEMBER_I32, MEMBER_PHASE, MEMBER_ROLE };

struct member {
    const char *name;
    enum member_type type;
    size_t offset, size;
    double absent; /* of a double: what null and a missing member mean */
};

#define ROW(owner, field, kind, none)                                                                                  \
    {                                                                                                                  \
#field, kind, offsetof(owner, field), sizeof(((owner *)0)->field), none                                        \
    }
#define TEXT(field) ROW(struct status, field, MEMBER_TEXT, 0)
#define NUMBER(field, none) ROW(struct status, field, MEMBER_DOUBLE, none)
#define SHARE(side, cause, which)                                                                                      \
    {                                                                                                                  \
#side "_idle_" #cause, MEMBER_DOUBLE, offsetof(struct status, idle_by.side[which]), sizeof(double), NAN        \
    }
#define BIG(field) ROW(struct status, field, MEMBER_U64, 0)
#define COUNT(field) ROW(struct status, field, MEMBER_U32, 0)

static const struct member status_members[] = {
    TEXT(name),
    TEXT(folder),
    ROW(struct status, phase, MEMBER_PHASE, 0),
    NUMBER(unix_s, 0),
    NUMBER(elapsed_s, 0),
    TEXT(reason),
    BIG(steps),
    BIG(learner_steps),
    BIG(stop_steps),
    BIG(stop_learner_steps),
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
    BIG(size),
    BIG(max_size),
    NUMBER(min_size, 0),
    NUMBER(value, NAN),
    NUMBER(best, NAN),
    NUMBER(actor_value, NAN),
    COUNT(n_values),
    COUNT(n_processes),
    COUNT(actors),
    COUNT(actors_wanted),
    COUNT(learners),
    COUNT(learners_wanted),
    COUNT(restarts),
    BIG(memory),
    BIG(memory_limit),
    NUMBER(cpu, 0),
    NUMBER(cores, 0),
    NUMBER(others, 0),
    TEXT(event),
    NUMBER(event_unix_s, 0),
};

static const struct member process_members[] = {
    ROW(struct status_process, name, MEMBER_TEXT, 0),  ROW(struct status_process, role, MEMBER_ROLE, 0),
    ROW(struct status_process, pid, MEMBER_I32, 0),    ROW(struct status_process, restarts, MEMBER_U32, 0),
    ROW(struct status_process, memory, MEMBER_U64, 0), ROW(struct status_process, cpu, MEMBER_DOUBLE, 0),
    ROW(struct status_process, state, MEMBER_TEXT, 0),
};

#define N_OF(table) (uint32_t)(sizeof(table) / sizeof *(table))

/* ---- out ---- */

static void put_double(struct json *out, double value)
{
    if (isfinite(value))
        json_double(out, value);
    else
        json_message(out, NULL); /* null */
}

static void put_member(struct json *out, const struct member *member, const void *base)
{
    const void *at = (const char *)base + member->offset;
    json_key(out, member->name);
    switch (member->type) {
    case MEMBER_TEXT:
        json_string(out, at);
        break;
    case MEMBER_DOUBLE:
        put_double(out, *(const double *)at);
        break;
    case MEMBER_U64:
        json_unsigned(out, *(const uint64_t *)at);
        break;
    case MEMBER_U32:
        json_unsigned(out, *(const uint32_t *)at);
        break;
    case MEMBER_I32:
        json_signed(out, *(const int32_t *)at);
        break;
    case MEMBER_PHASE:
        json_string(out, phase_name(*(const enum phase *)at));
        break;
    case MEMBER_ROLE:
        json_string(out, role_name(*(const enum role *)at));
        break;
    }
}

static void put_object(struct json *out, const struct member *members, uint32_t n, const void *base)
{
    for (uint32_t i = 0; i < n; i++)
        put_member(out, &members[i], base);
}

static void put_doubles(struct json *out, const char *name, const double *values, uint32_t n)
{
    json_key(out, name);
    json_open(out, '[');
    for (uint32_t i = 0; i < n; i++)
        put_double(out, values[i]);
    json_close(out, ']');
}

char *status_to_json(const struct status *self, bool whole)
{
    struct json out = {0};
    json_open(&out, '{');
    put_object(&out, status_members, N_OF(status_members), self);
    if (whole) {
        json_key(&out, "processes");
        json_open(&out, '[');
        for (uint32_t i = 0; self->processes && i < self->n_processes; i++) {
            json_open(&out, '{');
            put_object(&out, process_members, N_OF(process_members), &self->processes[i]);
            json_close(&out, '}');
        }
        json_close(&out, ']');
        bool some = self->values && self->value_steps;
        put_doubles(&out, "value_steps", self->value_steps, some ? self->n_values : 0);
        put_doubles(&out, "values", self->values, some ? self->n_values : 0);
    }
    json_close(&out, '}');
    return json_take(&out);
}

/* ---- in ---- */

static double get_double(struct json_object *value, double absent)
{
    if (!json_object_is_type(value, json_type_double) && !json_object_is_type(value, json_type_int))
        return absent;
    double number = json_object_get_double(value);
    return isfinite(number) ? number : absent;
}

/* A number within 0..most; what is none is 0. */
static uint64_t get_unsigned(struct json_object *value, uint64_t most)
{
    uint64_t number = 0;
    if (json_object_is_type(value, json_type_int)) {
        number = json_object_get_uint64(value);
    } else {
        double real = get_double(value, 0);
        number = real <= 0 ? 0 : real >= 1.8e19 ? UINT64_MAX : (uint64_t)real;
    }
    return number < most ? number : most;
}

/* The index of a word in 0..n-1; `other` if it is none of them. */
static int get_word(struct json_object *value, int n, int other, const char *(*name)(int))
{
    const char *text = json_object_is_type(value, json_type_string) ? json_object_get_string(value) : "";
    for (int i = 0; i < n; i++) {
        if (strcmp(text, name(i)) == 0)
            return i;
    }
    return other;
}

static const char *phase_word(int i)
{
    return phase_name((enum phase)i);
}

static const char *role_word(int i)
{
    return role_name((enum role)i);
}

static void get_member(struct json_object *object, const struct member *member, void *base)
{
    void *at = (char *)base + member->offset;
    struct json_object *value = NULL;
    json_object_object_get_ex(object, member->name, &value);
    switch (member->type) {
    case MEMBER_TEXT:
        snprintf(at, member->size, "%s",
                 json_object_is_type(value, json_type_string) ? json_object_get_string(value) : "");
        break;
    case MEMBER_DOUBLE:
        *(double *)at = get_double(value, member->absent);
        break;
    case MEMBER_U64:
        *(uint64_t *)at = get_unsigned(value, UINT64_MAX);
        break;
    case MEMBER_U32:
        *(uint32_t *)at = (uint32_t)get_unsigned(value, UINT32_MAX);
        break;
    case MEMBER_I32:
        *(int32_t *)at = (int32_t)get_unsigned(value, INT32_MAX);
        break;
    case MEMBER_PHASE:
        *(enum phase *)at = (enum phase)get_word(value, PHASES, PHASE_STARTING, phase_word);
        break;
    case MEMBER_ROLE:
        *(enum role *)at = (enum role)get_word(value, ROLES, ROLE_ACTOR, role_word);
        break;
    }
}

static uint32_t array_length(struct json_object *object, const char *name, struct json_object **array)
{
    if (!json_object_object_get_ex(object, name, array) || !json_object_is_type(*array, json_type_array))
        return 0;
    size_t n = json_object_array_length(*array);
    return n > UINT32_MAX ? UINT32_MAX : (uint32_t)n;
}

/* The newest evaluations, where there are more than we keep. */
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
        out->value_steps[i] = get_double(json_object_array_get_idx(steps, first + i), NAN);
        out->values[i] = get_double(json_object_array_get_idx(values, first + i), NAN);
    }
    out->status.n_values = keep;
    out->status.value_steps = out->value_steps;
    out->status.values = out->values;
    return true;
}

static bool get_processes(struct json_object *object, struct status_copy *out)
{
    struct json_object *list = NULL;
    uint32_t n = array_length(object, "processes", &list);
    n = n < STATUS_MAX_PROCESSES ? n : STATUS_MAX_PROCESSES;
    out->status.n_processes = 0;
    if (!n)
        return true;
    out->processes = calloc(n, sizeof *out->processes);
    if (!out->processes)
        return false;
    for (uint32_t i = 0; i < n; i++) {
        struct json_object *one = json_object_array_get_idx(list, i);
        if (!json_object_is_type(one, json_type_object))
            continue;
        for (uint32_t m = 0; m < N_OF(process_members); m++)
            get_member(one, &process_members[m], &out->processes[out->status.n_processes]);
        out->status.n_processes++;
    }
    out->status.processes = out->processes;
    return true;
}

bool status_from_json(const char *text, struct status_copy *out)
{
    *out = (struct status_copy){0};
    struct json_object *object = text ? json_tokener_parse(text) : NULL, *phase = NULL;
    bool ok = json_object_is_type(object, json_type_object) && json_object_object_get_ex(object, "phase", &phase) &&
              get_word(phase, PHASES, -1, phase_word) >= 0;
    for (uint32_t i = 0; ok && i < N_OF(status_members); i++)
        get_member(object, &status_members[i], &out->status);
    ok = ok && get_values(object, out) && get_processes(object, out);
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
    *self = (struct status_copy){0};
}
