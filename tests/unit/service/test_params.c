/* Parameter slots, counters and events of an embedded broker. tests/integration/test_params.c has the library's side. */

#include "tests/support/testpeer.h"

#define TABLE "  - {name: t, max_size: 10}\n"

static struct testpeer_answer *put_as(struct testpeer *peer, Replay__ParamsPut ask, const void *data, size_t size)
{
    TESTPEER_REQUEST(request, PARAMS_PUT, params_put, &ask);
    return testpeer_await(peer, testpeer_ask_with(peer, &request, 0, data, size));
}

static struct testpeer_answer *put(struct testpeer *peer, const char *name, const void *data, size_t size)
{
    return testpeer_await(peer, testpeer_put(peer, name, 0, data, size));
}

static uint64_t get(struct testpeer *peer, uint32_t n, const char *const *names, const uint64_t *have,
                    int64_t timeout_ms, bool head)
{
    Replay__ParamsGet ask = REPLAY__PARAMS_GET__INIT;
    ask.n_name = n;
    ask.name = (char **)(uintptr_t)names;
    ask.n_have = have ? n : 0;
    ask.have = (uint64_t *)(uintptr_t)have;
    ask.head = head;
    if (timeout_ms >= 0) {
        ask.has_timeout_ms_case = REPLAY__PARAMS_GET__HAS_TIMEOUT_MS_TIMEOUT_MS;
        ask.timeout_ms = (uint64_t)timeout_ms;
    }
    TESTPEER_REQUEST(request, PARAMS_GET, params_get, &ask);
    return testpeer_ask(peer, &request);
}

EMBED_TEST(versions_count_up_and_only_newer_ones_come, TABLE, NULL)
{
    struct testpeer *peer = testpeer_new(embed);
    static const char *const names[] = {"policy", "target"};
    assert_int_equal(put(peer, "policy", "one", 3)->reply->params->slots[0]->version, 1);
    assert_int_equal(put(peer, "policy", "second", 6)->reply->params->slots[0]->version, 2);
    put(peer, "target", "T", 1);
    struct testpeer_answer *answer = testpeer_await(peer, get(peer, 2, names, NULL, 0, false));
    assert_int_equal(answer->reply->params->n_slots, 2);
    assert_int_equal(answer->n_payload, 2);
    assert_memory_equal(zmq_msg_data(&answer->payload[0]), "second", 6);
    assert_memory_equal(zmq_msg_data(&answer->payload[1]), "T", 1);
    answer = testpeer_await(peer, get(peer, 2, names, (const uint64_t[]){2, 0}, 0, false));
    assert_int_equal(answer->reply->params->n_slots, 1);
    assert_string_equal(answer->reply->params->slots[0]->name, "target");
    answer = testpeer_good(peer, get(peer, 2, names, (const uint64_t[]){2, 1}, 0, false));
    assert_int_equal(answer->reply->params->n_slots, 0);
    answer = testpeer_await(peer, get(peer, 2, names, NULL, NO_TIMEOUT, true));
    assert_int_equal(answer->n_payload, 0);
    assert_int_equal(answer->reply->params->slots[0]->bytes, 6);
}

/* As shard 0 and as another shard: a version above what a client knows, one that shard 0 gave, and a higher one for a block that may
 * have been replaced (result 0: it was). */
EMBED_TEST(versions_come_from_outside, TABLE, NULL)
{
    struct testpeer *peer = testpeer_new(embed);
    static const struct {
        uint64_t above, version, result;
        const char *text;
        bool stored;
    } puts[] = {
        {0, 0, 1, "a", true},    {0, 7, 7, "b", true},    {0, 7, 7, "c", false},
        {0, 3, 7, "d", false},   {5, 0, 8, "e", true},    {20, 0, 21, "f", true},
        {29, 21, 30, "g", true}, {40, 21, 0, "g", false}, {0, 0, 31, "h", true},
    };
    const char *kept = "", *name = "policy";
    uint64_t version = 0;
    for (size_t i = 0; i < sizeof puts / sizeof puts[0]; i++) {
        Replay__ParamsPut ask = REPLAY__PARAMS_PUT__INIT;
        ask.name = (char *)(uintptr_t)name;
        ask.above = puts[i].above;
        ask.version = puts[i].version;
        kept = puts[i].stored ? puts[i].text : kept;
        struct testpeer_answer *answer = put_as(peer, ask, puts[i].text, 1);
        assert_int_equal(answer->status, puts[i].result ? RP_OK : RP_FAILED_PRECONDITION);
        version = puts[i].result ? puts[i].result : version;
        if (puts[i].result)
            assert_int_equal(answer->reply->params->slots[0]->version, version);
        answer = testpeer_await(peer, get(peer, 1, &name, NULL, 0, false));
        assert_int_equal(answer->reply->params->slots[0]->version, version);
        assert_memory_equal(zmq_msg_data(&answer->payload[0]), kept, 1);
    }
    Replay__ParamsPut last = REPLAY__PARAMS_PUT__INIT;
    last.name = (char *)(uintptr_t)name;
    last.above = UINT64_MAX;
    assert_int_equal(put_as(peer, last, "i", 1)->status, RP_INVALID_ARGUMENT);
}

