/* Sample, permit, cancel, fetch, update, delete, reset, list, and the limiter of a table. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "broker/loop/entries.h"
#include "broker/service/service.h"
#include "proto/base/error.h"

static rp_status find_table(struct service *service, const struct wire_string *name, struct table **out, rp_error *err)
{
    *out = tables_find(service->tables, name->data, name->size);
    return *out ? RP_OK
                : err_set(err, RP_NOT_FOUND, "no table '%.*s'", (int)(name->size < 64 ? name->size : 64), name->data);
}

/* The same for the text of a message. */
static rp_status named_table(struct service *service, const char *name, struct table **out, rp_error *err)
{
    return find_table(service, &(struct wire_string){name, strlen(name)}, out, err);
}

/* ---- samples and fetches ---- */

static rp_status sample_check(const struct wire_sample *ask, const struct table *table, uint64_t client, rp_error *err)
{
    if (ask->count == 0 || ask->count > SAMPLE_MAX_ITEMS)
        return err_set(err, RP_INVALID_ARGUMENT, "count is %u, a sample takes 1 to %u items", ask->count,
                       SAMPLE_MAX_ITEMS);
    if (ask->whole && ask->flexible)
        return err_set(err, RP_INVALID_ARGUMENT, "a sample cannot be both whole (all or nothing) and flexible");
    if (ask->whole && ask->paid)
        return err_set(err, RP_INVALID_ARGUMENT, "a paid sample does not wait: it cannot be whole (all or nothing)");
    if (ask->paid)
        RP_TRY(permit_check(table, "paid samples", err));
    if (ask->lease_ms)
        RP_TRY(lease_check(ask, table, client, err));
    uint32_t group = table->in.groups.size;
    if (group && (ask->count < group || (ask->count % group && !ask->flexible)))
        return err_set(err, RP_INVALID_ARGUMENT,
                       "a batch of table '%s' has whole groups of %u items: ask for a multiple of that, not for %u",
                       table->name, group, ask->count);
    bool once = ask->distinct || table->config->max_times_sampled == 1;
    if (ask->whole && once && ask->count > table->config->max_size)
        return err_set(
            err, RP_INVALID_ARGUMENT,
            "a whole batch of %u can never be filled: table '%s' has max_size %lld, and no item is given twice",
            ask->count, table->name, (long long)table->config->max_size);
    if (!ask->distinct)
        return RP_OK;
    if (!table->sampler_ops->pick_distinct)
        return err_set(err, RP_UNSUPPORTED, "the sampler '%s' of table '%s' cannot sample without replacement",
                       table->sampler_ops->name, table->name);
    if (ask->count > table->config->max_size)
        return err_set(err, RP_INVALID_ARGUMENT,
                       "a batch of %u without replacement can never be filled: table '%s' has max_size %lld",
                       ask->count, table->name, (long long)table->config->max_size);
    return RP_OK;
}

static uint32_t flags_of(const struct wire_sample *ask)
{
    return pick_flags(ask->distinct, ask->flexible, ask->whole) | (ask->paid ? PICK_PAID : 0u) |
           (ask->lease_ms ? PICK_LEASED : 0u);
}

/* Makes a waiter that waits on behalf of the request. */
static rp_status waiter_begin(struct service *service, const struct request *request, struct table *table,
                              const struct wire_sample *ask, struct waiter **out, rp_error *err)
{
    struct waiter *waiter = *out = waiter_new(service->samples, table);
    waiter->want = ask->count;
    waiter->flags = flags_of(ask);
    waiter->lease_ms = ask->lease_ms;
    RP_TRY(sample_begin(waiter, request, ask->has_timeout ? ask->timeout_ms : WAIT_FOREVER, err));
    waiter->flexible = ask->flexible;
    waiter->whole = ask->whole;
    waiter->distinct = ask->distinct;
    waiter->seed = ask->seed;
    waiter->paid = ask->paid;
    waiter->shared = ask->shared && request->head.client && service->samples->store->shm;
    waiter->reads = waiter->shared ? ask->shared : 0;
    if (ask->distinct && ++table->stamp == ITEM_HIDDEN)
        table->stamp = 1;
    waiter->stamp = table->stamp;
    return RP_OK;
}

