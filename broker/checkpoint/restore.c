/* Turns an image into tables, sessions and parameters: chunks are read from segments into the store, each once, in the order of their
 * places; tables are matched by name, compared with the configuration, and filled; sessions become tombstones that their writers
 * can resume; parameters, counters, kept replies and kept samples follow. */
#include "broker/checkpoint/restore.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "broker/checkpoint/pairs.h"
#include "broker/config/config.h"
#include "broker/disk/image.h"
#include "broker/journal/stream.h"
#include "broker/loop/loop.h"
#include "broker/peer/peers.h"
#include "broker/sample/kept_samples.h"
#include "broker/session/credit.h"
#include "broker/session/flow.h"
#include "broker/session/ingest.h"
#include "broker/session/session.h"
#include "broker/store/params.h"
#include "broker/table/table.h"
#include "proto/base/dtype.h"
#include "proto/base/error.h"
#include "proto/base/log.h"
#include "proto/base/need.h"
#include "proto/base/utf8.h"

struct restoring {
    const struct durable_state *state;
    struct stream *stream;
    const struct folder *folder;
    struct image image;
    bool newest;           /* the image is the newest state, with a whole journal */
    struct table **tables; /* by index in the image; NULL: not configured */
    /* Chunks to read: the place, and the address of the number that the chunk's address replaces. */
    struct pair *wanted;
    uint64_t n_wanted, next_wanted;
    uint64_t chunks, bytes, items, left_out, sessions;
};

static struct table *selection_table(const struct restoring *self, const struct image_selection *from)
{
    return from->table < self->image.n_tables ? self->tables[from->table] : NULL;
}

/* True if a restored sample holds its chunks: the same rule as in kept_samples_keep. */
static bool selection_holds(const struct restoring *self, const struct image_selection *from)
{
    const struct table *table = selection_table(self, from);
    return table && from->n && from->items[0].n && (!from->answered || table->one_by_one);
}

static void want(struct restoring *self, uint64_t *place)
{
    self->wanted[self->n_wanted++] = (struct pair){*place, (uint64_t)(uintptr_t)place};
}

static uint64_t count_wanted(const struct restoring *self)
{
    uint64_t n = 0;
    for (uint32_t t = 0; t < self->image.n_tables; t++)
        for (uint32_t i = 0; self->tables[t] && i < self->image.tables[t].high; i++)
            n += self->image.tables[t].items[i].n;
    for (struct image_request *at = self->image.selections.oldest; at; at = at->newer) {
        const struct image_selection *selection = image_selection(at);
        for (uint32_t i = 0; i < selection->n && selection_holds(self, selection); i++)
            n += selection->items[i].n;
    }
    return n;
}

/* Data beyond storage.memory is left on disk. */
static struct chunk *chunk_make(const struct durable_state *state, uint64_t at, const struct chunk_view *view)
{
    struct store *store = state->store;
    const struct entry_chunk *head = view->head;
    if (store->split && head->bytes >= STORE_SPLIT_BYTES &&
        store->split_bytes + head->bytes > (uint64_t)state->config->storage_memory)
        return store_add_absent(store, head->columns, head->bytes, head->raw_bytes, at);
    if (head->bytes < STORE_KEEP_BYTES)
        return store_add(store, head->columns, view->data, head->bytes, head->raw_bytes, NULL);
    /* A message can be sent without a copy. */
    zmq_msg_t message;
    if (zmq_msg_init_size(&message, head->bytes) != 0)
        return NULL;
    memcpy(zmq_msg_data(&message), view->data, head->bytes);
    struct chunk *chunk =
        store_add(store, head->columns, zmq_msg_data(&message), head->bytes, head->raw_bytes, &message);
    zmq_msg_close(&message);
    return chunk;
}

