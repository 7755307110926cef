/* From picks to frames. What travels of a chunk is a piece of it: the rows that the items of the reply need, or all of it if a
 * block that is needed is compressed. Small pieces are packed into one frame, large ones are frames of their own, without a copy
 * where they are whole chunks. To a client that reads shared memory, data there does not travel: its place is told, and small pieces
 * are packed there, too. */
#include "broker/sample/reply.h"

#include <stdlib.h>
#include <string.h>

#include "broker/loop/histogram.h"
#include "broker/loop/loop.h"
#include "broker/peer/peers.h"
#include "broker/sample/samples.h"
#include "proto/base/need.h"
#include "proto/wire/wire.h"

/* How many chunks ahead of the copy data is prefetched, and headers, which say how much data there is. */
#define PREFETCH_AHEAD 6u
#define HEADERS_AHEAD 16u
/* A chunk with more needed bytes is sent as a frame of its own: a copy would cost more than the frame. */
#define OWN_FRAME_BYTES (128u << 10)

#define HOT_HEADERS 256u
/* A chunk with fewer bytes travels whole: to cut it would cost more than to send it. */
#define CUT_BYTES 1024u
/* Fewer packed bytes travel, though the client reads shared memory: a short frame costs less. */
#define LEND_LEAST (8u << 10)
/* Bytes of a header for each item, more or less. */
#define HEAD_ITEM_BYTES 48u
/* Pieces of one chunk in a reply, for items that lie apart in it; then the last one grows. */
#define PIECES_MOST 8u

/* The place of a chunk in the reply. */
struct reply_place {
    struct chunk *chunk;
    uint32_t index; /* of its newest piece, plus 1; 0: not placed yet */
};

/* Rows of a chunk that travel. */
struct piece {
    struct chunk *chunk;
    uint32_t first, end; /* rows */
    uint32_t bytes;      /* of the needed blocks */
    uint32_t next;       /* the next older piece of the same chunk, plus 1; 0: none */
};

static inline uint32_t piece_rows(const struct piece *self)
{
    return self->end - self->first;
}

static inline bool piece_is_whole(const struct piece *self)
{
    return piece_rows(self) == self->chunk->length;
}

/* What goes into the reply to a sample: the layouts of its items, pieces of its chunks, each row once, and the blocks of them
 * that the layouts need. Kept between replies as working memory. */
struct reply_build {
    struct piece *piece;                   /* in the order of the reply: small, then large, then shared ones */
    uint32_t *chunk_length, *chunk_blocks; /* steps and blocks of each */
    uint32_t *chunk_index;                 /* of each reference of the picks */
    uint64_t *place, *stamp;               /* of each shared one */
    uint32_t chunk_capacity;
    uint32_t *block_size;
    uint8_t *block_column, *block_codec;
    uint32_t block_capacity;
    struct reply_place *places; /* hash map by chunk */
    uint32_t place_mask, place_capacity;
    uint32_t n_chunks, n_small, n_shared, n_blocks;
    uint32_t *layout_index; /* of each item */
    uint32_t *offset;       /* of each item in its first piece */
    uint64_t *age_ns;       /* of each item */
    uint32_t item_capacity;
    struct text layouts; /* encoded, one after another */
    uint8_t need[32];    /* bits of the columns that are needed */
    uint32_t full;       /* all columns below this are needed: chunks without others are sent as they are */
    bool alike;          /* all chunks are such, with the same columns */
    bool cut, shifted;   /* some piece is not its whole chunk; some does not begin with it */
    bool shared;         /* the client reads shared memory */
    size_t small_bytes;  /* of the needed blocks of small chunks */
    uint64_t lent[3];    /* place, stamp and bytes of the small pieces; no bytes: they are in a frame */
    uint64_t head_at[4]; /* place, stamp, offset and bytes of the header; no bytes: it is in a frame */
    uint32_t mark;       /* marks the layouts that are in the reply */
};

/* Returns the number of chunks whose headers have to be fetched. Picking has fetched them, but in a reply with more than HOT_HEADERS
 * chunks they are cold again. */
static inline uint32_t cold_headers(const struct reply_build *self)
{
    return self->n_chunks > HOT_HEADERS ? self->n_chunks : 0;
}

