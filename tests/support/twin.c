#include "tests/support/twin.h"

#include "broker/checkpoint/checkpoint.h"
#include "broker/journal/stream.h"
#include "broker/session/session.h"
#include "tests/support/testpeer.h"

void twin_folder_init(struct twin_folder *self)
{
    snprintf(self->path, sizeof self->path, "/tmp/replay-twin-XXXXXX");
    assert_non_null(mkdtemp(self->path));
}

static void run(const char *format, ...) RP_PRINTF(1, 2);
static void run(const char *format, ...)
{
    char command[512];
    va_list args;
    va_start(args, format);
    vsnprintf(command, sizeof command, format, args);
    va_end(args);
    assert_int_equal(system(command), 0);
}

void twin_folder_fill(const struct twin_folder *self, const struct twin_folder *from)
{
    /* Files may vanish while they are copied: a checkpoint makes older files superfluous. */
    for (uint32_t tries = 0;; tries++) {
        char command[256];
        snprintf(command, sizeof command, "cp -r %s/. %s/ 2>/dev/null", from->path, self->path);
        if (system(command) == 0)
            return;
        assert_true(tries < 20);
        run("rm -r %s && mkdir %s", self->path, self->path);
    }
}

void twin_folder_copy(struct twin_folder *self, const struct twin_folder *from)
{
    twin_folder_init(self);
    twin_folder_fill(self, from);
}

void twin_folder_fini(struct twin_folder *self)
{
    run("rm -r %s", self->path);
}

const char *twin_config(const struct twin_folder *self, const char *more)
{
    static char text[512];
    snprintf(text, sizeof text, "folder: %s\njournal: never\n%s", self->path, more ? more : "");
    return text;
}

void twin_kill(struct embed *embed)
{
    while (embed->peers)
        testpeer_close(embed->peers);
    broker_destroy(&embed->broker);
    zmq_ctx_term(embed->context);
    schema_free(&broker_schema, &embed->config);
}

void twin_checkpoint(struct embed *embed)
{
    struct checkpoints *checkpoints = embed->broker->checkpoints;
    uint64_t number;
    ok(checkpoint_start(checkpoints, CHECKPOINT_ASKED, &number, &err));
    for (uint32_t ms = 0; ms < 10000 && checkpoints->last.number != number; ms++)
        broker_turn(embed->broker, 1);
    assert_int_equal(checkpoints->last.number, number);
    embed_settle(embed);
}

/* ---- the files ---- */

void twin_load(struct twin_files *self, const struct embed *embed, const struct twin_folder *from, uint64_t number)
{
    *self = (struct twin_files){.config = embed->config, .context = zmq_ctx_new()};
    self->config.folder = NULL;
    self->broker = broker_new(&self->config, embed->broker->loop.clock, self->context, &err);
    if (!self->broker || folder_open(&self->folder, from->path, false, &err) != RP_OK)
        fail_msg("%s", err.text);
    struct broker *broker = self->broker;
    broker->loop.wall_offset_ns = embed->broker->loop.wall_offset_ns; /* so that times are the same */
    self->state = (struct durable_state){.config = &self->config,
                                         .loop = &broker->loop,
                                         .store = &broker->store,
                                         .layouts = &broker->layouts,
                                         .tables = &broker->tables,
                                         .peers = &broker->peers,
                                         .samples = &broker->samples,
                                         .sessions = &broker->sessions,
                                         .params = &broker->params};
    loading_init(&self->loading, &self->state, &broker->peers.kept_replies);
    ok(load_files(&self->loading.files, &self->folder, number, number != 0, false, &err));
    for (uint32_t i = 0; i < self->loading.files.n_notes; i++)
        if (self->loading.files.notes[i].damage)
            fail_msg("%s", self->loading.files.notes[i].text);
}

void twin_unload(struct twin_files *self)
{
    loading_fini(&self->loading);
    folder_close(&self->folder);
    broker_destroy(&self->broker);
    zmq_ctx_term(self->context);
}