EMBED_TEST(a_long_poll_wakes_with_the_next_version, TABLE, NULL)
{
    struct testpeer *actors[50], *learner = testpeer_new(embed);
    uint64_t ids[50];
    static const char *const names[] = {"policy", "other"};
    put(learner, "policy", "a", 1);
    for (uint32_t i = 0; i < 50; i++) {
        actors[i] = testpeer_new(embed);
        ids[i] = get(actors[i], 2, names, (const uint64_t[]){1, 0}, i == 0 ? 1000 : NO_TIMEOUT, false);
        assert_null(testpeer_poll(actors[i], ids[i]));
    }
    embed_advance(embed, 1001);
    struct testpeer_answer *late = testpeer_await(actors[0], ids[0]);
    assert_int_equal(late->status, RP_DEADLINE_EXCEEDED);
    assert_non_null(strstr(late->text, "needs another version than 1"));
    assert_non_null(strstr(late->text, "policy"));
    put(learner, "unrelated", "x", 1);
    assert_null(testpeer_poll(actors[7], ids[7]));
    uint8_t *large = calloc(1, 1u << 20);
    large[77] = 5;
    put(learner, "policy", large, 1u << 20);
    const void *shared = NULL;
    for (uint32_t i = 1; i < 50; i++) {
        struct testpeer_answer *answer = testpeer_good(actors[i], ids[i]);
        assert_int_equal(answer->reply->params->slots[0]->version, 2);
        assert_memory_equal(zmq_msg_data(&answer->payload[0]), large, 1u << 20);
        /* Stored once, sent to all without a copy. */
        if (shared)
            assert_ptr_equal(zmq_msg_data(&answer->payload[0]), shared);
        shared = zmq_msg_data(&answer->payload[0]);
    }
    free(large);
    assert_int_equal(embed->broker->peers.waits.count, 0);
}

/* Thousands that wait are answered in slices: meanwhile some give up, a second slot is put, and others come. Each request
 * gets one answer, with versions that it did not have. */
TEST(many_waiters_are_answered_once_each)
{
    enum { PEERS = 8, EACH = 500 };
    static const char *const a[] = {"a"}, *const b[] = {"b"}, *const both[] = {"b", "a"};
    static uint64_t ids[PEERS][EACH];
    struct embed embed;
    embed_start_real(&embed, TABLE, NULL);
    struct testpeer *peers[PEERS], *learner = testpeer_new(&embed);
    for (uint32_t p = 0; p < PEERS; p++) {
        peers[p] = testpeer_new(&embed);
        for (uint32_t i = 0; i < EACH; i++)
            ids[p][i] = get(peers[p], i % 3 == 2 ? 2 : 1,
                            i % 3 == 0   ? a
                            : i % 3 == 1 ? b
                                         : both,
                            NULL, NO_TIMEOUT, false);
        embed_settle(&embed);
    }
    assert_int_equal(embed.broker->peers.waits.count, PEERS * EACH);
    Replay__ParamsPut ask = REPLAY__PARAMS_PUT__INIT;
    TESTPEER_REQUEST(request, PARAMS_PUT, params_put, &ask);
    ask.name = testpeer_text("a");
    testpeer_ask_with(learner, &request, 0, "1", 1);
    ask.name = testpeer_text("b");
    testpeer_ask_with(learner, &request, 0, "2", 1);
    testpeer_ask_cancel(peers[0], 50, &ids[0][EACH - 50]); /* somewhere in the middle of the list */
    embed_settle(&embed);
    uint64_t late = testpeer_waits(learner, get(learner, 2, both, (const uint64_t[]){1, 1}, NO_TIMEOUT, false));
    for (uint32_t p = 0; p < PEERS; p++)
        for (uint32_t i = 0; i < EACH; i++) {
            struct testpeer_answer *answer = testpeer_await(peers[p], ids[p][i]);
            if (answer->status == RP_CANCELLED && p == 0 && i >= EACH - 50)
                continue;
            assert_int_equal(answer->status, RP_OK);
            assert_true(answer->reply->params->n_slots >= 1);
            assert_int_equal(answer->reply->params->slots[0]->version, 1);
            if (i % 3 == 2)
                continue;
            assert_string_equal(answer->reply->params->slots[0]->name, i % 3 == 0 ? "a" : "b");
        }
    assert_int_equal(embed.broker->peers.waits.count, 1);
    assert_false(embed.broker->service.params_waits.is_waking);
    put(learner, "b", "3", 1);
    assert_int_equal(testpeer_await(learner, late)->reply->params->slots[0]->version, 2);
    embed_stop(&embed);
}

