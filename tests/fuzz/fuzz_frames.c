/* Feeds bytes to every reader of hot headers, touches all that an accepted view promises, and compares it with what
 * protobuf-c makes of the same bytes. */
#include "proto/wire/wire.h"
#include "replay.pb-c.h"
#include "tests/fuzz/target.h"

static volatile uint64_t sink;

/* Reads every index below n, as the owner of a view may. */
static void touch_u64(const struct pb_array *a, uint32_t n)
{
    CHECK(n == 0 || a->n == n || a->n == 1);
    for (uint32_t i = 0; i < n; i++)
        sink += pb_u64(a, i);
}
static void touch_u32(const struct pb_array *a, uint32_t n)
{
    CHECK(n == 0 || a->n == n || a->n == 1);
    for (uint32_t i = 0; i < n; i++)
        sink += pb_u32(a, i);
}
static void touch_u8(const struct pb_array *a, uint32_t n)
{
    CHECK(n == 0 || a->n == n || a->n == 1);
    for (uint32_t i = 0; i < n; i++)
        sink += pb_u8(a, i);
}
static void touch_string(const struct wire_string *s)
{
    for (uint32_t i = 0; i < s->size; i++)
        sink += (uint8_t)s->data[i];
}

/* An array that protobuf-c decoded, against ours; an absent one of ours may be one 0. */
static void same_u64(const struct pb_array *a, size_t n, const void *values)
{
    CHECK(a->n == n ? n == 0 || memcmp(a->data, values, n * 8) == 0 : n == 0 && pb_u64(a, 0) == 0);
}
static void same_u32(const struct pb_array *a, size_t n, const uint32_t *values)
{
    CHECK(a->n == n ? n == 0 || memcmp(a->data, values, n * 4) == 0 : n == 0 && pb_u32(a, 0) == 0);
}

static void walk_layouts(const uint8_t *data, size_t size, uint32_t number, uint32_t count)
{
    struct pb_reader r = pb_reader(data, size);
    struct pb_field field;
    int got;
    while ((got = pb_next(&r, &field)) == 1) {
        if (field.number == number) {
            CHECK(field.wire == PB_BYTES && count > 0);
            count--;
        }
    }
    CHECK(got == 0 && count == 0);
}

/* The arrays of a message: their width, their name in both views, and how many elements they stand for. */
#define INGEST_ARRAYS(X)                                                                                               \
    X(u64, chunk_number, in.n_chunks)                                                                                  \
    X(u64, chunk_step, in.n_chunks)                                                                                    \
    X(u32, chunk_length, in.n_chunks)                                                                                  \
    X(u32, chunk_episode, in.n_chunks)                                                                                 \
    X(u32, block_size, in.block_size.n)                                                                                \
    X(u32, run_layout, in.n_runs)                                                                                      \
    X(u32, run_items, in.n_runs)                                                                                       \
    X(u64, run_first, in.n_runs)                                                                                       \
    X(u64, run_policy, in.n_runs)                                                                                      \
    X(u64, item_key, in.n_items)                                                                                       \
    X(u64, item_priority, in.n_items)                                                                                  \
    X(u64, item_chunk, in.n_items)                                                                                     \
    X(u32, item_offset, in.n_items)                                                                                    \
    X(u32, item_length, in.n_items)

#define SAMPLED_ARRAYS(X)                                                                                              \
    X(u64, key, in.n_items)                                                                                            \
    X(u64, priority, in.n_items)                                                                                       \
    X(u64, probability, in.n_items)                                                                                    \
    X(u32, times_sampled, in.n_items)                                                                                  \
    X(u64, age_ns, in.n_items)                                                                                         \
    X(u64, policy, in.n_items)                                                                                         \
    X(u64, step, in.n_items)                                                                                           \
    X(u32, session, in.n_items)                                                                                        \
    X(u32, layout, in.n_items)                                                                                         \
    X(u32, offset, in.n_items)                                                                                         \
    X(u32, length, in.n_items)                                                                                         \
    X(u32, chunks, in.n_items)                                                                                         \
    X(u32, chunk, in.chunk.n)                                                                                          \
    X(u32, chunk_length, in.chunk_length.n)                                                                            \
    X(u32, chunk_blocks, in.chunk_blocks.n)                                                                            \
    X(u32, block_size, in.block_size.n)