/* Refuses a whole batch that the limiter never allows. One that was picked before its bounds were changed is not asked about. */
static bool refuse_never(struct waiter *waiter)
{
    const struct limiter *limiter = &waiter->table->limiter;
    double span = limiter->kind == LIMITER_RATIO ? limiter_span(limiter) : 0.0;
    char text[300];
    if (!waiter->whole || span <= 0.0 || waiter->want <= span)
        return false;
    snprintf(text, sizeof text,
             "a whole batch of %u can never be filled: the limiter of table '%.64s' lets at most %g samples be due "
             "(max_diff less min_diff). Raise its error_buffer, or ask for fewer",
             waiter->want, waiter->table->name, span);
    sample_refuse(waiter, RP_INVALID_ARGUMENT, text);
    return true;
}

/* The first turn of a sample: takes what is there, or what was picked for it before. A paid sample is answered with that: nobody
 * waits for it, and it waits for nobody. True: it was answered. */
static bool begin_sample(struct waiter *waiter, bool *progress)
{
    struct table *table = waiter->table;
    (void)progress; /* nobody waits for it yet */
    waiter->serve = sample_serve;
    enum kept_found found = kept_samples_load(waiter);
    if (found == KEPT_NOTHING && refuse_never(waiter))
        return true;
    if (waiter->lease_ms && !waiter->lease)
        lease_new(&waiter->samples->leases, waiter, waiter->lease_ms);
    if (found == KEPT_NO_MEMORY) {
        sample_refuse(waiter, RP_NO_MEMORY, "no memory for the sample");
        return true;
    }
    if (found != KEPT_ANSWERED && (waiter->paid || (!table->waiters.n && !waiter_is_done(waiter)))) {
        /* If the batch fills at once, nothing can leave the table before the reply is made. */
        waiter->picks.borrowed = !picks_leave(waiter->table, waiter->flags) && found == KEPT_NOTHING;
        waiter_fill(waiter);
        if (waiter->paid || waiter->picks.n)
            table_mark(table); /* items that have left it make room, also those that were too old to be picked */
    }
    if (waiter->short_of_memory && !waiter->picks.n) {
        sample_fail(waiter, RP_NO_MEMORY, "no memory for the sample");
        return true;
    }
    if (waiter->paid || found == KEPT_ANSWERED || waiter_is_done(waiter)) {
        bool none = waiter->paid && !waiter->picks.n && !table_is_ready(table);
        sample_answer(waiter, none ? "the table has no items to sample now" : NULL);
        return true;
    }
    picks_own(&waiter->picks, waiter->samples);
    return false;
}

rp_status req_sample(struct service *service, struct request *request, rp_error *err)
{
    struct wire_sample ask;
    struct table *table;
    RP_TRY(wire_read_sample(request->head.data, request->head.size, &ask, err));
    RP_TRY(find_table(service, &ask.table, &table, err));
    RP_TRY(sample_check(&ask, table, request->head.client, err));
    if (table->in.groups.size)
        ask.count -= ask.count % table->in.groups.size;
    if (service->loop->draining)
        return err_set(err, RP_CANCELLED, "the broker is shutting down");
    struct kept_info asked = {
        .client = request->head.client,
        .id = request->head.id,
        .table = table,
        .want = ask.count,
        .flags = flags_of(&ask),
    };
    RP_TRY(kept_samples_check(service->samples, &asked, err));
    struct waiter *waiter;
    bool progress = false;
    RP_TRY(waiter_begin(service, request, table, &ask, &waiter, err));
    request->answered = true;
    bool held = waiter_hold(waiter);
    if (held)
        waiter->serve = begin_sample;
    else if (begin_sample(waiter, &progress))
        return RP_OK;
    if (ask.has_timeout && ask.timeout_ms == 0)
        wait_expire(&waiter->wait);
    else if (!held)
        waiter_append(waiter, &table->waiters);
    return RP_OK;
}

