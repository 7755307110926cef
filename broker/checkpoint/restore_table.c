/* Matches tables by name, compares them with the configuration, and fills them. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "broker/checkpoint/checkpoint.h"
#include "broker/checkpoint/restore_parts.h"
#include "proto/base/dtype.h"
#include "proto/base/error.h"
#include "proto/base/utf8.h"

#define AHEAD 16u /* how many items ahead memory is prefetched */

/* ---- what differs ---- */

static void differs(const struct table *table, const char *what, const char *file, const char *config)
{
    log_line(LEVEL_WARN, "B0513", "the configuration differs from the files, and wins",
             "table=%s setting=%s files=%s configuration=%s", table->name, what, file, config);
}

static void differs_text(const struct table *table, const char *what, const char *file, const char *config)
{
    if (strcmp(file, config) != 0)
        differs(table, what, file[0] ? file : "-", config);
}

static void differs_number(const struct table *table, const char *what, double file, double config)
{
    char a[32], b[32];
    if (file == config || (isnan(file) && isnan(config)))
        return;
    snprintf(a, sizeof a, "%.17g", file);
    snprintf(b, sizeof b, "%.17g", config);
    differs(table, what, a, b);
}

/* A change that was made while the broker ran holds until the configuration is changed. */
static void keep_change(struct table *table, const struct entry_limiter *from)
{
    rp_error err = {0};
    struct limiter kept = table->limiter;
    const struct limiter_change settings = {from->samples_per_insert, from->min_size, from->min_diff, from->max_diff,
                                            NAN};
    if (from->kind != (uint32_t)kept.kind || !from->changed_from)
        return;
    if (limiter_keep(&kept, from->changed_from, &settings, &err) == RP_OK &&
        kept.min_size <= (double)table->config->max_size)
        table->limiter = kept;
    if (table->limiter.changed_from)
        log_line(LEVEL_INFO, "B0533", "the limiter keeps the settings to which it was changed",
                 "table=%s samples_per_insert=%g min_size=%g min_diff=%g max_diff=%g", table->name,
                 kept.samples_per_insert, kept.min_size, kept.min_diff, kept.max_diff);
}

static void report_differences(const struct table *table, const struct image_table *from)
{
    const Replay__TableInfo *info = from->info;
    const struct entry_limiter *limiter = &from->limiter;
    if (info) {
        differs_text(table, "sampler", info->sampler, table->sampler_ops->name);
        differs_text(table, "remover", info->remover, table->remover_ops->name);
        differs_number(table, "max_size", (double)info->max_size, (double)table->config->max_size);
        differs_number(table, "max_bytes", (double)info->max_bytes, (double)table->config->max_bytes);
        differs_number(table, "max_times_sampled", info->max_times_sampled, (double)table->config->max_times_sampled);
    }
    if (limiter->kind != (uint32_t)table->limiter.kind) {
        differs(table, "limiter.kind",
                limiter->kind <= LIMITER_STACK ? limiter_kind_name((enum limiter_kind)limiter->kind) : "unknown",
                limiter_kind_name(table->limiter.kind));
        return;
    }
    differs_number(table, "limiter.samples_per_insert", limiter->samples_per_insert, table->limiter.samples_per_insert);
    differs_number(table, "limiter.min_size", limiter->min_size, table->limiter.min_size);
    differs_number(table, "limiter.min_diff", limiter->min_diff, table->limiter.min_diff);
    differs_number(table, "limiter.max_diff", limiter->max_diff, table->limiter.max_diff);
}

/* "float32 [any 4 84]" */
static void type_text(char *out, size_t size, const char *dtype, const uint32_t *shape, size_t rank)
{
    int used = snprintf(out, size, "%s [", dtype);
    for (size_t i = 0; i < rank && used > 0 && (size_t)used < size; i++)
        used +=
            snprintf(out + used, size - (size_t)used, i == 0 && !shape[0] ? "%sany" : "%s%u", i ? " " : "", shape[i]);
    if (used > 0 && (size_t)used < size)
        snprintf(out + used, size - (size_t)used, "]");
}

