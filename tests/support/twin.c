#include "tests/support/twin.h"

#include "broker/checkpoint/checkpoint.h"
#include "broker/session/session.h"
#include "proto/base/siphash.h"
#include "tests/support/testpeer.h"

void twin_folder_init(struct twin_folder *self)
{
    snprintf(self->path, sizeof self->path, "/tmp/replay-twin-XXXXXX");
    assert_non_null(mkdtemp(self->path));
}

void twin_folder_fill(const struct twin_folder *self, const struct twin_folder *from)
{
    /* Files may vanish while they are copied: a checkpoint makes older files superfluous. */
    const char *to = self->path;
    wait_until(system(textf("cp -r %s/. %s/ 2>/dev/null || { rm -rf %s/*; false; }", from->path, to, to)) == 0);
}

void twin_folder_copy(struct twin_folder *self, const struct twin_folder *from)
{
    twin_folder_init(self);
    twin_folder_fill(self, from);
}

void twin_folder_fini(struct twin_folder *self)
{
    assert_int_equal(system(textf("rm -r %s", self->path)), 0);
}

const char *twin_config(const struct twin_folder *self, const char *more)
{
    return textf("folder: %s\njournal: never\n%s", self->path, more ? more : "");
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

/* ---- descriptions: states that must be equal have the same text ---- */

static FILE *description;

static void say_numbers(const char *what, const uint64_t *numbers, size_t n)
{
    fputs(what, description);
    for (size_t i = 0; i < n; i++)
        fprintf(description, " %llu", (unsigned long long)numbers[i]);
    fputs("\n", description);
}
#define SAY(what, ...)                                                                                                 \
    say_numbers(what, (uint64_t[]){__VA_ARGS__}, sizeof((uint64_t[]){__VA_ARGS__}) / sizeof(uint64_t))

/* Stands for data, and for a number that is not whole. */
static uint64_t sum_of(const void *data, size_t size)
{
    static const uint8_t key[16] = {0};
    return siphash(key, data, size);
}
#define BITS(number) sum_of(&(double){number}, sizeof(double))

/* Fails with the first lines that differ; takes the texts. */
static void check_same(char *a, char *b)
{
    const char *x = a, *y = b;
    for (size_t n = strcspn(x, "\n"); x[n] && strncmp(x, y, n + 1) == 0; n = strcspn(x, "\n")) {
        x += n + 1;
        y += n + 1;
    }
    if (*x || *y)
        fail_msg("%.*s\n     became\n%.*s", (int)strcspn(x, "\n"), x, (int)strcspn(y, "\n"), y);
    free(a);
    free(b);
}
#define SAME(say_one, say_other)                                                                                       \
    do {                                                                                                               \
        char *one, *other;                                                                                             \
        size_t size;                                                                                                   \
        description = open_memstream(&one, &size);                                                                     \
        say_one;                                                                                                       \
        fclose(description);                                                                                           \
        description = open_memstream(&other, &size);                                                                   \
        say_other;                                                                                                     \
        fclose(description);                                                                                           \
        check_same(one, other);                                                                                        \
    } while (0)

static void say_counts(const struct table *table)
{
    uint32_t slots = 0;
    for (uint32_t slot = 0; slot < table->in.high; slot++)
        slots += table->in.items[slot].span.n > 0;
    assert_int_equal(slots, table->in.size);
    SAY(table->name, table->in.size, table->stats.total_inserts, table->stats.total_samples, table->stats.episodes,
        table->stats.unique_samples, table->resets);
}

static void say_item(const struct broker *broker, const struct item *item)
{
    size_t size;
    const uint8_t *layout = layout_message(layouts_at(&broker->layouts, item->span.layout), &size);
    SAY("item", item->key, BITS(item->priority), item->policy, item->times_sampled, item_is_hidden(item), item->span.n,
        item->span.offset, item->span.length, sum_of(layout + 5, size - 5)); /* of the layout all but the id */
}

/* Of struct limiter, and of what the files have. */
#define SAY_LIMITER(limiter)                                                                                           \
    SAY("limiter", (limiter)->kind, BITS((limiter)->samples_per_insert), BITS((limiter)->min_size),                    \
        BITS((limiter)->min_diff), BITS((limiter)->max_diff), BITS((limiter)->offset), (limiter)->inserts,             \
        (limiter)->samples, (limiter)->deletes)

static void say_slots(const struct broker *broker, const struct table *table)
{
    say_counts(table);
    for (uint32_t slot = 0; slot < table->in.high; slot++)
        if (table->in.items[slot].span.n) {
            SAY("slot", slot, (uint64_t)table->in.items[slot].insert_ns);
            say_item(broker, &table->in.items[slot]);
        }
}

static void say_chunk(struct chunk *chunk)
{
    SAY("chunk", chunk->step, chunk->length, chunk->session, chunk->episode, chunk->absent, chunk->columns,
        chunk->bytes, chunk_raw_bytes(chunk), sum_of(chunk_block_sizes(chunk), chunk->columns * sizeof(uint32_t)),
        sum_of(chunk_block_codecs(chunk), chunk->columns), sum_of(chunk_data(chunk), chunk->bytes));
}

/* Items in the order of insertion, whose times differ, with all that belongs to them. The clock goes on from the
 * beginning for a restored lease, so only who has the item is told. */
static void say_table(const struct broker *broker, const struct table *table)
{
    say_counts(table);
    SAY("table", table->limiter.inserts, table->limiter.samples, table->limiter.deletes, table->version,
        (uint64_t)table->max_lag, table->max_lag >= 0 ? table->in.unseen : 0, table_deleted_episodes(table),
        table->in.hidden, table->in.leased, table->in.groups.n_open, table->in.groups.hidden);
    if (table->max_lag >= 0)
        SAY("window", table->in.window.version, table->in.window.lag);
    struct pair *order = loading_by_age(table);
    for (uint32_t i = 0; i < table->in.size; i++) {
        uint64_t slot = order[i].value;
        const struct item *item = &table->in.items[slot];
        assert_true(i == 0 || order[i].key > order[i - 1].key);
        SAY("slot", slot, table_find(table, item->key));
        say_item(broker, item);
        for (uint32_t k = 0; k < item->span.n; k++)
            say_chunk(span_chunks(&item->span)[k]);
        if (table->in.groups.slots)
            SAY("group", table->in.groups.slots[slot].group, table->in.groups.slots[slot].leader,
                table->in.groups.slots[slot].next);
        if (!item_is_hidden(item) || !item_lease(item))
            continue;
        const struct lease *lease = lease_numbered(&broker->samples.leases, item_lease(item));
        assert_non_null(lease);
        assert_ptr_equal(lease->table, table);
        SAY("lease", lease->client, lease->id);
    }
    free(order);
}

static void say_session(const struct session *session)
{
    SAY(session->name, session->ordinal, session->epoch, session->received, session->counted, session->received_bytes,
        session->allowed_bytes, session->confirmed_rejections, session->rejection_count, session->n_layouts);
    for (uint32_t i = 0; i < session->rejection_count; i++) {
        const struct rejection *at = &session->rejections[(session->rejection_head + i) % session->rejection_capacity];
        SAY(at->text, at->table, at->item, at->key, (uint64_t)at->status);
    }
    for (uint32_t i = 0; i < session->n_layouts; i++)
        SAY("layout", session->layouts[i].layout != NULL);
    for (uint32_t i = 0; i < session->n_tables; i++)
        SAY("flow", session->flows[i].resolved, session->flows[i].rejected, session->flows[i].allowed);
}

/* In the order of the slots of `names`. */
static void say_params(const struct params *params, const struct params *names)
{
    SAY("params", params->n_slots, params->bytes, params->n_counters);
    for (uint32_t i = 0; i < names->n_slots; i++) {
        const struct param_slot *slot = params_find(params, names->slots[i].name);
        assert_non_null(slot);
        zmq_msg_t *value = &slot->value->parts[0];
        SAY(slot->name, slot->version, sum_of(zmq_msg_data(value), zmq_msg_size(value)));
    }
    for (uint32_t i = 0; i < params->n_counters; i++)
        SAY("counter", (uint64_t)params->counters[i].value);
}

static void say_kept(const struct kept_image *kept, bool holds)
{
    const struct picks *picks = &kept->picks;
    SAY("kept", kept->info.answered, kept->info.want, kept->info.flags, picks->n, picks->table_size,
        sum_of(picks->key, picks->n * sizeof *picks->key),
        sum_of(picks->probability, picks->n * sizeof *picks->probability),
        sum_of(picks->times_sampled, picks->n * sizeof *picks->times_sampled));
    if (holds)
        SAY("rows", picks->n_refs, sum_of(picks->chunks, picks->n * sizeof *picks->chunks),
            sum_of(picks->offset, picks->n * sizeof *picks->offset),
            sum_of(picks->length, picks->n * sizeof *picks->length));
}

/* ---- comparisons ---- */

/* A chunk that was moved is in two places: only the data are the same. */
static rp_status check_data(void *ctx, uint64_t at, const struct chunk_view *view, rp_error *error)
{
    (void)at;
    (void)error;
    struct chunk *chunk = ctx;
    assert_int_equal(chunk->step, view->head->step);
    assert_int_equal(chunk->length, view->head->length);
    assert_int_equal(chunk->session, view->head->session);
    assert_int_equal(chunk->bytes, view->head->bytes);
    assert_memory_equal(chunk_data(chunk), view->data, chunk->bytes);
    return RP_OK;
}

static void check_loaded_table(const struct broker *broker, const struct twin_files *files, uint32_t t)
{
    const struct loaded_table *from = &files->loading.tables[t];
    const struct table *a = &broker->tables.list[t], *b = from->table;
    SAME(say_slots(broker, a), say_slots(files->broker, b));
    SAME(SAY_LIMITER(&a->limiter), SAY_LIMITER(&from->limiter));
    for (uint32_t slot = 0; slot < b->in.high; slot++)
        for (uint32_t i = 0; i < b->in.items[slot].span.n; i++)
            ok(chunks_read(&files->folder, &offline_places(&b->in.items[slot])[i], 1, check_data,
                           span_chunks(&a->in.items[slot].span)[i], &err));
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
    for (const struct session *session = LIST_FIRST(&embed->broker->sessions.list); session;
         session = LIST_NEXT(session, link)) {
        const struct session *found = same_session(files.broker, session);
        for (uint32_t i = 0; i < session->n_tables; i++) {
            assert_int_equal(session->flows[i].resolved, found->flows[i].resolved);
            assert_int_equal(session->flows[i].rejected, found->flows[i].rejected);
        }
    }
    twin_unload(&files);
}

/* A restart restores the settings of the configuration; the cursor keeps its value. */
static void check_table(const struct broker *old, const struct broker *new, const struct table *a,
                        const struct table *b)
{
    SAME(say_table(old, a), say_table(new, b));
    /* A chunk that was being moved may have been loaded from either place. */
    assert_true(a->bytes <= b->bytes);
    assert_near(limiter_cursor(&a->limiter), limiter_cursor(&b->limiter), 1e-6);
    if (a->limiter.samples_per_insert == b->limiter.samples_per_insert)
        assert_true(a->limiter.offset == b->limiter.offset);
}

static void check_params(const struct broker *a, const struct broker *b)
{
    SAME(say_params(&a->params, &a->params), say_params(&b->params, &a->params));
}

static void check_sessions(const struct broker *a, const struct broker *b, uint64_t next_ordinal)
{
    assert_int_equal(a->sessions.by_id.count, b->sessions.by_id.count);
    for (const struct session *session = LIST_FIRST(&a->sessions.list); session; session = LIST_NEXT(session, link)) {
        const struct session *found = same_session(b, session);
        SAME(say_session(session), say_session(found));
        assert_true(columns_equal(session->columns, found->columns));
        assert_true(found->tombstone);
        assert_int_equal(found->returned_bytes, found->received_bytes);
        for (uint32_t i = 0; i < found->n_tables; i++)
            assert_int_equal(found->flows[i].arrived, found->flows[i].resolved);
    }
    assert_int_equal(a->tables.ordinals.next, next_ordinal);
}

struct kept_check {
    const struct loading *loading;
    uint32_t n;
};

/* A sample that can be asked for again, or is being filled, is in the files with its picks. */
static void check_kept(void *ctx, const struct kept_image *kept)
{
    struct kept_check *self = ctx;
    const struct loaded_selection *at = TAILQ_FIRST(&self->loading->kept);
    while (at && (at->kept.info.client != kept->info.client || at->kept.info.id != kept->info.id))
        at = TAILQ_NEXT(at, link);
    assert_non_null(at);
    SAME(say_kept(kept, kept->info.holds), say_kept(&at->kept, kept->info.holds));
    self->n++;
}

void twin_check_loaded(const struct embed *embed, const struct twin_files *files)
{
    const struct broker *broker = embed->broker;
    assert_int_equal(files->loading.n_tables, broker->tables.n);
    for (uint32_t i = 0; i < broker->tables.n; i++)
        check_loaded_table(broker, files, i);
    check_params(broker, files->broker);
}

void twin_check_files(struct embed *embed, const struct twin_folder *folder)
{
    struct broker *broker = embed->broker;
    check_resolved(embed, folder);
    for (struct session *session = LIST_FIRST(&broker->sessions.list); session; session = LIST_NEXT(session, link))
        EFFECT(&broker->loop, progress, session);
    embed_settle(embed);
    struct twin_files files;
    twin_load(&files, embed, folder, 0);
    assert_true(files.loading.files.whole);
    twin_check_loaded(embed, &files);
    check_sessions(broker, files.broker, files.loading.next_ordinal);
    struct kept_check kept = {.loading = &files.loading};
    samples_each(&broker->samples, check_kept, &kept);
    assert_int_equal(kept.n, files.loading.selections.count);
    assert_int_equal(broker->peers.kept_replies.list.count, files.broker->peers.kept_replies.list.count);
    assert_int_equal(broker->peers.kept_replies.list.bytes, files.broker->peers.kept_replies.list.bytes);
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
        check_table(a, b, &a->tables.list[i], &b->tables.list[i]);
    check_sessions(a, b, b->tables.ordinals.next);
    check_params(a, b);
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