rp_status req_cancel(struct service *service, struct request *request, rp_error *err)
{
    (void)err;
    const Replay__Cancel *ask = (const Replay__Cancel *)request->body;
    Replay__ChangeReply reply = REPLAY__CHANGE_REPLY__INIT;
    for (size_t i = 0; i < ask->n_id; i++) {
        struct wait *wait = wait_find(&service->peers->waits, request->head.client, ask->id[i]);
        if (wait) {
            struct waiter *sample = sample_of(wait);
            if (sample)
                sample_give_up(sample);
            else
                wait_cancel(wait, RP_CANCELLED, "cancelled by the client");
            reply.applied++;
        } else {
            reply.missing++;
        }
    }
    request_ok(service->peers, request, REPLAY__REPLY__BODY_CHANGE, &reply.base);
    return RP_OK;
}

rp_status req_fetch(struct service *service, struct request *request, rp_error *err)
{
    struct wire_keys ask;
    struct table *table;
    RP_TRY(wire_read_keys(request->head.data, request->head.size, false, &ask, err));
    RP_TRY(find_table(service, &ask.table, &table, err));
    if (ask.key.n > REQUEST_MAX_KEYS)
        return err_set(err, RP_INVALID_ARGUMENT, "a fetch takes at most %u keys, not %u: split them", REQUEST_MAX_KEYS,
                       ask.key.n);
    struct waiter *waiter = waiter_new(service->samples, table);
    waiter->picks.table_size = table->in.size;
    const struct picks *picks = &waiter->picks;
    bool ok = true;
    for (uint32_t i = 0; ok && i < ask.key.n && picks->n_refs <= CHUNKS_PER_REPLY; i++) {
        uint32_t slot = table_find(table, pb_u64(&ask.key, i));
        if (slot != KEYMAP_NONE)
            ok = picks_add_member(&waiter->picks, table, slot, 0);
    }
    bool many = picks->n_refs > CHUNKS_PER_REPLY;
    if (!ok || many || !picks->n) {
        waiter_release(waiter);
        if (many)
            return err_set(err, RP_INVALID_ARGUMENT,
                           "the items of %u keys run over more than %u chunks, too many for one reply: split them",
                           ask.key.n, CHUNKS_PER_REPLY);
        return ok ? err_set(err, RP_NOT_FOUND, "none of the %u keys is in table '%s'", ask.key.n, table->name)
                  : err_set(err, RP_NO_MEMORY, "no memory to fetch %u items", ask.key.n);
    }
    waiter->want = waiter->picks.n;
    RP_TRY(fetch_begin(waiter, request, err));
    request->answered = true;
    sample_answer(waiter, NULL); /* at once, or when the data has been read from disk */
    return RP_OK;
}

/* ---- permits: a table's limiter is charged for samples that are picked elsewhere, or here as paid ones ---- */

/* Answers with the state alone. It changes nothing, and need not wait for the journal. */
static rp_status answer_state(struct service *service, struct request *request, const struct table *table)
{
    const Replay__Permit *ask = (const Replay__Permit *)request->body;
    Replay__PermitReply reply = REPLAY__PERMIT_REPLY__INIT;
    watchers_note(&service->samples->watchers, &(struct watcher){.client = request->head.client,
                                                                 .table = table,
                                                                 .wanted = ask->wanted,
                                                                 .size = ask->size,
                                                                 .min_size = ask->min_size,
                                                                 .heard_ns = service->loop->now_ns});
    permit_state(table, &reply);
    service->peers->commit.ahead = true;
    request_ok(service->peers, request, REPLAY__REPLY__BODY_PERMIT, &reply.base);
    return RP_OK;
}

/* Moves room for inserts between this shard and another: limiter.h. */
static rp_status permit_move(struct service *service, struct request *request, struct table *table, rp_error *err)
{
    const Replay__Permit *ask = (const Replay__Permit *)request->body;
    Replay__PermitReply reply = REPLAY__PERMIT_REPLY__INIT;
    if (table->limiter.kind != LIMITER_LAG || config_shards(service->config) == 1)
        return err_set(err, RP_FAILED_PRECONDITION,
                       "table '%s' has no room to move: its limiter is '%s', and shards of the limiter lag have some",
                       table->name, limiter_kind_name(table->limiter.kind));
    if (ask->version == table->version)
        reply.granted = (uint32_t)table_move_room(table, ask->move);
    permit_state(table, &reply);
    request_ok(service->peers, request, REPLAY__REPLY__BODY_PERMIT, &reply.base);
    return RP_OK;
}

