/* Golden frames in both directions, agreement with protobuf-c, and what is refused. RP_GOLDEN_WRITE=1 writes the files
 * in tests/golden/ anew from the frames that this program builds. tests/fuzz/fuzz_frames.c has the same frames among
 * its seeds, cuts them at every byte, damages them, and compares every field of a view with what protobuf-c reads. */
#include "proto/wire/wire.h"

#include "replay.pb-c.h"
#include "tests/support/facts.h"

#define COUNT(a) (sizeof(a) / sizeof(a)[0])

static const uint8_t session[16] = {0x10, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17,
                                    0x18, 0x19, 0x1a, 0x1b, 0x1c, 0x1d, 0x1e, 0x1f};

/* ---- golden files */

struct frame {
    uint8_t data[4096];
    size_t size;
};

static void golden_path(char *path, size_t size, const char *name)
{
    const char *root = getenv("RP_SOURCE_DIR");
    snprintf(path, size, "%s/tests/golden/%s.hex", root != NULL ? root : ".", name);
}

/* '#' begins a comment; the rest is hexadecimal digits in pairs. */
static void golden_read(const char *name, struct frame *out)
{
    char path[4096], line[512];
    golden_path(path, sizeof path, name);
    FILE *file = fopen(path, "r");
    if (file == NULL)
        fail_msg("cannot open %s (set RP_SOURCE_DIR to the root of the repository)", path);
    out->size = 0;
    while (fgets(line, sizeof line, file) != NULL) {
        unsigned byte;
        int used;
        for (const char *at = line; *at != '#' && sscanf(at, " %2x%n", &byte, &used) == 1; at += used) {
            assert_true(out->size < sizeof out->data);
            out->data[out->size++] = (uint8_t)byte;
        }
    }
    fclose(file);
}

static void golden_write(const char *name, const char *comment, const struct text *w)
{
    char path[4096];
    golden_path(path, sizeof path, name);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fprintf(file, "# %s\n", comment);
    for (size_t i = 0; i < w->size; i++)
        fprintf(file, "%02x%s", w->bytes[i], i % 32 == 31 || i + 1 == w->size ? "\n" : " ");
    fclose(file);
}

/* Our writer's bytes are the golden ones; protobuf-c reads them and writes the same bytes again. Frees w. */
static void golden_check(const char *name, const char *comment, struct text *w, const ProtobufCMessageDescriptor *type,
                         struct frame *golden)
{
    if (getenv("RP_GOLDEN_WRITE") != NULL)
        golden_write(name, comment, w);
    golden_read(name, golden);
    assert_false(w->failed);
    assert_int_equal(w->size, golden->size);
    assert_memory_equal(w->data, golden->data, golden->size);
    text_fini(w);

    ProtobufCMessage *message = protobuf_c_message_unpack(type, NULL, golden->size, golden->data);
    assert_non_null(message);
    assert_int_equal(message->n_unknown_fields, 0);
    uint8_t again[4096];
    assert_int_equal(protobuf_c_message_get_packed_size(message), golden->size);
    assert_int_equal(protobuf_c_message_pack(message, again), golden->size);
    assert_memory_equal(again, golden->data, golden->size);
    protobuf_c_message_free_unpacked(message, NULL);
}

/* ---- encoded layouts, as their owners make them with protobuf-c */

static void put_layout(struct text *w, uint32_t number, uint32_t id, const char *table)
{
    Replay__Field obs = REPLAY__FIELD__INIT, action = REPLAY__FIELD__INIT;
    Replay__Field *fields[] = {&obs, &action};
    Replay__Layout layout = REPLAY__LAYOUT__INIT;
    obs.name = "observation";
    obs.count = 2;
    action.name = "action";
    action.column = 1;
    action.start = -1;
    action.count = 1;
    action.squeeze = 1;
    layout.id = id;
    layout.table = (char *)table;
    layout.n_fields = 2;
    layout.fields = fields;
    uint8_t bytes[256];
    pb_put_bytes(w, number, bytes, replay__layout__pack(&layout, bytes));
}

/* ---- ingest */