static rp_status field_match(const struct table *table, const Replay__Column *file, const struct signature_field *want,
                             rp_error *err)
{
    char a[128], b[128];
    type_text(a, sizeof a, file->dtype, file->shape, file->n_shape);
    type_text(b, sizeof b, dtype_name(want->dtype), want->shape, want->rank);
    if (strcmp(file->name, want->name) == 0 && strcmp(a, b) == 0)
        return RP_OK;
    return err_set(err, RP_INVALID_ARGUMENT,
                   "table '%.64s' has items whose field '%.64s' is %s, and its configured signature says '%.64s' %s: "
                   "restore the signature, or give the table another name, or start with checkpoint.load: none",
                   table->name, file->name, a, want->name, b);
}

/* Compares the signatures. A table without one takes what is there; the layouts of items are checked when they are
 * interned. */
static rp_status signature_match(const struct table *table, const struct image_table *from, rp_error *err)
{
    const Replay__TableSpec *spec = from->spec;
    if (!spec || !spec->n_signature || !table->signature.n || !from->size)
        return RP_OK;
    if (spec->n_signature != table->signature.n)
        return err_set(err, RP_INVALID_ARGUMENT,
                       "table '%.64s' has items of %zu fields, the first '%.64s', and its configured signature has %u: "
                       "restore the signature, or give the table another name, or start with checkpoint.load: none",
                       table->name, spec->n_signature, spec->signature[0]->name, table->signature.n);
    for (uint32_t i = 0; i < table->signature.n; i++)
        RP_TRY(field_match(table, spec->signature[i], &table->signature.fields[i], err));
    return RP_OK;
}

/* A table that is configured without metadata takes what the files have. */
static rp_status metadata_match(struct table *table, const struct image_table *from, rp_error *err)
{
    const char *stored = from->info ? from->info->metadata : "", *configured = table->config->metadata;
    size_t size = strlen(stored);
    bool usable = size > 0 && size <= CONFIG_METADATA_MOST && utf8_valid(stored, size);
    if (usable && (!configured || !configured[0]))
        return table_set_metadata(table, stored, err);
    if (usable && strcmp(stored, configured) != 0) {
        char a[32], b[32];
        snprintf(a, sizeof a, "%zu_bytes", size);
        snprintf(b, sizeof b, "%zu_bytes", strlen(configured));
        differs(table, "metadata", a, b);
    }
    return RP_OK;
}

rp_status restore_match(struct restoring *self, rp_error *err)
{
    const struct tables *tables = self->state->tables;
    const struct image *image = &self->image;
    for (uint32_t i = 0; i < image->n_tables; i++) {
        const struct image_table *from = &image->tables[i];
        struct table *table = from->name ? tables_find(tables, from->name, strlen(from->name)) : NULL;
        self->tables[i] = table;
        if (!table) {
            char quoted[128];
            self->left_out += from->size;
            log_line(LEVEL_WARN, "B0514", "a table is not configured any more: left out", "table=%s items_left_out=%u",
                     log_quote(quoted, sizeof quoted, from->name ? from->name : ""), from->size);
            continue;
        }
        keep_change(table, &from->limiter);
        report_differences(table, from);
        RP_TRY(signature_match(table, from, err));
        if (from->high > table->capacity)
            RP_TRY(table_grow(table, from->high, err));
        RP_TRY(metadata_match(table, from, err));
    }
    for (uint32_t t = 0; t < tables->n; t++) {
        bool known = false;
        for (uint32_t i = 0; i < image->n_tables && !known; i++)
            known = self->tables[i] == &tables->list[t];
        if (!known)
            log_line(LEVEL_INFO, "B0515", "a table is new", "table=%s", tables->list[t].name);
    }
    return RP_OK;
}

/* ---- items ---- */

void restore_want_items(struct restoring *self, uint32_t index)
{
    struct image_table *from = &self->image.tables[index];
    for (uint32_t i = 0; i < from->high; i++) {
        struct image_item *item = &from->items[i];
        uint64_t *places = item->n > 1 ? item->many : &item->one;
        for (uint32_t c = 0; c < item->n; c++)
            restore_want(self, &places[c]);
    }
}