/* The clock goes on from the beginning for a restored lease, so only who has the item is compared. */
static void check_leases(const struct embed *old, const struct embed *new, const struct table *a, const struct table *b)
{
    assert_int_equal(a->in.leased, b->in.leased);
    for (uint32_t slot = 0; slot < a->in.high; slot++) {
        const struct item *item = &a->in.items[slot];
        if (!item->span.n || !item_is_hidden(item) || !item_lease(item))
            continue;
        const struct lease *lease = lease_numbered(&old->broker->samples.leases, item_lease(item));
        const struct lease *other = lease_numbered(&new->broker->samples.leases, item_lease(&b->in.items[slot]));
        assert_non_null(other);
        assert_int_equal(lease->client, other->client);
        assert_int_equal(lease->id, other->id);
        assert_ptr_equal(other->table, b);
    }
}

static void check_limiter(const struct limiter *a, const struct entry_limiter *b)
{
    assert_int_equal(a->kind, b->kind);
    assert_true(a->samples_per_insert == b->samples_per_insert && a->min_size == b->min_size);
    assert_true(a->min_diff == b->min_diff && a->max_diff == b->max_diff);
    assert_true(a->offset == b->offset);
    assert_int_equal(a->inserts, b->inserts);
    assert_int_equal(a->samples, b->samples);
    assert_int_equal(a->deletes, b->deletes);
}

static void check_numbers(const struct item *a, const struct item *b)
{
    assert_int_equal(a->key, b->key);
    assert_true(a->priority == b->priority);
    assert_int_equal(a->policy, b->policy);
    assert_int_equal(a->times_sampled, b->times_sampled);
    assert_int_equal(item_is_hidden(a), item_is_hidden(b));
    assert_int_equal(a->span.n, b->span.n);
    assert_int_equal(a->span.offset, b->span.offset);
    assert_int_equal(a->span.length, b->span.length);
}

/* A chunk that was moved is in two places: compare the data. */
static rp_status check_data(void *ctx, uint64_t at, const struct chunk_view *view, rp_error *error)
{
    (void)at;
    (void)error;
    struct chunk *chunk = ctx;
    assert_int_equal(chunk->step, view->head->step);
    assert_int_equal(chunk->length, view->head->length);
    assert_int_equal(chunk->bytes, view->head->bytes);
    assert_memory_equal(chunk_data(chunk), view->data, chunk->bytes);
    return RP_OK;
}

static void check_places(const struct folder *folder, const struct item *a, const struct item *b)
{
    struct chunk *const *chunks = span_chunks(&a->span);
    for (uint32_t i = 0; i < b->span.n; i++) {
        const uint64_t *at = &offline_places(b)[i];
        if (chunks[i]->at != *at)
            ok(chunks_read(folder, at, 1, check_data, chunks[i], &err));
    }
}

static void check_loaded_table(const struct folder *folder, const struct table *a, const struct loaded_table *from)
{
    const struct table *b = from->table;
    assert_string_equal(a->name, b->name);
    assert_int_equal(a->in.size, b->in.size);
    check_limiter(&a->limiter, &from->limiter);
    assert_int_equal(a->stats.total_inserts, b->stats.total_inserts);
    assert_int_equal(a->stats.total_samples, b->stats.total_samples);
    assert_int_equal(a->stats.episodes, b->stats.episodes);
    assert_int_equal(a->stats.unique_samples, b->stats.unique_samples);
    assert_int_equal(a->resets, b->resets);
    for (uint32_t slot = 0; slot < a->in.high || slot < b->in.high; slot++) {
        bool in_a = slot < a->in.high && a->in.items[slot].span.n, in_b = slot < b->in.high && b->in.items[slot].span.n;
        assert_int_equal(in_a, in_b);
        if (!in_a)
            continue;
        check_numbers(&a->in.items[slot], &b->in.items[slot]);
        assert_int_equal(a->in.items[slot].insert_ns, b->in.items[slot].insert_ns);
        check_places(folder, &a->in.items[slot], &b->in.items[slot]);
    }
}

