#include "proto/wire/codec.h"

#include <lz4.h>

#include "tests/support/naive.h"

static struct rng rng;

static int seed_rng(void **state)
{
    (void)state;
    rng = naive_rng("codec");
    return 0;
}

/* ---- plain models of every stage */

static void model_shuffle(const uint8_t *in, uint8_t *out, size_t bytes, size_t width)
{
    size_t n = bytes / width;
    for (size_t i = 0; i < n; i++) {
        for (size_t b = 0; b < width; b++)
            out[b * n + i] = in[i * width + b];
    }
}

static void model_delta(const struct codec_shape *s, const uint8_t *in, uint8_t *out)
{
    for (size_t i = 0; i < s->rows * s->row_bytes; i += s->elem_bytes) {
        uint64_t x = 0, before = 0;
        if (i < s->row_bytes || !s->is_integer) {
            for (size_t b = 0; b < s->elem_bytes; b++)
                out[i + b] = i < s->row_bytes ? in[i + b] : (uint8_t)(in[i + b] ^ in[i + b - s->row_bytes]);
            continue;
        }
        memcpy(&x, in + i, s->elem_bytes);
        memcpy(&before, in + i - s->row_bytes, s->elem_bytes);
        x -= before;
        memcpy(out + i, &x, s->elem_bytes);
    }
}

/* Decompresses by the letter of the format, byte by byte. -1: not valid. */
static int64_t model_lz4(const uint8_t *in, size_t size, uint8_t *out, size_t capacity)
{
    size_t at = 0, done = 0;
    for (;;) {
        if (at >= size)
            return -1;
        uint8_t token = in[at++], more = 255;
        uint64_t literals = token >> 4, match = token & 15;
        for (; literals >= 15 && more == 255; literals += more) {
            if (at >= size)
                return -1;
            more = in[at++];
        }
        for (; literals > 0; literals--) {
            if (at >= size || done >= capacity)
                return -1;
            out[done++] = in[at++];
        }
        if (at == size)
            return (int64_t)done;
        if (at + 2 > size)
            return -1;
        size_t offset = in[at] + 256u * in[at + 1];
        at += 2;
        more = 255;
        for (; match >= 15 && more == 255; match += more) {
            if (at >= size)
                return -1;
            more = in[at++];
        }
        match += 4;
        if (offset == 0 || offset > done || done + 12 > capacity || done + match + 5 > capacity)
            return -1;
        for (; match > 0; match--, done++)
            out[done] = out[done - offset];
    }
}

/* ---- data */

static const uint32_t widths[] = {1, 2, 4, 8, 16};

static struct codec_shape random_shape(void)
{
    struct codec_shape s = {.elem_bytes = widths[rng_below(&rng, 5)]};
    s.is_integer = s.elem_bytes < 16 && rng_below(&rng, 2);
    s.row_bytes = s.elem_bytes * (1 + rng_below(&rng, rng_below(&rng, 4) == 0 ? 300 : 12));
    s.rows = (uint32_t)(1 + rng_below(&rng, 40));
    s.rank = (uint32_t)rng_below(&rng, 4);
    return s;
}

/* Rows of four kinds: noise, zeros, slowly changing, a short pattern. */
static uint8_t *random_rows(const struct codec_shape *s)
{
    size_t bytes = (size_t)(s->rows * s->row_bytes);
    uint8_t *rows = calloc(1, bytes);
    uint32_t kind = (uint32_t)rng_below(&rng, 4);
    for (size_t i = 0; i < bytes && kind != 1; i++) {
        if (kind == 0)
            rows[i] = (uint8_t)rng_next(&rng);
        else if (kind == 2 && i >= s->row_bytes)
            rows[i] = (uint8_t)(rows[i - s->row_bytes] + (rng_below(&rng, 20) == 0));
        else
            rows[i] = (uint8_t)(i % 7 * 37);
    }
    return rows;
}

/* ---- tests */

TEST(stages_match_their_models)
{
    for (uint32_t round = 0; round < 600; round++) {
        struct codec_shape s = random_shape();
        size_t bytes = codec_bound(&s);
        uint8_t *rows = random_rows(&s), *got = malloc(bytes), *want = malloc(bytes);
        codec_shuffle(&s, rows, got, false);
        model_shuffle(rows, want, bytes, s.elem_bytes);
        assert_memory_equal(got, want, bytes);
        codec_shuffle(&s, got, want, true);
        assert_memory_equal(want, rows, bytes);
        codec_delta(&s, rows, got);
        model_delta(&s, rows, want);
        assert_memory_equal(got, want, bytes);
        codec_undelta(&s, got);
        assert_memory_equal(got, rows, bytes);
        free(rows);
        free(got);
        free(want);
    }
}

