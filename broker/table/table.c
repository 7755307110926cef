#include "broker/table/table.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "broker/broker.h"
#include "broker/checkpoint/checkpoint.h"
#include "broker/session/pump.h"
#include "broker/store/reserve.h"
#include "broker/table/extension.h"
#include "broker/table/room.h"
#include "proto/base/dtype.h"
#include "proto/base/error.h"

#define NO_SLOT UINT32_MAX

void span_release(struct span *self, struct store *store, struct layouts *layouts)
{
    struct chunk *const *chunks = span_chunks(self);
    for (uint32_t i = 0; i < self->n; i++)
        store_release(store, chunks[i]);
    if (self->n > 1) {
        store->outside -= self->n * sizeof(*self->many);
        free(self->many);
    }
    if (self->n)
        layouts_release(layouts, layouts_at(layouts, self->layout));
    self->n = 0;
}

uint64_t span_bytes(const struct span *self)
{
    struct chunk *const *chunks = span_chunks(self);
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < self->n; i++)
        bytes += chunks[i]->bytes;
    return bytes;
}

static size_t items_bytes(const struct table *self)
{
    return (size_t)self->capacity * sizeof(struct item);
}

/* Takes one part of it apart; each may be large. False: nothing is left. */
static bool contents_fini_step(struct table *self, struct contents *in)
{
    if (in->keys) {
        keymap_destroy(&in->keys);
    } else if (in->marks) {
        marks_destroy(&in->marks);
    } else if (in->sampler) {
        self->sampler_ops->destroy(in->sampler);
        in->sampler = NULL;
    } else if (in->remover) {
        self->remover_ops->destroy(in->remover);
        in->remover = NULL;
    } else if (in->items) {
        reserve_unmap(in->items, items_bytes(self));
        in->items = NULL;
    } else {
        return false;
    }
    return true;
}

static void contents_fini(struct table *self, struct contents *in)
{
    while (contents_fini_step(self, in)) {
    }
    *in = (struct contents){0};
}

/* A number that no table uses now. What is being buried under an old number is gone long before it comes round. */
static uint32_t account_new(struct broker *broker)
{
    for (;;) {
        uint32_t account = broker->tables.next_account++ & UINT16_MAX;
        bool used = false;
        for (uint32_t i = 0; i < broker->tables.n && !used; i++)
            used = broker->tables.list[i].in.items && broker->tables.list[i].in.account == account;
        if (!used)
            return account;
    }
}

struct seeds {
    uint64_t sampler, remover;
};

/* The random numbers of a selector that takes the place of this one go on from its state; where it has none to show,
 * from the table's seed and the count of resets. */
static uint64_t seed_after(const rp_selector_ops *ops, void *selector, uint64_t otherwise)
{
    uint8_t state[4096];
    uint32_t n = ops->save ? ops->save(selector, state, sizeof state) : 0;
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    for (uint32_t i = 0; i < n; i++)
        hash = (hash ^ state[i]) * UINT64_C(0x100000001b3);
    return n ? hash : otherwise;
}

static struct seeds seeds_after(const struct table *self)
{
    uint64_t other = self->seed + (self->resets + 1) * UINT64_C(0xd1342543de82ef95);
    return (struct seeds){seed_after(self->sampler_ops, self->in.sampler, other),
                          seed_after(self->remover_ops, self->in.remover, other ^ 1)};
}

static rp_status contents_init(struct table *self, struct contents *in, struct seeds seeds, rp_error *err)
{
    const struct table_config *config = self->config;
    *in = (struct contents){.free = NO_SLOT, .account = account_new(self->broker)};
    reserve_group_begin(&in->arrays);
    in->items = reserve_map(items_bytes(self));
    in->keys = keymap_new();
    in->sampler = self->sampler_ops->create(config->sampler.options.data, config->sampler.options.count, self->capacity,
                                            seeds.sampler, err);
    if (in->sampler)
        in->remover = self->remover_ops->create(config->remover.options.data, config->remover.options.count,
                                                self->capacity, seeds.remover, err);
    reserve_group_end();
    rp_status status = RP_OK;
    if (!in->items || !in->keys)
        status = err_set(err, RP_NO_MEMORY, "no memory for %u slots", self->capacity);
    else if (!in->remover)
        status = err && err->status ? (rp_status)err->status : RP_NO_MEMORY;
    else if (config_makes_checkpoints(self->broker->config))
        status = marks_init(&in->marks, self->capacity, err);
    if (status != RP_OK)
        contents_fini(self, in);
    return status;
}

