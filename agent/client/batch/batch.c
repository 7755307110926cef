/* The batch object and the pool of memory behind it. See batch.h. */
#include "agent/client/batch/batch.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "proto/base/error.h"
#include "proto/base/forks.h"

struct posted {
    struct posted *next;
    uint32_t n;
    rp_buffer *buffers;
};

struct noted_field {
    uint64_t item_bytes; /* 0: differs between items */
    char name[64];
};

struct batch_pool {
    uint32_t forks; /* of this process when the pool was made */
    pthread_mutex_t lock;
    uint32_t refs;
    uint32_t keep;
    uint32_t n_free;
    struct rp_batch *free;
    struct posted *posted, **posted_end;
    uint32_t n_posted;
    struct noted_field *noted;
    uint32_t n_noted;
};

/* ---- pool ---- */

struct batch_pool *batch_pool_new(uint32_t keep)
{
    struct batch_pool *self = calloc(1, sizeof *self);
    if (!self)
        return NULL;
    self->forks = forks_count();
    pthread_mutex_init(&self->lock, NULL);
    self->refs = 1;
    self->keep = keep;
    self->posted_end = &self->posted;
    return self;
}

struct batch_pool *batch_pool_ref(struct batch_pool *self)
{
    __atomic_add_fetch(&self->refs, 1, __ATOMIC_RELAXED);
    return self;
}

static void batch_free(struct rp_batch *batch)
{
    free(batch->fields);
    free(batch->memory);
    free(batch);
}

void batch_pool_unref(struct batch_pool **self)
{
    struct batch_pool *pool = *self;
    *self = NULL;
    if (!pool || __atomic_sub_fetch(&pool->refs, 1, __ATOMIC_ACQ_REL) != 0)
        return;
    while (pool->free) {
        struct rp_batch *next = pool->free->next;
        batch_free(pool->free);
        pool->free = next;
    }
    while (pool->posted) {
        struct posted *next = pool->posted->next;
        free(pool->posted->buffers);
        free(pool->posted);
        pool->posted = next;
    }
    free(pool->noted);
    pthread_mutex_destroy(&pool->lock);
    free(pool);
}

static rp_status post_check(const struct batch_pool *self, const rp_buffer *buffers, uint32_t n, uint32_t full,
                            rp_error *err)
{
    if (self->n_noted && n != self->n_noted)
        return err_set(err, RP_INVALID_ARGUMENT, "%u buffers were posted, the batches have %u fields", n,
                       self->n_noted);
    for (uint32_t i = 0; i < n && self->n_noted; i++) {
        const struct noted_field *field = &self->noted[i];
        if (field->item_bytes && buffers[i].bytes / full < field->item_bytes)
            return err_set(err, RP_INVALID_ARGUMENT,
                           "the buffer for field '%s' has %llu bytes, a batch of %u items needs %llu", field->name,
                           (unsigned long long)buffers[i].bytes, full, (unsigned long long)(field->item_bytes * full));
    }
    return RP_OK;
}

rp_status batch_pool_post(struct batch_pool *self, const rp_buffer *buffers, uint32_t n, uint32_t full, rp_error *err)
{
    if (!buffers || n == 0 || n > BATCH_MAX_FIELDS)
        return err_set(err, RP_INVALID_ARGUMENT, "%u buffers were posted; there must be one for each field", n);
    for (uint32_t i = 0; i < n; i++) {
        if (!buffers[i].data)
            return err_set(err, RP_INVALID_ARGUMENT, "buffer %u has no memory", i);
    }
    struct posted *set = calloc(1, sizeof *set);
    rp_buffer *copy = malloc(n * sizeof *copy);
    if (!set || !copy) {
        free(set);
        free(copy);
        return err_set(err, RP_NO_MEMORY, "no memory for %u posted buffers", n);
    }
    memcpy(copy, buffers, n * sizeof *copy);
    set->buffers = copy;
    set->n = n;
    pthread_mutex_lock(&self->lock);
    rp_status status = post_check(self, buffers, n, full, err);
    if (status == RP_OK) {
        *self->posted_end = set;
        self->posted_end = &set->next;
        self->n_posted++;
    }
    pthread_mutex_unlock(&self->lock);
    if (status != RP_OK) {
        free(set->buffers);
        free(set);
    }
    return status;
}