/* Prefetches the header of chunk i, if it is cold. Inlined always: gcc drops calls of functions that only prefetch. */
static inline __attribute__((always_inline)) void reply_build_prefetch(const struct reply_build *self, uint32_t cold,
                                                                       uint32_t i)
{
    if (i < cold) {
        const char *at = (const char *)self->piece[i].chunk;
        __builtin_prefetch(at);
        __builtin_prefetch(at + 64);
    }
}

static inline bool reply_build_needs(const struct reply_build *self, uint32_t column)
{
    return self->need[column / 8] >> (column % 8) & 1;
}

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
        if (!grow((void **)&self->piece, n, sizeof *self->piece) || !grow((void **)&self->chunk_length, n, 4) ||
            !grow((void **)&self->chunk_blocks, n, 4) || !grow((void **)&self->chunk_index, n, 4) ||
            !grow((void **)&self->place, n, 8) || !grow((void **)&self->stamp, n, 8))
            return false;
        self->chunk_capacity = n;
    }
    if (items > self->item_capacity) {
        uint32_t n = items + items / 2;
        if (!grow((void **)&self->layout_index, n, 4) || !grow((void **)&self->offset, n, 4) ||
            !grow((void **)&self->age_ns, n, 8))
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
        if (layout->stamp != self->mark) {
            layout->stamp = self->mark;
            layout->index = n++;
            for (uint32_t b = 0; b < sizeof self->need; b++)
                self->need[b] |= layout->need[b];
            void *place = text_reserve(&self->layouts, layout->wire_size);
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

static inline bool is_shared(const struct reply_build *self, const struct piece *piece)
{
    return self->shared && piece->chunk->where == CHUNK_SHARED;
}

/* Moves large pieces behind the small ones, and shared ones behind these, each group in its order. */
static bool partition(struct reply_build *self, uint32_t n_refs)
{
    uint32_t n = self->n_chunks, small = 0;
    struct piece *sorted = malloc(n * sizeof *sorted);
    uint32_t *moved = malloc(n * sizeof *moved), large = self->n_small, shared = n - self->n_shared;
    bool ok = sorted && moved;
    for (uint32_t i = 0; ok && i < n; i++) {
        const struct piece *piece = &self->piece[i];
        moved[i] = is_shared(self, piece) ? shared++ : piece->bytes > OWN_FRAME_BYTES ? large++ : small++;
        sorted[moved[i]] = *piece;
    }
    for (uint32_t i = 0; ok && i < n_refs; i++)
        self->chunk_index[i] = moved[self->chunk_index[i]];
    if (ok)
        memcpy(self->piece, sorted, n * sizeof *sorted);
    free(sorted);
    free(moved);
    return ok;
}

/* True if rows are cut out of the chunk's blocks. */
static bool can_cut(const struct reply_build *self, struct chunk *chunk)
{
    if (chunk->bytes < CUT_BYTES || (self->shared && chunk->where == CHUNK_SHARED))
        return false;
    const uint8_t *codecs = chunk_block_codecs(chunk);
    for (uint32_t c = 0; c < chunk->columns; c++)
        if (codecs[c] != RP_CODEC_RAW && codecs[c] != RP_CODEC_ABSENT && reply_build_needs(self, c))
            return false;
    return true;
}

static uint32_t new_piece(struct reply_build *self, struct piece piece, uint32_t *place)
{
    self->piece[self->n_chunks] = piece;
    *place = ++self->n_chunks;
    return *place - 1;
}

/* Returns the piece with n rows of a chunk: one that has rows beside them grows, or a new one begins. */
static uint32_t take_piece(struct reply_build *self, struct chunk *chunk, uint32_t first, uint32_t n)
{
    uint32_t *place = place_of(self, chunk), end = first + n, pieces = 0;
    for (uint32_t p = *place; p; p = self->piece[p - 1].next) {
        struct piece *piece = &self->piece[p - 1];
        if ((first <= piece->end && end >= piece->first) || ++pieces == PIECES_MOST) {
            piece->first = first < piece->first ? first : piece->first;
            piece->end = end > piece->end ? end : piece->end;
            return p - 1;
        }
    }
    if (!can_cut(self, chunk)) {
        first = 0;
        end = chunk->length;
    }
    self->cut = self->cut || end - first < chunk->length;
    self->shifted = self->shifted || first > 0;
    return new_piece(self, (struct piece){.chunk = chunk, .first = first, .end = end, .next = *place}, place);
}

static __attribute__((noinline)) void take_pieces(struct reply_build *self, const struct picks *picks, uint32_t item,
                                                  uint32_t ref)
{
    uint32_t at = picks->offset[item], left = picks->length[item];
    for (uint32_t end = ref + picks->chunks[item]; ref < end; ref++) {
        struct chunk *chunk = picks->refs[ref];
        uint32_t n = chunk->length - at < left ? chunk->length - at : left;
        self->chunk_index[ref] = take_piece(self, chunk, at, n);
        left -= n;
        at = 0;
    }
}

/* Collects the pieces: of each chunk the rows that items need. An item that is a whole chunk is the common case. */
static bool collect_pieces(struct reply_build *self, const struct picks *picks)
{
    if (!places_reset(self, picks->n_refs))
        return false;
    struct chunk *const *refs = picks->refs;
    const uint32_t *offset = picks->offset, *length = picks->length, *chunks = picks->chunks;
    uint32_t n = picks->n, n_refs = picks->n_refs;
    self->n_chunks = 0;
    self->cut = self->shifted = false;
    for (uint32_t i = 0, ref = 0; i < n; ref += chunks[i++]) {
        struct chunk *chunk = refs[ref];
        if (n_refs > HOT_HEADERS && ref + HEADERS_AHEAD < n_refs)
            __builtin_prefetch(refs[ref + HEADERS_AHEAD]);
        uint32_t *place = length[i] == chunk->length && offset[i] == 0 ? place_of(self, chunk) : NULL;
        if (place && *place == 0)
            self->chunk_index[ref] = new_piece(self, (struct piece){.chunk = chunk, .end = chunk->length}, place);
        else
            take_pieces(self, picks, i, ref);
    }
    return true;
}

/* Counts the items' offsets from the first rows of their pieces. */
static void shift_offsets(struct reply_build *self, const struct picks *picks)
{
    for (uint32_t i = 0, ref = 0; i < picks->n; ref += picks->chunks[i++])
        self->offset[i] = picks->offset[i] - self->piece[self->chunk_index[ref]].first;
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

static uint32_t add_needed_blocks(struct reply_build *self, const struct piece *piece)
{
    struct chunk *chunk = piece->chunk;
    const uint32_t *sizes = chunk_block_sizes(chunk);
    const uint8_t *codecs = chunk_block_codecs(chunk);
    uint32_t bytes = 0;
    for (uint32_t c = 0; c < chunk->columns; c++) {
        if (!reply_build_needs(self, c))
            continue;
        uint32_t size = piece_is_whole(piece) ? sizes[c] : sizes[c] / chunk->length * piece_rows(piece);
        self->block_size[self->n_blocks] = size;
        self->block_codec[self->n_blocks] = codecs[c];
        self->block_column[self->n_blocks++] = (uint8_t)c;
        bytes += size;
    }
    return bytes;
}

/* Collects the blocks of the common reply: whole small chunks of one column. False: it is another one. */
static bool collect_plain(struct reply_build *self)
{
    uint32_t n = self->n_chunks, *size = self->block_size, *length = self->chunk_length, *blocks = self->chunk_blocks;
    uint8_t *codec = self->block_codec;
    uint32_t cold = cold_headers(self);
    size_t bytes = 0;
    if (self->cut || !self->full || n > self->block_capacity)
        return false;
    for (uint32_t i = 0; i < n; i++) {
        struct piece *piece = &self->piece[i];
        const struct chunk *chunk = piece->chunk;
        reply_build_prefetch(self, cold, i + HEADERS_AHEAD);
        if (!chunk->plain || chunk->bytes >= STORE_OWN_BYTES)
            return false;
        size[i] = piece->bytes = chunk->bytes;
        length[i] = chunk->length;
        blocks[i] = 1;
        bytes += chunk->bytes;
        codec[i] = chunk->codec;
    }
    memset(self->block_column, 0, n);
    self->n_blocks = self->n_small = n;
    self->n_shared = 0;
    self->small_bytes = bytes;
    self->alike = true;
    return true;
}

/* Collects the blocks of all pieces, and counts the small and the shared ones. */
static bool collect_blocks(struct reply_build *self)
{
    uint32_t n = self->n_chunks, n_small = 0, n_shared = 0, columns = n ? self->piece[0].chunk->columns : 0;
    uint32_t cold = cold_headers(self);
    size_t small_bytes = 0;
    bool alike = true;
    self->n_blocks = 0;
    for (uint32_t i = 0; i < n; i++) {
        struct piece *piece = &self->piece[i];
        struct chunk *chunk = piece->chunk;
        reply_build_prefetch(self, cold, i + HEADERS_AHEAD);
        if (!blocks_reserve(self, chunk->columns))
            return false;
        uint32_t first = self->n_blocks;
        bool full = chunk->columns <= self->full, whole = !self->cut || piece_is_whole(piece);
        bool shared = is_shared(self, piece);
        uint32_t bytes = shared || (full && whole) ? add_all_blocks(self, chunk) : add_needed_blocks(self, piece);
        alike = alike && full && chunk->columns == columns;
        piece->bytes = bytes;
        self->chunk_length[i] = piece_rows(piece);
        self->chunk_blocks[i] = self->n_blocks - first;
        if (shared) {
            n_shared++;
        } else if (bytes <= OWN_FRAME_BYTES) {
            n_small++;
            small_bytes += bytes;
        }
    }
    self->n_small = n_small;
    self->n_shared = n_shared;
    self->small_bytes = small_bytes;
    self->alike = alike;
    return true;
}

static bool reply_build_collect(struct reply_build *self, const struct layouts *layouts, const struct picks *picks)
{
    if (++self->mark == 0)
        self->mark = 1;
    if (!reserve(self, picks->n_refs, picks->n) || !collect_layouts(self, layouts, picks) ||
        !collect_pieces(self, picks) || !(collect_plain(self) || collect_blocks(self)))
        return false;
    uint32_t large = self->n_chunks - self->n_small - self->n_shared;
    bool mixed = (self->n_small > 0) + (large > 0) + (self->n_shared > 0) > 1;
    if (mixed && !(partition(self, picks->n_refs) && collect_blocks(self)))
        return false;
    if (self->shifted)
        shift_offsets(self, picks);
    return true;
}

static bool reply_build_same_columns(const struct reply_build *self)
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
    void *const arrays[] = {build->piece,      build->chunk_length, build->chunk_blocks, build->chunk_index,
                            build->block_size, build->block_column, build->block_codec,  build->layout_index,
                            build->offset,     build->age_ns,       build->places,       build->place,
                            build->stamp};
    for (uint32_t i = 0; i < sizeof arrays / sizeof arrays[0]; i++)
        free(arrays[i]);
    text_fini(&build->layouts);
    free(build);
    *self = NULL;
}

/* ---- frames ---- */

/* Copies the needed blocks of a chunk. Returns the end of the copy. */
static uint8_t *copy_needed(const struct reply_build *self, struct chunk *chunk, uint8_t *out)
{
    const uint32_t *sizes = chunk_block_sizes(chunk);
    const uint8_t *data = chunk_data(chunk);
    uint32_t run = 0; /* neighbouring blocks that are both needed are copied at once */
    for (uint32_t c = 0; c < chunk->columns; c++) {
        if (reply_build_needs(self, c)) {
            run += sizes[c];
            continue;
        }
        memcpy(out, data, run);
        out += run;
        data += run + sizes[c];
        run = 0;
    }
    memcpy(out, data, run);
    return out + run;
}

/* The same for the rows of a piece. */
static uint8_t *copy_rows(const struct reply_build *self, const struct piece *piece, uint8_t *out)
{
    struct chunk *chunk = piece->chunk;
    const uint32_t *sizes = chunk_block_sizes(chunk);
    const uint8_t *data = chunk_data(chunk);
    for (uint32_t c = 0; c < chunk->columns; data += sizes[c++]) {
        if (!reply_build_needs(self, c))
            continue;
        size_t row = sizes[c] / chunk->length, bytes = row * piece_rows(piece);
        memcpy(out, data + row * piece->first, bytes);
        out += bytes;
    }
    return out;
}

static uint8_t *copy_piece(const struct reply_build *self, const struct piece *piece, uint8_t *out)
{
    return piece_is_whole(piece) ? copy_needed(self, piece->chunk, out) : copy_rows(self, piece, out);
}

/* Prefetches the data of a chunk, whose first lines picking has fetched. Inlined always: see prefetch_picks. */
static inline __attribute__((always_inline)) void prefetch_chunk(const struct chunk *chunk)
{
    size_t end = !chunk_is_split(chunk) && chunk->bytes < 1024 ? sizeof *chunk + chunk->bytes : 0;
    for (size_t at = 128; at < end; at += 64)
        __builtin_prefetch((const char *)chunk + at);
}

static void copy_small(const struct reply_build *self, uint8_t *out)
{
    uint32_t n = self->n_small, full = self->cut ? 0 : self->full, cold = cold_headers(self);
    for (uint32_t i = 0; i < n; i++) {
        struct chunk *chunk = self->piece[i].chunk;
        reply_build_prefetch(self, cold, i + HEADERS_AHEAD);
        if (i + PREFETCH_AHEAD < n)
            prefetch_chunk(self->piece[i + PREFETCH_AHEAD].chunk);
        if (chunk->columns <= full) { /* all of it, as it is */
            memcpy(out, chunk_data(chunk), chunk->bytes);
            out += chunk->bytes;
        } else {
            out = copy_piece(self, &self->piece[i], out);
        }
    }
}

static bool needs_all(const struct reply_build *self, const struct chunk *chunk)
{
    for (uint32_t c = 0; c < chunk->columns; c++)
        if (!reply_build_needs(self, c))
            return false;
    return true;
}

static bool frame_large(const struct reply_build *self, struct peer *peer, const struct piece *piece,
                        zmq_msg_t *message)
{
    zmq_msg_t *kept = chunk_message(piece->chunk);
    if (kept && piece_is_whole(piece) && needs_all(self, piece->chunk))
        return peer_frame_view(peer, message, kept, zmq_msg_data(kept), piece->bytes);
    uint8_t *data = malloc(piece->bytes);
    if (!data)
        return false;
    copy_piece(self, piece, data);
    return peer_frame(peer, message, data, piece->bytes);
}

struct lender {
    struct reply_build *build;
    const struct waiter *waiter;
};

/* Packs the small pieces where the client reads them. Returns the place for a header behind them. NULL: there is no room. */
static void *lend(void *ctx, size_t head)
{
    const struct lender *by = ctx;
    struct reply_build *self = by->build;
    size_t offset = (self->small_bytes + 7) & ~(size_t)7, bytes = offset + head;
    struct samples *samples = by->waiter->samples;
    uint8_t *data = bytes >= LEND_LEAST ? kept_samples_lend(&samples->kept, by->waiter->kept, bytes) : NULL;
    if (!data)
        return NULL;
    struct shm_place place = shm_place(samples->store->shm, data);
    memcpy(self->lent, (uint64_t[]){place.at, place.stamp, self->small_bytes}, sizeof self->lent);
    memcpy(self->head_at, (uint64_t[]){place.at, place.stamp, offset, head}, sizeof self->head_at);
    copy_small(self, data);
    return data + offset;
}

/* Makes the payload frames. *n: frames made, which the caller closes if this fails. False: no memory. */
static bool make_payload(const struct reply_build *self, struct peer *peer, zmq_msg_t *payload, uint32_t *n)
{
    *n = 0;
    if (self->n_small && !self->lent[2]) {
        uint8_t *data = malloc(self->small_bytes ? self->small_bytes : 1);
        if (!data)
            return false;
        copy_small(self, data);
        if (!peer_frame(peer, &payload[0], data, self->small_bytes))
            return false;
        *n = 1;
    }
    for (uint32_t i = self->n_small; i < self->n_chunks - self->n_shared; i++, (*n)++)
        if (!frame_large(self, peer, &self->piece[i], &payload[*n]))
            return false;
    return true;
}

/* In a batch of this many items every fourth counts for four: to count each would make samples a percent slower. */
#define COUNT_ALL_BELOW 16u

static void count_ages(const struct reply_build *self, struct table *table, const struct picks *picks, uint64_t newest)
{
    uint64_t *ages = table->sampled_age.counts, *behind = table->sampled_staleness.counts;
    uint32_t stride = picks->n < COUNT_ALL_BELOW ? 1 : 4;
    for (uint32_t i = 0; i < picks->n; i += stride) {
        uint32_t n = picks->n - i < stride ? picks->n - i : stride;
        ages[histogram_bucket(self->age_ns[i])] += n;
        behind[histogram_bucket(newest > picks->policy[i] ? newest - picks->policy[i] : 0)] += n;
    }
}

/* True if the picks count in the statistics: they are a sample that was not sent before. */
static bool counts(const struct waiter *waiter)
{
    return !waiter->fetch && !waiter->again;
}

/* Computes ages, and updates the running means of how old and how stale the samples of the table are. */
static void collect_ages(struct reply_build *self, const struct waiter *waiter, const struct picks *picks)
{
    struct table *table = waiter->table;
    uint64_t newest = table->version, now = (uint64_t)waiter->samples->loop->now_ns;
    double age = 0, stale = 0;
    for (uint32_t i = 0; i < picks->n; i++) {
        uint64_t ns = now > picks->age_ns[i] ? now - picks->age_ns[i] : 0;
        self->age_ns[i] = ns;
        age += (double)ns;
        stale += newest > picks->policy[i] ? (double)(newest - picks->policy[i]) : 0;
    }
    if (!counts(waiter) || !picks->n)
        return;
    count_ages(self, table, picks, newest);
    Replay__TableInfo *stats = &table->stats;
    table->sampled_age.sum += age;
    table->sampled_staleness.sum += stale;
    double n = (double)picks->n, part = n / (n + (table->mean_weight < 1000 ? table->mean_weight : 1000));
    stats->mean_age_s += part * (age / n / (double)NS_PER_S - stats->mean_age_s);
    stats->mean_staleness += part * (stale / n - stats->mean_staleness);
    table->mean_weight += n;
    if (table->mean_weight > 1000)
        table->mean_weight = 1000;
}

/* Collects what the header says. */
static struct wire_sampled_out reply_header(const struct reply_build *self, const struct waiter *waiter,
                                            const struct picks *picks, const char *text)
{
    bool same = reply_build_same_columns(self);
    bool in_order = self->n_chunks == picks->n_refs &&
                    (self->n_small == self->n_chunks || (self->n_shared && self->n_shared == self->n_chunks));
    struct wire_sampled_out out = {
        .id = waiter->wait.id,
        .text = text,
        .n_items = picks->n,
        .n_chunks = self->n_chunks,
        .n_blocks = self->n_blocks,
        .n_chunk_refs = picks->n_refs,
        .key = picks->key,
        .age_ns = self->age_ns,
        .policy = picks->policy,
        .step = picks->step,
        .priority = picks->priority,
        .probability = picks->probability,
        .times_sampled = picks->times_sampled,
        .session = picks->session,
        .layout = self->layout_index,
        .offset = self->shifted ? self->offset : picks->offset,
        .length = picks->length,
        .chunks = picks->chunks,
        .chunk = in_order ? NULL : self->chunk_index,
        .chunk_length = self->chunk_length,
        .chunk_blocks = self->chunk_blocks,
        .block_size = self->block_size,
        .block_column = self->block_column,
        .block_codec = self->block_codec,
        .n_block_columns = same && self->n_chunks ? self->chunk_blocks[0] : self->n_blocks,
        .place = self->place,
        .stamp = self->stamp,
        .n_places = self->n_shared,
        .group = waiter->table->in.groups.slots ? picks->group : NULL,
        .packed = self->n_small,
        .layouts = self->layouts.data,
        .layouts_size = self->layouts.size,
        .table_size = picks->table_size,
        .waited_ns = counts(waiter) ? (uint64_t)(waiter->samples->loop->now_ns - waiter->wait.since_ns) : 0,
        .partial = !waiter->fetch && picks->n + waiter->empty < waiter->want,
    };
    if (waiter->paid) { /* what a sampler over shards has to know of the table for its next draw */
        out.paid = true;
        out.mass = table_mass(waiter->table);
        out.room = table_sampleable(waiter->table, UINT32_MAX);
    }
    return out;
}

/* Puts header and small pieces, or these alone, where the client reads them, if it reads that and there is room. */
static void lend_reply(struct reply_build *self, const struct waiter *waiter, struct wire_sampled_out *out)
{
    struct lender by = {self, waiter};
    self->lent[2] = self->head_at[3] = 0;
    if (!waiter->kept || self->small_bytes + (size_t)out->n_items * HEAD_ITEM_BYTES < LEND_LEAST)
        return;
    out->packed_at = self->small_bytes ? self->lent : NULL;
    bool lent = waiter->reads >= WIRE_SHARED_HEAD ? wire_write_sampled_at(out, lend, &by) : lend(&by, 0) != NULL;
    if (!lent)
        out->packed_at = NULL;
    if (self->head_at[3]) /* this is all that travels */
        *out = (struct wire_sampled_out){.id = out->id, .text = out->text, .head_at = self->head_at};
}

/* Sends payload and header. False: no memory. */
static bool send_built(const struct reply_build *self, const struct waiter *waiter, const struct wire_sampled_out *out,
                       bool *sent)
{
    struct peers *peers = waiter->samples->peers;
    struct peer *peer = peer_find(peers, &waiter->wait.to);
    uint32_t most = 1 + self->n_chunks - self->n_small - self->n_shared, n = 0;
    zmq_msg_t *payload = malloc(most * sizeof *payload);
    struct text header = {0};
    zmq_msg_t head;
    zmq_msg_init(&head);
    bool ok = payload && make_payload(self, peer, payload, &n);
    if (ok) {
        wire_write_sampled(&header, out);
        if (trace_on(&peers->loop->trace))
            request_put_tracing(peers, &header);
        ok = !header.failed;
        if (!ok)
            text_fini(&header);
        ok = ok && peer_frame(peer, &head, header.data, header.size);
    }
    if (ok) {
        bool gathers = peers->commit.gathers;
        peers->commit.gathers = gathers && waiter->wait.client; /* others are counted as lost if they are gone */
        *sent = peer_send(peers, &waiter->wait.to, &head, payload, n);
        peers->commit.gathers = gathers;
    } else {
        for (uint32_t i = 0; i < n; i++)
            zmq_msg_close(&payload[i]);
        zmq_msg_close(&head);
    }
    free(payload);
    return ok;
}

/* Brings data that is worth it to shared memory: of the first samples that are read there. New chunks come there at once. */
static void share_chunks(struct samples *samples, const struct picks *picks)
{
    struct store *store = samples->store;
    uint64_t limit = (uint64_t)samples->config->memory_limit;
    store->sharing = true;
    for (uint32_t i = 0; i < picks->n_refs; i++) {
        struct chunk *chunk = picks->refs[i];
        if (chunk->bytes < STORE_OWN_BYTES || chunk->where == CHUNK_SHARED)
            continue;
        /* The place in a slab that the data leaves is free only for data of its size, so all memory may grow. */
        if (store_memory(store) + chunk->bytes > limit || !store_share(store, chunk))
            return;
    }
}

static void collect_places(struct reply_build *self, const struct store *store)
{
    const struct piece *first = self->piece + self->n_chunks - self->n_shared;
    for (uint32_t i = 0; i < self->n_shared; i++) {
        struct shm_place place = shm_place(store->shm, chunk_data(first[i].chunk));
        self->place[i] = place.at;
        self->stamp[i] = place.stamp;
    }
}

bool reply_picks(const struct waiter *waiter, const struct picks *picks, const char *text)
{
    struct samples *samples = waiter->samples;
    if (!samples->build)
        samples->build = need_alloc(sizeof *samples->build);
    struct reply_build *build = samples->build;
    bool sent = false;
    build->shared = waiter->shared;
    if (waiter->shared)
        share_chunks(samples, picks);
    bool ok = reply_build_collect(build, samples->layouts, picks);
    if (ok) {
        collect_places(build, samples->store);
        collect_ages(build, waiter, picks);
        struct wire_sampled_out out = reply_header(build, waiter, picks, text);
        lend_reply(build, waiter, &out);
        samples->shared_samples += build->n_shared || build->lent[2] ? picks->n : 0;
        ok = send_built(build, waiter, &out, &sent);
    }
    if (!ok)
        request_fail(samples->peers, &waiter->wait.to, waiter->wait.id, RP_NO_MEMORY,
                     "the broker has no memory for the reply");
    return sent;
}
