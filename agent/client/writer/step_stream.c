/* See step_stream.h. */
#include "agent/client/writer/step_stream.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "proto/base/dtype.h"
#include "proto/base/error.h"

#define POOL_KEEP_BYTES ((size_t)256 << 20)
#define MAX_CHUNK_BYTES ((uint64_t)UINT32_MAX)
#define CHUNKS_PER_ARENA 256u

/* ---- life */

static rp_status column_init(struct step_column *self, const rp_column *column, rp_error *err)
{
    size_t length = column->name ? strlen(column->name) : 0;
    if (length == 0 || length > RP_MAX_NAME)
        return err_set(err, RP_INVALID_ARGUMENT, "a column's name must have 1 to %u bytes, not %zu", RP_MAX_NAME,
                       length);
    self->dtype = column->dtype;
    self->codec = column->codec;
    self->rank = column->rank;
    if (dtype_size(column->dtype) == 0)
        return err_set(err, RP_INVALID_ARGUMENT, "column '%s': there is no dtype %" PRId32, column->name,
                       column->dtype);
    if (column->rank > RP_MAX_RANK)
        return err_set(err, RP_INVALID_ARGUMENT, "column '%s': rank %u is above the limit of %u", column->name,
                       column->rank, RP_MAX_RANK);
    if (column->codec != RP_CODEC_AUTO && (column->codec < 0 || column->codec > RP_CODEC_DELTA_SHUFFLE_LZ4))
        return err_set(err, RP_INVALID_ARGUMENT, "column '%s': there is no codec %" PRId32, column->name,
                       column->codec);
    memcpy(self->shape, column->shape, column->rank * sizeof self->shape[0]);
    self->elem_bytes = dtype_size(column->dtype);
    self->is_integer = dtype_is_integer(column->dtype);
    self->row_bytes = dtype_row_bytes(column->dtype, column->rank, column->shape);
    if (self->row_bytes == DTYPE_NO_ROW)
        return err_set(err, RP_INVALID_ARGUMENT, "column '%s': its shape makes a step larger than 1 GiB", column->name);
    self->name = strdup(column->name);
    return self->name ? RP_OK : err_set(err, RP_NO_MEMORY, "no memory for columns");
}

static rp_status columns_init(struct step_stream *self, const rp_column *columns, uint32_t n, rp_error *err)
{
    uint64_t total = 0;
    for (uint32_t i = 0; i < n; i++) {
        self->n_columns = i + 1;
        RP_TRY(column_init(&self->columns[i], &columns[i], err));
        for (uint32_t j = 0; j < i; j++)
            if (strcmp(columns[i].name, columns[j].name) == 0)
                return err_set(err, RP_INVALID_ARGUMENT, "column '%s' stands twice", columns[i].name);
        self->columns[i].offset = (size_t)total;
        total += self->columns[i].row_bytes * self->chunk_length;
        if (total > MAX_CHUNK_BYTES)
            return err_set(err, RP_INVALID_ARGUMENT, "a chunk of %u steps would be larger than 4 GiB",
                           self->chunk_length);
    }
    self->raw_bytes = (size_t)total;
    return RP_OK;
}

rp_status step_stream_init(struct step_stream *self, const rp_column *columns, uint32_t n_columns,
                           uint32_t chunk_length, uint64_t keep_alive, rp_error *err)
{
    *self = (struct step_stream){.chunk_length = chunk_length, .keep_alive = keep_alive, .oldest = 1, .next = 1};
    if (n_columns == 0 || n_columns > RP_MAX_COLUMNS)
        return err_set(err, RP_INVALID_ARGUMENT, "a stream has 1 to %u columns, not %u", RP_MAX_COLUMNS, n_columns);
    self->columns = calloc(n_columns, sizeof *self->columns);
    self->set = calloc(n_columns, 1);
    self->ring_mask = 7;
    self->ring = calloc(self->ring_mask + 1, sizeof *self->ring);
    rp_status status = RP_NO_MEMORY;
    if (self->columns && self->set && self->ring)
        status = columns_init(self, columns, n_columns, err);
    if (status == RP_OK) {
        self->chunk_bytes = (sizeof(struct step_chunk) + n_columns * 5 + POOL_ALIGNMENT - 1) & -(size_t)POOL_ALIGNMENT;
        chunk_arena_front_init(&self->chunks, CHUNKS_PER_ARENA * self->chunk_bytes);
        self->raws = pool_new(self->raw_bytes, POOL_KEEP_BYTES);
        chunk_arena_front_init(&self->arena, CHUNK_ARENA_BYTES);
        self->encoded = malloc(self->raw_bytes < CHUNK_ARENA_MAX_PART ? self->raw_bytes + 1 : CHUNK_ARENA_MAX_PART);
        if (!self->chunks.pool || !self->raws || !self->arena.pool || !self->encoded)
            status = RP_NO_MEMORY;
    }
    if (status == RP_NO_MEMORY)
        err_set(err, RP_NO_MEMORY, "no memory for a stream");
    if (status != RP_OK)
        step_stream_fini(self);
    return status;
}

