#include "broker/journal/reader.h"
#include "proto/base/error.h"
#include "tests/support/diskfile.h"
#include "tests/support/naive.h"
#include "tests/support/tempdir.h"

#define CHUNKS 6000u
#define LARGEST (5u << 20)

struct world {
    char *path;
    struct folder folder;
    uint64_t at[CHUNKS];
    uint32_t size[CHUNKS];
    uint8_t *data; /* chunk i has the bytes from i on */
};

static uint32_t random_size(struct rng *rng)
{
    uint64_t what = rng_below(rng, 1000);
    if (what == 0)
        return (uint32_t)rng_below(rng, LARGEST);
    if (what < 10)
        return (uint32_t)rng_below(rng, 300000);
    return (uint32_t)rng_below(rng, 2000);
}

static void world_open(struct world *w, struct rng *rng)
{
    w->path = diskfile_folder();
    assert_int_equal(folder_open(&w->folder, w->path, true, NULL), RP_OK);
    w->data = malloc(LARGEST + CHUNKS);
    for (size_t i = 0; i < LARGEST + CHUNKS; i++)
        w->data[i] = (uint8_t)(i * 7 + i / 251);
    struct diskfile out;
    for (uint32_t i = 0; i < CHUNKS; i++) {
        if (i % 1000 == 0) {
            diskfile_begin(&out, &w->folder, DISK_SEGMENT, 1 + i / 1000 * 2);
            diskfile_start(&out, 1, 0, 0, 0, 0, 0);
        }
        w->size[i] = random_size(rng);
        w->at[i] = diskfile_chunk(&out, i, w->data + i, w->size[i]);
        if (rng_below(rng, 20) == 0)
            diskfile_flush(&out);
        if (i % 1000 == 999)
            diskfile_end(&out, &w->folder);
    }
}

static void world_close(struct world *w)
{
    free(w->data);
    folder_close(&w->folder);
    diskfile_remove(&w->path);
}

struct seen {
    const struct world *world;
    const uint64_t *at;
    uint64_t n, next, stop_at;
};

static rp_status look(void *ctx, uint64_t at, const struct chunk_view *chunk, rp_error *error)
{
    struct seen *seen = ctx;
    while (seen->next > 0 && seen->next < seen->n && seen->at[seen->next] == seen->at[seen->next - 1])
        seen->next++;
    assert_true(seen->next < seen->n);
    assert_int_equal(at, seen->at[seen->next]);
    uint64_t i = chunk->head->step;
    assert_int_equal(seen->world->at[i], at);
    assert_int_equal(chunk->head->bytes, seen->world->size[i]);
    assert_memory_equal(chunk->data, seen->world->data + i, chunk->head->bytes);
    if (++seen->next == seen->stop_at)
        return err_set(error, RP_CANCELLED, "enough");
    return RP_OK;
}

TEST(any_places)
{
    struct rng rng = naive_rng("disk_chunks");
    static struct world w;
    static uint64_t at[2 * CHUNKS];
    world_open(&w, &rng);
    const uint64_t shares[] = {1000, 500, 100, 20, 3, 1};
    for (size_t s = 0; s < sizeof shares / sizeof *shares; s++) {
        uint64_t n = 0;
        for (uint32_t i = 0; i < CHUNKS; i++)
            if (rng_below(&rng, 1000) < shares[s]) {
                at[n++] = w.at[i];
                if (rng_below(&rng, 10) == 0)
                    at[n++] = w.at[i];
            }
        struct seen seen = {.world = &w, .at = at, .n = n};
        ok(chunks_read(&w.folder, at, n, look, &seen, &err));
        while (seen.next > 0 && seen.next < n && at[seen.next] == at[seen.next - 1])
            seen.next++;
        assert_int_equal(seen.next, n);
    }
    /* One by one, and an end on the way. */
    for (uint32_t i = 0; i < 50; i++) {
        uint64_t one = w.at[rng_below(&rng, CHUNKS)];
        struct seen seen = {.world = &w, .at = &one, .n = 1};
        assert_int_equal(chunks_read(&w.folder, &one, 1, look, &seen, NULL), RP_OK);
        assert_int_equal(seen.next, 1);
    }
    struct seen seen = {.world = &w, .at = w.at, .n = CHUNKS, .stop_at = 2500};
    assert_int_equal(chunks_read(&w.folder, w.at, CHUNKS, look, &seen, &err), RP_CANCELLED);
    assert_string_equal(err.text, "enough");
    assert_int_equal(seen.next, 2500);
    assert_int_equal(chunks_read(&w.folder, w.at, 0, look, &seen, &err), RP_OK);
    world_close(&w);
}

