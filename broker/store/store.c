#include "broker/store/store.h"

#include <stdlib.h>
#include <string.h>

#include "proto/base/copy_past.h"
#include "proto/base/need.h"
#include "proto/wire/channel.h"

/* Follows the block tables of a split chunk, 8-byte aligned. */
struct chunk_split {
    void *data; /* an object of the slab, a block, or a zmq_msg_t */
};

static struct chunk_split *split(struct chunk *chunk)
{
    return (struct chunk_split *)(((uintptr_t)chunk_head_end(chunk) + 7) & ~(uintptr_t)7);
}

uint32_t chunk_raw_bytes(struct chunk *chunk)
{
    uint32_t bytes = chunk->bytes;
    if (!chunk->plain)
        memcpy(&bytes, chunk_head_end(chunk) - sizeof bytes, sizeof bytes);
    return bytes;
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

const uint8_t *chunk_split_data(struct chunk *chunk)
{
    return chunk->where == CHUNK_IN_MESSAGE ? zmq_msg_data(split(chunk)->data) : split(chunk)->data;
}

zmq_msg_t *chunk_message(struct chunk *chunk)
{
    return chunk->where == CHUNK_IN_MESSAGE ? split(chunk)->data : NULL;
}

/* more: bytes after the head. */
static struct chunk *head_new(struct store *self, uint32_t columns, uint32_t bytes, uint64_t raw_bytes, size_t more)
{
    uint32_t raw = raw_bytes < UINT32_MAX ? (uint32_t)raw_bytes : UINT32_MAX;
    bool plain = columns == 1 && raw == bytes;
    struct chunk *chunk = slab_alloc(self->slabs, sizeof *chunk + (plain ? 0 : chunk_table_bytes(columns)) + more);
    if (!chunk)
        return NULL;
    *chunk = (struct chunk){.refs = 1, .columns = (uint8_t)columns, .plain = plain, .bytes = bytes};
    if (!plain)
        memcpy(chunk_head_end(chunk) - sizeof raw, &raw, sizeof raw);
    self->chunks++;
    self->bytes += bytes;
    self->raw_bytes += raw;
    return chunk;
}

/* ---- split chunks ---- */

#define SPLIT_BYTES (7 + sizeof(struct chunk_split))

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

/* soon: somebody is about to read the copy. */
static void copy_in(void *to, const void *data, uint32_t bytes, bool soon)
{
    if (soon)
        memcpy(to, data, bytes);
    else
        copy_past(to, data, bytes);
}

static void *split_copy(struct store *self, const void *data, uint32_t bytes, bool soon, enum chunk_where *where)
{
    void *copy = self->sharing && bytes >= STORE_OWN_BYTES ? shm_alloc(self->shm, bytes) : NULL;
    *where = copy ? CHUNK_SHARED : bytes <= SLAB_MAX_BYTES ? CHUNK_IN_SLAB : CHUNK_IN_HEAP;
    if (!copy)
        copy = *where == CHUNK_IN_SLAB ? slab_alloc(self->slabs, bytes) : malloc(bytes);
    if (copy)
        copy_in(copy, data, bytes, soon);
    return copy;
}

/* Makes a message with a copy of the data, or an empty one that is to take over `message`. */
static zmq_msg_t *kept_message(const void *data, uint32_t bytes, bool soon, const zmq_msg_t *message)
{
    zmq_msg_t *kept = malloc(sizeof *kept);
    if (!kept || (message ? zmq_msg_init(kept) != 0 : !message_copy(kept, NULL, bytes))) {
        free(kept);
        return NULL;
    }
    if (!message)
        copy_in(zmq_msg_data(kept), data, bytes, soon);
    return kept;
}

static struct chunk *split_add(struct store *self, uint32_t columns, const void *data, uint32_t bytes,
                               uint64_t raw_bytes, zmq_msg_t *message)
{
    enum chunk_where where = CHUNK_IN_MESSAGE;
    bool keep = bytes >= STORE_KEEP_BYTES && !self->sharing, soon = bytes != raw_bytes; /* compressed: it is checked */
    zmq_msg_t *object = keep ? kept_message(data, bytes, soon, message) : split_copy(self, data, bytes, soon, &where);
    if (!object)
        return NULL;
    struct chunk *chunk = head_new(self, columns, bytes, raw_bytes, SPLIT_BYTES);
    if (!chunk) {
        if (keep)
            zmq_msg_close(object);
        object_free(self, object, where);
        return NULL;
    }
    if (keep && message)
        zmq_msg_move(object, message);
    split_here(self, chunk, object, where);
    return chunk;
}

struct chunk *store_add_absent(struct store *self, uint32_t columns, uint32_t bytes, uint64_t raw_bytes, uint64_t at)
{
    struct chunk *chunk = head_new(self, columns, bytes, raw_bytes, SPLIT_BYTES);
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
    memcpy(copy, chunk_data(chunk), chunk->bytes); /* its reader is about to read it */
    split_drop(self, chunk);
    split_here(self, chunk, copy, CHUNK_SHARED);
    return true;
}

bool store_put_back(struct store *self, struct chunk *chunk, void *data)
{
    enum chunk_where where = CHUNK_IN_HEAP;
    void *object = data;
    if (chunk->bytes <= SLAB_MAX_BYTES || self->sharing) {
        object = split_copy(self, data, chunk->bytes, true, &where);
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
    struct chunk *chunk = head_new(self, columns, bytes, raw_bytes, bytes);
    if (!chunk)
        return NULL;
    /* Hide the bound of `bytes` from the compiler, which would make a string instruction of the copy: these start slowly. */
    __asm__("" : "+r"(bytes));
    memcpy(chunk_head_end(chunk), data, bytes);
    return chunk;
}

static void store_free(struct store *self, struct chunk *chunk)
{
    if (chunk->at && self->freed)
        self->freed(self->freed_ctx, chunk);
    self->chunks--;
    self->bytes -= chunk->bytes;
    self->raw_bytes -= chunk_raw_bytes(chunk);
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

/* ---- items by table ---- */

#define ONE_USER (UINT64_C(1) << 32)

/* What the low half of `users` is if all items are of this table; an address is even. */
static uint32_t user_of(uint32_t table)
{
    return table << 1 | 1;
}

static struct chunk_share *share_first(const struct chunk *chunk)
{
    return chunk->users & 1 ? NULL : (struct chunk_share *)(uintptr_t)chunk->users;
}

static struct chunk_share *share_new(struct store *self, struct chunk_share *next, uint32_t table, uint32_t refs)
{
    struct chunk_share *share = need_alloc(sizeof *share);
    *share = (struct chunk_share){next, table, refs};
    self->outside += store_block_bytes(sizeof *share);
    return share;
}

/* Items of another table use the chunk, too. */
static bool share_enter(struct store *self, struct chunk *chunk, uint32_t table)
{
    struct chunk_share *first = share_first(chunk), *share = first;
    while (share && share->table != table)
        share = share->next;
    if (share) {
        share->refs++;
        return false;
    }
    if (!first)
        first = share_new(self, NULL, (uint32_t)chunk->users >> 1, (uint32_t)(chunk->users / ONE_USER));
    chunk->users = (uintptr_t)share_new(self, first, table, 1);
    return true;
}

bool chunk_enter(struct store *self, struct chunk *chunk, uint32_t table)
{
    bool first = chunk->users == 0;
    if (!first && (uint32_t)chunk->users != user_of(table))
        return share_enter(self, chunk, table);
    chunk->users = (first ? user_of(table) : chunk->users) + ONE_USER;
    return first;
}

bool chunk_is_in(const struct chunk *chunk, uint32_t table)
{
    const struct chunk_share *share = share_first(chunk);
    while (share && share->table != table)
        share = share->next;
    return share || (uint32_t)chunk->users == user_of(table);
}

bool chunk_leave(struct store *self, struct chunk *chunk, uint32_t table)
{
    if (chunk->users & 1) {
        chunk->users -= ONE_USER;
        bool last = chunk->users < ONE_USER;
        chunk->users = last ? 0 : chunk->users;
        return last;
    }
    struct chunk_share *first = share_first(chunk), **at = &first;
    while ((*at)->table != table)
        at = &(*at)->next;
    if (--(*at)->refs > 0)
        return false;
    struct chunk_share *gone = *at;
    *at = gone->next;
    chunk->users = (uintptr_t)first;
    free(gone);
    self->outside -= store_block_bytes(sizeof *gone);
    return true;
}