bool step_stream_make_file(struct step_stream *self, struct memfile_name *name)
{
    return self->raw_bytes > CHUNK_ARENA_MAX_PART && pool_make_file(self->raws, name);
}

rp_status step_stream_keep_history(struct step_stream *self, rp_error *err)
{
    uint64_t bytes = (self->n_columns / 8 + 1) * UINT64_C(8);
    for (uint32_t i = 0; i < self->n_columns; i++) {
        self->columns[i].history_offset = (size_t)bytes;
        bytes += (self->columns[i].row_bytes + 7) & ~UINT64_C(7); /* rows are aligned for any element */
    }
    self->history_bytes = (size_t)bytes;
    size_t total;
    if (!__builtin_mul_overflow(self->keep_alive, bytes, &total) && total > 0)
        self->history = calloc(1, total);
    if (self->history)
        return RP_OK;
    return err_set(err, RP_NO_MEMORY, "no memory for a history of %" PRIu64 " steps of %zu bytes", self->keep_alive,
                   self->history_bytes);
}

static void note_history(struct step_stream *self)
{
    uint8_t *step = self->history + (size_t)(self->steps % self->keep_alive) * self->history_bytes;
    memcpy(step, self->set, self->n_columns);
    for (uint32_t i = 0; i < self->n_columns; i++) {
        const void *row = step_stream_current(self, i);
        if (row)
            memcpy(step + self->columns[i].history_offset, row, (size_t)self->columns[i].row_bytes);
    }
}

void step_stream_row(const struct step_stream *self, uint32_t column, uint64_t step, const void **row)
{
    const uint8_t *kept = self->history + (size_t)(step % self->keep_alive) * self->history_bytes;
    *row = kept[column] ? kept + self->columns[column].history_offset : NULL;
}

static void put_chunks(struct step_chunk_chain *chain)
{
    if (chain->n_chunks > 0)
        chunk_arena_put(chain->home, chain->n_chunks);
    chain->n_chunks = 0;
}

void step_chunk_chain_add(struct step_chunk_chain *chain, struct step_chunk *chunk)
{
    if (chunk->owns && chunk->arena)
        chunk_arena_put(chunk->arena, 1);
    else if (chunk->owns)
        pool_chain_add(&chain->raws, chunk->data);
    free(chunk->absent);
    if (chunk->home != chain->home)
        put_chunks(chain);
    chain->home = chunk->home;
    chain->n_chunks++;
}

void step_chunk_chain_put(struct step_chunk_chain *chain)
{
    pool_chain_put(&chain->raws);
    put_chunks(chain);
    chain->home = NULL;
}

/* Returns the memory of a chunk. Writing thread. */
static void drop_chunk(struct step_stream *self, struct step_chunk *chunk)
{
    chunk_arena_shrink(&self->chunks, (const uint8_t *)chunk, self->chunk_bytes, 0);
    chunk_arena_untake(&self->chunks, chunk->home);
}

/* Frees a chunk that no item needs. Writing thread. */
static void chunk_free(struct step_stream *self, struct step_chunk *chunk)
{
    if (chunk->owns && chunk->arena) {
        chunk_arena_shrink(&self->arena, chunk->data, chunk->encoded ? chunk->size : self->raw_bytes, 0);
        chunk_arena_untake(&self->arena, chunk->arena);
    } else if (chunk->owns) {
        pool_put(chunk->data);
    }
    free(chunk->absent);
    drop_chunk(self, chunk);
}