uint32_t batch_pool_posted(struct batch_pool *self)
{
    pthread_mutex_lock(&self->lock);
    uint32_t n = self->n_posted;
    pthread_mutex_unlock(&self->lock);
    return n;
}

void batch_pool_note(struct batch_pool *self, const struct batch_layout *layout)
{
    struct noted_field *noted = calloc(layout->n_fields ? layout->n_fields : 1, sizeof *noted);
    if (!noted)
        return;
    for (uint32_t i = 0; i < layout->n_fields; i++) {
        const struct batch_field *field = &layout->fields[i];
        noted[i].item_bytes = (uint64_t)field->row_bytes * field->count;
        size_t size = strlen(field->name);
        if (size >= sizeof noted[i].name)
            size = sizeof noted[i].name - 1;
        memcpy(noted[i].name, field->name, size);
    }
    pthread_mutex_lock(&self->lock);
    struct noted_field *old = self->noted;
    self->noted = noted;
    self->n_noted = layout->n_fields;
    pthread_mutex_unlock(&self->lock);
    free(old);
}

/* Returns the bytes of an item in a field; 0: they differ between items. */
static uint64_t fixed_bytes(const rp_field_view *field)
{
    return field->lengths || field->shape[0] == 0 ? 0 : field->bytes / field->shape[0];
}

static bool is_noted(const struct batch_pool *self, const struct rp_batch *batch)
{
    bool same = self->noted && self->n_noted == batch->info.n_fields;
    for (uint32_t i = 0; i < self->n_noted && same; i++)
        same = self->noted[i].item_bytes == fixed_bytes(&batch->fields[i]);
    return same;
}

void batch_pool_note_batch(struct batch_pool *self, const struct rp_batch *batch)
{
    uint32_t n = batch->info.n_fields;
    pthread_mutex_lock(&self->lock);
    bool known = is_noted(self, batch);
    pthread_mutex_unlock(&self->lock);
    struct noted_field *noted = known ? NULL : calloc(n ? n : 1, sizeof *noted);
    if (!noted)
        return;
    for (uint32_t i = 0; i < n; i++) {
        noted[i].item_bytes = fixed_bytes(&batch->fields[i]);
        size_t size = strnlen(batch->fields[i].name, sizeof noted[i].name - 1);
        memcpy(noted[i].name, batch->fields[i].name, size);
    }
    pthread_mutex_lock(&self->lock);
    struct noted_field *old = self->noted;
    self->noted = noted;
    self->n_noted = n;
    pthread_mutex_unlock(&self->lock);
    free(old);
}

rp_buffer *batch_pool_take_posted(struct batch_pool *self, uint32_t *n)
{
    pthread_mutex_lock(&self->lock);
    struct posted *set = self->posted;
    if (set) {
        self->posted = set->next;
        if (!self->posted)
            self->posted_end = &self->posted;
        self->n_posted--;
    }
    pthread_mutex_unlock(&self->lock);
    if (!set)
        return NULL;
    rp_buffer *buffers = set->buffers;
    *n = set->n;
    free(set);
    return buffers;
}

/* Takes the first free batch that is large enough, else the first, which is then enlarged. */
static struct rp_batch *take_free(struct batch_pool *self, size_t bytes)
{
    pthread_mutex_lock(&self->lock);
    struct rp_batch **at = &self->free;
    while (*at && (*at)->capacity < bytes)
        at = &(*at)->next;
    if (!*at)
        at = &self->free;
    struct rp_batch *batch = *at;
    if (batch) {
        *at = batch->next;
        self->n_free--;
    }
    pthread_mutex_unlock(&self->lock);
    return batch;
}