static void write_ingest_one(struct text *w)
{
    wire_write_ingest(w, &(struct wire_ingest_out){
                             .session = session,
                             .epoch = 3,
                             .number = 9,
                             .oldest_chunk = 41,
                             .n_chunks = 1,
                             .n_columns = 2,
                             .packed = 1,
                             .chunk_number = (uint64_t[]){42},
                             .chunk_step = (uint64_t[]){1000},
                             .chunk_length = (uint32_t[]){4},
                             .block_size = (uint32_t[]){16, 27},
                             .block_codec = (uint8_t[]){0, 4},
                             .n_runs = 1,
                             .run_layout = (uint32_t[]){0},
                             .run_items = (uint32_t[]){1},
                             .run_first = (uint64_t[]){7},
                             .n_items = 1,
                             .item_key = (uint64_t[]){UINT64_C(0x0102030405060708)},
                             .item_chunk = (uint64_t[]){42},
                             .item_priority = (double[]){1.5},
                             .item_length = (uint32_t[]){4},
                         });
}

static void write_ingest_many(struct text *w)
{
    struct text layouts = {0};
    put_layout(&layouts, 7, 0, "replay");
    put_layout(&layouts, 7, 1, "other");
    wire_write_ingest(w, &(struct wire_ingest_out){
                             .session = session,
                             .epoch = 1,
                             .number = 1,
                             .oldest_chunk = 1,
                             .layouts = layouts.data,
                             .layouts_size = layouts.size,
                             .n_chunks = 2,
                             .n_columns = 2,
                             .packed = 1,
                             .chunk_number = (uint64_t[]){1, 2},
                             .chunk_step = (uint64_t[]){0, 8},
                             .chunk_length = (uint32_t[]){8, 8},
                             .chunk_episode = (uint32_t[]){5, 6},
                             .block_size = (uint32_t[]){64, 64, 64, 64},
                             .block_codec = (uint8_t[]){0, 0, 0, 0},
                             .n_runs = 2,
                             .run_layout = (uint32_t[]){0, 1},
                             .run_items = (uint32_t[]){2, 1},
                             .run_first = (uint64_t[]){1, 1},
                             .run_policy = (uint64_t[]){12, 12},
                             .n_items = 3,
                             .item_key = (uint64_t[]){100, 101, 102},
                             .item_chunk = (uint64_t[]){1, 1, 2},
                             .item_priority = (double[]){1.0, 1.0, 1.0},
                             .item_offset = (uint32_t[]){0, 4, 0},
                             .item_length = (uint32_t[]){4, 4, 4},
                         });
    text_fini(&layouts);
}

TEST(ingest_is_patched_in_place)
{
    struct text w = {0};
    struct wire_ingest in;
    uint8_t other[16];
    memset(other, 0xee, sizeof other);
    write_ingest_many(&w);
    wire_patch_ingest(w.data, other, UINT32_MAX);
    assert_int_equal(wire_read_ingest(w.data, w.size, &in, NULL), RP_OK);
    assert_memory_equal(in.session, other, 16);
    assert_int_equal(in.epoch, UINT32_MAX);
    assert_int_equal(in.number, 1);
    assert_int_equal(in.n_items, 3);
    text_fini(&w);
    /* Zeros stand there too, so that there is always a place. */
    wire_write_ingest(&w, &(struct wire_ingest_out){.session = (const uint8_t[16]){0}});
    assert_int_equal(w.size, 43);
    wire_patch_ingest(w.data, session, 5);
    assert_int_equal(wire_read_ingest(w.data, w.size, &in, NULL), RP_OK);
    assert_memory_equal(in.session, session, 16);
    assert_int_equal(in.epoch, 5);
    assert_int_equal(in.n_items + in.n_chunks + in.n_runs + in.item_offset.n + in.chunk_episode.n, 0);
    text_fini(&w);
}

TEST(optional_zeros_are_left_out)
{
    struct text w = {0};
    struct wire_ingest in;
    struct wire_ingest_out out = {.session = session,
                                  .n_runs = 1,
                                  .run_layout = (uint32_t[]){0},
                                  .run_items = (uint32_t[]){2},
                                  .run_first = (uint64_t[]){1},
                                  .n_items = 2,
                                  .item_key = (uint64_t[]){1, 2},
                                  .item_chunk = (uint64_t[]){1, 2},
                                  .item_priority = (double[]){0, 0},
                                  .item_length = (uint32_t[]){1, 1}};
    wire_write_ingest(&w, &out);
    size_t without = w.size;
    w.size = 0;
    out.item_offset = (uint32_t[]){0, 0};
    out.run_policy = (uint64_t[]){0};
    wire_write_ingest(&w, &out);
    assert_int_equal(w.size, without);
    assert_int_equal(wire_read_ingest(w.data, w.size, &in, NULL), RP_OK);
    assert_int_equal(pb_u32(&in.item_offset, 1), 0);
    assert_int_equal(pb_u64(&in.run_policy, 0), 0);
    assert_int_equal(in.item_priority.n, 1);
    w.size = 0;
    out.item_offset = (uint32_t[]){0, 3};
    wire_write_ingest(&w, &out);
    assert_int_equal(wire_read_ingest(w.data, w.size, &in, NULL), RP_OK);
    assert_int_equal(pb_u32(&in.item_offset, 0), 0);
    assert_int_equal(pb_u32(&in.item_offset, 1), 3);
    text_fini(&w);
}

