/* Checks an LZ4 block without decompressing it. A block is a list of sequences: a token (literal length in the high four bits,
 * match length - 4 in the low four), more length bytes if the literal length is 15, the literals, a 2-byte offset, more length
 * bytes if the match length is 15. The last sequence ends after its literals. */
#include <stdbool.h>

#include "proto/wire/codec.h"

#define MIN_MATCH 4u
#define LAST_LITERALS 5u /* no match ends within these last bytes of the output */
#define MATCH_LIMIT 12u  /* no match begins within these last bytes of the output */

/* Adds the length bytes at *at to a nibble of 15. The caller finds a length above the number of remaining bytes; the sum cannot
 * overflow, because each byte of input adds at most 255. */
static inline bool read_length(const uint8_t **at, const uint8_t *end, uint64_t *length)
{
    uint8_t byte;
    do {
        if (*at == end)
            return false;
        byte = *(*at)++;
        *length += byte;
    } while (byte == 255);
    return true;
}

const char *codec_lz4_problem(const uint8_t *data, size_t size, uint64_t raw_size)
{
    const uint8_t *at = data, *end = data + size;
    uint64_t done = 0; /* never more than raw_size */
    while (at != end) {
        uint32_t token = *at++;
        uint64_t literals = token >> 4, match = (token & 15) + MIN_MATCH;
        if (literals == 15 && !read_length(&at, end, &literals))
            return "it ends within a length";
        if (literals > (uint64_t)(end - at))
            return "it ends within literals";
        if (literals > raw_size - done)
            return "it is longer than the rows";
        at += literals;
        done += literals;
        if (at == end)
            return done == raw_size ? NULL : "it is shorter than the rows";

        if (end - at < 2)
            return "it ends within an offset";
        uint32_t offset = (uint32_t)at[0] | (uint32_t)at[1] << 8;
        at += 2;
        if (match == 15 + MIN_MATCH && !read_length(&at, end, &match))
            return "it ends within a length";
        if (offset == 0 || offset > done)
            return "a match begins before the first row";
        if (match > raw_size - done)
            return "it is longer than the rows";
        if (raw_size - done < MATCH_LIMIT || raw_size - done - match < LAST_LITERALS)
            return "a match stands at its end, where only literals may";
        done += match;
    }
    return "it ends without literals";
}
