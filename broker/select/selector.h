/* The built-in selectors by name. Their contract is in include/replay/plugin.h.
 *
 * This room owns what a table is made of and what knows no table: selectors with their sum tree and slot set, the limiter
 * (limiter.h) and the map from keys to slots (keymap.h). It may use the store's reserved memory. Slot arrays are reserved once
 * for the table's capacity and touched as they fill, so that no insert ever pays for growth.
 *
 * Probabilities: a pick reports weight / sum of weights at its time: 1 for fifo, lifo and the heaps, 1 / n for uniform. In
 * pick_distinct the sum is over slots that have not been taken out; a skipped slot is taken out when a draw meets it, so a
 * slot that no draw has met still counts. */
#pragma once

#include "replay/plugin.h"

extern const rp_selector_ops selector_fifo;
extern const rp_selector_ops selector_lifo;
extern const rp_selector_ops selector_uniform;
extern const rp_selector_ops selector_min_heap;
extern const rp_selector_ops selector_max_heap;
extern const rp_selector_ops selector_prioritized; /* option exponent: default 1, may be negative */

/* NULL: no built-in selector has this name. */
const rp_selector_ops *selector_builtin(const char *name);
/* Names in order of i. NULL: i is too large. */
const char *selector_builtin_name(uint32_t i);

/* Returns the bytes that a slot takes in a selector. 0: it is not built in. */
uint32_t selector_slot_bytes(const char *name);
