/* Snapshots of an embedded broker after known work, by a clock that stands still. */

#include "proto/wire/figures.h"
#include "tests/support/testpeer.h"

static const char two_tables[] = "  - {name: t, max_size: 100}\n"
                                 "  - {name: queue, max_size: 2, max_times_sampled: 1, sampler: {kind: fifo}, "
                                 "limiter: {kind: queue}}\n";

#define ALL (SNAPSHOT_STATE | SNAPSHOT_SESSIONS | SNAPSHOT_WAITS)

static struct snapshot *look(struct embed *embed, unsigned parts)
{
    struct exchange *exchange = &embed->broker->snapshots.exchange;
    assert_true(exchange_open(exchange));
    exchange_ask(exchange, parts);
    embed_settle(embed);
    struct snapshot *snapshot = exchange_take(exchange);
    assert_non_null(snapshot);
    assert_int_equal(snapshot->parts, parts | SNAPSHOT_STATE);
    return snapshot;
}

static const Replay__CommandInfo *command(const struct snapshot *snapshot, const char *name)
{
    for (uint32_t i = 0; i < snapshot->info.server->n_commands; i++)
        if (strcmp(snapshot->info.server->commands[i]->name, name) == 0)
            return snapshot->info.server->commands[i];
    fail_msg("no command '%s'", name);
    return NULL;
}

static uint64_t count(const uint64_t *counts, size_t n)
{
    uint64_t all = 0;
    for (size_t b = 0; b < n; b++)
        all += counts[b];
    return all;
}

/* The only bucket that has something in it: the last one. */
static uint32_t only_bucket(const uint64_t *counts, size_t n, uint64_t expected)
{
    assert_int_equal(count(counts, n), expected);
    assert_true(n == 0 || counts[n - 1] == expected);
    return n ? (uint32_t)n - 1 : 0;
}

EMBED_TEST(nothing_is_made_while_nobody_asks, two_tables, NULL)
{
    struct testpeer *peer = testpeer_opened(embed, false);
    testpeer_inserted(peer, "t", peer->key_base, 5, 1);
    assert_int_equal(testpeer_info(peer)->server->snapshots, 0);
    assert_int_equal(embed->broker->snapshots.exchange.made_fd, -1);
    struct snapshot *snapshot = look(embed, SNAPSHOT_STATE);
    assert_int_equal(snapshot->info.n_sessions, 0);
    assert_null(snapshot->why.waits);
    snapshot_destroy(&snapshot);
    embed_advance(embed, 5000);
    assert_int_equal(testpeer_info(peer)->server->snapshots, 1);
}

