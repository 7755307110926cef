/* The administrative calls over three real shards: one logical table, and shards that do not answer. */

#include "agent/client/conn/client.h"
#include "agent/launch/process/observe.h"
#include "proto/base/clock.h"
#include "tests/support/asked.h"
#include "tests/support/numbers.h"
#include "tests/support/shardbed.h"
#include "tests/support/tempdir.h"

#define SHARDS 3u
#define ITEMS 90u

static const char tables[] =
    "  - {name: uniform, max_size: 3000, max_bytes: 3000000, sampler: {kind: uniform},\n"
    "     limiter: {kind: min_size, min_size: 1}}\n"
    "  - {name: ratio, max_size: 3000, sampler: {kind: uniform},\n"
    "     limiter: {kind: sample_to_insert_ratio, samples_per_insert: 4, min_size: 30, error_buffer: 300}}\n";

struct fixture {
    struct shardbed shards;
    rp_client *client;
    rp_writer *writer;
    uint64_t keys[ITEMS];
    uint32_t by_shard[256];
};

static int setup(void **state)
{
    struct fixture *f = calloc(1, sizeof *f);
    assert_int_equal(tempdir_enter(NULL), 0);
    shardbed_start(&f->shards, SHARDS, tables, textf("folder: %s/disk\n", tempdir));
    f->client = shardbed_connect(&f->shards, 1, NULL);
    f->writer = numbers_writer(f->client); /* a session at each shard */
    numbers_insert(f->client, "uniform", 0, ITEMS, f->keys);
    for (uint32_t i = 0; i < ITEMS; i++)
        f->by_shard[f->keys[i] >> 56]++;
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *f = *state;
    ok(rp_writer_destroy(&f->writer, WAIT, &err));
    rp_client_destroy(&f->client);
    shardbed_stop(&f->shards);
    free(f);
    return tempdir_leave(NULL);
}

/* Asks until no more than `away` shards are silent: a busy machine may make one late. */
static rp_info *info_without(struct fixture *f, const char *table, uint32_t sessions, uint32_t away)
{
    for (int tries = 1;; tries++) {
        rp_info *info = NULL;
        uint32_t silent = 0;
        ok(rp_admin_info(f->client, table, sessions, WAIT, &info, &err));
        for (uint32_t s = 0; s < SHARDS; s++)
            silent += rp_info_text(info, textf("shards.shard.%u.problem", s))[0] != '\0';
        if (silent <= away || tries == 20)
            return info;
        rp_info_free(&info);
    }
}

static rp_info *info_of(struct fixture *f, const char *table, uint32_t sessions)
{
    return info_without(f, table, sessions, 0);
}

#define NEAR(a, b) assert_near(a, b, 1e-9)

#define ADMIN_TEST(name) TEST_WITH(struct fixture, f, name)

/* Sums over all shards are what one broker with this configuration says. */
ADMIN_TEST(a_table_is_the_sum_of_its_shards)
{
    SCOPED(rp_info) info = info_of(f, NULL, 1);
    assert_int_equal(rp_info_count(info, "tables"), 2);
    assert_int_equal(rp_info_count(info, "shards.shard"), SHARDS);
    assert_int_equal(rp_info_u64(info, "tables.0.size"), ITEMS);
    assert_int_equal(rp_info_u64(info, "tables.0.max_size"), 3000);
    assert_int_equal(rp_info_u64(info, "tables.0.max_bytes"), 3000000);
    assert_int_equal(rp_info_u64(info, "tables.0.limiter.inserts"), ITEMS);
    assert_int_equal(rp_info_u64(info, "tables.0.episodes"), ITEMS);
    assert_int_equal(rp_info_count(info, "tables.0.signature"), 1);
    NEAR(rp_info_real(info, "tables.1.limiter.min_size"), 30);
    NEAR(rp_info_real(info, "tables.1.limiter.min_diff"), 30 * 4 - 300);
    NEAR(rp_info_real(info, "tables.1.limiter.max_diff"), 30 * 4 + 300);
    NEAR(rp_info_real(info, "tables.1.limiter.samples_per_insert"), 4);
    assert_string_equal(rp_info_text(info, "tables.1.limiter.kind"), "sample_to_insert_ratio");
    assert_int_equal(rp_info_u64(info, "server.session_count"), SHARDS);
    bool seen[SHARDS] = {false};
    for (uint32_t i = 0; i < rp_info_count(info, "sessions"); i++) {
        uint64_t shard = rp_info_u64(rp_info_at(info, "sessions", i), "shard");
        assert_in_range(shard, 0, SHARDS - 1);
        seen[shard] = true;
    }
    uint64_t messages = 0;
    for (uint32_t s = 0; s < SHARDS; s++) {
        const rp_info *shard = rp_info_at(info, "shards.shard", s);
        assert_true(seen[s]);
        assert_int_equal(rp_info_u64(shard, "shard"), s);
        assert_string_equal(rp_info_text(shard, "problem"), "");
        assert_string_equal(rp_info_text(shard, "service"), f->shards.services[s]);
        assert_int_equal(rp_info_count(shard, "tables"), 2);
        assert_int_equal(rp_info_u64(shard, "tables.0.size"), f->by_shard[s]);
        messages += rp_info_u64(shard, "server.messages_in");
    }
    assert_int_equal(rp_info_u64(info, "server.messages_in"), messages);
    rp_info_free(&info);
    info = info_of(f, "ratio", 0);
    assert_int_equal(rp_info_count(info, "tables"), 1);
    assert_int_equal(rp_info_count(info, "shards.shard.2.tables"), 1);
    /* What is not there is nothing. */
    assert_int_equal(rp_info_u64(info, "tables.1.size") + rp_info_u64(info, "moon") + rp_info_u64(NULL, "server"), 0);
    assert_string_equal(rp_info_text(info, "server.uptime_ns"), "");
    assert_null(rp_info_at(info, "tables.0.size", 0));
    assert_null(rp_info_find(info, "tables", "uniform"));
    assert_int_equal(rp_info_count(info, "disk") + rp_info_count(info, "server"), 2);
}

