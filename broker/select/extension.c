#include "broker/select/extension.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "broker/select/keymap.h"
#include "broker/select/selector.h"
#include "broker/store/reserve.h"
#include "proto/base/error.h"
#include "proto/base/need.h"

/* ---- statistics of inserted, sampled and removed items: lengths, priorities, ages, and how often items are sampled before they
 * leave */

struct statistics {
    double inserted, insert_priority, insert_length, insert_bytes;
    double sampled, sample_priority, sample_age_s;
    double updated, update_change;
    double deleted, deleted_unused, deleted_uses;
};

static void *statistics_create(const rp_option *options, uint32_t n_options, uint32_t capacity,
                               const rp_extension_host *host, rp_error *err)
{
    (void)capacity;
    (void)host;
    if (n_options)
        return err_null(err, RP_INVALID_ARGUMENT, "extension statistics has no option '%s'", options[0].name);
    return need_alloc(sizeof(struct statistics));
}

static void statistics_on_insert(void *ctx, const rp_item_view *item)
{
    struct statistics *self = ctx;
    self->inserted++;
    self->insert_priority += item->priority;
    self->insert_length += item->length;
    self->insert_bytes += (double)item->bytes;
}

static void statistics_on_sample(void *ctx, const rp_item_view *item)
{
    struct statistics *self = ctx;
    self->sampled++;
    self->sample_priority += item->priority;
    self->sample_age_s += (double)item->age_ns * 1e-9;
}

static void statistics_on_update(void *ctx, const rp_item_view *item, double old_priority)
{
    struct statistics *self = ctx;
    double change = item->priority - old_priority;
    self->updated++;
    self->update_change += change < 0 ? -change : change;
}

static void statistics_on_delete(void *ctx, const rp_item_view *item)
{
    struct statistics *self = ctx;
    self->deleted++;
    self->deleted_unused += item->times_sampled == 0;
    self->deleted_uses += item->times_sampled;
}

static void statistics_on_reset(void *ctx)
{
    *(struct statistics *)ctx = (struct statistics){0};
}

static double statistics_mean(double sum, double n)
{
    return n > 0 ? sum / n : 0;
}

static void statistics_stats(void *ctx, void (*emit)(void *, const char *, double), void *to)
{
    const struct statistics *self = ctx;
    emit(to, "inserted", self->inserted);
    emit(to, "mean_insert_priority", statistics_mean(self->insert_priority, self->inserted));
    emit(to, "mean_insert_length", statistics_mean(self->insert_length, self->inserted));
    emit(to, "mean_insert_bytes", statistics_mean(self->insert_bytes, self->inserted));
    emit(to, "sampled", self->sampled);
    emit(to, "mean_sample_priority", statistics_mean(self->sample_priority, self->sampled));
    emit(to, "mean_sample_age_s", statistics_mean(self->sample_age_s, self->sampled));
    emit(to, "updated", self->updated);
    emit(to, "mean_update_change", statistics_mean(self->update_change, self->updated));
    emit(to, "deleted", self->deleted);
    emit(to, "deleted_never_sampled", self->deleted_unused);
    emit(to, "mean_samples_when_deleted", statistics_mean(self->deleted_uses, self->deleted));
}

static const rp_extension_ops extension_statistics = {
    .name = "statistics",
    .create = statistics_create,
    .destroy = free,
    .on_insert = statistics_on_insert,
    .on_sample = statistics_on_sample,
    .on_update = statistics_on_update,
    .on_delete = statistics_on_delete,
    .on_reset = statistics_on_reset,
    .stats = statistics_stats,
};

/* ---- priority diffusion: when an item's priority is updated, the priorities of its neighbours in the same episode are raised to
 * at least decay^distance of the new priority, up to `radius` steps away. Credit for a surprise spreads to the steps before it. */

/* Most items that begin at one step and are raised together. */
#define SAME_STEP_MOST 64u

struct diffusion {
    const rp_extension_host *host;
    struct keymap *by_step; /* session and step -> the slot of an item that begins there */
    uint32_t *next;         /* slot -> another item that begins at the same step, or KEYMAP_NONE */
    uint32_t capacity;
    int64_t radius;
    double decay;
    double diffused;
};

static uint64_t diffusion_place(uint32_t session, uint64_t step)
{
    return (uint64_t)session << 40 | (step & ((UINT64_C(1) << 40) - 1));
}