/* ---- requests */

/* Frees data. */
static void write_request(struct text *w, uint32_t body, struct text *data)
{
    pb_put_varint(w, 1, WIRE_VERSION);
    pb_put_fixed64(w, 2, 77);
    pb_put_fixed64(w, 3, UINT64_C(0xc11e000000000001));
    pb_put_bytes(w, body, data->data, data->size);
    text_fini(data);
}

static void write_sample(struct text *w)
{
    struct text body = {0};
    pb_put_bytes(&body, 1, "replay", 6);
    pb_put_varint(&body, 2, 256);
    /* A timeout of 0 is not an absent one. */
    pb_tag(&body, 3, PB_VARINT);
    pb_varint(&body, 0);
    pb_put_varint(&body, 5, 1);
    write_request(w, 19, &body);
}

static void write_update(struct text *w)
{
    const uint64_t keys[] = {5, 6, 7};
    struct text body = {0};
    pb_put_bytes(&body, 1, "replay", 6);
    memcpy(pb_put_packed(&body, 2, 3, 8), keys, sizeof keys);
    memcpy(pb_put_packed(&body, 3, 3, 8), (const double[]){0.25, 0.5, 0.75}, 24);
    write_request(w, 20, &body);
}

/* ---- replies */

static void write_reply_sample(struct text *w)
{
    struct text layouts = {0};
    put_layout(&layouts, 20, 31, "replay");
    wire_write_sampled(w, &(struct wire_sampled_out){
                              .id = 77,
                              .text = "2 of 3: the timeout of 5 ms has passed",
                              .status = 4,
                              .n_items = 3,
                              .n_chunks = 2,
                              .n_blocks = 4,
                              .n_chunk_refs = 4,
                              .key = (const uint64_t[]){5, 6, 5},
                              .age_ns = (const uint64_t[]){100, 200, 100},
                              .policy = (const uint64_t[]){9, 9, 9},
                              .step = (const uint64_t[]){40, 44, 40},
                              .priority = (const double[]){1.0, 2.0, 1.0},
                              .probability = (const double[]){0.25, 0.5, 0.25},
                              .times_sampled = (const uint32_t[]){1, 1, 2},
                              .session = (const uint32_t[]){3, 3, 3},
                              .layout = (const uint32_t[]){0, 0, 0},
                              .offset = (const uint32_t[]){0, 2, 0},
                              .length = (const uint32_t[]){2, 4, 2},
                              .chunks = (const uint32_t[]){1, 2, 1},
                              .chunk = (const uint32_t[]){0, 0, 1, 0},
                              .chunk_length = (const uint32_t[]){4, 4},
                              .chunk_blocks = (const uint32_t[]){2, 2},
                              .block_size = (const uint32_t[]){16, 16, 16, 12},
                              .block_column = (const uint8_t[]){0, 2},
                              .n_block_columns = 2,
                              .block_codec = (const uint8_t[]){0, 0, 0, 1},
                              .packed = 2,
                              .layouts = layouts.data,
                              .layouts_size = layouts.size,
                              .table_size = 1000000,
                              .waited_ns = 5000000,
                              .partial = true,
                          });
    text_fini(&layouts);
}

/* Two items: the first chunk is packed, the second is not, and both are in the arena. */
static void write_reply_shared(struct text *w)
{
    const uint64_t numbers[] = {7, 8}, place = 4096, stamp = 11, packed_at[] = {128, 12, 400};
    const double priority[] = {1, 1};
    const uint32_t ones[] = {1, 1}, sizes[] = {400, 5000};
    const uint8_t zeros[] = {0, 0};
    struct text layouts = {0};
    put_layout(&layouts, 20, 1, "replay");
    struct wire_sampled_out out = {.id = 80,
                                   .n_items = 2,
                                   .n_chunks = 2,
                                   .n_blocks = 2,
                                   .key = numbers,
                                   .age_ns = numbers,
                                   .step = numbers,
                                   .priority = priority,
                                   .probability = priority,
                                   .length = ones,
                                   .chunks = ones,
                                   .chunk_length = ones,
                                   .chunk_blocks = ones,
                                   .block_size = sizes,
                                   .block_column = zeros,
                                   .block_codec = zeros,
                                   .n_block_columns = 1,
                                   .place = &place,
                                   .stamp = &stamp,
                                   .n_places = 1,
                                   .packed_at = packed_at,
                                   .packed = 1,
                                   .layouts = layouts.data,
                                   .layouts_size = layouts.size};
    wire_write_sampled(w, &out);
    text_fini(&layouts);
}