#define TOUCH(width, name, n) touch_##width(&in.name, n);
#define SAME(width, name, n) same_##width(&in.name, m->n_##name, m->name);
#define SAME_BYTES(name)                                                                                               \
    CHECK(in.name.n == m->name.len && (in.name.n == 0 || memcmp(in.name.data, m->name.data, in.name.n) == 0))

static void fuzz_ingest(const uint8_t *data, size_t size)
{
    struct wire_ingest in;
    if (wire_read_ingest(data, size, &in, NULL) != RP_OK)
        return;
    INGEST_ARRAYS(TOUCH)
    touch_u8(&in.block_codec, in.block_codec.n);
    uint64_t items = 0;
    for (uint32_t i = 0; i < in.n_runs; i++)
        items += pb_u32(&in.run_items, i);
    CHECK(items == in.n_items && in.packed <= in.n_chunks);
    walk_layouts(in.layouts, in.layouts_size, 7, in.n_layouts);
    Replay__Ingest *m = replay__ingest__unpack(NULL, size, data);
    if (m == NULL)
        return;
    CHECK(m->version == in.version && m->number == in.number && m->epoch == in.epoch);
    CHECK(memcmp(&m->session_hi, in.session, 8) == 0 && memcmp(&m->session_lo, in.session + 8, 8) == 0);
    CHECK(m->oldest_chunk == in.oldest_chunk && m->packed == in.packed && m->n_layouts == in.n_layouts);
    CHECK(in.n_chunks == m->n_chunk_number && in.n_runs == m->n_run_items && in.n_items == m->n_item_key);
    INGEST_ARRAYS(SAME)
    SAME_BYTES(block_codec);
    replay__ingest__free_unpacked(m, NULL);
}

static void fuzz_sample(const uint8_t *data, size_t size)
{
    struct wire_sample in;
    if (wire_read_sample(data, size, &in, NULL) != RP_OK)
        return;
    touch_string(&in.table);
    Replay__Sample *m = replay__sample__unpack(NULL, size, data);
    if (m == NULL)
        return;
    CHECK(m->count == in.count && m->distinct == in.distinct && m->flexible == in.flexible);
    CHECK(m->whole == in.whole && m->paid == in.paid && m->lease_ms == in.lease_ms);
    CHECK(strnlen(m->table, in.table.size) <= in.table.size);
    CHECK(in.has_timeout == (m->has_timeout_ms_case == REPLAY__SAMPLE__HAS_TIMEOUT_MS_TIMEOUT_MS));
    CHECK(!in.has_timeout || in.timeout_ms == m->timeout_ms);
    replay__sample__free_unpacked(m, NULL);
}

static void fuzz_keys(const uint8_t *data, size_t size)
{
    struct wire_keys in;
    if (wire_read_keys(data, size, false, &in, NULL) == RP_OK) {
        touch_string(&in.table);
        touch_u64(&in.key, in.key.n);
    }
    if (wire_read_keys(data, size, true, &in, NULL) != RP_OK)
        return;
    touch_string(&in.table);
    touch_u64(&in.key, in.key.n);
    touch_u64(&in.priority, in.key.n);
    Replay__Update *m = replay__update__unpack(NULL, size, data);
    if (m == NULL)
        return;
    same_u64(&in.key, m->n_key, m->key);
    same_u64(&in.priority, m->n_priority, m->priority);
    replay__update__free_unpacked(m, NULL);
}

static void fuzz_lease(const uint8_t *data, size_t size)
{
    struct wire_lease in;
    if (wire_read_lease(data, size, &in, NULL) != RP_OK)
        return;
    touch_string(&in.table);
    touch_u64(&in.key, in.key.n);
    Replay__Lease *m = replay__lease__unpack(NULL, size, data);
    if (m == NULL)
        return;
    same_u64(&in.key, m->n_key, m->key);
    CHECK(m->op == in.op && m->ms == in.ms);
    replay__lease__free_unpacked(m, NULL);
}