struct layout *restore_layout(struct restoring *self, struct image_layout *from, const struct table *table,
                              rp_error *err)
{
    if (from->user)
        return from->user;
    struct columns *columns = columns_new(from->wire->columns, from->wire->n_columns, err);
    struct layout *layout = NULL;
    if (columns)
        layout = layouts_intern(self->state->layouts, from->wire, columns, table->id, table->signature, err);
    columns_release(columns);
    from->user = layout;
    return layout;
}

void restore_layout_release(struct restoring *self, struct image_layout *layout)
{
    if (!layout || !layout->user)
        return;
    layouts_release(self->state->layouts, layout->user);
    layout->user = NULL;
}

/* Counts the chunks at these addresses as the table's. False: no memory; nothing has changed. */
static bool chunks_enter(struct table *table, const uint64_t *addresses, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        struct chunk *chunk = (struct chunk *)(uintptr_t)addresses[i];
        enum chunk_entered entered = chunk_enter(table->store, chunk, table->in.account);
        if (entered == CHUNK_FIRST)
            table->bytes += chunk->bytes;
        if (entered != CHUNK_NO_MEMORY)
            continue;
        while (i-- > 0) {
            chunk = (struct chunk *)(uintptr_t)addresses[i];
            if (chunk_leave(table->store, chunk, table->in.account))
                table->bytes -= chunk->bytes;
        }
        return false;
    }
    return true;
}

/* Moves the reference to the item. */
static struct chunk *chunk_take(uint64_t *address)
{
    struct chunk *chunk = (struct chunk *)(uintptr_t)*address;
    *address = 0;
    return chunk;
}

static bool span_make(struct store *store, struct table *table, struct image_item *from, uint32_t layout,
                      struct span *out)
{
    uint32_t n = from->n;
    *out = (struct span){.n = n, .offset = from->offset, .length = from->length, .layout = layout};
    struct chunk **many = n > 1 ? malloc(n * sizeof(*many)) : NULL;
    if ((n > 1 && !many) || !chunks_enter(table, image_chunks(from), n)) {
        free(many);
        return false;
    }
    if (n == 1) {
        out->one = chunk_take(&from->one);
        return true;
    }
    out->many = many;
    for (uint32_t i = 0; i < n; i++)
        out->many[i] = chunk_take(&from->many[i]);
    store->outside += span_list_bytes(n);
    return true;
}

/* Checks that the item's steps are in its chunks and that its layout fits them, as an insert does: replies rely on it. */
static rp_status item_check(const struct table *table, const struct image_item *from, const struct layout *layout,
                            rp_error *err)
{
    const uint64_t *places = image_chunks(from);
    uint64_t steps = 0;
    bool ok = from->length >= layout->min_length && from->length > 0;
    for (uint32_t i = 0; i < from->n && ok; i++) {
        const struct chunk *chunk = (const struct chunk *)(uintptr_t)places[i];
        ok = chunk->columns == layout->n_columns && (i > 0 || from->offset < chunk->length);
        steps += chunk->length;
    }
    if (!ok || steps < (uint64_t)from->offset + from->length)
        return err_set(err, RP_DATA_LOSS, "item %llu of table '%s' does not fit its chunks and its layout",
                       (unsigned long long)from->key, table->name);
    rp_status status = table_check_priority(table, from->priority, err);
    if (status != RP_OK)
        err_prefix(err, "item %llu of table '%s'", (unsigned long long)from->key, table->name);
    return status;
}

