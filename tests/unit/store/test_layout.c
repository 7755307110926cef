/* Layouts: what is refused, that equal ones are one, and which rows and columns a reply then carries. */

#include "proto/base/rng.h"
#include "tests/support/facts.h"
#include "tests/support/naive.h"
#include "tests/support/testpeer.h"

#if defined(__SANITIZE_ADDRESS__)
#define ROUNDS 10u
#else
#define ROUNDS 30u
#endif

#define TABLE "  - {name: t, max_size: 1000, sampler: {kind: fifo}, limiter: {kind: none}}\n"

static const struct testpeer_column three[] = {
    {"observation", "float32", 1, {2}, 8}, {"action", "int32", 0, {0}, 4}, {"image", "uint8", 1, {100}, 100}};

static Replay__Field field(const char *name, uint32_t column, int32_t start, uint32_t count, uint32_t stride)
{
    Replay__Field self = REPLAY__FIELD__INIT;
    self.name = (char *)(uintptr_t)name;
    self.column = column;
    self.start = start;
    self.count = count;
    self.stride = stride;
    return self;
}

/* ---- interning ---- */

static struct columns *some_columns(void)
{
    Replay__Column a = REPLAY__COLUMN__INIT, b = REPLAY__COLUMN__INIT, *list[] = {&a, &b};
    uint32_t shape[] = {2};
    a.name = "x";
    a.dtype = "float32";
    a.n_shape = 1;
    a.shape = shape;
    b.name = "y";
    b.dtype = "int8";
    return must(columns_new(list, 2, &err));
}

static struct layout *intern(struct layouts *layouts, const struct columns *columns, Replay__Field *one,
                             rp_error *error)
{
    Replay__Layout wire = REPLAY__LAYOUT__INIT;
    wire.table = "t";
    wire.n_fields = 1;
    wire.fields = &one;
    return layouts_intern(layouts, &wire, columns, 0, (struct signature){0}, error);
}

TEST(equal_layouts_are_one)
{
    struct layouts layouts = {0};
    struct columns *columns = some_columns();
    Replay__Field one = field("f", 0, 0, 2, 0), two = field("f", 0, 1, 2, 0);
    struct layout *a = intern(&layouts, columns, &one, NULL), *b = intern(&layouts, columns, &one, NULL);
    struct layout *c = intern(&layouts, columns, &two, NULL);
    assert_ptr_equal(a, b);
    assert_ptr_not_equal(a, c);
    assert_int_equal(a->refs, 2);
    assert_int_equal(a->min_length, 2);
    assert_int_equal(c->min_length, 3);
    assert_int_equal(a->need[0] & 3, 1); /* of the two columns, the first */
    layouts_release(&layouts, a);
    layouts_release(&layouts, a);
    struct layout *d = intern(&layouts, columns, &one, NULL);
    assert_int_equal(d->id, 0); /* the place is used again */
    layouts_release(&layouts, c);
    layouts_release(&layouts, d);
    layouts_fini(&layouts);
    columns_release(columns);
}

TEST(what_no_item_can_have_is_refused)
{
    struct layouts layouts = {0};
    struct columns *columns = some_columns();
    Replay__Field bad[] = {field("", 0, 0, 1, 0),   field("f", 2, 0, 1, 0),
                           field("f", 0, -2, 3, 0), field("f", 0, INT32_MAX, UINT32_MAX, UINT32_MAX),
                           field("f", 0, 0, 2, 0),  field("f", 0, 0, 0, 0)};
    bad[4].squeeze = bad[5].squeeze = true;
    for (uint32_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        err = (rp_error){0};
        assert_null(intern(&layouts, columns, &bad[i], &err));
        assert_int_equal(err.status, RP_INVALID_ARGUMENT);
        assert_true(facts_within(err.text, "layout 0 of table 't'"));
    }
    Replay__Field good[] = {field("f", 0, -2, 2, 0), field("f", 0, -3, 2, 2), field("f", 0, INT32_MIN, 0, 0),
                            field("f", 0, 5, 3, 4)};
    static const uint32_t least[] = {2, 3, 2147483648u, 14};
    for (uint32_t i = 0; i < 4; i++) {
        struct layout *layout = intern(&layouts, columns, &good[i], NULL);
        assert_non_null(layout);
        assert_int_equal(layout->min_length, least[i]);
        layouts_release(&layouts, layout);
    }
    layouts_fini(&layouts);
    columns_release(columns);
}