static rp_status signature_init(struct table *self, rp_error *err)
{
    const struct field_config *fields = self->config->signature.data;
    self->n_signature = self->config->signature.count;
    self->signature = calloc(self->n_signature ? self->n_signature : 1, sizeof *self->signature);
    if (!self->signature)
        return err_set(err, RP_NO_MEMORY, "no memory for the signature");
    for (uint32_t i = 0; i < self->n_signature; i++) {
        struct signature_field *field = &self->signature[i];
        const int64_t *shape = fields[i].shape.data;
        field->name = fields[i].name;
        field->dtype = dtype_by_name(fields[i].dtype);
        field->rank = fields[i].shape.count;
        for (uint32_t d = 0; d < field->rank; d++)
            field->shape[d] = (uint32_t)shape[d];
    }
    return RP_OK;
}

static rp_status extensions_init(struct table *self, rp_error *err)
{
    const struct extension_config *list = self->config->extensions.data;
    uint32_t n = self->config->extensions.count;
    self->extensions = calloc(n ? n : 1, sizeof *self->extensions);
    if (!self->extensions)
        return err_set(err, RP_NO_MEMORY, "no memory for extensions");
    for (uint32_t i = 0; i < n; i++) {
        struct extension *extension = &self->extensions[i];
        extension->ops = plugins_extension(&self->broker->tables.plugins, list[i].kind);
        if (!extension->ops)
            return err_set(err, RP_NOT_FOUND,
                           "no extension '%s': built in are statistics, priority_diffusion and "
                           "insert_on_sample; others come from plugins",
                           list[i].kind);
        extension->host = extension_host(self);
        extension->self =
            extension->ops->create(list[i].options.data, list[i].options.count, self->capacity, &extension->host, err);
        if (!extension->self)
            return err && err->status ? (rp_status)err->status : RP_INVALID_ARGUMENT;
        self->n_extensions = i + 1;
        self->hook_insert |= extension->ops->on_insert != NULL;
        self->hook_sample |= extension->ops->on_sample != NULL;
        self->hook_update |= extension->ops->on_update != NULL;
        self->hook_delete |= extension->ops->on_delete != NULL;
    }
    return RP_OK;
}

static rp_status selector_find(const struct table *self, const char *kind, const rp_selector_ops **ops, rp_error *err)
{
    *ops = plugins_selector(&self->broker->tables.plugins, kind);
    return *ops
               ? RP_OK
               : err_set(err, RP_NOT_FOUND, "no selector '%s', neither built in nor in a plug-in that is loaded", kind);
}

/* One more than fits: an item is inserted before another is removed. */
static uint32_t slots_needed(const struct table_config *config)
{
    return (uint32_t)(config->max_size + 1 + (config->soft_capacity ? config->max_size / 4 + 1 : 0));
}

static rp_status init_with(struct table *self, struct broker *broker, const struct table_config *config, uint32_t id,
                           uint64_t seed, uint32_t capacity, rp_error *err)
{
    *self = (struct table){.broker = broker, .config = config, .name = config->name, .id = id, .seed = seed};
    self->waiters_end = &self->waiters;
    self->capacity = capacity;
    struct limiter_config limiter = config_limiter(&config->limiter);
    if (limiter.size == 0)
        limiter.size = (double)config->max_size;
    RP_TRY(limiter_init(&self->limiter, &limiter, err));
    RP_TRY(selector_find(self, config->sampler.kind, &self->sampler_ops, err));
    RP_TRY(selector_find(self, config->remover.kind, &self->remover_ops, err));
    RP_TRY(signature_init(self, err));
    RP_TRY(contents_init(self, &self->in, (struct seeds){seed, seed ^ 1}, err));
    RP_TRY(extensions_init(self, err));
    self->one_by_one = config->max_times_sampled > 0 || self->hook_sample;
    return RP_OK;
}

rp_status table_init(struct table *self, struct broker *broker, const struct table_config *config, uint32_t id,
                     uint64_t seed, rp_error *err)
{
    return init_with(self, broker, config, id, seed, slots_needed(config), err);
}

rp_status table_grow(struct table *self, uint32_t capacity, rp_error *err)
{
    struct table old = *self;
    table_fini(self);
    return init_with(self, old.broker, old.config, old.id, old.seed, capacity, err);
}

