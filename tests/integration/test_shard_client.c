/* A client of several shards against real brokers: finding them, losing them, and calls that go to one of them or to all. */
#include <pthread.h>
#include <stdatomic.h>
#include <sys/wait.h>

#include "agent/client/conn/client.h"
#include "proto/base/clock.h"
#include "tests/support/numbers.h"
#include "tests/support/shardbed.h"

#define SHARDS 3u
#define ITEMS 240u

static const char tables[] = "  - {name: replay, max_size: 30000, sampler: {kind: prioritized}}\n";
static const char other_tables[] = "  - {name: replay, max_size: 60000, sampler: {kind: prioritized}}\n";

struct fixture {
    struct shardbed bed;
    rp_client *client;
    rp_client_info info;
};

static const rp_client_options quick = {.struct_size = sizeof quick, .backoff_min_ms = 5, .backoff_max_ms = 40};

static void set_up(struct fixture *f)
{
    shardbed_start(&f->bed, SHARDS, tables, NULL);
    f->client = shardbed_connect(&f->bed, 1, &quick);
}

static int setup_none(void **state)
{
    *state = calloc(1, sizeof(struct fixture));
    return 0;
}

static void tear_down(struct fixture *f)
{
    rp_client_destroy(&f->client);
    shardbed_stop(&f->bed);
}

FIXTURE(struct fixture, set_up, tear_down)
/* The test starts its shards itself. */
#define CASE_OF_OWN_SHARDS(name) TEST_WITH(struct fixture, f, name, setup_none, fixture_tear_down)

static const rp_client_info *info_of(struct fixture *f)
{
    f->info = (rp_client_info){.struct_size = sizeof f->info};
    ok(rp_client_get_info(f->client, &f->info, &err));
    return &f->info;
}

static bool is_complete(const struct fixture *f)
{
    return shardbed_missing(f->client) == 0;
}

/* Inserts items, and gives their keys. Every shard gets some. */
static void insert(rp_client *client, const char *table, uint64_t keys[ITEMS])
{
    uint32_t counts[SHARDS] = {0};
    numbers_insert(client, table, 0, ITEMS, keys);
    for (uint32_t i = 0; i < ITEMS; i++)
        counts[client_shard_of(client, keys[i])]++;
    for (uint32_t s = 0; s < SHARDS; s++)
        assert_true(counts[s] > 0);
}

/* ---- writing ---- */

/* Makes items, ten to an episode, until there is no room for another one. Returns the number of items. */
static uint32_t fill(rp_writer *writer)
{
    const void *value = &(int32_t){1};
    for (uint32_t made = 0;; made++) {
        ok(rp_writer_append(writer, &value, WAIT, &err));
        rp_status status = rp_writer_item_last(writer, "held", 1, 1, 50, NULL, &err);
        if (status != RP_OK) {
            assert_int_equal(status, RP_DEADLINE_EXCEEDED);
            ok(rp_writer_end_episode(writer, RP_END_GO, WAIT, &err));
            return made;
        }
        if (made % 10 == 9)
            ok(rp_writer_end_episode(writer, RP_END_GO, WAIT, &err));
    }
}

/* The window of a writer holds for all shards together, less a part for each; what waits for a shard that is away takes no room. */
CASE_OF_OWN_SHARDS(window)
{
    static const char held[] = "  - {name: held, max_size: 3000, limiter: {kind: sample_to_insert_ratio, "
                               "samples_per_insert: 1, min_size: 3, error_buffer: 3}}\n";
    enum { MOST = 60, PART = MOST / SHARDS };
    rp_column column = {.name = "number", .dtype = RP_DTYPE_INT32};
    rp_writer_info info = {.struct_size = sizeof info};
    shardbed_start(&f->bed, SHARDS, held, NULL);
    f->client = shardbed_connect(&f->bed, 0, &quick);
    rp_writer *writer = WRITER(f->client, &column, 1, .max_in_flight_items = MOST, .batch_items = 5);
    uint32_t made = fill(writer);
    ok(rp_writer_get_info(writer, &info, &err));
    broker_process_stop(&f->bed.shards[1], SIGKILL);
    broker_process_stop(&f->bed.shards[2], SIGKILL);
    wait_until(shardbed_missing(f->client) == SHARDS - 1);
    uint32_t more = fill(writer);
    assert_int_equal(rp_writer_destroy(&writer, 0, &err), RP_DEADLINE_EXCEEDED);
    assert_in_range(made, MOST, MOST + (SHARDS - 1) * PART + 10); /* each shard has taken a few */
    assert_in_range(info.unconfirmed, 1, MOST + (SHARDS - 1) * PART);
    assert_in_range(more, 1, MOST);
}

