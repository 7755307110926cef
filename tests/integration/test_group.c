/* Parallel learners against a real broker: whatever happens to one of them, those who go on have the same bits, and
 * nothing that was learned is lost. */
#include <pthread.h>

#include "agent/run/group.h"
#include "proto/base/clock.h"
#include "tests/support/facts.h"
#include "tests/support/process.h"

/* Milliseconds that a round waits for all members: none leaves the group because its thread is slow. A round that is to end without a
 * silent member is short. */
#define LONG_ROUND 20000
#define SHORT_ROUND 150

#define MOST 3u

/* A learner whose batches are random gradients. */
struct peer {
    uint32_t index;
    rp_client *client;
    struct agent *agent;
    struct learner_group *group;
    struct rng rng;
    int64_t round_ms;
    uint64_t until; /* agent->steps ... */
    uint32_t with;  /* ... and so many gradients in the last round: all who wait for that stop after the same one */
    pthread_t thread;
    rp_status status;
    rp_error err;
};

struct fixture {
    struct broker_process broker;
    struct peer p[MOST];
};

static void set_up(struct fixture *f)
{
    broker_process_start(&f->broker, "  - {name: replay, max_size: 10}\n", NULL);
}

static void peer_open(struct fixture *f, struct peer *self, uint32_t index, uint64_t seed)
{
    static int64_t hidden[] = {4};
    static char dqn[] = "dqn";
    struct agent_config config = {.algorithm = dqn, .hidden = {.data = hidden, .count = 1}, .batch = 1};
    rp_env_spec spec = {.observation_dtype = RP_DTYPE_FLOAT32, .observation_rank = 1, .n_actions = 2};
    spec.observation_shape[0] = 3;
    *self = (struct peer){.index = index, .round_ms = LONG_ROUND};
    rng_seed(&self->rng, 100 + index);
    self->client = must(rp_client_connect(f->broker.service, NULL, WAIT, &err));
    self->agent = must(agent_new(&config, "test", &spec, seed, &err));
    struct group_options options = {
        .client = self->client, .agent = self->agent, .index = index, .round_ms = &self->round_ms};
    self->group = must(group_new(&options, &err));
}

static void peer_close(struct peer *self)
{
    group_destroy(&self->group);
    agent_destroy(&self->agent);
    rp_client_destroy(&self->client);
}

static void tear_down(struct fixture *f)
{
    for (uint32_t i = 0; i < MOST; i++)
        peer_close(&f->p[i]);
    broker_process_fini(&f->broker);
}

FIXTURE(struct fixture, set_up, tear_down)

static void open_peers(struct fixture *f, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        peer_open(f, &f->p[i], i, 1);
}

static rp_status peer_step(struct peer *self)
{
    struct agent *agent = self->agent;
    rp_status status = group_join(self->group, &self->err);
    if (status != RP_OK)
        return status;
    for (uint32_t i = 0; i < agent->n_params; i++)
        agent->grads[i] = (float)(rng_unit(&self->rng) - 0.5);
    status = group_mean(self->group, &self->err);
    if (status != RP_OK)
        return status;
    struct agent_result result = {0};
    agent->ops->apply(agent, &result);
    return group_applied(self->group, &self->err);
}

static void *peer_main(void *ctx)
{
    struct peer *self = ctx;
    self->status = RP_OK;
    struct group_info info = {0};
    while (self->agent->steps < self->until || info.contributors < self->with) {
        self->status = peer_step(self);
        if (self->status != RP_OK && self->status != RP_DEADLINE_EXCEEDED && self->status != RP_FAILED_PRECONDITION)
            break;
        info = *group_info(self->group);
        if (self->status != RP_OK)
            info.contributors = 0;
    }
    return NULL;
}

static void peer_go(struct peer *self, uint64_t until, uint32_t with)
{
    self->until = until;
    self->with = with;
    assert_int_equal(pthread_create(&self->thread, NULL, peer_main, self), 0);
}

static void peer_await(struct peer *self)
{
    pthread_join(self->thread, NULL);
    if (self->status != RP_OK)
        fail_msg("learner %u: %s", self->index, self->err.text);
}