static rp_status item_put(struct restoring *self, struct table *table, struct image_item *from, uint32_t slot,
                          rp_error *err)
{
    struct layout *layout = restore_layout(self, from->layout, table, err);
    if (!layout)
        return err && err->status ? (rp_status)err->status : RP_NO_MEMORY;
    RP_TRY(item_check(table, from, layout, err));
    if (!keymap_put(table->in.keys, from->key, slot)) {
        if (keymap_get(table->in.keys, from->key) == KEYMAP_NONE)
            return err_set(err, RP_NO_MEMORY, "no memory for the key map of table '%s'", table->name);
        return err_set(err, RP_DATA_LOSS, "key %llu is twice in table '%s'", (unsigned long long)from->key,
                       table->name);
    }
    struct item *item = &table->in.items[slot];
    *item = (struct item){.key = from->key,
                          .priority = from->priority,
                          .insert_ns = from->insert_ns,
                          .policy = from->policy,
                          .times_sampled = from->times_sampled};
    if (!span_make(self->state->store, table, from, layout->id, &item->span)) {
        item->span.n = 0;
        return err_set(err, RP_NO_MEMORY, "no memory for the items of table '%s'", table->name);
    }
    layout->refs++;
    table->in.size++;
    ordinals_enter(&self->state->tables->ordinals, from->key);
    return RP_OK;
}

static rp_status items_put(struct restoring *self, struct table *table, struct image_table *from, rp_error *err)
{
    for (uint32_t slot = 0; slot < from->high; slot++) {
        if (slot + AHEAD < from->high && from->items[slot + AHEAD].n == 1) {
            keymap_prefetch(table->in.keys, from->items[slot + AHEAD].key);
            __builtin_prefetch((const void *)(uintptr_t)from->items[slot + AHEAD].one, 1);
        }
        table->in.high = slot + 1;
        table->store->overhead += table->in.arrays.slot_bytes;
        if (from->items[slot].n)
            RP_TRY(item_put(self, table, &from->items[slot], slot, err));
    }
    /* Low slots are taken first. */
    for (uint32_t slot = from->high; slot-- > 0;)
        if (!table->in.items[slot].span.n) {
            table->in.items[slot].stamp = table->in.free;
            table->in.free = slot;
        }
    return RP_OK;
}

/* Lists the slots with their time of insertion. */
static void by_age(const struct table *table, struct pair *pairs)
{
    uint32_t n = 0;
    for (uint32_t slot = 0; slot < table->in.high; slot++)
        if (table->in.items[slot].span.n)
            pairs[n++] = (struct pair){(uint64_t)table->in.items[slot].insert_ns ^ UINT64_C(1) << 63, slot};
}

/* Fills a selector in its own order. `aged` is sorted by age, which decides between items of equal rank. */
static bool selector_fill(const struct table *table, const struct image_table *from, uint32_t which,
                          const struct pair *aged, struct pair *work)
{
    const rp_selector_ops *ops = which ? table->remover_ops : table->sampler_ops;
    void *selector = which ? table->in.remover : table->in.sampler;
    uint32_t n = table->in.size;
    const struct pair *order = aged;
    if (ops->order) {
        for (uint32_t i = 0; i < n; i++)
            work[i] = (struct pair){from->items[aged[i].value].order[which], aged[i].value};
        if (!pairs_sort(work, n))
            return false;
        order = work;
    }
    for (uint32_t i = 0; i < n; i++) {
        if (i + AHEAD < n && ops->prefetch)
            ops->prefetch(selector, (uint32_t)order[i + AHEAD].value);
        ops->insert(selector, (uint32_t)order[i].value, table->in.items[order[i].value].priority);
    }
    return true;
}

/* Restores a selector's random generator, so that picks go on as they would have. */
static void selector_load(const struct restoring *self, struct table *table, const struct image_table *from,
                          uint32_t which)
{
    const rp_selector_ops *ops = which ? table->remover_ops : table->sampler_ops;
    const char *kind = from->info ? (which ? from->info->remover : from->info->sampler) : "";
    if (!self->image.exact || !from->selector[which] || !ops->load || strcmp(kind, ops->name) != 0)
        return;
    if (!ops->load(which ? table->in.remover : table->in.sampler, from->selector[which], from->selector_bytes[which]))
        log_line(LEVEL_INFO, "B0516", "a selector starts with a new generator", "table=%s selector=%s", table->name,
                 ops->name);
}

/* Restores the counters. If settings differ, the cursor goes where it goes when a running limiter is changed. The counters of
 * another kind of limiter mean nothing here, so this one starts balanced. */
