/* What stops an adder: full queues, tables that want something else, episodes that are too long, wrong calls, a broker that
 * goes away. */

#include "tests/support/adding.h"
#include "tests/support/facts.h"
#include "tests/support/numbers.h"

#define SIGNATURE(observations)                                                                                        \
    "     signature: {observation: [float32, " observations "],\n"                                                     \
    "                 action: int32, reward: float32,\n"                                                               \
    "                 discount: float32,\n"                                                                            \
    "                 next_observation: [float32, " observations "]}}\n"

static const char tables[] =
    "  - {name: free, max_size: 100000, max_times_sampled: 1, sampler: {kind: fifo}}\n"
    "  - {name: small, max_size: 100000, max_bytes: 4KiB, sampler: {kind: fifo}}\n"
    "  - {name: full, max_size: 3, max_times_sampled: 1, sampler: {kind: fifo},\n"
    "     limiter: {kind: queue}}\n"
    "  - {name: signed, max_size: 1000,\n" SIGNATURE("1") "  - {name: wide, max_size: 1000,\n" SIGNATURE(
        "5") "  - {name: fours, max_size: 1000,\n"
             "     signature: {observation: [float32, 4, 1],\n"
             "                 action: [int32, 4],\n"
             "                 reward: [float32, 4],\n"
             "                 discount: [float32, 4],\n"
             "                 step_type: [uint8, 4]}}\n";

static const rp_env_spec spec = {
    .observation_dtype = RP_DTYPE_FLOAT32, .observation_rank = 1, .observation_shape = {1}, .n_actions = 2};

ADDER_FIXTURE(tables)

static struct adder_config transitions(const char *table)
{
    return (struct adder_config){.table = (char *)(uintptr_t)table,
                                 .n_step = 3,
                                 .discount = 0.9,
                                 .chunk_length = 2,
                                 .batch_items = 2,
                                 .buffer_items = 4};
}

static void make(struct fixture *f, const struct adder_config *config)
{
    f->adder = must(adder_new(&(struct adder_options){f->client, "adder", config, &spec, false, WAIT}, &err));
}

static void refused(struct fixture *f, const struct adder_config *config, rp_status status, const char *text)
{
    err = (rp_error){0};
    assert_null(adder_new(&(struct adder_options){f->client, "adder", config, &spec, false, WAIT}, &err));
    if (err.status != (int32_t)status || !facts_within(err.text, text))
        fail_msg("%s instead of %s: %s", rp_status_name((rp_status)err.status), text, err.text);
}

CASE(a_large_buffer_goes_in_several_batches)
{
    struct adder_config config = transitions("full");
    config.batch_items = 0;
    config.buffer_items = 20000; /* a quarter is more than a writer sends together */
    make(f, &config);
}

/* Step number t of an episode of `length`: the observation is t, the one after it t + 1. */
static rp_status add(struct adder *adder, uint32_t t, uint32_t length, int64_t timeout_ms, rp_error *error)
{
    int32_t action = 1;
    float next = (float)(t + 1);
    struct adder_step step = {
        .action = &action, .reward = 1, .terminal = t + 1 == length, .next_observation = &next, .value = 1, .q = 1};
    return adder_add(adder, &step, timeout_ms, error);
}

static void first(struct adder *adder)
{
    float zero = 0;
    ok(adder_first(adder, &zero, &err));
}

static void polling(struct fixture *f, const char *table)
{
    f->sampler = SAMPLER(f->client, table, .batch_size = 1, .on_demand = 1);
}

static float value_of(const rp_batch *batch, const char *field)
{
    return *(float *)rp_batch_find(batch, field)->data;
}

/* Takes one item of an episode and says whether there was one: it must be the n-th. */
static bool take(rp_sampler *sampler, uint32_t n, uint32_t length, uint32_t n_step)
{
    SCOPED(rp_batch) batch = NULL;
    if (rp_sampler_next(sampler, &batch, 0, &err) != RP_OK)
        return false;
    uint32_t to = n < length ? n + 1 : length;
    uint32_t from = n < length ? to < n_step ? 0 : to - n_step : n - n_step + 1;
    assert_true(value_of(batch, "observation") == (float)from);
    assert_true(value_of(batch, "next_observation") == (float)to);
    return true;
}

/* ---- back-pressure ---- */

