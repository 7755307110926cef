/* Chunks that lie in the memory of their writer: what the broker maps, what it copies, and what it does if the writer lies. */
#include <pthread.h>
#include <stdatomic.h>

#include "proto/base/memfile.h"
#include "proto/wire/codec.h"
#include "tests/support/testpeer.h"

#define TABLE "  - {name: t, max_size: 1000, sampler: {kind: fifo}, max_times_sampled: 1, limiter: {kind: none}}\n"
#define TIMES "session: {expiry: 10s}\n"
#define SIZE (UINT64_C(1) << 20)
#define BYTES 40000u

static const struct testpeer_column column = {"x", "uint8", 1, {BYTES}, BYTES};

static Replay__Arena arena_of(const struct memfile *file)
{
    struct memfile_name name = memfile_name(file);
    Replay__Arena arena = REPLAY__ARENA__INIT;
    arena.pid = name.pid;
    arena.fd = name.fd;
    arena.size = name.size;
    arena.nonce = name.nonce;
    return arena;
}

/* Opens a session that offers this memory. */
static struct testpeer *writer_of(struct embed *embed, Replay__Arena *offer)
{
    struct testpeer *peer = testpeer_new(embed);
    peer->memory = offer;
    testpeer_open_with(peer, false, &column, 1);
    return peer;
}

/* Pushes an item whose chunk lies at a place; frame: the bytes of its frame, if the peer sends frames. */
static void insert_at(struct testpeer *peer, uint64_t key, uint64_t place, const void *frame)
{
    uint32_t layout = testpeer_plain(peer, "t");
    uint64_t chunk = testpeer_chunk(peer, 1, &frame, true);
    testpeer_place(peer, place);
    testpeer_item(peer, layout, key, 1, chunk, 0, 1);
    peer->oldest_chunk = chunk + 1;
    testpeer_pushed(peer);
}

static void assert_sampled(struct testpeer *peer, const void *bytes)
{
    struct testpeer_answer *answer = testpeer_sampled(peer, "t", 1);
    assert_int_equal(answer->status, RP_OK);
    assert_int_equal(answer->n_payload, 1);
    assert_int_equal(zmq_msg_size(&answer->payload[0]), BYTES);
    assert_memory_equal(zmq_msg_data(&answer->payload[0]), bytes, BYTES);
    testpeer_forget(peer);
}

EMBED_TEST(a_chunk_is_copied_from_the_memory_of_its_writer, TABLE, TIMES)
{
    const struct sessions *sessions = &embed->broker->sessions;
    struct memfile file;
    static uint8_t data[BYTES], other[BYTES];
    assert_true(memfile_make(&file, SIZE));
    Replay__Arena offer = arena_of(&file);
    struct testpeer *peer = writer_of(embed, &offer);
    assert_int_equal(sessions->n_borrowed, 1);
    memset(data, 7, BYTES);
    memset(other, 9, BYTES);
    memcpy(file.memory + 4096, data, BYTES);
    memcpy(file.memory + SIZE - BYTES, other, BYTES);
    insert_at(peer, 1, 4096, data);
    insert_at(peer, 2, SIZE - BYTES, other);
    memset(file.memory + 4096, 0, SIZE - 4096); /* the broker has its own copy */
    assert_true(LIST_FIRST(&sessions->list)->received_bytes > 2 * BYTES &&
                LIST_FIRST(&sessions->list)->received_bytes == peer->sent_bytes);
    assert_int_equal(LIST_FIRST(&sessions->list)->returned_bytes, peer->sent_bytes);
    assert_sampled(peer, data);
    assert_sampled(peer, other);
    peer->frames = true; /* a message that was made for such a broker, and is sent to one that is not */
    insert_at(peer, 3, 4096, data);
    assert_sampled(peer, data);
    embed_advance(embed, 10001); /* the session expires */
    assert_int_equal(sessions->n_borrowed, 0);
    assert_int_equal(testpeer_resume(peer, 4, false)->status, RP_OK);
    assert_int_equal(sessions->n_borrowed, 1);
    peer->memory = NULL;
    assert_int_equal(testpeer_resume(peer, 4, false)->status, RP_OK);
    assert_int_equal(sessions->n_borrowed, 0);
    memfile_fini(&file);
}

