#include "tests/support/world.h"

#include "broker/checkpoint/checkpoint.h"
#include "broker/journal/stream.h"

const char world_tables[] =
    "  - {name: fifo, max_size: 40, sampler: {kind: fifo}, remover: {kind: fifo}, limiter: {kind: none}}\n"
    "  - {name: queue, max_size: 30, sampler: {kind: fifo}, max_times_sampled: 1, limiter: {kind: queue}}\n"
    "  - {name: stack, max_size: 30, sampler: {kind: lifo}, max_times_sampled: 1, limiter: {kind: stack}}\n"
    "  - {name: prio, max_size: 60, sampler: {kind: prioritized, exponent: 0.7}, remover: {kind: fifo},\n"
    "     limiter: {kind: sample_to_insert_ratio, samples_per_insert: 2, min_size: 5, error_buffer: 20},\n"
    "     extensions: [{kind: priority_diffusion, radius: 2}]}\n"
    "  - {name: heap, max_size: 30, sampler: {kind: max_heap}, remover: {kind: min_heap}, limiter: {kind: none}}\n"
    "  - {name: any, max_size: 50, sampler: {kind: uniform}, remover: {kind: lifo}, max_times_sampled: 3,\n"
    "     limiter: {kind: min_size, min_size: 2}, extensions: [{kind: insert_on_sample, table: copies},\n"
    "     {kind: statistics}]}\n"
    "  - {name: copies, max_size: 25, sampler: {kind: uniform}, remover: {kind: uniform}, limiter: {kind: none}}\n"
    "  - {name: lag, max_size: 40, sampler: {kind: fifo}, max_times_sampled: 1, max_lag: 1,\n"
    "     limiter: {kind: lag, batch: 6}}\n"
    "  - {name: fresh, max_size: 30, sampler: {kind: uniform}, max_times_sampled: 3, max_lag: 2,\n"
    "     limiter: {kind: sample_to_insert_ratio, samples_per_insert: 2, min_size: 3, error_buffer: 8}}\n"
    "  - {name: jobs, max_size: 30, sampler: {kind: fifo}, max_times_sampled: 1, limiter: {kind: queue},\n"
    "     max_deliveries: 3, dead_table: copies}\n"
    "  - {name: teams, max_size: 30, sampler: {kind: fifo}, max_times_sampled: 1, limiter: {kind: queue},\n"
    "     group: {size: 3, deadline: 1h}}\n"
    "  - {name: pairs, max_size: 24, sampler: {kind: max_heap}, remover: {kind: fifo}, max_lag: 3,\n"
    "     limiter: {kind: min_size, min_size: 4}, group: {size: 2, deadline: 1h, incomplete: deliver}}\n";

static const char *const tables[] = {"fifo", "queue", "stack", "prio",  "heap", "any",
                                     "lag",  "fresh", "jobs",  "teams", "pairs"};
#define N_TABLES 11u

static uint32_t below(struct world *self, uint32_t n)
{
    return (uint32_t)(rng_next(&self->rng) % n);
}

static struct testpeer *some_peer(struct world *self)
{
    return self->peers[below(self, WORLD_PEERS)];
}

static const char *some_table(struct world *self)
{
    return tables[below(self, N_TABLES)];
}

static double some_priority(struct world *self)
{
    static const double values[] = {0, 1, 1, 2, 0.5, 17};
    return below(self, 3) ? values[below(self, 6)] : (double)below(self, 1000) / 7;
}

/* Returns a key that is usually in the table. */
static uint64_t some_key(struct world *self, const char *name)
{
    const struct table *table = embed_table(&self->embed, name);
    for (uint32_t i = 0; i < 20 && table->in.high; i++) {
        const struct item *item = &table->in.items[below(self, table->in.high)];
        if (item->span.n)
            return item->key;
    }
    return self->next_key + 1000000;
}

static void open_peer(struct world *self, uint32_t i)
{
    self->peers[i] = testpeer_new(&self->embed);
    self->peers[i]->keep = true;
    testpeer_open(self->peers[i], below(self, 2));
}

