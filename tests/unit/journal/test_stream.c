/* The stream: what is appended is read back from the segments, chunks lie where they say, and live bytes add up. */

#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "broker/config/config.h"
#include "broker/journal/reader.h"
#include "broker/journal/stream.h"
#include "broker/loop/loop.h"
#include "broker/peer/peers.h"
#include "broker/table/table.h"
#include "tests/support/clock_manual.h"
#include "tests/support/diskfile.h"
#include "tests/support/naive.h"
#include "tests/support/tempdir.h"

/* The rooms that a stream uses, all of them empty. */
struct desk {
    struct broker_config config;
    struct clock_manual manual;
    struct loop loop;
    struct store store;
    struct tables tables;
    struct layouts layouts;
    struct peers peers;
    struct stream *stream;
};

/* again: in the folder that it had before. */
static void desk_open(struct desk *self, bool again, bool journal)
{
    assert_int_equal(again ? 0 : tempdir_enter(NULL), 0);
    *self = (struct desk){0};
    self->config.folder = tempdir;
    self->config.journal_ns = journal ? JOURNAL_NEVER : JOURNAL_OFF;
    self->config.checkpoint_keep = 1;
    self->config.memory_limit = 1 << 30;
    self->manual.now_ns = NS_PER_S;
    self->loop.clock = clock_manual(&self->manual);
    peers_init(&self->peers, &self->loop, &self->config, NULL);
    struct durable_state state = {
        .config = &self->config,
        .loop = &self->loop,
        .store = &self->store,
        .tables = &self->tables,
        .layouts = &self->layouts,
        .peers = &self->peers,
    };
    store_init(&self->store, UINT64_C(1) << 32);
    ok(stream_open(&self->stream, &state, &err));
}

/* Until all that was appended is durable. */
static void desk_settle(struct desk *self)
{
    stream_hand_over(self->stream);
    for (uint32_t i = 0; i < WAIT && self->stream->durable < stream_now(self->stream); i++) {
        zmq_pollitem_t item = {disk_writer_socket(self->stream->disk_writer), 0, ZMQ_POLLIN, 0};
        zmq_poll(&item, 1, 5);
        stream_run(self->stream);
    }
    assert_int_equal(self->stream->durable, stream_now(self->stream));
    assert_int_equal(self->stream->out.used, 0);
}

static void desk_close(struct desk *self, bool remove)
{
    stream_close(&self->stream, 2000);
    self->store.freed = NULL;
    store_fini(&self->store);
    assert_int_equal(remove ? tempdir_leave(NULL) : 0, 0);
}

static uint64_t each_entry(struct desk *self, uint64_t number, void (*fn)(void *, const struct entry_view *), void *ctx)
{
    return diskfile_each(&self->stream->folder, DISK_SEGMENT, number, fn, ctx);
}

/* Entries of the test carry a running number, a size and bytes that follow from both. */
struct ledger {
    uint64_t written, read, starts;
    size_t extended;
};

static void fill(uint8_t *body, uint64_t number, size_t size)
{
    for (size_t i = 0; i < size; i++)
        body[i] = (uint8_t)(number * 31 + i);
}

static void append(struct desk *self, struct ledger *ledger, size_t size)
{
    uint8_t *body = recorder_entry(&self->stream->out, ENTRY_REPLY, (uint32_t)(ledger->written % 7), size + 8);
    assert_int_equal((uintptr_t)body % 8, 0);
    memcpy(body, &ledger->written, 8);
    fill(body + 8, ledger->written, size);
    if (size % 8 == 0) {
        uint8_t *more = recorder_extend(&self->stream->out, 16);
        if (more) {
            fill(more, ledger->written, 16);
            ledger->extended++;
        }
    }
    ledger->written++;
}

static void check_entry(void *ctx, const struct entry_view *entry)
{
    struct ledger *ledger = ctx;
    ledger->starts += entry->type == ENTRY_START;
    if (entry->type != ENTRY_REPLY)
        return;
    uint64_t number;
    memcpy(&number, entry->body, 8);
    assert_int_equal(number, ledger->read);
    assert_int_equal(entry->table, number % 7);
    size_t size = entry->size - 8;
    for (size_t i = 0; i < size; i++) {
        uint8_t first = (uint8_t)(number * 31 + i), second = (uint8_t)(number * 31 + i + 16 - size);
        assert_true(entry->body[8 + i] == first || (size >= 16 && i >= size - 16 && entry->body[8 + i] == second));
    }
    ledger->read++;
}

