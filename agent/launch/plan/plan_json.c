/* Plans and curves as JSON. What is not a number is null. Members are described by tables, so that both directions go over the same list. */
#include <json-c/json.h>
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "agent/launch/plan/plan_impl.h"

#define MOST_BYTES 1e18

enum kind { REAL, COUNT, TRUTH, WORDS };

struct member {
    const char *name;
    enum kind kind;
    size_t offset, size;
};

#define MEMBER(type, name, kind)                                                                                       \
    {                                                                                                                  \
#name, kind, offsetof(struct type, name), sizeof(((struct type *)0)->name)                                     \
    }

#define SHARE(side, cause, which)                                                                                      \
    {                                                                                                                  \
#side "_idle_" #cause, REAL, offsetof(struct plan_joint, waits.side[which]), sizeof(double)                    \
    }

static const struct member point_members[] = {
    MEMBER(plan_point, count, COUNT),     MEMBER(plan_point, rate, REAL),   MEMBER(plan_point, cpu, REAL),
    MEMBER(plan_point, broker_cpu, REAL), MEMBER(plan_point, memory, REAL), {0},
};
static const struct member joint_members[] = {
    MEMBER(plan_joint, actors, COUNT),       MEMBER(plan_joint, learners, COUNT),
    MEMBER(plan_joint, inserts, REAL),       MEMBER(plan_joint, samples, REAL),
    MEMBER(plan_joint, actor_idle, REAL),    MEMBER(plan_joint, learner_idle, REAL),
    MEMBER(plan_joint, cpu, REAL),           MEMBER(plan_joint, others, REAL),
    MEMBER(plan_joint, runs, COUNT),         SHARE(actor, parameters, IDLE_PARAMETERS),
    SHARE(actor, counters, IDLE_COUNTERS),   SHARE(learner, parameters, IDLE_PARAMETERS),
    SHARE(learner, reduce, IDLE_REDUCE),     SHARE(learner, updates, IDLE_UPDATES),
    SHARE(learner, counters, IDLE_COUNTERS), {0},
};
static const struct member input_members[] = {
    MEMBER(plan_input, spi, REAL),
    MEMBER(plan_input, cores, REAL),
    MEMBER(plan_input, memory, REAL),
    MEMBER(plan_input, broker_memory, REAL),
    MEMBER(plan_input, other_memory, REAL),
    MEMBER(plan_input, fixed_actors, COUNT),
    MEMBER(plan_input, fixed_learners, COUNT),
    MEMBER(plan_input, max_actors, COUNT),
    MEMBER(plan_input, max_learners, COUNT),
    MEMBER(plan_input, near, REAL),
    MEMBER(plan_input, tolerance, REAL),
    MEMBER(plan_input, settled, TRUTH),
    {0},
};
static const struct member choice_members[] = {
    MEMBER(plan_choice, actors, COUNT),      MEMBER(plan_choice, learners, COUNT),
    MEMBER(plan_choice, inserts, REAL),      MEMBER(plan_choice, samples, REAL),
    MEMBER(plan_choice, spi, REAL),          MEMBER(plan_choice, actor_idle, REAL),
    MEMBER(plan_choice, learner_idle, REAL), MEMBER(plan_choice, cpu, REAL),
    MEMBER(plan_choice, memory, REAL),       MEMBER(plan_choice, measured, TRUTH),
    MEMBER(plan_choice, reason, WORDS),      {0},
};
static const struct member plan_members[] = {
    MEMBER(plan, most_actors, COUNT),
    MEMBER(plan, most_learners, COUNT),
    {0},
};

/* ---- writing ---- */

static struct json_object *value_of(const void *at, enum kind kind)
{
    double real = 0;
    switch (kind) {
    case REAL:
        memcpy(&real, at, sizeof real);
        return isfinite(real) ? json_object_new_double(real) : NULL;
    case COUNT:
        return json_object_new_int64(*(const uint32_t *)at);
    case TRUTH:
        return json_object_new_boolean(*(const bool *)at);
    case WORDS:
        return json_object_new_string(at);
    }
    return NULL;
}

static struct json_object *write_members(const void *base, const struct member *members)
{
    struct json_object *object = json_object_new_object();
    for (; members->name; members++)
        json_object_object_add(object, members->name, value_of((const char *)base + members->offset, members->kind));
    return object;
}

static struct json_object *write_curve(const struct plan_curve *curve)
{
    struct json_object *array = json_object_new_array();
    for (uint32_t i = 0; i < curve->n && i < PLAN_MAX_POINTS; i++)
        json_object_array_add(array, write_members(&curve->points[i], point_members));
    return array;
}

static struct json_object *write_input(const struct plan_input *input)
{
    struct json_object *object = write_members(input, input_members), *joints = json_object_new_array();
    for (uint32_t i = 0; i < input->n_joints && i < PLAN_MAX_JOINTS; i++)
        json_object_array_add(joints, write_members(&input->joints[i], joint_members));
    json_object_object_add(object, "actors", write_curve(&input->actors));
    json_object_object_add(object, "learners", write_curve(&input->learners));
    json_object_object_add(object, "joints", joints);
    return object;
}

static struct json_object *write_choice(const struct plan_choice *choice)
{
    struct json_object *object = write_members(choice, choice_members);
    json_object_object_add(object, "bottleneck", json_object_new_string(plan_bottleneck_name(choice->bottleneck)));
    return object;
}