/* ---- connecting ---- */

CASE(connect)
{
    assert_int_equal(info_of(f)->shards, SHARDS);
    assert_string_equal(f->info.endpoint, f->bed.services[0]);
    rp_client_destroy(&f->client);
    const char *names = textf("%s,%s", f->bed.services[2], f->bed.services[0]);
    f->client = must(rp_client_connect(names, &quick, WAIT, &err));
    wait_until(is_complete(f));
}

CASE(other_settings)
{
    rp_client_destroy(&f->client);
    broker_process_stop(&f->bed.shards[2], SIGTERM);
    broker_process_again(&f->bed.shards[2], other_tables);
    do { /* it gets along without a shard that takes long to answer */
        f->client = rp_client_connect(f->bed.services[0], NULL, WAIT, &err);
        rp_client_destroy(&f->client);
    } while (err.status == RP_OK);
    assert_int_equal(err.status, RP_FAILED_PRECONDITION);
    /* A client that was there before refuses it, too, and says so. */
    broker_process_stop(&f->bed.shards[2], SIGTERM);
    broker_process_again(&f->bed.shards[2], tables);
    f->client = shardbed_connect(&f->bed, 0, &quick);
    broker_process_stop(&f->bed.shards[2], SIGTERM);
    wait_until(!is_complete(f));
    broker_process_again(&f->bed.shards[2], other_tables);
    assert_int_equal(rp_client_get_state(f->client), RP_CLIENT_CONNECTED);
    uint64_t key = (uint64_t)2 << WIRE_KEY_SHARD_SHIFT;
    must_fail(rp_items_delete(f->client, "replay", &key, 1, 300, NULL, &err), RP_UNAVAILABLE, "shard 2");
    broker_process_stop(&f->bed.shards[2], SIGTERM);
    broker_process_again(&f->bed.shards[2], tables);
    wait_until(is_complete(f));
}

/* A shard is started elsewhere. A client hears of it when another shard comes back with the new list. */
CASE(moved_shard)
{
    uint64_t key = (uint64_t)2 << WIRE_KEY_SHARD_SHIFT;
    rp_change change;
    broker_process_fini(&f->bed.shards[2]);
    snprintf(f->bed.services[2], sizeof f->bed.services[2], "ipc://%s/elsewhere", f->bed.dir);
    shardbed_run(&f->bed, 2, tables, NULL);
    broker_process_fini(&f->bed.shards[1]);
    wait_until(!is_complete(f));
    shardbed_run(&f->bed, 1, tables, NULL);
    wait_until(is_complete(f));
    assert_string_equal(conn_endpoint(client_shard(f->client, 2)), f->bed.services[2]);
    ok(rp_items_delete(f->client, "replay", &key, 1, WAIT, &change, &err));
    assert_int_equal(change.missing, 1);
}

/* One of 16 comes late, and the client does not wait for it. */
CASE_OF_OWN_SHARDS(sixteen)
{
    shardbed_prepare(&f->bed, 16);
    for (uint32_t i = 0; i < 16; i++)
        if (i != 5)
            shardbed_run(&f->bed, i, tables, NULL);
    must_fail_new(rp_client_connect(f->bed.services[5], NULL, 100, &err), RP_UNAVAILABLE, NULL);
    const char *names = textf("%s,%s", f->bed.services[5], f->bed.services[15]);
    f->client = must(rp_client_connect(names, &quick, WAIT, &err));
    assert_int_equal(info_of(f)->shards, 16);
    assert_true(f->info.connected_shards < 16);
    assert_int_equal(f->info.tables, 1);
    shardbed_run(&f->bed, 5, tables, NULL);
    wait_until(is_complete(f));
}

/* ---- changes by key ---- */