void step_stream_fini(struct step_stream *self)
{
    for (uint64_t n = self->oldest; self->ring && n < self->next; n++) {
        struct step_chunk *chunk = self->ring[n & self->ring_mask];
        if (chunk && !chunk->needed)
            chunk_free(self, chunk);
    }
    for (uint32_t i = 0; self->columns && i < self->n_columns; i++) {
        free(self->columns[i].name);
        codec_scratch_fini(&self->columns[i].scratch);
    }
    chunk_arena_front_fini(&self->chunks);
    pool_destroy(&self->raws);
    chunk_arena_front_fini(&self->arena);
    free(self->history);
    free(self->encoded);
    free(self->columns);
    free(self->set);
    free(self->ring);
    *self = (struct step_stream){0};
}

/* ---- chunks */

static bool ring_grow(struct step_stream *self)
{
    uint64_t size = (self->ring_mask + 1) * 2;
    struct step_chunk **ring = calloc(size, sizeof *ring);
    if (!ring)
        return false;
    for (uint64_t n = self->oldest; n < self->next; n++)
        ring[n & (size - 1)] = self->ring[n & self->ring_mask];
    free(self->ring);
    self->ring = ring;
    self->ring_mask = size - 1;
    return true;
}

static rp_status chunk_open(struct step_stream *self, rp_error *err)
{
    if (self->next - self->oldest > self->ring_mask && !ring_grow(self))
        return err_set(err, RP_NO_MEMORY, "no memory for the window");
    struct chunk_arena *arena = NULL, *home = NULL;
    struct step_chunk *chunk = (void *)chunk_arena_take(&self->chunks, self->chunk_bytes, &home);
    uint8_t *raw = NULL;
    if (chunk && self->raw_bytes <= CHUNK_ARENA_MAX_PART)
        raw = chunk_arena_take(&self->arena, self->raw_bytes, &arena);
    else if (chunk)
        raw = pool_get(self->raws);
    if (!raw) {
        if (chunk) {
            chunk->home = home;
            drop_chunk(self, chunk);
        }
        return err_set(err, RP_NO_MEMORY, "no memory for a chunk of %zu bytes", self->raw_bytes);
    }
    *chunk = (struct step_chunk){.number = self->next,
                                 .step = self->steps,
                                 .episode = self->episode,
                                 .home = home,
                                 .arena = arena,
                                 .data = raw,
                                 .in_window = true,
                                 .owns = true};
    self->ring[self->next++ & self->ring_mask] = chunk;
    self->open = chunk;
    return RP_OK;
}

static void evict_oldest(struct step_stream *self)
{
    struct step_chunk *chunk = self->ring[self->oldest++ & self->ring_mask];
    assert(chunk);
    if (chunk == self->open)
        self->open = NULL;
    if (!chunk->needed) {
        chunk_free(self, chunk);
        return;
    }
    if (self->evicted) /* seldom: the I/O thread has the chunk already */
        chunk->evicted = self->evicted;
    self->evicted = chunk;
}

struct step_chunk *step_stream_find(const struct step_stream *self, uint64_t step)
{
    uint64_t low = self->oldest, high = self->next - 1;
    const struct step_chunk *newest = self->ring[high & self->ring_mask];
    if (newest->step <= step)
        return self->ring[high & self->ring_mask];
    uint64_t back = (newest->step - step + self->chunk_length - 1) / self->chunk_length;
    if (back <= high - low) {
        struct step_chunk *guess = self->ring[(high - back) & self->ring_mask];
        if (guess->step <= step && step < guess->step + guess->length)
            return guess;
    }
    while (low < high) {
        uint64_t middle = low + (high - low + 1) / 2;
        if (self->ring[middle & self->ring_mask]->step <= step)
            low = middle;
        else
            high = middle - 1;
    }
    return self->ring[low & self->ring_mask];
}

bool step_stream_is_absent(const struct step_stream *self, uint32_t column, uint64_t step)
{
    if (step >= self->absent_step)
        return false;
    const struct step_chunk *chunk = step_stream_find(self, step);
    return chunk->absent && chunk->absent[(step - chunk->step) * self->n_columns + column];
}