TEST(bad_columns_are_refused)
{
    Replay__Column column = REPLAY__COLUMN__INIT, *twice[] = {&column, &column};
    uint32_t zero[] = {3, 0}, huge[] = {1u << 31, 4};
    column.name = "x";
    column.dtype = "float32";
    assert_null(columns_new(twice, 2, &err));
    assert_int_equal(err.status, RP_INVALID_ARGUMENT);
    assert_true(facts_within(err.text, "column 'x' is listed twice"));
    assert_null(columns_new(twice, 0, &err));
    column.dtype = "float33";
    assert_null(columns_new(twice, 1, &err));
    assert_non_null(strstr(err.text, "float33"));
    column.dtype = "float32";
    column.n_shape = 2;
    column.shape = huge;
    assert_null(columns_new(twice, 1, &err));
    column.shape = zero; /* is allowed: its steps have no data */
    struct columns *empty = must(columns_new(twice, 1, &err));
    assert_int_equal(empty->column[0].row_bytes, 0);
    columns_release(empty);
    column.n_shape = 0;
    column.name = "";
    assert_null(columns_new(twice, 1, &err));
    column.name = "\xff\xfe";
    assert_null(columns_new(twice, 1, &err));
}

/* ---- signatures ---- */

EMBED_TEST(signatures_are_checked_by_the_broker,
           "  - name: t\n    max_size: 100\n    limiter: {kind: none}\n    signature:\n"
           "      obs: [float32, 0, 2]\n      act: int32\n",
           NULL)
{
    struct testpeer *peer = testpeer_new(embed);
    testpeer_open_with(peer, false, three, 3);
    Replay__Field right[] = {field("obs", 0, 0, 0, 0), field("act", 1, 0, 1, 0)};
    right[1].squeeze = true;
    Replay__Field wrong_name[] = {right[0], right[1]}, wrong_dtype[] = {right[0], right[1]},
                  wrong_shape[] = {right[0], right[1]};
    wrong_name[0].name = "observation";
    wrong_dtype[1].column = 2;
    wrong_shape[1].squeeze = false;
    const uint32_t layouts[] = {testpeer_layout(peer, "t", 2, right),       testpeer_layout(peer, "t", 2, wrong_name),
                                testpeer_layout(peer, "t", 2, wrong_dtype), testpeer_layout(peer, "t", 2, wrong_shape),
                                testpeer_layout(peer, "t", 1, right),       testpeer_layout(peer, "nowhere", 1, right)};
    float observation[6] = {1, 2, 3, 4, 5, 6};
    int32_t action[3] = {7, 8, 9};
    uint8_t image[300] = {0};
    const void *blocks[] = {observation, action, image};
    uint64_t chunk = testpeer_chunk(peer, 3, blocks, false);
    for (uint32_t i = 0; i < 6; i++)
        testpeer_item(peer, layouts[i], 10 + i, 1, chunk, 0, 3);
    testpeer_push(peer);
    testpeer_heartbeat(peer, 0, false);
    assert_int_equal(embed_table(embed, "t")->in.size, 1);
    assert_int_equal(peer->credit->n_rejections, 5);
    static const char *const parts[] = {"table 't' wants the field 'obs' where 'observation' stands",
                                        "is uint8, table 't' wants int32", "has shape", "has 1 fields",
                                        "no table 'nowhere'"};
    for (uint32_t i = 0; i < 5; i++) {
        assert_int_equal(peer->credit->rejections[i]->key, 11 + i);
        facts_said(peer->credit->rejections[i]->text, parts[i]);
    }
    assert_int_equal(testpeer_resolved(peer, 0), 5);
}

/* ---- rows ---- */

/* The rows are those of the fields that were asked for. */
static void check_item(const struct testpeer_answer *answer, uint32_t item, uint32_t n_fields,
                       const Replay__Field *fields)
{
    const Replay__SampleReply *reply = answer->reply->sample;
    const Replay__Layout *layout = reply->layouts[sampled_u32(reply->layout, reply->n_layout, item)];
    assert_int_equal(layout->n_fields, n_fields);
    for (uint32_t f = 0; f < n_fields; f++) {
        const Replay__Field *a = &fields[f], *b = layout->fields[f];
        assert_true(a->column == b->column && a->start == b->start && a->count == b->count && a->stride == b->stride);
    }
    sampled_known(answer, item);
}

