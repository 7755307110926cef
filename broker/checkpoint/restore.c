/* Makes what was loaded complete: chunks are read from the segments into the store, each once, in the order of their places;
 * tables are compared with the configuration, and their key maps, selectors and accounts filled; samples that may be asked for
 * again are kept. */
#include "broker/checkpoint/restore.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "broker/checkpoint/loading.h"
#include "broker/config/config.h"
#include "broker/journal/stream.h"
#include "broker/peer/peers.h"
#include "broker/select/selector.h"
#include "proto/base/error.h"
#include "proto/base/log.h"
#include "proto/base/utf8.h"

#define AHEAD 16u /* how many items ahead memory is prefetched */
#define LOST_LOGGED 5u

/* Data beyond storage.memory is left on disk. */
static struct chunk *chunk_make(const struct durable_state *state, uint64_t at, const struct chunk_view *view)
{
    struct store *store = state->store;
    const struct entry_chunk *head = view->head;
    if (store->split && head->bytes >= STORE_SPLIT_BYTES &&
        store->split_bytes + head->bytes > (uint64_t)state->config->storage_memory)
        return store_add_absent(store, head->columns, head->bytes, head->raw_bytes, at);
    return store_add(store, head->columns, view->data, head->bytes, head->raw_bytes, NULL);
}

/* What stands for a chunk that cannot be read until the items that need it are removed. */
static bool chunk_is_lost(const struct chunk *chunk)
{
    return !chunk_is_here(chunk) && !chunk->at;
}

/* Gives a chunk to the items and samples that want what is at this place. */
static void chunk_give(struct loading *self, uint64_t at, struct chunk *chunk)
{
    chunk->refs = 0;
    for (; self->next_wanted < self->n_wanted && self->wanted[self->next_wanted].key == at; self->next_wanted++) {
        *(struct chunk **)(uintptr_t)self->wanted[self->next_wanted].value = chunk;
        chunk->refs++;
    }
}

static rp_status chunk_lose(struct loading *self, uint64_t at, const char *why)
{
    uint64_t *highest = &self->stream->folder.highest[DISK_SEGMENT];
    struct chunk *chunk = self->salvage ? store_add_absent(self->state->store, 0, 0, 0, 0) : NULL;
    if (!chunk)
        return RP_DATA_LOSS; /* or no memory */
    if (disk_number(at) > *highest)
        *highest = disk_number(at); /* or a new segment would have this name, and another chunk at this place */
    if (self->lost++ < LOST_LOGGED)
        log_line(LEVEL_ERROR, "B0512", "damage was found in the files", "text=%s", log_text(why));
    chunk_give(self, at, chunk);
    return RP_OK;
}

static rp_status chunk_take(void *ctx, uint64_t at, const struct chunk_view *view, rp_error *err)
{
    struct loading *self = ctx;
    if (!view)
        return chunk_lose(self, at, err->text);
    const struct entry_chunk *head = view->head;
    struct chunk *chunk = chunk_make(self->state, at, view);
    if (!chunk)
        return err_set(err, RP_NO_MEMORY, "no memory for the chunks of the tables: %llu bytes were read so far",
                       (unsigned long long)self->bytes);
    memcpy(chunk_block_sizes(chunk), view->sizes, head->columns * sizeof(uint32_t));
    memcpy(chunk_block_codecs(chunk), view->codecs, head->columns);
    chunk->step = head->step;
    chunk->length = head->length;
    chunk->session = head->session;
    chunk->episode = head->episode;
    chunk->absent = head->absent != 0;
    chunk->at = at;
    chunk_give(self, at, chunk);
    stream_chunk_known(self->stream, chunk);
    self->chunks++;
    self->bytes += head->bytes;
    return RP_OK;
}

