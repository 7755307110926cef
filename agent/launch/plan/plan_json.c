/* Plans and measurements as JSON. A number that is not known is null. */
#include <json-c/json.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "agent/launch/plan/plan.h"
#include "proto/base/json_map.h"
#include "proto/base/need.h"

#define MOST_BYTES 1e18
#define MOST_HOSTS 4096u

#define COUNT(owner, member) JSON_ROW(struct owner, member)
#define REAL(owner, member) JSON_REAL(struct owner, member, NAN)
#define SHARE(side, cause, which) JSON_ROW_AS(#side "_idle_" #cause, struct plan_run, waits.side[which], NAN)

static const struct json_row unit_rows[] = {
    REAL(plan_unit, rate), REAL(plan_unit, cpu), REAL(plan_unit, broker_cpu), REAL(plan_unit, memory), {0},
};
static const struct json_row run_rows[] = {
    COUNT(plan_run, actors),
    COUNT(plan_run, learners),
    COUNT(plan_run, shards),
    REAL(plan_run, inserts),
    REAL(plan_run, samples),
    REAL(plan_run, actor_idle),
    REAL(plan_run, learner_idle),
    REAL(plan_run, cpu),
    REAL(plan_run, others),
    REAL(plan_run, core),
    REAL(plan_run, home),
    COUNT(plan_run, runs),
    SHARE(actor, parameters, IDLE_PARAMETERS),
    SHARE(actor, counters, IDLE_COUNTERS),
    SHARE(learner, parameters, IDLE_PARAMETERS),
    SHARE(learner, reduce, IDLE_REDUCE),
    SHARE(learner, updates, IDLE_UPDATES),
    SHARE(learner, counters, IDLE_COUNTERS),
    {0},
};
static const struct json_row host_rows[] = {
    JSON_ROW(struct plan_host, name),
    COUNT(plan_host, kind),
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
    JSON_LIST(struct plan_input, runs, n_runs, run_rows),
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
static const struct json_row choice_rows[] = {
    COUNT(plan_choice, actors),
    COUNT(plan_choice, learners),
    REAL(plan_choice, inserts),
    REAL(plan_choice, samples),
    REAL(plan_choice, actor_idle),
    REAL(plan_choice, learner_idle),
    REAL(plan_choice, cpu),
    REAL(plan_choice, memory),
    JSON_ROW(struct plan_choice, measured),
    JSON_ROW(struct plan_choice, reason),
    JSON_WORD(struct plan_choice, bottleneck, plan_bottleneck_names, PLAN_ACTORS),
    {0},
};
static const struct json_row plan_rows[] = {
    COUNT(plan, most_actors),
    COUNT(plan, most_learners),
    JSON_OBJECT(struct plan, chosen, choice_rows),
    JSON_OBJECT(struct plan, best, choice_rows),
    JSON_OBJECT(struct plan, broker, broker_rows),
    {0},
};

/* ---- writing ---- */

/* The counts of the chosen pair for each host. */
static struct json_object *parts_object(const struct plan_choice *chosen, const struct plan_input *input)
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

/* The first host of a kind has what was measured, and its kind is its own index. */
static bool check_hosts(struct plan_input *out)
{
    for (uint32_t i = 0; i < out->n_hosts; i++) {
        struct plan_host *host = &out->hosts[i];
        if (host->kind > i || out->hosts[host->kind].kind != host->kind)
            return false;
        /* Bytes: later code converts them to an integer. */
        host->memory = fmin(plan_known(host->memory), MOST_BYTES);
    }
    return out->n_hosts > 0;
}

static bool read_input(struct json_object *root, struct plan_input *out)
{
    struct json_object *object = NULL;
    *out = (struct plan_input){0};
    bool good = json_object_is_type(root, json_type_object) && json_object_object_get_ex(root, "input", &object) &&
                json_map_read(object, input_rows, out) && check_hosts(out) && out->fixed_actors <= PLAN_MAX_COUNT &&
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
                  plan_is_count(out->chosen.learners) && plan_is_count(out->most_actors) &&
                  plan_is_count(out->most_learners))) {
        plan_input_free(input);
        good = false;
    }
    out->chosen.shards = out->broker.shards;
    json_object_put(root);
    return good;
}
