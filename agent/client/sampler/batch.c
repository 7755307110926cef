/* The batch object and the pool of memory behind it. See batch.h. */
#include "agent/client/sampler/batch.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "agent/client/conn/client.h"
#include "proto/base/error.h"
#include "proto/base/forks.h"
#include "proto/base/utf8.h"

struct batch_pool {
    uint32_t forks; /* of this process when the pool was made */
    pthread_mutex_t lock;
    uint32_t refs;
    uint32_t keep;
    uint32_t n_free;
    struct rp_batch *free;
    rp_memory memory;
};

/* ---- memory ---- */

#define HUGE_PAGE ((size_t)2 << 20)

/* Large pages: a batch is written all over, by several threads. */
static void *own_alloc(void *ctx, size_t bytes)
{
    (void)ctx;
    bool large = bytes >= 2 * HUGE_PAGE;
    size_t align = large ? HUGE_PAGE : 64;
    void *memory = aligned_alloc(align, (bytes + align - 1) / align * align); /* C allows multiples only */
    if (memory && large)
        madvise(memory, bytes & ~(HUGE_PAGE - 1), MADV_HUGEPAGE);
    return memory;
}

static void own_free(void *ctx, void *memory, size_t bytes)
{
    (void)ctx;
    (void)bytes;
    free(memory);
}

static const rp_memory own_memory = {own_alloc, own_free, NULL};

/* ---- pool ---- */

struct batch_pool *batch_pool_new(uint32_t keep, const rp_memory *memory)
{
    struct batch_pool *self = calloc(1, sizeof *self);
    if (!self)
        return NULL;
    self->forks = forks_count();
    pthread_mutex_init(&self->lock, NULL);
    self->refs = 1;
    self->keep = keep;
    self->memory = memory && memory->alloc ? *memory : own_memory;
    return self;
}

struct batch_pool *batch_pool_ref(struct batch_pool *self)
{
    __atomic_add_fetch(&self->refs, 1, __ATOMIC_RELAXED);
    return self;
}

static void free_memory(const struct batch_pool *self, struct rp_batch *batch)
{
    if (batch->memory)
        self->memory.free(self->memory.ctx, batch->memory, batch->capacity);
    batch->memory = NULL;
    batch->capacity = 0;
}

static void batch_free(const struct batch_pool *self, struct rp_batch *batch)
{
    free_memory(self, batch);
    free(batch->fields);
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
        batch_free(pool, pool->free);
        pool->free = next;
    }
    pthread_mutex_destroy(&pool->lock);
    free(pool);
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

