#include "agent/run/group.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "agent/run/stop.h"
#include "proto/base/clock.h"
#include "proto/base/error.h"
#include "proto/base/log.h"
#include "proto/base/need.h"

#define GROUP_NAME "learners"
#define GROUP_SLOT "learner-state"
#define GROUP_TIMEOUT_MS 30000
#define STATE_TIMEOUT_MS 10000
#define STATE_LEAST_MS 2000

/* Behind the gradient, in this order. A camp is an array for each of its parts, with a place for each learner; the
 * parts are small enough for a float to hold exactly. */
enum { CAMP_COUNT, CAMP_STEPS_LOW, CAMP_STEPS_HIGH, CAMP_PRINT, CAMP_PARTS };
enum {
    TAIL_GRADIENTS,
    TAIL_JOINING,
    TAIL_PRESENT,
    TAIL_ASKING = TAIL_PRESENT + CAMP_PARTS * GROUP_MAX_LEARNERS,
    TAIL_SIZE = TAIL_ASKING + CAMP_PARTS * GROUP_MAX_LEARNERS
};
/* A learner that died and came back may receive its own last vector, once. */
#define MOST_TWINS 3u
#define PART_BITS 24
#define PART_MASK ((UINT64_C(1) << PART_BITS) - 1)

struct learner_group {
    struct group_options options;
    rp_reduce *reduce;
    float *vector;  /* gradient and tail */
    bool member;    /* has the state after `round` */
    bool give;      /* a learner asked for the state after this round */
    uint32_t twins; /* rounds in a row with another learner of the same index */
    struct group_info info;
};

struct learner_group *group_new(const struct group_options *options, rp_error *err)
{
    struct learner_group *self = need_alloc(sizeof *self);
    self->options = *options;
    self->vector = need_alloc(((size_t)options->agent->n_params + TAIL_SIZE) * sizeof(float));
    self->reduce = rp_reduce_join(options->client, GROUP_NAME, GROUP_TIMEOUT_MS, err);
    if (!self->reduce)
        group_destroy(&self);
    return self;
}

void group_destroy(struct learner_group **self)
{
    if (!*self)
        return;
    if ((*self)->reduce)
        rp_reduce_leave(&(*self)->reduce, 1000, NULL);
    free((*self)->vector);
    free(*self);
    *self = NULL;
}

/* Takes part in one round with the present contents of the vector. */
static rp_status exchange(struct learner_group *self, rp_reduced *out, rp_error *err)
{
    uint64_t n = (uint64_t)self->options.agent->n_params + TAIL_SIZE;
    rp_status status;
    do {
        if (is_stopped(self->options.stop))
            return err_set(err, RP_CANCELLED, "stopped while waiting for the other learners");
        status = rp_reduce_add(self->reduce, self->vector, n, *self->options.round_ms, 1000, out, err);
    } while (status == RP_DEADLINE_EXCEEDED || status == RP_UNAVAILABLE);
    return status;
}

static float *tail_of(struct learner_group *self)
{
    return self->vector + self->options.agent->n_params;
}

/* ---- who was in a round, and how far ---- */

/* The learners that sent a gradient, or those that asked for the state. */
struct camp {
    uint32_t best;  /* the lowest index among those with the most steps; GROUP_MAX_LEARNERS: none */
    uint64_t steps; /* of the best */
    uint32_t print; /* of its parameters */
};

static uint32_t print_of(const struct agent *agent)
{
    return agent_fingerprint(agent) & (uint32_t)PART_MASK;
}

static float *camp_part(float *tail, uint32_t role, uint32_t part, uint32_t index)
{
    return &tail[role + part * GROUP_MAX_LEARNERS + index];
}

static void introduce(struct learner_group *self, uint32_t role)
{
    const struct agent *agent = self->options.agent;
    uint32_t index = self->options.index;
    float *tail = tail_of(self);
    memset(tail, 0, TAIL_SIZE * sizeof(float));
    tail[role == TAIL_PRESENT ? TAIL_GRADIENTS : TAIL_JOINING] = 1.0f;
    *camp_part(tail, role, CAMP_COUNT, index) = 1.0f;
    *camp_part(tail, role, CAMP_STEPS_LOW, index) = (float)(agent->steps & PART_MASK);
    *camp_part(tail, role, CAMP_STEPS_HIGH, index) = (float)(agent->steps >> PART_BITS & PART_MASK);
    *camp_part(tail, role, CAMP_PRINT, index) = (float)print_of(agent);
}