static rp_status block_encode(struct step_stream *self, struct step_chunk *chunk, uint32_t i, uint8_t *out,
                              rp_error *err)
{
    struct step_column *column = &self->columns[i];
    uint8_t *codec = &step_chunk_codecs(chunk, self->n_columns)[i];
    bool lacks = chunk->absent != NULL; /* the column has no value in the whole chunk */
    for (uint32_t row = 0; row < chunk->length && lacks; row++)
        lacks = chunk->absent[(size_t)row * self->n_columns + i];
    /* An item that needs the column in another chunk may still span this one: the block holds zeros, which compress well. */
    int32_t wanted = lacks ? RP_CODEC_LZ4 : column->codec;
    struct codec_shape shape = {column->elem_bytes, column->is_integer, column->row_bytes, chunk->length, column->rank};
    size_t size = 0;
    RP_TRY(codec_encode(&column->scratch, wanted, &shape, chunk->data + column->offset, out, &size, codec, err));
    chunk->block_size[i] = (uint32_t)size;
    return RP_OK;
}

/* The common case, without a second buffer: a full chunk whose blocks are all raw. */
static bool encode_in_place(struct step_stream *self, struct step_chunk *chunk)
{
    if (chunk->length != self->chunk_length || chunk->absent)
        return false;
    for (uint32_t i = 0; i < self->n_columns; i++) {
        const struct step_column *column = &self->columns[i];
        if (column->codec != RP_CODEC_RAW && !(column->codec == RP_CODEC_AUTO && column->scratch.skip > 0))
            return false;
    }
    for (uint32_t i = 0; i < self->n_columns; i++) {
        struct step_column *column = &self->columns[i];
        chunk->block_size[i] = (uint32_t)(column->row_bytes * chunk->length);
        step_chunk_codecs(chunk, self->n_columns)[i] = RP_CODEC_RAW;
        if (column->codec == RP_CODEC_AUTO)
            column->scratch.skip--; /* as the codec does */
    }
    chunk->size = (uint32_t)self->raw_bytes;
    return true;
}

rp_status step_stream_encode(struct step_stream *self, struct step_chunk *chunk, rp_error *err)
{
    if (chunk->encoded)
        return RP_OK;
    if (!encode_in_place(self, chunk)) {
        uint8_t *out = chunk->arena ? self->encoded : pool_get(self->raws);
        if (!out)
            return err_set(err, RP_NO_MEMORY, "no memory to encode a chunk");
        chunk->size = 0;
        for (uint32_t i = 0; i < self->n_columns; i++) {
            rp_status status = block_encode(self, chunk, i, out + chunk->size, err);
            if (status != RP_OK) {
                if (!chunk->arena)
                    pool_put(out);
                return status;
            }
            chunk->size += chunk->block_size[i];
        }
        if (chunk->arena) {
            memcpy(chunk->data, out, chunk->size);
            chunk_arena_shrink(&self->arena, chunk->data, self->raw_bytes, chunk->size);
        } else {
            pool_put(chunk->data);
            chunk->data = out;
        }
    }
    chunk->encoded = true;
    return RP_OK;
}

/* ---- steps */

static rp_status wrong_size(const struct step_column *column, uint64_t bytes, rp_error *err)
{
    uint64_t size = dtype_size(column->dtype);
    if (bytes % size != 0)
        return err_set(err, RP_INVALID_ARGUMENT,
                       "%" PRIu64 " bytes for column '%s' are no whole number of %s values, of which it takes %" PRIu64
                       " per step",
                       bytes, column->name, dtype_name(column->dtype), column->row_bytes / size);
    return err_set(err, RP_INVALID_ARGUMENT, "column '%s' takes %" PRIu64 " %s values per step, not %" PRIu64,
                   column->name, column->row_bytes / size, dtype_name(column->dtype), bytes / size);
}

rp_status step_stream_set(struct step_stream *self, uint32_t column, const void *value, uint64_t bytes, rp_error *err)
{
    if (column >= self->n_columns)
        return err_set(err, RP_INVALID_ARGUMENT, "there is no column %u, the stream has %u", column, self->n_columns);
    const struct step_column *c = &self->columns[column];
    if (bytes != c->row_bytes)
        return wrong_size(c, bytes, err);
    if (!value)
        return err_set(err, RP_INVALID_ARGUMENT, "no value for column '%s'", c->name);
    if (self->set[column])
        return err_set(err, RP_FAILED_PRECONDITION, "column '%s' is set already in this step", c->name);
    if (!self->open)
        RP_TRY(chunk_open(self, err));
    memcpy(self->open->data + c->offset + self->open->length * c->row_bytes, value, (size_t)c->row_bytes);
    self->set[column] = 1;
    self->n_set++;
    return RP_OK;
}