static void touch_items(const struct wire_sampled *in)
{
    uint64_t refs = 0;
    for (uint32_t i = 0; i < in->n_items; i++) {
        CHECK(pb_u32(&in->layout, i) < in->n_layouts);
        refs += pb_u32(&in->chunks, i);
    }
    CHECK(in->chunk.n == 0 ? refs == in->n_chunks : refs == in->chunk.n);
    for (uint32_t i = 0; i < in->chunk.n; i++)
        CHECK(pb_u32(&in->chunk, i) < in->n_chunks);
    CHECK(in->packed <= in->n_chunks);
    walk_layouts(in->layouts, in->layouts_size, 20, in->n_layouts);
}

static void touch_blocks(const struct wire_sampled *in)
{
    /* A few bytes may stand for millions of chunks: look at the first and last. */
    uint32_t block = 0;
    for (uint32_t chunk = 0; chunk < in->n_chunks; chunk++) {
        uint32_t blocks = pb_u32(&in->chunk_blocks, chunk);
        sink += pb_u32(&in->chunk_length, chunk);
        if (chunk < 1000 || chunk + 1000 > in->n_chunks) {
            for (uint32_t i = 0; i < blocks; i++) {
                sink += in->block_column.data[in->block_column.n == in->n_blocks ? block + i : i];
                sink += pb_u8(&in->block_codec, block + i) + pb_u32(&in->block_size, block + i);
            }
        } else if (in->chunk_blocks.n == 1) {
            chunk = in->n_chunks - 1000;
            block = chunk * blocks;
        }
        block += blocks;
    }
    CHECK(block == in->n_blocks);
}

static void fuzz_sampled(const uint8_t *data, size_t size)
{
    struct wire_sampled in;
    if (wire_read_sampled(data, size, &in, NULL) != RP_OK)
        return;
    SAMPLED_ARRAYS(TOUCH)
    touch_items(&in);
    touch_blocks(&in);
    Replay__SampleReply *m = replay__sample_reply__unpack(NULL, size, data);
    if (m == NULL)
        return;
    CHECK(in.n_items == m->n_key);
    SAMPLED_ARRAYS(SAME)
    SAME_BYTES(block_column);
    SAME_BYTES(block_codec);
    CHECK(m->packed == in.packed && m->table_size == in.table_size && m->waited_ns == in.waited_ns);
    CHECK(m->partial == in.partial && m->n_layouts == in.n_layouts);
    CHECK(memcmp(&m->mass, &in.mass, sizeof in.mass) == 0 && m->room == in.room);
    replay__sample_reply__free_unpacked(m, NULL);
}

static void fuzz_request(const uint8_t *data, size_t size)
{
    struct wire_request in;
    if (wire_read_request(data, size, &in, NULL) != RP_OK)
        return;
    CHECK(in.body == 0 ? in.data == NULL && in.size == 0 : in.body >= 16);
    fuzz_sample(in.data, in.size);
    fuzz_keys(in.data, in.size);
    fuzz_lease(in.data, in.size);
    Replay__Request *m = replay__request__unpack(NULL, size, data);
    if (m == NULL)
        return;
    CHECK(m->version == in.version && m->id == in.id && m->client == in.client && m->settled == in.settled);
    CHECK(in.body > REPLAY__REQUEST__BODY_LEASE ? m->body_case == 0 : m->body_case == in.body);
    replay__request__free_unpacked(m, NULL);
}

static void fuzz_reply(const uint8_t *data, size_t size)
{
    struct wire_reply in;
    if (wire_read_reply(data, size, &in, NULL) != RP_OK)
        return;
    touch_string(&in.text);
    fuzz_sampled(in.data, in.size);
    Replay__Reply *m = replay__reply__unpack(NULL, size, data);
    if (m == NULL)
        return;
    CHECK(m->version == in.version && m->id == in.id && m->status == in.status);
    CHECK(m->body_case == 0 || m->body_case == in.body);
    replay__reply__free_unpacked(m, NULL);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_request(data, size);
    fuzz_reply(data, size);
    fuzz_ingest(data, size);
    fuzz_sample(data, size);
    fuzz_keys(data, size);
    fuzz_sampled(data, size);
    return 0;
}