rp_status req_permit(struct service *service, struct request *request, rp_error *err)
{
    const Replay__Permit *ask = (const Replay__Permit *)request->body;
    struct table *table;
    RP_TRY(named_table(service, ask->table, &table, err));
    if (ask->count == 0)
        return ask->move ? permit_move(service, request, table, err) : answer_state(service, request, table);
    if (ask->count > PERMIT_MOST)
        return err_set(err, RP_INVALID_ARGUMENT, "a permit is for at most %u samples, not %u", PERMIT_MOST, ask->count);
    RP_TRY(permit_check(table, "permits", err));
    if (service->loop->draining)
        return err_set(err, RP_CANCELLED, "the broker is shutting down");
    struct waiter *waiter = waiter_new(service->samples, table);
    bool timed = ask->has_timeout_ms_case == REPLAY__PERMIT__HAS_TIMEOUT_MS_TIMEOUT_MS, progress = false;
    waiter->want = ask->count;
    waiter->flexible = ask->flexible;
    RP_TRY(permit_begin(waiter, request, timed ? ask->timeout_ms : WAIT_FOREVER, err));
    request->answered = true;
    if (!table->waiters.n && permit_serve(waiter, &progress))
        return RP_OK;
    if (timed && ask->timeout_ms == 0)
        wait_expire(&waiter->wait);
    else
        waiter_append(waiter, &table->waiters);
    return RP_OK;
}

/* ---- changes ---- */

/* Keys that are looked up at a time, so that their cache misses overlap; and how many items ahead of the one that changes the
 * next lines are fetched. */
#define AT_ONCE 256u
#define ITEMS_AHEAD 12u

/* Looks up the keys of the request from number `first` on, at most AT_ONCE. Returns how many. */
static uint32_t look_up(const struct table *table, const struct pb_array *ask, uint32_t first, uint64_t *keys,
                        uint32_t *slots)
{
    uint32_t n = ask->n - first < AT_ONCE ? ask->n - first : AT_ONCE;
    for (uint32_t i = 0; i < n; i++)
        keys[i] = pb_u64(ask, first + i);
    keymap_get_many(table->in.keys, n, keys, slots);
    return n;
}

/* Prefetches what a change of item i touches, if there is one. Inlined always: see prefetch_picks. */
static inline __attribute__((always_inline)) void prefetch_item(const struct table *table, const uint32_t *slots,
                                                                uint32_t i, uint32_t n)
{
    if (i >= n || slots[i] == KEYMAP_NONE)
        return;
    __builtin_prefetch(&table->in.items[slots[i]], 1);
    if (table->sampler_ops->prefetch)
        table->sampler_ops->prefetch(table->in.sampler, slots[i]);
}

/* Prefetches the chunk of item i, whose line has come, as a removal touches it. */
static inline __attribute__((always_inline)) void prefetch_chunk(const struct table *table, const uint32_t *slots,
                                                                 uint32_t i, uint32_t n)
{
    if (i < n && slots[i] != KEYMAP_NONE && table->in.items[slots[i]].span.n)
        __builtin_prefetch(span_chunks(&table->in.items[slots[i]].span)[0], 1);
}

static rp_status check_keys(uint32_t n, rp_error *err)
{
    return n <= REQUEST_MAX_KEYS
               ? RP_OK
               : err_set(err, RP_INVALID_ARGUMENT, "%u keys in one request, at most %u are taken: split them", n,
                         REQUEST_MAX_KEYS);
}

