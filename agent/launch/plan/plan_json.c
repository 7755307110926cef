/* Plans and curves as JSON. A number that is not known is null. */
#include <json-c/json.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "agent/launch/plan/plan_impl.h"
#include "proto/base/json_map.h"

#define MOST_BYTES 1e18
#define MOST_HOSTS 4096u

#define COUNT(owner, member) JSON_ROW(struct owner, member)
#define REAL(owner, member) JSON_REAL(struct owner, member, NAN)
#define SHARE(side, cause, which) JSON_ROW_AS(#side "_idle_" #cause, struct plan_joint, waits.side[which], NAN)

static const struct json_row point_rows[] = {
    COUNT(plan_point, count),     REAL(plan_point, rate),   REAL(plan_point, cpu),
    REAL(plan_point, broker_cpu), REAL(plan_point, memory), {0},
};
static const struct json_row joint_rows[] = {
    COUNT(plan_joint, actors),
    COUNT(plan_joint, learners),
    REAL(plan_joint, inserts),
    REAL(plan_joint, samples),
    REAL(plan_joint, actor_idle),
    REAL(plan_joint, learner_idle),
    REAL(plan_joint, cpu),
    REAL(plan_joint, others),
    COUNT(plan_joint, runs),
    SHARE(actor, parameters, IDLE_PARAMETERS),
    SHARE(actor, counters, IDLE_COUNTERS),
    SHARE(learner, parameters, IDLE_PARAMETERS),
    SHARE(learner, reduce, IDLE_REDUCE),
    SHARE(learner, updates, IDLE_UPDATES),
    SHARE(learner, counters, IDLE_COUNTERS),
    {0},
};
static const struct json_row input_rows[] = {
    REAL(plan_input, spi),
    REAL(plan_input, cores),
    REAL(plan_input, memory),
    REAL(plan_input, broker_memory),
    REAL(plan_input, other_memory),
    COUNT(plan_input, fixed_actors),
    COUNT(plan_input, fixed_learners),
    COUNT(plan_input, max_actors),
    COUNT(plan_input, max_learners),
    JSON_ROW(struct plan_input, settled),
    JSON_LIST_AS("actors", struct plan_input, actors.points, actors.n, point_rows),
    JSON_LIST_AS("learners", struct plan_input, learners.points, learners.n, point_rows),
    JSON_LIST(struct plan_input, joints, n_joints, joint_rows),
    {0},
};
/* Only an input of several machines has these. */
static const struct json_row network_rows[] = {
    REAL(plan_input, network),
    REAL(plan_input, item_bytes),
    {0},
};
static const struct json_row host_rows[] = {
    JSON_ROW(struct plan_host, name),
    COUNT(plan_host, kind),
    REAL(plan_host, cores),
    REAL(plan_host, memory),
    JSON_ROW(struct plan_host, actors),
    JSON_ROW(struct plan_host, learners),
    JSON_LIST_AS("curve", struct plan_host, curve.points, curve.n, point_rows),
    {0},
};
/* Plans of before there were shards have none of these. */
static const struct json_row load_rows[] = {
    COUNT(plan_load, shards),
    REAL(plan_load, core),
    REAL(plan_load, cores),
    JSON_OBJECT(struct plan_load, joint, joint_rows),
    {0},
};
static const struct json_row shards_rows[] = {
    COUNT(plan_input, fixed_shards),
    COUNT(plan_input, most_shards),
    JSON_LIST(struct plan_input, loads, n_loads, load_rows),
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
    JSON_LIST(struct plan, others, n_others, choice_rows),
    {0},
};

/* ---- writing ---- */

static struct json_object *input_object(const struct plan_input *input)
{
    struct json_object *object = json_map_object(input_rows, input);
    json_object_object_add(object, "broker", json_map_object(shards_rows, input));
    if (input->n_hosts == 0)
        return object;
    struct json_object *list = json_object_new_array(), *network = json_map_object(network_rows, input);
    for (uint32_t i = 0; i < input->n_hosts; i++)
        json_object_array_add(list, json_map_object(host_rows, &input->hosts[i]));
    json_object_object_add(object, "network", network);
    json_object_object_add(object, "hosts", list);
    return object;
}

