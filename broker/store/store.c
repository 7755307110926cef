#include "broker/store/store.h"

#include <stdlib.h>
#include <string.h>

/* Follows the block tables of a split chunk, 8-byte aligned. */
struct chunk_split {
    void *data; /* an object of the slab, a block, or a zmq_msg_t */
};

static size_t table_bytes(uint32_t columns)
{
    return (size_t)columns * 5;
}

static struct chunk_split *split(struct chunk *chunk)
{
    uintptr_t at = (uintptr_t)(chunk_block_codecs(chunk) + chunk->columns);
    return (struct chunk_split *)((at + 7) & ~(uintptr_t)7);
}

/* With less memory than this, pages that are touched ahead (some 40 MB) would be a notable part of it. */
#define SPARING_BELOW (UINT64_C(512) << 20)

void store_init(struct store *self, uint64_t memory_limit)
{
    memset(self, 0, sizeof *self);
    self->sparing = memory_limit < SPARING_BELOW;
    self->slabs = slab_heap_new(!self->sparing);
}

void store_fini(struct store *self)
{
    slab_heap_destroy(&self->slabs);
    shm_destroy(&self->shm);
}

const uint8_t *chunk_data(struct chunk *chunk)
{
    if (!chunk_is_split(chunk))
        return chunk_block_codecs(chunk) + chunk->columns;
    return chunk->where == CHUNK_IN_MESSAGE ? zmq_msg_data(split(chunk)->data) : split(chunk)->data;
}

zmq_msg_t *chunk_message(struct chunk *chunk)
{
    return chunk->where == CHUNK_IN_MESSAGE ? split(chunk)->data : NULL;
}

static struct chunk *head_new(struct store *self, uint32_t columns, uint32_t bytes, uint64_t raw_bytes, size_t size)
{
    struct chunk *chunk = slab_alloc(self->slabs, size);
    if (!chunk)
        return NULL;
    memset(chunk, 0, sizeof *chunk);
    chunk->refs = 1;
    chunk->columns = (uint8_t)columns;
    chunk->bytes = bytes;
    chunk->raw_bytes = raw_bytes < UINT32_MAX ? (uint32_t)raw_bytes : UINT32_MAX;
    self->chunks++;
    self->bytes += bytes;
    self->raw_bytes += chunk->raw_bytes;
    return chunk;
}

/* ---- split chunks ---- */

static size_t split_size(uint32_t columns)
{
    return sizeof(struct chunk) + table_bytes(columns) + 7 + sizeof(struct chunk_split);
}

/* True if neither slabs nor shared memory count the data. */
static bool is_outside(enum chunk_where where)
{
    return where == CHUNK_IN_HEAP || where == CHUNK_IN_MESSAGE;
}

static void split_here(struct store *self, struct chunk *chunk, void *data, enum chunk_where where)
{
    split(chunk)->data = data;
    chunk->where = (uint8_t)where & 7;
    chunk->hot = 1;
    self->split_bytes += chunk->bytes;
    if (is_outside(where))
        self->outside += chunk->bytes;
}

static void object_free(struct store *self, void *object, enum chunk_where where)
{
    if (where == CHUNK_IN_SLAB)
        slab_free(self->slabs, object);
    else if (where == CHUNK_SHARED)
        shm_free(self->shm, object);
    else
        free(object);
}

/* Frees the object that has the data. */
static void split_drop(struct store *self, struct chunk *chunk)
{
    if (chunk->where == CHUNK_IN_MESSAGE)
        zmq_msg_close(split(chunk)->data);
    object_free(self, split(chunk)->data, chunk->where);
    if (is_outside(chunk->where))
        self->outside -= chunk->bytes;
    self->split_bytes -= chunk->bytes;
    split(chunk)->data = NULL;
    chunk->where = CHUNK_ON_DISK;
}

static void *split_copy(struct store *self, const void *data, uint32_t bytes, enum chunk_where *where)
{
    void *copy = self->sharing && bytes >= STORE_OWN_BYTES ? shm_alloc(self->shm, bytes) : NULL;
    *where = copy ? CHUNK_SHARED : bytes <= SLAB_MAX_BYTES ? CHUNK_IN_SLAB : CHUNK_IN_HEAP;
    if (!copy)
        copy = *where == CHUNK_IN_SLAB ? slab_alloc(self->slabs, bytes) : malloc(bytes);
    if (copy)
        memcpy(copy, data, bytes);
    return copy;
}

static struct chunk *split_add(struct store *self, uint32_t columns, const void *data, uint32_t bytes,
                               uint64_t raw_bytes, zmq_msg_t *message)
{
    enum chunk_where where = CHUNK_IN_MESSAGE;
    bool keep = message && bytes >= STORE_KEEP_BYTES && !self->sharing;
    zmq_msg_t *object = keep ? malloc(sizeof *object) : split_copy(self, data, bytes, &where);
    if (!object)
        return NULL;
    struct chunk *chunk = head_new(self, columns, bytes, raw_bytes, split_size(columns));
    if (!chunk) {
        object_free(self, object, where);
        return NULL;
    }
    if (keep) {
        zmq_msg_init(object);
        zmq_msg_move(object, message);
    }
    split_here(self, chunk, object, where);
    return chunk;
}

