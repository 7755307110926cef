/* Plans and measurements as JSON. A number that is not known is null. */
#include <json-c/json.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "agent/launch/plan/plan.h"
#include "proto/base/json_map.h"
#include "proto/base/need.h"

#define MOST_HOSTS 4096u

#define COUNT(owner, member) JSON_ROW(struct owner, member)
#define REAL(owner, member) JSON_REAL(struct owner, member, NAN)
#define SHARE(name, side, cause) JSON_ROW_AS(name, struct plan_pair, waits.side[cause], NAN)

static const struct json_row unit_rows[] = {
    REAL(plan_unit, rate), REAL(plan_unit, cpu), REAL(plan_unit, broker_cpu), REAL(plan_unit, memory), {0},
};
static const struct json_row pair_rows[] = {
    COUNT(plan_pair, actors),
    COUNT(plan_pair, learners),
    COUNT(plan_pair, shards),
    COUNT(plan_pair, runs),
    REAL(plan_pair, inserts),
    REAL(plan_pair, samples),
    SHARE("actor_idle", actor, IDLE_CREDIT),
    SHARE("actor_idle_parameters", actor, IDLE_PARAMETERS),
    SHARE("actor_idle_counters", actor, IDLE_COUNTERS),
    SHARE("learner_idle", learner, IDLE_SAMPLE),
    SHARE("learner_idle_parameters", learner, IDLE_PARAMETERS),
    SHARE("learner_idle_reduce", learner, IDLE_REDUCE),
    SHARE("learner_idle_updates", learner, IDLE_UPDATES),
    SHARE("learner_idle_counters", learner, IDLE_COUNTERS),
    REAL(plan_pair, cpu),
    REAL(plan_pair, others),
    REAL(plan_pair, core),
    REAL(plan_pair, home),
    REAL(plan_pair, memory),
    JSON_WORD(struct plan_pair, bottleneck, plan_bottleneck_names, PLAN_UNKNOWN),
    JSON_ROW(struct plan_pair, reason),
    {0},
};
static const struct json_row host_rows[] = {
    JSON_ROW(struct plan_host, name),
    JSON_ROW(struct plan_host, kind),
    REAL(plan_host, cores),
    REAL(plan_host, memory),
    JSON_ROW(struct plan_host, actors),
    JSON_ROW(struct plan_host, learners),
    JSON_OBJECT(struct plan_host, actor, unit_rows),
    {0},
};
static const struct json_row input_rows[] = {
    REAL(plan_input, spi),
    REAL(plan_input, broker_memory),
    REAL(plan_input, other_memory),
    COUNT(plan_input, fixed_actors),
    COUNT(plan_input, fixed_learners),
    COUNT(plan_input, fixed_shards),
    COUNT(plan_input, max_actors),
    COUNT(plan_input, max_learners),
    COUNT(plan_input, most_shards),
    JSON_OBJECT(struct plan_input, learner, unit_rows),
    JSON_LIST(struct plan_input, runs, n_runs, pair_rows),
    JSON_POINTER(struct plan_input, hosts, n_hosts, host_rows, MOST_HOSTS),
    {0},
};
static const struct json_row broker_rows[] = {
    COUNT(plan_broker, shards),
    JSON_REAL(struct plan_broker, gain, 0),
    JSON_ROW(struct plan_broker, reason),
    {0},
};
/* What one host gets of the chosen counts. */
struct part {
    char name[sizeof((struct plan_host *)0)->name];
    uint32_t actors, learners;
};
static const struct json_row part_rows[] = {
    JSON_ROW(struct part, name),
    COUNT(part, actors),
    COUNT(part, learners),
    {0},
};
static const struct json_row plan_rows[] = {
    COUNT(plan, most_actors),
    JSON_OBJECT(struct plan, chosen, pair_rows),
    JSON_OBJECT(struct plan, best, pair_rows),
    JSON_OBJECT(struct plan, broker, broker_rows),
    {0},
};

/* ---- writing ---- */

/* The counts of the chosen pair for each host. */
static struct json_object *parts_object(const struct plan_pair *chosen, const struct plan_input *input)
{
    uint32_t n = input->n_hosts, *counts = need_alloc((size_t)n * 2 * sizeof *counts);
    struct json_object *list = json_object_new_array();
    plan_place(input, chosen->actors, chosen->learners, counts, counts + n);
    for (uint32_t i = 0; i < n; i++) {
        struct part part = {.actors = counts[i], .learners = counts[n + i]};
        memcpy(part.name, input->hosts[i].name, sizeof part.name);
        json_object_array_add(list, json_map_object(part_rows, &part));
    }
    free(counts);
    return list;
}

char *plan_to_json(const struct plan *self, const struct plan_input *input)
{
    struct json_object *root = self ? json_map_object(plan_rows, self) : json_object_new_object();
    if (self)
        json_object_object_add(root, "hosts", parts_object(&self->chosen, input));
    json_object_object_add(root, "input", json_map_object(input_rows, input));
    char *text = need_text(json_object_to_json_string_ext(root, JSON_C_TO_STRING_PRETTY | JSON_C_TO_STRING_SPACED));
    json_object_put(root);
    return text;
}

/* ---- reading ---- */

static bool read_input(struct json_object *root, struct plan_input *out)
{
    struct json_object *object = NULL;
    *out = (struct plan_input){0};
    bool good = json_object_is_type(root, json_type_object) && json_object_object_get_ex(root, "input", &object) &&
                json_map_read(object, input_rows, out) && out->fixed_actors <= PLAN_MAX_COUNT &&
                out->fixed_learners <= PLAN_MAX_COUNT && plan_input_check(out, NULL) == RP_OK;
    if (!good)
        plan_input_free(out);
    return good;
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
    *out = (struct plan){0};
    bool good = read_input(root, input);
    if (good && !(json_map_read(root, plan_rows, out) && plan_is_count(out->chosen.actors) &&
                  plan_is_count(out->chosen.learners) && plan_is_count(out->most_actors))) {
        plan_input_free(input);
        good = false;
    }
    json_object_put(root);
    return good;
}