static const uint64_t head_at[] = {128, 12, 400, 90};

static void write_reply_head(struct text *w)
{
    wire_write_sampled(w, &(struct wire_sampled_out){.id = 80, .head_at = head_at});
}

static void write_reply_empty(struct text *w)
{
    wire_write_sampled(w, &(struct wire_sampled_out){.id = 78});
}

static void write_reply_paid(struct text *w)
{
    wire_write_sampled(w,
                       &(struct wire_sampled_out){.id = 79, .partial = true, .paid = true, .mass = 2.5, .room = 300});
}

/* What the readers make of these frames is compared field by field in tests/fuzz/fuzz_frames.c. */
static const struct {
    const char *name, *comment;
    void (*write)(struct text *w);
    const ProtobufCMessageDescriptor *type;
} golden[] = {
    {"ingest_one", "Ingest: one chunk of 4 steps and 2 columns, one item; optional arrays left out", write_ingest_one,
     &replay__ingest__descriptor},
    {"ingest_many", "Ingest: two layouts, two chunks, two runs, three items; equal elements sent once",
     write_ingest_many, &replay__ingest__descriptor},
    {"request_sample", "Request: sample 256 of 'replay', timeout 0, flexible", write_sample,
     &replay__request__descriptor},
    {"request_update", "Request: update of three priorities", write_update, &replay__request__descriptor},
    {"reply_sample", "Reply: a partial batch of three, two of them the same item, over two chunks", write_reply_sample,
     &replay__reply__descriptor},
    {"reply_empty", "Reply: a fetch that found nothing: a body without a field", write_reply_empty,
     &replay__reply__descriptor},
    {"reply_paid", "Reply: to a paid sample of an empty table, with mass and room", write_reply_paid,
     &replay__reply__descriptor},
    {"reply_shared", "Reply: two items whose chunks are in the arena, one of them packed", write_reply_shared,
     &replay__reply__descriptor},
    {"reply_head", "Reply: what it says about its items is in the arena", write_reply_head, &replay__reply__descriptor},
};

TEST(golden_frames)
{
    for (size_t i = 0; i < COUNT(golden); i++) {
        struct text w = {0};
        struct frame f;
        golden[i].write(&w);
        golden_check(golden[i].name, golden[i].comment, &w, golden[i].type, &f);
    }
}

static void *give_text(void *ctx, size_t bytes)
{
    return text_reserve(ctx, bytes);
}

static void *give_none(void *ctx, size_t bytes)
{
    (void)ctx, (void)bytes;
    return NULL;
}

/* All but the outer header is elsewhere, and is what comes in a frame otherwise. */
TEST(reply_head)
{
    struct text here = {0}, there = {0};
    struct frame f;
    struct wire_reply reply;
    struct wire_sampled s;
    const uint64_t numbers[] = {7, 8};
    const double priority[] = {1, 2};
    struct wire_sampled_out out = {.id = 80, .n_items = 2, .key = numbers, .priority = priority, .age_ns = numbers};
    wire_write_sampled(&here, &out);
    assert_int_equal(wire_read_reply(here.data, here.size, &reply, NULL), RP_OK);
    assert_false(wire_write_sampled_at(&out, give_none, NULL));
    assert_true(wire_write_sampled_at(&out, give_text, &there));
    assert_int_equal(there.size, reply.size);
    assert_memory_equal(there.data, reply.data, reply.size);
    text_fini(&here);
    text_fini(&there);
    golden_read("reply_head", &f);
    assert_int_equal(wire_read_reply(f.data, f.size, &reply, NULL), RP_OK);
    assert_int_equal(wire_read_sampled(reply.data, reply.size, &s, NULL), RP_OK);
    assert_int_equal(s.n_items, 0);
    assert_int_equal(s.head_at.n, 4);
    assert_memory_equal(s.head_at.data, head_at, sizeof head_at);
}

