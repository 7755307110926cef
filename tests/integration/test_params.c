/* Parameter slots, counters and reduce against a real broker. */
#include <pthread.h>

#include "tests/support/asked.h"
#include "tests/support/process.h"

struct member {
    rp_client *client;
    rp_reduce *reduce;
    pthread_t thread;
    int64_t round_ms, timeout_ms;
    float values[3];
    rp_reduced result;
    rp_status status;
    rp_error err;
};

#define MEMBERS 3u
struct fixture {
    SERVED;
    struct member m[MEMBERS];
};

static void set_up(struct fixture *f)
{
    served_start(f, "  - {name: replay, max_size: 10}\n", NULL, NULL);
}

static void tear_down(struct fixture *f)
{
    for (uint32_t i = 0; i < MEMBERS; i++) {
        if (f->m[i].reduce)
            ok(rp_reduce_leave(&f->m[i].reduce, WAIT, &err));
        rp_client_destroy(&f->m[i].client);
    }
    served_stop(f);
}

/* ---- slots ---- */

FIXTURE(struct fixture, set_up, tear_down)

CASE(put_and_get)
{
    rp_params *params = NULL;
    uint64_t version = 0;
    assert_int_equal(rp_params_get(f->client, "policy", 0, 0, &params, &err), RP_DEADLINE_EXCEEDED);
    assert_null(params);
    ok(rp_params_put(f->client, "policy", "first", 5, WAIT, &version, &err));
    assert_int_equal(version, 1);
    ok(rp_params_put(f->client, "policy", "second!", 7, WAIT, &version, &err));
    assert_int_equal(version, 2);
    ok(rp_params_get(f->client, "policy", 1, 0, &params, &err));
    const rp_param *slot = rp_params_slot(params);
    assert_string_equal(slot->name, "policy");
    assert_int_equal(slot->version, 2);
    assert_int_equal(slot->bytes, 7);
    assert_memory_equal(slot->data, "second!", 7);
    rp_params_release(&params);
    assert_int_equal(rp_params_get(f->client, "policy", 2, 0, &params, &err), RP_DEADLINE_EXCEEDED);
    assert_int_equal(rp_params_get(f->client, "policy", 2, 50, &params, &err), RP_DEADLINE_EXCEEDED);
    assert_int_equal(rp_params_get(f->client, "", 2, 50, &params, &err), RP_INVALID_ARGUMENT);
}

CASE(empty)
{
    SCOPED(rp_params) params = NULL;
    ok(rp_params_put(f->client, "empty", NULL, 0, WAIT, NULL, &err));
    ok(rp_params_get(f->client, "empty", 0, WAIT, &params, &err));
    assert_int_equal(rp_params_slot(params)->bytes, 0);
    assert_int_equal(rp_params_slot(params)->version, 1);
    assert_non_null(rp_params_slot(params)->data);
}

static void *get_first(void *client)
{
    SCOPED(rp_params) params = NULL;
    ok(rp_params_get(client, "policy", 0, WAIT, &params, &err));
    if (rp_params_slot(params)->version != 1)
        fail_msg("version %llu came first", (unsigned long long)rp_params_slot(params)->version);
    return NULL;
}

static bool one_waits(rp_client *client)
{
    char text[512] = "";
    bool one = asked_waits(client, "params", text, sizeof text) == 1;
    assert_true(!one || strstr(text, "policy"));
    return one;
}

CASE(long_poll)
{
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, get_first, f->client), 0);
    SCOPED(rp_client) other = CONNECT(f->broker.service);
    wait_until(one_waits(other));
    ok(rp_params_put(other, "policy", "x", 1, WAIT, NULL, &err));
    pthread_join(thread, NULL);
}

/* ---- counters ---- */

CASE(counters)
{
    SCOPED(rp_client) other = CONNECT(f->broker.service);
    int64_t value = -1;
    ok(rp_counter_read(f->client, "steps", WAIT, &value, &err));
    assert_int_equal(value, 0);
    ok(rp_counter_add(f->client, "steps", 40, WAIT, &value, &err));
    assert_int_equal(value, 40);
    ok(rp_counter_add(other, "steps", -50, WAIT, &value, &err));
    assert_int_equal(value, -10);
    ok(rp_counter_read(f->client, "steps", WAIT, &value, &err));
    assert_int_equal(value, -10);
    SCOPED(rp_info) info = asked_info(f->client, NULL);
    assert_int_equal(rp_info_count(info, "counters"), 1);
    assert_int_equal(rp_info_i64(rp_info_find(info, "counters", "steps"), "value"), -10);
    assert_true(rp_info_real(info, "counters.0.value") == -10);
}

/* ---- reduce ---- */

static void join(struct fixture *f, uint32_t members)
{
    for (struct member *m = f->m; m < f->m + members; m++) {
        m->client = CONNECT(f->broker.service);
        m->reduce = must(rp_reduce_join(m->client, "learners", WAIT, &err));
        m->round_ms = -1;
        m->timeout_ms = WAIT;
    }
}