ADMIN_TEST(all_items_are_listed_and_fetched)
{
    uint64_t cursor = 0;
    uint32_t total = 0, by_shard[SHARDS] = {0};
    do {
        SCOPED(rp_info) list = NULL;
        ok(rp_admin_list(f->client, "uniform", cursor, 20, WAIT, &list, &err));
        uint32_t n = rp_info_count(list, "items");
        for (uint32_t i = 0; i < n; i++) {
            const rp_info *item = rp_info_at(list, "items", i);
            uint64_t shard = rp_info_u64(item, "shard");
            assert_int_equal(shard, rp_info_u64(item, "key") >> 56);
            by_shard[shard]++;
        }
        total += n;
        cursor = rp_info_u64(list, "cursor");
    } while (cursor);
    assert_int_equal(total, ITEMS);
    for (uint32_t s = 0; s < SHARDS; s++)
        assert_int_equal(by_shard[s], f->by_shard[s]);
    SCOPED(rp_batch) batch = NULL, *seventh = NULL;
    ok(rp_admin_fetch(f->client, "uniform", f->keys, ITEMS, WAIT, &batch, &err));
    assert_int_equal(arrays_of(batch).n, ITEMS);
    for (uint32_t i = 0; i < ITEMS; i++)
        assert_int_equal(arrays_of(batch).key[i], f->keys[numbers_of(batch)[i]]);
    ok(rp_admin_fetch(f->client, "uniform", &f->keys[7], 1, WAIT, &seventh, &err));
    assert_int_equal(numbers_of(seventh)[0], 7);
    rp_info *list = NULL;
    assert_int_equal(rp_admin_list(f->client, "none", 0, 1, WAIT, &list, &err), RP_NOT_FOUND);
}

ADMIN_TEST(a_limiter_is_divided)
{
    rp_limiter_change change = {.struct_size = sizeof change,
                                .set = RP_LIMITER_MIN_SIZE | RP_LIMITER_ERROR_BUFFER,
                                .min_size = 61,
                                .error_buffer = 600};
    ok(rp_admin_set_limiter(f->client, "ratio", &change, WAIT, NULL, &err));
    SCOPED(rp_info) info = info_of(f, "ratio", 0);
    NEAR(rp_info_real(info, "tables.0.limiter.min_size"), 61); /* 21 + 20 + 20 */
    NEAR(rp_info_real(info, "tables.0.limiter.max_diff") - rp_info_real(info, "tables.0.limiter.min_diff"), 2 * 600);
    NEAR(rp_info_real(info, "shards.shard.0.tables.0.limiter.min_size"), 21);
    NEAR(rp_info_real(info, "shards.shard.1.tables.0.limiter.min_size"), 20);
    NEAR(rp_info_real(info, "shards.shard.1.tables.0.limiter.max_diff") -
             rp_info_real(info, "shards.shard.1.tables.0.limiter.min_diff"),
         400);
    change = (rp_limiter_change){.struct_size = sizeof change, .set = RP_LIMITER_SAMPLES_PER_INSERT};
    change.samples_per_insert = -1;
    assert_int_equal(rp_admin_set_limiter(f->client, "ratio", &change, WAIT, NULL, &err), RP_INVALID_ARGUMENT);
    static const double wrong[] = {0, 0.5, 1.5, -3};
    for (uint32_t i = 0; i < 4; i++) { /* as one broker does */
        change = (rp_limiter_change){.struct_size = sizeof change, .set = RP_LIMITER_MIN_SIZE, .min_size = wrong[i]};
        assert_int_equal(rp_admin_set_limiter(f->client, "ratio", &change, WAIT, NULL, &err), RP_INVALID_ARGUMENT);
    }
}