CASE(changes)
{
    rp_change change;
    uint64_t keys[ITEMS];
    double priorities[ITEMS];
    insert(f->client, "replay", keys);
    for (uint32_t i = 0; i < ITEMS; i++)
        priorities[i] = 1 + i;
    ok(rp_priorities_update(f->client, "replay", keys, priorities, ITEMS, WAIT, &change, &err));
    assert_int_equal(change.applied, ITEMS);
    assert_int_equal(change.missing, 0);
    priorities[7] = -1;
    assert_int_equal(rp_priorities_update(f->client, "replay", keys, priorities, ITEMS, WAIT, &change, &err),
                     RP_INVALID_ARGUMENT);
    assert_int_equal(change.applied, ITEMS - 1);
    assert_int_equal(change.refused, 1);
    priorities[7] = 8;

    SCOPED(rp_updater) updater = must(rp_updater_new(f->client, "replay", OPTIONS(rp_updater, .batch = 32), &err));
    ok(rp_updater_add(updater, keys, priorities, ITEMS, WAIT, NULL, &err));
    ok(rp_updater_flush(updater, WAIT, &change, &err));
    assert_int_equal(change.applied, ITEMS);

    ok(rp_items_delete(f->client, "replay", keys, ITEMS / 2, WAIT, &change, &err));
    assert_int_equal(change.applied, ITEMS / 2);
    ok(rp_items_delete(f->client, "replay", keys, ITEMS, WAIT, &change, &err));
    assert_int_equal(change.applied, ITEMS / 2);
    assert_int_equal(change.missing, ITEMS / 2);
}

/* A shard is killed: the updater goes on with the others, and ends with the shard when that is back. */
CASE(lost_shard)
{
    rp_change change;
    uint64_t keys[ITEMS], of_lost = 0;
    double priorities[ITEMS];
    insert(f->client, "replay", keys);
    for (uint32_t i = 0; i < ITEMS; i++) {
        priorities[i] = 2;
        of_lost += client_shard_of(f->client, keys[i]) == 2;
    }
    SCOPED(rp_updater)
    updater = must(rp_updater_new(f->client, "replay", OPTIONS(rp_updater, .batch = 1, .in_flight = 1), &err));
    broker_process_stop(&f->bed.shards[2], SIGKILL);
    ok(rp_updater_add(updater, keys, priorities, ITEMS, WAIT, NULL, &err));
    must_fail(rp_updater_flush(updater, 100, &change, &err), RP_DEADLINE_EXCEEDED, "shard 2");
    assert_null(strstr(err.text, "shard 1"));
    broker_process_again(&f->bed.shards[2], NULL);
    ok(rp_updater_flush(updater, WAIT, &change, &err));
    assert_int_equal(change.applied, ITEMS - of_lost);
    assert_int_equal(change.missing, of_lost); /* it came back empty */
    assert_int_equal(info_of(f)->connected_shards, SHARDS);
    assert_int_equal(f->info.reconnects, 1);
}

/* ---- parameters ---- */

/* Returns the version of a slot at one shard, by a request to that shard alone. */
static uint64_t version_at(struct fixture *f, uint32_t shard)
{
    char *name = (char *)(uintptr_t) "policy";
    Replay__ParamsGet body = REPLAY__PARAMS_GET__INIT;
    body.n_name = 1;
    body.name = &name;
    body.head = true;
    struct conn_message message = {.field = REPLAY__REQUEST__BODY_PARAMS_GET, .body = &body.base, .timeout_ms = WAIT};
    struct conn_reply *reply = NULL;
    ok(conn_call(client_shard(f->client, shard), &message, &reply, &err));
    Replay__ParamsReply *params;
    ok(conn_reply_read(reply, REPLAY__REPLY__BODY_PARAMS, &params, &err));
    uint64_t version = params->n_slots ? params->slots[0]->version : 0;
    unpack_free(&params->base);
    conn_reply_destroy(&reply);
    return version;
}

static bool all_have(struct fixture *f, uint64_t version)
{
    return version_at(f, 0) == version && version_at(f, 1) == version && version_at(f, 2) == version;
}

static void take(rp_subscriber *subscriber, uint64_t version, const char *text)
{
    SCOPED(rp_params) params = NULL;
    ok(rp_subscriber_take(subscriber, WAIT, &params, &err));
    assert_int_equal(rp_params_slot(params)->version, version);
    assert_memory_equal(rp_params_slot(params)->data, text, strlen(text));
}

/* Asks for parameters without waiting for newer ones; once more if a shard was silent, because it got no time of the processor. */
static rp_status get_now(struct fixture *f, uint64_t have, rp_params **params)
{
    rp_status status;
    do
        status = rp_params_get(f->client, "policy", have, 0, params, &err);
    while (status == RP_DEADLINE_EXCEEDED && strstr(err.text, "has not answered"));
    return status;
}

