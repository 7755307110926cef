/* The directory is an open-addressing table of entries with linear probing and deletion by shifting back. Each entry stands for
 * the 16 keys that share key >> 4. While only one of these keys is in use its slot is in the entry itself, otherwise in a line
 * of 16 slots. So keys that count up cost a sixteenth of an entry and 4 bytes each, and random keys one entry each.
 *
 * When the directory is half full a new one of twice the size is reserved, and each new block moves a few cells of the old
 * directory, one run of neighbours at a time, in the order of the cells. A block's home cell in the old directory tells whether
 * the block has moved, so each look-up goes to only one of the two directories. */
#include "broker/select/keymap.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "broker/store/reserve.h"
#include "proto/base/need.h"
#include "proto/base/rng.h"

#define LINE_KEYS KEYMAP_LINE_KEYS
#define FIRST_CELLS 256u
#define MOVE_CELLS                                                                                                     \
    16u /* cells scanned for each new block while moving: enough to finish before the old directory is full */
/* Lines of the first segment. Each further segment is twice as large, up to SMALL_LINES; all later ones are huge pages:
 * look-ups go to all of them at random, and the misses of page tables cost as much as those of lines. */
#define FIRST_LINES 256u
#define SMALL_LINES 4096u
#define HUGE_LINES 32768u

/* value: 0 if the cell is free; slot << 1 | 1 if the block has one key, whose low bits are in tag; otherwise a pointer to
 * the line. tag: key with its low bits replaced by (keys in the line) - 1. */
struct entry {
    uint64_t tag;
    uint64_t value;
};

struct directory {
    struct entry *cells;
    uint64_t mask;
    uint64_t count;
};

/* A line of slots, KEYMAP_NONE for absent keys; or an element of the list of free lines; or the head of a segment. */
union line {
    uint32_t slot[LINE_KEYS];
    union line *next;
    struct {
        union line *next;
        uint32_t lines; /* including this one */
        uint32_t used;
    } segment;
};

struct keymap {
    struct directory now;
    struct directory old; /* cells: NULL unless moving */
    uint64_t start;       /* cell of `old` where moving began: it was free, and counts as moved */
    uint64_t moved;       /* cells from `start` on that are empty now */
    uint64_t seed[2];
    union line *free_lines;
    union line *segments;
    struct entry *put,
        *removed;      /* entries of the last put and removal: neighbours come one after another; NULL: none */
    size_t bytes;      /* of directories and segments */
    uint64_t *account; /* that counts them, too; NULL: none */
    uint32_t most_moved;
};

static void count_bytes(struct keymap *self, size_t more, size_t less)
{
    self->bytes += more - less;
    if (self->account)
        *self->account += more - less;
}

/* ---- lines */

/* Rare, and out of the way of keymap_put, like start_moving. */
static __attribute__((noinline)) void segment_new(struct keymap *self)
{
    uint32_t lines = self->segments ? 2 * self->segments->segment.lines : FIRST_LINES;
    if (lines > SMALL_LINES)
        lines = HUGE_LINES;
    union line *segment = reserve_map_dense(lines * sizeof *segment);
    segment->segment.next = self->segments;
    segment->segment.lines = lines;
    segment->segment.used = 1;
    self->segments = segment;
    count_bytes(self, lines * sizeof *segment, 0);
}

static union line *line_new(struct keymap *self)
{
    union line *line = self->free_lines;
    if (line) {
        self->free_lines = line->next;
    } else {
        if (!self->segments || self->segments->segment.used == self->segments->segment.lines)
            segment_new(self);
        line = self->segments + self->segments->segment.used++;
    }
    memset(line->slot, 0xff, sizeof line->slot);
    return line;
}

static union line *line_of(const struct entry *entry)
{
    return (union line *)(uintptr_t)entry->value;
}

static bool is_single(const struct entry *entry)
{
    return entry->value & 1;
}

/* ---- directory */

/* Keys come from clients: without the seed, a client could choose keys that all collide. */
static uint64_t hash_block(const struct keymap *self, uint64_t key)
{
    __extension__ unsigned __int128 product =
        (unsigned __int128)((key / LINE_KEYS) ^ self->seed[0]) * (self->seed[1] | 1);
    uint64_t mixed = (uint64_t)product ^ (uint64_t)(product >> 64);
    /* Blocks count up: with one multiplication alone some seeds put hundreds of them next to each other. */
    mixed = (mixed ^ (mixed >> 32)) * UINT64_C(0xd6e8feb86659fd93);
    return mixed ^ (mixed >> 32);
}