EMBED_TEST(a_version_in_use_outlives_the_next_put, TABLE, NULL)
{
    struct testpeer *peer = testpeer_new(embed);
    static const char *const names[] = {"policy"};
    uint8_t *data = malloc(100000);
    memset(data, 1, 100000);
    put(peer, "policy", data, 100000);
    struct testpeer_answer *old = testpeer_await(peer, get(peer, 1, names, NULL, 0, false));
    memset(data, 2, 100000);
    put(peer, "policy", data, 100000);
    assert_int_equal(((const uint8_t *)zmq_msg_data(&old->payload[0]))[99999], 1);
    free(data);
}

/* Nothing of a put that was refused stays, so any number of them leaves room for others. */
EMBED_TEST(a_refused_put_leaves_no_slot, TABLE, "memory_limit: 4MiB\n")
{
    struct testpeer *peer = testpeer_new(embed);
    const size_t size = (1u << 20) + 1;
    char *value = calloc(1, size), name[16];
    assert_non_null(value);
    for (uint32_t i = 0; i < 50; i++) {
        snprintf(name, sizeof name, "slot-%u", i);
        assert_int_equal(put(peer, name, value, size)->status, RP_RESOURCE_EXHAUSTED);
        testpeer_forget(peer);
    }
    assert_int_equal(testpeer_info(peer)->n_slots, 0);
    assert_int_equal(put(peer, name, value, 8)->status, RP_OK);
    free(value);
}

EMBED_TEST(mistakes_are_told, TABLE, NULL)
{
    struct testpeer *peer = testpeer_new(embed);
    assert_int_equal(put(peer, "", "x", 1)->status, RP_INVALID_ARGUMENT);
    assert_int_equal(put(peer, "policy", NULL, 0)->status, RP_INVALID_ARGUMENT);
    assert_int_equal(testpeer_await(peer, get(peer, 0, NULL, NULL, 0, false))->status, RP_INVALID_ARGUMENT);
    char long_name[300] = "";
    memset(long_name, 'a', 299);
    assert_int_equal(put(peer, long_name, "x", 1)->status, RP_INVALID_ARGUMENT);
}

/* ---- values in parts ---- */

#define PART 1000u

/* A value of 2500 bytes and a second form of 1200: parts of 1000, 1000, 500 and 1000, 200. */
static const Replay__ParamsPut in_parts = {PROTOBUF_C_MESSAGE_INIT(&replay__params_put__descriptor),
                                           .name = (char *)"policy",
                                           .put = 77,
                                           .bytes = 2500,
                                           .bf16_bytes = 1200,
                                           .part_bytes = PART};
static const uint32_t part_sizes[] = {1000, 1000, 500, 1000, 200};

/* Memory of such a value. */
static uint64_t cost(void)
{
    return param_shape_bytes(&(struct param_shape){77, 2500, 1200, PART});
}

static struct testpeer_answer *put_one(struct testpeer *peer, Replay__ParamsPut ask, uint32_t part, uint32_t size)
{
    static uint8_t data[2 * PART];
    memset(data, (int)(ask.put + part), sizeof data);
    ask.part = part;
    return put_as(peer, ask, data, size);
}