/* All shards have one version, also after one of them, or shard 0, came back without any. */
CASE(params)
{
    SCOPED(rp_params) params = NULL;
    uint64_t version = 0;
    ok(rp_params_put(f->client, "policy", "one", 3, WAIT, &version, &err));
    assert_int_equal(version, 1);
    assert_true(all_have(f, 1));
    ok(get_now(f, 0, &params));
    assert_int_equal(rp_params_slot(params)->version, 1);
    rp_params_release(&params);
    assert_int_equal(rp_params_get(f->client, "policy", 1, 50, &params, &err), RP_DEADLINE_EXCEEDED);

    rp_publisher *publisher = must(rp_publisher_new(f->client, "policy", &err));
    SCOPED(rp_subscriber) subscriber = must(rp_subscriber_new(f->client, "policy", 0, &err));
    take(subscriber, 1, "one");
    while (client_nearest(f->client) != 2)
        (void)client_move_nearest(f->client, client_nearest(f->client));
    broker_process_stop(&f->bed.shards[2], SIGKILL);
    wait_until(!is_complete(f));
    ok(rp_publisher_put(publisher, "two", 3, &err));
    ok(rp_publisher_flush(publisher, WAIT, &version, &err));
    assert_int_equal(version, 2);
    take(subscriber, 2, "two"); /* from another shard */
    wait_until(client_nearest(f->client) != 2);
    broker_process_again(&f->bed.shards[2], NULL);
    wait_until(is_complete(f));
    wait_until(all_have(f, 2)); /* the publisher brings it */

    broker_process_stop(&f->bed.shards[0], SIGKILL);
    wait_until(!is_complete(f));
    must_fail(rp_params_put(f->client, "policy", "none", 4, 50, &version, &err), RP_DEADLINE_EXCEEDED, "shard 0");
    broker_process_again(&f->bed.shards[0], NULL);
    wait_until(is_complete(f));
    wait_until(all_have(f, 2));
    ok(rp_publisher_destroy(&publisher, WAIT, &err));

    /* Nobody knows the block any more, but the others know the version. */
    broker_process_stop(&f->bed.shards[0], SIGKILL);
    broker_process_again(&f->bed.shards[0], NULL);
    wait_until(is_complete(f));
    ok(rp_params_put(f->client, "policy", "three", 5, WAIT, &version, &err));
    assert_int_equal(version, 3);
    assert_true(all_have(f, 3));
}

/* A client that has nothing finds what another shard than its own has. */
CASE(params_at_one)
{
    SCOPED(rp_params) params = NULL;
    ok(rp_params_put(f->client, "policy", "one", 3, WAIT, NULL, &err));
    for (uint32_t i = 1; i < SHARDS; i++) {
        broker_process_stop(&f->bed.shards[i], SIGKILL);
        broker_process_again(&f->bed.shards[i], NULL);
    }
    wait_until(is_complete(f));
    SCOPED(rp_subscriber) subscriber = must(rp_subscriber_new(f->client, "policy", 0, &err));
    take(subscriber, 1, "one");
    (void)client_move_nearest(f->client, client_nearest(f->client));
    ok(get_now(f, 0, &params));
}

/* Puts a version to one shard alone, as a publisher does that has reached no other yet. */
static void put_at(struct fixture *f, uint32_t shard, uint64_t version, const char *text)
{
    Replay__ParamsPut body = REPLAY__PARAMS_PUT__INIT;
    zmq_msg_t payload;
    zmq_msg_init_size(&payload, strlen(text));
    memcpy(zmq_msg_data(&payload), text, strlen(text));
    body.name = (char *)(uintptr_t) "policy";
    body.version = version;
    struct conn_message message = {.field = REPLAY__REQUEST__BODY_PARAMS_PUT,
                                   .body = &body.base,
                                   .payload = &payload,
                                   .n_payload = 1,
                                   .timeout_ms = WAIT};
    ok(conn_call(client_shard(f->client, shard), &message, NULL, &err));
    zmq_msg_close(&payload);
}

static uint64_t polls_of(rp_subscriber *subscriber)
{
    rp_subscriber_stats stats = {.struct_size = sizeof stats};
    ok(rp_subscriber_get_stats(subscriber, &stats));
    return stats.polls;
}