static struct adder_stats stats_of_adder(const struct fixture *f)
{
    struct adder_stats stats;
    adder_get_stats(f->adder, &stats);
    return stats;
}

/* The table holds 3 and the buffer 4: no more than that may exist. */
static bool room_left(const struct fixture *f, uint32_t taken)
{
    assert_true(stats_of_adder(f).items <= taken + 7);
    return stats_of_adder(f).items < taken + 7;
}

/* One who is held back goes on when half of its items in flight are confirmed, not for each of them. */
CASE(waits_for_half)
{
    struct adder_config config = transitions("full");
    config.buffer_items = 8;
    make(f, &config);
    polling(f, "full");
    first(f->adder);
    for (uint32_t t = 0; stats_of_adder(f).items < 11; t++) { /* 3 in the table, 8 in flight */
        ok(add(f->adder, t, 1000, WAIT, &err));
    }
    assert_int_equal(add(f->adder, 11, 1000, 0, &err), RP_DEADLINE_EXCEEDED);
    for (uint32_t taken = 0; taken < 5; taken++) {
        /* Its item is the twelfth. With fewer than 5 samples more than 4 of them are unconfirmed. */
        assert_int_equal(adder_wait(f->adder, 10, &err), RP_DEADLINE_EXCEEDED);
        while (!take(f->sampler, taken, 1000, 3))
            ;
    }
    ok(adder_wait(f->adder, WAIT, &err));
    assert_int_equal(stats_of_adder(f).items, 12);
}

CASE(full_table_blocks_and_goes_on)
{
    struct adder_config config = transitions("full");
    make(f, &config);
    polling(f, "full");
    const uint32_t length = 20, items = 22; /* 20 + 3 - 1 */
    uint32_t taken = 0, blocked = 0;
    first(f->adder);
    for (uint32_t t = 0; t < length; t++) {
        rp_status status = add(f->adder, t, length, 5, &err);
        while (status == RP_DEADLINE_EXCEEDED) {
            if (room_left(f, taken)) { /* only slow: credit is on its way */
                status = adder_retry(f->adder, 20, &err);
                continue;
            }
            if (blocked++ == 0)
                while (!strstr(err.text, "full")) /* the name of the table, once the broker has told why */
                    assert_int_equal(adder_retry(f->adder, 20, &err), RP_DEADLINE_EXCEEDED);
            while (!take(f->sampler, taken, length, 3))
                ;
            taken++;
            status = adder_retry(f->adder, 20, &err);
        }
        ok(status);
    }
    assert_int_equal(blocked, items - 7);
    while (taken < items)
        taken += take(f->sampler, taken, length, 3);
    ok(adder_flush(f->adder, 0, WAIT, &err));
    assert_false(take(f->sampler, taken, length, 3));
    rp_sampler_destroy(&f->sampler);
    ok(adder_destroy(&f->adder, WAIT, &err));
}

/* A whole end of an episode (3 items at once) that is done in pieces, and a destroy that does the rest. */
CASE(destroy_finishes_the_step)
{
    struct adder_config config = transitions("full");
    make(f, &config);
    polling(f, "full");
    first(f->adder);
    for (uint32_t t = 0; t < 6; t++)
        ok(add(f->adder, t, 7, WAIT, &err));
    assert_int_equal(add(f->adder, 6, 7, 20, &err), RP_DEADLINE_EXCEEDED); /* 6 items + 3, and there is room for 7 */
    /* One at a time, so that each call of retry gets a little further. */
    uint32_t taken = 0;
    while (taken < 2) {
        taken += take(f->sampler, taken, 7, 3);
        (void)adder_retry(f->adder, 0, &err);
    }
    ok(adder_retry(f->adder, WAIT, &err));
    while (taken < 9)
        taken += take(f->sampler, taken, 7, 3);
    ok(adder_destroy(&f->adder, WAIT, &err));
    assert_null(f->adder);
    assert_false(take(f->sampler, taken, 7, 3));
    rp_sampler_destroy(&f->sampler);

    make(f, &config);
    first(f->adder);
    for (uint32_t t = 0; t < 6; t++)
        ok(add(f->adder, t, 7, WAIT, &err));
    assert_int_equal(add(f->adder, 6, 7, 0, &err), RP_DEADLINE_EXCEEDED);
    assert_int_equal(adder_destroy(&f->adder, 20, &err), RP_DEADLINE_EXCEEDED);
    assert_null(f->adder);
}