/* Reads the chunks: spans and picks get their addresses. After an error they have places again. */
static rp_status take_chunks(struct loading *self, rp_error *err)
{
    rp_error why = {0};
    rp_status status = loading_read_chunks(self, chunk_take, &why);
    if (status == RP_DATA_LOSS || status == RP_IO)
        err_set(err, status,
                "%s. Put back the files from a copy, or start with checkpoint.load: salvage, which drops the items "
                "whose data cannot be read, or with the number of an older checkpoint",
                why.text);
    else if (status != RP_OK)
        err_set(err, status, "%s", why.text);
    if (status == RP_OK && self->next_wanted != self->n_wanted)
        status = err_set(err, RP_DATA_LOSS, "%llu of %llu chunks of the tables are not in the segments",
                         (unsigned long long)(self->n_wanted - self->next_wanted), (unsigned long long)self->n_wanted);
    self->read = status == RP_OK;
    for (uint64_t i = 0; !self->read && i < self->next_wanted; i++) {
        struct chunk **at = (struct chunk **)(uintptr_t)self->wanted[i].value;
        store_release(self->state->store, *at);
        *at = (struct chunk *)(uintptr_t)self->wanted[i].key;
    }
    return status;
}

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
    const struct limiter_change settings = {
        from->samples_per_insert, from->min_size, from->min_diff, from->max_diff, NAN, NAN};
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

static void report_differences(const struct table *table, const struct loaded_table *from)
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
        differs(table, "limiter.kind", limiter_kind_name((enum limiter_kind)limiter->kind),
                limiter_kind_name(table->limiter.kind));
        return;
    }
    differs_number(table, "limiter.samples_per_insert", limiter->samples_per_insert, table->limiter.samples_per_insert);
    differs_number(table, "limiter.min_size", limiter->min_size, table->limiter.min_size);
    differs_number(table, "limiter.min_diff", limiter->min_diff, table->limiter.min_diff);
    differs_number(table, "limiter.max_diff", limiter->max_diff, table->limiter.max_diff);
}

/* A table that is configured without metadata takes what the files have. */
static void metadata_match(struct table *table, const struct loaded_table *from)
{
    const char *stored = from->info->metadata, *configured = table->config->metadata;
    size_t size = strlen(stored);
    bool usable = size > 0 && size <= CONFIG_METADATA_MOST && utf8_valid(stored, size);
    if (usable && (!configured || !configured[0]))
        table_set_metadata(table, stored);
    else if (usable && strcmp(stored, configured) != 0) {
        char a[32], b[32];
        snprintf(a, sizeof a, "%zu_bytes", size);
        snprintf(b, sizeof b, "%zu_bytes", strlen(configured));
        differs(table, "metadata", a, b);
    }
}

/* Groups are made when items come: those of another size, or items without groups, cannot become groups. */
static rp_status groups_match(const struct loading *self, rp_error *err)
{
    for (uint32_t i = 0; i < self->n_tables; i++) {
        const struct loaded_table *from = &self->tables[i];
        uint32_t size = (uint32_t)(from->configured ? from->table->config->group_size : 0);
        if (size && from->table->in.size && from->info->group_size != size)
            return err_set(err, RP_FAILED_PRECONDITION,
                           "table '%.64s' has %u items in groups of %u (0: in none), and its configuration says %u: "
                           "restore group.size, or give the table another name, or start with checkpoint.load: none",
                           from->table->name, from->table->in.size, from->info->group_size, size);
    }
    return RP_OK;
}

/* Checks that the layouts of items fit their tables. What only forms of sessions have was checked before. */
static rp_status layouts_match(const struct loading *self, rp_error *err)
{
    const struct layouts *layouts = self->state->layouts;
    const struct tables *tables = self->state->tables;
    for (uint32_t i = 0; i < layouts->count; i++) {
        const struct layout *layout = layouts->list[i];
        const struct table *table = layout && layout->table < tables->n ? &tables->list[layout->table] : NULL;
        if (!table || !table->signature.n)
            continue;
        size_t size;
        const uint8_t *packed = layout_message(layout, &size);
        Replay__Layout *wire = replay__layout__unpack(NULL, size, packed);
        struct columns *columns = wire ? columns_new(wire->columns, wire->n_columns, err) : NULL;
        struct layout *same =
            columns ? layouts_intern(self->state->layouts, wire, columns, table->id, table->signature, err) : NULL;
        columns_release(columns);
        if (wire)
            replay__layout__free_unpacked(wire, NULL);
        if (!same) {
            err_prefix(err,
                       "table '%.64s' has items that do not fit its configured signature (restore the signature, or "
                       "give the table another name, or start with checkpoint.load: none)",
                       table->name);
            return err && err->status ? (rp_status)err->status : RP_NO_MEMORY;
        }
        layouts_release(self->state->layouts, same);
    }
    return RP_OK;
}