/* Returns the number of waits of a kind, which name a shard in their text. */
static uint32_t waits_of(struct fixture *f, const char *kind)
{
    char text[512] = "";
    uint32_t n = asked_waits(f->client, kind, text, sizeof text);
    assert_true(n == 0 || strncmp(text, "shard ", 6) == 0);
    return n;
}

static uint64_t samples_of(struct fixture *f)
{
    SCOPED(rp_info) info = info_of(f, "uniform", 0);
    uint64_t n = rp_info_u64(info, "tables.0.limiter.samples");
    NEAR(rp_info_real(info, "tables.0.limiter.cursor"), ITEMS - (double)n);
    return n;
}

/* Tables without a ratio need no permits, and their samples count all the same, also after kill -9. */
ADMIN_TEST(samples_are_counted)
{
    SCOPED(rp_sampler) sampler = SAMPLER(f->client, "uniform", .batch_size = 12, .on_demand = 1);
    batches_pass(sampler, 10);
    assert_int_equal(samples_of(f), 120);
    for (uint32_t s = 0; s < SHARDS; s++) {
        broker_process_stop(&f->shards.shards[s], SIGKILL);
        broker_process_again(&f->shards.shards[s], NULL);
    }
    wait_until(waits_of(f, "shard") == 0);
    assert_int_equal(samples_of(f), 120);
}

/* A sampler of a table that has no items waits for permits at shards. */
ADMIN_TEST(permits_that_wait_are_shown)
{
    SCOPED(rp_client) other = CONNECT(f->shards.services[0]);
    SCOPED(rp_sampler) sampler = SAMPLER(other, "ratio", .batch_size = 8);
    wait_until(waits_of(f, "permit") > 0);
}

/* Counts a text in another. */
static uint32_t count(const char *text, const char *part)
{
    uint32_t n = 0;
    for (const char *at = text; (at = strstr(at, part)) != NULL; at++)
        n++;
    return n;
}

/* A trace has each shard as a process of its own. */
ADMIN_TEST(a_trace_is_of_all)
{
    char *json = NULL;
    ok(rp_admin_trace_json(f->client, 100, &json, &err));
    assert_int_equal(count(json, "\"trace_us\""), SHARDS);
    for (uint32_t s = 0; s < SHARDS; s++)
        assert_has(json, textf(", shard %u (pid", s));
    assert_int_equal(count(json, "shard_missing"), 0);
    rp_string_free(&json);
}

ADMIN_TEST(a_checkpoint_is_of_all)
{
    SCOPED(rp_info) made = NULL;
    ok(rp_admin_checkpoint(f->client, WAIT, &made, &err));
    assert_int_equal(rp_info_u64(made, "items"), ITEMS);
    assert_int_equal(rp_info_u64(made, "number"), 1);
    assert_int_equal(rp_info_count(made, "shards.shard"), SHARDS);
}

/* Runs replay-ctl with these words and gives its exit status and output. */
static int ctl(struct fixture *f, char *out, size_t size, const char *words)
{
    const char *argv[16] = {process_env("RP_CTL"), "-e", f->shards.services[2]};
    char *rest = textf("%s", words), said[1000];
    uint32_t n = 3;
    while (rest && n < 15)
        argv[n++] = strsep(&rest, " ");
    argv[n] = NULL;
    return process_run(argv, out, size, said, sizeof said);
}

/* Changes the ratio of one shard alone: what is left of a change that did not reach all. */
static void change_at(struct fixture *f, uint32_t shard, double samples_per_insert)
{
    Replay__SetLimiter body = REPLAY__SET_LIMITER__INIT;
    body.table = (char *)(uintptr_t) "ratio";
    body.has_samples_per_insert_case = REPLAY__SET_LIMITER__HAS_SAMPLES_PER_INSERT_SAMPLES_PER_INSERT;
    body.samples_per_insert = samples_per_insert;
    struct conn_message message = {.field = REPLAY__REQUEST__BODY_SET_LIMITER, .body = &body.base, .timeout_ms = WAIT};
    ok(conn_call(client_shard(f->client, shard), &message, NULL, &err));
}

