/* The first four bytes give codec, element size, row size and rows; the rest is a block from the network, and then rows
 * to be encoded. What codec_check accepts codec_decode must decode; what is encoded must come back. */
#include <string.h>

#include "proto/wire/codec.h"
#include "tests/fuzz/target.h"

static void fuzz_block(struct codec_scratch *scratch, uint8_t codec, const struct codec_shape *shape,
                       const uint8_t *data, size_t size)
{
    size_t raw = codec_bound(shape);
    uint8_t *first = malloc(raw), *second = malloc(raw);
    rp_error err;
    memset(first, 0x00, raw);
    memset(second, 0xff, raw);
    rp_status checked = codec_check(codec, shape, data, size, &err);
    rp_status decoded = codec_decode(scratch, codec, shape, data, size, first, &err);
    if (codec == RP_CODEC_ABSENT) {
        CHECK(decoded == RP_NOT_FOUND && (checked == RP_OK) == (size == 0));
    } else if (codec == RP_CODEC_RAW) {
        CHECK((checked == RP_OK) == (decoded == RP_OK));
    } else if (checked == RP_OK) {
        /* Neither what was in the output before nor in the working memory shows. */
        CHECK(decoded == RP_OK);
        if (scratch->a != NULL)
            memset(scratch->a, 0xff, scratch->a_size);
        CHECK(codec_decode(scratch, codec, shape, data, size, second, &err) == RP_OK);
        CHECK(memcmp(first, second, raw) == 0);
    }
    free(first);
    free(second);
}

static void fuzz_rows(struct codec_scratch *scratch, int32_t wanted, const struct codec_shape *shape,
                      const uint8_t *data, size_t size)
{
    size_t raw = codec_bound(shape), out_size = 0;
    uint8_t *rows = calloc(1, raw), *out = malloc(raw), *back = malloc(raw), used = 0;
    memcpy(rows, data, size < raw ? size : raw);
    CHECK(codec_encode(scratch, wanted, shape, rows, out, &out_size, &used, NULL) == RP_OK);
    CHECK(out_size <= raw && (used == RP_CODEC_RAW) == (out_size == raw));
    CHECK(codec_check(used, shape, out, out_size, NULL) == RP_OK);
    CHECK(codec_decode(scratch, used, shape, out, out_size, back, NULL) == RP_OK);
    CHECK(memcmp(rows, back, raw) == 0);
    free(rows);
    free(out);
    free(back);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const uint8_t codecs[] = {RP_CODEC_RAW,
                                     RP_CODEC_LZ4,
                                     RP_CODEC_SHUFFLE_LZ4,
                                     RP_CODEC_DELTA_LZ4,
                                     RP_CODEC_DELTA_SHUFFLE_LZ4,
                                     RP_CODEC_ABSENT,
                                     RP_CODEC_AUTO,
                                     77};
    if (size < 4)
        return 0;
    struct codec_scratch scratch = {0};
    struct codec_shape shape = {.elem_bytes = 1u << (data[1] >> 5) % 5, .rank = data[1] >> 3 & 3};
    shape.is_integer = (data[1] & 1) && shape.elem_bytes <= 8;
    shape.row_bytes = shape.elem_bytes * (1u + data[2] % 64);
    shape.rows = 1u + data[3] % 64;
    uint8_t codec = codecs[data[0] % sizeof codecs];
    fuzz_block(&scratch, codec, &shape, data + 4, size - 4);
    if (codec != RP_CODEC_ABSENT && codec != 77)
        fuzz_rows(&scratch, codec, &shape, data + 4, size - 4);
    codec_scratch_fini(&scratch);
    return 0;
}