static rp_status match_tables(struct loading *self, rp_error *err)
{
    const struct tables *tables = self->state->tables;
    const char *load = self->state->config->checkpoint_load;
    bool drop = load && strcmp(load, "drop_tables") == 0;
    for (uint32_t i = 0; i < self->n_tables; i++) {
        const struct loaded_table *from = &self->tables[i];
        struct table *table = from->table;
        if (!from->configured && table->in.size && !drop)
            return err_set(err, RP_FAILED_PRECONDITION,
                           "table '%.64s' has %u items and is not configured: add it to tables, or start with "
                           "checkpoint.load: drop_tables to drop the items of all tables that are not configured",
                           table->name, table->in.size);
        if (!from->configured && table->in.size)
            log_line(LEVEL_WARN, "B0514", "the items of a table that is not configured are dropped",
                     "table=%s items_left_out=%u", log_text(table->name), table->in.size);
        if (!from->configured) {
            self->left_out += table->in.size;
            continue;
        }
        keep_change(table, &from->limiter);
        report_differences(table, from);
        metadata_match(table, from);
    }
    for (uint32_t t = 0; t < tables->n; t++) {
        bool known = false;
        for (uint32_t i = 0; i < self->n_tables && !known; i++)
            known = self->tables[i].table == &tables->list[t];
        if (!known)
            log_line(LEVEL_INFO, "B0515", "a table is new", "table=%s", tables->list[t].name);
    }
    return RP_OK;
}

/* ---- items ---- */

/* Checks that the item's steps are in its chunks and that its layout fits them, as an insert does: replies rely on it. */
static rp_status item_check(const struct table *table, const struct item *item, rp_error *err)
{
    const struct span *span = &item->span;
    const struct layout *layout = layouts_at(table->layouts, span->layout);
    uint64_t steps = 0;
    bool ok = span->length >= layout->min_length && span->length > 0;
    for (uint32_t i = 0; i < span->n && ok; i++) {
        const struct chunk *chunk = span_chunks(span)[i];
        if (chunk_is_lost(chunk))
            return RP_OK; /* the item will be removed */
        ok = chunk->columns == layout->n_columns && (i > 0 || span->offset < chunk->length);
        steps += chunk->length;
    }
    if (!ok || steps < (uint64_t)span->offset + span->length)
        return err_set(err, RP_DATA_LOSS, "item %llu of table '%s' does not fit its chunks and its layout",
                       (unsigned long long)item->key, table->name);
    rp_status status = table_check_priority(table, item->priority, err);
    if (status != RP_OK)
        err_prefix(err, "item %llu of table '%s'", (unsigned long long)item->key, table->name);
    return status;
}

/* Enters the items into the key map and the accounts of the table. */
static rp_status items_enter(struct loaded_table *self, rp_error *err)
{
    struct table *table = self->table;
    struct contents *in = &table->in;
    for (; self->entered < in->high; self->entered++) {
        uint32_t slot = self->entered;
        if (slot + AHEAD < in->high && in->items[slot + AHEAD].span.n == 1) {
            keymap_prefetch(in->keys, in->items[slot + AHEAD].key);
            __builtin_prefetch(in->items[slot + AHEAD].span.one, 1);
        }
        table->store->overhead += in->arrays.slot_bytes;
        struct item *item = &in->items[slot];
        if (!item->span.n)
            continue;
        RP_TRY(item_check(table, item, err));
        rp_status status = table_enter(table, slot, item->key, &item->span, err);
        if (status != RP_OK)
            return status == RP_ALREADY_EXISTS ? err_set(err, RP_DATA_LOSS, "key %llu is twice in table '%s'",
                                                         (unsigned long long)item->key, table->name)
                                               : status;
        table->store->outside += item->span.n > 1 ? span_list_bytes(item->span.n) : 0;
        if (!in->groups.slots && self->info->group_size)
            item->stamp = 0; /* a member of a group, and the table has none any more */
        in->hidden += item_is_hidden(item);
        (void)episodes_enter(&in->episodes, span_episode(&item->span));
    }
    /* Low slots are taken first. */
    for (uint32_t slot = in->high; slot-- > 0;)
        if (!in->items[slot].span.n) {
            in->items[slot].stamp = in->free;
            in->free = slot;
        }
    return RP_OK;
}