/* ---- tables ---- */

CASE(tables_that_want_something_else)
{
    struct adder_config config = transitions("replya");
    refused(f, &config, RP_NOT_FOUND, "replya");
    config.table = NULL;
    refused(f, &config, RP_NOT_FOUND, "no table");
    config = transitions("wide");
    refused(f, &config, RP_INVALID_ARGUMENT, "field 'observation' has shape [1], table 'wide' wants [5]");
    config = transitions("fours");
    refused(f, &config, RP_INVALID_ARGUMENT, "table 'fours'");
    config = transitions("signed");
    make(f, &config);
    ok(adder_destroy(&f->adder, WAIT, &err));

    config = (struct adder_config){.kind = ADDER_SEQUENCE, .table = (char *)(uintptr_t) "fours", .period = 2};
    config.length = 5;
    refused(f, &config, RP_INVALID_ARGUMENT, "has shape [5,1]");
    config.length = 4;
    config.end = ADDER_TRUNCATE;
    refused(f, &config, RP_INVALID_ARGUMENT, "has shape [any,1]");
    config.end = ADDER_PAD;
    make(f, &config);
    first(f->adder);
    for (uint32_t t = 0; t < 6; t++)
        ok(add(f->adder, t, 6, WAIT, &err));
    ok(adder_destroy(&f->adder, WAIT, &err));
}

/* The broker comes back with another idea of the table: what it says reaches the caller. */
CASE(rejections_surface)
{
    struct adder_config config = transitions("signed");
    make(f, &config);
    broker_process_stop(&f->broker, SIGKILL);
    broker_process_again(&f->broker, "  - {name: signed, max_size: 1000,\n" SIGNATURE("7"));
    rp_status status = RP_OK;
    for (uint32_t episode = 0; status == RP_OK && episode < 100; episode++) {
        first(f->adder);
        for (uint32_t t = 0; status == RP_OK && t < 5; t++)
            status = add(f->adder, t, 5, WAIT, &err);
    }
    must_fail(status, RP_INVALID_ARGUMENT, "signed");
    assert_has(err.text, "table 'signed' wants [7]");
    (void)adder_destroy(&f->adder, WAIT, &err);
}

/* An episode that is too large for its table is refused. The adder goes on, and counts it. */
CASE(a_refused_item_is_counted)
{
    struct adder_config config = transitions("small");
    config.kind = ADDER_EPISODE;
    config.max_length = 1000;
    make(f, &config);
    for (uint32_t episode = 0; episode < 20; episode++) {
        uint32_t length = episode == 3 || episode == 19 ? 1000 : 5;
        first(f->adder);
        for (uint32_t t = 0; t < length; t++)
            ok(add(f->adder, t, length, WAIT, &err));
        ok(adder_flush(f->adder, 0, WAIT, &err));
    }
    assert_int_equal(stats_of_adder(f).items, 20);
    assert_int_equal(stats_of_adder(f).rejected, 2);
    ok(adder_destroy(&f->adder, WAIT, &err));
}

CASE(broker_restart_is_survived)
{
    struct adder_config config = transitions("free");
    make(f, &config);
    first(f->adder);
    for (uint32_t t = 0; t < 10; t++)
        ok(add(f->adder, t, 0, WAIT, &err));
    broker_process_stop(&f->broker, SIGKILL);
    rp_status status = RP_OK;
    uint32_t t = 10;
    for (; status == RP_OK && t < 100; t++)
        status = add(f->adder, t, 0, 20, &err);
    assert_int_equal(status, RP_DEADLINE_EXCEEDED);
    broker_process_again(&f->broker, NULL);
    ok(adder_retry(f->adder, WAIT, &err));
    ok(add(f->adder, t, t + 1, WAIT, &err));
    ok(adder_destroy(&f->adder, WAIT, &err));
}

/* ---- wrong use ---- */