EMBED_TEST(figures_are_those_of_the_work, two_tables, NULL)
{
    struct testpeer *peer = testpeer_opened(embed, false);
    testpeer_inserted(peer, "t", peer->key_base, 10, 2);
    embed_advance(embed, 3000);
    assert_int_equal(testpeer_sampled(peer, "t", 4)->reply->status, 0);
    uint64_t keys[] = {peer->key_base, peer->key_base + 1, 12345};
    double priorities[] = {3, 4, 5};
    testpeer_update(peer, "t", 3, keys, priorities);
    testpeer_counter(peer, "steps", -7);
    assert_int_equal(testpeer_fetch(peer, "nowhere", 1, keys)->reply->status, RP_NOT_FOUND);
    struct snapshot *snapshot = look(embed, ALL);
    const Replay__ServerInfo *server = snapshot->info.server;
    assert_int_equal(snapshot->info.n_tables, 2);
    const Replay__TableInfo *table = snapshot->info.tables[0];
    assert_string_equal(table->name, "t");
    assert_int_equal(table->size, 10);
    assert_int_equal(table->total_inserts, 10);
    assert_int_equal(table->total_samples, 4);
    assert_int_equal(table->updates, 2);
    assert_int_equal(table->updates_missing, 1);
    assert_true(table->limiter->cursor == limiter_cursor(&embed_table(embed, "t")->limiter));
    assert_true(table->limiter->min_diff < -FIGURE_NO_BOUND && table->limiter->max_diff > FIGURE_NO_BOUND);
    /* All four were three seconds old, and no policy was published. */
    assert_int_equal(only_bucket(table->ages, table->n_ages, 4), histogram_bucket(3000000000u));
    assert_true(fabs(table->ages_sum - 4 * 3e9) < 100); /* insert times differ by a nanosecond */
    assert_int_equal(only_bucket(table->staleness, table->n_staleness, 4), 0);
    assert_int_equal(only_bucket(server->insert_times, server->n_insert_times, 10), 0);
    assert_int_equal(only_bucket(server->insert_wait_times, server->n_insert_wait_times, 0), 0);
    assert_int_equal(command(snapshot, "sample")->calls, 1);
    assert_int_equal(count(command(snapshot, "sample")->times, command(snapshot, "sample")->n_times), 1);
    assert_int_equal(count(command(snapshot, "sample")->wait_times, command(snapshot, "sample")->n_wait_times), 0);
    assert_int_equal(count(command(snapshot, "update")->times, command(snapshot, "update")->n_times), 1);
    assert_int_equal(command(snapshot, "fetch")->errors, 1);
    assert_int_equal(snapshot->info.server->failed[RP_NOT_FOUND - 1]->count, 1);
    assert_int_equal(snapshot->info.server->failed[RP_INVALID_ARGUMENT - 1]->count, 0);
    assert_int_equal(server->uptime_ns, 3000000000u);
    assert_true(server->bytes_in > 10 * 8 && server->bytes_out > 4 * 8);
    assert_int_equal(snapshot->info.n_counters, 1);
    assert_string_equal(snapshot->info.counters[0]->name, "steps");
    assert_int_equal(snapshot->info.counters[0]->value, -7);
    assert_int_equal(server->memory_bytes, store_memory(&embed->broker->store));
    assert_int_equal(server->memory->chunks, store_chunk_memory(&embed->broker->store));
    assert_null(snapshot->info.disk);
    assert_int_equal(snapshot->info.n_sessions, 1);
    const Replay__SessionInfo *session = snapshot->info.sessions[0];
    assert_int_equal(session->ordinal, peer->ordinal);
    assert_int_equal(session->items, 10);
    assert_int_equal(session->n_tables, 1);
    assert_string_equal(session->tables[0]->table, "t");
    assert_int_equal(session->tables[0]->resolved, 10);
    assert_int_equal(session->granted_bytes, embed->broker->sessions.granted_bytes);
    snapshot_destroy(&snapshot);
}

EMBED_TEST(waits_are_measured_and_explained, two_tables, NULL)
{
    struct testpeer *writer = testpeer_opened(embed, false), *sampler = testpeer_new(embed);
    uint64_t asked = testpeer_sample(sampler, "queue", 3, -1, 0);
    embed_advance(embed, 2000);
    struct snapshot *snapshot = look(embed, SNAPSHOT_WAITS);
    assert_int_equal(snapshot->why.n_waits, 1);
    assert_string_equal(snapshot->why.waits[0]->kind, "sample");
    assert_string_equal(snapshot->why.waits[0]->table, "queue");
    assert_true(snapshot->why.waits[0]->text[0] && snapshot->why.waits[0]->waited_ns == 2000000000u);
    assert_int_equal(snapshot->info.tables[1]->waiting_samplers, 1);
    assert_true(snapshot->info.tables[1]->limiter->samples_wait[0]);
    assert_int_equal(count(command(snapshot, "sample")->times, command(snapshot, "sample")->n_times), 0);
    snapshot_destroy(&snapshot);
    /* Two may wait in the queue: with the three that the sampler takes, the sixth does not go in at once. */
    testpeer_insert(writer, "queue", writer->key_base, 6, 1);
    assert_int_equal(testpeer_await(sampler, asked)->reply->status, 0);
    embed_advance(embed, 500);
    snapshot = look(embed, SNAPSHOT_WAITS);
    const Replay__CommandInfo *sample = command(snapshot, "sample");
    assert_int_equal(only_bucket(sample->wait_times, sample->n_wait_times, 1), histogram_bucket(2000000000u));
    assert_int_equal(only_bucket(sample->times, sample->n_times, 1), histogram_bucket(2000000000u));
    assert_string_equal(snapshot->why.waits[0]->kind, "insert");
    assert_int_equal(snapshot->info.tables[1]->waiting_inserts, 1);
    uint64_t before = count(snapshot->info.server->insert_wait_times, snapshot->info.server->n_insert_wait_times);
    snapshot_destroy(&snapshot);
    assert_int_equal(testpeer_sampled(sampler, "queue", 1)->reply->status, 0);
    snapshot = look(embed, ALL);
    assert_int_equal(count(snapshot->info.server->insert_times, snapshot->info.server->n_insert_times), 6);
    assert_int_equal(count(snapshot->info.server->insert_wait_times, snapshot->info.server->n_insert_wait_times),
                     before + 1);
    assert_int_equal(snapshot->info.server->insert_wait_times[histogram_bucket(500000000u)], 1);
    assert_int_equal(snapshot->why.n_waits, 0);
    snapshot_destroy(&snapshot);
}