static struct camp camp_of(struct learner_group *self, uint32_t role)
{
    struct camp camp = {.best = GROUP_MAX_LEARNERS};
    float *tail = tail_of(self);
    for (uint32_t i = 0; i < GROUP_MAX_LEARNERS; i++) {
        if (*camp_part(tail, role, CAMP_COUNT, i) != 1.0f) /* none, or two learners that claim this index */
            continue;
        uint64_t low = (uint64_t)*camp_part(tail, role, CAMP_STEPS_LOW, i);
        uint64_t steps = low | (uint64_t)*camp_part(tail, role, CAMP_STEPS_HIGH, i) << PART_BITS;
        if (camp.best == GROUP_MAX_LEARNERS || steps > camp.steps)
            camp = (struct camp){i, steps, (uint32_t)*camp_part(tail, role, CAMP_PRINT, i)};
    }
    return camp;
}

/* ---- the state, as a block of tensors ---- */

/* The state that learners share: everything that is saved but the random number generator, and the round it belongs
 * to. */
static uint32_t shared_tensors(struct agent *agent, uint64_t *round, struct tensor out[AGENT_MAX_TENSORS + 1])
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < agent->n_tensors; i++) {
        if (strcmp(agent->tensors[i].name, "rng") != 0)
            out[n++] = agent->tensors[i];
    }
    out[n++] = tensor_vector("round", RP_DTYPE_UINT64, round, 1);
    return n;
}

static rp_status give_state(struct learner_group *self, rp_error *err)
{
    struct tensor tensors[AGENT_MAX_TENSORS + 1];
    uint64_t round = self->info.round;
    uint32_t n = shared_tensors(self->options.agent, &round, tensors);
    size_t size = weights_size(tensors, n);
    void *block = need_alloc(size);
    weights_encode(tensors, n, block);
    rp_status status = rp_params_put(self->options.client, GROUP_SLOT, block, size, STATE_TIMEOUT_MS, NULL, err);
    free(block);
    return status;
}

/* Waits for the state after the round. The slot may still hold an older one. */
static rp_status take_state(struct learner_group *self, uint64_t round, rp_error *err)
{
    struct agent *agent = self->options.agent;
    uint64_t have = 0, found = 0;
    /* The learner that should give the state may find that it has missed rounds itself, and then none arrives: asking
     * again is cheap. */
    int64_t wait_ms = 2 * *self->options.round_ms > STATE_LEAST_MS ? 2 * *self->options.round_ms : STATE_LEAST_MS;
    int64_t end_ns = clock_ns() + wait_ms * NS_PER_MS;
    struct tensor which = tensor_vector("round", RP_DTYPE_UINT64, &found, 1);
    while (clock_ns() < end_ns) {
        if (is_stopped(self->options.stop))
            return err_set(err, RP_CANCELLED, "stopped while waiting for the state of the other learners");
        rp_params *params;
        rp_status status = rp_params_get(self->options.client, GROUP_SLOT, have, 500, &params, err);
        if (status == RP_DEADLINE_EXCEEDED || status == RP_UNAVAILABLE)
            continue;
        if (status != RP_OK)
            return status;
        const rp_param *slot = rp_params_slot(params);
        status = weights_decode(slot->data, slot->bytes, &which, 1, err);
        have = slot->version;
        if (status == RP_OK && found == round) {
            struct tensor tensors[AGENT_MAX_TENSORS + 1];
            uint32_t n = shared_tensors(agent, &found, tensors);
            status = weights_decode(slot->data, slot->bytes, tensors, n, err);
            rp_params_release(&params);
            if (status != RP_OK)
                err_prefix(err, "the state that the other learners gave");
            return status;
        }
        rp_params_release(&params);
    }
    return err_set(err, RP_DEADLINE_EXCEEDED, "the other learners did not give their state after round %llu in %g s",
                   (unsigned long long)round, (double)wait_ms / 1e3);
}

/* ---- joining ---- */

/* No learner of this round has a gradient. The one that has learned most continues from its own state; if none has
 * learned, learner 0 does. */
static rp_status group_begin(struct learner_group *self, const struct camp *asking, rp_error *err)
{
    if (asking->best != self->options.index || (asking->steps == 0 && self->options.index != 0)) {
        nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
        return err_set(err, RP_DEADLINE_EXCEEDED,
                       "this learner waits for learner 0, or for one that has learned already, to begin");
    }
    self->info.starts++;
    self->info.lead = 1;
    self->member = true;
    return RP_OK;
}

/* Another learner uses this learner's index. */
static rp_status check_twins(struct learner_group *self, rp_error *err)
{
    uint32_t index = self->options.index;
    float *tail = tail_of(self);
    if (*camp_part(tail, TAIL_PRESENT, CAMP_COUNT, index) == 0.0f &&
        *camp_part(tail, TAIL_ASKING, CAMP_COUNT, index) == 1.0f) {
        self->twins = 0;
        return RP_OK;
    }
    self->twins++;
    return err_set(err, self->twins < MOST_TWINS ? RP_DEADLINE_EXCEEDED : RP_ALREADY_EXISTS,
                   "there is another learner with index %u: give each its own with --index", index);
}

