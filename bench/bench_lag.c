/* Data that must not be old: groups and leases against a plain queue, and samples from a table whose window of versions moves. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench/bench.h"
#include "proto/base/rng.h"
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

/* A queue and what it has beyond a plain one. */
struct lag_row {
    const char *name;
    bool groups, leases;
    double goal;
};

static const struct lag_row lag_queues[] = {{"groups of 8 x 1 kB", true, false, GOAL_GROUPS},
                                            {"queue with leases, 1 kB", false, true, GOAL_LEASES}};

/* Starts a queue, its writers and its samplers. */
static bool lag_start(const struct options *options, struct party *out)
{
    return run_broker(options, QUEUE_ITEMS, 0, out) && run_add_load(options, out, WORK_INSERT) &&
           run_add_load(options, out, WORK_SAMPLE);
}

/* Measures a queue with groups or leases in turn with a plain one. */
static bool lag_compare(const struct options *given, const struct lag_row *as)
{
    static struct party ours, plain;
    static struct figures figures[2];
    struct options options = *given;
    char shards[32];
    options.library = true;
    options.size = ITEM_BYTES;
    options.sampler = "kind: fifo";
    options.limiter = "kind: queue";
    options.processes = as->leases ? WORKERS : given->shards ? given->shards : 1;
    options.clients = options.processes;
    options.items = QUEUE_ITEMS;
    options.in_flight = 4; /* as many as libreplay's samplers have by default */
    options.group_items = GROUP_ITEMS;
    options.on_demand = as->leases;
    options_settle(&options);
    snprintf(shards, sizeof shards, "shards: %u\n", given->shards);
    options.extra = given->shards ? shards : NULL;
    options.shards = given->shards ? given->shards : 1;
    options.table_extra = "    max_times_sampled: 1\n";
    struct options other = options;
    options.groups = as->groups;
    options.lease_ms = as->leases ? LEASE_MS : 0;
    if (as->groups)
        options.table_extra = "    max_times_sampled: 1\n    group: {size: 8, deadline: 600s, incomplete: drop}\n";
    bool ok = lag_start(&options, &ours) && lag_start(&other, &plain);
    const struct phase phases[2] = {{&ours, GROUP_WRITE | GROUP_ASK, false}, {&plain, GROUP_WRITE | GROUP_ASK, false}};
    struct row row = {.what = as->name, .other = "plain queue", .goal = as->goal, .memory_per_item = NAN};
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

struct lag_load {
    struct load load;
    struct tally *mover; /* value[0]: the window moves */
};

/* Fills the table with items of as many versions as it may have. Then it publishes a version every 10 ms, whose items replace those that
 * have become too old, while it is told to. */
static void lag_move_job(void *ctx)
{
    struct load *self = ctx;
    rp_client *client = load_client(self);
    rp_writer *writer = load_writer(self, client);
    uint32_t each = (uint32_t)(self->options->items / WINDOW_VERSIONS);
    struct rng rng;
    rng_seed(&rng, 1);
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
        load_items(self, writer, each, &rng);
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
    rp_sampler *sampler = load_sampler(load, load_client(load));
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
    options.batch = WINDOW_BATCH;
    options.on_demand = true;
    snprintf(window, sizeof window, "    max_lag: %u\n", WINDOW_VERSIONS - 1);
    options.table_extra = window;
    options_settle(&options);
    bool ok = run_broker(&options, options.items + options.items / 8, 0, &party);
    struct load mover = {0};
    ok = ok && load_init(&mover, &options, &party) && run_add(&party, GROUP_OTHERS, lag_move_job, &mover, 300);
    struct lag_load sampler = {.load = mover, .mover = mover.tally};
    const struct tally *timed =
        ok ? child_run(lag_latency_job, &sampler, 60 + 4 * options.seconds * options.repeats) : NULL;
    run_end(&party);
    if (!timed)
        return false;
    const uint64_t *ns = timed->value;
    report_cost(given, name, (double)ns[0] * 1e-6, GOAL_WINDOW_MS, "ms");
    report_value(given, "  the same while it stands still", (double)ns[1] * 1e-6, 0, "ms");
    report_value(given, "  moving / still", (double)ns[0] / (double)ns[1], 0, "ratio");
    report_value(given, "  versions that came meanwhile", (double)atomic_load(&mover.tally->items), 0, "versions");
    return true;
}

/* ---- commands ---- */

bool lag_rows(const struct options *options, bool *any)
{
    static const char window[] = "p99 of a sample, window moves at 100/s";
    bool ok = true;
    setenv("REPLAY_SHM", "0", 1);
    for (uint32_t i = 0; ok && i < sizeof lag_queues / sizeof lag_queues[0]; i++)
        if (options_want(options, lag_queues[i].name)) {
            *any = true;
            ok = lag_compare(options, &lag_queues[i]);
        }
    if (!ok || !options_want(options, window))
        return ok;
    *any = true;
    return lag_window(options, window);
}

bool command_lag(struct options *options)
{
    bool any = false;
    return lag_rows(options, &any);
}