static rp_status read_keys(struct service *service, const struct request *request, bool priorities,
                           struct wire_keys *ask, struct table **table, rp_error *err)
{
    RP_TRY(wire_read_keys(request->head.data, request->head.size, priorities, ask, err));
    RP_TRY(find_table(service, &ask->table, table, err));
    return check_keys(ask->key.n, err);
}

static void reply_change(struct service *service, struct request *request, const Replay__ChangeReply *reply,
                         const char *text)
{
    rp_status status = reply->refused ? RP_INVALID_ARGUMENT : RP_OK;
    request_reply(service->peers, request,
                  &(struct answer){status, text, REPLAY__REPLY__BODY_CHANGE, &reply->base, NULL, 0});
}

rp_status req_update(struct service *service, struct request *request, rp_error *err)
{
    struct wire_keys ask;
    struct table *table;
    RP_TRY(read_keys(service, request, true, &ask, &table, err));
    Replay__ChangeReply reply = REPLAY__CHANGE_REPLY__INIT;
    char text[300] = "";
    uint64_t keys[AT_ONCE];
    uint32_t slots[AT_ONCE];
    double priorities[AT_ONCE];
    /* A key may occur several times in a batch: values are applied in order, so the last one wins. */
    for (uint32_t first = 0, n; first < ask.key.n; first += n) {
        uint32_t found = 0;
        n = look_up(table, &ask.key, first, keys, slots);
        for (uint32_t i = 0; i < n; i++) {
            double priority = pb_f64(&ask.priority, first + i);
            rp_error why; /* filled if it is needed: clearing it for each key would cost more than the update */
            /* Before the key: whether a priority is allowed does not depend on what was evicted meanwhile. */
            if (table_check_priority(table, priority, &why) != RP_OK) {
                if (reply.refused++ == 0)
                    snprintf(text, sizeof text, "key %llu: %.240s", (unsigned long long)keys[i], why.text);
            } else if (slots[i] == KEYMAP_NONE) {
                reply.missing++;
            } else {
                __builtin_prefetch(&table->in.items[slots[i]], 1);
                slots[found] = slots[i];
                priorities[found++] = priority;
            }
        }
        table_update(table, found, slots, priorities);
        reply.applied += found;
    }
    table->stats.updates_missing += reply.missing;
    reply_change(service, request, &reply, text);
    return RP_OK;
}

rp_status req_delete(struct service *service, struct request *request, rp_error *err)
{
    struct wire_keys ask;
    struct table *table;
    RP_TRY(read_keys(service, request, false, &ask, &table, err));
    Replay__ChangeReply reply = REPLAY__CHANGE_REPLY__INIT;
    uint64_t keys[AT_ONCE];
    uint32_t slots[AT_ONCE], n;
    for (uint32_t first = 0; first < ask.key.n; first += n) {
        n = look_up(table, &ask.key, first, keys, slots);
        for (uint32_t i = 0; i < 2 * ITEMS_AHEAD; i++)
            prefetch_item(table, slots, i, n);
        for (uint32_t i = 0; i < n; i++) {
            prefetch_item(table, slots, i + 2 * ITEMS_AHEAD, n);
            prefetch_chunk(table, slots, i + ITEMS_AHEAD, n);
            /* The second occurrence of a key finds no item. */
            if (slots[i] == KEYMAP_NONE || table_find(table, keys[i]) != slots[i]) {
                reply.missing++;
            } else {
                uint32_t before = table->in.size;
                table_remove(table, slots[i]);
                reply.applied += before - table->in.size;
            }
        }
    }
    uint32_t held;
    if (reply.applied && log_allow(&service->delete_log, 5, service->loop->now_ns, &held))
        log_line(LEVEL_INFO, "B0214", "items deleted", "table=%s items=%llu key=%s held_back=%u", table->name,
                 (unsigned long long)reply.applied, log_text(request->identity->name), held);
    table_mark(table);
    reply_change(service, request, &reply, "");
    return RP_OK;
}

/* Most bytes in the journal of what becomes of a key. */
#define LEASE_ENTRY_BYTES 32u