static rp_status join_once(struct learner_group *self, rp_error *err)
{
    struct agent *agent = self->options.agent;
    memset(self->vector, 0, agent->n_params * sizeof(float));
    introduce(self, TAIL_ASKING);
    rp_reduced reduced;
    RP_TRY(exchange(self, &reduced, err));
    self->info.round = reduced.round;
    if (!reduced.counted)
        return err_set(err, RP_DEADLINE_EXCEEDED, "round %llu of the learners was over before this one asked to join",
                       (unsigned long long)reduced.round);
    RP_TRY(check_twins(self, err));
    struct camp learning = camp_of(self, TAIL_PRESENT), asking = camp_of(self, TAIL_ASKING);
    if (tail_of(self)[TAIL_GRADIENTS] == 0.0f)
        return group_begin(self, &asking, err);
    if (asking.steps > learning.steps)
        return err_set(err, RP_DEADLINE_EXCEEDED, "one who joins is ahead of the learners: they begin again together");
    RP_TRY(take_state(self, reduced.round, err));
    self->info.joins++;
    self->member = true;
    log_line(LEVEL_INFO, "A0201", "joined the other learners", "index=%u round=%llu step=%llu", self->options.index,
             (unsigned long long)reduced.round, (unsigned long long)agent->steps);
    return RP_OK;
}

rp_status group_join(struct learner_group *self, rp_error *err)
{
    if (self->member)
        return RP_OK;
    rp_status status = join_once(self, err);
    return status == RP_FAILED_PRECONDITION ? RP_DEADLINE_EXCEEDED : status;
}

/* ---- rounds ---- */

/* True if this learner may apply the sum of the round. */
static rp_status check_round(struct learner_group *self, const rp_reduced *reduced, rp_error *err)
{
    struct camp learning = camp_of(self, TAIL_PRESENT), asking = camp_of(self, TAIL_ASKING);
    const struct agent *agent = self->options.agent;
    if (reduced->round != self->info.round + 1)
        return err_set(err, RP_FAILED_PRECONDITION, "rounds %llu to %llu of the learners went on without this one",
                       (unsigned long long)self->info.round + 1, (unsigned long long)reduced->round - 1);
    if (tail_of(self)[TAIL_GRADIENTS] == 0.0f) /* this learner came too late, and only joiners took part in the round */
        return err_set(err, RP_FAILED_PRECONDITION, "round %llu was closed without a gradient",
                       (unsigned long long)reduced->round);
    if (learning.steps != agent->steps || learning.print != print_of(agent))
        return err_set(err, RP_FAILED_PRECONDITION,
                       "this learner is at step %llu, and learner %u at step %llu with other parameters",
                       (unsigned long long)agent->steps, learning.best, (unsigned long long)learning.steps);
    if (asking.steps > agent->steps)
        return err_set(err, RP_FAILED_PRECONDITION, "learner %u joins, and has learned more: step %llu, not %llu",
                       asking.best, (unsigned long long)asking.steps, (unsigned long long)agent->steps);
    return RP_OK;
}

rp_status group_mean(struct learner_group *self, rp_error *err)
{
    struct agent *agent = self->options.agent;
    memcpy(self->vector, agent->grads, agent->n_params * sizeof(float));
    introduce(self, TAIL_PRESENT);
    rp_reduced reduced;
    rp_status status = exchange(self, &reduced, err);
    if (status == RP_OK)
        status = check_round(self, &reduced, err);
    if (status == RP_FAILED_PRECONDITION)
        self->info.lead = 0; /* the others may continue, and one of them leads */
    if (status != RP_OK) {
        self->member = false;
        return status;
    }
    const float *tail = tail_of(self);
    self->info.round = reduced.round;
    self->info.contributors = (uint32_t)(tail[TAIL_GRADIENTS] + 0.5f);
    self->info.lead = camp_of(self, TAIL_PRESENT).best == self->options.index;
    self->give = tail[TAIL_JOINING] > 0.0f && self->info.lead;
    float scale = 1.0f / (float)self->info.contributors;
    for (uint32_t i = 0; i < agent->n_params; i++)
        agent->grads[i] = self->vector[i] * scale;
    return RP_OK;
}

rp_status group_applied(struct learner_group *self, rp_error *err)
{
    if (!self->give)
        return RP_OK;
    self->give = false;
    return give_state(self, err);
}

const struct group_info *group_info(const struct learner_group *self)
{
    return &self->info;
}