/* A subscriber never goes back to the older version of a slower shard, unless all shards count anew. */
CASE(params_of_a_slow_shard)
{
    uint32_t fast = client_nearest(f->client), slow = (fast + 1) % SHARDS;
    put_at(f, fast, 7, "seven");
    put_at(f, slow, 6, "six");
    SCOPED(rp_subscriber) subscriber = must(rp_subscriber_new(f->client, "policy", 0, &err));
    take(subscriber, 7, "seven");
    wait_until(polls_of(subscriber) >= 2); /* the same shard, for another */
    assert_int_equal(client_move_nearest(f->client, fast), slow);
    conn_wake(client_shard(f->client, fast));
    wait_until(polls_of(subscriber) >= 4); /* the slow one has answered with 6 */
    put_at(f, slow, 7, "seven");
    put_at(f, slow, 8, "eight");
    take(subscriber, 8, "eight");
    for (uint32_t i = 0; i < SHARDS; i++)
        broker_process_stop(&f->bed.shards[i], SIGKILL);
    for (uint32_t i = 0; i < SHARDS; i++)
        broker_process_again(&f->bed.shards[i], NULL);
    wait_until(is_complete(f));
    for (uint32_t i = 0; i < SHARDS; i++)
        put_at(f, i, 1, "one");
    take(subscriber, 1, "one");

    /* One shard counts anew, and then all that know the old versions are lost. */
    put_at(f, client_nearest(f->client), 5, "five");
    take(subscriber, 5, "five");
    broker_process_stop(&f->bed.shards[0], SIGKILL);
    wait_until(!is_complete(f));
    broker_process_again(&f->bed.shards[0], NULL);
    wait_until(is_complete(f));
    for (uint32_t i = 1; i < SHARDS; i++)
        broker_process_stop(&f->bed.shards[i], SIGKILL);
    put_at(f, 0, 2, "two");
    take(subscriber, 2, "two");
}

/* A get does not go back either. Shard 0 knows whether versions count anew. */
CASE(get_of_a_slow_shard)
{
    SCOPED(rp_params) params = NULL;
    put_at(f, 0, 7, "seven");
    for (uint32_t i = 1; i < SHARDS; i++)
        put_at(f, i, 6, "six");
    while (client_nearest(f->client) != 2)
        (void)client_move_nearest(f->client, client_nearest(f->client));
    assert_int_equal(get_now(f, 7, &params), RP_DEADLINE_EXCEEDED);
    ok(get_now(f, 5, &params));
    assert_int_equal(rp_params_slot(params)->version, 6);
    rp_params_release(&params);
    ok(get_now(f, 9, &params)); /* nobody has more than 7 */
    assert_int_equal(rp_params_slot(params)->version, 7);
}

#define PUBLISHERS 4u
#define PUTS 50u

struct rivals {
    atomic_uint next, running;
    struct rival {
        struct rivals *all;
        rp_client *client;
    } rivals[PUBLISHERS];
};

/* Publishes blocks that nobody else publishes, half of them through a publisher. */
static void *rival_run(void *ctx)
{
    struct rival *self = ctx;
    rp_publisher *publisher = must(rp_publisher_new(self->client, "policy", &err));
    for (uint32_t i = 0; i < PUTS; i++) {
        uint32_t block = atomic_fetch_add(&self->all->next, 1);
        ok(i % 2 ? rp_params_put(self->client, "policy", &block, sizeof block, WAIT, NULL, &err)
                 : rp_publisher_put(publisher, &block, sizeof block, &err));
        ok(rp_publisher_flush(publisher, WAIT, NULL, &err));
    }
    ok(rp_publisher_destroy(&publisher, WAIT, &err));
    atomic_fetch_sub(&self->all->running, 1);
    return NULL;
}

/* Takes what was read and releases it. Returns 1 if its version is not newer, or its block was seen before. */
static uint32_t see(rp_params **params, uint64_t *last, bool seen[])
{
    const rp_param *slot = rp_params_slot(*params);
    uint32_t block;
    memcpy(&block, slot->data, sizeof block);
    uint32_t wrong = slot->version <= *last || seen[block];
    *last = slot->version;
    seen[block] = true;
    rp_params_release(params);
    return wrong;
}