static struct testpeer_answer *get_one(struct testpeer *peer, uint64_t value, uint32_t part)
{
    Replay__ParamsGet ask = REPLAY__PARAMS_GET__INIT;
    char *name = testpeer_text("policy");
    ask.n_name = 1;
    ask.name = &name;
    ask.parts = true;
    ask.put = value;
    ask.part = part;
    TESTPEER_REQUEST(request, PARAMS_GET, params_get, &ask);
    return testpeer_await(peer, testpeer_ask(peer, &request));
}

/* Puts all parts. Returns the version. */
static uint64_t put_all(struct testpeer *peer, Replay__ParamsPut ask)
{
    uint64_t version = 0;
    for (uint32_t i = 0; i < 5; i++)
        version = put_one(peer, ask, i, part_sizes[i])->reply->params->slots[0]->version;
    return version;
}

static void expect_part(struct testpeer *peer, uint64_t value, uint32_t part)
{
    struct testpeer_answer *answer = get_one(peer, value, part);
    assert_int_equal(answer->status, RP_OK);
    assert_int_equal(answer->n_payload, 1);
    assert_int_equal(zmq_msg_size(&answer->payload[0]), part_sizes[part]);
    const uint8_t *data = zmq_msg_data(&answer->payload[0]);
    for (uint32_t i = 0; i < part_sizes[part]; i++)
        assert_int_equal(data[i], (uint8_t)(value + part));
    assert_int_equal(answer->reply->params->slots[0]->parts->part, part);
}

EMBED_TEST(the_last_missing_part_makes_the_version, TABLE, NULL)
{
    static const uint32_t order[] = {3, 0, 0, 4, 2}, missing[] = {0, 1, 1, 1, 1};
    static const char *const names[] = {"policy"};
    struct testpeer *peer = testpeer_new(embed), *other = testpeer_new(embed);
    put(peer, "policy", "old", 3);
    uint64_t waits = get(other, 1, names, (const uint64_t[]){1}, NO_TIMEOUT, false);
    for (uint32_t i = 0; i < 5; i++) {
        struct testpeer_answer *answer = put_one(peer, in_parts, order[i], part_sizes[order[i]]);
        assert_int_equal(answer->status, RP_OK);
        assert_int_equal(answer->reply->params->slots[0]->version, 0);
        assert_int_equal(answer->reply->params->slots[0]->parts->part, missing[i]);
        assert_int_equal(testpeer_info(peer)->server->memory->params_staged, cost());
    }
    assert_int_equal(params_version(&embed->broker->params, "policy"), 1);
    assert_null(testpeer_poll(other, waits));
    struct testpeer_answer *answer = put_one(peer, in_parts, 1, 1000);
    assert_int_equal(answer->reply->params->slots[0]->version, 2);
    assert_null(answer->reply->params->slots[0]->parts);
    assert_int_equal(testpeer_await(other, waits)->status, RP_FAILED_PRECONDITION); /* it does not know of parts */
    for (uint32_t i = 0; i < 5; i++)
        expect_part(peer, 77, i);
    /* The reply to any part may have been lost, the last one's, too. */
    assert_int_equal(put_one(peer, in_parts, 1, 1000)->reply->params->slots[0]->version, 2);
    Replay__InfoReply *info = testpeer_info(peer);
    assert_int_equal(info->slots[0]->bytes, 2500);
    assert_int_equal(info->server->memory->params_staged, 0);
    assert_int_equal(info->server->memory->params, cost());
    assert_int_equal(get_one(peer, 77, 5)->status, RP_INVALID_ARGUMENT);
    assert_int_equal(get_one(peer, 78, 0)->status, RP_NOT_FOUND);
}