/* ---- groups ---- */

/* Enters an item, the next in the order of insertion, into its group, as it was entered before. */
static rp_status group_enter(struct table *table, uint32_t slot, rp_error *err)
{
    struct groups *groups = &table->in.groups;
    uint64_t group = groups->slots[slot].group;
    uint32_t leader = groups->slots[slot].leader, open = groups_find(groups, group);
    if (leader == slot && open != NO_SLOT)
        groups_close(groups, open); /* it was delivered before this one began */
    else if (leader != slot && open != leader)
        return err_set(err, RP_DATA_LOSS, "item %llu of table '%s' has no place in its group, %llu",
                       (unsigned long long)table->in.items[slot].key, table->name, (unsigned long long)group);
    groups_enter(groups, slot, group);
    if (groups->slots[leader].n == groups->size)
        groups_close(groups, leader);
    return RP_OK;
}

/* Gives the leader the rank of the member that came or changed last. */
static void group_rank(const struct loaded_table *self, uint32_t leader)
{
    const struct group_member *slots = self->table->in.groups.slots;
    for (uint32_t slot = slots[leader].next; self->rank && slot != leader; slot = slots[slot].next)
        for (uint32_t which = 0; which < 2; which++)
            if (self->rank[slot][which] > self->rank[leader][which])
                self->rank[leader][which] = self->rank[slot][which];
}

/* Makes the groups, whose entries name keys and leaders. Returns the leaders that are in the selectors, by the time at which they came
 * there, and their number. NULL with err set: no memory, or the groups do not fit. */
static struct pair *groups_restore(const struct loaded_table *self, const struct pair *aged, uint32_t *n, rp_error *err)
{
    struct table *table = self->table;
    struct groups *groups = &table->in.groups;
    const struct item *items = table->in.items;
    struct pair *out = malloc((table->in.size + 1) * sizeof *out);
    rp_status status = out ? RP_OK : err_set(err, RP_NO_MEMORY, "no memory for the groups of table '%s'", table->name);
    for (uint32_t i = 0; i < table->in.size && status == RP_OK; i++)
        status = group_enter(table, (uint32_t)aged[i].value, err);
    *n = 0;
    for (uint32_t i = 0; i < table->in.size && status == RP_OK; i++) {
        uint32_t slot = (uint32_t)aged[i].value;
        const struct group_member *member = &groups->slots[slot];
        struct item *item = &table->in.items[slot];
        bool shown = !item_is_hidden(item);
        if (member->leader != slot)
            continue;
        if (!member->closed && (shown || item->times_sampled)) /* it was delivered without all members */
            groups_close(groups, slot);
        if (!member->closed)
            continue;
        if (!shown) { /* the journal may end between the last member and this */
            item->stamp = 0;
            table->in.hidden--;
        }
        int64_t at = member->n == groups->size ? items[member->last].insert_ns
                                               : items[slot].insert_ns + table->config->group_deadline_ns;
        group_rank(self, slot);
        out[(*n)++] = (struct pair){(uint64_t)at ^ UINT64_C(1) << 63, slot};
    }
    if (status == RP_OK && !pairs_sort(out, *n))
        status = err_set(err, RP_NO_MEMORY, "no memory for the groups of table '%s'", table->name);
    if (status == RP_OK)
        return out;
    free(out);
    return NULL;
}

/* Fills a selector in its own order. `aged` is sorted by age, which decides between items of equal rank. */
static bool selector_fill(const struct loaded_table *self, uint32_t which, const struct pair *aged, uint32_t n,
                          struct pair *work)
{
    const struct table *table = self->table;
    const rp_selector_ops *ops = which ? table->remover_ops : table->sampler_ops;
    void *selector = which ? table->in.remover : table->in.sampler;
    const struct pair *order = aged;
    const char *kind = which ? self->info->remover : self->info->sampler;
    bool ranked = ops->order && self->rank && strcmp(kind, ops->name) == 0;
    if (ranked) {
        for (uint32_t i = 0; i < n; i++) {
            uint64_t rank = self->rank[aged[i].value][which];
            work[i] = (struct pair){rank ? rank : RANK_NEW, aged[i].value};
        }
        if (!pairs_sort(work, n))
            return false;
        order = work;
    }
    for (uint32_t i = 0; i < n; i++) {
        if (i + AHEAD < n && ops->prefetch)
            ops->prefetch(selector, (uint32_t)order[i + AHEAD].value);
        uint32_t slot = (uint32_t)order[i].value;
        if (item_is_hidden(&table->in.items[slot]))
            continue;
        bool returned = ranked && order[i].key < RANK_NEW && ops->put_back;
        (returned ? ops->put_back : ops->insert)(selector, slot, table_priority(table, slot));
    }
    return true;
}