struct chunk *store_add_absent(struct store *self, uint32_t columns, uint32_t bytes, uint64_t raw_bytes, uint64_t at)
{
    struct chunk *chunk = head_new(self, columns, bytes, raw_bytes, split_size(columns));
    if (!chunk)
        return NULL;
    split(chunk)->data = NULL;
    chunk->where = CHUNK_ON_DISK;
    chunk->at = at;
    self->spilled_chunks++;
    self->spilled_bytes += bytes;
    return chunk;
}

void store_let_go(struct store *self, struct chunk *chunk)
{
    split_drop(self, chunk);
    self->spilled_chunks++;
    self->spilled_bytes += chunk->bytes;
}

static void free_block(void *data, void *hint)
{
    (void)hint;
    free(data);
}

bool store_share(struct store *self, struct chunk *chunk)
{
    void *copy = shm_alloc(self->shm, chunk->bytes);
    if (!copy)
        return false;
    memcpy(copy, chunk_data(chunk), chunk->bytes);
    split_drop(self, chunk);
    split_here(self, chunk, copy, CHUNK_SHARED);
    return true;
}

bool store_put_back(struct store *self, struct chunk *chunk, void *data)
{
    enum chunk_where where = CHUNK_IN_HEAP;
    void *object = data;
    if (chunk->bytes <= SLAB_MAX_BYTES || self->sharing) {
        object = split_copy(self, data, chunk->bytes, &where);
        free(data);
    } else if (chunk->bytes >= STORE_KEEP_BYTES) {
        /* A message can be sent without a copy. */
        where = CHUNK_IN_MESSAGE;
        object = malloc(sizeof(zmq_msg_t));
        if (!object || zmq_msg_init_data(object, data, chunk->bytes, free_block, NULL) != 0) {
            free(object);
            free(data);
            return false;
        }
    }
    if (!object)
        return false;
    split_here(self, chunk, object, where);
    self->spilled_chunks--;
    self->spilled_bytes -= chunk->bytes;
    return true;
}

/* ---- all chunks ---- */

struct chunk *store_add(struct store *self, uint32_t columns, const void *data, uint32_t bytes, uint64_t raw_bytes,
                        zmq_msg_t *message)
{
    if (bytes >= (self->split ? STORE_SPLIT_BYTES : STORE_OWN_BYTES))
        return split_add(self, columns, data, bytes, raw_bytes, message);
    struct chunk *chunk = head_new(self, columns, bytes, raw_bytes, sizeof *chunk + table_bytes(columns) + bytes);
    if (chunk)
        memcpy(chunk_block_codecs(chunk) + columns, data, bytes);
    return chunk;
}

static void store_free(struct store *self, struct chunk *chunk)
{
    if (chunk->at && self->freed)
        self->freed(self->freed_ctx, chunk);
    self->chunks--;
    self->bytes -= chunk->bytes;
    self->raw_bytes -= chunk->raw_bytes;
    if (chunk->where == CHUNK_ON_DISK) {
        self->spilled_chunks--;
        self->spilled_bytes -= chunk->bytes;
    } else if (chunk_is_split(chunk)) {
        split_drop(self, chunk);
    }
    slab_free(self->slabs, chunk);
}

void store_release(struct store *self, struct chunk *chunk)
{
    if (--chunk->refs == 0)
        store_free(self, chunk);
}

enum chunk_entered chunk_enter(struct store *self, struct chunk *chunk, uint32_t table)
{
    if (chunk->home_refs == 0 || chunk->home == table) {
        /* A share of the same table may exist since another table was at home. */
        struct chunk_share *own = chunk->shares;
        while (own && own->table != table)
            own = own->next;
        if (!own) {
            chunk->home = (uint16_t)table;
            return chunk->home_refs++ == 0 ? CHUNK_FIRST : CHUNK_AGAIN;
        }
        own->refs++;
        return CHUNK_AGAIN;
    }
    for (struct chunk_share *share = chunk->shares; share; share = share->next)
        if (share->table == table) {
            share->refs++;
            return CHUNK_AGAIN;
        }
    struct chunk_share *share = malloc(sizeof *share);
    if (!share)
        return CHUNK_NO_MEMORY;
    *share = (struct chunk_share){chunk->shares, table, 1};
    chunk->shares = share;
    self->outside += store_block_bytes(sizeof *share);
    return CHUNK_FIRST;
}

bool chunk_is_in(const struct chunk *chunk, uint32_t table)
{
    if (chunk->home_refs && chunk->home == table)
        return true;
    const struct chunk_share *share = chunk->shares;
    while (share && share->table != table)
        share = share->next;
    return share != NULL;
}

bool chunk_leave(struct store *self, struct chunk *chunk, uint32_t table)
{
    for (struct chunk_share **at = &chunk->shares; *at; at = &(*at)->next)
        if ((*at)->table == table) {
            if (--(*at)->refs > 0)
                return false;
            struct chunk_share *gone = *at;
            *at = gone->next;
            free(gone);
            self->outside -= store_block_bytes(sizeof *gone);
            return true;
        }
    return --chunk->home_refs == 0;
}
