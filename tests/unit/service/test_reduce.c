/* Reduce: rounds, deadlines, members that come and go, and replies that were lost. */

#include "tests/support/testpeer.h"

#define N 4u

static struct embed embed;
static struct testpeer *learners[N];
static char group[16] = "grad";

static void begin_with(uint32_t members, const char *keys)
{
    embed_start(&embed, "  - {name: t, max_size: 10}\n", keys);
    for (uint32_t i = 0; i < members; i++)
        learners[i] = testpeer_new(&embed);
}

static void begin(uint32_t members)
{
    begin_with(members, NULL);
}

static int end(void **state)
{
    (void)state;
    embed_stop(&embed);
    return 0;
}

static uint64_t ask(uint32_t learner, Replay__Reduce__Op op, uint64_t round, int64_t timeout_ms, const float *vector,
                    size_t n, uint64_t id)
{
    Replay__Reduce reduce = REPLAY__REDUCE__INIT;
    reduce.group = group;
    reduce.member = 100 - learner; /* their order is not that of the learners */
    reduce.op = op;
    reduce.round = round;
    if (timeout_ms >= 0) {
        reduce.has_timeout_ms_case = REPLAY__REDUCE__HAS_TIMEOUT_MS_TIMEOUT_MS;
        reduce.timeout_ms = (uint64_t)timeout_ms;
    }
    TESTPEER_REQUEST(request, REDUCE, reduce, &reduce);
    return testpeer_ask_with(learners[learner], &request, id, vector, n * sizeof *vector);
}

static uint64_t join(uint32_t learner)
{
    struct testpeer_answer *answer =
        testpeer_await(learners[learner], ask(learner, REPLAY__REDUCE__OP__JOIN, 0, 0, NULL, 0, 0));
    assert_int_equal(answer->status, RP_OK);
    return answer->reply->reduce->round;
}

static uint64_t add(uint32_t learner, uint64_t round, int64_t timeout_ms, float value)
{
    const float vector[3] = {value, 1, -value};
    return ask(learner, REPLAY__REDUCE__OP__ADD, round, timeout_ms, vector, 3, 0);
}

static void check_sum(uint32_t learner, uint64_t id, uint64_t round, uint32_t contributors, float first, bool counted)
{
    struct testpeer_answer *answer = testpeer_good(learners[learner], id);
    assert_int_equal(answer->reply->reduce->round, round);
    assert_int_equal(answer->reply->reduce->contributors, contributors);
    assert_int_equal(answer->reply->reduce->counted, counted);
    assert_int_equal(answer->n_payload, 1);
    float sum[3];
    assert_int_equal(zmq_msg_size(&answer->payload[0]), sizeof sum);
    memcpy(sum, zmq_msg_data(&answer->payload[0]), sizeof sum);
    assert_true(sum[0] == first && sum[1] == (float)contributors && sum[2] == -first);
}