/* Learners first ... end - 1 step together up to `until`, and have the same parameters then. */
static void together(struct fixture *f, uint32_t first, uint32_t end, uint64_t until)
{
    for (uint32_t i = first; i < end; i++)
        peer_go(&f->p[i], until, end - first);
    for (uint32_t i = first; i < end; i++)
        peer_await(&f->p[i]);
    const struct agent *one = f->p[first].agent;
    for (uint32_t i = first + 1; i < end; i++) {
        assert_int_equal(f->p[i].agent->steps, one->steps);
        assert_memory_equal(f->p[i].agent->params, one->params, one->n_params * sizeof(float));
    }
}

/* Takes steps up to `until` while the other members are silent. */
static void peer_alone(struct peer *self, uint64_t until)
{
    self->round_ms = SHORT_ROUND;
    peer_go(self, until, 1);
    peer_await(self);
    self->round_ms = LONG_ROUND;
}

static struct group_info info_of(const struct peer *self)
{
    return *group_info(self->group);
}

/* Initial parameters differ, so that one must have come from the other. */
CASE(two)
{
    for (uint32_t i = 0; i < 2; i++)
        peer_open(f, &f->p[i], i, 1 + i);
    together(f, 0, 2, 20);
    assert_int_equal(info_of(&f->p[0]).starts, 1);
    assert_int_equal(info_of(&f->p[0]).lead, 1);
    assert_int_equal(info_of(&f->p[1]).starts, 0);
    assert_int_equal(info_of(&f->p[1]).joins, 1);
}

/* Learner 0 comes back anew while learner 1 waits for data longer than a round: nobody answers, but nobody is dead. */
CASE(slow_and_restarted)
{
    open_peers(f, 2);
    together(f, 0, 2, 10);
    peer_close(&f->p[0]);
    peer_open(f, &f->p[0], 0, 7);
    peer_alone(&f->p[0], 5);  /* learner 1 does not answer */
    peer_alone(&f->p[1], 12); /* and the other way round: two groups */
    assert_int_equal(f->p[0].agent->steps, 5);
    together(f, 0, 2, 30);
    assert_int_equal(info_of(&f->p[0]).joins, 1);
    assert_int_equal(info_of(&f->p[1]).joins, 1); /* at its start: since then it was ahead */
}

/* The same, and both have taken the same number of steps: only their parameters tell. */
CASE(equal_steps)
{
    open_peers(f, 2);
    together(f, 0, 2, 5);
    peer_close(&f->p[0]);
    peer_open(f, &f->p[0], 0, 7);
    peer_alone(&f->p[0], 5);
    together(f, 0, 2, 20);
}

/* Learner 0 is dead, and the broker forgets everything: the others go on from what they have. */
CASE(broker_restart_without_first)
{
    open_peers(f, 3);
    together(f, 0, 3, 10);
    peer_close(&f->p[0]);
    broker_process_stop(&f->broker, 9);
    broker_process_again(&f->broker, NULL);
    together(f, 1, 3, 20);
    peer_open(f, &f->p[0], 0, 9); /* and a new learner 0 takes it from them */
    together(f, 0, 3, 40);
}

/* A member that asks too late for a round does not wait for a state that nobody gives. */
CASE(late_joiner)
{
    open_peers(f, 2); /* the second is a member of the reduce from here on, and silent */
    peer_alone(&f->p[0], 1);
    int64_t from_ns = clock_ns();
    together(f, 0, 2, 10);
    assert_true(clock_ns() - from_ns < (2 * LONG_ROUND - 5000) * NS_PER_MS); /* it would wait for two rounds */
}

CASE(twins)
{
    for (uint32_t i = 0; i < 2; i++)
        peer_open(f, &f->p[i], 0, 1);
    peer_go(&f->p[0], 3, 1);
    peer_go(&f->p[1], 3, 1);
    for (uint32_t i = 0; i < 2; i++)
        pthread_join(f->p[i].thread, NULL);
    assert_int_equal(f->p[1].status == RP_ALREADY_EXISTS || f->p[0].status == RP_ALREADY_EXISTS, 1);
    const struct peer *refused = f->p[1].status == RP_ALREADY_EXISTS ? &f->p[1] : &f->p[0];
    assert_true(facts_within(refused->err.text, "another learner with index 0"));
}