TEST(absent_is_not_zero_and_a_reader_takes_its_own_fields)
{
    struct frame f;
    struct wire_request request;
    struct wire_sample sample;
    struct wire_keys keys;
    golden_read("request_sample", &f);
    assert_int_equal(wire_read_request(f.data, f.size, &request, NULL), RP_OK);
    assert_int_equal(wire_read_sample(request.data, request.size, &sample, NULL), RP_OK);
    assert_true(sample.has_timeout && sample.timeout_ms == 0 && sample.flexible && !sample.distinct);
    assert_int_equal(wire_read_sample("\x20\x01", 2, &sample, NULL), RP_OK);
    assert_true(!sample.has_timeout && sample.distinct);
    golden_read("request_update", &f); /* for Delete and Fetch field 3 is unknown */
    assert_int_equal(wire_read_request(f.data, f.size, &request, NULL), RP_OK);
    assert_int_equal(wire_read_keys(request.data, request.size, false, &keys, NULL), RP_OK);
    assert_true(keys.key.n == 3 && keys.priority.n == 0);
}

/* ---- refusals: a frame put together field by field */

enum reader { REQUEST, REPLY, SAMPLE, UPDATE, DELETE, INGEST, SAMPLED };

static rp_status read_as(enum reader reader, const void *data, size_t size, rp_error *error)
{
    union {
        struct wire_request request;
        struct wire_reply reply;
        struct wire_sample sample;
        struct wire_keys keys;
        struct wire_ingest ingest;
        struct wire_sampled sampled;
    } out;
    switch (reader) {
    case REQUEST:
        return wire_read_request(data, size, &out.request, error);
    case REPLY:
        return wire_read_reply(data, size, &out.reply, error);
    case SAMPLE:
        return wire_read_sample(data, size, &out.sample, error);
    case UPDATE:
    case DELETE:
        return wire_read_keys(data, size, reader == UPDATE, &out.keys, error);
    case INGEST:
        return wire_read_ingest(data, size, &out.ingest, error);
    default:
        return wire_read_sampled(data, size, &out.sampled, error);
    }
}

static void refuse(enum reader reader, const struct text *w, const char *sentence)
{
    err = (rp_error){0};
    assert_int_equal(read_as(reader, w->data, w->size, &err), RP_BAD_MESSAGE);
    assert_int_equal(err.status, RP_BAD_MESSAGE);
    facts_said(err.text, sentence);
    assert_int_equal(read_as(reader, w->data, w->size, NULL), RP_BAD_MESSAGE);
}

/* Frames of one field. */
static void refuse_varint(enum reader reader, uint32_t number, uint64_t value, const char *sentence)
{
    struct text w = {0};
    pb_put_varint(&w, number, value);
    refuse(reader, &w, sentence);
    text_fini(&w);
}

static void put_fixed32(struct text *w, uint32_t number, uint32_t value)
{
    pb_tag(w, number, PB_FIXED32);
    memcpy(text_reserve(w, 4), &value, 4);
}

static void refuse_fixed(enum reader reader, uint32_t number, uint32_t bits, const char *sentence)
{
    struct text w = {0};
    if (bits == 64)
        pb_put_fixed64(&w, number, 5);
    else
        put_fixed32(&w, number, 5);
    refuse(reader, &w, sentence);
    text_fini(&w);
}

static void refuse_bytes(enum reader reader, uint32_t number, const char *text, const char *sentence)
{
    struct text w = {0};
    pb_put_bytes(&w, number, text, strlen(text));
    refuse(reader, &w, sentence);
    text_fini(&w);
}

/* The golden frame with one more field. */
static void refuse_ingest_plus(const void *field, size_t size, const char *sentence)
{
    struct text w = {0};
    write_ingest_many(&w);
    memcpy(text_reserve(&w, size), field, size);
    refuse(INGEST, &w, sentence);
    text_fini(&w);
}
#define REFUSE_INGEST_PLUS(bytes, sentence) refuse_ingest_plus(bytes, sizeof bytes - 1, sentence)

