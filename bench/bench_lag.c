/* Data that must not be old: groups and leases against a plain queue, and samples from a table whose window of versions moves. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench/bench.h"
#include "replay/replay.h"

#define ITEM_BYTES 1000u
#define GROUP_ITEMS 8u
#define QUEUE_ITEMS 100000u
#define LEASE_MS 60000u
#define WORKERS 4u /* that take leases */
#define GOAL_GROUPS 0.5
#define GOAL_LEASES 0.9
#define WINDOW_BYTES 100u /* of an item */
#define WINDOW_ITEMS 1000000u
#define WINDOW_VERSIONS 1000u
#define WINDOW_US 10000
#define WINDOW_BATCH 64u
#define GOAL_WINDOW_MS 5.0
#define MOST_LATENCIES 1000000u

/* What the processes of a row do beyond plain queues. */
struct lag_load {
    struct load load;
    bool groups, on_demand, leases;
    struct tally *mover; /* value[0]: the window moves */
};

static rp_writer *lag_writer(struct load *self, rp_client *client, uint32_t bytes)
{
    rp_column column = {"x", RP_DTYPE_UINT8, RP_CODEC_RAW, 1, {bytes}};
    return load_got(self, rp_writer_new(client, &column, 1, NULL, 30000, &self->err));
}

static void lag_write(struct load *self, rp_writer *writer, uint32_t n)
{
    const void *row = self->store.data;
    for (uint32_t i = 0; i < n; i++) {
        load_ok(self, rp_writer_append(writer, &row, -1, &self->err));
        load_ok(self, rp_writer_item_last(writer, LOAD_TABLE, 1, 1, -1, NULL, &self->err));
    }
}

/* Writes episodes of eight items, each a group if the table has groups, without end. */
static void lag_write_job(void *ctx)
{
    struct lag_load *self = ctx;
    struct load *load = &self->load;
    rp_writer *writer = lag_writer(load, load_client(load), ITEM_BYTES);
    for (uint64_t group = (uint64_t)getpid() << 32;; group++) {
        rp_writer_set_group(writer, self->groups ? group : 0);
        lag_write(load, writer, GROUP_ITEMS);
        load_ok(load, rp_writer_end_episode(writer, RP_END_GO, -1, &load->err));
        tally_add(load->tally, GROUP_ITEMS);
        tally_set_state(load->tally, TALLY_READY);
    }
}

static rp_sampler *lag_sampler(struct lag_load *self, rp_client *client, uint32_t batch)
{
    rp_sampler_options options = {.struct_size = sizeof options, .batch_size = batch};
    options.on_demand = self->on_demand;
    options.lease_ms = self->leases ? LEASE_MS : 0;
    return load_got(&self->load, rp_sampler_new(client, LOAD_TABLE, &options, &self->load.err));
}

/* Takes batches, and acknowledges them if they are under lease. */
static void lag_sample_job(void *ctx)
{
    struct lag_load *self = ctx;
    struct load *load = &self->load;
    rp_client *client = load_client(load);
    rp_sampler *sampler = lag_sampler(self, client, load->options->batch);
    const rp_updater_options options = {.struct_size = sizeof options, .acknowledge = 1};
    rp_updater *acks = load_got(load, rp_updater_new(client, LOAD_TABLE, &options, &load->err));
    for (rp_batch *batch;; rp_batch_release(&batch)) {
        rp_batch_arrays arrays = {.struct_size = sizeof arrays};
        load_ok(load, rp_sampler_next(sampler, &batch, -1, &load->err));
        rp_batch_get_arrays(batch, &arrays);
        if (self->leases)
            load_ok(load, rp_updater_add(acks, arrays.key, NULL, arrays.n, -1, NULL, &load->err));
        tally_add(load->tally, arrays.n);
        tally_set_state(load->tally, TALLY_READY);
    }
}

/* Starts a queue, its writers and its samplers. */
static bool lag_start(const struct options *options, const struct lag_load *like, struct party *out)
{
    bool ok = run_broker_filled(options, QUEUE_ITEMS, 0, out);
    for (uint32_t i = 0; i < 2 * options->processes && ok; i++) {
        struct lag_load load = *like;
        bool writes = i < options->processes;
        ok = load_init(&load.load, options, out) &&
             run_add(out, writes ? GROUP_WRITE : GROUP_ASK, writes ? lag_write_job : lag_sample_job, &load, 0);
    }
    for (uint32_t i = 0; i < out->n_members && ok; i++)
        ok = children_await(out->members[i].tally, TALLY_READY, 60);
    return ok;
}

/* Measures a queue with groups or leases in turn with a plain one. */
static bool lag_compare(const struct options *given, const char *name, const struct lag_load *as, double goal)
{
    static struct party ours, plain;
    static struct figures figures[2];
    struct options options = *given;
    char shards[32];
    options.size = ITEM_BYTES;
    options.sampler = "kind: fifo";
    options.limiter = "kind: queue";
    options.processes = as->leases ? WORKERS : given->shards ? given->shards : 1;
    options.clients = options.processes;
    options.items = QUEUE_ITEMS;
    options_settle(&options);
    snprintf(shards, sizeof shards, "shards: %u\n", given->shards);
    options.extra = given->shards ? shards : NULL;
    struct options other = options;
    options.table_extra = as->groups
                              ? "    max_times_sampled: 1\n    group: {size: 8, deadline: 600s, incomplete: drop}\n"
                              : "    max_times_sampled: 1\n";
    other.table_extra = "    max_times_sampled: 1\n";
    bool ok =
        lag_start(&options, as, &ours) && lag_start(&other, &(struct lag_load){.on_demand = as->on_demand}, &plain);
    const struct phase phases[2] = {{&ours, GROUP_WRITE | GROUP_ASK, false}, {&plain, GROUP_WRITE | GROUP_ASK, false}};
    struct row row = {.what = name, .other = "plain queue", .goal = goal, .memory_per_item = NAN};
    ok = ok && run_phases(&options, phases, 2, figures);
    if (ok)
        report_figures(&options, row, &figures[0], &figures[1], true);
    if (ok && as->groups)
        report_value(given, "  groups/s", spread_of(figures[0].rate[1], figures[0].n).median / GROUP_ITEMS, 0,
                     "groups/s");
    run_end(&ours);
    run_end(&plain);
    return ok;
}

