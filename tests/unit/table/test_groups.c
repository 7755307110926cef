/* Groups as a writer and a sampler meet them; test_model.c holds them against a model. */

#include "tests/support/testpeer.h"
#include "tests/support/twin.h"

#define TABLE(more)                                                                                                    \
    "  - {name: t, sampler: {kind: fifo}, max_size: 24, max_times_sampled: 1, limiter: {kind: queue}, " more "}\n"     \
    "  - {name: plain, limiter: {kind: none}}\n"
#define GROUPS TABLE("group: {size: 3, deadline: 10s}")

static void write_members(struct testpeer *writer, uint64_t group, uint64_t first_key, uint32_t n)
{
    writer->group = group;
    testpeer_insert(writer, "t", first_key, n, 1);
}

static void assert_rejected(struct testpeer *writer, const char *text)
{
    testpeer_heartbeat(writer, 0, false);
    assert_true(writer->credit->n_rejections > 0);
    const Replay__Rejection *last = writer->credit->rejections[writer->credit->n_rejections - 1];
    assert_int_equal(last->status, RP_INVALID_ARGUMENT);
    assert_has(last->text, text);
}

EMBED_TEST(an_item_has_a_group_where_the_table_has_groups, GROUPS, NULL)
{
    struct testpeer *peer = testpeer_new(embed), *writer = testpeer_opened(embed, false);
    write_members(writer, 0, 1, 1);
    embed_settle(embed);
    assert_rejected(writer, "item 1 has no group, and table 't' has groups of 3");
    writer->group = 5;
    testpeer_inserted(writer, "plain", 2, 1, 1);
    assert_rejected(writer, "item 2 has the group 5, and table 'plain' has no groups");
    write_members(writer, 5, 3, 3);
    embed_settle(embed);
    const struct testpeer_answer *answer = testpeer_await(peer, testpeer_sample(peer, "t", 4, 0, 0));
    testpeer_refused(answer, RP_INVALID_ARGUMENT, "whole groups of 3");
    answer = testpeer_await(peer, testpeer_sample(peer, "t", 5, 0, FLEXIBLE)); /* as many whole ones as fit */
    assert_int_equal(answer->reply->sample->n_key, 3);
    assert_false(answer->reply->sample->partial);
    assert_int_equal(answer->reply->sample->n_group, 1);
    assert_int_equal(answer->reply->sample->group[0], 5);
}

/* Two flows wait for room: the one behind has the member that a group lacks. */
EMBED_TEST(a_member_passes_those_that_would_begin_a_group,
           "  - {name: t, sampler: {kind: fifo}, max_size: 4, max_times_sampled: 1, limiter: {kind: queue}, "
           "group: {size: 3, deadline: 10s}}\n",
           NULL)
{
    struct testpeer *peer = testpeer_new(embed), *one = testpeer_opened(embed, false),
                    *two = testpeer_opened(embed, false), *three = testpeer_opened(embed, false);
    write_members(one, 1, 1, 2);
    write_members(one, 2, 3, 1); /* waits: there is room for two more, of which one is kept for group 1 */
    write_members(two, 3, 11, 1);
    embed_settle(embed);
    assert_int_equal(embed_table(embed, "t")->n_waiting_items, 2);
    struct testpeer_answer *beat = testpeer_heartbeat(one, 0, true);
    assert_int_equal(beat->reply->credit->n_waiting, 1);
    assert_non_null(
        strstr(beat->reply->credit->waiting[0], "a new group needs room for 3 items: the limiter allows 2"));
    assert_non_null(strstr(beat->reply->credit->waiting[0], "the oldest, key 1, has 2 of 3"));
    write_members(three, 1, 21, 1);
    embed_settle(embed);
    const Replay__SampleReply *reply = testpeer_sampled(peer, "t", 3)->reply->sample;
    assert_int_equal(reply->n_key, 3);
    assert_memory_equal(reply->key, ((uint64_t[]){1, 2, 21}), 3 * sizeof *reply->key);
    embed_settle(embed);
    assert_int_equal(embed_table(embed, "t")->n_waiting_items, 1);
}

/* A clock in which every look takes a millisecond: longer than a turn of the pump may take. */
static int64_t tick(void *ctx)
{
    return *(int64_t *)ctx += NS_PER_MS;
}

/* Hundreds of flows wait to begin a group, and the last one has the member that a group lacks. No turn looks at all of them, the last one
 * is found all the same, and the others begin their groups in turn. */