/* Returns the size. */
static size_t check_encoded(struct codec_scratch *scratch, int32_t wanted, const struct codec_shape *s,
                            const uint8_t *rows)
{
    size_t raw = codec_bound(s), size = 0;
    uint8_t *out = malloc(raw), *back = malloc(raw), used = 99;
    assert_int_equal(codec_encode(scratch, wanted, s, rows, out, &size, &used, &err), RP_OK);
    assert_true(size <= raw);
    assert_true(used <= RP_CODEC_DELTA_SHUFFLE_LZ4);
    assert_int_equal(used == RP_CODEC_RAW, size == raw);
    if (wanted == RP_CODEC_AUTO && used != RP_CODEC_RAW)
        assert_true(size <= raw - raw / 16 && raw >= 64);
    out = realloc(out, size);
    assert_int_equal(codec_check(used, s, out, size, &err), RP_OK);
    memset(back, 0xaa, raw);
    assert_int_equal(codec_decode(scratch, used, s, out, size, back, &err), RP_OK);
    assert_memory_equal(back, rows, raw);
    free(out);
    free(back);
    return size;
}

/* And auto takes the smallest, if it is worth it. The working memory grows with the shapes and keeps what was in it. */
TEST(what_is_encoded_comes_back)
{
    struct codec_scratch scratch = {0}, automatic = {0};
    for (uint32_t round = 0; round < 300; round++) {
        struct codec_shape s = random_shape();
        uint8_t *rows = random_rows(&s);
        size_t raw = codec_bound(&s), best = raw;
        for (int32_t codec = RP_CODEC_RAW; codec <= RP_CODEC_DELTA_SHUFFLE_LZ4; codec++) {
            size_t size = check_encoded(&scratch, codec, &s, rows);
            best = size < best ? size : best;
        }
        if (raw < 64 || best > raw - (raw + 15) / 16)
            best = raw;
        automatic.skip = automatic.backoff = 0; /* blocks before, which did not shrink, do not count */
        assert_int_equal(check_encoded(&automatic, RP_CODEC_AUTO, &s, rows), best);
        free(rows);
    }
    codec_scratch_fini(&scratch);
    codec_scratch_fini(&automatic);
    assert_null(scratch.a);
}

TEST(auto_backs_off_from_noise)
{
    struct codec_shape s = {.elem_bytes = 1, .row_bytes = 256, .rows = 1};
    struct codec_scratch scratch = {0};
    uint8_t noise[256], zeros[256] = {0}, out[256], used;
    size_t size;
    for (size_t i = 0; i < sizeof noise; i++)
        noise[i] = (uint8_t)rng_next(&rng);
    uint32_t tried = 0;
    for (uint32_t i = 0; i < 1000; i++) {
        tried += scratch.skip == 0;
        assert_int_equal(codec_encode(&scratch, RP_CODEC_AUTO, &s, noise, out, &size, &used, NULL), RP_OK);
        assert_int_equal(used, RP_CODEC_RAW);
    }
    /* 1 + 2 + 4 + ... + 64 are skipped after the first seven, then 64 after each. */
    assert_int_equal(tried, 7 + (1000 - 7 - 127 + 64) / 65);
    /* It finds its way back as soon as it looks again. */
    uint32_t raw = 0;
    for (used = RP_CODEC_RAW; raw <= 64; raw++) {
        assert_int_equal(codec_encode(&scratch, RP_CODEC_AUTO, &s, zeros, out, &size, &used, NULL), RP_OK);
        if (used != RP_CODEC_RAW)
            break;
    }
    assert_true(raw <= 64);
    assert_int_equal(codec_encode(&scratch, RP_CODEC_AUTO, &s, zeros, out, &size, &used, NULL), RP_OK);
    assert_int_equal(used, RP_CODEC_LZ4);
    codec_scratch_fini(&scratch);
}

TEST(filters_help_where_they_should)
{
    struct codec_scratch scratch = {0};
    uint8_t out[4096], used;
    size_t size;
    /* A counter: the difference of each step is constant. */
    int64_t counter[256];
    for (int64_t i = 0; i < 256; i++)
        counter[i] = i * 1000003;
    struct codec_shape s = {.elem_bytes = 8, .is_integer = 1, .row_bytes = 8, .rows = 256};
    assert_int_equal(codec_encode(&scratch, RP_CODEC_AUTO, &s, counter, out, &size, &used, NULL), RP_OK);
    assert_true(used == RP_CODEC_DELTA_LZ4 || used == RP_CODEC_DELTA_SHUFFLE_LZ4);
    assert_true(size < 64);
    /* Small floats with noise in the low bytes only: shuffle brings sign and exponent together. */
    float noisy[512];
    for (size_t i = 0; i < 512; i++)
        noisy[i] = 1.0f + (float)rng_unit(&rng) / 256;
    s = (struct codec_shape){.elem_bytes = 4, .row_bytes = sizeof noisy, .rows = 1};
    assert_int_equal(codec_encode(&scratch, RP_CODEC_AUTO, &s, noisy, out, &size, &used, NULL), RP_OK);
    assert_int_equal(used, RP_CODEC_SHUFFLE_LZ4);
    codec_scratch_fini(&scratch);
}