/* Every put makes one version, and no block comes back after another one, whoever reads it and where. */
CASE(rival_publishers)
{
    struct rivals all = {.running = PUBLISHERS};
    static bool seen[2][PUBLISHERS * PUTS];
    uint64_t last[2] = {0};
    uint32_t wrong = 0;
    pthread_t threads[PUBLISHERS];
    rp_params *params = NULL;
    SCOPED(rp_subscriber) subscriber = must(rp_subscriber_new(f->client, "policy", 0, &err));
    for (uint32_t i = 0; i < PUBLISHERS; i++) {
        all.rivals[i] = (struct rival){&all, shardbed_connect(&f->bed, i % SHARDS, &quick)};
        assert_int_equal(pthread_create(&threads[i], NULL, rival_run, &all.rivals[i]), 0);
    }
    while (atomic_load(&all.running)) {
        if (rp_subscriber_take(subscriber, 5, &params, &err) == RP_OK)
            wrong += see(&params, &last[0], seen[0]);
        if (rp_params_get(f->client, "policy", last[1], 0, &params, &err) == RP_OK)
            wrong += see(&params, &last[1], seen[1]);
        (void)client_move_nearest(f->client, client_nearest(f->client));
    }
    for (uint32_t i = 0; i < PUBLISHERS; i++) {
        pthread_join(threads[i], NULL);
        rp_client_destroy(&all.rivals[i].client);
    }
    assert_true(all_have(f, (uint64_t)PUBLISHERS * PUTS));
    assert_int_equal(wrong, 0);
}

/* ---- time-outs ---- */

/* A put that waits for a silent shard names that one, and not a shard that is away and need not have it. */
CASE(put_at_a_silent_shard)
{
    broker_process_stop(&f->bed.shards[1], SIGKILL);
    wait_until(!is_complete(f));
    kill(f->bed.shards[2].pid, SIGSTOP);
    rp_status status;
    do
        status = rp_params_put(f->client, "policy", "one", 3, 100, NULL, &err);
    while (status == RP_DEADLINE_EXCEEDED && strstr(err.text, "shard 0")); /* it got no time of the processor */
    kill(f->bed.shards[2].pid, SIGCONT);
    assert_int_equal(status, RP_DEADLINE_EXCEEDED);
    if (!strstr(err.text, "shard 2") || strstr(err.text, "shard 1"))
        fail_msg("%s", err.text);
}

/* A sampler that waits for a silent shard names that shard. */
CASE_OF_OWN_SHARDS(silent_shard_is_named)
{
    rp_batch *batch;
    static const char both[] =
        "  - {name: ratio, max_size: 3000, limiter: {kind: sample_to_insert_ratio, "
        "samples_per_insert: 4, min_size: 30, error_buffer: 3000}}\n"
        "  - {name: queue, max_size: 3000, max_times_sampled: 1, sampler: fifo, limiter: queue}\n";
    static const char *const sources[] = {"ratio", "queue"};
    uint64_t keys[ITEMS];
    shardbed_start(&f->bed, SHARDS, both, NULL);
    f->client = shardbed_connect(&f->bed, 0, &quick);
    for (uint32_t t = 0; t < 2; t++) {
        insert(f->client, sources[t], keys);
        SCOPED(rp_sampler) sampler = SAMPLER(f->client, sources[t], .batch_size = 50);
        batches_pass(sampler, 1);
        kill(f->bed.shards[2].pid, SIGSTOP);
        for (int64_t end = clock_ns() + WAIT * NS_PER_MS;
             (rp_sampler_next(sampler, &batch, 300, &err) == RP_OK || strstr(err.text, "do not answer")) &&
             clock_ns() < end;)
            rp_batch_release(&batch); /* of several that are silent, others got no time of the processor */
        kill(f->bed.shards[2].pid, SIGCONT);
        assert_int_equal(err.status, RP_DEADLINE_EXCEEDED);
        /* A queue's other shards may be empty, which is a reason, too. */
        if (!strstr(err.text, "shard 2 does not answer") || strstr(err.text, "on all shards") ||
            (t == 0 && strstr(err.text, "more insert")))
            fail_msg("%s", err.text);
    }
}

/* ---- shard 0 ---- */

