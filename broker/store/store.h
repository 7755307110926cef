/* The chunk store: immutable chunks with reference counts, and the account of their bytes.
 *
 * A small chunk is one object of the slab heap: header, block table, data. A large one keeps the received message, which
 * then is the storage: sampling it copies no byte. Chunks are held by the session that sent them (until it says that
 * nothing later will refer to them), by items, by waiting items, and by picks of waiting samplers.
 *
 * Where cold data may go to disk (spill.h), data is an object of its own: the head stays, whoever holds it. */
#ifndef BROKER_STORE_H
#define BROKER_STORE_H

#include <stdbool.h>
#include <stdint.h>
#include <zmq.h>

#include "broker/store/slab.h"
#include "replay/error.h"

/* A frame at least this large is kept as it came. libzmq hands out smaller ones as views into a shared receive buffer,
 * which keeping one would pin. */
#define STORE_KEEP_BYTES 32768u

/* Less than this is not worth an object of its own: it stays in memory with its head. */
#define STORE_SPLIT_BYTES 64u

/* CHUNK_SPLIT: the data is an object of its own, and may be on disk only (spill.h). */
enum chunk_kind { CHUNK_SLAB, CHUNK_HEAP, CHUNK_KEPT, CHUNK_SPLIT };
/* Where the data of a split chunk is. */
enum chunk_where { CHUNK_ON_DISK, CHUNK_IN_SLAB, CHUNK_IN_HEAP, CHUNK_IN_MESSAGE };

/* Items of a second, third ... table that use the chunk. */
struct chunk_share {
    struct chunk_share *next;
    uint32_t table;
    uint32_t refs;
};

/* Followed by uint32_t block_size[columns], uint8_t block_codec[columns], then the data (or a struct
 * chunk_kept, or a struct chunk_split). */
struct chunk {
    uint32_t refs;      /* all holders */
    uint32_t home_refs; /* items of the table `home` */
    struct chunk_share *shares;
    uint64_t step; /* of its first row, in its stream */
    uint32_t length;
    uint32_t bytes; /* of all blocks */
    uint32_t session;
    uint32_t episode;
    uint16_t home;
    uint8_t columns;
    uint8_t kind : 2;
    uint8_t absent : 1; /* some block has no data */
    uint8_t where : 2;  /* of a split one */
    uint8_t hot : 1;    /* spill.c's: used since the hand last came by */
    uint8_t seen : 1;   /* in which of two rounds the hand found it hot */
    uint8_t needed : 1; /* a parked waiter needs it, or it is being read: its data must not go */
    uint32_t raw_bytes; /* uncompressed */
    uint64_t at;        /* in a segment (disk/record.h); 0: it is in memory only */
};

struct stream;

struct store {
    struct stream *stream; /* told of chunks that are freed and lie in a segment; NULL: nothing is on disk */
    struct slab_heap *slabs;
    uint64_t chunks;
    uint64_t bytes;       /* stored data */
    uint64_t raw_bytes;   /* the same, uncompressed */
    uint64_t outside;     /* memory outside the slabs: kept messages, large copies, the chunk lists of items */
    bool split;           /* data may go to disk: chunks are made so that it can */
    uint64_t split_bytes; /* data of split chunks that is here */
    uint64_t spilled_chunks, spilled_bytes; /* whose data is on disk only */
};

rp_status store_init(struct store *self, rp_error *err);
void store_fini(struct store *self);

/* What it takes: block tables count, or chunks without data would cost nothing. */
static inline uint64_t chunk_cost(const struct chunk *chunk)
{
    return sizeof *chunk + (uint64_t)chunk->columns * 5 + chunk->bytes;
}
static inline uint32_t *chunk_block_sizes(struct chunk *chunk)
{
    return (uint32_t *)(void *)(chunk + 1);
}
static inline uint8_t *chunk_block_codecs(struct chunk *chunk)
{
    return (uint8_t *)(chunk_block_sizes(chunk) + chunk->columns);
}
static inline bool chunk_is_here(const struct chunk *chunk)
{
    return chunk->kind != CHUNK_SPLIT || chunk->where != CHUNK_ON_DISK;
}
/* NULL: it is on disk only. */
const uint8_t *chunk_data(struct chunk *chunk);
/* The message that holds the data, or NULL. */
zmq_msg_t *chunk_message(struct chunk *chunk);

/* Makes a chunk with one reference. `data` is copied, unless `message` is given and large: then that message is moved
 * from, and kept. Block tables are to be filled in by the caller, who has checked them. NULL: out of memory. */
struct chunk *store_add(struct store *self, uint32_t columns, const void *data, uint32_t bytes, uint64_t raw_bytes,
                        zmq_msg_t *message);
/* A chunk whose data is on disk only, at this place. For stores with `split`. NULL: out of memory. */
struct chunk *store_add_absent(struct store *self, uint32_t columns, uint32_t bytes, uint64_t raw_bytes, uint64_t at);
/* The data of a split chunk goes; its place on disk has it. */
void store_let_go(struct store *self, struct chunk *chunk);
/* The data comes back: chunk->bytes of them, malloc'ed and taken. False: no memory; freed. */
bool store_put_back(struct store *self, struct chunk *chunk, void *data);
static inline void chunk_hold(struct chunk *chunk)
{
    chunk->refs++;
}
void store_release(struct store *self, struct chunk *chunk);

/* An item of a table begins (ceases) to use the chunk. CHUNK_FIRST (true) if it is the first (last) of that table: the
 * table's bytes then change by chunk->bytes. Does not change refs. */
enum chunk_entered { CHUNK_NO_MEMORY = -1, CHUNK_AGAIN, CHUNK_FIRST };
enum chunk_entered chunk_enter(struct chunk *chunk, uint32_t table);
bool chunk_leave(struct chunk *chunk, uint32_t table);
bool chunk_is_in(const struct chunk *chunk, uint32_t table);

/* Memory that chunks take: what the limit counts. Free places in slabs are not in it, since the next chunk of that size
 * gets them; store_reserved has them. */
static inline uint64_t store_memory(const struct store *self)
{
    return slab_used(self->slabs) + self->outside;
}
static inline uint64_t store_reserved(const struct store *self)
{
    return slab_reserved(self->slabs) + self->outside;
}

#endif