static rp_status count(void *ctx, uint64_t at, const struct chunk_view *chunk, rp_error *error)
{
    (void)at;
    (void)error;
    *(uint64_t *)ctx += chunk != NULL;
    return chunk ? RP_OK : RP_DATA_LOSS;
}

TEST(damage)
{
    struct world w = {.path = diskfile_folder()};
    assert_int_equal(folder_open(&w.folder, w.path, true, NULL), RP_OK);
    struct diskfile out;
    diskfile_begin(&out, &w.folder, DISK_SEGMENT, 1);
    static uint64_t at[600];
    uint8_t data[64] = {1, 2, 3};
    for (uint32_t i = 0; i < 600; i++)
        at[i] = diskfile_chunk(&out, i, data, sizeof data);
    diskfile_end(&out, &w.folder);
    uint64_t seen = 0;
    /* Of each byte of a chunk: what is not the start of an entry, has another size or another sum. */
    for (uint64_t i = 0; i < sizeof(struct entry_head) + sizeof(struct entry_chunk) + 5 + sizeof data; i++) {
        /* The checksum is of sizes, codecs and data: not of the entry's table, nor of most of the chunk's head. */
        bool covered = i < 6 || (i >= 20 && i < 24) || (i >= 36 && i < 41) || i >= 48;
        if (!covered)
            continue;
        seen = 0;
        diskfile_flip(w.path, DISK_SEGMENT, 1, disk_offset(at[300]) + i, 0x40);
        if (chunks_read(&w.folder, at, 600, count, &seen, &err) != RP_DATA_LOSS || seen != 300)
            fail_msg("byte %llu: %llu chunks", (unsigned long long)i, (unsigned long long)seen);
        assert_non_null(strstr(err.text, "segment 1 at offset"));
        assert_int_equal(chunks_read(&w.folder, at + 300, 1, count, &seen, &err), RP_DATA_LOSS);
        diskfile_flip(w.path, DISK_SEGMENT, 1, disk_offset(at[300]) + i, 0x40);
    }
    /* Places that are none. */
    uint64_t none[2] = {at[5] + 8, at[6]};
    assert_int_equal(chunks_read(&w.folder, none, 2, count, &seen, &err), RP_DATA_LOSS);
    none[0] = at[7];
    assert_int_equal(chunks_read(&w.folder, none, 2, count, &seen, &err), RP_INVALID_ARGUMENT);
    none[0] = disk_at(1, 1 << 30);
    assert_int_equal(chunks_read(&w.folder, none, 1, count, &seen, &err), RP_DATA_LOSS);
    none[0] = disk_at(2, 64);
    must_fail(chunks_read(&w.folder, none, 1, count, &seen, &err), RP_DATA_LOSS, "segment-00000002.replay");
    none[0] = 0;
    assert_int_equal(chunks_read(&w.folder, none, 1, count, &seen, &err), RP_INVALID_ARGUMENT);
    /* The file ends in the last one. */
    for (uint64_t left = 4; left < 120; left += 7) { /* 3 are padding */
        assert_int_equal(
            truncate(file_in(w.path, "segment-00000001.replay"), (off_t)(disk_offset(at[599]) + 120 - left)), 0);
        seen = 0;
        assert_int_equal(chunks_read(&w.folder, at, 600, count, &seen, &err), RP_DATA_LOSS);
        assert_true(seen <= 599);
    }
    folder_close(&w.folder);
    diskfile_remove(&w.path);
}
