/* Sequences: which rows of an episode make an item. The adder in C (adder.c) and the one in Python (agent/python/src/rows.c) make their
 * items by these rules; they own writers and padding rows, and this header only counts.
 *
 * An item has `length` rows, L below; an item begins every `period` rows, P. Row t of an episode has s_t, a_t, r_t, d_t and a step
 * type; after T steps comes one more row, LAST, with s_T and zeros. So an episode of T steps has N = T + 1 rows. Items are made at the
 * write points, that is when the number of rows is L, L + P, L + 2P ..., each over the newest L rows. An episode that ends between
 * two write points is padded with rows of zeros up to the next one.
 *
 * A recurrent learner uses the first `burn_in` rows of an item to warm up its state, and trains on the others. An item that begins an
 * episode needs no warming up, so all of its rows train. P is at most L - burn_in, so every row of an episode is trained on. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#define SEQUENCE_MAX_LENGTH 65536

enum step_type { STEP_FIRST = 0, STEP_MID = 1, STEP_LAST = 2, STEP_PADDING = 3 }; /* column step_type, uint8 */

struct sequence {
    int64_t length, period, burn_in;
};

/* Returns false with a sentence in why if there are no such sequences. */
static inline bool sequence_check(const struct sequence *self, char *why, size_t size)
{
    long long length = self->length, period = self->period, burn_in = self->burn_in;
    if (length < 1 || length > SEQUENCE_MAX_LENGTH)
        snprintf(why, size, "length is %lld; it may be 1 to %d", length, SEQUENCE_MAX_LENGTH);
    else if (period < 1)
        snprintf(why, size, "period is %lld; it must be at least 1", period);
    else if (burn_in < 0 || burn_in >= length)
        snprintf(why, size,
                 "burn_in is %lld; it may be 0 to %lld, so that a sequence of length %lld has rows to train on",
                 burn_in, length - 1, length);
    else if (period > length - burn_in)
        snprintf(why, size,
                 "period is %lld; it may be at most length - burn_in, %lld: no sequence would train on the steps in "
                 "between",
                 period, length - burn_in);
    else
        return true;
    return false;
}

/* Number of rows that are missing up to the next write point: 0 if an item is to be made now. */
static inline uint64_t sequence_missing(const struct sequence *self, uint64_t rows)
{
    uint64_t length = (uint64_t)self->length, period = (uint64_t)self->period;
    if (rows <= length)
        return length - rows;
    uint64_t over = (rows - length) % period;
    return over == 0 ? 0 : period - over;
}

/* Whether an item may begin with this row of an episode that is padded at its end. */
static inline bool sequence_begins(const struct sequence *self, uint64_t row)
{
    return row % (uint64_t)self->period == 0;
}