EMBED_TEST(a_wait_that_expires_is_measured, two_tables, NULL)
{
    struct testpeer *peer = testpeer_new(embed);
    uint64_t asked = testpeer_sample(peer, "t", 1, 100, 0);
    embed_advance(embed, 100);
    assert_int_equal(testpeer_await(peer, asked)->reply->status, RP_DEADLINE_EXCEEDED);
    struct snapshot *snapshot = look(embed, SNAPSHOT_STATE);
    assert_int_equal(only_bucket(command(snapshot, "sample")->wait_times, command(snapshot, "sample")->n_wait_times, 1),
                     histogram_bucket(100000000u));
    assert_int_equal(snapshot->info.server->failed[RP_DEADLINE_EXCEEDED - 1]->count, 1);
    snapshot_destroy(&snapshot);
}

/* A walk over many sessions takes several turns, in which sessions end. */
EMBED_TEST(sessions_may_end_during_the_walk, two_tables, NULL)
{
    struct sessions *sessions = &embed->broker->sessions;
    struct testpeer *peer = testpeer_new(embed);
    for (uint32_t i = 0; i < 1000; i++)
        testpeer_open(peer, false);
    assert_true(exchange_open(&embed->broker->snapshots.exchange));
    exchange_ask(&embed->broker->snapshots.exchange, SNAPSHOT_SESSIONS);
    struct snapshot_maker *maker = &embed->broker->snapshots;
    assert_true(snapshot_maker_run(maker));
    uint32_t ended = 0;
    while (maker->running) {
        /* One slice at a time, and the session that is next ends. */
        struct chore *chore = embed->broker->loop.chores.first;
        assert_ptr_equal(chore, &maker->chore);
        chores_remove(&embed->broker->loop.chores, chore);
        if (chore->step(chore))
            chores_add(&embed->broker->loop.chores, chore);
        if (sessions->walk) {
            session_close(sessions->walk);
            ended++;
        }
    }
    struct snapshot *snapshot = exchange_take(&maker->exchange);
    assert_true(ended >= 3);
    assert_int_equal(snapshot->info.n_sessions, 1000 - ended);
    for (uint32_t i = 1; i < snapshot->info.n_sessions; i++)
        assert_true(snapshot->info.sessions[i]->ordinal < snapshot->info.sessions[i - 1]->ordinal);
    snapshot_destroy(&snapshot);
}

EMBED_TEST(a_broker_may_end_with_a_snapshot_half_made, two_tables, NULL)
{
    assert_true(exchange_open(&embed->broker->snapshots.exchange));
    exchange_ask(&embed->broker->snapshots.exchange, ALL);
    assert_true(snapshot_maker_run(&embed->broker->snapshots));
}
