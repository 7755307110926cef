/* The steps of one writer: columns, chunks, and the window of recent steps that items may refer to. Used by the writing thread.
 * A chunk that an item needs is encoded here and then shared with the I/O thread. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "agent/client/conn/pool.h"
#include "proto/wire/codec.h"
#include "replay/types.h"

struct message;

/* The first line of the cache is the writing thread's; the I/O thread writes only to the second. */
struct step_chunk {
    /* Set by the writing thread before an item refers to the chunk; constant from then on. */
    uint64_t number, step; /* in the stream */
    uint32_t length, episode;
    uint32_t size; /* of the encoded blocks */
    bool encoded;
    bool needed;                /* an item refers to it: the I/O thread frees it */
    struct step_chunk *next;    /* the chunk with number + 1; set when an item spans both */
    struct step_chunk *evicted; /* next in a list of chunks that have left the window */
    uint8_t *absent;            /* [row * columns + column]; NULL: no value is absent */
    struct chunk_arena *home;   /* the arena that the chunk itself is in */
    struct chunk_arena *arena;  /* the arena that the data is in; NULL: it is a block of its own */
    /* Blocks of chunk_length rows; once they are encoded, one after another: its own, or in the message that carries them. */
    uint8_t *data;
    /* I/O thread. */
    struct message *message; /* the message that carries it */
    uint64_t picked;         /* number of the build that has picked it */
    uint64_t place;          /* of the data in the memory that the broker reads; 0: it is elsewhere */
    uint32_t refs;           /* unresolved items */
    uint32_t frame;          /* index of its own frame in that message; 0: packed with others */
    bool in_window;
    bool owns; /* the data is its own: no message holds it */
    /* [columns] sizes, then [columns] codecs */
    uint32_t block_size[];
};
_Static_assert(offsetof(struct step_chunk, arena) == POOL_ALIGNMENT, "the second line begins here");

struct step_column {
    char *name;
    int32_t dtype, codec;
    uint32_t rank;
    uint32_t shape[RP_MAX_RANK];
    uint32_t elem_bytes, is_integer;
    uint64_t row_bytes;
    size_t offset;         /* of its block in raw */
    size_t history_offset; /* of its row in a step of the history */
    struct codec_scratch scratch;
};

struct step_stream {
    struct step_column *columns;
    uint32_t n_columns;
    uint32_t chunk_length;
    uint64_t keep_alive;
    size_t raw_bytes;   /* of a full chunk */
    size_t chunk_bytes; /* whole lines of the cache */
    struct chunk_arena_front chunks;
    struct pool *raws;
    struct chunk_arena_front arena; /* for the data of small chunks */
    uint8_t *encoded;               /* buffer for encoding a small chunk */
    struct step_chunk **ring;       /* chunks oldest .. next - 1, by number */
    uint64_t ring_mask;
    uint64_t oldest, next;
    struct step_chunk *open; /* the chunk being filled: number next - 1 */
    uint64_t steps, episode_start;
    uint32_t episode;
    uint8_t *set; /* [columns] set in the current step */
    uint32_t n_set;
    uint64_t absent_step;       /* the newest step with an absent value, plus 1 */
    struct step_chunk *evicted; /* needed chunks that have left the window, to be handed to the I/O thread */
    /* Copies of the newest keep_alive steps, step n at n % keep_alive: a byte for each column, 1 if it has a value, then the rows
     * of all columns. Chunks are of no use here: they are compressed, or the I/O thread has them. NULL: not kept. */
    uint8_t *history;
    size_t history_bytes; /* of a step */
};

/* Fetches a chunk that another thread has written; NULL is allowed. */
static inline void step_chunk_prefetch(const struct step_chunk *self)
{
    __builtin_prefetch(self, 0);
    __builtin_prefetch((const void *)((uintptr_t)self + offsetof(struct step_chunk, arena)), 1);
}

/* Returns the next chunk of an item that has `left` steps from the start of this one on; NULL: the item ends here. */
static inline struct step_chunk *step_chunk_after(const struct step_chunk *self, uint64_t *left)
{
    bool more = *left > self->length;
    *left -= more ? self->length : 0;
    return more ? self->next : NULL;
}