static void diffusion_destroy(void *ctx)
{
    struct diffusion *self = ctx;
    keymap_destroy(&self->by_step);
    reserve_unmap(self->next, self->capacity * sizeof *self->next);
    free(self);
}

static void *diffusion_create(const rp_option *options, uint32_t n_options, uint32_t capacity,
                              const rp_extension_host *host, rp_error *err)
{
    struct diffusion *self = need_alloc(sizeof *self);
    *self = (struct diffusion){.host = host,
                               .by_step = keymap_new(NULL),
                               .next = reserve_map(capacity * sizeof *self->next),
                               .capacity = capacity,
                               .radius = 1,
                               .decay = 0.5};
    for (uint32_t i = 0; i < n_options; i++) {
        const char *name = options[i].name, *value = options[i].value;
        bool ok = false;
        if (strcmp(name, "radius") == 0)
            ok = schema_parse_int(value, &self->radius) && self->radius >= 1 && self->radius <= 64;
        else if (strcmp(name, "decay") == 0)
            ok = schema_parse_real(value, &self->decay) && self->decay > 0 && self->decay <= 1;
        if (ok)
            continue;
        err_set(err, RP_INVALID_ARGUMENT,
                "extension priority_diffusion: option '%s: %s' is wrong: the options are radius (1 to 64) and decay "
                "(above 0, up to 1)",
                name, value);
        diffusion_destroy(self);
        return NULL;
    }
    return self;
}

static void diffusion_on_insert(void *ctx, const rp_item_view *item)
{
    struct diffusion *self = ctx;
    uint64_t at = diffusion_place(item->session, item->step);
    self->next[item->slot] = keymap_remove(self->by_step, at);
    keymap_put(self->by_step, at, item->slot);
}

static void diffusion_on_delete(void *ctx, const rp_item_view *item)
{
    struct diffusion *self = ctx;
    uint64_t at = diffusion_place(item->session, item->step);
    uint32_t head = keymap_get(self->by_step, at), after = self->next[item->slot];
    if (head == item->slot) {
        keymap_remove(self->by_step, at);
        if (after != KEYMAP_NONE)
            keymap_put(self->by_step, at, after);
        return;
    }
    while (head != KEYMAP_NONE && self->next[head] != item->slot)
        head = self->next[head];
    if (head != KEYMAP_NONE)
        self->next[head] = after;
}

static void diffusion_on_reset(void *ctx)
{
    struct diffusion *self = ctx;
    keymap_destroy(&self->by_step);
    self->by_step = keymap_new(NULL);
}

static void raise_neighbour(struct diffusion *self, const rp_item_view *item, uint64_t step, double priority)
{
    uint32_t slot = keymap_get(self->by_step, diffusion_place(item->session, step)), most = SAME_STEP_MOST;
    for (; slot != KEYMAP_NONE && most > 0; slot = self->next[slot], most--) {
        rp_item_view neighbour;
        if (!self->host->view(self->host->table, slot, &neighbour) || neighbour.session != item->session ||
            neighbour.step != step)
            return; /* left over from before a reset */
        if (neighbour.episode == item->episode && neighbour.priority < priority)
            self->diffused += self->host->set_priority(self->host->table, slot, priority);
    }
}

static void diffusion_on_update(void *ctx, const rp_item_view *item, double old_priority)
{
    struct diffusion *self = ctx;
    (void)old_priority;
    double priority = item->priority;
    for (int64_t d = 1; d <= self->radius; d++) {
        priority *= self->decay;
        if (item->step >= (uint64_t)d)
            raise_neighbour(self, item, item->step - (uint64_t)d, priority);
        raise_neighbour(self, item, item->step + (uint64_t)d, priority);
    }
}

static void diffusion_stats(void *ctx, void (*emit)(void *, const char *, double), void *to)
{
    emit(to, "diffused", ((const struct diffusion *)ctx)->diffused);
}

static const rp_extension_ops extension_priority_diffusion = {
    .name = "priority_diffusion",
    .create = diffusion_create,
    .destroy = diffusion_destroy,
    .on_insert = diffusion_on_insert,
    .on_restore = diffusion_on_insert,
    .on_update = diffusion_on_update,
    .on_delete = diffusion_on_delete,
    .on_reset = diffusion_on_reset,
    .stats = diffusion_stats,
};

/* ---- insert on sample: each sampled item is also inserted into another table. That table's limiter counts the insert but does
 * not hold it back. An item that the other table already has stays as it is. */

