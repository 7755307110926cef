

#include "broker/store/store.h"
#include "tests/support/testpeer.h"

/* Who is the first and who the last item of a table, in any order of tables. */
TEST(tables_enter_and_leave_a_chunk)
{
    struct store store;
    store_init(&store, UINT64_C(1) << 32);
    struct chunk *chunk = must(store_add(&store, 2, "0123456789", 10, 30, NULL));
    uint32_t model[4] = {0};
    uint64_t random = 12345;
    for (uint32_t step = 0; step < 20000; step++) {
        random = random * UINT64_C(6364136223846793005) + 1442695040888963407u;
        uint32_t table = (uint32_t)(random >> 40) % 4;
        if (random >> 63) {
            assert_int_equal(chunk_enter(&store, chunk, table), model[table] == 0);
            model[table]++;
        } else if (model[table]) {
            assert_int_equal(chunk_leave(&store, chunk, table), model[table] == 1);
            model[table]--;
        }
    }
    for (uint32_t table = 0; table < 4; table++)
        for (; model[table]; model[table]--)
            assert_int_equal(chunk_leave(&store, chunk, table), model[table] == 1);
    assert_int_equal(chunk->users, 0);
    store_release(&store, chunk);
    assert_int_equal(store_memory(&store), 0);
    store_fini(&store);
}

/* Sizes, codecs and data of a chunk have places of their own, compressed or not, with the head or apart. */
TEST(tables_of_a_chunk)
{
    static const uint32_t all_columns[] = {1, 2, 3, 16, 255}, parts[] = {3, STORE_OWN_BYTES};
    struct store store;
    store_init(&store, UINT64_C(1) << 32);
    for (uint32_t i = 0; i < 5 * 2 * 2; i++) {
        uint32_t columns = all_columns[i / 4], part = parts[i % 2], bytes = columns * part;
        uint32_t raw = i / 2 % 2 ? bytes : 2 * bytes + 1;
        uint8_t *data = malloc(bytes);
        for (uint32_t k = 0; k < bytes; k++)
            data[k] = (uint8_t)(k * 7 + 1);
        struct chunk *chunk = store_add(&store, columns, data, bytes, raw, NULL);
        assert_non_null(chunk);
        for (uint32_t c = 0; c < columns; c++) {
            chunk_block_sizes(chunk)[c] = part;
            chunk_block_codecs(chunk)[c] = (uint8_t)(255 - c);
        }
        assert_memory_equal(chunk_data(chunk), data, bytes);
        assert_int_equal(chunk_raw_bytes(chunk), raw);
        assert_int_equal(store.raw_bytes, raw);
        assert_int_equal(chunk->bytes, bytes);
        for (uint32_t c = 0; c < columns; c++) {
            assert_int_equal(chunk_block_sizes(chunk)[c], part);
            assert_int_equal(chunk_block_codecs(chunk)[c], 255 - c);
        }
        store_release(&store, chunk);
        assert_int_equal(store_memory(&store) + store.raw_bytes, 0);
        free(data);
    }
    store_fini(&store);
}

/* ---- how chunks travel ---- */

static void check_frames(uint32_t bytes, bool own, enum chunk_where where, uint32_t packed)
{
    struct embed embed;
    embed_start(&embed, "  - {name: t, max_size: 10, sampler: {kind: fifo}, limiter: {kind: none}}\n", NULL);
    struct testpeer *peer = testpeer_new(&embed);
    struct testpeer_column column = {"x", "uint8", 1, {bytes}, bytes};
    testpeer_open_with(peer, false, &column, 1);
    testpeer_insert_large(peer, "t", 7, bytes, own);
    embed_settle(&embed);
    const struct item *item = &embed_table(&embed, "t")->in.items[0];
    assert_int_equal(item->span.one->where, where);
    struct testpeer_answer *answer = testpeer_sampled(peer, "t", 1);
    assert_int_equal(answer->reply->sample->packed, packed);
    assert_int_equal(answer->n_payload, 1);
    uint32_t rows, width;
    free(sampled_rows(answer, 0, 0, &rows, &width));
    assert_int_equal(width, bytes);
    sampled_known(answer, 0);
    /* inproc hands the frame over as it is: the same bytes in memory, none of them touched. */
    const void *stored = chunk_data(item->span.one);
    assert_int_equal(zmq_msg_data(&answer->payload[0]) == stored, packed == 0 && where == CHUNK_IN_MESSAGE);
    embed_stop(&embed);
}

TEST(large_chunks_are_sent_without_a_copy)
{
    check_frames(STORE_OWN_BYTES - 1, true, CHUNK_WITH_HEAD, 1);
    check_frames(STORE_OWN_BYTES, true, CHUNK_IN_SLAB, 1);
    check_frames(20000, true, CHUNK_IN_HEAP, 1);
    check_frames(STORE_KEEP_BYTES - 1, true, CHUNK_IN_HEAP, 1); /* copied; from here on the message is the storage */
    check_frames(STORE_KEEP_BYTES, true, CHUNK_IN_MESSAGE, 1);
    check_frames(128u << 10, true, CHUNK_IN_MESSAGE, 1);
    check_frames((128u << 10) + 1, true, CHUNK_IN_MESSAGE, 0);
    check_frames(1u << 20, true, CHUNK_IN_MESSAGE, 0);
    check_frames(1u << 20, false, CHUNK_IN_MESSAGE, 0); /* packed on the way in: copied once */
}