static void do_insert(struct world *self)
{
    struct testpeer *peer = some_peer(self);
    const char *table = some_table(self);
    uint32_t layout = testpeer_plain(peer, table), n = 1 + below(self, 6);
    bool grouped = embed_table(&self->embed, table)->in.groups.slots;
    uint64_t first = 0;
    for (uint32_t i = 0; i < n; i++) {
        peer->group = grouped ? 1 + below(self, 5) : 0;
        uint64_t value[3] = {self->next_key, self->next_key, self->next_key};
        const void *blocks[] = {value};
        uint32_t rows = 1 + below(self, 3);
        first = testpeer_chunk(peer, rows, blocks, false);
        uint64_t key = below(self, 20) ? self->next_key++ : some_key(self, table); /* sometimes a duplicate */
        double priority = below(self, 25) ? some_priority(self) : -1;              /* sometimes refused */
        testpeer_item(peer, layout, key, priority, first, below(self, rows), 1);
        if (i > 0 && below(self, 4) == 0) /* sometimes over two chunks */
            testpeer_item(peer, layout, self->next_key++, some_priority(self), first - 1, 0, 2);
    }
    uint64_t version = params_version(&self->embed.broker->params, "policy"), back = below(self, 5);
    peer->policy =
        version + 2 > back ? version + 2 - back : 0; /* from two that do not exist yet to two before the newest */
    if (below(self, 3) == 0)
        peer->oldest_chunk = first; /* no later item refers to older chunks */
    testpeer_push(peer);
    peer->episode += below(self, 4) == 0;
}

static void do_sample(struct world *self)
{
    struct testpeer *peer = some_peer(self);
    const char *table = below(self, 8) ? some_table(self) : "copies";
    static const int flags[] = {0, 0, DISTINCT, FLEXIBLE, WHOLE, PAID, PAID | DISTINCT};
    uint32_t unit = embed_table(&self->embed, table)->in.groups.size;
    testpeer_sample(peer, table, unit ? unit * (1 + below(self, 4)) : 1 + below(self, 12), below(self, 2) ? 0 : 50,
                    flags[below(self, 7)]);
    if (below(self, 2))
        embed_settle(&self->embed);
    if (below(self, 8) == 0)
        testpeer_settled(peer, 0); /* it has read all of its samples */
}

/* Permits that are granted at once, wait, or are given up. */
static void do_permit(struct world *self)
{
    struct testpeer *peer = some_peer(self);
    uint64_t id = testpeer_permit(peer, 0, below(self, 3) ? "prio" : some_table(self), below(self, 60),
                                  below(self, 2) ? 0 : 50, below(self, 2) ? FLEXIBLE : 0);
    if (below(self, 4) != 0)
        return;
    testpeer_cancel(peer, 1, &id);
}

static void do_update(struct world *self)
{
    const char *table = some_table(self);
    uint64_t keys[4];
    double priorities[4];
    uint32_t n = 1 + below(self, 4);
    for (uint32_t i = 0; i < n; i++) {
        keys[i] = some_key(self, table);
        priorities[i] = some_priority(self);
    }
    testpeer_update(some_peer(self), table, n, keys, priorities);
}

static void do_delete(struct world *self)
{
    const char *table = some_table(self);
    uint64_t key = some_key(self, table);
    testpeer_delete(some_peer(self), table, 1, &key);
}

/* Takes items with a lease, or says what becomes of some. */
static void do_lease(struct world *self)
{
    static const char *const names[] = {"jobs", "lag"};
    struct testpeer *peer = some_peer(self);
    const char *table = names[below(self, 2)];
    if (below(self, 2)) {
        peer->lease_ms = 1 + below(self, 300);
        testpeer_sample(peer, table, 1 + below(self, 6), below(self, 2) ? 0 : 50, below(self, 2) ? FLEXIBLE : 0);
        peer->lease_ms = 0;
        embed_settle(&self->embed);
        return;
    }
    uint64_t keys[4];
    for (uint32_t i = 0; i < 4; i++)
        keys[i] = some_key(self, table);
    testpeer_lease(peer, table, below(self, 3), 1 + below(self, 300), 4, keys);
}

/* Hides an item, or shows one that is hidden. Of the lists, only those are asked whose order nobody compares: files know only the
 * order of insertion. */
static void do_hide(struct world *self)
{
    static const char *const names[] = {"heap", "prio", "fresh"};
    struct table *table = embed_table(&self->embed, names[below(self, 3)]);
    uint32_t slot = table_find(table, some_key(self, table->name));
    if (slot == UINT32_MAX)
        return;
    if (item_is_hidden(&table->in.items[slot]))
        table_show(table, slot, below(self, 2));
    else
        table_hide(table, slot, 0);
}

/* Changes the ratio of one limiter, or max_lag of the limiter lag, which survives a restart. */
static void do_limiter(struct world *self)
{
    if (below(self, 2)) {
        double max_lag = below(self, 4);
        assert_int_equal(TESTPEER_LIMIT(some_peer(self), "lag", MAX_LAG, max_lag, max_lag), RP_OK);
        return;
    }
    Replay__SetLimiter ask = REPLAY__SET_LIMITER__INIT;
    ask.has_samples_per_insert_case = REPLAY__SET_LIMITER__HAS_SAMPLES_PER_INSERT_SAMPLES_PER_INSERT;
    ask.samples_per_insert = 1 + below(self, 5);
    ask.has_error_buffer_case = REPLAY__SET_LIMITER__HAS_ERROR_BUFFER_ERROR_BUFFER;
    ask.error_buffer = 20 + below(self, 20);
    assert_int_equal(testpeer_limit(some_peer(self), "prio", ask), RP_OK);
}