/* Returns the cell of the key's block, or the free cell where the block would be. */
static struct entry *probe(const struct directory *dir, uint64_t hash, uint64_t key)
{
    uint64_t at = hash & dir->mask;
    while (dir->cells[at].value && (dir->cells[at].tag ^ key) >= LINE_KEYS)
        at = (at + 1) & dir->mask;
    return &dir->cells[at];
}

/* True if the entry, which may have been freed or moved since, is that of the key's block. */
static bool is_of(const struct entry *entry, uint64_t key)
{
    return entry && entry->value && (entry->tag ^ key) < LINE_KEYS;
}

/* Returns the directory that the block of this hash belongs to at present. */
static struct directory *directory_of(const struct keymap *self, uint64_t hash)
{
    bool in_old = self->old.cells && ((hash - self->start) & self->old.mask) >= self->moved;
    return (struct directory *)(uintptr_t)(in_old ? &self->old : &self->now);
}

static struct directory directory_new(struct keymap *self, uint64_t cells)
{
    count_bytes(self, cells * sizeof(struct entry), 0);
    return (struct directory){.cells = reserve_map_dense(cells * sizeof(struct entry)), .mask = cells - 1};
}

static void directory_fini(struct keymap *self, struct directory *dir)
{
    self->put = self->removed = NULL;
    size_t bytes = (dir->mask + 1) * sizeof(struct entry);
    reserve_unmap_dense(dir->cells, bytes);
    count_bytes(self, 0, bytes);
    *dir = (struct directory){0};
}

/* Frees a cell and closes the gap: each later entry of the run that may take the place moves up. */
static void directory_free(const struct keymap *self, struct directory *dir, struct entry *entry)
{
    uint64_t gap = (uint64_t)(entry - dir->cells);
    uint64_t at = gap;
    for (;;) {
        at = (at + 1) & dir->mask;
        struct entry *next = &dir->cells[at];
        if (!next->value)
            break;
        uint64_t home = hash_block(self, next->tag) & dir->mask;
        if (((at - home) & dir->mask) >= ((at - gap) & dir->mask)) {
            dir->cells[gap] = *next;
            gap = at;
        }
    }
    dir->cells[gap].value = 0;
    dir->count--;
}

/* ---- growth */

static __attribute__((noinline)) void start_moving(struct keymap *self)
{
    self->old = self->now;
    self->now = directory_new(self, 2 * (self->old.mask + 1));
    self->start = 0;
    while (self->old.cells[self->start].value)
        self->start++;
    /* New blocks whose home is at the end of the old directory may come to stand in the first cell. They are moved with
     * the end, when moving has come round: before that they would not be looked for in the new directory. */
    self->moved = 1;
}

/* Moves whole runs only, so that entries that stay in the old directory can still be found there. */
static void move_some(struct keymap *self)
{
    uint64_t cells = self->old.mask + 1;
    uint64_t goal = self->moved + MOVE_CELLS;
    uint32_t moves = 0;
    for (;;) {
        struct entry *entry = &self->old.cells[(self->start + self->moved) & self->old.mask];
        if (!entry->value && (self->moved >= goal || self->moved >= cells))
            break;
        if (entry->value) {
            *probe(&self->now, hash_block(self, entry->tag), entry->tag) = *entry;
            entry->value = 0;
            self->now.count++;
            moves++;
        }
        self->moved++;
    }
    if (moves > self->most_moved)
        self->most_moved = moves;
    if (self->moved >= cells)
        directory_fini(self, &self->old);
}

/* Makes room for one more block. True: blocks may belong to another directory now. */
static bool make_room(struct keymap *self)
{
    if (self->old.cells)
        move_some(self);
    else if (self->now.count >= (self->now.mask + 1) / 2)
        start_moving(self);
    else
        return false;
    return true;
}

/* ---- public */

struct keymap *keymap_new(uint64_t *account)
{
    struct keymap *self = need_alloc(sizeof *self);
    self->account = account;
    self->now = directory_new(self, FIRST_CELLS);
    rng_system(self->seed, sizeof self->seed);
    return self;
}

void keymap_destroy(struct keymap **self)
{
    if (!*self)
        return;
    directory_fini(*self, &(*self)->now);
    if ((*self)->old.cells)
        directory_fini(*self, &(*self)->old);
    for (union line *segment = (*self)->segments; segment;) {
        union line *next = segment->segment.next;
        count_bytes(*self, 0, segment->segment.lines * sizeof *segment);
        reserve_unmap_dense(segment, segment->segment.lines * sizeof *segment);
        segment = next;
    }
    free(*self);
    *self = NULL;
}

static uint32_t entry_slot(const struct entry *entry, uint64_t key)
{
    if (is_single(entry))
        return entry->tag == key ? (uint32_t)(entry->value >> 1) : KEYMAP_NONE;
    return entry->value ? line_of(entry)->slot[key % LINE_KEYS] : KEYMAP_NONE;
}