EMBED_TEST(a_turn_does_not_look_at_all_flows,
           "  - {name: t, sampler: {kind: fifo}, max_size: 4, max_times_sampled: 1, limiter: {kind: queue}, "
           "group: {size: 2, deadline: 24h}}\n",
           NULL)
{
    enum { FLOWS = 200, FIRST = 10 };
    struct testpeer *peer = testpeer_new(embed), *one = testpeer_opened(embed, false);
    struct table *table = embed_table(embed, "t");
    write_members(one, 1, 1, 2);
    write_members(one, 2, 3, 2); /* the table is full */
    for (uint32_t i = 0; i < FLOWS; i++) {
        write_members(testpeer_opened(embed, false), i + 1 < FLOWS ? FIRST + i : FIRST, 100 + i, 1);
        embed_settle(embed);
    }
    assert_int_equal(table->n_waiting_items, FLOWS);
    struct clock still = embed->broker->loop.clock;
    static int64_t now;
    now = embed->broker->loop.now_ns;
    embed->broker->loop.clock = (struct clock){tick, &now};
    uint32_t turns = 0;
    for (testpeer_sample(peer, "t", 2, 0, 0); table->n_waiting_items > FLOWS - 2 && turns < 100; turns++)
        broker_turn(embed->broker, 0);
    assert_in_range(turns, 3, 99);
    for (uint64_t group = FIRST + 1; group < FIRST + 20; group++) {
        uint64_t id = testpeer_sample(peer, "t", 2, 0, 0);
        for (turns = 0; groups_find(&table->in.groups, group) == UINT32_MAX && turns < 10; turns++)
            broker_turn(embed->broker, 0);
        assert_in_range(turns, 1, 9);
        assert_int_equal(table->in.groups.n_open, 1);
        write_members(one, group, 2 * group, 1);
        assert_int_equal(testpeer_await(peer, id)->status, RP_OK);
    }
    embed->broker->loop.clock = still;
}

/* A sample that waits for a second group is asked for again on another connection. */
EMBED_TEST(a_retry_goes_on_with_whole_groups, GROUPS, NULL)
{
    struct testpeer *peer = testpeer_new(embed), *writer = testpeer_opened(embed, false);
    write_members(writer, 1, 1, 3);
    embed_settle(embed);
    uint64_t id = testpeer_sample(peer, "t", 6, NO_TIMEOUT, 0);
    embed_settle(embed);
    assert_int_equal(embed_table(embed, "t")->in.size, 0);
    testpeer_reconnect(peer);
    testpeer_sample_as(peer, id, "t", 6, NO_TIMEOUT, 0);
    embed_settle(embed);
    write_members(writer, 2, 11, 3);
    const Replay__SampleReply *reply = testpeer_await(peer, id)->reply->sample;
    assert_int_equal(reply->n_key, 6);
    assert_int_equal(reply->group[0], 1);
    assert_int_equal(reply->group[5], 2);
}

#define SHORT TABLE("group: {size: 3, deadline: 10s, incomplete: deliver}")

/* What was delivered without all members stays so over a restart, also with a newer group of the same key, which gets its time anew. */
TEST(groups_of_the_same_key_survive_a_restart)
{
    struct twin_folder folder;
    struct embed old, new;
    twin_folder_init(&folder);
    embed_start(&old, SHORT, twin_config(&folder, NULL));
    struct testpeer *writer = testpeer_opened(&old, false);
    write_members(writer, 5, 1, 2);
    embed_advance(&old, 10001);
    assert_int_equal(embed_table(&old, "t")->stats.short_groups, 1);
    write_members(writer, 5, 11, 1);
    write_members(writer, 6, 21, 3);
    embed_settle(&old);
    old.broker->loop.wall_offset_ns -= 3600 * NS_PER_S; /* for so long no broker runs */
    twin_checkpoint(&old);
    struct twin_folder copy;
    twin_folder_copy(&copy, &folder);
    embed_start(&new, SHORT, twin_config(&copy, NULL));
    const struct table *table = embed_table(&new, "t");
    struct testpeer *peer = testpeer_new(&new);
    embed_advance(&new, 9000);
    assert_true(table->in.groups.n_open == 1 && table->in.groups.hidden == 1 && table_visible(table) == 2);
    const Replay__Wait *wait = testpeer_why(peer)->waits[0];
    HAS(wait->text, "has 1 of 3 for 9 s");
    assert_int_equal(wait->waited_ns / NS_PER_S, 9);
    const struct testpeer_answer *answer = testpeer_await(peer, testpeer_sample(peer, "t", 6, 0, 0));
    assert_true(answer->reply->sample->n_key == 5 && !answer->reply->sample->partial); /* two groups */
    uint64_t sum = 0;
    for (uint32_t i = 0; i < 5; i++)
        sum += answer->reply->sample->key[i];
    assert_int_equal(sum, 1 + 2 + 21 + 22 + 23);
    embed_stop(&new);
    embed_stop(&old);
    twin_folder_fini(&copy);
    twin_folder_fini(&folder);
}
