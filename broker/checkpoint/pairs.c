#include "broker/checkpoint/pairs.h"

#include <stdlib.h>
#include <string.h>

#define DIGIT_BITS 11u
#define DIGITS (1u << DIGIT_BITS)
#define PASSES 6u /* 66 bits */

static bool is_sorted(const struct pair *pairs, uint64_t n)
{
    for (uint64_t i = 1; i < n; i++)
        if (pairs[i].key < pairs[i - 1].key)
            return false;
    return true;
}

bool pairs_sort(struct pair *pairs, uint64_t n)
{
    if (is_sorted(pairs, n))
        return true;
    struct pair *other = malloc(n * sizeof *other);
    uint64_t(*counts)[DIGITS] = calloc(PASSES, sizeof *counts);
    if (other && counts) {
        for (uint64_t i = 0; i < n; i++)
            for (uint32_t pass = 0; pass < PASSES; pass++)
                counts[pass][pairs[i].key >> (pass * DIGIT_BITS) & (DIGITS - 1)]++;
        struct pair *from = pairs, *to = other;
        for (uint32_t pass = 0; pass < PASSES; pass++) {
            uint32_t shift = pass * DIGIT_BITS;
            if (counts[pass][from[0].key >> shift & (DIGITS - 1)] == n)
                continue; /* all keys have the same digit */
            uint64_t sum = 0;
            for (uint32_t digit = 0; digit < DIGITS; digit++) {
                uint64_t count = counts[pass][digit];
                counts[pass][digit] = sum;
                sum += count;
            }
            for (uint64_t i = 0; i < n; i++)
                to[counts[pass][from[i].key >> shift & (DIGITS - 1)]++] = from[i];
            struct pair *swap = from;
            from = to;
            to = swap;
        }
        if (from != pairs)
            memcpy(pairs, from, n * sizeof *pairs);
    }
    bool ok = other && counts;
    free(other);
    free(counts);
    return ok;
}