ADMIN_TEST(replay_ctl_shows_each_shard)
{
    static char out[100000];
    assert_int_equal(ctl(f, out, sizeof out, "info uniform --shards"), 0);
    assert_int_equal(count(out, "\nuniform "), SHARDS);
    assert_int_equal(count(out, "none to none"), 0); /* it has no ratio */
    assert_int_equal(count(out, "no ratio"), 1);
    assert_int_equal(count(out, "samples_per_insert"), 0);
    assert_int_equal(ctl(f, out, sizeof out, "info --shards"), 0);
    assert_int_equal(count(out, "\nuniform "), SHARDS + 1); /* with the sum */
    assert_int_equal(ctl(f, out, sizeof out, "limiter ratio --shards"), 0);
    assert_int_equal(count(out, "\nratio "), SHARDS);
    assert_int_equal(count(out, "another limiter"), 0);
    change_at(f, 1, 8);
    assert_int_equal(ctl(f, out, sizeof out, "limiter ratio"), 0);
    assert_int_equal(count(out, "shard 1 has another limiter"), 1);
    change_at(f, 1, 4);
    assert_int_equal(ctl(f, out, sizeof out, "items uniform --limit 0 --json --shards"), 0);
    for (uint32_t s = 0; s < SHARDS; s++)
        assert_int_equal(count(out, textf("\"shard\": %u,", s)), f->by_shard[s]);
    assert_int_equal(ctl(f, out, sizeof out, "top --count 1 --shards"), 0);
    assert_int_equal(count(out, " shard 2 "), 2); /* of both tables */
    assert_int_equal(ctl(f, out, sizeof out, "why --shards"), 0);
    assert_int_equal(ctl(f, out, sizeof out, "sessions --shards"), 0);
    assert_int_equal(ctl(f, out, sizeof out, "counters --shards"), 2); /* they are not divided */
}

/* Lists all items that can be had; counts shards that do not answer. */
static uint32_t list_rest(struct fixture *f, uint32_t *missing)
{
    uint64_t cursor = 0;
    uint32_t total = 0;
    *missing = 0;
    do {
        SCOPED(rp_info) list = NULL;
        ok(rp_admin_list(f->client, "uniform", cursor, 100, WAIT, &list, &err));
        *missing += rp_info_text(list, "shards.shard.0.problem")[0] != '\0';
        total += rp_info_count(list, "items");
        cursor = rp_info_u64(list, "cursor");
    } while (cursor);
    return total;
}

/* A launcher's counts do not fall. */
static uint64_t observed_size(struct observer *observer)
{
    struct observation seen;
    observer_poll(observer, WAIT, &seen);
    assert_int_equal(seen.inserts, ITEMS);
    return seen.size;
}

/* A stopped shard is silent although it is connected; a killed one is away. Neither holds up the others. */
ADMIN_TEST(a_shard_without_an_answer_is_named)
{
    uint32_t rest = ITEMS - f->by_shard[1], missing;
    const struct run_config config = {.adder.table = (char[]){"uniform"}};
    const struct command_context context = {.config = &config, .folder = f->shards.dir};
    struct observer *observer = observer_new(&context, f->shards.services[0], NS_PER_S, 5000, &err);
    assert_non_null(observer);
    observed_size(observer);
    for (int killed = 0; killed < 2; killed++) {
        int64_t began = clock_ns();
        if (killed)
            broker_process_stop(&f->shards.shards[1], SIGKILL);
        else
            kill(f->shards.shards[1].pid, SIGSTOP);
        SCOPED(rp_info) info = info_without(f, NULL, 1, 1);
        assert_true(clock_ns() - began < WAIT / 2 * NS_PER_MS);
        assert_int_equal(rp_info_u64(info, "tables.0.size"), rest);
        assert_true(rp_info_text(info, "shards.shard.1.problem")[0] != '\0');
        assert_int_equal(rp_info_count(info, "shards.shard.1.tables"), 0);
        assert_string_equal(rp_info_text(info, "shards.shard.2.problem"), "");
        wait_until(observed_size(observer) == rest);
        assert_int_equal(waits_of(f, "shard"), 1);
        assert_int_equal(list_rest(f, &missing), rest);
        assert_int_equal(missing, 1);
        if (!killed)
            kill(f->shards.shards[1].pid, SIGCONT);
    }
    static char out[100000];
    /* Beside the server's totals, and beside those of the tables; a busy machine may make another shard late. */
    wait_until(ctl(f, out, sizeof out, "info") == 0 && count(out, "2 of 3 shards") == 2);
    observer_destroy(&observer);
    rp_status status = rp_admin_reset(f->client, "uniform", WAIT, NULL, &err);
    assert_true(status == RP_UNAVAILABLE || status == RP_DEADLINE_EXCEEDED);
    assert_non_null(strstr(err.text, "shard 1"));
    assert_int_equal(asked_table(f->client, "uniform", "size"), 0); /* the others are reset */
    broker_process_again(&f->shards.shards[1], NULL);
    wait_until(waits_of(f, "shard") == 0);
    SCOPED(rp_info) removed = NULL;
    ok(rp_admin_reset(f->client, "uniform", WAIT, &removed, &err));
    assert_int_equal(rp_info_u64(removed, "applied"), f->by_shard[1]); /* its journal has them */
}

int main(void)
{
    return test_run(setup, teardown);
}
