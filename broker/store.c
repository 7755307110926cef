#include "broker/store.h"

#include <stdlib.h>
#include <string.h>

#include "proto/error.h"

/* Follows the block tables of a kept chunk, 8-byte aligned. */
struct chunk_kept {
    zmq_msg_t message;
};

static size_t table_bytes(uint32_t columns)
{
    return (size_t)columns * 5;
}

static struct chunk_kept *kept(struct chunk *chunk)
{
    uintptr_t at = (uintptr_t)(chunk_block_codecs(chunk) + chunk->columns);
    return (struct chunk_kept *)((at + 15) & ~(uintptr_t)15);
}

rp_status store_init(struct store *self, rp_error *err)
{
    memset(self, 0, sizeof *self);
    self->slabs = slab_heap_new();
    return self->slabs ? RP_OK : err_set(err, RP_NO_MEMORY, "no memory for the chunk store");
}

void store_fini(struct store *self)
{
    slab_heap_destroy(&self->slabs);
}

const uint8_t *chunk_data(struct chunk *chunk)
{
    if (chunk->kind == CHUNK_KEPT)
        return zmq_msg_data(&kept(chunk)->message);
    return chunk_block_codecs(chunk) + chunk->columns;
}

zmq_msg_t *chunk_message(struct chunk *chunk)
{
    return chunk->kind == CHUNK_KEPT ? &kept(chunk)->message : NULL;
}

static struct chunk *store_alloc(struct store *self, size_t size, enum chunk_kind *kind)
{
    if (size <= SLAB_MAX_BYTES) {
        if (*kind == CHUNK_HEAP)
            *kind = CHUNK_SLAB;
        return slab_alloc(self->slabs, size);
    }
    return malloc(size);
}

struct chunk *store_add(struct store *self, uint32_t columns, const void *data, uint32_t bytes, uint64_t raw_bytes,
                        zmq_msg_t *message)
{
    enum chunk_kind kind = message && bytes >= STORE_KEEP_BYTES ? CHUNK_KEPT : CHUNK_HEAP;
    size_t head = sizeof(struct chunk) + table_bytes(columns);
    size_t size = kind == CHUNK_KEPT ? head + 16 + sizeof(struct chunk_kept) : head + bytes;
    struct chunk *chunk = store_alloc(self, size, &kind);
    if (!chunk)
        return NULL;
    memset(chunk, 0, sizeof *chunk);
    chunk->refs = 1;
    chunk->columns = (uint8_t)columns;
    chunk->bytes = bytes;
    chunk->raw_bytes = raw_bytes < UINT32_MAX ? (uint32_t)raw_bytes : UINT32_MAX;
    chunk->kind = (uint8_t)kind & 15;
    if (kind == CHUNK_KEPT) {
        zmq_msg_init(&kept(chunk)->message);
        zmq_msg_move(&kept(chunk)->message, message);
        self->outside += bytes;
    } else {
        memcpy(chunk_block_codecs(chunk) + columns, data, bytes);
        if (kind == CHUNK_HEAP)
            self->outside += size;
    }
    self->chunks++;
    self->bytes += bytes;
    self->raw_bytes += chunk->raw_bytes;
    return chunk;
}

static void store_free(struct store *self, struct chunk *chunk)
{
    self->chunks--;
    self->bytes -= chunk->bytes;
    self->raw_bytes -= chunk->raw_bytes;
    size_t size = sizeof *chunk + table_bytes(chunk->columns) + chunk->bytes;
    switch (chunk->kind) {
    case CHUNK_KEPT:
        zmq_msg_close(&kept(chunk)->message);
        self->outside -= chunk->bytes;
        slab_free(self->slabs, chunk);
        break;
    case CHUNK_HEAP:
        self->outside -= size;
        free(chunk);
        break;
    default:
        slab_free(self->slabs, chunk);
    }
}

void store_release(struct store *self, struct chunk *chunk)
{
    if (--chunk->refs == 0)
        store_free(self, chunk);
}

bool chunk_enter(struct chunk *chunk, uint32_t table)
{
    if (chunk->home_refs == 0 || chunk->home == table) {
        /* A share of the same table may exist from when another table was at home. */
        struct chunk_share *own = chunk->shares;
        while (own && own->table != table)
            own = own->next;
        if (!own) {
            chunk->home = (uint16_t)table;
            return chunk->home_refs++ == 0;
        }
        own->refs++;
        return false;
    }
    for (struct chunk_share *share = chunk->shares; share; share = share->next)
        if (share->table == table) {
            share->refs++;
            return false;
        }
    struct chunk_share *share = malloc(sizeof *share);
    if (!share)
        abort(); /* 16 bytes: the process is beyond saving */
    *share = (struct chunk_share){chunk->shares, table, 1};
    chunk->shares = share;
    return true;
}

bool chunk_leave(struct chunk *chunk, uint32_t table)
{
    for (struct chunk_share **at = &chunk->shares; *at; at = &(*at)->next)
        if ((*at)->table == table) {
            if (--(*at)->refs > 0)
                return false;
            struct chunk_share *gone = *at;
            *at = gone->next;
            free(gone);
            return true;
        }
    return --chunk->home_refs == 0;
}