/* float addition depends on the order: it is that of the member numbers, whoever came first. */
TEST(the_bits_do_not_depend_on_who_came_first, NULL, end)
{
    static const float values[3] = {1e8f, 1.0f, -1e8f};
    float sums[6];
    static const uint32_t orders[6][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
    begin(3);
    for (uint32_t i = 0; i < 3; i++)
        join(i);
    for (uint32_t o = 0; o < 6; o++) {
        uint64_t ids[3];
        for (uint32_t i = 0; i < 3; i++) {
            uint32_t who = orders[o][i];
            ids[who] = ask(who, REPLAY__REDUCE__OP__ADD, o + 1, NO_TIMEOUT, &values[who], 1, 0);
            embed_settle(&embed);
        }
        memcpy(&sums[o], zmq_msg_data(&testpeer_await(learners[0], ids[0])->payload[0]), sizeof sums[0]);
        assert_memory_equal(&sums[o], &sums[0], sizeof sums[0]);
    }
}

TEST(the_deadline_closes_a_round_without_the_missing, NULL, end)
{
    begin(3);
    for (uint32_t i = 0; i < 3; i++)
        join(i);
    uint64_t a = add(0, 1, 500, 1), b = add(1, 1, NO_TIMEOUT, 2);
    embed_advance(&embed, 499);
    assert_null(testpeer_poll(learners[0], a));
    assert_null(testpeer_poll(learners[1], b));
    embed_advance(&embed, 2);
    check_sum(0, a, 1, 2, 3, true);
    check_sum(1, b, 1, 2, 3, true);
    /* The one that was missing gets the sum, and that it is not part of it; then it has to join again. */
    check_sum(2, add(2, 1, NO_TIMEOUT, 4), 1, 2, 3, false);
    assert_int_equal(testpeer_await(learners[2], add(2, 2, NO_TIMEOUT, 4))->status, RP_FAILED_PRECONDITION);
    assert_int_equal(join(2), 2);
    a = add(0, 2, NO_TIMEOUT, 1);
    b = add(1, 2, NO_TIMEOUT, 2);
    assert_null(testpeer_poll(learners[0], a));
    check_sum(2, add(2, 2, NO_TIMEOUT, 4), 2, 3, 7, true);
    check_sum(0, a, 2, 3, 7, true);
    check_sum(1, b, 2, 3, 7, true);
}

TEST(a_lost_reply_is_asked_for_again, NULL, end)
{
    begin(2);
    join(0);
    join(1);
    for (uint64_t round = 1; round <= 4; round++) {
        uint64_t a = add(0, round, NO_TIMEOUT, 1), b = add(1, round, NO_TIMEOUT, 2);
        check_sum(0, a, round, 2, 3, true);
        check_sum(1, b, round, 2, 3, true);
    }
    testpeer_forget(learners[0]);
    const float vector[3] = {1, 1, -1};
    uint64_t again = ask(0, REPLAY__REDUCE__OP__ADD, 4, NO_TIMEOUT, vector, 3, learners[0]->next_id);
    check_sum(0, again, 4, 2, 3, true);
    check_sum(0, add(0, 3, NO_TIMEOUT, 1), 3, 2, 3, true);
    assert_int_equal(testpeer_await(learners[0], add(0, 2, NO_TIMEOUT, 1))->status, RP_FAILED_PRECONDITION);
}

TEST(leaving_lets_the_others_go_on, NULL, end)
{
    begin(3);
    for (uint32_t i = 0; i < 3; i++)
        join(i);
    uint64_t a = add(0, 1, NO_TIMEOUT, 1), b = testpeer_waits(learners[1], add(1, 1, NO_TIMEOUT, 2));
    testpeer_waits(learners[0], a);
    struct testpeer_answer *left = testpeer_await(learners[2], ask(2, REPLAY__REDUCE__OP__LEAVE, 0, 0, NULL, 0, 0));
    assert_int_equal(left->status, RP_OK);
    check_sum(0, a, 1, 2, 3, true);
    check_sum(1, b, 1, 2, 3, true);
    /* A member that leaves with its vector in: the vector goes with it. */
    a = add(0, 2, NO_TIMEOUT, 1);
    b = add(1, 2, NO_TIMEOUT, 2);
    check_sum(1, b, 2, 2, 3, true);
    a = testpeer_waits(learners[0], add(0, 3, NO_TIMEOUT, 1));
    testpeer_await(learners[0], ask(0, REPLAY__REDUCE__OP__LEAVE, 0, 0, NULL, 0, 0));
    assert_int_equal(testpeer_await(learners[0], a)->status, RP_CANCELLED);
    check_sum(1, add(1, 3, NO_TIMEOUT, 2), 3, 1, 2, true);
}

TEST(mistakes_are_told, NULL, end)
{
    begin(2);
    assert_int_equal(testpeer_await(learners[0], add(0, 1, 0, 1))->status, RP_NOT_FOUND);
    join(0);
    assert_int_equal(testpeer_await(learners[1], add(1, 1, 0, 1))->status, RP_FAILED_PRECONDITION);
    join(1);
    assert_int_equal(testpeer_await(learners[0], add(0, 9, 0, 1))->status, RP_INVALID_ARGUMENT);
    assert_int_equal(testpeer_await(learners[0], ask(0, REPLAY__REDUCE__OP__ADD, 1, 0, NULL, 0, 0))->status,
                     RP_INVALID_ARGUMENT);
    testpeer_waits(learners[0], add(0, 1, NO_TIMEOUT, 1));
    assert_int_equal(testpeer_await(learners[0], add(0, 1, NO_TIMEOUT, 1))->status, RP_ALREADY_EXISTS);
    const float longer[5] = {0};
    assert_int_equal(testpeer_await(learners[1], ask(1, REPLAY__REDUCE__OP__ADD, 1, 0, longer, 5, 0))->status,
                     RP_INVALID_ARGUMENT);
    check_sum(1, add(1, 1, NO_TIMEOUT, 2), 1, 2, 3, true);
}

/* Sums that are kept for a retry never keep another group from adding, whether members leave or just stay away. */
TEST(old_sums_make_room, NULL, end)
{
    const size_t n = 50000; /* the two sums of a group, and a vector in flight, are more than half of the quarter */
    float *vector = calloc(n, sizeof *vector);
    assert_non_null(vector);
    begin_with(1, "memory_limit: 4MiB\n");
    for (uint32_t i = 0; i < 2 * 1024 + 10; i++) {
        snprintf(group, sizeof group, "group-%u", i);
        assert_int_equal(join(0), 1);
        for (uint64_t round = 1; round <= (i < 10 ? 3 : 0); round++)
            assert_int_equal(
                testpeer_await(learners[0], ask(0, REPLAY__REDUCE__OP__ADD, round, 0, vector, n, 0))->status, RP_OK);
        if (i != 3) {
            testpeer_await(learners[0], ask(0, REPLAY__REDUCE__OP__LEAVE, 0, 0, NULL, 0, 0));
            assert_true(embed.broker->service.reduces.bytes <= 2 * n * sizeof *vector);
        }
        testpeer_forget(learners[0]);
    }
    snprintf(group, sizeof group, "grad");
    free(vector);
}

TEST(a_broker_that_shuts_down_cancels_the_round, NULL, end)
{
    begin(2);
    join(0);
    join(1);
    uint64_t id = testpeer_waits(learners[0], add(0, 1, NO_TIMEOUT, 1));
    broker_drain(embed.broker);
    assert_int_equal(testpeer_await(learners[0], id)->status, RP_CANCELLED);
}