/* A chore: the old contents of a table after a reset. */
struct burial {
    struct chore chore;
    struct table *table;
    struct contents in;
    uint32_t at;
};

static void item_forget(struct table *self, const struct contents *in, struct item *item)
{
    struct chunk *const *chunks = span_chunks(&item->span);
    for (uint32_t i = 0; i < item->span.n; i++)
        if (chunk_leave(chunks[i], in->account) && in == &self->in)
            self->bytes -= chunks[i]->bytes;
    ordinals_leave(&self->broker->tables.ordinals, item->key);
    span_release(&item->span, &self->broker->store, &self->broker->layouts);
}

static bool burial_step(struct chore *chore)
{
    struct burial *self = (struct burial *)chore;
    uint32_t end = self->in.high - self->at > 256 ? self->at + 256 : self->in.high;
    for (; self->at < end; self->at++)
        if (self->in.items[self->at].span.n)
            item_forget(self->table, &self->in, &self->in.items[self->at]);
    if (self->at < self->in.high || contents_fini_step(self->table, &self->in))
        return true;
    free(self);
    return false;
}

void table_fini(struct table *self)
{
    for (uint32_t i = 0; i < self->n_extensions; i++)
        self->extensions[i].ops->destroy(self->extensions[i].self);
    free(self->extensions);
    for (uint32_t i = 0; self->in.items && i < self->in.high; i++)
        if (self->in.items[i].span.n)
            item_forget(self, &self->in, &self->in.items[i]);
    contents_fini(self, &self->in);
    free(self->signature);
}

rp_status table_check_priority(const struct table *self, double priority, rp_error *err)
{
    if (!(priority >= 0) || isinf(priority))
        return err_set(err, RP_INVALID_ARGUMENT, "priority %g is not allowed: it must be finite and not negative",
                       priority);
    if (self->sampler_ops->check)
        RP_TRY(self->sampler_ops->check(self->in.sampler, priority, err));
    if (self->remover_ops->check)
        RP_TRY(self->remover_ops->check(self->in.remover, priority, err));
    return RP_OK;
}

void table_view(const struct table *self, uint32_t slot, rp_item_view *out)
{
    const struct item *item = &self->in.items[slot];
    const struct chunk *first = span_chunks(&item->span)[0];
    *out = (rp_item_view){
        .key = item->key,
        .priority = item->priority,
        .slot = slot,
        .times_sampled = item->times_sampled,
        .session = first->session,
        .episode = first->episode,
        .step = first->step + item->span.offset,
        .length = item->span.length,
        .policy = item->policy,
        .bytes = span_bytes(&item->span),
        .age_ns = item_age(item, self->broker->loop.now_ns),
    };
}

#define RUN_HOOKS(self, hook, slot, ...)                                                                               \
    do {                                                                                                               \
        rp_item_view view_;                                                                                            \
        table_view(self, slot, &view_);                                                                                \
        for (uint32_t i_ = 0; i_ < (self)->n_extensions; i_++)                                                         \
            if ((self)->extensions[i_].ops->hook)                                                                      \
                (self)->extensions[i_].ops->hook((self)->extensions[i_].self, &view_ __VA_ARGS__);                     \
    } while (0)
#define COMMA ,

static void slot_give_back(struct contents *in, uint32_t slot)
{
    in->items[slot].stamp = in->free;
    in->free = slot;
}

void table_remove(struct table *self, uint32_t slot)
{
    struct item *item = &self->in.items[slot];
    CHECKPOINT_TOUCH(self, &self->in, slot);
    if (self->hook_delete)
        RUN_HOOKS(self, on_delete, slot, );
    self->sampler_ops->remove(self->in.sampler, slot);
    self->remover_ops->remove(self->in.remover, slot);
    keymap_remove(self->in.keys, item->key);
    item_forget(self, &self->in, item);
    slot_give_back(&self->in, slot);
    self->in.size--;
    limiter_deleted(&self->limiter, 1);
    EFFECT(&self->broker->loop, remove, self, slot);
}

bool table_evict(struct table *self)
{
    uint32_t slot;
    double probability;
    if (self->in.size == 0 || self->remover_ops->pick(self->in.remover, 1, &slot, &probability) != 1)
        return false;
    table_remove(self, slot);
    self->stats.evicted++;
    return true;
}