/* Returns a batch with room for n_fields views and `bytes` bytes of memory. NULL: out of memory. */
static struct rp_batch *pool_take(struct batch_pool *self, uint32_t n_fields, size_t bytes)
{
    struct rp_batch *batch = take_free(self, bytes);
    if (!batch) {
        batch = calloc(1, sizeof *batch);
        if (!batch)
            return NULL;
    }
    if (!batch->memory || batch->capacity < bytes) {
        /* Some extra room, so that batches of varying size do not allocate each time. */
        size_t capacity = (bytes + bytes / 8 + 4095) & ~(size_t)4095;
        free_memory(self, batch);
        batch->memory = self->memory.alloc(self->memory.ctx, capacity);
        batch->capacity = capacity;
        if (!batch->memory || (uintptr_t)batch->memory % 64)
            goto fail;
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
    batch_free(self, batch);
    return NULL;
}

/* ---- making a batch ---- */

static uint64_t align64(uint64_t value)
{
    return (value + 63) & ~UINT64_C(63);
}

/* Gives each field its place among the fields. */
static rp_status place_fields(struct batch_spec *self, rp_error *err)
{
    self->bytes = 0;
    for (uint32_t f = 0; f < self->n_fields; f++) {
        struct batch_spec_field *field = &self->fields[f];
        uint64_t size;
        field->at = self->bytes;
        uint64_t count = field->packed ? field->rows : self->n;
        if (__builtin_mul_overflow(field->item_bytes, count, &size) || size > self->limit ||
            self->bytes > self->limit - size)
            return err_set(err, RP_RESOURCE_EXHAUSTED,
                           "a batch of %u items with field '%s' of %llu steps would take more than max_bytes (%llu)",
                           self->n, field->view.name, (unsigned long long)field->steps,
                           (unsigned long long)self->max_bytes);
        field->view.bytes = size;
        self->bytes = align64(self->bytes + size);
    }
    return RP_OK;
}

static void set_arrays(struct rp_batch *self, const struct batch_spec *spec)
{
    self->arrays = (rp_batch_arrays){.struct_size = sizeof self->arrays, .n = spec->n};
    if (spec->in_reply)
        return;
    self->arrays.key = batch_wide(self, 0);
    self->arrays.priority = batch_wide(self, 1);
    self->arrays.probability = batch_wide(self, 2);
    self->arrays.age_ns = batch_wide(self, 3);
    self->arrays.policy = batch_wide(self, 4);
    self->arrays.step = batch_wide(self, 5);
    self->arrays.times_sampled = batch_narrow(self, BATCH_TIMES);
    self->arrays.session = batch_narrow(self, BATCH_SESSION);
    self->arrays.weight = (const float *)(const void *)batch_narrow(self, BATCH_WEIGHT);
    self->arrays.source = spec->sources ? batch_narrow(self, BATCH_SOURCE) : NULL;
    self->arrays.shard = spec->shards ? batch_narrow(self, BATCH_SHARD) : NULL;
    self->arrays.group = spec->groups ? batch_wide(self, BATCH_GROUP) : NULL;
}

/* The memory has the arrays, the lengths, the names and the fields, in this order. */
static void set_views(struct rp_batch *self, const struct batch_spec *spec, uint64_t lengths_at, uint64_t names_at,
                      uint64_t fields_at)
{
    uint32_t *lengths = (uint32_t *)(void *)(self->memory + lengths_at);
    char *name = (char *)self->memory + names_at;
    for (uint32_t f = 0; f < spec->n_fields; f++) {
        const struct batch_spec_field *field = &spec->fields[f];
        rp_field_view *out = &self->fields[f];
        size_t size = strlen(field->view.name) + 1;
        *out = field->view;
        memcpy(name, field->view.name, size);
        out->name = name;
        name += size;
        out->shape[0] = field->packed ? field->rows : spec->n;
        out->data = self->memory + fields_at + field->at;
        out->lengths = field->variable ? lengths : NULL;
        if (field->variable)
            lengths += spec->n;
    }
}

void batch_set_text(struct rp_batch *self, const char *text, size_t size)
{
    if (size >= sizeof self->text)
        size = utf8_whole(text, sizeof self->text - 1);
    if (size)
        memcpy(self->text, text, size);
    self->text[size] = '\0';
}

rp_status batch_make(struct batch_pool *pool, struct batch_spec *spec, struct rp_batch **out, rp_error *err)
{
    *out = NULL;
    RP_TRY(place_fields(spec, err));
    uint32_t n_wide = spec->groups ? BATCH_GROUP + 1 : BATCH_WIDE;
    uint64_t lengths = spec->in_reply ? 0 : align64((uint64_t)spec->n * (n_wide * 8 + BATCH_ALL_NARROW * 4));
    uint64_t names = lengths, size = 0;
    for (uint32_t f = 0; f < spec->n_fields; f++) {
        names += spec->fields[f].variable ? (uint64_t)spec->n * 4 : 0;
        size += strlen(spec->fields[f].view.name) + 1;
    }
    uint64_t fields = align64(names + size);
    uint64_t bytes = spec->in_reply ? fields : fields + spec->bytes;
    *out = pool_take(pool, spec->n_fields, (size_t)bytes + 64);
    if (!*out)
        return err_set(err, RP_NO_MEMORY, "no memory for a batch of %u items%s", spec->n,
                       pool->memory.alloc == own_alloc ? "" : ": options.memory gave none, or not aligned to 64 bytes");
    (*out)->info = (rp_batch_info){.struct_size = sizeof(*out)->info,
                                   .n = spec->n,
                                   .n_fields = spec->n_fields,
                                   .memory = (*out)->memory,
                                   .bytes = bytes,
                                   .packed = spec->packed};
    (*out)->in_reply.step = 0;
    (*out)->n_wide = n_wide;
    set_arrays(*out, spec);
    set_views(*out, spec, lengths, names, fields);
    return RP_OK;
}

void batch_expand(const struct pb_array *from, uint32_t first, uint32_t n, size_t width, void *out)
{
    if (from->n != 1) {
        if (n)
            memcpy(out, from->data + first * width, n * width);
    } else if (width == 8) {
        uint64_t *to = out, value = pb_u64(from, 0);
        for (uint32_t i = 0; i < n; i++)
            to[i] = value;
    } else {
        uint32_t *to = out, value = pb_u32(from, 0);
        for (uint32_t i = 0; i < n; i++)
            to[i] = value;
    }
}

void batch_weights(const double *probability, uint32_t n, double beta, float *out)
{
    double least = INFINITY;
    for (uint32_t i = 0; i < n; i++)
        least = probability[i] > 0 && probability[i] < least ? probability[i] : least;
    for (uint32_t i = 0; i < n; i++) { /* least is finite if any probability is positive and finite */
        double p = probability[i];
        out[i] = p > 0 && p < INFINITY ? (float)(least / p) : 1;
    }
    if (beta == 1)
        return;
    for (uint32_t i = 0; i < n; i++)
        out[i] = beta == 0.5 ? sqrtf(out[i]) : powf(out[i], (float)beta);
}

void batch_set_weights(struct rp_batch *self, double beta)
{
    float *out = (float *)(void *)batch_narrow(self, BATCH_WEIGHT);
    if (beta != 0)
        batch_weights(batch_wide(self, 2), self->info.n, beta, out);
    for (uint32_t i = 0; i < self->info.n && beta == 0; i++)
        out[i] = 1;
}

void rp_batch_release(rp_batch **batch)
{
    if (!batch || !*batch)
        return;
    struct rp_batch *self = *batch;
    struct batch_pool *pool = self->pool;
    *batch = NULL;
    if (pool->forks != forks_count()) { /* the lock may be held by a thread of the parent */
        self->memory = pool->memory.alloc == own_alloc ? self->memory : NULL; /* others may be unable to free it here */
        batch_free(pool, self);
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
        batch_free(pool, self);
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

rp_status rp_batch_get_info(const rp_batch *batch, rp_batch_info *out)
{
    return client_copy_out(out, &batch->info, sizeof batch->info, NULL);
}

rp_status rp_batch_get_arrays(const rp_batch *batch, rp_batch_arrays *out)
{
    return client_copy_out(out, &batch->arrays, sizeof batch->arrays, NULL);
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
