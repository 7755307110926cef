#include "broker/sample/reply_build.h"

#include <stdlib.h>
#include <string.h>

/* How many chunks ahead of their use headers are fetched. */
#define HEADERS_AHEAD 16u

static bool grow(void **array, uint32_t capacity, size_t width)
{
    void *larger = realloc(*array, (size_t)capacity * width);
    if (!larger)
        return false;
    *array = larger;
    return true;
}

static bool reserve(struct reply_build *self, uint32_t refs, uint32_t items)
{
    if (refs > self->chunk_capacity) {
        uint32_t n = refs + refs / 2;
        if (!grow((void **)&self->chunk, n, sizeof(void *)) || !grow((void **)&self->chunk_length, n, 4) ||
            !grow((void **)&self->chunk_blocks, n, 4) || !grow((void **)&self->chunk_index, n, 4))
            return false;
        self->chunk_capacity = n;
    }
    if (items > self->item_capacity) {
        uint32_t n = items + items / 2;
        if (!grow((void **)&self->layout_index, n, 4) || !grow((void **)&self->age_ns, n, 8))
            return false;
        self->item_capacity = n;
    }
    return true;
}

static bool blocks_reserve(struct reply_build *self, uint32_t n)
{
    if (self->n_blocks + n <= self->block_capacity)
        return true;
    uint32_t capacity = (self->n_blocks + n) * 2;
    if (!grow((void **)&self->block_size, capacity, 4) || !grow((void **)&self->block_column, capacity, 1) ||
        !grow((void **)&self->block_codec, capacity, 1))
        return false;
    self->block_capacity = capacity;
    return true;
}

/* Collects the layouts of all items, each once, and the union of the columns that they need. */
static bool collect_layouts(struct reply_build *self, const struct layouts *layouts, const struct picks *picks)
{
    uint32_t n = 0;
    self->layouts.size = 0;
    self->layouts.failed = false; /* the reply before this one may have found no memory */
    memset(self->need, 0, sizeof self->need);
    for (uint32_t i = 0; i < picks->n; i++) {
        if (i > 0 && picks->layout[i] == picks->layout[i - 1]) {
            self->layout_index[i] = self->layout_index[i - 1];
            continue;
        }
        struct layout *layout = layouts_at(layouts, picks->layout[i]);
        if (layout->stamp != self->stamp) {
            layout->stamp = self->stamp;
            layout->index = n++;
            for (uint32_t b = 0; b < sizeof self->need; b++)
                self->need[b] |= layout->need[b];
            void *place = pb_reserve(&self->layouts, layout->wire_size);
            if (!place)
                return false;
            memcpy(place, layout->wire, layout->wire_size);
        }
        self->layout_index[i] = layout->index;
    }
    self->full = 0;
    while (self->full < 8 * sizeof self->need && (self->need[self->full / 8] >> (self->full % 8) & 1))
        self->full++;
    return true;
}

/* Returns the place of a chunk in the reply. The map is small and hot; a mark in the chunk itself would dirty a cold line. */
static uint32_t *place_of(struct reply_build *self, struct chunk *chunk)
{
    uint64_t hash = ((uintptr_t)chunk >> 4) * UINT64_C(0x9E3779B97F4A7C15);
    uint32_t at = (uint32_t)(hash >> 32) & self->place_mask;
    while (self->places[at].chunk && self->places[at].chunk != chunk)
        at = (at + 1) & self->place_mask;
    self->places[at].chunk = chunk;
    return &self->places[at].index;
}

static bool places_reset(struct reply_build *self, uint32_t refs)
{
    uint32_t want = 64;
    while (want < refs * 2)
        want *= 2;
    if (want > self->place_capacity) {
        struct reply_place *places = malloc(want * sizeof *places);
        if (!places)
            return false;
        free(self->places);
        self->places = places;
        self->place_capacity = want;
    }
    self->place_mask = want - 1;
    memset(self->places, 0, want * sizeof *self->places);
    return true;
}

uint32_t reply_build_needed_bytes(const struct reply_build *self, struct chunk *chunk)
{
    const uint32_t *sizes = chunk_block_sizes(chunk);
    uint32_t bytes = 0;
    for (uint32_t c = 0; c < chunk->columns; c++)
        if (reply_build_needs(self, c))
            bytes += sizes[c];
    return bytes;
}

static bool is_large(const struct reply_build *self, struct chunk *chunk)
{
    return chunk->bytes > OWN_FRAME_BYTES && reply_build_needed_bytes(self, chunk) > OWN_FRAME_BYTES;
}

