/* Batches: their memory, and the decoder that fills them from a reply.
 *
 * A reply to sample or fetch becomes rp_batch objects: batch.c has the object and its pool, batch_decode.c the decoder, batch_join.c
 * rows of several batches in one.
 *
 * A sampler and its batches share a pool, so that a batch may outlive its sampler. The pool keeps the memory of released batches
 * for the next ones. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "proto/wire/wire.h"
#include "replay/sampler.h"

struct batch_pool;
struct batch_decoder;
struct batch_field;

#define BATCH_MAX_FIELDS 4096u
#define BATCH_WIDE 6u   /* arrays of 8 bytes per item: key, priority, probability, age, policy, step */
#define BATCH_GROUP 6u  /* one more in a batch of groups: group */
#define BATCH_NARROW 2u /* arrays of 4 bytes per item: times sampled, session */

/* Of a batch whose items are still in the reply (leave_items): row i of a field is at data + step * index[i]. */
struct batch_in_reply {
    size_t step;          /* bytes from one chunk to the next; 0: the items are in the batch's memory */
    const uint8_t *index; /* the chunk of each item, 4 bytes each; NULL: chunk i is that of item i */
    struct pb_array wide[BATCH_GROUP + 1], narrow[BATCH_NARROW]; /* instead of `arrays` */
};

struct rp_batch {
    struct rp_batch *next; /* next batch of the same reply, or next in the pool's free list */
    struct batch_pool *pool;
    rp_batch_info info;
    rp_batch_arrays arrays;
    rp_field_view *fields;
    struct batch_in_reply in_reply;
    double mass; /* this and room: of the reply to a paid sample */
    uint64_t room;
    uint32_t n_wide; /* BATCH_WIDE, or one more */
    uint32_t fields_capacity;
    uint8_t *memory; /* arrays, lengths, names and fields; 64-byte aligned */
    size_t capacity;
    char text[256];
};

/* Returns the chunk of item i, from the index of a reply. */
static inline uint32_t batch_chunk_at(const uint8_t *index, uint32_t i)
{
    uint32_t chunk = i;
    if (index)
        memcpy(&chunk, index + (size_t)i * 4, 4);
    return chunk;
}

/* ---- pool ---- */

/* Keeps up to `keep` released batches for reuse. memory: where theirs comes from; NULL: from this library. */
struct batch_pool *batch_pool_new(uint32_t keep, const rp_memory *memory);
struct batch_pool *batch_pool_ref(struct batch_pool *self);
void batch_pool_unref(struct batch_pool **self);

/* ---- making a batch ---- */

/* A field of a batch to be. */
struct batch_spec_field {
    const struct batch_field *from; /* of the decoder's layout */
    const uint8_t *rows_at;         /* of a regular reply: its rows in the first chunk */
    rp_field_view view;             /* its name, dtype, rank, and shape from shape[1] on */
    uint64_t steps;                 /* largest number of any item */
    uint64_t item_bytes;
    bool variable; /* items have different numbers of steps: the batch tells each */
    bool packed;   /* the steps of all items lie one behind the other; item_bytes is the size of a step */
    uint64_t rows; /* packed: steps of all items */
    uint64_t at;   /* set by batch_make: offset among the fields */
};

struct batch_spec {
    uint32_t n, n_fields;
    struct batch_spec_field *fields;
    uint64_t max_bytes, limit; /* of the fields; what is left of it */
    bool in_reply;             /* arrays and fields take no memory */
    bool sources, shards;      /* the batch tells each item's source, and its shard */
    bool groups;               /* and its group */
    bool packed;
    uint64_t bytes; /* set by batch_make: of the fields */
};

/* Takes memory of the pool for a batch; its arrays and fields are not filled. */
rp_status batch_make(struct batch_pool *pool, struct batch_spec *spec, struct rp_batch **out, rp_error *err);
/* Cuts the text if it is too long. */
void batch_set_text(struct rp_batch *self, const char *text, size_t size);
/* Computes importance weights of n picks: (1 / (N p))^beta divided by the largest; N cancels out. Picks with a probability
 * that is not positive and finite get 1. */
void batch_weights(const double *probability, uint32_t n, double beta, float *out);
/* Computes the importance weights of a batch from its probabilities; beta 0: all are 1. */
void batch_set_weights(struct rp_batch *self, double beta);

/* Returns array k of 8 bytes per item, and array k of 4 bytes per item. */
enum batch_narrow { BATCH_TIMES, BATCH_SESSION, BATCH_SOURCE, BATCH_SHARD, BATCH_WEIGHT, BATCH_ALL_NARROW };

static inline void *batch_wide(const struct rp_batch *self, uint32_t k)
{
    return self->memory + (size_t)k * self->info.n * 8;
}