struct copier {
    const rp_extension_host *host;
    char *table;
    double copied, skipped;
};

static void copier_destroy(void *ctx)
{
    struct copier *self = ctx;
    free(self->table);
    free(self);
}

static void *copier_create(const rp_option *options, uint32_t n_options, uint32_t capacity,
                           const rp_extension_host *host, rp_error *err)
{
    (void)capacity;
    if (n_options != 1 || strcmp(options[0].name, "table") != 0 || !options[0].value[0])
        return err_null(err, RP_INVALID_ARGUMENT,
                        "extension insert_on_sample takes one option: 'table', the name of another "
                        "table that gets the sampled items");
    struct copier *self = need_alloc(sizeof *self);
    *self = (struct copier){.host = host, .table = need_text(options[0].value)};
    return self;
}

static void copier_on_sample(void *ctx, const rp_item_view *item)
{
    struct copier *self = ctx;
    bool copied = self->host->copy_to(self->host->table, item->slot, self->table, item->priority);
    *(copied ? &self->copied : &self->skipped) += 1;
}

static void copier_stats(void *ctx, void (*emit)(void *, const char *, double), void *to)
{
    const struct copier *self = ctx;
    emit(to, "copied", self->copied);
    emit(to, "not_copied", self->skipped);
}

static const rp_extension_ops extension_insert_on_sample = {
    .name = "insert_on_sample",
    .create = copier_create,
    .destroy = copier_destroy,
    .on_sample = copier_on_sample,
    .stats = copier_stats,
};

/* ---- by name */

static const rp_extension_ops *const builtin[] = {&extension_statistics, &extension_priority_diffusion,
                                                  &extension_insert_on_sample};
#define N_BUILTIN (sizeof builtin / sizeof builtin[0])

const rp_extension_ops *extension_builtin(const char *name)
{
    for (uint32_t i = 0; i < N_BUILTIN; i++)
        if (strcmp(builtin[i]->name, name) == 0)
            return builtin[i];
    return NULL;
}

const char *extension_builtin_name(uint32_t i)
{
    return i < N_BUILTIN ? builtin[i]->name : NULL;
}

/* ---- plug-ins */

static rp_status plugin_load(struct plugins *self, const char *path, rp_error *err)
{
    void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!handle)
        return err_set(err, RP_IO, "plug-in %s: %s", path, dlerror());
    self->handles[self->count] = handle;
    rp_plugin_entry_fn *entry = NULL;
    *(void **)(&entry) = dlsym(handle, "rp_plugin_entry");
    const rp_plugin *plugin = entry ? entry() : NULL;
    self->list[self->count++] = plugin;
    if (!plugin)
        return err_set(err, RP_INVALID_ARGUMENT, "plug-in %s: it does not export rp_plugin_entry", path);
    if (plugin->abi != RP_PLUGIN_ABI)
        return err_set(err, RP_UNSUPPORTED, "plug-in %s: built for interface %u, this broker has %u: compile it again",
                       path, plugin->abi, RP_PLUGIN_ABI);
    return RP_OK;
}

rp_status plugins_load(struct plugins *self, const struct schema_list *paths, rp_error *err)
{
    *self = (struct plugins){.handles = need_alloc(paths->count * sizeof(void *)),
                             .list = need_alloc(paths->count * sizeof(*self->list))};
    char *const *names = paths->data;
    for (uint32_t i = 0; i < paths->count; i++)
        RP_TRY(plugin_load(self, names[i], err));
    return RP_OK;
}

void plugins_fini(struct plugins *self)
{
    for (uint32_t i = 0; i < self->count; i++)
        dlclose(self->handles[i]);
    free(self->handles);
    free(self->list);
    *self = (struct plugins){0};
}

const rp_selector_ops *plugins_selector(const struct plugins *self, const char *name)
{
    const rp_selector_ops *own = selector_builtin(name);
    for (uint32_t i = 0; !own && i < self->count; i++)
        for (const rp_selector_ops *const *at = self->list[i]->selectors; at && *at; at++)
            if (strcmp((*at)->name, name) == 0)
                return *at;
    return own;
}

const rp_extension_ops *plugins_extension(const struct plugins *self, const char *name)
{
    const rp_extension_ops *own = extension_builtin(name);
    for (uint32_t i = 0; !own && i < self->count; i++)
        for (const rp_extension_ops *const *at = self->list[i]->extensions; at && *at; at++)
            if (strcmp((*at)->name, name) == 0)
                return *at;
    return own;
}