rp_status step_stream_check_step(const struct step_stream *self, const void *const *values, rp_error *err)
{
    uint32_t given = 0;
    for (uint32_t i = 0; i < self->n_columns; i++) {
        if (values[i] && self->set[i])
            return err_set(err, RP_FAILED_PRECONDITION, "column '%s' is set already in this step",
                           self->columns[i].name);
        given += values[i] != NULL;
    }
    if (given + self->n_set == 0)
        return err_set(err, RP_INVALID_ARGUMENT, "a step needs a value in at least one column");
    return RP_OK;
}

static rp_status note_absent(struct step_stream *self, rp_error *err)
{
    struct step_chunk *chunk = self->open;
    if (!chunk->absent) {
        chunk->absent = calloc(self->chunk_length, self->n_columns);
        if (!chunk->absent)
            return err_set(err, RP_NO_MEMORY, "no memory for a step");
    }
    for (uint32_t i = 0; i < self->n_columns; i++) {
        const struct step_column *column = &self->columns[i];
        chunk->absent[(size_t)chunk->length * self->n_columns + i] = !self->set[i];
        if (!self->set[i])
            memset(chunk->data + column->offset + chunk->length * column->row_bytes, 0, (size_t)column->row_bytes);
    }
    self->absent_step = self->steps + 1;
    return RP_OK;
}

/* Counts the step that the open chunk holds now. */
static inline void take_step(struct step_stream *self)
{
    self->steps++;
    if (++self->open->length == self->chunk_length)
        self->open = NULL;
    uint64_t reach = step_stream_reach(self);
    while (self->oldest < self->next) { /* chunks leave the window */
        const struct step_chunk *chunk = self->ring[self->oldest & self->ring_mask];
        if (chunk == self->open || chunk->step + chunk->length > reach)
            return;
        evict_oldest(self);
    }
}

rp_status step_stream_append(struct step_stream *self, const void *const *values, rp_error *err)
{
    if (!self->open)
        RP_TRY(chunk_open(self, err));
    const struct step_chunk *chunk = self->open;
    for (uint32_t i = 0; i < self->n_columns; i++) {
        const struct step_column *column = &self->columns[i];
        memcpy(chunk->data + column->offset + chunk->length * column->row_bytes, values[i], (size_t)column->row_bytes);
    }
    take_step(self);
    return RP_OK;
}

rp_status step_stream_end_step(struct step_stream *self, rp_error *err)
{
    if (self->n_set == 0)
        return err_set(err, RP_FAILED_PRECONDITION, "no step has been begun");
    if (self->n_set < self->n_columns)
        RP_TRY(note_absent(self, err));
    if (self->history)
        note_history(self);
    memset(self->set, 0, self->n_columns);
    self->n_set = 0;
    take_step(self);
    return RP_OK;
}

rp_status step_stream_cut(struct step_stream *self, rp_error *err)
{
    struct step_chunk *cut = self->open;
    if (!cut || cut->length == 0)
        return RP_OK;
    self->open = NULL;
    if (self->n_set == 0)
        return RP_OK;
    /* The current step moves to a new chunk. */
    rp_status status = chunk_open(self, err);
    if (status != RP_OK) {
        self->open = cut;
        return status;
    }
    for (uint32_t i = 0; i < self->n_columns; i++) {
        const struct step_column *column = &self->columns[i];
        if (self->set[i])
            memcpy(self->open->data + column->offset, cut->data + column->offset + cut->length * column->row_bytes,
                   (size_t)column->row_bytes);
    }
    return RP_OK;
}

void step_stream_abandon(struct step_stream *self)
{
    while (self->oldest < self->next)
        evict_oldest(self);
}

rp_status step_stream_end_episode(struct step_stream *self, rp_error *err)
{
    RP_TRY(step_stream_cut(self, err));
    step_stream_abandon(self);
    if (step_stream_length(self) > 0)
        self->episode++;
    self->episode_start = self->steps;
    return RP_OK;
}