uint32_t keymap_get(const struct keymap *self, uint64_t key)
{
    uint64_t hash = hash_block(self, key);
    return entry_slot(probe(directory_of(self, hash), hash, key), key);
}

/* Keys that keymap_get_many looks up at a time: enough for a line to come from memory meanwhile. */
enum { KEYS_AT_ONCE = 64 };

/* Three steps: the cells, the lines of slots, the slots. */
static void get_some(const struct keymap *self, uint32_t n, const uint64_t *keys, uint32_t *slots)
{
    const struct entry *entry[KEYS_AT_ONCE];
    for (uint32_t i = 0; i < n; i++) {
        uint64_t hash = hash_block(self, keys[i]);
        const struct directory *dir = directory_of(self, hash);
        entry[i] = &dir->cells[hash & dir->mask];
        __builtin_prefetch(entry[i]);
    }
    for (uint32_t i = 0; i < n; i++) {
        if (!is_of(entry[i], keys[i])) {
            uint64_t hash = hash_block(self, keys[i]);
            entry[i] = probe(directory_of(self, hash), hash, keys[i]);
        }
        __builtin_prefetch(line_of(entry[i]));
    }
    for (uint32_t i = 0; i < n; i++)
        slots[i] = entry_slot(entry[i], keys[i]);
}

void keymap_get_many(const struct keymap *self, uint32_t n, const uint64_t *keys, uint32_t *slots)
{
    for (uint32_t some; n > 0; n -= some, keys += some, slots += some) {
        some = n < KEYS_AT_ONCE ? n : KEYS_AT_ONCE;
        get_some(self, some, keys, slots);
    }
}

/* Adds the second key of a block: both slots move from the entry into a line. */
static void widen(struct keymap *self, struct entry *entry)
{
    union line *line = line_new(self);
    line->slot[entry->tag % LINE_KEYS] = (uint32_t)(entry->value >> 1);
    entry->tag &= ~(uint64_t)(LINE_KEYS - 1);
    entry->value = (uintptr_t)line;
}

bool keymap_put(struct keymap *self, uint64_t key, uint32_t slot)
{
    assert(slot != KEYMAP_NONE);
    struct entry *entry = self->put;
    if (!is_of(entry, key)) {
        uint64_t hash = hash_block(self, key);
        struct directory *dir = directory_of(self, hash);
        self->put = entry = probe(dir, hash, key);
        if (!entry->value) {
            if (make_room(self)) {
                dir = directory_of(self, hash);
                self->put = entry = probe(dir, hash, key);
            }
            *entry = (struct entry){.tag = key, .value = (uint64_t)slot << 1 | 1};
            dir->count++;
            return true;
        }
    }
    if (entry_slot(entry, key) != KEYMAP_NONE)
        return false;
    if (is_single(entry))
        widen(self, entry);
    line_of(entry)->slot[key % LINE_KEYS] = slot;
    entry->tag++;
    return true;
}

/* Removes the entry of a block whose last key goes. */
static void forget_block(struct keymap *self, struct entry *entry, uint64_t key)
{
    if (!is_single(entry)) {
        union line *line = line_of(entry);
        line->next = self->free_lines;
        self->free_lines = line;
    }
    directory_free(self, directory_of(self, hash_block(self, key)), entry);
}

uint32_t keymap_remove(struct keymap *self, uint64_t key)
{
    struct entry *entry = self->removed;
    if (!is_of(entry, key)) {
        uint64_t hash = hash_block(self, key);
        self->removed = entry = probe(directory_of(self, hash), hash, key);
    }
    uint32_t slot = entry_slot(entry, key);
    if (slot == KEYMAP_NONE)
        return slot;
    if (is_single(entry) || entry->tag % LINE_KEYS == 0) {
        forget_block(self, entry, key);
    } else {
        line_of(entry)->slot[key % LINE_KEYS] = KEYMAP_NONE;
        entry->tag--;
    }
    return slot;
}

void keymap_prefetch(const struct keymap *self, uint64_t key)
{
    uint64_t hash = hash_block(self, key);
    const struct directory *dir = directory_of(self, hash);
    __builtin_prefetch(&dir->cells[hash & dir->mask]);
}

size_t keymap_bytes(const struct keymap *self)
{
    return self->bytes;
}

bool keymap_is_full(const struct keymap *self)
{
    const union line *segment = self->segments; /* NULL: no two keys were neighbours so far */
    bool lines = self->free_lines || !segment || segment->segment.used < segment->segment.lines;
    return !lines || (!self->old.cells && self->now.count >= (self->now.mask + 1) / 2);
}

uint32_t keymap_most_moved(const struct keymap *self)
{
    return self->most_moved;
}