static inline uint8_t *step_chunk_codecs(struct step_chunk *self, uint32_t n_columns)
{
    return (uint8_t *)(self->block_size + n_columns);
}

/* Copies the columns. */
rp_status step_stream_init(struct step_stream *self, const rp_column *columns, uint32_t n_columns,
                           uint32_t chunk_length, uint64_t keep_alive, rp_error *err);
/* Makes memory for large chunks that a broker on this host may read, and gives its name. False: chunks are small, or there is none. */
bool step_stream_make_file(struct step_stream *self, struct memfile_name *name);
/* Keeps copies of the steps from now on, for step_stream_row. */
rp_status step_stream_keep_history(struct step_stream *self, rp_error *err);
/* Gives the row of a step of the stream that is in the window; *row is NULL if it is absent. */
void step_stream_row(const struct step_stream *self, uint32_t column, uint64_t step, const void **row);
/* All chunks that were handed over must be back, or be freed by the I/O thread. */
void step_stream_fini(struct step_stream *self);

rp_status step_stream_set(struct step_stream *self, uint32_t column, const void *value, uint64_t bytes, rp_error *err);
/* Checks that these columns can be set: none is set already, and the step has at least one. */
rp_status step_stream_check_step(const struct step_stream *self, const void *const *values, rp_error *err);
/* Appends a whole step: as setting all columns and ending the step. No column may be set, and no history kept. */
rp_status step_stream_append(struct step_stream *self, const void *const *values, rp_error *err);
rp_status step_stream_end_step(struct step_stream *self, rp_error *err);
/* Completes the chunk being filled, if it holds a step. */
rp_status step_stream_cut(struct step_stream *self, rp_error *err);
/* Completes the chunk and empties the window. Must not be called within a step. */
rp_status step_stream_end_episode(struct step_stream *self, rp_error *err);

/* Empties the window in any state, before the stream is freed. */
void step_stream_abandon(struct step_stream *self);

/* Returns the value that was set in the current step, or NULL. */
static inline const void *step_stream_current(const struct step_stream *self, uint32_t column)
{
    const struct step_column *c = &self->columns[column];
    return self->set[column] ? self->open->data + c->offset + self->open->length * c->row_bytes : NULL;
}

/* Returns true if step_stream_append can take these values. */
static inline bool step_stream_is_whole(const struct step_stream *self, const void *const *values)
{
    if (self->n_set > 0 || self->history)
        return false;
    for (uint32_t i = 0; i < self->n_columns; i++)
        if (!values[i])
            return false;
    return true;
}

/* Returns the number of complete steps in this episode. */
static inline uint64_t step_stream_length(const struct step_stream *self)
{
    return self->steps - self->episode_start;
}
/* Returns the oldest step of the stream that items may refer to. */
static inline uint64_t step_stream_reach(const struct step_stream *self)
{
    uint64_t length = step_stream_length(self);
    return self->steps - (length < self->keep_alive ? length : self->keep_alive);
}
/* Returns the chunk after this one, which must be in the window, for an item that spans both. */
static inline struct step_chunk *step_stream_next(const struct step_stream *self, struct step_chunk *chunk)
{
    if (!chunk->next)
        chunk->next = self->ring[(chunk->number + 1) & self->ring_mask];
    return chunk->next;
}
/* Returns the chunk that holds this step, which must be in the window. */
struct step_chunk *step_stream_find(const struct step_stream *self, uint64_t step);
bool step_stream_is_absent(const struct step_stream *self, uint32_t column, uint64_t step);
/* Encodes a complete chunk for sending. */
rp_status step_stream_encode(struct step_stream *self, struct step_chunk *chunk, rp_error *err);
/* Chunks and their blocks that are to be returned to the stream together. */
struct step_chunk_chain {
    struct pool_chain raws;
    struct chunk_arena *home; /* of the chunks */
    uint32_t n_chunks;
};
/* Collects a chunk that has left the window and has no items; step_chunk_chain_put returns it. Any thread. */
void step_chunk_chain_add(struct step_chunk_chain *chain, struct step_chunk *chunk);
void step_chunk_chain_put(struct step_chunk_chain *chain);