rp_status req_lease(struct service *service, struct request *request, rp_error *err)
{
    struct wire_lease ask;
    struct table *table;
    RP_TRY(wire_read_lease(request->head.data, request->head.size, &ask, err));
    RP_TRY(find_table(service, &ask.table, &table, err));
    RP_TRY(check_keys(ask.key.n, err));
    if (ask.op > WIRE_LEASE_TOUCH)
        return err_set(err, RP_UNSUPPORTED, "Lease.op %u is unknown: it is 0, 1 or 2", ask.op);
    if (ask.op == WIRE_LEASE_TOUCH && (ask.ms == 0 || ask.ms > WIRE_LEASE_MOST_MS))
        return err_set(err, RP_INVALID_ARGUMENT, "a lease of %u ms is not allowed: write 1 to %u, a day", ask.ms,
                       WIRE_LEASE_MOST_MS);
    Replay__ChangeReply reply = REPLAY__CHANGE_REPLY__INIT;
    uint64_t keys[AT_ONCE];
    uint32_t slots[AT_ONCE], n;
    EFFECT(service->loop, together, 2 * KEPT_REPLY_BYTES + ask.key.n * LEASE_ENTRY_BYTES);
    for (uint32_t first = 0; first < ask.key.n; first += n) {
        n = look_up(table, &ask.key, first, keys, slots);
        reply.applied += leases_change(&service->samples->leases, request->head.client, table, &ask, slots, n);
    }
    reply.missing = ask.key.n - reply.applied;
    table_mark(table);
    char text[200] = "";
    if (reply.missing)
        snprintf(
            text, sizeof text,
            "%llu of %u items are not under lease of this client: their lease has ended, or they were acknowledged "
            "before",
            (unsigned long long)reply.missing, ask.key.n);
    reply_change(service, request, &reply, text);
    return RP_OK;
}

rp_status req_reset(struct service *service, struct request *request, rp_error *err)
{
    const Replay__Reset *ask = (const Replay__Reset *)request->body;
    struct table *table;
    RP_TRY(named_table(service, ask->table, &table, err));
    Replay__ChangeReply reply = REPLAY__CHANGE_REPLY__INIT;
    reply.applied = table->in.size;
    RP_TRY(table_reset(table, err));
    log_line(LEVEL_INFO, "B0201", "table reset", "table=%s items=%llu key=%s", table->name,
             (unsigned long long)reply.applied, log_text(request->identity->name));
    sockets_announce(service->peers, "table %s reset", table->name);
    table_mark(table);
    reply_change(service, request, &reply, "");
    return RP_OK;
}

/* ---- list items page by page; show and change a limiter ---- */

/* Most slots that a page looks at, however few items they hold. */
#define LIST_SLOTS 4096u
#define LIST_ITEMS 1000u

rp_status req_list(struct service *service, struct request *request, rp_error *err)
{
    const Replay__List *ask = (const Replay__List *)request->body;
    struct table *table;
    RP_TRY(named_table(service, ask->table, &table, err));
    uint32_t most = ask->limit && ask->limit < LIST_ITEMS ? ask->limit : LIST_ITEMS;
    struct arena arena = {0};
    Replay__ListReply reply = REPLAY__LIST_REPLY__INIT;
    Replay__ItemInfo *infos = pb_messages(&arena, &replay__item_info__descriptor, most, &reply.items);
    uint64_t slot = ask->cursor;
    for (uint32_t seen = 0; slot < table->in.high && seen < LIST_SLOTS && reply.n_items < most; slot++, seen++) {
        const struct item *item = &table->in.items[slot];
        if (!item->span.n)
            continue;
        rp_item_view view;
        table_view(table, (uint32_t)slot, &view);
        Replay__ItemInfo *info = &infos[reply.n_items++];
        info->key = view.key;
        info->priority = view.priority;
        info->times_sampled = view.times_sampled;
        info->age_ns = (uint64_t)view.age_ns;
        info->policy = view.policy;
        info->step = view.step;
        info->session = view.session;
        info->length = view.length;
        info->chunks = item->span.n;
        info->bytes = view.bytes;
        info->episode = view.episode;
        info->group = table->in.groups.slots ? table->in.groups.slots[slot].group : 0;
    }
    reply.cursor = slot < table->in.high ? slot : 0;
    request_ok(service->peers, request, REPLAY__REPLY__BODY_LIST, &reply.base);
    arena_fini(&arena);
    return RP_OK;
}