static inline uint32_t *batch_narrow(const struct rp_batch *self, uint32_t k)
{
    return (uint32_t *)(void *)(self->memory + (size_t)self->info.n * (self->n_wide * 8 + k * 4));
}

/* ---- the batches of one reply, a list by `next` ---- */

/* Takes the first batch out of the list, which must not be empty. */
struct rp_batch *batch_list_take(struct rp_batch **list);
void batch_list_release(struct rp_batch **list);
/* Returns the number of items in all batches of the list. */
uint64_t batch_list_items(const struct rp_batch *list);

/* ---- decoder: owned by one thread ---- */

struct batch_frame {
    const void *data;
    size_t size;
};

struct batch_options {
    double beta;
    uint64_t max_bytes; /* 0: no bound */
    uint32_t threads;   /* that fill a large batch; 0: 1 */
    uint64_t large;     /* bytes of a batch that is large; 0: 1 MiB */
    /* Items that need no decoding stay in the reply, which must outlive its batches: only batch_join can read them. */
    bool leave_items;
    bool packed; /* not with leave_items */
};

/* Takes a reference to the pool. */
struct batch_decoder *batch_decoder_new(struct batch_pool *pool, const struct batch_options *options);
void batch_decoder_destroy(struct batch_decoder **self);
/* A reply with items: nothing in it is trusted beyond what wire_read_sampled checked. */
struct batch_reply {
    const struct wire_sampled *view;
    struct wire_string text; /* the reply's sentence; may be empty */
    const struct batch_frame *frames;
    uint32_t n_frames;
    const uint8_t *arena; /* the broker's memory, aligned to 64 bytes; NULL: it is not here */
    size_t arena_size;
};

/* Makes a batch from a reply, or a list of batches if its items have fields that do not fit into one array. The reply is
 * read only during the call. Data in the broker's memory may change at any time: then the call fails, and the reply is overtaken. */
rp_status batch_decode(struct batch_decoder *self, const struct batch_reply *reply, struct rp_batch **out,
                       rp_error *err);

/* What the last reply had to do with the broker's memory. */
struct batch_shared {
    bool overtaken; /* it names memory that holds other data by now, or that is not here: ask for bytes */
    uint64_t bytes; /* of the batches that were made from there */
};
struct batch_shared batch_decoder_shared(const struct batch_decoder *self);

/* The same for a connection's reply to sample or fetch. */
struct conn_reply;
rp_status batch_decode_reply(struct batch_decoder *self, struct conn_reply *reply, struct rp_batch **out,
                             rp_error *err);

/* ---- one batch of rows of several ---- */

/* Rows of a batch that another takes. */
struct batch_rows {
    const struct rp_batch *from;
    uint32_t first, n;
    double share;           /* of where they came from: it multiplies their probabilities */
    uint32_t source, shard; /* where they came from, unless their batch tells it */
};

/* Rows of which a batch is put together. Starts zero-initialised. */
struct batch_pieces {
    struct batch_rows *rows;
    uint32_t n, capacity;
};

/* False: no memory. */
bool batch_pieces_add(struct batch_pieces *self, const struct batch_rows *rows);

struct batch_join_options {
    double beta;
    uint64_t max_bytes; /* 0: no bound */
    bool sources;       /* the batch tells each item's source */
    bool shards;        /* and its shard */
    bool packed;        /* as all batches of the pieces are */
};

/* A batch that is put together: pieces are copied by several threads, each in the place that it has. */
struct batch_join;

/* Takes memory of the pool for one batch of all pieces; for several if their fields do not fit into one array.
 * The batches of the pieces must stay until the pieces are copied. */
rp_status batch_join_new(struct batch_pool *pool, const struct batch_rows *rows, uint32_t n,
                         const struct batch_join_options *options, struct batch_join **out, rp_error *err);
/* Copies the rows of piece i. Any thread; each piece once. */
void batch_join_copy(struct batch_join *self, uint32_t i);
/* Completes the batches when all pieces are copied, and frees the join. The caller fills in the rest of each batch's info. */
struct rp_batch *batch_join_finish(struct batch_join **self);
/* Gives up: the batches are released. */
void batch_join_drop(struct batch_join **self);
/* All of it at once. */
rp_status batch_join(struct batch_pool *pool, const struct batch_rows *rows, uint32_t n,
                     const struct batch_join_options *options, struct rp_batch **out, rp_error *err);

/* Writes elements first ... first + n - 1 of an array of a reply, with 8 or 4 bytes each: one that has one element has it for
 * all. */
void batch_expand(const struct pb_array *from, uint32_t first, uint32_t n, size_t width, void *out);