/* The counts of the chosen pair for each host; NULL: no memory. */
static struct json_object *parts_object(const struct plan_choice *chosen, const struct plan_input *input)
{
    uint32_t n = input->n_hosts, *counts = calloc((size_t)n * 2, sizeof *counts);
    struct json_object *list = counts ? json_object_new_array() : NULL;
    if (list)
        plan_place(input, chosen->actors, chosen->learners, counts, counts + n);
    for (uint32_t i = 0; list && i < n; i++) {
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
    if (self && input->n_hosts > 0)
        json_object_object_add(root, "hosts", parts_object(&self->chosen, input));
    if (self)
        json_object_object_add(root, "broker", json_map_object(broker_rows, &self->broker));
    json_object_object_add(root, "input", input_object(input));
    const char *text = json_object_to_json_string_ext(root, JSON_C_TO_STRING_PRETTY | JSON_C_TO_STRING_SPACED);
    char *copy = text ? strdup(text) : NULL;
    json_object_put(root);
    return copy;
}

/* ---- reading ---- */

static bool is_count(uint32_t count)
{
    return count > 0 && count <= PLAN_MAX_COUNT;
}

/* The first host of a kind has the curve, and its kind is its own index. */
static bool read_host(struct json_object *object, struct plan_input *out, uint32_t index)
{
    struct plan_host *host = &out->hosts[index];
    if (!json_map_read(object, host_rows, host) || host->kind > index || out->hosts[host->kind].kind != host->kind)
        return false;
    return host->curve.n == 0 || (host->kind == index && plan_curve_check(&host->curve, host->name, NULL) == RP_OK);
}

/* An input without hosts is one of one machine. */
static bool read_hosts(struct json_object *object, struct plan_input *out)
{
    struct json_object *list = NULL, *network = NULL;
    if (!json_object_object_get_ex(object, "hosts", &list))
        return true;
    size_t n = json_object_is_type(list, json_type_array) ? json_object_array_length(list) : 0;
    if (n == 0 || n > MOST_HOSTS || !json_object_object_get_ex(object, "network", &network) ||
        !json_map_read(network, network_rows, out))
        return false;
    out->hosts = calloc(n, sizeof *out->hosts);
    bool good = out->hosts != NULL;
    out->n_hosts = good ? (uint32_t)n : 0;
    for (uint32_t i = 0; good && i < n; i++)
        good = read_host(json_object_array_get_idx(list, i), out, i);
    return good;
}

/* What is missing is not known; the rest of the plan holds without it. */
static void read_shards(struct json_object *object, struct plan_input *out)
{
    struct json_object *broker = NULL;
    bool good = json_object_object_get_ex(object, "broker", &broker) && json_map_read(broker, shards_rows, out);
    for (uint32_t i = 0; good && i < out->n_loads; i++)
        good = is_count(out->loads[i].joint.actors) && is_count(out->loads[i].joint.learners);
    if (!good)
        out->n_loads = out->fixed_shards = 0;
}

static bool read_input(struct json_object *root, struct plan_input *out)
{
    struct json_object *object = NULL;
    *out = (struct plan_input){0};
    bool good = json_object_is_type(root, json_type_object) && json_object_object_get_ex(root, "input", &object) &&
                json_map_read(object, input_rows, out) && read_hosts(object, out);
    read_shards(object, out);
    /* Bytes: later code converts them to an integer. */
    out->memory = out->memory > 0 ? fmin(out->memory, MOST_BYTES) : 0;
    good = good && plan_input_check(out, NULL) == RP_OK;
    if (!good)
        plan_input_free(out);
    return good;
}

static bool read_plan(struct json_object *root, struct plan *out)
{
    struct json_object *broker = NULL;
    *out = (struct plan){0};
    if (json_object_object_get_ex(root, "broker", &broker) && !json_map_read(broker, broker_rows, &out->broker))
        out->broker = (struct plan_broker){0};
    out->chosen.shards = out->broker.shards;
    return json_map_read(root, plan_rows, out) && is_count(out->chosen.actors) && is_count(out->chosen.learners) &&
           is_count(out->most_actors) && is_count(out->most_learners);
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
    bool good = read_input(root, input);
    if (good && !read_plan(root, out)) {
        plan_input_free(input);
        good = false;
    }
    json_object_put(root);
    return good;
}