/* PROTOCOL.md's worked example: four steps of an int16 column of shape [4]. */
TEST(example_of_the_protocol)
{
    const struct codec_shape s = {.elem_bytes = 2, .is_integer = 1, .row_bytes = 8, .rows = 4, .rank = 1};
    const int16_t rows[16] = {1, 2, 3, 4, 2, 3, 4, 5, 3, 4, 5, 6, 4, 5, 6, 7};
    static const uint8_t plain[] = {0x73, 1, 0, 2, 0, 3, 0, 4, 6, 0, 0x11, 5, 0x0c, 0,
                                    0xc0, 5, 0, 6, 0, 4, 0, 5, 0, 6, 0,    7, 0};
    static const uint8_t shuffled[] = {0xf6, 2, 1, 2, 3, 4, 2, 3,    4, 5, 3, 4, 5, 6,
                                       4,    5, 6, 7, 0, 1, 0, 0x50, 0, 0, 0, 0, 0};
    static const uint8_t delta[] = {0x9e, 1, 0, 2, 0, 3, 0, 4, 0, 1, 2, 0, 0x50, 0, 1, 0, 1, 0};
    static const uint8_t both[] = {0x57, 1, 2, 3, 4, 1, 1, 0, 0x16, 0, 1, 0, 0x50, 0, 0, 0, 0, 0};
    const struct {
        const uint8_t *data;
        size_t size;
    } blocks[] = {{(const uint8_t *)rows, sizeof rows},
                  {plain, sizeof plain},
                  {shuffled, sizeof shuffled},
                  {delta, sizeof delta},
                  {both, sizeof both}};
    struct codec_scratch scratch = {0};
    for (uint8_t codec = 0; codec < 5; codec++) {
        int16_t back[16] = {0};
        assert_int_equal(codec_check(codec, &s, blocks[codec].data, blocks[codec].size, NULL), RP_OK);
        assert_int_equal(codec_decode(&scratch, codec, &s, blocks[codec].data, blocks[codec].size, back, NULL), RP_OK);
        assert_memory_equal(back, rows, sizeof rows);
    }
    codec_scratch_fini(&scratch);
}

static void check_refused(uint8_t codec, const struct codec_shape *s, const void *data, size_t size, const char *part)
{
    err = (rp_error){0};
    assert_int_equal(codec_check(codec, s, data, size, &err), RP_BAD_MESSAGE);
    if (strstr(err.text, part) == NULL)
        fail_msg("'%s' is not in '%s'", part, err.text);
    assert_int_equal(codec_check(codec, s, data, size, NULL), RP_BAD_MESSAGE);
}