static const struct session *same_session(const struct broker *in, const struct session *session)
{
    const struct session *found = session_find((struct sessions *)(uintptr_t)&in->sessions, session->id);
    if (!found)
        fail_msg("session %u is not in the files", session->ordinal);
    return found;
}

/* Inserts and rejections alone determine what is resolved. */
static void check_resolved(struct embed *embed, const struct twin_folder *folder)
{
    struct twin_files files;
    embed_settle(embed);
    twin_load(&files, embed, folder, 0);
    for (const struct session *session = embed->broker->sessions.list; session; session = session->next) {
        const struct session *found = same_session(files.broker, session);
        for (uint32_t i = 0; i < session->n_tables; i++) {
            assert_int_equal(session->flows[i].resolved, found->flows[i].resolved);
            assert_int_equal(session->flows[i].rejected, found->flows[i].rejected);
        }
    }
    twin_unload(&files);
}

/* ---- another broker ---- */

static void check_item(const struct embed *old, const struct embed *new, const struct item *a, const struct item *b)
{
    check_numbers(a, b);
    size_t size_a, size_b;
    const uint8_t *layout_a = layout_message(layouts_at(&old->broker->layouts, a->span.layout), &size_a);
    const uint8_t *layout_b = layout_message(layouts_at(&new->broker->layouts, b->span.layout), &size_b);
    assert_int_equal(size_a, size_b);
    assert_memory_equal(layout_a + 5, layout_b + 5, size_a - 5); /* all but the id */
    for (uint32_t i = 0; i < a->span.n; i++) {
        struct chunk *x = span_chunks(&a->span)[i], *y = span_chunks(&b->span)[i];
        assert_int_equal(x->step, y->step);
        assert_int_equal(x->length, y->length);
        assert_int_equal(x->session, y->session);
        assert_int_equal(x->episode, y->episode);
        assert_int_equal(x->absent, y->absent);
        assert_int_equal(x->columns, y->columns);
        assert_int_equal(x->bytes, y->bytes);
        assert_int_equal(chunk_raw_bytes(x), chunk_raw_bytes(y));
        assert_memory_equal(chunk_block_sizes(x), chunk_block_sizes(y), x->columns * sizeof(uint32_t));
        assert_memory_equal(chunk_block_codecs(x), chunk_block_codecs(y), x->columns);
        assert_memory_equal(chunk_data(x), chunk_data(y), x->bytes);
    }
}

/* Slots by time of insertion. */
static int by_time(const void *a, const void *b)
{
    const struct item *x = *(struct item *const *)a, *y = *(struct item *const *)b;
    return x->insert_ns < y->insert_ns ? -1 : x->insert_ns > y->insert_ns;
}

static struct item **in_order(const struct table *table)
{
    struct item **items = calloc(table->in.size + 1, sizeof(*items));
    uint32_t n = 0;
    for (uint32_t slot = 0; slot < table->in.high; slot++)
        if (table->in.items[slot].span.n)
            items[n++] = &table->in.items[slot];
    assert_int_equal(n, table->in.size);
    qsort(items, n, sizeof(*items), by_time);
    return items;
}

/* A restart restores the settings of the configuration; the cursor keeps its value. */
static void check_restored_limiter(const struct limiter *a, const struct limiter *b)
{
    assert_int_equal(a->inserts, b->inserts);
    assert_int_equal(a->samples, b->samples);
    assert_int_equal(a->deletes, b->deletes);
    double off = limiter_cursor(a) - limiter_cursor(b);
    assert_true(off < 1e-6 && off > -1e-6);
    if (a->samples_per_insert == b->samples_per_insert)
        assert_true(a->offset == b->offset);
}