static bool too_much(const struct table *self)
{
    if (self->config->max_bytes && self->bytes > (uint64_t)self->config->max_bytes && !room_is_kept(self))
        return true;
    if (!self->config->soft_capacity)
        return self->in.size > (uint64_t)self->config->max_size;
    return self->in.size >= slots_needed(self->config);
}

/* Slots between two looks ahead: a table is taken to be growing when it has had two of them. */
#define LOOK_AHEAD 8192u

static uint32_t slot_take(struct contents *in, uint32_t capacity)
{
    if (in->free == NO_SLOT) {
        if (in->high % LOOK_AHEAD == 0 && in->high > LOOK_AHEAD)
            reserve_group_ahead(&in->arrays, in->high, capacity);
        return in->high++;
    }
    uint32_t slot = in->free;
    in->free = in->items[slot].stamp;
    return slot;
}

/* The chunks count as this table's. False: no memory, and nothing has changed. */
static bool span_enter(struct table *self, const struct span *span)
{
    struct chunk *const *chunks = span_chunks(span);
    for (uint32_t i = 0; i < span->n; i++) {
        enum chunk_entered entered = chunk_enter(chunks[i], self->in.account);
        if (entered == CHUNK_FIRST)
            self->bytes += chunks[i]->bytes;
        if (entered != CHUNK_NO_MEMORY)
            continue;
        while (i-- > 0)
            if (chunk_leave(chunks[i], self->in.account))
                self->bytes -= chunks[i]->bytes;
        return false;
    }
    return true;
}

rp_status table_insert(struct table *self, const struct arrival *arrival, rp_error *err)
{
    struct broker *broker = self->broker;
    if (__builtin_expect(store_memory(&broker->store) > broker->tables.storage_budget || broker->spill, 0) &&
        keymap_get(self->in.keys, arrival->key) == KEYMAP_NONE)
        RP_TRY(room_make(self, err));
    struct effects *effects = broker->loop.effects;
    if (effects && !effects->prepare(effects, span_chunks(&arrival->span), arrival->span.n))
        return err_set(err, RP_NO_MEMORY, "no memory to record an item of table '%s'", self->name);
    uint32_t slot = slot_take(&self->in, self->capacity);
    struct item *item = &self->in.items[slot];
    if (!keymap_put(self->in.keys, arrival->key, slot)) {
        slot_give_back(&self->in, slot);
        if (keymap_get(self->in.keys, arrival->key) == KEYMAP_NONE)
            return err_set(err, RP_NO_MEMORY, "no memory for the key map of table '%s'", self->name);
        return err_set(err, RP_ALREADY_EXISTS,
                       "key %llu is in table '%s' already: to change its priority send an update",
                       (unsigned long long)arrival->key, self->name);
    }
    if (!span_enter(self, &arrival->span)) {
        keymap_remove(self->in.keys, arrival->key);
        slot_give_back(&self->in, slot);
        return err_set(err, RP_NO_MEMORY, "no memory for an item of table '%s'", self->name);
    }
    ordinals_enter(&broker->tables.ordinals, arrival->key);
    CHECKPOINT_TOUCH(self, &self->in, slot);
    self->last_insert_ns = broker->loop.now_ns > self->last_insert_ns ? broker->loop.now_ns : self->last_insert_ns + 1;
    *item = (struct item){.key = arrival->key,
                          .priority = arrival->priority,
                          .insert_ns = self->last_insert_ns,
                          .policy = arrival->policy,
                          .span = arrival->span};
    self->sampler_ops->insert(self->in.sampler, slot, item->priority);
    self->remover_ops->insert(self->in.remover, slot, item->priority);
    self->in.size++;
    limiter_inserted(&self->limiter, 1);
    self->stats.total_inserts++;
    EFFECT(&broker->loop, insert, self, slot, arrival->flow);
    if (self->hook_insert)
        RUN_HOOKS(self, on_insert, slot, );
    uint32_t left = EVICTIONS_PER_INSERT;
    while (too_much(self) && left-- > 0 && table_evict(self)) {
    }
    if (__builtin_expect(left == UINT32_MAX, 0))
        table_remove_surplus(self);
    return RP_OK;
}

uint32_t table_find(const struct table *self, uint64_t key)
{
    return keymap_get(self->in.keys, key);
}

void table_set_priority(struct table *self, uint32_t slot, double priority)
{
    CHECKPOINT_TOUCH(self, &self->in, slot);
    self->in.items[slot].priority = priority;
    self->sampler_ops->update(self->in.sampler, slot, priority);
    self->remover_ops->update(self->in.remover, slot, priority);
    EFFECT(&self->broker->loop, priority, self, slot, priority);
}