TEST(fields_that_stand_twice)
{
    REFUSE_INGEST_PLUS("\xc2\x01\x08\1\0\0\0\0\0\0\0", "Ingest.item_key stands twice: send each packed array once");
    REFUSE_INGEST_PLUS("\xc2\x01\x00", "Ingest.item_key stands twice");
    REFUSE_INGEST_PLUS("\x08\x01", "Ingest.version stands twice: send it once");
    REFUSE_INGEST_PLUS("\x7a\x01\0", "Ingest.block_codec stands twice: send it once");
    struct text w = {0};
    pb_put_fixed64(&w, 2, 4);
    pb_put_fixed64(&w, 2, 5);
    refuse(REQUEST, &w, "Request.id stands twice");
    refuse(REPLY, &w, "Reply.id stands twice");
    w.size = 0;
    pb_put_bytes(&w, 19, "", 0);
    pb_put_bytes(&w, 19, "\x10\x01", 2);
    pb_put_bytes(&w, 20, "\x10\x01", 2);
    refuse(REQUEST, &w, "Request has two bodies (19 and 20)");
    refuse(REPLY, &w, "Reply has two bodies");
    w.size = 0;
    pb_put_varint(&w, 2, 4);
    pb_put_varint(&w, 2, 4);
    refuse(SAMPLE, &w, "Sample.count stands twice");
    text_fini(&w);
}

TEST(wrong_wire_types)
{
    refuse_fixed(INGEST, 24, 64, "Ingest.item_key is not packed: send its elements as one packed array");
    refuse_fixed(INGEST, 12, 32, "Ingest.chunk_length is not packed");
    refuse_varint(INGEST, 12, 5, "Ingest.chunk_length has wire type 0: it must be 2");
    refuse_varint(INGEST, 5, 5, "Ingest.number has wire type 0: it must be 1");
    refuse_fixed(REQUEST, 2, 32, "Request.id has wire type 5: it must be 1");
    refuse_fixed(SAMPLE, 2, 32, "Sample.count has wire type 5: it must be 0");
    refuse_varint(REQUEST, 19, 1, "Request: body 19 has wire type 0: it must be 2");
    refuse_fixed(UPDATE, 2, 64, "Update.key is not packed");
    refuse_fixed(DELETE, 2, 64, "Delete or Fetch.key is not packed");
    refuse_varint(SAMPLED, 20, 1, "SampleReply.layouts has wire type 0: it must be 2");
}

TEST(bad_lengths)
{
    refuse_bytes(INGEST, 24, "123456789abcd", "Ingest.item_key has a length in bytes that is no multiple of 8 (13)");
    refuse_bytes(INGEST, 14, "12345", "Ingest.block_size has a length in bytes that is no multiple of 4 (5)");
    refuse_bytes(UPDATE, 2, "12345", "Update.key has a length in bytes that is no multiple of 8 (5)");
    refuse_varint(SAMPLE, 2, UINT64_C(1) << 32, "Sample.count does not fit 32 bits (4294967296)");
    refuse_bytes(UPDATE, 2, "12345678", "Update.priority has 0 elements: it must have 1");
    refuse_bytes(UPDATE, 3, "12345678", "Update.priority has 1 elements: it must have 0");
    struct text w = {0};
    pb_put_bytes(&w, 2, "12345678", 8);
    pb_put_bytes(&w, 3, "1234567812345678", 16);
    refuse(UPDATE, &w, "Update.priority has 2 elements: it must have 1");
    text_fini(&w);
}

/* Writes an ingest header whose array `number` has n elements of `width` zero bytes. All others fit 3 chunks of 2
 * columns, 2 runs and 4 items. */
static void write_ingest_with(struct text *w, uint32_t number, uint32_t n, uint32_t packed)
{
    static const struct {
        uint32_t number, n, width;
    } arrays[] = {{10, 3, 8}, {11, 3, 8}, {12, 3, 4}, {13, 3, 4}, {14, 6, 4}, {15, 6, 1}, {20, 2, 4}, {21, 2, 4},
                  {22, 2, 8}, {23, 2, 8}, {24, 4, 8}, {25, 4, 8}, {26, 4, 8}, {27, 4, 4}, {28, 4, 4}};
    w->size = 0;
    for (uint32_t i = 0; i < COUNT(arrays); i++) {
        uint32_t count = arrays[i].number == number ? n : arrays[i].n;
        uint8_t *at = pb_put_packed(w, arrays[i].number, count, arrays[i].width);
        if (count > 0)
            memset(at, 0, (size_t)count * arrays[i].width);
        if (arrays[i].number == 21) {
            for (uint32_t k = 0; k < count; k++)
                at[4 * k] = 2;
        }
    }
    put_fixed32(w, 16, packed);
}