static void check_table(const struct embed *old, const struct embed *new, const struct table *a, const struct table *b)
{
    assert_string_equal(a->name, b->name);
    assert_int_equal(a->in.size, b->in.size);
    /* A chunk that was being moved may have been loaded from either place. */
    assert_true(a->bytes <= b->bytes);
    check_restored_limiter(&a->limiter, &b->limiter);
    assert_int_equal(a->version, b->version);
    assert_int_equal(a->max_lag, b->max_lag);
    if (a->max_lag >= 0)
        assert_int_equal(a->in.unseen, b->in.unseen);
    assert_int_equal(a->stats.total_inserts, b->stats.total_inserts);
    assert_int_equal(a->stats.total_samples, b->stats.total_samples);
    assert_int_equal(a->stats.episodes, b->stats.episodes);
    assert_int_equal(a->stats.unique_samples, b->stats.unique_samples);
    assert_int_equal(table_deleted_episodes(a), table_deleted_episodes(b));
    assert_int_equal(a->resets, b->resets);
    assert_int_equal(a->in.hidden, b->in.hidden);
    assert_int_equal(a->in.groups.n_open, b->in.groups.n_open);
    assert_int_equal(a->in.groups.hidden, b->in.groups.hidden);
    struct item **x = in_order(a), **y = in_order(b);
    for (uint32_t i = 0; i < a->in.size; i++) {
        assert_int_equal(x[i] - a->in.items, y[i] - b->in.items); /* the same slots, in the same order */
        check_item(old, new, x[i], y[i]);
        assert_int_equal(table_find(b, x[i]->key), x[i] - a->in.items);
        if (i > 0)
            assert_true(y[i]->insert_ns > y[i - 1]->insert_ns);
        ptrdiff_t slot = x[i] - a->in.items;
        if (a->in.groups.slots) {
            assert_int_equal(a->in.groups.slots[slot].group, b->in.groups.slots[slot].group);
            assert_int_equal(a->in.groups.slots[slot].leader, b->in.groups.slots[slot].leader);
            assert_int_equal(a->in.groups.slots[slot].next, b->in.groups.slots[slot].next);
        }
    }
    free(x);
    free(y);
    check_leases(old, new, a, b);
}

static void check_session(const struct session *a, const struct session *b)
{
    assert_int_equal(a->ordinal, b->ordinal);
    assert_string_equal(a->name, b->name);
    assert_true(columns_equal(a->columns, b->columns));
    assert_int_equal(a->epoch, b->epoch);
    assert_int_equal(a->received, b->received);
    assert_int_equal(a->counted, b->counted);
    assert_int_equal(a->received_bytes, b->received_bytes);
    assert_int_equal(b->returned_bytes, b->received_bytes);
    assert_int_equal(a->allowed_bytes, b->allowed_bytes);
    assert_true(b->tombstone);
    assert_int_equal(a->confirmed_rejections, b->confirmed_rejections);
    assert_int_equal(a->rejection_count, b->rejection_count);
    for (uint32_t i = 0; i < a->rejection_count; i++) {
        const struct rejection *x = &a->rejections[(a->rejection_head + i) % a->rejection_capacity];
        const struct rejection *y = &b->rejections[(b->rejection_head + i) % b->rejection_capacity];
        assert_int_equal(x->table, y->table);
        assert_int_equal(x->item, y->item);
        assert_int_equal(x->key, y->key);
        assert_int_equal(x->status, y->status);
        assert_string_equal(x->text, y->text);
    }
    assert_int_equal(a->n_layouts, b->n_layouts);
    for (uint32_t i = 0; i < a->n_layouts; i++)
        assert_int_equal(a->layouts[i].layout != NULL, b->layouts[i].layout != NULL);
    for (uint32_t i = 0; i < a->n_tables; i++) {
        assert_int_equal(a->flows[i].resolved, b->flows[i].resolved);
        assert_int_equal(b->flows[i].arrived, b->flows[i].resolved);
        assert_int_equal(a->flows[i].rejected, b->flows[i].rejected);
        assert_int_equal(a->flows[i].allowed, b->flows[i].allowed);
    }
}