static void do_params(struct world *self)
{
    static const char *const names[] = {"policy", "value", "third"};
    static uint8_t value[200000];
    value[0]++;
    const char *name = names[below(self, 3)];
    struct testpeer *peer = some_peer(self);
    uint64_t id = testpeer_put(peer, name, 0, value, below(self, 2) ? below(self, 3000) : sizeof value);
    assert_int_equal(testpeer_await(peer, id)->status, RP_OK);
    testpeer_counter(peer, names[below(self, 3)], (int64_t)below(self, 100) - 40);
}

/* Closes a peer's session and opens another; or breaks its connection and resumes. */
static void do_session(struct world *self)
{
    uint32_t i = below(self, WORLD_PEERS);
    struct testpeer *peer = self->peers[i];
    if (below(self, 3) == 0) {
        testpeer_bye(peer, 0);
        embed_settle(&self->embed);
        testpeer_close(peer);
        open_peer(self, i);
    } else {
        testpeer_reconnect(peer);
        testpeer_resume(peer, 1, below(self, 2));
        testpeer_resend(peer, peer->credit->received);
    }
}

static void do_heartbeat(struct world *self)
{
    struct testpeer *peer = some_peer(self);
    const Replay__Credit *credit = peer->credit;
    testpeer_heartbeat(peer, credit ? credit->first_rejection + below(self, (uint32_t)credit->n_rejections + 1) : 0,
                       false);
}

/* Starts a checkpoint; later operations run while it is being written. */
static void do_checkpoint(struct world *self)
{
    assert_int_equal(checkpoint_start(self->embed.broker->checkpoints, CHECKPOINT_ASKED, NULL, &err), RP_OK);
}

static void do_reset(struct world *self)
{
    testpeer_reset(some_peer(self), some_table(self));
}

static void do_advance(struct world *self)
{
    embed_advance(&self->embed, below(self, 100));
}

static void step(struct world *self)
{
    /* Percent of the steps. */
    static const struct {
        uint32_t share;
        void (*work)(struct world *self);
    } rows[] = {{40, do_insert}, {9, do_lease},     {8, do_sample},  {5, do_permit},    {10, do_update},
                {2, do_hide},    {5, do_delete},    {1, do_reset},   {1, do_limiter},   {3, do_params},
                {3, do_session}, {7, do_heartbeat}, {4, do_advance}, {2, do_checkpoint}};
    uint32_t dice = below(self, 100), i = 0;
    for (; dice >= rows[i].share; i++)
        dice -= rows[i].share;
    rows[i].work(self);
    for (i = 0; i < WORLD_PEERS; i++)
        if (below(self, 16) == 0)
            testpeer_forget(self->peers[i]);
}

void world_run(struct world *self, uint32_t operations)
{
    for (uint32_t i = 0; i < operations; i++)
        step(self);
    embed_settle(&self->embed);
}

static void start(struct world *self, const char *more)
{
    embed_start(&self->embed, world_tables, twin_config(&self->folder, more));
    self->embed.broker->stream->segment_bytes = 1 << 20; /* several segments */
}

void world_start(struct world *self, uint64_t seed, const char *more)
{
    *self = (struct world){.next_key = 1};
    twin_folder_init(&self->folder);
    rng_seed(&self->rng, seed);
    start(self, more);
    for (uint32_t i = 0; i < WORLD_PEERS; i++)
        open_peer(self, i);
}

void world_stop(struct world *self)
{
    embed_stop(&self->embed);
    twin_folder_fini(&self->folder);
}

void world_twin(struct world *self, struct world *twin, const char *more)
{
    for (struct session *session = LIST_FIRST(&self->embed.broker->sessions.list); session;
         session = LIST_NEXT(session, link))
        EFFECT(&self->embed.broker->loop, progress, session);
    embed_settle(&self->embed);
    *twin = (struct world){.next_key = self->next_key, .rng = self->rng};
    twin_folder_copy(&twin->folder, &self->folder);
    start(twin, more);
}

void world_follow(struct world *self, struct world *from)
{
    for (uint32_t i = 0; i < WORLD_PEERS; i++) {
        struct testpeer *peer = self->peers[i] = from->peers[i];
        testpeer_move(peer, &self->embed);
        const struct testpeer_answer *answer = testpeer_resume(peer, 1, false);
        assert_int_equal(answer->status, RP_OK);
        assert_true(peer->resumed);
        assert_int_equal(peer->lost_messages, 0);
        testpeer_resend(peer, peer->credit->received);
        embed_settle(&self->embed);
    }
}

void world_kill(struct world *self)
{
    twin_kill(&self->embed);
    twin_folder_fini(&self->folder);
}
