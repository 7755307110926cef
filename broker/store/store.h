/* The chunk store: immutable chunks with reference counts, and the account of their bytes.
 *
 * This room owns chunks (slab.h and reserve.h give them memory) and layouts (layout.h). It may use the loop and the
 * wire format, and knows nothing of tables, sessions or files: whoever puts chunks on disk sets `freed`.
 *
 * A small chunk is one object of the slab heap: header, block table, data. The data of a larger one is an object of its own, so
 * that it can be elsewhere: in the message in which it came, which is sent without a copy, in memory that clients on the same host
 * read (shm.h), or on disk. Chunks are held by the session that sent them (until it says that no later item will refer to them), by
 * items, by waiting items, and by picks of waiting samplers. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <zmq.h>

#include "broker/store/shm.h"
#include "broker/store/slab.h"
#include "replay/error.h"

/* A frame at least this large is kept as it came. libzmq hands out smaller frames as views into a shared receive buffer: to
 * keep such a frame would pin the whole buffer. */
#define STORE_KEEP_BYTES 32768u

/* Data of at least this size is an object of its own. If cold data may go to disk, so is all that is worth it. */
#define STORE_OWN_BYTES 4096u
#define STORE_SPLIT_BYTES 64u

/* Free places in slabs that never count: a few slabs of each size. */
#define STORE_FREE_BYTES (4u << 20)

/* Where the data of a chunk is: with its head, or (the chunk is split) in an object of its own, or on disk only. */
enum chunk_where { CHUNK_WITH_HEAD, CHUNK_ON_DISK, CHUNK_IN_SLAB, CHUNK_IN_HEAP, CHUNK_IN_MESSAGE, CHUNK_SHARED };

/* Items of one table that use a chunk, if items of several tables do. */
struct chunk_share {
    struct chunk_share *next;
    uint32_t table;
    uint32_t refs;
};

/* Followed by uint32_t block_size[columns], uint8_t block_codec[columns] and uint32_t raw_bytes (the size of the data uncompressed), then by
 * the data, or a struct chunk_split. A plain chunk has none of these three. With a chunk for each step these heads are a
 * large part of all memory: no byte is spent on what follows from another. */
struct chunk {
    uint64_t users; /* items by table: their number << 32 | table << 1 | 1, or a list of struct chunk_share; 0: none */
    uint64_t step;  /* of the first row, in the session's stream of steps */
    uint64_t at;    /* place in a segment (journal/record.h); 0: in memory only */
    uint32_t refs;  /* all holders */
    uint32_t length;
    uint32_t session;
    uint32_t episode;
    uint8_t columns;
    uint8_t where : 3;  /* enum chunk_where */
    uint8_t absent : 1; /* some block has no data */
    uint8_t hot : 1;    /* used since the hand of the spill room last came by */
    uint8_t seen : 1;   /* in which of two rounds the hand found it hot */
    uint8_t needed : 1; /* a parked waiter needs the data, or the data is being read: it must stay */
    uint8_t plain : 1;  /* one column, and raw_bytes is bytes */
    uint8_t codec;      /* of the block of a plain chunk */
    uint32_t bytes;     /* of all blocks */
};

struct store {
    /* Called before a chunk that has a place in a segment is freed; NULL: no chunk is on disk. */
    void (*freed)(void *ctx, const struct chunk *chunk);
    void *freed_ctx;
    /* Called before an item is evicted, or waits, because memory is short: releases chunks that are held for somebody's convenience. False:
     * there are none. NULL: the same. */
    bool (*relieve)(void *ctx);
    void *relieve_ctx;
    struct slab_heap *slabs;
    struct shm *shm; /* NULL: none */
    bool sharing;    /* some client reads it: data of at least STORE_OWN_BYTES goes there */
    uint64_t chunks;
    uint64_t bytes;       /* stored data */
    uint64_t raw_bytes;   /* the same, uncompressed */
    uint64_t outside;     /* memory outside the slabs: kept messages, large copies, the chunk lists of items */
    uint64_t overhead;    /* memory of what grows with items besides chunks: slots, keys, sessions, kept replies */
    bool sparing;         /* memory_limit is small: no memory is touched ahead of its use */
    bool split;           /* data may go to disk: all chunks that are worth it are split */
    uint64_t split_bytes; /* data of split chunks that is in memory */
    uint64_t spilled_chunks, spilled_bytes; /* chunks whose data is on disk only */
};

void store_init(struct store *self, uint64_t memory_limit);
void store_fini(struct store *self);