/* ---- the window ---- */

/* Fills the table with items of as many versions as it may have. Then it publishes a version every 10 ms, whose items replace those that
 * have become too old, while it is told to. */
static void lag_move_job(void *ctx)
{
    struct load *self = &((struct lag_load *)ctx)->load;
    rp_client *client = load_client(self);
    rp_writer *writer = lag_writer(self, client, WINDOW_BYTES);
    uint32_t each = (uint32_t)(self->options->items / WINDOW_VERSIONS);
    for (uint64_t version = 0, filled = 0;; filled++) {
        if (filled == WINDOW_VERSIONS) {
            load_ok(self, rp_writer_flush(writer, 0, 60000, &self->err));
            tally_set_state(self->tally, TALLY_READY);
        }
        while (filled >= WINDOW_VERSIONS && !*(volatile uint64_t *)&self->tally->value[0])
            usleep(WINDOW_US);
        double start = children_now();
        load_ok(self, rp_params_put(client, "policy", &version, sizeof version, 30000, &version, &self->err));
        rp_writer_set_policy(writer, version);
        lag_write(self, writer, each);
        double left = WINDOW_US - (children_now() - start) * 1e6;
        if (filled >= WINDOW_VERSIONS && left > 0)
            usleep((useconds_t)left);
        tally_add(self->tally, filled >= WINDOW_VERSIONS);
    }
}

/* Times samples while the window moves (value[0], ns of the 99th percentile) and, in turn, while it does not (value[1]). */
static void lag_latency_job(void *ctx)
{
    struct lag_load *self = ctx;
    struct load *load = &self->load;
    static double p99[2][MOST_REPEATS], taken[MOST_LATENCIES];
    rp_sampler *sampler = lag_sampler(self, load_client(load), WINDOW_BATCH);
    for (uint32_t i = 0; i < 2 * load->options->repeats; i++) {
        uint32_t n = 0;
        *(volatile uint64_t *)&self->mover->value[0] = i % 2 == 0;
        for (double end = children_now() + load->options->seconds, start; n < MOST_LATENCIES && children_now() < end;) {
            rp_batch *batch;
            start = children_now();
            load_ok(load, rp_sampler_next(sampler, &batch, 30000, &load->err));
            taken[n++] = children_now() - start;
            rp_batch_release(&batch);
        }
        p99[i % 2][i / 2] = sort_to(taken, n, 0.99);
    }
    for (uint32_t i = 0; i < 2; i++)
        load->tally->value[i] = (uint64_t)(spread_of(p99[i], load->options->repeats).median * 1e9);
    tally_set_state(load->tally, TALLY_DONE);
}

static bool lag_window(const struct options *given, const char *name)
{
    static struct party party;
    struct options options = *given;
    char window[64];
    options.size = WINDOW_BYTES;
    options.items = given->items ? given->items : WINDOW_ITEMS;
    options.sampler = "kind: uniform";
    snprintf(window, sizeof window, "    max_lag: %u\n", WINDOW_VERSIONS - 1);
    options.table_extra = window;
    options_settle(&options);
    bool ok = run_broker_filled(&options, options.items + options.items / 8, 0, &party);
    struct lag_load mover = {0};
    ok = ok && load_init(&mover.load, &options, &party) && run_add(&party, GROUP_OTHERS, lag_move_job, &mover, 300);
    struct lag_load sampler = {.load = mover.load, .on_demand = true, .mover = mover.load.tally};
    const struct tally *timed =
        ok ? child_run(lag_latency_job, &sampler, 60 + 4 * options.seconds * options.repeats) : NULL;
    run_end(&party);
    if (!timed)
        return false;
    const uint64_t *ns = timed->value;
    report_cost(given, name, (double)ns[0] * 1e-6, GOAL_WINDOW_MS, "ms");
    report_value(given, "  the same while it stands still", (double)ns[1] * 1e-6, 0, "ms");
    report_value(given, "  moving / still", (double)ns[0] / (double)ns[1], 0, "ratio");
    report_value(given, "  versions that came meanwhile", (double)atomic_load(&mover.load.tally->items), 0, "versions");
    return true;
}

/* ---- commands ---- */

bool lag_rows(const struct options *options, bool *any)
{
    static const char groups[] = "groups of 8 x 1 kB", leases[] = "queue with leases, 1 kB",
                      window[] = "p99 of a sample, window moves at 100/s";
    const bool want[] = {options_want(options, groups), options_want(options, leases), options_want(options, window)};
    *any = *any || want[0] || want[1] || want[2];
    setenv("REPLAY_SHM", "0", 1);
    bool ok = !want[0] || lag_compare(options, groups, &(struct lag_load){.groups = true}, GOAL_GROUPS);
    ok = ok &&
         (!want[1] || lag_compare(options, leases, &(struct lag_load){.on_demand = true, .leases = true}, GOAL_LEASES));
    return ok && (!want[2] || lag_window(options, window));
}

bool command_lag(struct options *options)
{
    bool any = false;
    return lag_rows(options, &any);
}