TEST(what_is_appended_is_read_back)
{
    struct desk desk;
    struct rng rng = naive_rng(__func__);
    struct ledger ledger = {0};
    desk_open(&desk, false, true);
    desk.stream->segment_bytes = 2 << 20;
    stream_begin(desk.stream);
    for (uint32_t turn = 0; turn < 300; turn++) {
        uint32_t n = (uint32_t)(rng_next(&rng) % 40);
        for (uint32_t i = 0; i < n; i++)
            append(&desk, &ledger, rng_next(&rng) % (i % 16 == 0 ? 20000 : 200));
        if (turn % 100 == 7)
            append(&desk, &ledger, RECORD_BYTES - 100 + rng_next(&rng) % 200);
        stream_run(desk.stream);
        stream_flush(desk.stream);
    }
    desk_settle(&desk);
    assert_true(desk.stream->segments.n > 2);
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < desk.stream->segments.n; i++) {
        const struct segment_use *use = &desk.stream->segments.list[i];
        assert_int_equal(use->number, i + 1);
        assert_int_equal(use->bytes, each_entry(&desk, use->number, check_entry, &ledger));
        bytes += use->bytes;
    }
    assert_int_equal(ledger.read, ledger.written);
    assert_int_equal(ledger.starts, desk.stream->segments.n);
    assert_true(ledger.extended > 100);
    assert_int_equal(desk.stream->segments.total_bytes, bytes);
    assert_int_equal(desk.stream->backlog, 0);
    /* The next one goes on behind the last. */
    uint32_t n = desk.stream->segments.n;
    desk_close(&desk, false);
    desk_open(&desk, true, true);
    assert_int_equal(desk.stream->segments.n, n);
    assert_int_equal(desk.stream->segments.total_bytes, bytes);
    stream_begin(desk.stream);
    assert_int_equal(desk.stream->segment, n + 1);
    desk_close(&desk, true);
}

/* ---- chunks ---- */

static struct chunk *make_chunk(struct desk *self, uint32_t bytes, uint8_t with)
{
    uint8_t *data = malloc(bytes + 1);
    memset(data, with, bytes);
    zmq_msg_t message;
    zmq_msg_init_size(&message, bytes);
    memset(zmq_msg_data(&message), with, bytes);
    struct chunk *chunk = store_add(&self->store, 2, data, bytes, bytes, &message);
    zmq_msg_close(&message);
    free(data);
    chunk_block_sizes(chunk)[0] = bytes / 2;
    chunk_block_sizes(chunk)[1] = bytes - bytes / 2;
    chunk_block_codecs(chunk)[0] = chunk_block_codecs(chunk)[1] = with;
    chunk->step = 1000u + with;
    chunk->length = 3;
    chunk->session = 77;
    chunk->episode = with;
    return chunk;
}

/* Its checksum is right, or it would not be read. */
static rp_status check_view(void *ctx, uint64_t at, const struct chunk_view *view, rp_error *error)
{
    const struct chunk *chunk = ctx;
    uint8_t with = (uint8_t)chunk->episode;
    (void)error;
    assert_true(at == chunk->at && at % 8 == 0);
    assert_int_equal(view->head->step, 1000u + with);
    assert_int_equal(view->head->session, 77);
    assert_int_equal(view->head->bytes, chunk->bytes);
    assert_int_equal(view->codecs[1], with);
    for (uint32_t i = 0; i < chunk->bytes; i++)
        assert_int_equal(view->data[i], with);
    return RP_OK;
}

static void check_chunk(struct desk *self, struct chunk *chunk)
{
    ok(chunks_read(&self->stream->folder, &chunk->at, 1, check_view, chunk, &err));
}

static uint64_t live(const struct desk *self)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < self->stream->segments.n; i++)
        sum += self->stream->segments.list[i].live;
    return sum;
}

static void note_first(void *ctx, const struct entry_view *entry)
{
    uint16_t *first = ctx;
    if (!*first)
        *first = entry->type;
}