/* Bytes of the block tables and raw_bytes of a chunk that is not plain. */
static inline size_t chunk_table_bytes(uint32_t columns)
{
    return (size_t)columns * 5 + sizeof(uint32_t);
}
/* Bytes that a chunk takes. Block tables count, or chunks without data would cost nothing. */
static inline uint64_t chunk_cost(const struct chunk *chunk)
{
    return sizeof *chunk + (uint64_t)chunk->columns * 5 + chunk->bytes;
}
static inline uint32_t *chunk_block_sizes(struct chunk *chunk)
{
    return &chunk->bytes + !chunk->plain;
}
static inline uint8_t *chunk_block_codecs(struct chunk *chunk)
{
    return chunk->plain ? &chunk->codec : (uint8_t *)(chunk + 1) + (size_t)chunk->columns * sizeof(uint32_t);
}
/* Returns the size of the data uncompressed. */
uint32_t chunk_raw_bytes(struct chunk *chunk);
static inline bool chunk_is_here(const struct chunk *chunk)
{
    return chunk->where != CHUNK_ON_DISK;
}
static inline bool chunk_is_split(const struct chunk *chunk)
{
    return chunk->where != CHUNK_WITH_HEAD;
}
/* Returns the end of the head and its block tables. */
static inline uint8_t *chunk_head_end(struct chunk *chunk)
{
    return (uint8_t *)(chunk + 1) + (chunk->plain ? 0 : chunk_table_bytes(chunk->columns));
}
const uint8_t *chunk_split_data(struct chunk *chunk);
/* NULL: the data is on disk only. */
static inline const uint8_t *chunk_data(struct chunk *chunk)
{
    return chunk_is_split(chunk) ? chunk_split_data(chunk) : chunk_head_end(chunk);
}
/* The message that holds the data, or NULL. */
zmq_msg_t *chunk_message(struct chunk *chunk);

/* Makes a chunk with one reference. `data` is copied once, unless `message` is given and large: then the message is moved into the
 * chunk. The caller has checked the block tables, and fills them in. NULL: no memory. */
struct chunk *store_add(struct store *self, uint32_t columns, const void *data, uint32_t bytes, uint64_t raw_bytes,
                        zmq_msg_t *message);
/* Makes a chunk whose data is on disk only, at this place. For stores with `split`. NULL: no memory. */
struct chunk *store_add_absent(struct store *self, uint32_t columns, uint32_t bytes, uint64_t raw_bytes, uint64_t at);
/* Frees the data of a split chunk: it is at its place on disk. */
void store_let_go(struct store *self, struct chunk *chunk);
/* Moves the data of a split chunk that is here to shared memory. False: there is no room. */
bool store_share(struct store *self, struct chunk *chunk);
/* Puts data back that was read: chunk->bytes of it, malloc'ed and taken. False: no memory; the data is freed. */
bool store_put_back(struct store *self, struct chunk *chunk, void *data);
static inline void chunk_hold(struct chunk *chunk)
{
    chunk->refs++;
}
void store_release(struct store *self, struct chunk *chunk);

/* An item of a table begins (ceases) to use the chunk. True if it is the first (last) item of that table: the table's bytes then
 * change by chunk->bytes. refs does not change. */
bool chunk_enter(struct store *self, struct chunk *chunk, uint32_t table);
bool chunk_leave(struct store *self, struct chunk *chunk, uint32_t table);
bool chunk_is_in(const struct chunk *chunk, uint32_t table);

/* Returns the bytes of a block of malloc: it has a head of 8 bytes, and is 32 bytes or a multiple of 16. */
static inline uint64_t store_block_bytes(uint64_t bytes)
{
    return bytes <= 24 ? 32 : (bytes + 8 + 15) & ~UINT64_C(15);
}

static inline struct shm_bytes store_shared(const struct store *self)
{
    return self->shm ? *shm_bytes(self->shm) : (struct shm_bytes){0};
}
/* Memory that chunks take. Evicting an item lowers it, if the item is the last that uses its chunks. */
static inline uint64_t store_chunk_memory(const struct store *self)
{
    return slab_bytes(self->slabs)->used + self->outside + store_shared(self).used;
}
/* Free places in slabs and shared memory that count as memory. The next chunk of their size gets a free place; but where sizes
 * change, slabs stay until their last old chunk goes. So more than an eighth counts. */
static inline uint64_t store_waste_of(uint64_t used, uint64_t reserved)
{
    uint64_t most = used + reserved / 8 + STORE_FREE_BYTES;
    return reserved > most ? reserved - most : 0;
}
static inline uint64_t store_waste(const struct store *self)
{
    const struct slab_bytes *slabs = slab_bytes(self->slabs);
    struct shm_bytes shared = store_shared(self);
    return store_waste_of(slabs->used, slabs->reserved) + store_waste_of(shared.used, shared.reserved);
}
/* All memory that is accounted for: memory_limit bounds it. */
static inline uint64_t store_memory(const struct store *self)
{
    return store_chunk_memory(self) + store_waste(self) + self->overhead;
}