/* Moves large chunks behind the small ones, each group in its order. */
static bool partition_large(struct reply_build *self, uint32_t n_refs)
{
    uint32_t n = self->n_chunks, small = 0;
    struct chunk **sorted = malloc(n * sizeof(*sorted));
    uint32_t *moved = malloc(n * sizeof *moved), large = self->n_small;
    bool ok = sorted && moved;
    for (uint32_t i = 0; ok && i < n; i++) {
        moved[i] = is_large(self, self->chunk[i]) ? large++ : small++;
        sorted[moved[i]] = self->chunk[i];
    }
    for (uint32_t i = 0; ok && i < n_refs; i++)
        self->chunk_index[i] = moved[self->chunk_index[i]];
    if (ok)
        memcpy(self->chunk, sorted, n * sizeof(*sorted));
    free(sorted);
    free(moved);
    return ok;
}

/* Collects the distinct chunks. */
static bool collect_chunks(struct reply_build *self, const struct picks *picks)
{
    if (!places_reset(self, picks->n_refs))
        return false;
    uint32_t n = 0;
    for (uint32_t i = 0; i < picks->n_refs; i++) {
        uint32_t *place = place_of(self, picks->refs[i]);
        if (*place == 0) {
            self->chunk[n] = picks->refs[i];
            *place = ++n;
        }
        self->chunk_index[i] = *place - 1;
    }
    self->n_chunks = n;
    return true;
}

/* Adds all blocks of a chunk, or the blocks that the layouts need, to the reply. Returns their bytes. */
static uint32_t add_all_blocks(struct reply_build *self, struct chunk *chunk)
{
    const uint32_t *sizes = chunk_block_sizes(chunk);
    const uint8_t *codecs = chunk_block_codecs(chunk);
    uint32_t *size = self->block_size + self->n_blocks, n = chunk->columns;
    uint8_t *codec = self->block_codec + self->n_blocks, *column = self->block_column + self->n_blocks;
    for (uint32_t c = 0; c < n; c++) {
        size[c] = sizes[c];
        codec[c] = codecs[c];
        column[c] = (uint8_t)c;
    }
    self->n_blocks += n;
    return chunk->bytes;
}

static uint32_t add_needed_blocks(struct reply_build *self, struct chunk *chunk)
{
    const uint32_t *sizes = chunk_block_sizes(chunk);
    const uint8_t *codecs = chunk_block_codecs(chunk);
    uint32_t bytes = 0;
    for (uint32_t c = 0; c < chunk->columns; c++) {
        if (!reply_build_needs(self, c))
            continue;
        self->block_size[self->n_blocks] = sizes[c];
        self->block_codec[self->n_blocks] = codecs[c];
        self->block_column[self->n_blocks++] = (uint8_t)c;
        bytes += sizes[c];
    }
    return bytes;
}

/* Collects the blocks of all chunks, and counts the small ones. */
static bool collect_blocks(struct reply_build *self)
{
    self->n_blocks = 0;
    self->n_small = 0;
    self->small_bytes = 0;
    self->alike = true;
    for (uint32_t i = 0; i < self->n_chunks; i++) {
        struct chunk *chunk = self->chunk[i];
        reply_build_prefetch(self, i + HEADERS_AHEAD);
        if (!blocks_reserve(self, chunk->columns))
            return false;
        uint32_t first = self->n_blocks;
        bool full = chunk->columns <= self->full;
        uint32_t bytes = full ? add_all_blocks(self, chunk) : add_needed_blocks(self, chunk);
        self->alike = self->alike && full && chunk->columns == self->chunk[0]->columns;
        self->chunk_length[i] = chunk->length;
        self->chunk_blocks[i] = self->n_blocks - first;
        bool small = bytes <= OWN_FRAME_BYTES;
        self->n_small += small;
        self->small_bytes += small ? bytes : 0;
    }
    return true;
}

bool reply_build_collect(struct reply_build *self, const struct layouts *layouts, const struct picks *picks)
{
    if (++self->stamp == 0)
        self->stamp = 1;
    if (!reserve(self, picks->n_refs, picks->n) || !collect_layouts(self, layouts, picks) ||
        !collect_chunks(self, picks) || !collect_blocks(self))
        return false;
    if (self->n_small == 0 || self->n_small == self->n_chunks)
        return true;
    return partition_large(self, picks->n_refs) && collect_blocks(self);
}

bool reply_build_same_columns(const struct reply_build *self)
{
    if (self->alike)
        return true;
    for (uint32_t i = 1; i < self->n_chunks; i++)
        if (self->chunk_blocks[i] != self->chunk_blocks[0] ||
            memcmp(self->block_column + (size_t)i * self->chunk_blocks[0], self->block_column, self->chunk_blocks[0]) !=
                0)
            return false;
    return true;
}

void reply_build_destroy(struct reply_build **self)
{
    struct reply_build *build = *self;
    if (!build)
        return;
    void *const arrays[] = {build->chunk,      build->chunk_length, build->chunk_blocks, build->chunk_index,
                            build->block_size, build->block_column, build->block_codec,  build->layout_index,
                            build->age_ns,     build->places};
    for (uint32_t i = 0; i < sizeof arrays / sizeof arrays[0]; i++)
        free(arrays[i]);
    pb_writer_fini(&build->layouts);
    free(build);
    *self = NULL;
}
