#include "agent/run/group.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "proto/error.h"
#include "proto/log.h"

#define GROUP_NAME "learners"
#define GROUP_SLOT "learner-state"
#define GROUP_TIMEOUT_MS 30000
#define STATE_TIMEOUT_MS 10000

/* Behind the gradient, in this order. */
enum { TAIL_GRADIENTS, TAIL_JOINING, TAIL_PRESENT, TAIL_SIZE = TAIL_PRESENT + GROUP_MAX_LEARNERS };

struct group {
    struct group_options options;
    rp_reduce *reduce;
    float *vector; /* gradient and tail */
    bool member;   /* has the state after `round` */
    bool give;     /* somebody asked for the state after this round */
    struct group_info info;
};

struct group *group_new(const struct group_options *options, rp_error *err)
{
    struct group *self = calloc(1, sizeof *self);
    if (self)
        self->vector = malloc(((size_t)options->agent->n_params + TAIL_SIZE) * sizeof(float));
    if (!self || !self->vector) {
        free(self);
        err_set(err, RP_NO_MEMORY, "no memory for a gradient of %u numbers", options->agent->n_params);
        return NULL;
    }
    self->options = *options;
    self->reduce = rp_reduce_join(options->client, GROUP_NAME, GROUP_TIMEOUT_MS, err);
    if (!self->reduce)
        group_destroy(&self);
    return self;
}

void group_destroy(struct group **self)
{
    if (!*self)
        return;
    if ((*self)->reduce)
        rp_reduce_leave(&(*self)->reduce, 1000, NULL);
    free((*self)->vector);
    free(*self);
    *self = NULL;
}

static bool stopped(const struct group *self)
{
    return self->options.stop && atomic_load(self->options.stop);
}

/* One round with whatever stands in the vector. */
static rp_status exchange(struct group *self, rp_reduced *out, rp_error *err)
{
    uint64_t n = (uint64_t)self->options.agent->n_params + TAIL_SIZE;
    rp_status status;
    do {
        if (stopped(self))
            return err_set(err, RP_CANCELLED, "stopped while waiting for the other learners");
        status = rp_reduce_add(self->reduce, self->vector, n, self->options.round_ms, 1000, out, err);
    } while (status == RP_DEADLINE_EXCEEDED || status == RP_UNAVAILABLE);
    return status;
}

static float *tail_of(struct group *self)
{
    return self->vector + self->options.agent->n_params;
}

/* ---- the state, as a block of tensors ---- */

/* What learners share: everything saved but the generator of random numbers, and the round it belongs to. */
static uint32_t shared_tensors(struct agent *agent, uint64_t *round, struct tensor out[AGENT_MAX_TENSORS + 1])
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < agent->n_tensors; i++) {
        if (strcmp(agent->tensors[i].name, "rng") != 0)
            out[n++] = agent->tensors[i];
    }
    out[n++] = (struct tensor){.name = "round", .dtype = RP_DTYPE_UINT64, .rank = 1, .shape = {1}, .data = round};
    return n;
}

static rp_status give_state(struct group *self, rp_error *err)
{
    struct tensor tensors[AGENT_MAX_TENSORS + 1];
    uint64_t round = self->info.round;
    uint32_t n = shared_tensors(self->options.agent, &round, tensors);
    size_t size = weights_size(tensors, n);
    void *block = malloc(size);
    if (!block)
        return err_set(err, RP_NO_MEMORY, "no memory for the learner's state of %zu bytes", size);
    weights_encode(tensors, n, block);
    rp_status status = rp_params_put(self->options.client, GROUP_SLOT, block, size, STATE_TIMEOUT_MS, NULL, err);
    free(block);
    return status;
}