/* Random chunk lengths, item spans, starts, counts and strides over several columns. */
TEST(strided_slices_over_chunks_give_the_right_rows)
{
    struct rng rng = naive_rng(__func__);
    for (uint32_t round = 0; round < ROUNDS; round++) {
        struct embed embed;
        embed_start(&embed, TABLE, NULL);
        struct testpeer *peer = testpeer_new(&embed);
        testpeer_open_with(peer, false, three, 3);
        uint64_t chunk_first[20];
        uint32_t chunk_length[20];
        for (uint32_t i = 0; i < 20; i++) {
            chunk_length[i] = 1 + (uint32_t)rng_below(&rng, round % 2 ? 8 : 1);
            chunk_first[i] = peer->step;
            testpeer_known(peer, chunk_length[i], false);
        }
        testpeer_push(peer);
        Replay__Field fields[8][3];
        uint32_t n_fields[8], lengths[8];
        uint64_t steps[8];
        for (uint32_t k = 0; k < 8; k++) {
            uint32_t chunk = (uint32_t)rng_below(&rng, 20), offset = (uint32_t)rng_below(&rng, chunk_length[chunk]);
            steps[k] = chunk_first[chunk] + offset;
            lengths[k] = 1 + (uint32_t)rng_below(&rng, peer->step - steps[k]);
            n_fields[k] = 1 + (uint32_t)rng_below(&rng, 3);
            static const char *const names[] = {"a", "b", "c"};
            for (uint32_t f = 0; f < n_fields[k]; f++) {
                uint32_t start = (uint32_t)rng_below(&rng, lengths[k]), stride = (uint32_t)rng_below(&rng, 5);
                uint32_t most = (lengths[k] - start - 1) / (stride ? stride : 1) + 1;
                fields[k][f] = field(names[f], (uint32_t)rng_below(&rng, 3),
                                     rng_below(&rng, 2) ? (int32_t)start : -(int32_t)(lengths[k] - start),
                                     (uint32_t)rng_below(&rng, most + 1), stride);
            }
            testpeer_item(peer, testpeer_layout(peer, "t", n_fields[k], fields[k]), k + 1, 1, chunk + 1, offset,
                          lengths[k]);
        }
        testpeer_push(peer);
        testpeer_heartbeat(peer, 0, false);
        assert_int_equal(peer->credit->n_rejections, 0);
        uint64_t keys[8];
        for (uint32_t k = 0; k < 8; k++)
            keys[k] = k + 1;
        struct testpeer_answer *answer = testpeer_fetch(peer, "t", 8, keys);
        assert_int_equal(answer->reply->sample->n_key, 8);
        for (uint32_t k = 0; k < 8; k++) {
            assert_int_equal(answer->reply->sample->step[k], steps[k]);
            assert_int_equal(sampled_u32(answer->reply->sample->length, answer->reply->sample->n_length, k),
                             lengths[k]);
            check_item(answer, k, n_fields[k], fields[k]);
        }
        embed_stop(&embed);
    }
}

EMBED_TEST(spans_that_do_not_fit_are_refused, TABLE, NULL)
{
    struct testpeer *peer = testpeer_opened(embed, false);
    Replay__Field two = field("x", 0, 0, 2, 0);
    uint32_t plain = testpeer_plain(peer, "t"), pair = testpeer_layout(peer, "t", 1, &two);
    uint64_t rows[3] = {1, 2, 3};
    const void *blocks[] = {rows};
    uint64_t a = testpeer_chunk(peer, 3, blocks, false);
    uint64_t b = testpeer_chunk(peer, 3, blocks, false);
    peer->step += 5;
    uint64_t c = testpeer_chunk(peer, 3, blocks, false); /* not the steps that follow */
    testpeer_item(peer, plain, 1, 1, a, 3, 1);           /* starts behind its chunk */
    testpeer_item(peer, plain, 2, 1, a, 0, 0);           /* no steps */
    testpeer_item(peer, pair, 3, 1, a, 0, 1);            /* too short for its layout */
    testpeer_item(peer, plain, 4, 1, b, 0, 4);           /* over a break */
    testpeer_item(peer, plain, 5, 1, c, 0, 4);           /* over the end */
    testpeer_item(peer, pair, 6, 1, a, 2, 2);
    testpeer_item(peer, plain, 7, 1, a, 0, UINT32_MAX);
    testpeer_push(peer);
    testpeer_heartbeat(peer, 0, false);
    assert_int_equal(peer->credit->n_rejections, 6);
    assert_int_equal(embed_table(embed, "t")->in.size, 1);
    assert_int_equal(testpeer_fetch(peer, "t", 1, &(uint64_t){6})->status, RP_OK);
}

/* ---- columns ---- */

