/* Samplers that wait for all shards together: who is shown, for how long, and how many at most. */

#include "tests/support/testpeer.h"

#define TABLES                                                                                                         \
    "  - {name: t, max_size: 100, limiter: {kind: min_size, min_size: 25}}\n"                                          \
    "  - {name: u, max_size: 100, limiter: {kind: none}}\n"

/* Asks for the state of a table, as a sampler does that waits. */
static void ask(struct testpeer *peer, const char *table, uint32_t wanted, uint64_t size, uint64_t min_size)
{
    Replay__Permit body = REPLAY__PERMIT__INIT;
    body.table = testpeer_text(table);
    body.wanted = wanted;
    body.size = size;
    body.min_size = min_size;
    TESTPEER_REQUEST(request, PERMIT, permit, &body);
    assert_int_equal(testpeer_call(peer, &request)->status, RP_OK);
}

EMBED_TEST(who_waits_is_shown_until_it_is_silent, TABLES, NULL)
{
    struct testpeer *peer = testpeer_new(embed);
    const char *who = textf("client %016llx", (unsigned long long)peer->client);
    ask(peer, "t", 10, 99, 100);
    embed_advance(embed, 900);
    ask(peer, "t", 10, 97, 100);
    embed_advance(embed, 900);
    const Replay__WhyReply *reply = testpeer_why(peer);
    assert_int_equal(reply->n_waits, 1);
    assert_string_equal(reply->waits[0]->who, who);
    assert_string_equal(reply->waits[0]->kind, "sample");
    assert_string_equal(reply->waits[0]->table, "t");
    assert_int_equal(reply->waits[0]->has_shard_case, REPLAY__WAIT__HAS_SHARD_ALL_SHARDS);
    assert_int_equal(reply->waits[0]->count, 10);
    assert_int_equal(reply->waits[0]->waited_ns, 1800 * NS_PER_MS);
    assert_non_null(strstr(reply->waits[0]->text, "3 more inserts"));
    assert_non_null(strstr(reply->waits[0]->text, "97 items"));
    embed_advance(embed, 100);
    assert_int_equal(testpeer_why(peer)->n_waits, 0);
    ask(peer, "t", 10, 98, 100); /* another wait */
    assert_int_equal(testpeer_why(peer)->waits[0]->waited_ns, 0);
}

EMBED_TEST(who_goes_on_is_shown_no_more, TABLES, NULL)
{
    struct testpeer *peer = testpeer_new(embed), *other = testpeer_new(embed);
    ask(peer, "t", 10, 99, 100);
    ask(peer, "u", 10, 0, 0);
    ask(other, "t", 10, 4, 3); /* without replacement */
    ask(other, "u", 1, UINT64_MAX, UINT64_MAX);
    assert_int_equal(testpeer_why(peer)->n_waits, 4);
    ask(peer, "t", 0, 0, 0);
    ask(peer, "t", 0, 0, 0);
    const Replay__WhyReply *reply = testpeer_why(peer);
    assert_int_equal(reply->n_waits, 3);
    for (uint32_t i = 0; i < 3; i++) {
        assert_false(strcmp(reply->waits[i]->table, "t") == 0 && !strstr(reply->waits[i]->text, "6 more items"));
        assert_true(strncmp(reply->waits[i]->text, "table '", 7) == 0);
    }
}

EMBED_TEST(a_flood_of_clients_takes_no_memory, TABLES, NULL)
{
    struct testpeer *peer = testpeer_new(embed);
    for (uint32_t i = 0; i < 5 * WATCHERS_MOST; i++) {
        peer->client++;
        ask(peer, i % 2 ? "t" : "u", UINT32_MAX, 0, UINT64_MAX);
        testpeer_forget(peer);
        embed_advance(embed, 1);
    }
    const Replay__WhyReply *reply = testpeer_why(peer);
    assert_int_equal(reply->n_waits, WATCHERS_MOST);
    const char *newest = textf("client %016llx", (unsigned long long)peer->client);
    bool known = false;
    for (uint32_t i = 0; i < reply->n_waits; i++)
        known = known || strcmp(reply->waits[i]->who, newest) == 0;
    assert_true(known);
    embed_advance(embed, 1000);
    assert_int_equal(testpeer_why(peer)->n_waits, 0);
}