struct rp_batch *batch_pool_take(struct batch_pool *self, uint32_t n_fields, size_t bytes)
{
    struct rp_batch *batch = take_free(self, bytes);
    if (!batch) {
        batch = calloc(1, sizeof *batch);
        if (!batch)
            return NULL;
    }
    if (batch->capacity < bytes) {
        /* Some extra room, so that batches of varying size do not allocate each time. */
        size_t capacity = (bytes + bytes / 8 + 4095) & ~(size_t)4095;
        free(batch->memory);
        batch->capacity = 0;
        batch->memory = aligned_alloc(64, capacity);
        if (!batch->memory)
            goto fail;
        batch->capacity = capacity;
    }
    if (batch->fields_capacity < n_fields) {
        rp_field_view *fields = realloc(batch->fields, n_fields * sizeof *fields);
        if (!fields)
            goto fail;
        batch->fields = fields;
        batch->fields_capacity = n_fields;
    }
    batch->next = NULL;
    batch->pool = batch_pool_ref(self);
    batch->text[0] = '\0';
    return batch;
fail:
    batch_free(batch);
    return NULL;
}

void rp_batch_release(rp_batch **batch)
{
    if (!batch || !*batch)
        return;
    struct rp_batch *self = *batch;
    struct batch_pool *pool = self->pool;
    *batch = NULL;
    if (pool->forks != forks_count()) { /* the lock may be held by a thread of the parent */
        batch_free(self);
        return;
    }
    pthread_mutex_lock(&pool->lock);
    bool kept = pool->n_free < pool->keep;
    if (kept) {
        self->next = pool->free;
        pool->free = self;
        pool->n_free++;
    }
    pthread_mutex_unlock(&pool->lock);
    if (!kept)
        batch_free(self);
    batch_pool_unref(&pool);
}

struct rp_batch *batch_list_take(struct rp_batch **list)
{
    struct rp_batch *first = *list;
    *list = first->next;
    first->next = NULL;
    return first;
}

void batch_list_release(struct rp_batch **list)
{
    while (*list) {
        struct rp_batch *first = batch_list_take(list);
        rp_batch_release(&first);
    }
}

uint64_t batch_list_items(const struct rp_batch *list)
{
    uint64_t n = 0;
    for (; list; list = list->next)
        n += list->info.n;
    return n;
}

/* ---- accessors ---- */

/* A caller may be compiled with an older, shorter struct. */
static rp_status copy_out(void *out, uint32_t struct_size, const void *from, size_t size)
{
    if (struct_size < 2 * sizeof(uint32_t))
        return RP_INVALID_ARGUMENT;
    memcpy(out, from, struct_size < size ? struct_size : size);
    memcpy(out, &struct_size, sizeof struct_size);
    return RP_OK;
}

rp_status rp_batch_get_info(const rp_batch *batch, rp_batch_info *out)
{
    return copy_out(out, out->struct_size, &batch->info, sizeof batch->info);
}

rp_status rp_batch_get_arrays(const rp_batch *batch, rp_batch_arrays *out)
{
    return copy_out(out, out->struct_size, &batch->arrays, sizeof batch->arrays);
}

const rp_field_view *rp_batch_field(const rp_batch *batch, uint32_t i)
{
    return i < batch->info.n_fields ? &batch->fields[i] : NULL;
}

const rp_field_view *rp_batch_find(const rp_batch *batch, const char *name)
{
    for (uint32_t i = 0; i < batch->info.n_fields; i++) {
        if (strcmp(batch->fields[i].name, name) == 0)
            return &batch->fields[i];
    }
    return NULL;
}

const char *rp_batch_text(const rp_batch *batch)
{
    return batch->text;
}