EMBED_TEST(an_old_version_stays_as_long_as_it_is_read, TABLE, NULL)
{
    struct testpeer *peer = testpeer_new(embed);
    Replay__ParamsPut ask = in_parts;
    put_all(peer, ask);
    expect_part(peer, 77, 0);
    for (ask.put = 80; ask.put < 80 + PARAMS_OLD_MOST; ask.put++) {
        assert_int_equal(put_all(peer, ask), ask.put - 78);
        expect_part(peer, 77, 1);
        expect_part(peer, ask.put, 2); /* this reader has what it wants */
    }
    assert_int_equal(testpeer_info(peer)->server->memory->params_old, PARAMS_OLD_MOST * cost());
    put_all(peer, ask); /* one that nobody reads goes for want of a place */
    assert_int_equal(testpeer_info(peer)->server->memory->params_old, PARAMS_OLD_MOST * cost());
    expect_part(peer, 77, 1);
    assert_int_equal(get_one(peer, 80, 1)->status, RP_NOT_FOUND);
    expect_part(peer, 81, 4);
    embed_advance(embed, PARAMS_HOLD_NS / NS_PER_MS / 2);
    expect_part(peer, 81, 4);
    embed_advance(embed, PARAMS_HOLD_NS / NS_PER_MS / 2 + 1000);
    expect_part(peer, 81, 4);
    assert_int_equal(get_one(peer, 82, 4)->status, RP_NOT_FOUND);
    embed_advance(embed, PARAMS_HOLD_NS / NS_PER_MS + 1000);
    assert_int_equal(get_one(peer, 81, 4)->status, RP_NOT_FOUND);
    assert_int_equal(testpeer_info(peer)->server->memory->params_old, 0);
    assert_int_equal(testpeer_info(peer)->server->memory->params, cost());
    ask.put++;
    put_all(peer, ask); /* nobody has begun to read the one before */
    assert_int_equal(testpeer_info(peer)->server->memory->params_old, 0);
    expect_part(peer, ask.put, 4);
}

/* More readers than old versions may stay, each of which gets one part while four versions are put, and a fast one that reads them all:
 * everybody finishes, though some have to begin anew. */
EMBED_TEST(slow_readers_finish, TABLE, NULL)
{
    enum { READERS = 2 * PARAMS_OLD_MOST, PARTS = 3, PUTS = 4 };
    struct testpeer *peer = testpeer_new(embed), *readers[READERS];
    uint64_t reads[READERS] = {0};
    uint32_t got[READERS] = {0}, finished = 0;
    Replay__ParamsPut ask = in_parts;
    for (uint32_t i = 0; i < READERS; i++)
        readers[i] = testpeer_new(embed);
    for (ask.put = 100; finished < READERS && ask.put < 300; ask.put++) {
        put_all(peer, ask);
        for (uint32_t part = 0; part < PARTS; part++)
            expect_part(peer, ask.put, part);
        for (uint32_t i = ask.put % PUTS; i < READERS; i += PUTS) {
            if (got[i] == PARTS)
                continue;
            reads[i] = reads[i] ? reads[i] : ask.put;
            if (get_one(readers[i], reads[i], got[i])->status == RP_OK)
                finished += ++got[i] == PARTS;
            else
                reads[i] = got[i] = 0;
        }
        testpeer_forget(peer);
        assert_in_range(testpeer_info(peer)->server->memory->params_old, 0, PARAMS_OLD_MOST * cost());
    }
    assert_int_equal(finished, READERS);
}

/* There is room for two values: the next one waits for a reader of the one before. */
EMBED_TEST(a_put_waits_for_readers_where_memory_is_short, TABLE, "memory_limit: 1MiB\n")
{
    struct testpeer *peer = testpeer_new(embed);
    Replay__ParamsPut ask = in_parts;
    size_t other = (256u << 10) - 2 * cost() - 1000;
    uint8_t *large = calloc(1, other);
    assert_int_equal(put(peer, "other", large, other)->status, RP_OK);
    free(large);
    put_all(peer, ask);
    expect_part(peer, 77, 0);
    ask.put = 78;
    assert_int_equal(put_all(peer, ask), 2);
    expect_part(peer, 78, 4);
    for (uint32_t i = 1; i < 3; i++) {
        ask.put = 79;
        struct testpeer_answer *answer = put_one(peer, ask, 0, 1000);
        testpeer_refused(answer, RP_UNAVAILABLE, "being read");
        expect_part(peer, 77, i);
    }
    assert_int_equal(put_all(peer, ask), 3);
    assert_int_equal(get_one(peer, 77, 0)->status, RP_NOT_FOUND);
    expect_part(peer, 79, 0);
    ask.put = 80;
    assert_int_equal(put_all(peer, ask), 4);
    expect_part(peer, 80, 4);
    ask.put = 81;
    assert_int_equal(put_one(peer, ask, 0, 1000)->status, RP_UNAVAILABLE);
    embed_advance(embed, PARAMS_HOLD_NS / NS_PER_MS); /* the reader is gone */
    assert_int_equal(put_all(peer, ask), 5);
}

