/* A sampler over shards whose brokers answer what no real broker would: it waits, and does not ask without end. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "proto/base/clock.h"
#include "proto/base/log.h"
#include "replay.pb-c.h"
#include "replay/client.h"
#include "replay/sampler.h"
#include "tests/support/fakepeer.h"

#define WAIT_MS 5000
#define SHARDS 2u
#define MANY UINT64_C(0xffffffffffffffff)

struct row {
    uint32_t granted, deal;
    uint64_t room;
    double mass;
    uint64_t size, min_size;
    double buffer;
};

static const struct row rows[] = {
    {UINT32_MAX, 0, MANY, NAN, MANY, MANY, NAN},
    {UINT32_MAX, 0, MANY, INFINITY, MANY, 0, -1},
    {UINT32_MAX, 0, MANY, -INFINITY, MANY, 0, INFINITY},
    {UINT32_MAX, 0, MANY, 1e308, MANY, 0, 1e308},
    {0, 0, MANY, 5, 5, 0, 1000},
    {5, 0, 0, 5, 0, 0, 1000},
    {5, 1, MANY, 5, 5, 1, 0},
    {0, 1, 0, 1e308, MANY, MANY, 0},
    {0, 1, 0, 1e-320, 1, 0, 0},
    {5, 2, MANY, INFINITY, MANY, 0, 0},
    {5, 2, 0, -1, 0, 0, 0},
};

struct fixture {
    struct fakepeer peers[SHARDS];
    char *list[SHARDS];
    rp_client *client;
    Replay__PermitReply permit;
};

static int set_up(void **state)
{
    struct fixture *f = calloc(1, sizeof *f);
    rp_error err = {0};
    log_set_level(LEVEL_OFF);
    replay__permit_reply__init(&f->permit);
    for (uint32_t i = 0; i < SHARDS; i++) {
        fakepeer_start(&f->peers[i]);
        f->list[i] = strdup(f->peers[i].endpoint);
    }
    for (uint32_t i = 0; i < SHARDS; i++)
        fakepeer_join(&f->peers[i], i, f->list, SHARDS, 77);
    f->client = rp_client_connect(f->peers[0].endpoint, NULL, WAIT_MS, &err);
    if (!f->client)
        fail_msg("%s", err.text);
    *state = f;
    return 0;
}

static int tear_down(void **state)
{
    struct fixture *f = *state;
    rp_client_destroy(&f->client);
    for (uint32_t i = 0; i < SHARDS; i++)
        fakepeer_stop(&f->peers[i]);
    for (uint32_t i = 0; i < SHARDS; i++)
        free(f->list[i]);
    free(f);
    return 0;
}

static void say(struct fixture *f, const struct row *row)
{
    for (uint32_t i = 0; i < SHARDS; i++)
        pthread_mutex_lock(&f->peers[i].mutex);
    f->permit.granted = row->granted;
    f->permit.deal = row->deal;
    f->permit.room = row->room;
    f->permit.mass = row->mass;
    f->permit.size = row->size;
    f->permit.min_size = row->min_size;
    f->permit.buffer = row->buffer;
    for (uint32_t i = 0; i < SHARDS; i++) {
        f->peers[i].permit = &f->permit;
        f->peers[i].permits = f->peers[i].samples = 0;
        pthread_mutex_unlock(&f->peers[i].mutex);
    }
}

static rp_sampler *new_sampler(struct fixture *f, uint32_t on_demand, uint32_t distinct, rp_error *err)
{
    rp_sampler_options options = {.struct_size = sizeof options};
    rp_sampler_defaults(&options);
    options.batch_size = 16;
    options.on_demand = on_demand;
    options.distinct = distinct;
    return rp_sampler_new(f->client, "a", &options, err);
}

static void answers_without_sense_do_no_harm(void **state)
{
    struct fixture *f = *state;
    struct clock clock = clock_system();
    for (uint32_t i = 0; i < 3 * sizeof rows / sizeof rows[0]; i++) {
        rp_error err = {0};
        rp_batch *batch;
        say(f, &rows[i / 3]);
        rp_sampler *sampler = new_sampler(f, i % 3 == 1, i % 3 == 2, &err);
        if (!sampler)
            fail_msg("row %u: %s", i / 3, err.text);
        int64_t start = clock_now(&clock);
        rp_status status = rp_sampler_next(sampler, &batch, 60, &err);
        rp_sampler_destroy(&sampler);
        double ms = (double)(clock_now(&clock) - start) * 1e-6;
        uint64_t asked = 0;
        for (uint32_t s = 0; s < SHARDS; s++)
            asked +=
                fakepeer_read(&f->peers[s], &f->peers[s].permits) + fakepeer_read(&f->peers[s], &f->peers[s].samples);
        if (status != RP_DEADLINE_EXCEEDED || asked > 200 + (uint64_t)ms)
            fail_msg("row %u, kind %u: status %d, %llu requests in %.0f ms", i / 3, i % 3, status,
                     (unsigned long long)asked, ms);
    }
}

static void a_deal_that_nobody_knows_is_refused(void **state)
{
    struct fixture *f = *state;
    const struct row row = {0, 7, 0, 1, 1, 0, 0};
    rp_error err = {0};
    say(f, &row);
    assert_null(new_sampler(f, 0, 0, &err));
    assert_int_equal(err.status, RP_BAD_MESSAGE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(answers_without_sense_do_no_harm, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_deal_that_nobody_knows_is_refused, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