static void check_params(const struct params *a, const struct params *b)
{
    assert_int_equal(a->n_slots, b->n_slots);
    assert_int_equal(a->bytes, b->bytes);
    for (uint32_t i = 0; i < a->n_slots; i++) {
        struct param_slot *slot = params_find(b, a->slots[i].name);
        assert_non_null(slot);
        assert_int_equal(slot->version, a->slots[i].version);
        assert_int_equal(zmq_msg_size(&slot->value->parts[0]), zmq_msg_size(&a->slots[i].value->parts[0]));
        assert_memory_equal(zmq_msg_data(&slot->value->parts[0]), zmq_msg_data(&a->slots[i].value->parts[0]),
                            zmq_msg_size(&slot->value->parts[0]));
    }
    assert_int_equal(a->n_counters, b->n_counters);
    for (uint32_t i = 0; i < a->n_counters; i++)
        assert_int_equal(a->counters[i].value, b->counters[i].value);
}

/* Sessions, ordinals and parameters. */
static void check_rest(const struct broker *a, const struct broker *b, uint64_t next_ordinal)
{
    assert_int_equal(a->sessions.by_id.count, b->sessions.by_id.count);
    for (const struct session *session = a->sessions.list; session; session = session->next)
        check_session(session, same_session(b, session));
    assert_int_equal(a->tables.ordinals.next, next_ordinal);
    check_params(&a->params, &b->params);
}

void twin_check_files(struct embed *embed, const struct twin_folder *folder)
{
    struct broker *broker = embed->broker;
    check_resolved(embed, folder);
    for (struct session *session = broker->sessions.list; session; session = session->next)
        EFFECT(&broker->loop, progress, session);
    embed_settle(embed);
    struct twin_files files;
    twin_load(&files, embed, folder, 0);
    assert_true(files.loading.files.whole);
    assert_int_equal(files.loading.n_tables, broker->tables.n);
    for (uint32_t i = 0; i < broker->tables.n; i++)
        check_loaded_table(&broker->stream->folder, &broker->tables.list[i], &files.loading.tables[i]);
    check_rest(broker, files.broker, files.loading.next_ordinal);
    for (uint32_t i = 0; i < broker->params.n_slots; i++)
        assert_int_equal(broker->params.slots[i].put_ns,
                         params_find(&files.broker->params, broker->params.slots[i].name)->put_ns);
    twin_unload(&files);
}

void twin_check(struct embed *old, struct embed *new)
{
    struct broker *a = old->broker, *b = new->broker;
    assert_int_equal(a->tables.n, b->tables.n);
    for (uint32_t i = 0; i < a->tables.n; i++)
        check_table(old, new, &a->tables.list[i], &b->tables.list[i]);
    check_rest(a, b, b->tables.ordinals.next);
}

void twin_drain(struct embed *old, struct embed *new, const char *name, bool remover)
{
    struct table *tables[2] = {embed_table(old, name), embed_table(new, name)};
    assert_int_equal(tables[0]->in.size, tables[1]->in.size);
    while (table_visible(tables[0])) {
        uint64_t keys[2];
        for (uint32_t i = 0; i < 2; i++) {
            struct table *table = tables[i];
            const rp_selector_ops *ops = remover ? table->remover_ops : table->sampler_ops;
            uint32_t slot;
            double probability;
            assert_int_equal(ops->pick(remover ? table->in.remover : table->in.sampler, 1, &slot, &probability), 1);
            keys[i] = table->in.items[slot].key;
            table_remove(table, slot);
        }
        assert_int_equal(keys[0], keys[1]);
    }
    assert_int_equal(table_visible(tables[1]), 0);
}
