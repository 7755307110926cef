/* Column blocks: `rows` steps of one column, stored raw or compressed. Format in PROTOCOL.md, "Blocks".
 *
 * The raw size of a block is always rows * row_bytes, known to both sides from the column and the chunk's length, so no
 * block carries a size that could be wrong. All numbers are little-endian. A block is made in up to three stages, in this
 * order; the codec says which:
 *
 *   delta    Row 0 stays as it is. Every other row is replaced by its difference to the row before (of the original
 *            rows), element by element: for the integer dtypes the subtraction modulo 2^bits, for all others (bool,
 *            floating point, complex) the exclusive or of the bits. To undo it, add (or xor) each row to the restored
 *            row before it, from the first to the last.
 *   shuffle  The block is taken as one sequence of n elements of elem_bytes bytes, rows not regarded. First come byte 0
 *            of all n elements, then byte 1 of all, and so on: out[b * n + i] = in[i * elem_bytes + b].
 *   lz4      One LZ4 block (not a frame) that decompresses to exactly the raw size. The end-of-block rules of the LZ4
 *            block format hold: the last sequence has literals only, no match ends within the last 5 bytes or begins
 *            within the last 12, and no offset is 0.
 *
 * Elements of complex dtypes are 8 or 16 bytes. With elem_bytes 1 shuffle changes nothing, with one row delta. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "replay/types.h"

/* What a block holds. elem_bytes is the dtype's size; row_bytes a multiple of it. */
struct codec_shape {
    uint32_t elem_bytes;
    uint32_t is_integer;
    uint64_t row_bytes;
    uint32_t rows;
    uint32_t rank; /* of one step: a hint. AUTO begins with delta for integers of rank >= 2 (images) */
};

/* Reusable working memory of an encoder or decoder; zero-initialised, owned by one thread. A writer has one for each
 * column, so that AUTO backs off from the columns that do not shrink and not from the others. */
struct codec_scratch {
    uint8_t *a, *b;
    size_t a_size, b_size;
    /* AUTO's memory: after a block that would not shrink, store the next ones raw without trying: 1, 2, 4 ... 64. */
    uint32_t skip, backoff;
};
void codec_scratch_fini(struct codec_scratch *self);

/* Largest size that codec_encode may write: never more than the raw size. */
size_t codec_bound(const struct codec_shape *shape);

/* Encodes into out (codec_bound bytes). Whatever was wanted, the block is stored raw if it does not shrink. With
 * RP_CODEC_AUTO all that may help are tried and the smallest is taken; a block of less than 64 bytes, or one that does
 * not shrink by a sixteenth, is stored raw. Gives the size, and the codec used in *used. Fails for lack of memory, and
 * for a codec that does not exist. */
rp_status codec_encode(struct codec_scratch *scratch, int32_t wanted, const struct codec_shape *shape, const void *rows,
                       void *out, size_t *out_size, uint8_t *used, rp_error *err);

/* Checks a block from the network, without decoding it: codec_decode succeeds on it and gives the same bytes on every machine.
 * For lz4 it walks the sequences: lengths, offsets, the exact total and the end-of-block rules. RP_CODEC_ABSENT must have size
 * 0. Fails with RP_BAD_MESSAGE. */
rp_status codec_check(uint8_t codec, const struct codec_shape *shape, const void *data, size_t size, rp_error *err);

/* Decodes into out, rows * row_bytes bytes. Safe on any input: a block that does not have this shape gives RP_DATA_LOSS (but an
 * lz4 block with an offset of 0 or a wrong end, which codec_check refuses, may give meaningless rows). An absent block gives
 * RP_NOT_FOUND. */
rp_status codec_decode(struct codec_scratch *scratch, uint8_t codec, const struct codec_shape *shape, const void *data,
                       size_t size, void *out, rp_error *err);

/* The stages that codec.c is made of. in and out do not overlap and hold rows * row_bytes bytes. */
void codec_shuffle(const struct codec_shape *shape, const uint8_t *in, uint8_t *out, bool back);
void codec_delta(const struct codec_shape *shape, const uint8_t *in, uint8_t *out);
void codec_undelta(const struct codec_shape *shape, uint8_t *rows);
