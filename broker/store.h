/* The chunk store: immutable chunks with reference counts, and the account of their bytes.
 *
 * A small chunk is one object of the slab heap: header, block table, data. A large one keeps the received message, which
 * then is the storage: sampling it copies no byte. Chunks are held by the session that sent them (until it says that
 * nothing later will refer to them), by items, by waiting items, and by picks of waiting samplers. */
#ifndef BROKER_STORE_H
#define BROKER_STORE_H

#include <stdbool.h>
#include <stdint.h>
#include <zmq.h>

#include "broker/slab.h"
#include "replay/error.h"

/* A frame at least this large is kept as it came. libzmq hands out smaller ones as views into a shared receive buffer,
 * which keeping one would pin. */
#define STORE_KEEP_BYTES 32768u

enum chunk_kind { CHUNK_SLAB, CHUNK_HEAP, CHUNK_KEPT };

/* Items of a second, third ... table that use the chunk. */
struct chunk_share {
    struct chunk_share *next;
    uint32_t table;
    uint32_t refs;
};

/* Followed by uint32_t block_size[columns], uint8_t block_codec[columns], then the data (or a struct chunk_kept). */
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
    uint8_t kind : 4;
    uint8_t absent : 4; /* some block has no data */
    uint32_t raw_bytes; /* uncompressed */
};

struct store {
    struct slab_heap *slabs;
    uint64_t chunks;
    uint64_t bytes;     /* stored data */
    uint64_t raw_bytes; /* the same, uncompressed */
    uint64_t outside;   /* memory outside the slabs: kept messages, large copies, the chunk lists of items */
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
const uint8_t *chunk_data(struct chunk *chunk);
/* The message that holds a kept chunk, or NULL. */
zmq_msg_t *chunk_message(struct chunk *chunk);

/* Makes a chunk with one reference. `data` is copied, unless `message` is given and large: then that message is moved
 * from, and kept. Block tables are to be filled in by the caller, who has checked them. NULL: out of memory. */
struct chunk *store_add(struct store *self, uint32_t columns, const void *data, uint32_t bytes, uint64_t raw_bytes,
                        zmq_msg_t *message);
static inline void chunk_hold(struct chunk *chunk)
{
    chunk->refs++;
}
void store_release(struct store *self, struct chunk *chunk);

/* An item of a table begins (ceases) to use the chunk. True if it is the first (last) of that table: the table's bytes
 * then change by chunk->bytes. Does not change refs. */
bool chunk_enter(struct chunk *chunk, uint32_t table);
bool chunk_leave(struct chunk *chunk, uint32_t table);

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