/* Restores a selector's random generator, so that picks go on as they would have. */
static void selector_load(const struct loaded_table *self, uint32_t which)
{
    const struct table *table = self->table;
    const rp_selector_ops *ops = which ? table->remover_ops : table->sampler_ops;
    const char *kind = which ? self->info->remover : self->info->sampler;
    if (!self->selector[which] || !ops->load || strcmp(kind, ops->name) != 0)
        return;
    if (!ops->load(which ? table->in.remover : table->in.sampler, self->selector[which], self->selector_bytes[which]))
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
        double balanced = limiter->kind == LIMITER_RATIO ? limiter->min_size_part * limiter->samples_per_insert
                          : limiter->kind == LIMITER_LAG
                              ? 0.0 /* items that were sampled may leave without a version that pays for them */
                              : table->in.size;
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
    /* What other settings allowed to be ahead may be gone already: nobody would publish all the versions that it takes. */
    if (limiter->kind == LIMITER_LAG && from->max_diff != limiter->max_diff)
        limiter->offset -= fmax(0.0, limiter_cursor(limiter) - limiter->max_diff);
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

static rp_status items_restore(struct loading *self, struct loaded_table *from, rp_error *err)
{
    struct table *table = from->table;
    RP_TRY(items_enter(from, err));
    struct pair *aged = loading_by_age(table), *work = malloc((table->in.size + 1) * sizeof *work), *shown = aged;
    uint32_t n = table->in.size;
    if (aged && table->in.groups.slots && !(shown = groups_restore(from, aged, &n, err))) {
        free(aged);
        free(work);
        return err && err->status ? (rp_status)err->status : RP_NO_MEMORY;
    }
    bool ok = aged && work && selector_fill(from, 0, shown, n, work) && selector_fill(from, 1, shown, n, work);
    bool once = from->info->max_times_sampled == 1; /* otherwise its items had no leases */
    for (uint32_t slot = 0; slot < table->in.high && !once; slot++)
        if (table->in.items[slot].span.n && !item_is_hidden(&table->in.items[slot]))
            table->in.items[slot].stamp = PICKED;
    if (ok) {
        for (uint32_t which = 0; which < 2 && !self->changed; which++)
            selector_load(from, which);
        limiter_restore(table, &from->limiter);
        table_copy_counters(&table->stats.base, &table->restored.base);
        table->last_insert_ns = self->state->loop->now_ns; /* no item is newer: see loading_end_process */
        if (table->in.size)
            table_newest_layout(table, table->in.items[aged[table->in.size - 1].value].span.layout);
        extensions_restore(table, aged);
        if (table->in.marks)
            table->in.marks->all_changed = true;
        self->items += table->in.size;
    }
    if (shown != aged)
        free(shown);
    free(aged);
    free(work);
    return ok ? RP_OK : err_set(err, RP_NO_MEMORY, "no memory to order the items of table '%s'", table->name);
}

/* Restores the leases of a table's items, which are to return in the order in which they were delivered: the files do not say, and the
 * order of insertion is that of a queue. */
static rp_status leases_restore(struct loading *self, struct table *table, rp_error *err)
{
    struct leases *leases = &self->state->samples->leases;
    bool newest_first = table->sampler_ops == &selector_lifo;
    struct pair *aged = self->n_leases ? loading_by_age(table) : NULL;
    if (!aged && self->n_leases)
        return err_set(err, RP_NO_MEMORY, "no memory for the leases of table '%s'", table->name);
    for (uint32_t i = 0; aged && i < table->in.size; i++) {
        uint32_t slot = (uint32_t)aged[newest_first ? table->in.size - 1 - i : i].value;
        const struct item *item = &table->in.items[slot];
        if (!item_is_hidden(item) || !item_lease(item))
            continue;
        struct loaded_lease *from = &self->leases[item_lease(item) - 1];
        if (!from->lease)
            from->lease = lease_make(leases, from->client, from->id, table, from->ms);
        lease_restore_item(from->lease, slot);
    }
    free(aged);
    return RP_OK;
}

static void selections_restore(struct loading *self)
{
    for (struct loaded_selection *at = TAILQ_FIRST(&self->kept); at; at = TAILQ_NEXT(at, link)) {
        struct picks *picks = &at->kept.picks;
        const struct table *table = at->kept.info.table;
        uint32_t n = picks->n, ref = 0;
        bool lost = false;
        for (uint32_t i = 0; at->configured && i < picks->n_refs; i++)
            lost |= chunk_is_lost(picks->refs[i]);
        if (!at->configured || !n || lost)
            continue;
        at->kept.info.holds = picks->n_refs > 0;
        for (uint32_t i = 0; i < n && at->kept.info.holds; ref += picks->chunks[i++]) {
            picks->step[i] = picks->refs[ref]->step + picks->offset[i];
            picks->session[i] = picks->refs[ref]->session;
        }
        if (!kept_samples_restore(self->state->samples, &at->kept))
            log_line(LEVEL_WARN, "B0518", "a sample that may be asked for again could not be restored",
                     "table=%s items=%u", table->name, n);
        *picks = (struct picks){0};
    }
}

/* Reads checkpoint.load, which was checked: *number is the checkpoint, 0 the newest; *salvage: a journal that is not whole is loaded, too.
 * False: start from nothing. */
static bool what_to_load(const struct broker_config *config, uint64_t *number, bool *salvage)
{
    const char *load = config->checkpoint_load ? config->checkpoint_load : "";
    int64_t chosen = 0;
    (void)schema_parse_int(load, &chosen);
    *number = (uint64_t)chosen;
    *salvage = strcmp(load, "salvage") == 0;
    return strcmp(load, "none") != 0;
}

static void log_notes(const struct load *files)
{
    for (uint32_t i = 0; i < files->n_notes; i++) {
        const struct load_note *note = &files->notes[i];
        log_line(note->damage ? LEVEL_ERROR : LEVEL_INFO, note->damage ? "B0512" : "B0511",
                 note->damage ? "damage was found in the files" : "reading the files", "text=%s", log_text(note->text));
    }
}

/* Makes what was loaded complete. newest: it is the newest state, with a whole journal. */
static rp_status loading_finish(struct loading *self, bool newest, rp_error *err)
{
    loading_end_process(self, self->state->loop->now_ns);
    for (uint32_t i = 0; i < self->n_layouts; i++)
        if (self->layouts[i])
            layouts_release(self->state->layouts, self->layouts[i]);
    self->n_layouts = 0;
    RP_TRY(match_tables(self, err));
    RP_TRY(groups_match(self, err));
    RP_TRY(layouts_match(self, err));
    RP_TRY(take_chunks(self, err));
    for (uint32_t i = 0; i < self->n_tables; i++)
        if (self->tables[i].configured) {
            RP_TRY(items_restore(self, &self->tables[i], err));
            RP_TRY(leases_restore(self, self->tables[i].table, err));
        }
    for (uint32_t i = 0; i < self->n_leases; i++)
        if (self->leases[i].lease)
            lease_restored(self->leases[i].lease, self->leases[i].answered);
    selections_restore(self);
    /* Keys are made from ordinals. Sessions that opened after an older state may still have writers. */
    struct ordinals *ordinals = &self->state->tables->ordinals;
    ordinals->next = self->next_ordinal + (newest ? 0 : 1 + self->state->instance % (1u << 16));
    return RP_OK;
}

static void log_restored(const struct loading *self, int64_t start_ns)
{
    int64_t took = clock_now(&self->state->loop->clock) - start_ns;
    log_line(LEVEL_INFO, "B0510", "restored",
             "checkpoint=%llu items=%llu chunks=%llu bytes=%llu sessions=%u journal_entries=%llu "
             "items_left_out=%llu took_ms=%.1f",
             (unsigned long long)self->files.checkpoint, (unsigned long long)self->items,
             (unsigned long long)self->chunks, (unsigned long long)self->bytes, self->sessions.count,
             (unsigned long long)self->files.journal_entries, (unsigned long long)self->left_out,
             (double)took / (double)NS_PER_MS);
}

/* Loads the files into the broker. */
static rp_status restore_files(struct loading *self, uint64_t number, bool salvage, rp_error *err)
{
    struct load *files = &self->files;
    rp_status status = load_files(files, self->folder, number, number != 0, true, err);
    log_notes(files);
    RP_TRY(status);
    if (!files->whole && !salvage)
        return err_set(err, RP_DATA_LOSS,
                       "its journal is damaged, and what follows the damage, at least %llu inserts, cannot be "
                       "applied (the log says where). Put back the files from a copy, or start with "
                       "checkpoint.load: salvage to go on without what is lost",
                       (unsigned long long)files->lost_inserts);
    self->salvage = salvage;
    return loading_finish(self, number == 0 && files->end != 0 && files->whole, err);
}

rp_status restore(const struct durable_state *state, struct stream *stream, rp_error *err)
{
    uint64_t number;
    bool salvage;
    stream->start.next = folder_next(&stream->folder, DISK_CHECKPOINT);
    if (!what_to_load(state->config, &number, &salvage)) {
        stream->start.flags = START_FRESH;
        return RP_OK;
    }
    int64_t start_ns = clock_now(&state->loop->clock);
    struct loading self;
    loading_init(&self, state, &state->peers->kept_replies);
    self.folder = &stream->folder;
    self.stream = stream;
    bool journal = stream->journal;
    stream_record(stream, false); /* what is restored is on disk already */
    rp_status status = restore_files(&self, number, salvage, err);
    stream_record(stream, journal);
    const struct load *files = &self.files;
    if (status == RP_OK) {
        /* With a checkpoint that was made without a journal and chosen by its number, no journal was applied. */
        stream->start.after = files->end || !number ? files->end : disk_at(1, 0);
        stream->start.loaded = stream->origin = files->checkpoint;
        /* Nothing of a damaged journal could be applied: later starts pass over it, too. */
        if (!files->checkpoint && !files->end)
            stream->start.flags = START_FRESH;
        stream->journal_bytes = files->journal_bytes;
        stream->dropped = self.lost || self.left_out;
        stream->first_own = files->journal_entries ? folder_next(&stream->folder, DISK_SEGMENT) : 0;
        log_restored(&self, start_ns);
    } else if (status == RP_NOT_FOUND && number == 0) {
        status = RP_OK;
    } else {
        err_prefix(err, "the state in '%s' cannot be restored", self.folder->path);
    }
    loading_fini(&self);
    return status;
}

static void remove_lost(struct table *table)
{
    uint32_t before = table->in.size;
    for (uint32_t slot = 0; slot < table->in.high; slot++) {
        const struct span *span = &table->in.items[slot].span;
        bool lost = false;
        for (uint32_t c = 0; c < span->n; c++)
            lost |= chunk_is_lost(span_chunks(span)[c]);
        if (lost)
            table_remove(table, slot);
    }
    if (before != table->in.size)
        log_line(LEVEL_ERROR, "B0532", "items whose data is lost were removed", "table=%s removed=%u left=%u",
                 table->name, before - table->in.size, table->in.size);
}

void restore_finish(const struct tables *tables)
{
    for (uint32_t i = 0; i < tables->n; i++) {
        struct table *table = &tables->list[i];
        if (table->store->spilled_chunks) /* lost ones are among them */
            remove_lost(table);
        uint32_t before = table->in.size;
        /* The journal may end between the last sample of an item and its removal. An item that is sampled once and was not picked
         * has returned from its leases. */
        uint32_t most = (uint32_t)table->config->max_times_sampled;
        for (uint32_t slot = 0; slot < table->in.high; slot++) {
            struct item *item = &table->in.items[slot];
            if (!item->span.n || item_is_hidden(item))
                continue;
            bool picked = most > 1 || item->stamp == PICKED;
            item->stamp = 0;
            if (most && item->times_sampled >= most && picked)
                table_remove(table, slot);
        }
        table_remove_too_much(table);
        if (before != table->in.size)
            log_line(LEVEL_WARN, "B0519", "items were removed to fit the configuration", "table=%s removed=%u left=%u",
                     table->name, before - table->in.size, table->in.size);
    }
}
