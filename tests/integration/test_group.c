/* Parallel learners against a real broker: whatever happens to one of them, those who go on have the same bits, and
 * nothing that was learned is lost. */
#include <pthread.h>
#include <time.h>

#include "agent/run/group.h"
#include "tests/support/facts.h"
#include "tests/support/process.h"

/* Milliseconds that a round waits for all members: none leaves the group because its thread is slow. A round that is to end without a
 * silent member is short. */
#define LONG_ROUND 20000
#define SHORT_ROUND 150

static struct broker_process broker;

static int setup(void **state)
{
    (void)state;
    broker_process_start(&broker, "  - {name: replay, max_size: 10}\n", NULL);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    broker_process_fini(&broker);
    return 0;
}

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

static void peer_open(struct peer *self, uint32_t index, uint64_t seed)
{
    static int64_t hidden[] = {4};
    static char dqn[] = "dqn";
    struct agent_config config = {.algorithm = dqn, .hidden = {.data = hidden, .count = 1}, .batch = 1};
    rp_env_spec spec = {.observation_dtype = RP_DTYPE_FLOAT32, .observation_rank = 1, .n_actions = 2};
    spec.observation_shape[0] = 3;
    *self = (struct peer){.index = index, .round_ms = LONG_ROUND};
    rng_seed(&self->rng, 100 + index);
    self->client = must(rp_client_connect(broker.service, NULL, WAIT, &err));
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

/* Takes steps up to `until` while the other members are silent. */
static void peer_alone(struct peer *self, uint64_t until)
{
    self->round_ms = SHORT_ROUND;
    peer_go(self, until, 1);
    peer_await(self);
    self->round_ms = LONG_ROUND;
}

static void check_same(const struct peer *a, const struct peer *b)
{
    assert_int_equal(a->agent->steps, b->agent->steps);
    assert_memory_equal(a->agent->params, b->agent->params, a->agent->n_params * sizeof(float));
}

static struct group_info info_of(const struct peer *self)
{
    return *group_info(self->group);
}

/* Initial parameters differ, so that one must have come from the other. */
TEST(two, setup, teardown)
{
    struct peer p[2];
    for (uint32_t i = 0; i < 2; i++)
        peer_open(&p[i], i, 1 + i);
    for (uint32_t i = 0; i < 2; i++)
        peer_go(&p[i], 20, 2);
    for (uint32_t i = 0; i < 2; i++)
        peer_await(&p[i]);
    check_same(&p[0], &p[1]);
    assert_int_equal(info_of(&p[0]).starts, 1);
    assert_int_equal(info_of(&p[0]).lead, 1);
    assert_int_equal(info_of(&p[1]).starts, 0);
    assert_int_equal(info_of(&p[1]).joins, 1);
    for (uint32_t i = 0; i < 2; i++)
        peer_close(&p[i]);
}

/* Learner 0 comes back anew while learner 1 waits for data longer than a round: nobody answers, but nobody is dead. */
TEST(slow_and_restarted, setup, teardown)
{
    struct peer p[2];
    for (uint32_t i = 0; i < 2; i++)
        peer_open(&p[i], i, 1);
    for (uint32_t i = 0; i < 2; i++)
        peer_go(&p[i], 10, 2);
    for (uint32_t i = 0; i < 2; i++)
        peer_await(&p[i]);
    peer_close(&p[0]);
    peer_open(&p[0], 0, 7);
    peer_alone(&p[0], 5);  /* learner 1 does not answer */
    peer_alone(&p[1], 12); /* and the other way round: two groups */
    assert_int_equal(p[0].agent->steps, 5);
    for (uint32_t i = 0; i < 2; i++)
        peer_go(&p[i], 30, 2);
    for (uint32_t i = 0; i < 2; i++)
        peer_await(&p[i]);
    check_same(&p[0], &p[1]);
    assert_int_equal(info_of(&p[0]).joins, 1);
    assert_int_equal(info_of(&p[1]).joins, 1); /* at its start: since then it was ahead */
    for (uint32_t i = 0; i < 2; i++)
        peer_close(&p[i]);
}

/* The same, and both have taken the same number of steps: only their parameters tell. */
TEST(equal_steps, setup, teardown)
{
    struct peer p[2];
    for (uint32_t i = 0; i < 2; i++)
        peer_open(&p[i], i, 1);
    for (uint32_t i = 0; i < 2; i++)
        peer_go(&p[i], 5, 2);
    for (uint32_t i = 0; i < 2; i++)
        peer_await(&p[i]);
    peer_close(&p[0]);
    peer_open(&p[0], 0, 7);
    peer_alone(&p[0], 5);
    for (uint32_t i = 0; i < 2; i++)
        peer_go(&p[i], 20, 2);
    for (uint32_t i = 0; i < 2; i++)
        peer_await(&p[i]);
    check_same(&p[0], &p[1]);
    for (uint32_t i = 0; i < 2; i++)
        peer_close(&p[i]);
}

/* Learner 0 is dead, and the broker forgets everything: the others go on from what they have. */
TEST(broker_restart_without_first, setup, teardown)
{
    struct peer p[3];
    for (uint32_t i = 0; i < 3; i++)
        peer_open(&p[i], i, 1);
    for (uint32_t i = 0; i < 3; i++)
        peer_go(&p[i], 10, 3);
    for (uint32_t i = 0; i < 3; i++)
        peer_await(&p[i]);
    peer_close(&p[0]);
    broker_process_stop(&broker, 9);
    broker_process_again(&broker, NULL);
    for (uint32_t i = 1; i < 3; i++)
        peer_go(&p[i], 20, 2);
    for (uint32_t i = 1; i < 3; i++)
        peer_await(&p[i]);
    check_same(&p[1], &p[2]);
    peer_open(&p[0], 0, 9); /* and a new learner 0 takes it from them */
    for (uint32_t i = 0; i < 3; i++)
        peer_go(&p[i], 40, 3);
    for (uint32_t i = 0; i < 3; i++)
        peer_await(&p[i]);
    check_same(&p[0], &p[1]);
    check_same(&p[0], &p[2]);
    for (uint32_t i = 0; i < 3; i++)
        peer_close(&p[i]);
}

/* A member that asks too late for a round does not wait for a state that nobody gives. */
TEST(late_joiner, setup, teardown)
{
    struct peer p[2];
    peer_open(&p[0], 0, 1);
    peer_open(&p[1], 1, 1); /* a member of the reduce from here on, and silent */
    peer_alone(&p[0], 1);
    struct timespec from, to;
    clock_gettime(CLOCK_MONOTONIC, &from);
    for (uint32_t i = 0; i < 2; i++)
        peer_go(&p[i], 10, 2);
    for (uint32_t i = 0; i < 2; i++)
        peer_await(&p[i]);
    clock_gettime(CLOCK_MONOTONIC, &to);
    assert_true(to.tv_sec - from.tv_sec < 2 * LONG_ROUND / 1000 - 5); /* it would wait for two rounds */
    check_same(&p[0], &p[1]);
    for (uint32_t i = 0; i < 2; i++)
        peer_close(&p[i]);
}

TEST(twins, setup, teardown)
{
    struct peer p[2];
    for (uint32_t i = 0; i < 2; i++)
        peer_open(&p[i], 0, 1);
    peer_go(&p[0], 3, 1);
    peer_go(&p[1], 3, 1);
    for (uint32_t i = 0; i < 2; i++)
        pthread_join(p[i].thread, NULL);
    assert_int_equal(p[1].status == RP_ALREADY_EXISTS || p[0].status == RP_ALREADY_EXISTS, 1);
    const struct peer *refused = p[1].status == RP_ALREADY_EXISTS ? &p[1] : &p[0];
    assert_true(facts_within(refused->err.text, "another learner with index 0"));
    for (uint32_t i = 0; i < 2; i++)
        peer_close(&p[i]);
}