CASE(episode_too_long)
{
    struct adder_config config = {
        .kind = ADDER_EPISODE, .table = (char *)(uintptr_t) "free", .max_length = 5, .chunk_length = 3};
    make(f, &config);
    for (int again = 0; again < 2; again++) {
        first(f->adder);
        for (uint32_t t = 0; t < 5; t++)
            ok(add(f->adder, t, 0, WAIT, &err));
        assert_int_equal(add(f->adder, 5, 0, WAIT, &err), RP_FAILED_PRECONDITION);
        assert_non_null(strstr(err.text, "more than 5 steps"));
        assert_non_null(strstr(err.text, "max_length"));
        assert_int_equal(add(f->adder, 6, 0, WAIT, &err), RP_FAILED_PRECONDITION);
    }
    first(f->adder);
    for (uint32_t t = 0; t < 5; t++)
        ok(add(f->adder, t, 5, WAIT, &err));
    ok(adder_flush(f->adder, 0, WAIT, &err));
    polling(f, "free");
    rp_batch *batch = NULL;
    ok(rp_sampler_next(f->sampler, &batch, 0, &err));
    const rp_field_view *view = rp_batch_find(batch, "observation");
    assert_int_equal(view->shape[1], 6);
    for (uint32_t t = 0; t < 6; t++)
        assert_true(((float *)view->data)[t] == (float)t);
    rp_batch_release(&batch);
    assert_int_equal(rp_sampler_next(f->sampler, &batch, 0, &err), RP_DEADLINE_EXCEEDED);
    rp_sampler_destroy(&f->sampler);
    ok(adder_destroy(&f->adder, WAIT, &err));
}

CASE(wrong_calls)
{
    struct adder_config config = transitions("free");
    config.actor_priorities = true;
    make(f, &config);
    float zero = 0;
    int32_t action = 0;
    struct adder_step step = {.action = &action, .next_observation = &zero};
    assert_int_equal(adder_add(f->adder, &step, 0, &err), RP_FAILED_PRECONDITION);
    first(f->adder);
    assert_int_equal(adder_first(f->adder, &zero, &err), RP_FAILED_PRECONDITION);
    step.terminal = step.truncated = true;
    assert_int_equal(adder_add(f->adder, &step, 0, &err), RP_INVALID_ARGUMENT);
    step.terminal = false;
    step.last_value = NAN;
    assert_int_equal(adder_add(f->adder, &step, 0, &err), RP_INVALID_ARGUMENT);
    step.truncated = false;
    step.reward = INFINITY;
    assert_int_equal(adder_add(f->adder, &step, 0, &err), RP_INVALID_ARGUMENT);
    step.reward = 0;
    step.q = NAN;
    must_fail(adder_add(f->adder, &step, 0, &err), RP_INVALID_ARGUMENT, "diverged");
    step.q = 0;
    ok(adder_add(f->adder, &step, WAIT, &err)); /* nothing of the refused ones was kept */
    assert_int_equal(stats_of_adder(f).steps, 1);
    ok(adder_destroy(&f->adder, WAIT, &err));
    ok(adder_destroy(&f->adder, WAIT, &err));
}

CASE(wrong_configurations)
{
    struct adder_config good = transitions("free"), config = good;
    config = good, config.buffer_items = 1;
    refused(f, &config, RP_INVALID_ARGUMENT, "buffer");
    config = good, config.kind = ADDER_SEQUENCE, config.length = 0, config.period = 1;
    refused(f, &config, RP_INVALID_ARGUMENT, "length");
    config.length = 2, config.period = 0;
    refused(f, &config, RP_INVALID_ARGUMENT, "period");
    config.period = 1, config.burn_in = 2;
    refused(f, &config, RP_INVALID_ARGUMENT, "burn_in");
    config.burn_in = 1, config.period = 2;
    refused(f, &config, RP_INVALID_ARGUMENT, "length - burn_in");
    config.burn_in = 0, config.period = 1, config.actor_priorities = true;
    refused(f, &config, RP_INVALID_ARGUMENT, "actor_priorities");
}

/* Two actors: items tell them apart. */
CASE(sessions_tell_actors_apart)
{
    struct adder_config config = transitions("free");
    polling(f, "free");
    uint32_t sessions[2];
    for (uint32_t i = 0; i < 2; i++) {
        make(f, &config);
        first(f->adder);
        adder_set_policy(f->adder, 70 + i);
        ok(add(f->adder, 0, 1, WAIT, &err));
        ok(adder_destroy(&f->adder, WAIT, &err));
        SCOPED(rp_batch) batch = NULL;
        ok(rp_sampler_next(f->sampler, &batch, 0, &err));
        assert_int_equal(arrays_of(batch).policy[0], 70 + i);
        sessions[i] = arrays_of(batch).session[0];
    }
    assert_int_not_equal(sessions[0], sessions[1]);
    rp_sampler_destroy(&f->sampler);
}