TEST(ingest_counts)
{
    /* For each array the counts that are allowed besides the full one. */
    static const struct {
        uint32_t number;
        bool none, one;
    } rules[] = {{10, 0, 0}, {11, 0, 0}, {12, 0, 1}, {13, 1, 1}, {14, 0, 1}, {15, 0, 1}, {20, 0, 0}, {21, 0, 0},
                 {22, 0, 0}, {23, 1, 1}, {24, 0, 0}, {25, 0, 1}, {26, 0, 0}, {27, 1, 1}, {28, 0, 1}};
    struct text w = {0};
    struct wire_ingest in;
    write_ingest_with(&w, 0, 0, 3);
    assert_int_equal(wire_read_ingest(w.data, w.size, &in, NULL), RP_OK);
    for (uint32_t i = 0; i < COUNT(rules); i++) {
        write_ingest_with(&w, rules[i].number, 0, 0);
        assert_int_equal(wire_read_ingest(w.data, w.size, &in, NULL) == RP_OK, rules[i].none);
        write_ingest_with(&w, rules[i].number, 1, 0);
        assert_int_equal(wire_read_ingest(w.data, w.size, &in, NULL) == RP_OK, rules[i].one);
        write_ingest_with(&w, rules[i].number, 7, 0);
        assert_int_equal(wire_read_ingest(w.data, w.size, &in, NULL), RP_BAD_MESSAGE);
    }
    write_ingest_with(&w, 12, 2, 0);
    refuse(INGEST, &w, "Ingest.chunk_length has 2 elements: it must have 3 or 1");
    write_ingest_with(&w, 26, 1, 0);
    refuse(INGEST, &w, "Ingest.item_chunk has 1 elements: it must have 4");
    write_ingest_with(&w, 14, 4, 0);
    refuse(INGEST, &w, "Ingest.block_size must have 1 element, or one for each column of each chunk (4)");
    write_ingest_with(&w, 21, 1, 0);
    refuse(INGEST, &w, "Ingest.run_layout has 2 elements: it must have 1");
    write_ingest_with(&w, 0, 0, 4);
    refuse(INGEST, &w, "Ingest.packed is more than the number of chunks (4)");
    text_fini(&w);
}

TEST(runs_must_add_up)
{
    struct text w = {0};
    /* Sums that would be right modulo 2^32. */
    const uint32_t items[] = {UINT32_MAX, 1};
    memset(pb_put_packed(&w, 20, 2, 4), 0, 8);
    memcpy(pb_put_packed(&w, 21, 2, 4), items, sizeof items);
    memset(pb_put_packed(&w, 22, 2, 8), 0, 16);
    refuse(INGEST, &w, "Ingest.run_items does not add up to the number of items (4294967296)");
    text_fini(&w);
    REFUSE_INGEST_PLUS("\xba", "Ingest: damaged at byte ");
}

/* A reply of n items with one chunk each, all arrays folded; the changes are the caller's. */
static void refuse_sampled(const struct wire_sampled_out *change, const char *sentence)
{
    err = (rp_error){0};
    struct text w = {0};
    struct wire_reply reply;
    struct wire_sampled s;
    wire_write_sampled(&w, change);
    assert_int_equal(wire_read_reply(w.data, w.size, &reply, NULL), RP_OK);
    rp_status status = wire_read_sampled(reply.data, reply.size, &s, &err);
    assert_int_equal(status, sentence == NULL ? RP_OK : RP_BAD_MESSAGE);
    if (sentence != NULL)
        facts_said(err.text, sentence);
    text_fini(&w);
}

#define REFUSE_WITH(good, change, sentence)                                                                            \
    do {                                                                                                               \
        struct wire_sampled_out changed = good;                                                                        \
        changed.change;                                                                                                \
        refuse_sampled(&changed, sentence);                                                                            \
    } while (0)