static void limiter_restore(struct table *table, const struct entry_limiter *from)
{
    struct limiter *limiter = &table->limiter;
    limiter->inserts = from->inserts;
    limiter->samples = from->samples;
    limiter->deletes = from->deletes;
    if (from->inserts < from->deletes || from->inserts - from->deletes != table->in.size) {
        log_line(LEVEL_ERROR, "B0517", "the counters of a table do not fit its items: counted again",
                 "table=%s inserts=%llu deletes=%llu items=%u", table->name, (unsigned long long)from->inserts,
                 (unsigned long long)from->deletes, table->in.size);
        if (limiter->inserts < table->in.size)
            limiter->inserts = table->in.size;
        limiter->deletes = limiter->inserts - table->in.size;
    }
    if (from->kind != (uint32_t)limiter->kind) {
        double balanced =
            limiter->kind == LIMITER_RATIO ? limiter->min_size_part * limiter->samples_per_insert : table->in.size;
        limiter->offset = balanced - limiter_cursor(limiter);
        return;
    }
    struct limiter before = *limiter;
    before.samples_per_insert = from->samples_per_insert;
    before.min_size = from->min_size;
    before.min_size_part = from->min_size == limiter->min_size ? limiter->min_size_part : from->min_size;
    before.min_diff = from->min_diff;
    before.max_diff = from->max_diff;
    limiter->offset = before.offset = from->offset;
    limiter_place(limiter, &before);
}

static void extensions_restore(struct table *table, const struct pair *aged)
{
    for (uint32_t e = 0; e < table->n_extensions; e++) {
        const struct extension *extension = &table->extensions[e];
        for (uint32_t i = 0; extension->ops->on_restore && i < table->in.size; i++) {
            rp_item_view view;
            table_view(table, (uint32_t)aged[i].value, &view);
            extension->ops->on_restore(extension->self, &view);
        }
    }
}

/* Counts episodes and sampled items. Files of earlier releases lack these counts, or have them as of their checkpoint: the items
 * that are there show the least that they can be. */
static void counts_restore(struct table *table, const struct image_table *from)
{
    uint64_t sampled = 0;
    for (uint32_t slot = 0; slot < table->in.high; slot++) {
        const struct item *item = &table->in.items[slot];
        if (!item->span.n)
            continue;
        sampled += item->times_sampled > 0;
        (void)episodes_enter(&table->in.episodes, span_episode(&item->span));
    }
    uint64_t here = table->in.episodes.here;
    table->stats.episodes = from->episodes > here ? from->episodes : here;
    table->stats.unique_samples = from->unique_samples > sampled ? from->unique_samples : sampled;
}

rp_status restore_items(struct restoring *self, uint32_t index, rp_error *err)
{
    struct image_table *from = &self->image.tables[index];
    struct table *table = self->tables[index];
    RP_TRY(items_put(self, table, from, err));
    struct pair *aged = malloc((table->in.size + 1) * sizeof *aged),
                *work = malloc((table->in.size + 1) * sizeof *work);
    bool ok = aged && work;
    if (ok) {
        by_age(table, aged);
        ok = pairs_sort(aged, table->in.size) && selector_fill(table, from, 0, aged, work) &&
             selector_fill(table, from, 1, aged, work);
    }
    if (ok) {
        selector_load(self, table, from, 0);
        selector_load(self, table, from, 1);
        limiter_restore(table, &from->limiter);
        table->stats.total_inserts = from->total_inserts;
        table->stats.total_samples = from->total_samples;
        table->stats.updates = from->updates;
        table->stats.rejected = from->rejected;
        table->stats.evicted = from->evicted;
        counts_restore(table, from);
        table->restored = table->stats;
        table->resets = from->resets;
        table->last_insert_ns = self->state->loop->now_ns; /* no item is newer: see image_rebase */
        if (table->in.size)
            table_newest_layout(table, table->in.items[aged[table->in.size - 1].value].span.layout);
        extensions_restore(table, aged);
        if (table->in.marks)
            table->in.marks->all_changed = true;
        self->items += table->in.size;
    }
    free(aged);
    free(work);
    return ok ? RP_OK : err_set(err, RP_NO_MEMORY, "no memory to order the items of table '%s'", table->name);
}
