/* A map from 64-bit item keys to slots. Keys of one session count up, so 16 consecutive keys share a block: one directory entry
 * tagged with key >> 4, and one 64-byte line of 16 slots. The directory grows a little at every insert, never all at once. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define KEYMAP_NONE UINT32_MAX
#define KEYMAP_LINE_KEYS 16u

struct keymap;

/* account: the map adds its bytes to it as it grows, and takes them off at its end; NULL: nobody counts. */
struct keymap *keymap_new(uint64_t *account);
void keymap_destroy(struct keymap **self);

/* Returns the slot of a key. KEYMAP_NONE: no such key. */
uint32_t keymap_get(const struct keymap *self, uint64_t key);
/* The same for n keys at once: their cache misses overlap. */
void keymap_get_many(const struct keymap *self, uint32_t n, const uint64_t *keys, uint32_t *slots);
/* Adds a key. slot is not KEYMAP_NONE. False: the key exists, and nothing has changed. */
bool keymap_put(struct keymap *self, uint64_t key, uint32_t slot);
/* Removes a key and returns its slot. KEYMAP_NONE: no such key. */
uint32_t keymap_remove(struct keymap *self, uint64_t key);
/* Prefetches the directory entry that a look-up of this key will touch. */
void keymap_prefetch(const struct keymap *self, uint64_t key);
/* Bytes reserved; pages that were never touched are not in memory yet. */
size_t keymap_bytes(const struct keymap *self);
/* True if a further key may need more memory. */
bool keymap_is_full(const struct keymap *self);
/* The most directory entries that a single keymap_put has moved to a larger directory. */
uint32_t keymap_most_moved(const struct keymap *self);