/* Waits for the state after the round. Older ones may still lie in the slot. */
static rp_status take_state(struct group *self, uint64_t round, rp_error *err)
{
    struct agent *agent = self->options.agent;
    uint64_t have = 0, found = 0;
    struct tensor which = {.name = "round", .dtype = RP_DTYPE_UINT64, .rank = 1, .shape = {1}, .data = &found};
    for (int64_t waited = 0; waited < STATE_TIMEOUT_MS;) {
        if (stopped(self))
            return err_set(err, RP_CANCELLED, "stopped while waiting for the state of the other learners");
        rp_params *params;
        rp_status status = rp_params_get(self->options.client, GROUP_SLOT, have, 500, &params, err);
        if (status == RP_DEADLINE_EXCEEDED || status == RP_UNAVAILABLE) {
            waited += 500;
            continue;
        }
        if (status != RP_OK)
            return status;
        const rp_param *slot = rp_params_slot(params, 0);
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
    return err_set(err, RP_DEADLINE_EXCEEDED, "the other learners did not give their state after round %llu in %d s",
                   (unsigned long long)round, STATE_TIMEOUT_MS / 1000);
}

/* ---- joining ---- */

static rp_status join_once(struct group *self, rp_error *err)
{
    struct agent *agent = self->options.agent;
    memset(self->vector, 0, ((size_t)agent->n_params + TAIL_SIZE) * sizeof(float));
    tail_of(self)[TAIL_JOINING] = 1.0f;
    rp_reduced reduced;
    RP_TRY(exchange(self, &reduced, err));
    self->info.round = reduced.round;
    if (tail_of(self)[TAIL_GRADIENTS] > 0.0f) {
        RP_TRY(take_state(self, reduced.round, err));
        self->info.joins++;
        self->member = true;
        log_line(LEVEL_INFO, "A0201", "joined the other learners", "index=%u round=%llu step=%llu", self->options.index,
                 (unsigned long long)reduced.round, (unsigned long long)agent->steps);
        return RP_OK;
    }
    if (self->options.index == 0) {
        self->member = true;
        return RP_OK;
    }
    nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL); /* learner 0 is not there yet */
    return RP_OK;
}

rp_status group_join(struct group *self, rp_error *err)
{
    while (!self->member) {
        rp_status status = join_once(self, err);
        if (status != RP_OK && status != RP_FAILED_PRECONDITION && status != RP_DEADLINE_EXCEEDED)
            return status;
    }
    return RP_OK;
}

/* ---- rounds ---- */

static uint32_t lowest_present(const float *tail)
{
    uint32_t i = 0;
    while (i < GROUP_MAX_LEARNERS && tail[TAIL_PRESENT + i] < 0.5f)
        i++;
    return i;
}

rp_status group_mean(struct group *self, rp_error *err)
{
    struct agent *agent = self->options.agent;
    float *tail = tail_of(self);
    memcpy(self->vector, agent->grads, agent->n_params * sizeof(float));
    memset(tail, 0, TAIL_SIZE * sizeof(float));
    tail[TAIL_GRADIENTS] = 1.0f;
    tail[TAIL_PRESENT + self->options.index] = 1.0f;
    rp_reduced reduced;
    rp_status status = exchange(self, &reduced, err);
    if (status == RP_OK && reduced.round != self->info.round + 1)
        status = err_set(err, RP_FAILED_PRECONDITION, "rounds %llu to %llu of the learners went on without this one",
                         (unsigned long long)self->info.round + 1, (unsigned long long)reduced.round - 1);
    if (status != RP_OK) {
        self->member = false;
        return status;
    }
    self->info.round = reduced.round;
    self->info.contributors = (uint32_t)(tail[TAIL_GRADIENTS] + 0.5f);
    self->info.lead = lowest_present(tail) == self->options.index;
    self->give = tail[TAIL_JOINING] > 0.0f && self->info.lead;
    if (self->info.contributors == 0) /* this one came too late, and the round held joiners only: nothing has changed */
        return err_set(err, RP_FAILED_PRECONDITION, "round %llu was closed without a gradient",
                       (unsigned long long)reduced.round);
    float scale = 1.0f / (float)self->info.contributors;
    for (uint32_t i = 0; i < agent->n_params; i++)
        agent->grads[i] = self->vector[i] * scale;
    return RP_OK;
}

rp_status group_applied(struct group *self, rp_error *err)
{
    if (!self->give)
        return RP_OK;
    self->give = false;
    return give_state(self, err);
}

void group_get_info(const struct group *self, struct group_info *out)
{
    *out = self->info;
}