/* A value in tiny parts costs more than its bytes, and only a large value has a file. */
EMBED_TEST(parts_are_counted_and_small_values_have_no_file, TABLE, "memory_limit: 16MiB\n")
{
    struct testpeer *peer = testpeer_new(embed);
    Replay__ParamsPut ask = in_parts;
    ask.bytes = 60000;
    ask.bf16_bytes = 0;
    ask.part_bytes = 1;
    embed->broker->params.shares = true;
    assert_int_equal(put_one(peer, ask, 0, 1)->status, RP_RESOURCE_EXHAUSTED);
    ask.bytes = 20000;
    assert_int_equal(put_one(peer, ask, 0, 1)->status, RP_OK);
    assert_in_range(testpeer_info(peer)->server->memory->params, 20000 * (1 + sizeof(zmq_msg_t)), 16u << 18);
    assert_null(embed->broker->params.stages->value->file);
    ask.put++;
    ask.bytes = PARAMS_FILE_FROM;
    ask.part_bytes = PART;
    assert_int_equal(put_one(peer, ask, 0, PART)->status, RP_OK);
    assert_non_null(embed->broker->params.stages->value->file);
}

/* Whatever parts say, nothing is stored that does not fit, and a put that is right is none the worse for it. */
EMBED_TEST(hostile_parts, TABLE, "memory_limit: 1MiB\n")
{
    struct testpeer *peer = testpeer_new(embed);
    static const struct {
        uint64_t bytes, bf16_bytes, part_bytes;
        uint32_t part, size;
        rp_status status;
    } asks[] = {
        {2500, 1200, PART, 0, 999, RP_INVALID_ARGUMENT},  /* too short */
        {2500, 1200, PART, 0, 1001, RP_INVALID_ARGUMENT}, /* would overlap the next */
        {2500, 1200, PART, 2, 1000, RP_INVALID_ARGUMENT}, /* the last one of a form, too long */
        {2500, 1200, PART, 5, 1000, RP_INVALID_ARGUMENT}, /* one too many */
        {2500, 1200, PART, UINT32_MAX, 1000, RP_INVALID_ARGUMENT},
        {2500, 1200, 0, 0, 1000, RP_INVALID_ARGUMENT},
        {0, 1200, PART, 0, 1000, RP_INVALID_ARGUMENT},
        {UINT64_MAX, 0, PART, 0, 1000, RP_INVALID_ARGUMENT},
        {UINT64_MAX, UINT64_MAX, UINT64_MAX, 0, 1000, RP_INVALID_ARGUMENT},
        {1000, UINT64_MAX / 2, UINT64_MAX / 2, 0, 1000, RP_INVALID_ARGUMENT},
        {1u << 20, 0, 1, 0, 1, RP_INVALID_ARGUMENT},               /* a million parts */
        {300000, 0, PART, 0, 1000, RP_RESOURCE_EXHAUSTED},         /* more than a quarter of memory_limit */
        {1u << 30, 1u << 30, 1u << 20, 0, 9, RP_INVALID_ARGUMENT}, /* and a wrong part of it */
        {2500, 0, PART, 0, 1000, RP_INVALID_ARGUMENT},             /* as value 77, which has a second form */
    };
    assert_int_equal(put_one(peer, in_parts, 1, 1000)->status, RP_OK);
    for (uint32_t i = 0; i < sizeof asks / sizeof asks[0]; i++) {
        Replay__ParamsPut ask = in_parts;
        ask.bytes = asks[i].bytes;
        ask.bf16_bytes = asks[i].bf16_bytes;
        ask.part_bytes = asks[i].part_bytes;
        if (asks[i].status == RP_RESOURCE_EXHAUSTED)
            ask.put = 78;
        struct testpeer_answer *answer = put_one(peer, ask, asks[i].part, asks[i].size);
        assert_int_equal(answer->status, asks[i].status);
        assert_true(strlen(answer->text) > 10);
        assert_int_equal(testpeer_info(peer)->server->memory->params, cost());
    }
    assert_int_equal(put_all(peer, in_parts), 1);
    for (uint32_t i = 0; i < 5; i++)
        expect_part(peer, 77, i);
}