CASE(counters)
{
    int64_t value;
    ok(rp_counter_add(f->client, "steps", 5, WAIT, &value, &err));
    ok(rp_counter_add(f->client, "steps", 2, WAIT, &value, &err));
    assert_int_equal(value, 7);
    rp_reduce *group = must(rp_reduce_join(f->client, "learners", WAIT, &err));
    broker_process_stop(&f->bed.shards[0], SIGKILL);
    wait_until(!is_complete(f));
    must_fail(rp_counter_add(f->client, "steps", 1, 50, &value, &err), RP_UNAVAILABLE, "shard 0");
    float vector[2] = {1, 2};
    must_fail(rp_reduce_add(group, vector, 2, -1, 50, NULL, &err), RP_DEADLINE_EXCEEDED, "shard 0");
    assert_int_equal(rp_client_get_state(f->client), RP_CLIENT_CONNECTING);
    (void)rp_reduce_leave(&group, 50, &err);
}

/* ---- keys ---- */

static void ctl_key(const char *a, const char *b, const char *c, const char *d, const char *e, const char *f)
{
    const char *const argv[] = {process_env("RP_CTL"), "key", a, b, c, d, e, f, NULL};
    char said[512];
    if (process_run(argv, NULL, 0, said, sizeof said) != 0)
        fail_msg("key %s: %s", a, said);
}

/* Reads the public key of a key file, or of a broker's folder. */
static void public_key(const char *path, char out[41])
{
    const char *const argv[] = {process_env("RP_CTL"), "key", "show", path, NULL};
    char text[512];
    assert_int_equal(process_run(argv, text, sizeof text, NULL, 0), 0);
    assert_int_equal(sscanf(text, "%*s %40s", out), 1);
}

/* Every shard has a key of its own, and the client's key file names them all, in another order than that of the shards. */
CASE_OF_OWN_SHARDS(keys)
{
    char file[128], folder[128], own[41], broker[41];
    shardbed_prepare(&f->bed, SHARDS);
    snprintf(file, sizeof file, "%s/client.key", f->bed.dir);
    const rp_client_options *with = OPTIONS(rp_client, .backoff_min_ms = 5, .key_file = file);
    for (uint32_t i = 0; i < SHARDS; i++) {
        snprintf(folder, sizeof folder, "%s/keys%u", f->bed.dir, i);
        shardbed_run(&f->bed, i, tables, textf("security: {mode: curve, keys: %s}\n", folder));
        if (i == 0) {
            ctl_key("new", file, "--keys", folder, "--role", "admin");
            public_key(file, own);
            continue;
        }
        ctl_key("allow", folder, "client", own, "--role", "admin");
        if (i == SHARDS - 1) /* only now: shards 1 and 2 are not known yet */
            must_fail_new(rp_client_connect(f->bed.services[0], with, WAIT, &err), RP_PERMISSION_DENIED, NULL);
    }
    for (uint32_t i = 1; i < SHARDS; i++) {
        snprintf(folder, sizeof folder, "%s/keys%u", f->bed.dir, i);
        public_key(folder, broker);
        ctl_key("trust", file, broker, NULL, NULL, NULL);
    }
    f->client = must(rp_client_connect(f->bed.services[0], with, WAIT, &err));
    wait_until(is_complete(f));
    ok(rp_params_put(f->client, "policy", "one", 3, WAIT, NULL, &err));
    assert_true(all_have(f, 1));
}

/* ---- fork ---- */

CASE(fork)
{
    uint64_t key = UINT64_C(2) << WIRE_KEY_SHARD_SHIFT;
    rp_updater *updater = must(rp_updater_new(f->client, "replay", NULL, &err));
    int64_t start_ns = clock_ns();
    pid_t child = fork();
    if (child == 0) {
        bool good = rp_items_delete(f->client, "replay", &key, 1, 1000, NULL, &err) == RP_FAILED_PRECONDITION &&
                    rp_counter_add(f->client, "steps", 1, 1000, NULL, &err) == RP_FAILED_PRECONDITION &&
                    rp_params_put(f->client, "slot", "x", 1, 1000, NULL, &err) == RP_FAILED_PRECONDITION;
        rp_updater_destroy(&updater, 1000, NULL);
        rp_client_destroy(&f->client);
        rp_client *own = rp_client_connect(f->bed.services[0], NULL, WAIT, &err);
        good = good && own && client_shards(own) == SHARDS;
        rp_client_destroy(&own);
        _exit(good ? 0 : 1);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    ok(rp_updater_destroy(&updater, WAIT, &err));
    bool stalled = clock_ns() - start_ns > NS_PER_S; /* a connection may be lost then */
    wait_until(is_complete(f));
    if (!stalled)
        assert_int_equal(f->info.reconnects, 0);
}