/* The session goes on after each lie. */
EMBED_TEST(places_that_are_not_there, TABLE, TIMES)
{
    struct memfile file;
    static uint8_t data[BYTES];
    assert_true(memfile_make(&file, SIZE));
    Replay__Arena offer = arena_of(&file);
    struct testpeer *peer = writer_of(embed, &offer);
    const uint64_t places[] = {SIZE - BYTES + 1, SIZE - 1, SIZE, SIZE + 1, UINT64_MAX, UINT64_MAX - BYTES + 1};
    uint32_t n = sizeof places / sizeof places[0];
    for (uint32_t i = 0; i < n; i++)
        insert_at(peer, i, places[i], data);
    assert_int_equal(embed_table(embed, "t")->in.size, 0);
    struct testpeer_answer *answer = testpeer_heartbeat(peer, 0, false);
    assert_int_equal(answer->reply->credit->n_rejections, n);
    for (uint32_t i = 0; i < n; i++)
        assert_int_equal(answer->reply->credit->rejections[i]->status, RP_BAD_MESSAGE);
    assert_int_equal(embed->broker->store.chunks, 0);
    insert_at(peer, 100, 0, data); /* the nonce is data like any other */
    assert_int_equal(embed_table(embed, "t")->in.size, 1);
    struct testpeer *none = writer_of(embed, NULL);
    insert_at(none, 101, 4096, data);
    answer = testpeer_heartbeat(none, 0, false);
    assert_int_equal(answer->reply->credit->n_rejections, 1);
    assert_int_equal(embed_table(embed, "t")->in.size, 1);
    memfile_fini(&file);
}

/* A message costs its writer little, whatever it says about its chunks. What it claims beyond the limit is not counted, and a message
 * that is sent again has the same limit. */
EMBED_TEST(a_message_that_claims_more_than_it_may, TABLE, TIMES "max_message_bytes: 64KiB\n")
{
    const struct sessions *sessions = &embed->broker->sessions;
    static uint8_t data[BYTES];
    struct memfile file;
    assert_true(memfile_make(&file, SIZE));
    Replay__Arena offer = arena_of(&file);
    struct testpeer *peer = writer_of(embed, &offer);
    uint32_t layout = testpeer_plain(peer, "t");
    insert_at(peer, 1, 4096, data);
    assert_int_equal(embed_table(embed, "t")->in.size, 1);
    const void *frame = data;
    uint64_t chunk = testpeer_chunk(peer, 1, &frame, true);
    testpeer_place(peer, 4096);
    peer->draft->block_size[0] = UINT32_MAX;
    testpeer_item(peer, layout, 2, 1, chunk, 0, 1);
    testpeer_pushed(peer);
    assert_in_range(LIST_FIRST(&sessions->list)->received_bytes, 64 << 10, 256 << 10);
    embed_advance(embed, 10001); /* the session expires: all messages may come again */
    assert_int_equal(testpeer_resume(peer, 1, false)->status, RP_OK);
    peer->number = 0;
    for (uint32_t i = 0; i < 2; i++) {
        chunk = testpeer_chunk(peer, 1, &frame, true);
        testpeer_place(peer, 4096);
        testpeer_item(peer, layout, 10 + i, 1, chunk, 0, 1);
    }
    testpeer_pushed(peer);
    assert_int_equal(embed_table(embed, "t")->in.size, 1);
    assert_int_equal(embed->broker->store.chunks, 1);
    memfile_fini(&file);
}

/* A broker of root may open all files, and must not read those of others for whoever names them. */
EMBED_TEST(memory_of_another_user, TABLE, TIMES)
{
    struct memfile file;
    static uint8_t data[BYTES];
    assert_true(memfile_make(&file, SIZE));
    if (fchown(file.fd, 65534, 65534) != 0) {
        memfile_fini(&file);
        skip();
    }
    Replay__Arena offer = arena_of(&file);
    struct testpeer *peer = writer_of(embed, &offer);
    assert_int_equal(embed->broker->sessions.n_borrowed, 0);
    peer->frames = true;
    insert_at(peer, 1, 4096, data); /* goes on by the socket */
    assert_int_equal(embed_table(embed, "t")->in.size, 1);
    memfile_fini(&file);
}