/* Values that are never finished take no more than there is, and go. */
EMBED_TEST(abandoned_puts_are_bounded, TABLE, "memory_limit: 2MiB\n")
{
    struct testpeer *peer = testpeer_new(embed);
    Replay__ParamsPut ask = in_parts;
    uint32_t refused = 0;
    assert_int_equal(put_all(peer, ask), 1);
    for (ask.put = 100; ask.put < 200; ask.put++) {
        refused += put_one(peer, ask, 0, 1000)->status == RP_RESOURCE_EXHAUSTED;
        testpeer_forget(peer);
    }
    assert_int_equal(refused, 100 - PARAMS_STAGES_MOST);
    assert_int_equal(testpeer_info(peer)->server->memory->params_staged, PARAMS_STAGES_MOST * cost());
    /* What is silent makes room: for a small value, and for a large one. */
    uint8_t *large = calloc(1, 230000);
    assert_int_equal(put(peer, "other", large, 230000)->status, RP_RESOURCE_EXHAUSTED);
    embed_advance(embed, PARAMS_SILENT_NS / NS_PER_MS);
    assert_int_equal(put(peer, "other", large, 230000)->status, RP_OK);
    assert_in_range(testpeer_info(peer)->server->memory->params, 230000 + cost(), (2u << 20) / 4);
    assert_true(embed->broker->params.n_stages > 0);
    embed_advance(embed, PARAMS_STAGE_NS / NS_PER_MS + 1000);
    assert_int_equal(embed->broker->params.n_stages, 0);
    assert_int_equal(testpeer_info(peer)->server->memory->params, 230000 + cost());
    assert_int_equal(testpeer_info(peer)->n_slots, 2);
    expect_part(peer, 77, 2);
    free(large);
}

/* As shard 0 and as another shard: see versions_come_from_outside. */
EMBED_TEST(versions_of_parts_come_from_outside, TABLE, NULL)
{
    struct testpeer *peer = testpeer_new(embed);
    Replay__ParamsPut ask = in_parts;
    ask.version = 7;
    assert_int_equal(put_all(peer, ask), 7);
    ask.put = 80;
    ask.version = 6; /* older: told at the first part */
    assert_int_equal(put_one(peer, ask, 0, 1000)->reply->params->slots[0]->version, 7);
    assert_int_equal(embed->broker->params.n_stages, 0);
    ask.put = 77;
    ask.version = 7;
    ask.above = 20; /* the same value, with a higher version: any part will do */
    assert_int_equal(put_one(peer, ask, 0, 1000)->reply->params->slots[0]->version, 21);
    expect_part(peer, 77, 3);
    assert_int_equal(put_one(peer, ask, 0, 1000)->status, RP_FAILED_PRECONDITION);
}

EMBED_TEST(a_put_is_announced, TABLE, NULL)
{
    struct testpeer *peer = testpeer_new(embed);
    void *sub = zmq_socket(embed->context, ZMQ_SUB);
    zmq_setsockopt(sub, ZMQ_SUBSCRIBE, "", 0);
    assert_int_equal(zmq_connect(sub, "inproc://events"), 0);
    char text[100];
    int size = -1;
    /* The subscription is on its way: the first announcements may be missed. */
    for (uint32_t i = 0; size < 0 && i < 1000; i++) {
        put(peer, "policy", "x", 1);
        size = zmq_recv(sub, text, sizeof text - 1, ZMQ_DONTWAIT);
    }
    assert_true(size > 0);
    text[size] = '\0';
    assert_memory_equal(text, "params policy ", 14);
    testpeer_reset(peer, "t");
    do
        size = zmq_recv(sub, text, sizeof text - 1, ZMQ_DONTWAIT);
    while (size > 0 && memcmp(text, "params", 6) == 0);
    text[size > 0 ? size : 0] = '\0';
    assert_string_equal(text, "table t reset");
    zmq_close(sub);
}

EMBED_TEST(counters_add_read_and_stay_within_64_bits, TABLE, NULL)
{
    struct testpeer *peer = testpeer_new(embed);
    assert_int_equal(testpeer_counter(peer, "steps", 0), 0);
    assert_int_equal(testpeer_info(peer)->n_counters, 0); /* reading makes none */
    assert_int_equal(testpeer_counter(peer, "steps", 40), 40);
    assert_int_equal(testpeer_counter(peer, "steps", -50), -10);
    assert_int_equal(testpeer_counter(peer, "others", 1), 1);
    assert_int_equal(testpeer_counter(peer, "steps", 0), -10);
    assert_true(testpeer_counter(peer, "large", INT64_MAX) == INT64_MAX);
    assert_true(testpeer_counter(peer, "large", 1) == INT64_MAX);
    Replay__InfoReply *info = testpeer_info(peer);
    assert_int_equal(info->n_counters, 3);
    assert_string_equal(info->counters[0]->name, "steps");
}