/* Reads a value of the request. An absent value is NAN from here on, so NaN is refused if the client sends it. */
static rp_status read_value(const char *name, bool present, double value, double *out, rp_error *err)
{
    if (present && isnan(value))
        return err_set(err, RP_INVALID_ARGUMENT, "%s is NaN; write a number, or leave it out to keep its value", name);
    *out = present ? value : NAN;
    return RP_OK;
}

static rp_status read_change(const Replay__SetLimiter *ask, struct limiter_change *out, rp_error *err)
{
    RP_TRY(read_value("samples_per_insert", ask->has_samples_per_insert_case, ask->samples_per_insert,
                      &out->samples_per_insert, err));
    RP_TRY(read_value("min_size", ask->has_min_size_case, ask->min_size, &out->min_size, err));
    RP_TRY(read_value("min_diff", ask->has_min_diff_case, ask->min_diff, &out->min_diff, err));
    RP_TRY(read_value("max_diff", ask->has_max_diff_case, ask->max_diff, &out->max_diff, err));
    RP_TRY(read_value("error_buffer", ask->has_error_buffer_case, ask->error_buffer, &out->error_buffer, err));
    return read_value("max_lag", ask->has_max_lag_case, ask->max_lag, &out->max_lag, err);
}

/* A pause alone is no change of the settings, which would outlive the process. */
static bool has_values(const Replay__SetLimiter *ask)
{
    return ask->has_samples_per_insert_case || ask->has_min_size_case || ask->has_min_diff_case ||
           ask->has_max_diff_case || ask->has_error_buffer_case || ask->has_max_lag_case;
}

/* Checks max_lag of a change. Takes it out if only the table's items are meant, and not the limiter. */
static rp_status check_max_lag(const struct table *table, double *lag, rp_error *err)
{
    if (isnan(*lag))
        return RP_OK;
    if (table->max_lag < 0)
        return err_set(err, RP_FAILED_PRECONDITION,
                       "table '%s' has no max_lag that could be changed: write it in the configuration", table->name);
    RP_TRY(limiter_check_lag(*lag, err));
    if (table->limiter.kind != LIMITER_LAG)
        *lag = NAN;
    return RP_OK;
}

rp_status req_set_limiter(struct service *service, struct request *request, rp_error *err)
{
    const Replay__SetLimiter *ask = (const Replay__SetLimiter *)request->body;
    struct table *table;
    RP_TRY(named_table(service, ask->table, &table, err));
    struct limiter_change change;
    RP_TRY(read_change(ask, &change, err));
    double lag = change.max_lag;
    RP_TRY(check_max_lag(table, &change.max_lag, err));
    struct limiter trial = table->limiter;
    if (ask->has_paused_case)
        trial.paused = ask->paused;
    if (has_values(ask))
        RP_TRY(limiter_change(&trial, &change, err));
    if (trial.min_size > (double)table->config->max_size)
        return err_set(err, RP_INVALID_ARGUMENT, "min_size %.0f can never be reached: max_size of table '%s' is %lld",
                       trial.min_size, table->name, (long long)table->config->max_size);
    table->limiter = trial;
    if (!isnan(lag))
        table_set_max_lag(table, (uint32_t)lag);
    EFFECT(service->loop, limiter, table);
    log_line(LEVEL_INFO, "B0202", "limiter changed",
             "table=%s samples_per_insert=%g min_size=%g min_diff=%g max_diff=%g paused=%d key=%s", table->name,
             trial.samples_per_insert, trial.min_size, trial.min_diff, trial.max_diff, trial.paused,
             log_text(request->identity->name));
    sockets_announce(service->peers, "table %s limiter", table->name);
    table_mark(table);
    struct limiter_info info;
    limiter_info(table, &info);
    request_ok(service->peers, request, REPLAY__REPLY__BODY_LIMITER, &info.body.base);
    return RP_OK;
}