/* And every segment begins with START, whatever its first chunk is like: a large one has a record of its own. */
TEST(chunks_lie_where_they_say)
{
    static const uint32_t sizes[] = {RECORD_BYTES,        0, 1, 400, 40000, RECORD_BYTES / 2 + 1, RECORD_BYTES - 80,
                                     3 * RECORD_BYTES + 5};
    enum { N = sizeof sizes / sizeof sizes[0] };
    for (int journal = 0; journal < 2; journal++) {
        struct desk desk;
        struct chunk *chunks[N];
        desk_open(&desk, false, journal);
        stream_begin(desk.stream);
        uint64_t before = 0;
        for (uint32_t i = 0; i < N; i++) {
            chunks[i] = make_chunk(&desk, sizes[i], (uint8_t)(i + 1));
            stream_chunk(desk.stream, chunks[i]);
            assert_true(chunks[i]->at > before);
            before = chunks[i]->at;
            stream_chunk(desk.stream, chunks[i]);
            assert_int_equal(chunks[i]->at, before);
        }
        desk_settle(&desk);
        for (uint32_t i = 0; i < N; i++)
            check_chunk(&desk, chunks[i]);
        uint16_t first_entry = 0;
        each_entry(&desk, desk.stream->segment, note_first, &first_entry);
        assert_int_equal(first_entry, ENTRY_START);
        uint64_t all = live(&desk);
        assert_true(all > 4 * RECORD_BYTES && all <= desk.stream->segments.total_bytes);
        /* again, in a segment of its own: the first holds nothing any more and can go */
        uint64_t first = desk.stream->segment;
        desk.stream->segment_bytes = 1;
        recorder_entry(&desk.stream->out, ENTRY_RESET, 0, 0);
        stream_flush(desk.stream);
        assert_int_equal(desk.stream->segment, first + 1);
        desk.stream->segment_bytes = 1 << 30;
        for (uint32_t i = 0; i < N; i++)
            stream_chunk_again(desk.stream, chunks[i]);
        desk_settle(&desk);
        assert_int_equal(segments_find(&desk.stream->segments, first)->live, 0);
        assert_int_equal(live(&desk), all);
        stream_remove_segment(desk.stream, first);
        assert_null(segments_find(&desk.stream->segments, first));
        stream_remove_segment(desk.stream, first + 1); /* is being written: stays */
        for (uint32_t i = 0; i < N; i++) {
            assert_int_equal(disk_number(chunks[i]->at), first + 1);
            check_chunk(&desk, chunks[i]);
            store_release(&desk.store, chunks[i]);
        }
        assert_int_equal(live(&desk), 0);
        struct stat stat;
        char path[128];
        snprintf(path, sizeof path, "%s/segment-%08llu.replay", tempdir, (unsigned long long)first);
        desk_close(&desk, false);
        assert_int_not_equal(lstat(path, &stat), 0);
        desk_open(&desk, true, journal);
        desk_close(&desk, true);
    }
}

/* Without a journal no file is made before there is a chunk. */
TEST(nothing_is_written_without_need)
{
    struct desk desk;
    desk_open(&desk, false, false);
    stream_begin(desk.stream);
    stream_flush(desk.stream);
    assert_int_equal(desk.stream->given, 0);
    desk_close(&desk, false);
    desk_open(&desk, true, false);
    assert_int_equal(desk.stream->segments.n, 0);
    desk_close(&desk, true);
}

/* A disk that cannot be written: the stream says so, small records are held back, and nothing is lost. */
TEST(a_disk_that_can_not_be_written_fills_the_stream)
{
    struct desk desk;
    struct rlimit before, limit;
    struct ledger ledger = {0};
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    desk_open(&desk, false, true);
    stream_begin(desk.stream);
    desk_settle(&desk);
    assert_false(stream_is_full(desk.stream, NULL, 0));
    limit = (struct rlimit){5000, before.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    uint64_t number = desk.stream->number;
    for (uint32_t turn = 0; turn < 1000 || !desk.stream->full; turn++) {
        append(&desk, &ledger, 200);
        stream_flush(desk.stream);
        stream_run(desk.stream);
        usleep(desk.stream->full ? 0 : 1000);
        assert_true(turn < 20000);
    }
    assert_true(desk.stream->number - number < 40);
    char why[256];
    assert_true(stream_is_full(desk.stream, why, sizeof why));
    assert_non_null(strstr(why, "File too large"));
    assert_true(stream_now(desk.stream) > desk.stream->durable);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    desk_settle(&desk);
    assert_false(stream_is_full(desk.stream, NULL, 0));
    each_entry(&desk, desk.stream->segment, check_entry, &ledger);
    assert_int_equal(ledger.read, ledger.written);
    /* nor may too much wait */
    desk.stream->backlog_most = 1000;
    append(&desk, &ledger, 4000);
    stream_hand_over(desk.stream);
    assert_true(stream_is_full(desk.stream, why, sizeof why));
    assert_non_null(strstr(why, "slow"));
    desk_settle(&desk);
    assert_false(stream_is_full(desk.stream, NULL, 0));
    desk_close(&desk, true);
}