static void *member_main(void *arg)
{
    struct member *m = arg;
    m->status = rp_reduce_add(m->reduce, m->values, 3, m->round_ms, m->timeout_ms, &m->result, &m->err);
    return NULL;
}

static void member_start(struct member *m, float a)
{
    m->values[0] = a;
    m->values[1] = 10 * a;
    m->values[2] = -a;
    assert_int_equal(pthread_create(&m->thread, NULL, member_main, m), 0);
}

static void member_expect(struct member *m, float sum, uint32_t contributors, uint32_t counted)
{
    pthread_join(m->thread, NULL);
    if (m->status != RP_OK)
        fail_msg("%s", m->err.text);
    assert_true(m->values[0] == sum);
    assert_true(m->values[1] == 10 * sum);
    assert_true(m->values[2] == -sum);
    assert_int_equal(m->result.contributors, contributors);
    assert_int_equal(m->result.counted, counted);
}

/* A round of two. */
static void add_both(struct member *m, float a, float b)
{
    member_start(&m[0], a);
    member_start(&m[1], b);
    member_expect(&m[0], a + b, 2, 1);
    member_expect(&m[1], a + b, 2, 1);
}

CASE(reduce_rounds)
{
    struct member *m = f->m;
    join(f, 3);
    for (uint32_t round = 1; round <= 5; round++) {
        for (uint32_t i = 0; i < 3; i++)
            member_start(&m[i], (float)(round + i));
        for (uint32_t i = 0; i < 3; i++) {
            member_expect(&m[i], (float)(3 * round + 3), 3, 1);
            assert_int_equal(m[i].result.round, round);
            assert_int_equal(m[i].result.members, 3);
        }
    }
}

/* A member that is silent holds the others up no longer than their deadline, and only once; one that comes too late
 * gets the sum without its part and is in the group again. */
CASE(reduce_late_member)
{
    struct member *m = f->m;
    join(f, 2);
    m[0].round_ms = 100;
    member_start(&m[0], 1);
    member_expect(&m[0], 1, 1, 1);
    m[0].round_ms = -1; /* would wait for ever if the silent one still counted */
    member_start(&m[0], 4);
    member_expect(&m[0], 4, 1, 1);
    assert_int_equal(m[0].result.members, 1);
    member_start(&m[1], 7);
    member_expect(&m[1], 1, 1, 0);
    add_both(m, 2, 3);
}

/* A call that times out leaves its vector in the round; the next one takes up the wait. */
CASE(reduce_deadline)
{
    struct member *m = f->m;
    join(f, 2);
    m[0].timeout_ms = 50;
    member_start(&m[0], 1);
    pthread_join(m[0].thread, NULL);
    assert_int_equal(m[0].status, RP_DEADLINE_EXCEEDED);
    assert_true(m[0].values[0] == 1);
    m[0].timeout_ms = WAIT;
    member_start(&m[1], 2);
    member_start(&m[0], 1);
    member_expect(&m[0], 3, 2, 1);
    member_expect(&m[1], 3, 2, 1);
    /* Leaving lets the others go on. */
    member_start(&m[0], 5);
    ok(rp_reduce_leave(&m[1].reduce, WAIT, &err));
    member_expect(&m[0], 5, 1, 1);
}

CASE(reduce_broker_restart)
{
    struct member *m = f->m;
    join(f, 1);
    for (uint32_t i = 0; i < 3; i++) {
        member_start(m, 1);
        member_expect(m, 1, 1, 1);
    }
    broker_process_stop(&f->broker, SIGKILL);
    broker_process_again(&f->broker, NULL);
    member_start(m, 6);
    pthread_join(m->thread, NULL);
    assert_int_equal(m->status, RP_FAILED_PRECONDITION);
    assert_non_null(strstr(m->err.text, "joined again"));
    assert_true(m->values[0] == 6);
    member_start(m, 6);
    member_expect(m, 6, 1, 1);
    assert_int_equal(m->result.round, 1);
}

CASE(reduce_wrong_length)
{
    struct member *m = f->m;
    join(f, 2);
    member_start(&m[0], 1);
    float longer[4] = {1, 2, 3, 4};
    rp_reduced result;
    /* Whoever comes second with another length is refused. */
    rp_status status = rp_reduce_add(m[1].reduce, longer, 4, 200, WAIT, &result, &err);
    if (status == RP_INVALID_ARGUMENT) {
        member_start(&m[1], 2);
        member_expect(&m[0], 3, 2, 1);
        member_expect(&m[1], 3, 2, 1);
    } else {
        pthread_join(m[0].thread, NULL);
        assert_int_equal(m[0].status, RP_INVALID_ARGUMENT);
    }
    assert_int_equal(rp_reduce_add(m[1].reduce, NULL, 0, 200, WAIT, &result, &err), RP_INVALID_ARGUMENT);
}