static rp_status chunk_take(void *ctx, uint64_t at, const struct chunk_view *view, rp_error *err)
{
    struct restoring *self = ctx;
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
    chunk->refs = 0;
    for (; self->next_wanted < self->n_wanted && self->wanted[self->next_wanted].key == at; self->next_wanted++) {
        *(uint64_t *)(uintptr_t)self->wanted[self->next_wanted].value = (uint64_t)(uintptr_t)chunk;
        chunk->refs++;
    }
    stream_chunk_known(self->stream, chunk);
    self->chunks++;
    self->bytes += head->bytes;
    return RP_OK;
}

static rp_status read_chunks(struct restoring *self, rp_error *err)
{
    if (self->n_wanted == 0)
        return RP_OK;
    uint64_t *places = malloc(self->n_wanted * sizeof *places);
    if (!places || !pairs_sort(self->wanted, self->n_wanted)) {
        free(places);
        return err_set(err, RP_NO_MEMORY, "no memory for the places of %llu chunks",
                       (unsigned long long)self->n_wanted);
    }
    uint64_t n = 0;
    for (uint64_t i = 0; i < self->n_wanted; i++)
        if (n == 0 || places[n - 1] != self->wanted[i].key)
            places[n++] = self->wanted[i].key;
    rp_status status = chunks_read(self->folder, places, n, chunk_take, self, err);
    free(places);
    if (status == RP_OK && self->next_wanted != self->n_wanted)
        status = err_set(err, RP_DATA_LOSS, "%llu of %llu chunks of the tables are not in the segments",
                         (unsigned long long)(self->n_wanted - self->next_wanted), (unsigned long long)self->n_wanted);
    return status;
}

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
static void metadata_match(struct table *table, const struct image_table *from)
{
    const char *stored = from->info ? from->info->metadata : "", *configured = table->config->metadata;
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

static rp_status match_tables(struct restoring *self, rp_error *err)
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
        metadata_match(table, from);
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

static void want_items(struct restoring *self, uint32_t index)
{
    struct image_table *from = &self->image.tables[index];
    for (uint32_t i = 0; i < from->high; i++) {
        struct image_item *item = &from->items[i];
        uint64_t *places = item->n > 1 ? item->many : &item->one;
        for (uint32_t c = 0; c < item->n; c++)
            want(self, &places[c]);
    }
}

static struct layout *layout_of(struct restoring *self, struct image_layout *from, const struct table *table,
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

static void layout_release(struct restoring *self, struct image_layout *layout)
{
    if (!layout || !layout->user)
        return;
    layouts_release(self->state->layouts, layout->user);
    layout->user = NULL;
}

/* Counts the chunks at these addresses as the table's. False: no memory; nothing has changed. */
static bool span_chunks_enter(struct table *table, const uint64_t *addresses, uint32_t n)
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
static struct chunk *reference_take(uint64_t *address)
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
    if ((n > 1 && !many) || !span_chunks_enter(table, image_chunks(from), n)) {
        free(many);
        return false;
    }
    if (n == 1) {
        out->one = reference_take(&from->one);
        return true;
    }
    out->many = many;
    for (uint32_t i = 0; i < n; i++)
        out->many[i] = reference_take(&from->many[i]);
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
    struct layout *layout = layout_of(self, from->layout, table, err);
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

static void counts_restore(struct table *table, const struct image_table *from)
{
    for (uint32_t slot = 0; slot < table->in.high; slot++)
        if (table->in.items[slot].span.n)
            (void)episodes_enter(&table->in.episodes, span_episode(&table->in.items[slot].span));
    table->stats.total_inserts = from->total_inserts;
    table->stats.total_samples = from->total_samples;
    table->stats.updates = from->updates;
    table->stats.episodes = from->episodes;
    table->stats.unique_samples = from->unique_samples;
    table->stats.rejected = from->rejected;
    table->stats.evicted = from->evicted;
    table->restored = table->stats;
    table->resets = from->resets;
}

static rp_status items_restore(struct restoring *self, uint32_t index, rp_error *err)
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
        counts_restore(table, from);
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

static void restore_flow(struct restoring *self, struct session *session, const struct entry_flow *from)
{
    struct table *table = from->table < self->image.n_tables ? self->tables[from->table] : NULL;
    struct flow *flow = table ? session_flow(session, table) : NULL;
    if (!flow)
        return;
    flow->arrived = flow->resolved = flow->told_resolved = from->resolved;
    flow->rejected = from->rejected;
    flow->allowed = from->allowed > from->resolved ? from->allowed : from->resolved;
    /* After an older state was loaded, a writer may continue with later items; without this they would be refused for
     * ever. */
    flow->jumps = true;
}

static void restore_forms(struct session *session, const struct image_session *from)
{
    for (uint32_t i = 0; i < from->n_forms; i++) {
        const Replay__Layout *form = from->forms[i];
        if (!form)
            continue;
        size_t size = replay__layout__get_packed_size(form);
        uint8_t *packed = need_alloc(size);
        replay__layout__pack(form, packed);
        intake_register(session, form, packed, size);
        free(packed);
    }
}

static void restore_rejections(struct restoring *self, struct session *session, const struct image_session *from)
{
    for (uint32_t i = 0; i < from->n_rejections; i++) {
        const struct image_rejection *at = &from->rejections[i];
        const struct table *table = at->table < self->image.n_tables ? self->tables[at->table] : NULL;
        struct rejection rejection = {table ? table->id : REJECTED_NOWHERE, (rp_status)at->status, at->item, at->key,
                                      at->text};
        credit_keep_rejection(session, &rejection);
    }
}

static rp_status session_revive(struct restoring *self, const struct image_session *from, rp_error *err)
{
    const Replay__Hello *hello = from->hello;
    if (!hello || hello->session.len != WIRE_SESSION_BYTES)
        return err_set(err, RP_DATA_LOSS, "it has no id");
    uint64_t key = hello->oldest_number;
    if (from->ordinal >= KEY_ORDINALS || ordinal_of_key(key) != from->ordinal)
        return err_set(err, RP_DATA_LOSS, "its first key, %llu, is not one of its ordinal", (unsigned long long)key);
    struct columns *columns = columns_new(hello->columns, hello->n_columns, err);
    if (!columns)
        return err && err->status ? (rp_status)err->status : RP_NO_MEMORY;
    struct session_origin origin = {hello->session.data,
                                    hello->name ? hello->name : "",
                                    from->ordinal,
                                    {key, KEY_COUNTERS - (key & (KEY_COUNTERS - 1))}};
    struct session *session = session_restore(self->state->sessions, &origin, columns, err);
    if (!session) {
        columns_release(columns);
        return err && err->status ? (rp_status)err->status : RP_NO_MEMORY;
    }
    struct identities *identities = &self->state->peers->identities;
    struct identity *owner = identity_by_key(identities, hello->owner.len == KEY_BYTES ? hello->owner.data : NULL);
    if (!owner)
        return err_set(err, RP_NO_MEMORY, "no memory for the key that opened it");
    session_set_owner(session, owner);
    session->epoch = from->epoch > 0 ? from->epoch : 1;
    session->received = from->received;
    session->counted = from->counted;
    session->received_bytes = session->returned_bytes = session->told_returned = from->received_bytes;
    session->allowed_bytes = from->allowed_bytes > from->received_bytes ? from->allowed_bytes : from->received_bytes;
    session->confirmed_rejections = from->confirmed_rejections;
    for (uint32_t i = 0; i < from->n_flows; i++)
        restore_flow(self, session, &from->flows[i]);
    restore_rejections(self, session, from);
    restore_forms(session, from);
    self->sessions++;
    return RP_OK;
}

static rp_status sessions_restore(struct restoring *self, rp_error *err)
{
    struct ordinals *ordinals = &self->state->tables->ordinals;
    const struct image *image = &self->image;
    for (uint32_t i = 0; i < image->n_sessions; i++) {
        rp_status status = session_revive(self, image->sessions[i], err);
        if (status != RP_OK) {
            err_prefix(err, "session %u", image->sessions[i]->ordinal);
            return status;
        }
    }
    /* Keys are made from ordinals. Sessions that opened after an older state may still have writers. */
    ordinals->next = image->next_ordinal;
    if (!self->newest)
        ordinals->next += 1 + self->state->instance % (1u << 16);
    return RP_OK;
}

static rp_status params_restore(struct restoring *self, rp_error *err)
{
    struct params *params = self->state->params;
    const struct image *image = &self->image;
    for (uint32_t i = 0; i < image->n_slots; i++) {
        const struct image_slot *slot = &image->slots[i];
        if (!params_restore_slot(params, slot->name, slot->version, slot->put_ns, slot->value, slot->bytes))
            return err_set(err, RP_NO_MEMORY, "no memory for the parameters '%.64s' of %llu bytes", slot->name,
                           (unsigned long long)slot->bytes);
    }
    for (uint32_t i = 0; i < image->n_counters; i++)
        if (!params_restore_counter(params, image->counters[i].name, image->counters[i].value))
            return err_set(err, RP_NO_MEMORY, "no room for the counter '%.64s'", image->counters[i].name);
    for (struct image_request *at = image->replies.oldest; at; at = at->newer) {
        const struct image_reply *reply = image_reply(at);
        kept_replies_add(&self->state->peers->kept_replies, self->state->loop,
                         &(struct kept_reply){at->client, at->id, reply->frame, reply->size});
    }
    return RP_OK;
}

/* ---- samples that may be asked for again ---- */

static bool pick_put(struct restoring *self, const struct table *table, struct picks *picks, bool holds,
                     struct image_item *item, double probability)
{
    uint32_t i = picks->n;
    picks->key[i] = item->key;
    picks->priority[i] = item->priority;
    picks->probability[i] = probability;
    picks->times_sampled[i] = item->times_sampled;
    picks->age_ns[i] = picks->policy[i] = picks->step[i] = 0;
    picks->session[i] = picks->layout[i] = picks->offset[i] = picks->length[i] = picks->chunks[i] = 0;
    if (holds) {
        rp_error err = {0};
        struct layout *layout = item->n ? layout_of(self, item->layout, table, &err) : NULL;
        if (!layout || !picks_reserve_refs(picks, item->n))
            return false;
        uint64_t *places = item->n > 1 ? item->many : &item->one;
        const struct chunk *first = (const struct chunk *)(uintptr_t)places[0];
        picks->age_ns[i] = (uint64_t)item->insert_ns;
        picks->policy[i] = item->policy;
        picks->step[i] = first->step + item->offset;
        picks->session[i] = first->session;
        picks->layout[i] = layout->id;
        picks->offset[i] = item->offset;
        picks->length[i] = item->length;
        picks->chunks[i] = item->n;
        for (uint32_t c = 0; c < item->n; c++) {
            picks->refs[picks->n_refs++] = (struct chunk *)(uintptr_t)places[c];
            places[c] = 0;
        }
        layout->refs++;
    }
    picks->n++;
    return true;
}

static void selection_restore(struct restoring *self, const struct image_selection *from)
{
    struct table *table = selection_table(self, from);
    if (!table || !from->n)
        return;
    struct kept_image kept = {
        .info = {from->request.client, from->request.id, table, from->want, from->flags, from->answered,
                 selection_holds(self, from)},
        .picks = {.table_size = from->table_size},
    };
    bool ok = picks_reserve(&kept.picks, from->n);
    for (uint32_t i = 0; i < from->n && ok; i++)
        ok = pick_put(self, table, &kept.picks, kept.info.holds, &from->items[i], from->probability[i]);
    if (ok)
        kept_samples_restore(self->state->samples, &kept);
    if (ok)
        return;
    log_line(LEVEL_WARN, "B0518", "a sample that may be asked for again could not be restored", "table=%s items=%u",
             table->name, from->n);
    if (!kept.info.holds)
        kept.picks.n = 0;
    picks_clear(&kept.picks, self->state->samples);
    picks_fini(&kept.picks);
}

static void selections_restore(struct restoring *self)
{
    for (struct image_request *at = self->image.selections.oldest; at; at = at->newer)
        selection_restore(self, image_selection(at));
}

/* Reads checkpoint.load: *number is the checkpoint, 0 the newest; *salvage: a journal that is not whole is loaded, too.
 * False: start from nothing, or *status is an error. */
static bool what_to_load(const struct broker_config *config, uint64_t *number, bool *salvage, rp_status *status,
                         rp_error *err)
{
    const char *load = config->checkpoint_load && config->checkpoint_load[0] ? config->checkpoint_load : "newest";
    *number = 0;
    *status = RP_OK;
    if (strcmp(load, "none") == 0)
        return false;
    *salvage = strcmp(load, "salvage") == 0;
    if (*salvage || strcmp(load, "newest") == 0)
        return true;
    char *end;
    errno = 0;
    *number = strtoull(load, &end, 10);
    if (errno || *end || *number == 0 || load[0] < '0' || load[0] > '9') {
        *status = err_set(err, RP_INVALID_ARGUMENT,
                          "checkpoint.load is '%.64s': it must be newest, salvage, none, or the number of a checkpoint",
                          load);
        return false;
    }
    return true;
}

static void log_notes(const struct image *image)
{
    char quoted[640];
    for (uint32_t i = 0; i < image->n_notes; i++) {
        const struct image_note *note = &image->notes[i];
        log_line(note->damage ? LEVEL_ERROR : LEVEL_INFO, note->damage ? "B0512" : "B0511",
                 note->damage ? "damage was found in the files" : "reading the files", "text=%s",
                 log_quote(quoted, sizeof quoted, note->text));
    }
}

static rp_status want_chunks(struct restoring *self, rp_error *err)
{
    uint64_t n = count_wanted(self);
    self->wanted = calloc(n + 1, sizeof *self->wanted);
    if (!self->wanted)
        return err_set(err, RP_NO_MEMORY, "no memory for the places of %llu chunks", (unsigned long long)n);
    for (uint32_t i = 0; i < self->image.n_tables; i++)
        if (self->tables[i])
            want_items(self, i);
    for (struct image_request *at = self->image.selections.oldest; at; at = at->newer) {
        struct image_selection *selection = image_selection(at);
        for (uint32_t i = 0; i < selection->n && selection_holds(self, selection); i++) {
            struct image_item *item = &selection->items[i];
            uint64_t *places = item->n > 1 ? item->many : &item->one;
            for (uint32_t c = 0; c < item->n; c++)
                want(self, &places[c]);
        }
    }
    return RP_OK;
}

static rp_status restore_all(struct restoring *self, rp_error *err)
{
    RP_TRY(match_tables(self, err));
    RP_TRY(want_chunks(self, err));
    RP_TRY(read_chunks(self, err));
    for (uint32_t i = 0; i < self->image.n_tables; i++)
        if (self->tables[i])
            RP_TRY(items_restore(self, i, err));
    RP_TRY(sessions_restore(self, err));
    selections_restore(self);
    return params_restore(self, err);
}

/* Releases chunks that nothing took over: those of samples that were not restored, or all of them after an error. */
static void restoring_fini(struct restoring *self)
{
    for (uint64_t i = 0; i < self->next_wanted; i++) {
        const uint64_t *address = (const uint64_t *)(uintptr_t)self->wanted[i].value;
        if (address && *address)
            store_release(self->state->store, (struct chunk *)(uintptr_t)*address);
    }
    /* Each interned layout has a reference of the restore's. */
    for (uint32_t t = 0; t < self->image.n_tables; t++)
        for (uint32_t i = 0; i < self->image.tables[t].high; i++)
            layout_release(self, self->image.tables[t].items[i].layout);
    for (struct image_request *at = self->image.selections.oldest; at; at = at->newer)
        for (uint32_t i = 0; i < image_selection(at)->n; i++)
            layout_release(self, image_selection(at)->items[i].layout);
    free(self->wanted);
    free(self->tables);
    image_fini(&self->image);
}

static void log_restored(const struct restoring *self, int64_t start_ns)
{
    int64_t took = clock_now(&self->state->loop->clock) - start_ns;
    log_line(LEVEL_INFO, "B0510", "restored",
             "checkpoint=%llu items=%llu chunks=%llu bytes=%llu sessions=%llu journal_entries=%llu "
             "items_left_out=%llu took_ms=%.1f",
             (unsigned long long)self->image.checkpoint, (unsigned long long)self->items,
             (unsigned long long)self->chunks, (unsigned long long)self->bytes, (unsigned long long)self->sessions,
             (unsigned long long)self->image.journal_entries, (unsigned long long)self->left_out,
             (double)took / (double)NS_PER_MS);
}

rp_status restore(const struct durable_state *state, struct stream *stream, rp_error *err)
{
    uint64_t number;
    rp_status status;
    bool salvage = false;
    stream->start.next = folder_next(&stream->folder, DISK_CHECKPOINT);
    if (!what_to_load(state->config, &number, &salvage, &status, err)) {
        stream->start.flags = START_FRESH;
        return status;
    }
    int64_t start_ns = clock_now(&state->loop->clock);
    struct restoring self = {.state = state, .stream = stream, .folder = &stream->folder};
    image_init(&self.image);
    status = image_load(&self.image, self.folder, number, number != 0, true, err);
    log_notes(&self.image);
    if (status == RP_NOT_FOUND && number == 0) {
        image_fini(&self.image);
        return RP_OK;
    }
    if (status == RP_OK && !self.image.whole && !salvage)
        status = err_set(err, RP_DATA_LOSS,
                         "its journal is damaged, and what follows the damage, at least %llu inserts, cannot be "
                         "applied (the log says where). Put back the files from a copy, or start with "
                         "checkpoint.load: salvage to go on without what is lost",
                         (unsigned long long)self.image.lost_inserts);
    self.newest = number == 0 && self.image.end != 0 && self.image.whole;
    if (status == RP_OK)
        image_rebase(&self.image, state->loop->now_ns + state->loop->wall_offset_ns, state->loop->now_ns);
    bool journal = stream->journal;
    stream_record(stream, false); /* what is restored is on disk already */
    if (status == RP_OK) {
        self.tables = need_alloc((self.image.n_tables + 1) * sizeof(*self.tables));
        status = restore_all(&self, err);
    }
    stream_record(stream, journal);
    if (status == RP_OK) {
        /* With a checkpoint that was made without a journal and chosen by its number, no journal was applied. */
        stream->start.after = self.image.end || !number ? self.image.end : disk_at(1, 0);
        stream->start.loaded = stream->origin = self.image.checkpoint;
        /* Nothing of a damaged journal could be applied: later starts pass over it, too. */
        if (!self.image.checkpoint && !self.image.end)
            stream->start.flags = START_FRESH;
        stream->journal_bytes = self.image.journal_bytes;
        stream->first_own = self.image.journal_entries ? folder_next(&stream->folder, DISK_SEGMENT) : 0;
        log_restored(&self, start_ns);
    } else {
        err_prefix(err, "the state in '%s' cannot be restored", self.folder->path);
    }
    restoring_fini(&self);
    return status;
}

void restore_finish(const struct tables *tables)
{
    for (uint32_t i = 0; i < tables->n; i++) {
        struct table *table = &tables->list[i];
        uint32_t before = table->in.size;
        /* The journal may end between the last sample of an item and its removal. */
        uint32_t most = (uint32_t)table->config->max_times_sampled;
        for (uint32_t slot = 0; most && slot < table->in.high; slot++)
            if (table->in.items[slot].span.n && table->in.items[slot].times_sampled >= most)
                table_remove(table, slot);
        table_remove_too_much(table);
        if (before != table->in.size)
            log_line(LEVEL_WARN, "B0519", "items were removed to fit the configuration", "table=%s removed=%u left=%u",
                     table->name, before - table->in.size, table->in.size);
    }
}
