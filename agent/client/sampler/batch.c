/* The batch object and the pool of memory behind it. See batch.h. */
#include "agent/client/sampler/batch.h"

#include <math.h>
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

void batch_pool_note(struct batch_pool *self, const struct rp_batch *batch)
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

/* Takes the oldest posted set: an array of *n buffers that the caller frees; NULL if there is none. */
static rp_buffer *take_posted(struct batch_pool *self, uint32_t *n)
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
        if (__builtin_mul_overflow(field->item_bytes, (uint64_t)self->n, &size) || size > self->limit ||
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

/* Takes posted memory that fits; NULL: there is none. memory and misfit say so if it does not fit. */
static rp_buffer *take_fitting(struct batch_pool *pool, const struct batch_spec *spec, uint32_t *memory,
                               rp_error *misfit)
{
    uint32_t n = 0;
    rp_buffer *posted = spec->n_fields && !spec->in_reply ? take_posted(pool, &n) : NULL;
    *memory = posted ? RP_BATCH_CALLER : RP_BATCH_LIBRARY;
    if (posted && n != spec->n_fields) {
        err_set(misfit, RP_INVALID_ARGUMENT, "%u buffers were posted for %u fields", n, spec->n_fields);
        *memory = RP_BATCH_MISFIT;
    }
    for (uint32_t f = 0; f < spec->n_fields && *memory == RP_BATCH_CALLER; f++) {
        const rp_field_view *view = &spec->fields[f].view;
        if (posted[f].bytes >= view->bytes)
            continue;
        err_set(misfit, RP_INVALID_ARGUMENT, "the buffer posted for field '%s' has %llu bytes, this batch needs %llu",
                view->name, (unsigned long long)posted[f].bytes, (unsigned long long)view->bytes);
        *memory = RP_BATCH_MISFIT;
    }
    if (*memory == RP_BATCH_MISFIT) {
        free(posted);
        posted = NULL;
    }
    return posted;
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
}

/* The memory has the arrays, the lengths, the names and the fields, in this order. */
static void set_views(struct rp_batch *self, const struct batch_spec *spec, uint64_t lengths_at, uint64_t names_at,
                      uint64_t fields_at, const rp_buffer *posted)
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
        out->shape[0] = spec->n;
        out->data = posted ? posted[f].data : self->memory + fields_at + field->at;
        out->lengths = field->variable ? lengths : NULL;
        if (field->variable)
            lengths += spec->n;
    }
}

void batch_set_text(struct rp_batch *self, const char *text, size_t size)
{
    if (size >= sizeof self->text)
        size = sizeof self->text - 1;
    if (size)
        memcpy(self->text, text, size);
    self->text[size] = '\0';
}

rp_status batch_make(struct batch_pool *pool, struct batch_spec *spec, struct rp_batch **out, rp_error *err)
{
    uint32_t memory;
    rp_error misfit;
    misfit.text[0] = '\0';
    *out = NULL;
    RP_TRY(place_fields(spec, err));
    uint64_t lengths = spec->in_reply ? 0 : align64((uint64_t)spec->n * (BATCH_WIDE * 8 + BATCH_ALL_NARROW * 4));
    uint64_t names = lengths, size = 0;
    for (uint32_t f = 0; f < spec->n_fields; f++) {
        names += spec->fields[f].variable ? (uint64_t)spec->n * 4 : 0;
        size += strlen(spec->fields[f].view.name) + 1;
    }
    uint64_t fields = align64(names + size);
    rp_buffer *posted = take_fitting(pool, spec, &memory, &misfit);
    bool apart = posted || spec->in_reply;
    struct rp_batch *batch = pool_take(pool, spec->n_fields, (size_t)(apart ? fields : fields + spec->bytes) + 64);
    if (batch) {
        batch->info = (rp_batch_info){
            .struct_size = sizeof batch->info, .n = spec->n, .n_fields = spec->n_fields, .memory = memory};
        batch->in_reply.step = 0;
        batch_set_text(batch, misfit.text, memory == RP_BATCH_MISFIT ? strlen(misfit.text) : 0);
        set_arrays(batch, spec);
        set_views(batch, spec, lengths, names, fields, posted);
    }
    free(posted);
    *out = batch;
    return batch ? RP_OK : err_set(err, RP_NO_MEMORY, "no memory for a batch of %u items", spec->n);
}

void batch_expand(const struct pb_array *from, uint32_t first, uint32_t n, size_t width, void *out)
{
    if (from->n > 1) {
        memcpy(out, from->data + first * width, n * width);
    } else if (from->n == 0) {
        memset(out, 0, n * width);
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