static void assert_refused(struct embed *embed, Replay__Arena *offer)
{
    static uint8_t data[BYTES];
    struct testpeer *peer = writer_of(embed, offer);
    assert_int_equal(embed->broker->sessions.n_borrowed, 0);
    peer->frames = true;
    uint64_t before = embed_table(embed, "t")->in.size;
    insert_at(peer, before + 1, 4096, data); /* goes on by the socket */
    assert_int_equal(embed_table(embed, "t")->in.size, before + 1);
}

/* What else an offer can be is in tests/unit/client/test_arena.c: both map it with memfile_map. */
EMBED_TEST(memory_that_is_not_what_its_writer_says, TABLE, TIMES)
{
    struct memfile file, large;
    assert_true(memfile_make(&file, SIZE) && memfile_make(&large, UINT64_C(2) << 30));
    Replay__Arena other = arena_of(&file), too_large = arena_of(&large);
    other.nonce++;
    assert_refused(embed, &other);
    assert_refused(embed, &too_large);
    memfile_fini(&file);
    memfile_fini(&large);
}

EMBED_TEST(a_broker_that_shares_nothing_reads_nothing, TABLE, "shared_memory: false\n")
{
    struct memfile file;
    assert_true(memfile_make(&file, SIZE));
    Replay__Arena offer = arena_of(&file);
    assert_refused(embed, &offer);
    memfile_fini(&file);
}

/* ---- memory that changes while it is read ---- */

#define ROUNDS 2000u

struct vandal {
    uint8_t *at;
    uint32_t bytes;
    atomic_bool stop;
};

static void *change(void *ctx)
{
    struct vandal *self = ctx;
    volatile uint8_t *at = self->at;
    for (uint32_t i = 0; !atomic_load_explicit(&self->stop, memory_order_relaxed); i++) {
        uint8_t good = at[i % self->bytes];
        at[i % self->bytes] = (uint8_t)~good;
        for (volatile uint32_t k = 0; k < i % 1000; k++)
            ;
        at[i % self->bytes] = good;
        for (volatile uint32_t k = 0; i % 64 == 0 && k < 200000; k++)
            ; /* now and then it lets some chunks be */
    }
    return NULL;
}

/* Whatever is accepted can be decoded. */
EMBED_TEST(a_chunk_that_changes_while_it_is_read, TABLE, TIMES)
{
    const struct codec_shape shape = {1, true, BYTES, 1, 1};
    struct codec_scratch scratch = {0};
    struct memfile file;
    static uint8_t raw[BYTES];
    uint8_t codec;
    size_t size = 0;
    assert_true(memfile_make(&file, SIZE));
    for (uint32_t i = 0; i < BYTES; i++)
        raw[i] = (uint8_t)(i / 100);
    assert_int_equal(codec_encode(&scratch, RP_CODEC_LZ4, &shape, raw, file.memory + 4096, &size, &codec, &err), RP_OK);
    assert_int_equal(codec, RP_CODEC_LZ4);
    Replay__Arena offer = arena_of(&file);
    struct testpeer *peer = writer_of(embed, &offer);
    uint32_t layout = testpeer_plain(peer, "t"), taken = 0;
    struct vandal vandal = {.at = file.memory + 4096, .bytes = (uint32_t)size};
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, change, &vandal), 0);
    for (uint64_t key = 1; key <= ROUNDS; key++) {
        const void *frame = raw;
        uint64_t chunk = testpeer_chunk(peer, 1, &frame, true);
        testpeer_place(peer, 4096);
        peer->draft->block_size[0] = (uint32_t)size;
        peer->draft->block_codec[0] = codec;
        testpeer_item(peer, layout, key, 1, chunk, 0, 1);
        peer->oldest_chunk = chunk + 1;
        testpeer_pushed(peer);
        if (embed_table(embed, "t")->in.size == 0)
            continue;
        taken++;
        struct testpeer_answer *answer = testpeer_sampled(peer, "t", 1);
        assert_int_equal(
            codec_check(codec, &shape, zmq_msg_data(&answer->payload[0]), zmq_msg_size(&answer->payload[0]), &err),
            RP_OK);
        testpeer_forget(peer);
    }
    atomic_store(&vandal.stop, true);
    pthread_join(thread, NULL);
    print_message("%u of %u accepted\n", taken, ROUNDS);
    assert_true(taken > 0);
    codec_scratch_fini(&scratch);
    memfile_fini(&file);
}