static uint32_t count_blocks(const Replay__SampleReply *reply, uint32_t chunks)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < chunks; i++)
        n += sampled_u32(reply->chunk_blocks, reply->n_chunk_blocks, i);
    return n;
}

/* Six items over two chunks: the reply has two chunks, and of each only the column that is asked for. */
EMBED_TEST(a_reply_has_each_needed_block_once_and_no_other, TABLE, NULL)
{
    struct testpeer *peer = testpeer_new(embed);
    testpeer_open_with(peer, false, three, 3);
    Replay__Field action = field("a", 1, 0, 0, 0);
    uint32_t layout = testpeer_layout(peer, "t", 1, &action);
    static uint8_t data[3][400];
    for (uint32_t i = 0; i < 2; i++) {
        const void *blocks[] = {data[0], data[1], data[2]};
        testpeer_chunk(peer, 4, blocks, false);
    }
    for (uint64_t k = 0; k < 6; k++)
        testpeer_item(peer, layout, k + 1, 1, 1, (uint32_t)k % 4, 3);
    testpeer_pushed(peer);
    uint64_t keys[] = {1, 2, 3, 4, 5, 6, 1, 2};
    struct testpeer_answer *answer = testpeer_fetch(peer, "t", 8, keys);
    const Replay__SampleReply *reply = answer->reply->sample;
    assert_int_equal(reply->n_key, 8);
    assert_int_equal(answer->n_payload, 1);
    assert_int_equal(zmq_msg_size(&answer->payload[0]), 2 * 16);
    assert_int_equal(count_blocks(reply, 2), 2);
    assert_int_equal(reply->block_column.len, 1);
    assert_int_equal(reply->block_column.data[0], 1);
    assert_int_equal(reply->n_layouts, 1);
    assert_int_equal(reply->layouts[0]->n_columns, 3);
}

EMBED_TEST(absent_columns_are_refused_only_where_they_are_needed, TABLE, NULL)
{
    struct testpeer *peer = testpeer_new(embed);
    testpeer_open_with(peer, false, three, 3);
    Replay__Field observation = field("o", 0, 0, 0, 0), action = field("a", 1, 0, 0, 0);
    uint32_t with = testpeer_layout(peer, "t", 1, &action), without = testpeer_layout(peer, "t", 1, &observation);
    static uint8_t data[3][400];
    const void *full[] = {data[0], data[1], data[2]}, *last[] = {data[0], NULL, data[2]};
    testpeer_chunk(peer, 2, full, false);
    testpeer_chunk(peer, 2, last, false);
    testpeer_item(peer, with, 1, 1, 1, 0, 2);
    testpeer_item(peer, with, 2, 1, 2, 0, 2);
    testpeer_item(peer, with, 3, 1, 1, 0, 4);
    testpeer_item(peer, without, 4, 1, 1, 0, 4);
    testpeer_push(peer);
    testpeer_heartbeat(peer, 0, false);
    assert_int_equal(peer->credit->n_rejections, 2);
    assert_int_equal(peer->credit->rejections[0]->key, 2);
    assert_int_equal(peer->credit->rejections[1]->key, 3);
    assert_non_null(strstr(peer->credit->rejections[0]->text, "column 'action' has no data"));
    struct testpeer_answer *answer = testpeer_fetch(peer, "t", 1, &(uint64_t){4});
    uint32_t rows, width;
    free(sampled_rows(answer, 0, 0, &rows, &width));
    assert_int_equal(rows, 4);
}

/* The n-step transition: the last observation has no action. Only the rows that a field takes count. */
EMBED_TEST(a_column_absent_outside_the_rows_of_a_field_is_allowed, TABLE, NULL)
{
    struct testpeer *peer = testpeer_new(embed);
    testpeer_open_with(peer, false, three, 3);
    Replay__Field fields[] = {field("o", 0, 0, 1, 0), field("a", 1, 0, 1, 0), field("next_o", 0, -1, 1, 0)};
    uint32_t layout = testpeer_layout(peer, "t", 3, fields);
    static uint8_t data[3][400];
    const void *full[] = {data[0], data[1], data[2]}, *last[] = {data[0], NULL, data[2]};
    testpeer_chunk(peer, 1, full, false);
    testpeer_chunk(peer, 1, last, false);
    testpeer_item(peer, layout, 1, 1, 1, 0, 2);
    testpeer_push(peer);
    testpeer_heartbeat(peer, 0, false);
    assert_int_equal(peer->credit->n_rejections, 0);
    assert_int_equal(embed_table(embed, "t")->in.size, 1);
}
