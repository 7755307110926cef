/* What travels of a chunk: the rows that the items of a reply need, each once. */

#include "proto/base/rng.h"
#include "tests/support/testpeer.h"

#define FRAME 1192u /* a step has 1,200 bytes: chunks are cut */
#define MOST_ITEMS 4096u

static struct embed embed;
static struct testpeer *peer;
static uint32_t layout;

static int begin(void **state)
{
    (void)state;
    static const struct testpeer_column columns[] = {
        {.name = "step", .dtype = "uint64", .row_bytes = 8},
        {.name = "frame", .dtype = "uint8", .rank = 1, .shape = {FRAME}, .row_bytes = FRAME}};
    embed_start(&embed, "  - {name: t, max_size: 100, sampler: {kind: uniform}, limiter: {kind: none}}\n", NULL);
    peer = testpeer_new(&embed);
    testpeer_open_with(peer, false, columns, 2);
    Replay__Field fields[2] = {REPLAY__FIELD__INIT, REPLAY__FIELD__INIT};
    fields[0].name = testpeer_text("step");
    fields[1].name = testpeer_text("frame");
    fields[1].column = 1;
    layout = testpeer_layout(peer, "t", 2, fields);
    return 0;
}

static int end(void **state)
{
    (void)state;
    testpeer_unmap();
    embed_stop(&embed);
    return 0;
}

/* Checks the data of every item: `first` is the first step of an item with this key. Returns the steps of all items. */
static uint64_t check_items(const struct testpeer_answer *answer, const uint64_t *first, const uint32_t *length)
{
    const Replay__SampleReply *reply = answer->reply->sample;
    uint64_t steps = 0;
    for (uint32_t i = 0; i < reply->n_key; i++) {
        uint64_t n = reply->key[i] - peer->key_base;
        assert_int_equal(reply->step[i], first[n]);
        assert_int_equal(sampled_u32(reply->length, reply->n_length, i), length[n]);
        sampled_known(answer, i);
        steps += length[n];
    }
    return steps;
}

static uint64_t rows_sent(const struct testpeer_answer *answer)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < answer->n_payload; i++)
        bytes += zmq_msg_size(&answer->payload[i]);
    assert_int_equal(bytes % (8 + FRAME), 0);
    return bytes / (8 + FRAME);
}

static uint32_t below(struct rng *rng, uint32_t n)
{
    return (uint32_t)rng_below(rng, n);
}

/* Random chunks, and items that overlap, lie apart in a chunk, or run over several. */
static void sample_random_items(int flags)
{
    struct rng rng;
    rng_seed(&rng, 26);
    uint32_t key = 0;
    for (int round = 0; round < 60; round++) {
        static uint64_t first[MOST_ITEMS];
        static uint32_t length[MOST_ITEMS];
        uint64_t start = peer->step, chunks[64];
        uint32_t lengths[64], n_chunks = below(&rng, 12) + 1, n_items = below(&rng, 40) + 1;
        for (uint32_t c = 0; c < n_chunks; c++) {
            lengths[c] = 1 + below(&rng, round % 2 ? 40 : 4);
            chunks[c] = testpeer_known(peer, lengths[c], false);
        }
        for (uint32_t i = 0; i < n_items; i++) {
            uint32_t c = below(&rng, n_chunks), offset = below(&rng, lengths[c]);
            uint64_t begins = start + offset;
            for (uint32_t k = 0; k < c; k++)
                begins += lengths[k];
            uint32_t left = (uint32_t)(peer->step - begins), most = left < 12 ? left : 12;
            first[key] = begins;
            length[key] = 1 + below(&rng, most);
            testpeer_item(peer, layout, peer->key_base + key, 1, chunks[c], offset, length[key]);
            key++;
        }
        testpeer_pushed(peer);
        uint32_t n = 1 + below(&rng, 30);
        struct testpeer_answer *answer = testpeer_good(peer, testpeer_sample(peer, "t", n, 0, flags));
        uint32_t shared = (uint32_t)answer->reply->sample->n_place, packed = answer->reply->sample->packed;
        bool lent = answer->reply->sample->n_packed_at > 0;
        assert_true(!lent || (answer->reply->sample->n_head_at > 0) == ((flags & HEAD) != 0));
        uint64_t steps = check_items(answer, first, length);
        uint64_t sent = rows_sent(answer);
        assert_in_range(sent, shared || lent ? 0 : 1, steps);
        assert_true(sent == 0 || !lent);
        assert_true(sent < 20 || packed == 0 || !(flags & PACKED)); /* a few rows are not worth it */
        assert_true(round < 4 || round % 2 == 0 || (shared > 0) == (flags != 0));
        if (round % 3 == 0)
            testpeer_settled(peer, 0);
        testpeer_forget(peer);
    }
}

/* In frames; what is not small out of shared memory; small rows, too; and the header. */
TEST(rows_of_random_items, begin, end)
{
    static const int ways[] = {0, SHARED, PACKED, PACKED | HEAD};
    for (uint32_t i = 0; i < 4; i++) {
        if (i > 0) {
            end(NULL);
            begin(NULL);
            testpeer_map(peer);
        }
        sample_random_items(ways[i]);
    }
}

/* A large chunk of which little is needed is not sent whole, and items that share rows share them in the reply. */
TEST(few_rows_of_a_large_chunk, begin, end)
{
    uint64_t first[3] = {4, 6, 400};
    uint32_t length[3] = {5, 5, 5};
    uint64_t chunk = testpeer_known(peer, 500, true);
    for (uint32_t i = 0; i < 3; i++)
        testpeer_item(peer, layout, peer->key_base + i, 1, chunk, (uint32_t)first[i], length[i]);
    testpeer_pushed(peer);
    const uint64_t keys[] = {peer->key_base, peer->key_base + 1, peer->key_base + 2};
    struct testpeer_answer *answer = testpeer_fetch(peer, "t", 3, keys);
    assert_int_equal(answer->status, RP_OK);
    assert_int_equal(check_items(answer, first, length), 15);
    assert_int_equal(rows_sent(answer), 12); /* 4 to 10 once, and 400 to 404 */
}
