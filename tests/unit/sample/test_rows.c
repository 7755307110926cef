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

static void frame_of(uint64_t step, uint8_t *out)
{
    for (uint32_t i = 0; i < FRAME; i++)
        out[i] = (uint8_t)(step * 7 + i);
}

/* Adds a chunk with the next steps of the stream. */
static uint64_t add_chunk(uint64_t *step, uint32_t rows, bool own)
{
    uint64_t *steps = malloc(rows * sizeof *steps);
    uint8_t *frames = malloc((size_t)rows * FRAME);
    for (uint32_t i = 0; i < rows; i++) {
        steps[i] = (*step)++;
        frame_of(steps[i], frames + (size_t)i * FRAME);
    }
    const void *blocks[] = {steps, frames};
    uint64_t chunk = testpeer_chunk(peer, rows, blocks, own);
    free(steps);
    free(frames);
    return chunk;
}

/* Checks the data of every item: `first` is the first step of an item with this key. Returns the steps of all items. */
static uint64_t check_items(const struct testpeer_answer *answer, const uint64_t *first, const uint32_t *length)
{
    const Replay__SampleReply *reply = answer->reply->sample;
    uint64_t steps = 0;
    for (uint32_t i = 0; i < reply->n_key; i++) {
        uint64_t n = reply->key[i] - peer->key_base;
        uint32_t rows, row_bytes;
        uint8_t *at = sampled_rows(answer, i, 0, &rows, &row_bytes),
                *frames = sampled_rows(answer, i, 1, &rows, &row_bytes);
        assert_int_equal(rows, length[n]);
        for (uint32_t r = 0; r < rows; r++) {
            uint64_t step;
            uint8_t want[FRAME];
            memcpy(&step, at + (size_t)r * 8, 8);
            assert_int_equal(step, first[n] + r);
            frame_of(step, want);
            assert_memory_equal(frames + (size_t)r * FRAME, want, FRAME);
        }
        steps += rows;
        free(at);
        free(frames);
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
        uint64_t step = peer->step, start = step, chunks[64];
        uint32_t lengths[64], n_chunks = below(&rng, 12) + 1, n_items = below(&rng, 40) + 1;
        for (uint32_t c = 0; c < n_chunks; c++) {
            lengths[c] = 1 + below(&rng, round % 2 ? 40 : 4);
            chunks[c] = add_chunk(&step, lengths[c], false);
        }
        for (uint32_t i = 0; i < n_items; i++) {
            uint32_t c = below(&rng, n_chunks), offset = below(&rng, lengths[c]);
            uint64_t begins = start + offset;
            for (uint32_t k = 0; k < c; k++)
                begins += lengths[k];
            uint32_t left = (uint32_t)(step - begins), most = left < 12 ? left : 12;
            first[key] = begins;
            length[key] = 1 + below(&rng, most);
            testpeer_item(peer, layout, peer->key_base + key, 1, chunks[c], offset, length[key]);
            key++;
        }
        testpeer_push(peer);
        embed_settle(&embed);
        uint32_t n = 1 + below(&rng, 30);
        struct testpeer_answer *answer = testpeer_await(peer, testpeer_sample(peer, "t", n, 0, flags));
        assert_int_equal(answer->status, RP_OK);
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

TEST(rows_of_random_items, begin, end)
{
    sample_random_items(0);
}

/* The same, and what is not small is read out of shared memory. Those who read it and those who do not take turns. */
TEST(rows_in_shared_memory, begin, end)
{
    testpeer_map(peer);
    sample_random_items(SHARED);
}

TEST(rows_packed_in_shared_memory, begin, end)
{
    testpeer_map(peer);
    sample_random_items(PACKED);
}

TEST(rows_with_their_header_in_shared_memory, begin, end)
{
    testpeer_map(peer);
    sample_random_items(PACKED | HEAD);
}

/* A large chunk of which little is needed is not sent whole, and items that share rows share them in the reply. */
TEST(few_rows_of_a_large_chunk, begin, end)
{
    uint64_t first[3] = {4, 6, 400}, step = 0;
    uint32_t length[3] = {5, 5, 5};
    uint64_t chunk = add_chunk(&step, 500, true);
    for (uint32_t i = 0; i < 3; i++)
        testpeer_item(peer, layout, peer->key_base + i, 1, chunk, (uint32_t)first[i], length[i]);
    testpeer_push(peer);
    embed_settle(&embed);
    const uint64_t keys[] = {peer->key_base, peer->key_base + 1, peer->key_base + 2};
    struct testpeer_answer *answer = testpeer_fetch(peer, "t", 3, keys);
    assert_int_equal(answer->status, RP_OK);
    assert_int_equal(check_items(answer, first, length), 15);
    assert_int_equal(rows_sent(answer), 12); /* 4 to 10 once, and 400 to 404 */
}

/* Inserts so many items, each over a chunk of its own of 10 steps, that nothing of before is left in the table. */
static void replace_all(uint32_t *key)
{
    for (uint32_t i = 0; i < 100; i++) {
        uint64_t step = peer->step;
        peer->oldest_chunk = add_chunk(&step, 10, false);
        testpeer_item(peer, layout, peer->key_base + (*key)++, 1, peer->oldest_chunk, 0, 10);
        testpeer_push(peer);
    }
    embed_settle(&embed);
}

/* What a reply says about shared memory, after the reply is gone. */
struct loan {
    uint64_t key[10], place[10], stamp[10];
    size_t n;
};

static uint32_t valid_stamps(const uint8_t *memory, const struct loan *loan)
{
    uint32_t n = 0;
    for (size_t i = 0; i < loan->n; i++)
        n += memcmp(memory + loan->place[i] - 64, &loan->stamp[i], 8) == 0;
    return n;
}

static struct loan take_loan(const struct testpeer_answer *answer)
{
    const Replay__SampleReply *reply = answer->reply->sample;
    struct loan loan = {.n = reply->n_place};
    assert_int_equal(rows_sent(answer), 0);
    assert_int_equal(reply->n_key, 10);
    assert_in_range(loan.n, 1, 10);
    memcpy(loan.key, reply->key, sizeof loan.key);
    memcpy(loan.place, reply->place, loan.n * 8);
    memcpy(loan.stamp, reply->stamp, loan.n * 8);
    testpeer_forget(peer);
    return loan;
}

/* What a client reads stays until the client says that it has read it, though the items are gone; a retry gets the same as bytes. */
TEST(a_loan, begin, end)
{
    const uint8_t *memory = testpeer_map(peer);
    uint32_t key = 0;
    replace_all(&key);
    uint64_t id = testpeer_sample(peer, "t", 10, 0, SHARED);
    struct loan loan = take_loan(testpeer_await(peer, id));
    replace_all(&key);
    assert_int_equal(valid_stamps(memory, &loan), loan.n);
    Replay__Sample again = REPLAY__SAMPLE__INIT;
    again.table = testpeer_text("t");
    again.count = 10;
    again.has_timeout_ms_case = REPLAY__SAMPLE__HAS_TIMEOUT_MS_TIMEOUT_MS;
    TESTPEER_REQUEST(request, SAMPLE, sample, &again);
    testpeer_ask_with(peer, &request, id, NULL, 0);
    const struct testpeer_answer *bytes = testpeer_await(peer, id);
    assert_int_equal(bytes->reply->sample->n_place, 0);
    assert_int_equal(bytes->reply->sample->n_key, 10);
    assert_memory_equal(bytes->reply->sample->key, loan.key, sizeof loan.key);
    testpeer_settled(peer, 0);
    assert_int_equal(valid_stamps(memory, &loan), 0);
}