void table_update(struct table *self, uint32_t slot, double priority)
{
    double old = self->in.items[slot].priority;
    table_set_priority(self, slot, priority);
    self->stats.updates++;
    if (self->hook_update)
        RUN_HOOKS(self, on_update, slot, COMMA old);
}

rp_status table_reset(struct table *self, rp_error *err)
{
    struct contents fresh;
    struct burial *burial = calloc(1, sizeof *burial);
    if (!burial)
        return err_set(err, RP_NO_MEMORY, "no memory to reset table '%s'", self->name);
    rp_status status = contents_init(self, &fresh, seeds_after(self), err);
    if (status != RP_OK) {
        free(burial);
        return status;
    }
    burial->chore.step = burial_step;
    burial->table = self;
    burial->in = self->in;
    self->in = fresh;
    self->bytes = 0;
    self->resets++;
    EFFECT(&self->broker->loop, reset, self);
    if (!checkpoint_keeps(&burial->in, &burial->chore))
        chores_add(&self->broker->loop.chores, &burial->chore);
    limiter_reset(&self->limiter);
    for (uint32_t i = 0; i < self->n_extensions; i++)
        if (self->extensions[i].ops->on_reset)
            self->extensions[i].ops->on_reset(self->extensions[i].self);
    return RP_OK;
}

uint64_t table_sampleable(const struct table *self, uint64_t want)
{
    return self->in.size ? limiter_sampleable(&self->limiter, want) : 0;
}

void table_sampled(struct table *self, uint32_t slot)
{
    struct item *item = &self->in.items[slot];
    CHECKPOINT_TOUCH(self, &self->in, slot);
    item->times_sampled++;
    limiter_sampled(&self->limiter, 1);
    self->stats.total_samples++;
    if (self->hook_sample)
        RUN_HOOKS(self, on_sample, slot, );
    if (self->config->max_times_sampled && item->times_sampled >= self->config->max_times_sampled)
        table_remove(self, slot);
}

void table_tick(struct table *self, int64_t now_ns)
{
    struct table_stats *stats = &self->stats;
    self->sampled_lately = stats->history_n && stats->total_samples != stats->history[stats->history_at][1];
    stats->history_at = (stats->history_at + 1) % (TABLE_RATE_SECONDS + 1);
    uint64_t *now = stats->history[stats->history_at];
    now[0] = stats->total_inserts;
    now[1] = stats->total_samples;
    now[2] = stats->updates;
    stats->history_ns[stats->history_at] = now_ns;
    if (stats->history_n < TABLE_RATE_SECONDS + 1)
        stats->history_n++;
}

double table_rate(const struct table *self, uint32_t kind)
{
    const struct table_stats *stats = &self->stats;
    if (stats->history_n < 2)
        return 0;
    uint32_t last = stats->history_at;
    uint32_t first = (last + TABLE_RATE_SECONDS + 2 - stats->history_n) % (TABLE_RATE_SECONDS + 1);
    double seconds = (double)(stats->history_ns[last] - stats->history_ns[first]) / (double)NS_PER_S;
    return seconds > 0 ? (double)(stats->history[last][kind] - stats->history[first][kind]) / seconds : 0;
}

struct trimming {
    struct chore chore;
    struct table *table;
};

static bool trimming_step(struct chore *chore)
{
    struct table *table = ((struct trimming *)chore)->table;
    pump_mark(table); /* below min_size, inserts that waited may go on */
    for (uint32_t i = 0; i < 256; i++) {
        bool done = table->in.size <= (uint64_t)table->config->max_size && !too_much(table);
        if (done || !table_evict(table)) {
            table->removing = false;
            free(chore);
            return false;
        }
    }
    return true;
}

void table_remove_surplus(struct table *self)
{
    if (self->removing || (self->in.size <= (uint64_t)self->config->max_size && !too_much(self)))
        return;
    struct trimming *trimming = calloc(1, sizeof *trimming);
    if (!trimming)
        return; /* tried again at the next tick */
    trimming->chore.step = trimming_step;
    trimming->table = self;
    self->removing = true;
    chores_add(&self->broker->loop.chores, &trimming->chore);
}

void table_remove_too_much(struct table *self)
{
    while ((self->in.size > (uint64_t)self->config->max_size || too_much(self)) && table_evict(self)) {
    }
}