char *plan_to_json(const struct plan *self, const struct plan_input *input)
{
    struct json_object *root = self ? write_members(self, plan_members) : json_object_new_object();
    if (self) {
        struct json_object *others = json_object_new_array();
        for (uint32_t i = 0; i < self->n_others && i < PLAN_MAX_OTHERS; i++)
            json_object_array_add(others, write_choice(&self->others[i]));
        json_object_object_add(root, "chosen", write_choice(&self->chosen));
        json_object_object_add(root, "best", write_choice(&self->best));
        json_object_object_add(root, "others", others);
    }
    json_object_object_add(root, "input", write_input(input));
    const char *text = json_object_to_json_string_ext(root, JSON_C_TO_STRING_PRETTY | JSON_C_TO_STRING_SPACED);
    char *copy = text ? strdup(text) : NULL;
    json_object_put(root);
    return copy;
}

/* ---- reading ---- */

static bool read_value(struct json_object *value, const struct member *member, void *at)
{
    enum json_type type = json_object_get_type(value);
    switch (member->kind) {
    case REAL: {
        double real = value ? json_object_get_double(value) : NAN;
        real = isfinite(real) ? real : NAN; /* "1e999" */
        memcpy(at, &real, sizeof real);
        return !value || type == json_type_double || type == json_type_int;
    }
    case COUNT: {
        int64_t count = json_object_get_int64(value);
        *(uint32_t *)at = (uint32_t)count;
        return type == json_type_int && count >= 0 && count <= UINT32_MAX;
    }
    case TRUTH:
        *(bool *)at = json_object_get_boolean(value);
        return type == json_type_boolean;
    case WORDS:
        if (type != json_type_string)
            return false;
        snprintf(at, member->size, "%s", json_object_get_string(value));
        return true;
    }
    return false;
}

static bool read_members(struct json_object *object, const struct member *members, void *base)
{
    if (!json_object_is_type(object, json_type_object))
        return false;
    for (; members->name; members++) {
        struct json_object *value = NULL;
        if (!json_object_object_get_ex(object, members->name, &value) ||
            !read_value(value, members, (char *)base + members->offset))
            return false;
    }
    return true;
}

/* The array of that name, with at most `most` elements, or NULL. */
static struct json_object *array_of(struct json_object *object, const char *name, uint32_t most, uint32_t *n)
{
    struct json_object *array = NULL;
    if (!json_object_object_get_ex(object, name, &array) || !json_object_is_type(array, json_type_array) ||
        json_object_array_length(array) > most)
        return NULL;
    *n = (uint32_t)json_object_array_length(array);
    return array;
}

static bool read_curve(struct json_object *object, const char *name, struct plan_curve *out)
{
    struct json_object *array = array_of(object, name, PLAN_MAX_POINTS, &out->n);
    for (uint32_t i = 0; array && i < out->n; i++)
        if (!read_members(json_object_array_get_idx(array, i), point_members, &out->points[i]))
            return false;
    return array != NULL;
}

static bool read_input(struct json_object *root, struct plan_input *out)
{
    struct json_object *object = NULL;
    *out = (struct plan_input){0};
    if (!json_object_is_type(root, json_type_object) || !json_object_object_get_ex(root, "input", &object) ||
        !read_members(object, input_members, out) || !read_curve(object, "actors", &out->actors) ||
        !read_curve(object, "learners", &out->learners))
        return false;
    struct json_object *joints = array_of(object, "joints", PLAN_MAX_JOINTS, &out->n_joints);
    for (uint32_t i = 0; joints && i < out->n_joints; i++)
        if (!read_members(json_object_array_get_idx(joints, i), joint_members, &out->joints[i]))
            return false;
    /* Bytes that somebody will take for an integer. */
    out->memory = out->memory > 0 ? fmin(out->memory, MOST_BYTES) : 0;
    return joints && plan_input_check(out, NULL) == RP_OK;
}

static bool read_choice(struct json_object *object, struct plan_choice *out)
{
    struct json_object *word = NULL;
    if (!read_members(object, choice_members, out) || !json_object_object_get_ex(object, "bottleneck", &word) ||
        !json_object_is_type(word, json_type_string))
        return false;
    for (int i = PLAN_ACTORS; i <= PLAN_MAX_LEARNERS; i++)
        if (strcmp(json_object_get_string(word), plan_bottleneck_name((enum plan_bottleneck)i)) == 0) {
            out->bottleneck = (enum plan_bottleneck)i;
            return true;
        }
    return false;
}

/* As many processes as anybody starts. */
static bool is_count(uint32_t count)
{
    return count > 0 && count <= PLAN_MAX_COUNT;
}

static bool read_plan(struct json_object *root, struct plan *out)
{
    struct json_object *chosen = NULL, *best = NULL;
    *out = (struct plan){0};
    if (!read_members(root, plan_members, out) || !json_object_object_get_ex(root, "chosen", &chosen) ||
        !json_object_object_get_ex(root, "best", &best) || !read_choice(chosen, &out->chosen) ||
        !read_choice(best, &out->best))
        return false;
    struct json_object *others = array_of(root, "others", PLAN_MAX_OTHERS, &out->n_others);
    for (uint32_t i = 0; others && i < out->n_others; i++)
        if (!read_choice(json_object_array_get_idx(others, i), &out->others[i]))
            return false;
    return others && is_count(out->chosen.actors) && is_count(out->chosen.learners) && is_count(out->most_actors) &&
           is_count(out->most_learners);
}

bool plan_input_from_json(const char *text, struct plan_input *out)
{
    struct json_object *root = json_tokener_parse(text);
    bool good = read_input(root, out);
    json_object_put(root);
    return good;
}

bool plan_from_json(const char *text, struct plan *out, struct plan_input *input)
{
    struct json_object *root = json_tokener_parse(text);
    bool good = read_input(root, input) && read_plan(root, out);
    json_object_put(root);
    return good;
}