TEST(sampled_counts)
{
    const uint64_t keys[2] = {1, 2};
    const double reals[2] = {0};
    const uint32_t zeros[2] = {0}, ones[2] = {1, 1}, ascending[2] = {0, 1}, far[2] = {0, 2}, most = UINT32_MAX;
    const uint32_t wide = 256;
    const uint8_t bytes[2] = {0};
    const struct wire_sampled_out good = {.n_items = 2,
                                          .n_chunks = 2,
                                          .n_blocks = 2,
                                          .n_chunk_refs = 2,
                                          .key = keys,
                                          .age_ns = keys,
                                          .step = keys,
                                          .priority = reals,
                                          .length = ones,
                                          .chunks = ones,
                                          .chunk = ascending,
                                          .chunk_length = ones,
                                          .chunk_blocks = ones,
                                          .block_size = ones,
                                          .block_codec = bytes,
                                          .block_column = bytes,
                                          .n_block_columns = 2,
                                          .packed = 2,
                                          .layouts = "\xa2\x01\x00",
                                          .layouts_size = 3};
    struct wire_sampled_out out = good;
    refuse_sampled(&out, NULL);
    out.n_block_columns = 1;
    refuse_sampled(&out, NULL);
    out.chunk = NULL;
    refuse_sampled(&out, NULL);
    out.chunk = far;
    refuse_sampled(&out, "SampleReply.chunk skips chunks: every chunk belongs to an item (2)");
    out.chunk = zeros; /* One chunk for both, but two lengths. */
    out.chunk_length = ascending;
    refuse_sampled(&out, "SampleReply.chunk_length has 2 elements: it must have 1");
    REFUSE_WITH(good, n_chunk_refs = 1, "SampleReply.chunk has 1 elements: it must have 2");
    REFUSE_WITH(good, layout = ascending, "SampleReply.layout refers to a layout that is not there (1)");
    REFUSE_WITH(good, layouts = NULL, "SampleReply.layout refers to a layout that is not there (0)");
    REFUSE_WITH(good, packed = 3, "SampleReply.packed is more than the number of chunks (3)");
    REFUSE_WITH(good, age_ns = NULL, "SampleReply.age_ns has 0 elements: it must have 2");
    REFUSE_WITH(good, length = NULL, "SampleReply.length has 0 elements: it must have 2 or 1");
    REFUSE_WITH(good, n_block_columns = 0, "SampleReply.block_column has 0 elements: it must have 2");
    out = good;
    out.chunk_blocks = ascending; /* 0 and 1 blocks: one column is all of them, and one chunk's */
    out.n_block_columns = 2;
    out.n_blocks = 1;
    refuse_sampled(&out, "SampleReply.block_column has 2 elements: it must have 1");
    out = good;
    out.n_items = 1;
    out.n_chunks = 1;
    out.chunk = NULL;
    out.chunks = &most;
    refuse_sampled(&out, "SampleReply.chunks adds up to too many chunks (4294967295)");
    out.chunks = ones;
    out.packed = 1;
    out.chunk_blocks = &wide;
    refuse_sampled(&out, "SampleReply.chunk_blocks is more than a stream may have columns (256)");
}

/* ---- what is not an error */

TEST(unknown_fields_are_skipped)
{
    struct text w = {0};
    struct wire_ingest in;
    struct wire_request request;
    pb_put_varint(&w, 8, 5);
    pb_put_bytes(&w, 9, "abc", 3);
    write_ingest_many(&w);
    pb_put_fixed64(&w, 31, 5);
    put_fixed32(&w, 1000, 5);
    pb_put_bytes(&w, 18, "\xff\xff", 2);
    /* A layout after everything else: walkers pass over what lies between. */
    put_layout(&w, 7, 2, "late");
    pb_put_bytes(&w, 18, "\xff\xff", 2);
    assert_int_equal(wire_read_ingest(w.data, w.size, &in, NULL), RP_OK);
    assert_int_equal(in.n_items, 3);
    assert_int_equal(in.n_layouts, 3);
    struct pb_reader r = pb_reader(in.layouts, in.layouts_size);
    struct pb_field field;
    uint32_t layouts = 0;
    while (pb_next(&r, &field) == 1)
        layouts += field.number == 7;
    assert_int_equal(layouts, 3);
    w.size = 0;
    pb_put_fixed64(&w, 2, 5);
    pb_put_varint(&w, 9, 5);
    pb_put_bytes(&w, 4000, "xyz", 3);
    assert_int_equal(wire_read_request(w.data, w.size, &request, NULL), RP_OK);
    assert_int_equal(request.body, 4000);
    assert_int_equal(request.size, 3);
    text_fini(&w);
}

TEST(what_was_read_before_the_damage_is_there)
{
    struct text w = {0};
    struct wire_request request;
    struct wire_ingest in;
    pb_put_varint(&w, 1, 1);
    pb_put_fixed64(&w, 2, 55);
    pb_put_fixed64(&w, 3, 66);
    pb_put_bytes(&w, 19, "abc", 3);
    assert_int_equal(wire_read_request(w.data, w.size - 1, &request, NULL), RP_BAD_MESSAGE);
    assert_int_equal(request.id, 55);
    assert_int_equal(request.client, 66);
    assert_int_equal(request.body, 0);
    w.size = 0;
    write_ingest_many(&w);
    assert_int_equal(wire_read_ingest(w.data, w.size - 1, &in, NULL), RP_BAD_MESSAGE);
    assert_memory_equal(in.session, session, 16);
    assert_int_equal(in.number, 1);
    text_fini(&w);
}