TEST(what_is_refused)
{
    const struct codec_shape s = {.elem_bytes = 1, .row_bytes = 16, .rows = 2};
    const struct codec_shape huge = {.elem_bytes = 1, .row_bytes = UINT64_C(1) << 30, .rows = UINT32_MAX};
    const struct codec_shape none = {.elem_bytes = 1, .row_bytes = 16, .rows = 0};
    uint8_t data[64] = {0}, out[32];
    struct codec_scratch scratch = {0};
    check_refused(RP_CODEC_RAW, &s, data, 31, "31 bytes: 2 rows of 16 take 32");
    check_refused(RP_CODEC_RAW, &s, data, 33, "33 bytes");
    check_refused(RP_CODEC_ABSENT, &s, data, 1, "absent");
    check_refused(RP_CODEC_AUTO, &s, data, 32, "unknown codec 255");
    check_refused(5, &s, data, 32, "unknown codec 5");
    check_refused(RP_CODEC_LZ4, &s, data, 0, "0 bytes");
    check_refused(RP_CODEC_LZ4, &s, NULL, 0, "0 bytes");
    check_refused(RP_CODEC_LZ4, &huge, data, 10, "send it raw");
    check_refused(RP_CODEC_LZ4, &none, data, 1, "send it raw");
    check_refused(RP_CODEC_LZ4, &s, "\x10x\x01", 3, "within an offset");
    check_refused(RP_CODEC_LZ4, &s, "\xf0\xff\xff", 3, "within a length");
    check_refused(RP_CODEC_LZ4, &s, "\x50xx", 3, "within literals");
    check_refused(RP_CODEC_LZ4, &s, "\x50xxxxx", 6, "shorter than the rows");
    check_refused(RP_CODEC_LZ4, &s, "\x1fx\x01\x00\x06\x50xxxxx", 11, "shorter than the rows");
    check_refused(RP_CODEC_LZ4, &s, "\x1fx\x01\x00\x09\x50xxxxx", 11, "at its end");
    check_refused(RP_CODEC_LZ4, &s, "\x1fx\x01\x00\x20\x50xxxxx", 11, "longer than the rows");
    check_refused(RP_CODEC_LZ4, &s, "\x1fx\x02\x00\x07\x50xxxxx", 11, "before the first row");
    check_refused(RP_CODEC_LZ4, &s, "\x1fx\x00\x00\x07\x50xxxxx", 11, "before the first row");
    check_refused(RP_CODEC_LZ4, &s, "\x1fx\x01\x00\x07", 5, "without literals");
    assert_int_equal(codec_check(RP_CODEC_LZ4, &s, "\x1fx\x01\x00\x07\x60xxxxxx", 12, NULL), RP_BAD_MESSAGE);
    assert_int_equal(codec_check(RP_CODEC_LZ4, &s, "\x2fxx\x01\x00\x06\x50xxxxx", 12, NULL), RP_OK);
    assert_int_equal(codec_check(RP_CODEC_ABSENT, &s, NULL, 0, NULL), RP_OK);
    assert_int_equal(codec_check(RP_CODEC_RAW, &none, NULL, 0, NULL), RP_OK);

    assert_int_equal(codec_decode(&scratch, RP_CODEC_ABSENT, &s, NULL, 0, out, &err), RP_NOT_FOUND);
    assert_int_equal(codec_decode(&scratch, RP_CODEC_RAW, &s, data, 31, out, &err), RP_DATA_LOSS);
    assert_int_equal(codec_decode(&scratch, 77, &s, data, 32, out, &err), RP_DATA_LOSS);
    assert_int_equal(codec_decode(&scratch, RP_CODEC_LZ4, &s, "\x50xxxxx", 6, out, &err), RP_DATA_LOSS);
    assert_int_equal(codec_decode(&scratch, RP_CODEC_LZ4, &huge, data, 6, NULL, &err), RP_DATA_LOSS);
    size_t size;
    uint8_t used;
    assert_int_equal(codec_encode(&scratch, 9, &s, data, out, &size, &used, &err), RP_INVALID_ARGUMENT);
    codec_scratch_fini(&scratch);
}

/* check says yes exactly where the plain decoder does; then lz4 gives the same bytes. Where lz4 accepts more than the
 * format allows, the plain decoder disagrees with it, never with check. Counts how often each case came up. */
static void compare_decoders(const struct codec_shape *s, const uint8_t *data, size_t size, uint32_t seen[2])
{
    size_t raw = codec_bound(s);
    uint8_t *exact = malloc(size > 0 ? size : 1), *by_model = malloc(raw), *by_lz4 = malloc(raw);
    memcpy(exact, data, size);
    bool ok = codec_check(RP_CODEC_LZ4, s, exact, size, NULL) == RP_OK;
    bool model = model_lz4(exact, size, by_model, raw) == (int64_t)raw;
    assert_int_equal(ok, model);
    bool lz4 = codec_decode(NULL, RP_CODEC_LZ4, s, exact, size, by_lz4, NULL) == RP_OK;
    if (ok) {
        assert_true(lz4);
        assert_memory_equal(by_lz4, by_model, raw);
    }
    seen[ok]++;
    free(exact);
    free(by_model);
    free(by_lz4);
}

/* Short random sequences over a small alphabet reach the end-of-block rules far more often than mutations do. */
TEST(check_and_decode_agree_on_random_sequences)
{
    uint32_t seen[2] = {0};
    for (uint32_t round = 0; round < 60000; round++) {
        struct codec_shape s = {.elem_bytes = 1, .row_bytes = 1, .rows = 1 + (uint32_t)rng_below(&rng, 100)};
        uint8_t block[160];
        size_t size = 0;
        uint32_t made = 0;
        while (made < s.rows && size < 100) {
            uint32_t literals = (uint32_t)rng_below(&rng, 9), match = (uint32_t)rng_below(&rng, 16);
            bool last = rng_below(&rng, 4) == 0 && s.rows - made < 15;
            if (last)
                literals = s.rows - made;
            block[size++] = (uint8_t)(literals << 4 | (last ? 0 : match));
            memset(block + size, 'x', literals);
            size += literals;
            made += literals;
            if (last)
                break;
            block[size++] = (uint8_t)rng_below(&rng, made + 2 < 256 ? made + 2 : 256);
            block[size++] = 0;
            if (match == 15) {
                block[size] = (uint8_t)rng_below(&rng, 20);
                match += block[size++];
            }
            made += match + 4;
        }
        compare_decoders(&s, block, size, seen);
    }
    assert_true(seen[0] > 1000 && seen[1] > 100);
}

int main(void)
{
    return test_run(seed_rng, NULL);
}
