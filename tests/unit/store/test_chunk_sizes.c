/* Chunks of every size on their way from a writer to a segment: packed or in a frame of their own, first in a segment or
 * later, with a journal, with checkpoints alone, and with nothing but cold storage. What is read back is what was sent,
 * also after a restart where there is one to restart from. */

#include "broker/journal/stream.h"
#include "tests/support/testpeer.h"
#include "tests/support/twin.h"

#define TABLE "  - {name: t, max_size: 1000, sampler: {kind: uniform}, remover: {kind: fifo}}"
#define KIB 1024u
#define MIB (1024u * KIB)

enum mode { JOURNAL, CHECKPOINT, STORAGE };

/* Around the sizes at which a chunk is split from its head, kept as a message, copied by the disk writer, and as large as a
 * record. */
static const uint32_t sizes[] = {
    MIB,          1,         MIB - 1,  7,          MIB + 1,   255,           MIB - 64,        4 * KIB, MIB - 200,
    32 * KIB - 1, MIB - 500, 32 * KIB, MIB - 1000, 300 * KIB, MIB - 4 * KIB, 512 * KIB - 100, 2 * MIB, 512 * KIB,
    3 * MIB + 5,  4 * MIB};
enum { N = sizeof sizes / sizeof sizes[0] };

static struct twin_folder folder;

static void start(struct embed *embed, enum mode mode)
{
    static const char *const keys[] = {"journal: never\ncheckpoint: {every: 0s}\n",
                                       "journal: off\ncheckpoint: {every: 0s}\n",
                                       "journal: off\ncheckpoint: {keep: 0}\nstorage: {memory: 64KiB}\n"};
    embed_start(embed, TABLE, textf("folder: %s\n%s", folder.path, keys[mode]));
}

static void settle(struct embed *embed)
{
    struct stream *stream = embed->broker->stream;
    for (uint32_t ms = 0; ms < WAIT; ms++) {
        embed_settle(embed);
        assert_true(stream->out.used <= stream->out.capacity);
        if (stream->durable >= stream_now(stream))
            return;
        zmq_poll(NULL, 0, 1);
    }
    fail_msg("the disk does not keep up");
}

/* What lies in memory only is brought to the disk. Gives how many chunks are there. */
static uint32_t bring_to_disk(struct embed *embed, enum mode mode)
{
    if (mode == CHECKPOINT)
        twin_checkpoint(embed);
    for (uint32_t i = 0; mode == STORAGE && i < 4; i++)
        embed_advance(embed, 1100);
    settle(embed);
    uint32_t n = 0;
    const struct contents *in = &embed_table(embed, "t")->in;
    for (uint32_t slot = 0; slot < in->high; slot++)
        n += in->items[slot].span.n && span_chunks(&in->items[slot].span)[0]->at;
    return n;
}

/* What comes next is the first in its segment. */
static void new_segment(struct stream *stream)
{
    uint64_t bytes = stream->segment_bytes;
    stream->segment_bytes = FILE_HEAD_BYTES + 1;
    stream_flush(stream);
    stream->segment_bytes = bytes;
}

static void insert(struct embed *embed, uint64_t key, uint32_t bytes, bool packed, bool first)
{
    const struct testpeer_column column = {"x", "uint8", 1, {bytes}, bytes};
    struct testpeer *peer = testpeer_new(embed);
    testpeer_open_with(peer, false, &column, 1);
    peer->step = key; /* by which its bytes are known */
    settle(embed);
    if (first)
        new_segment(embed->broker->stream);
    testpeer_insert_large(peer, "t", key, bytes, !packed);
    settle(embed);
    testpeer_close(peer);
}

static void check(struct embed *embed)
{
    struct testpeer *peer = testpeer_new(embed);
    for (uint64_t key = 0; key < N; key++) {
        struct testpeer_answer *answer = testpeer_fetch(peer, "t", 1, &key);
        assert_int_equal(answer->status, RP_OK);
        uint32_t rows, row_bytes;
        free(sampled_rows(answer, 0, 0, &rows, &row_bytes));
        assert_int_equal(rows, 1);
        assert_int_equal(row_bytes, sizes[key]);
        sampled_known(answer, 0);
        testpeer_forget(peer);
    }
    testpeer_close(peer);
}

static void every_size(enum mode mode, bool packed, bool first)
{
    struct embed embed;
    twin_folder_init(&folder);
    start(&embed, mode);
    for (uint32_t i = 0; i < N; i++) {
        insert(&embed, i, sizes[i], packed, first);
        if (first)
            bring_to_disk(&embed, mode);
    }
    uint32_t there = bring_to_disk(&embed, mode);
    assert_true(there >= (mode == STORAGE ? 10 : N));
    assert_true(!first || embed.broker->stream->segments.n >= 10); /* those with the small chunks may be gone again */
    check(&embed);
    twin_kill(&embed);
    if (mode != STORAGE) {
        start(&embed, mode);
        check(&embed);
        twin_kill(&embed);
    }
    twin_folder_fini(&folder);
}

TEST(every_size_in_every_mode)
{
    for (int mode = JOURNAL; mode <= STORAGE; mode++)
        for (int packed = 0; packed < 2; packed++)
            for (int first = 0; first < 2; first++)
                every_size((enum mode)mode, packed, first);
}
