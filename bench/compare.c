/* What the broker is compared with: plain libzmq, a table of another size, inserts without a journal. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/bench.h"

#define GOAL_TABLE_SIZE 0.5
#define GOAL_MIXED_SIDE (1.0 / 3)
#define GOAL_MEMORY_BYTES 160.0
#define OFFERED 500000.0

/* A row of `all`. Rows differ from the options that were given in what is not 0. */
struct compared {
    const char *name;
    enum work work;
    uint64_t size; /* bytes of an item */
    double goal;   /* least ratio; 0: none */
    uint32_t per_message, clients;
    enum { THIN, LIBRARY, SAME_HOST } client; /* SAME_HOST: libreplay with shared memory, LIBRARY: without */
    bool memory;                              /* a row for the memory of an item follows */
    bool curve;
    bool more;           /* measured only if --only asks for it */
    const char *journal; /* compared with inserts without a journal */
    double rate;         /* items/s that writers offer; 0: as many as they can */
};

/* The goals of the design. */
static const struct compared rows[] = {
    {"insert, library, tcp", WORK_INSERT, 400, .goal = 0.75, .client = LIBRARY},
    {"sample, library, tcp", WORK_SAMPLE, 400, .goal = 0.65, .client = LIBRARY},
    {"update, library, tcp", WORK_UPDATE, 400, .goal = 0.45, .client = LIBRARY},
    {"insert 400 B, library, same host", WORK_INSERT, 400, .client = SAME_HOST},
    {"sample 400 B, library, same host", WORK_SAMPLE, 400, .goal = 1.0, .client = SAME_HOST},
    {"insert 40 kB, library, same host", WORK_INSERT, 40000, .goal = 1.5, .client = SAME_HOST},
    {"sample 40 kB, library, same host", WORK_SAMPLE, 40000, .goal = 3.0, .client = SAME_HOST},
    {"insert 400 kB, library, same host", WORK_INSERT, 400000, .goal = 1.5, .client = SAME_HOST},
    {"sample 400 kB, library, same host", WORK_SAMPLE, 400000, .goal = 3.0, .client = SAME_HOST},
    {"insert, thin", WORK_INSERT, 400, .goal = 0.8, .memory = true},
    {"insert, thin, one per message", WORK_INSERT, 400, .goal = 0.5, .per_message = 1},
    {"sample, thin", WORK_SAMPLE, 400, .goal = 0.7},
    {"update, thin", WORK_UPDATE, 400, .goal = 0.5},
    {"mixed, thin", WORK_BOTH, 400, .goal = 0.7},
    {"mixed, library", WORK_BOTH, 400, .client = LIBRARY, .more = true},
    {"insert 40 kB, thin", WORK_INSERT, 40000, .goal = 0.8},
    {"sample 40 kB, thin", WORK_SAMPLE, 40000, .goal = 0.8},
    {"insert 400 kB, thin", WORK_INSERT, 400000, .goal = 0.8},
    {"sample 400 kB, thin", WORK_SAMPLE, 400000, .goal = 0.8},
    {"insert, 64 connections", WORK_INSERT, 400, .goal = 0.9, .clients = 64},
    {"sample, 64 connections", WORK_SAMPLE, 400, .goal = 0.9, .clients = 64},
    {"insert, 200 connections", WORK_INSERT, 400, .goal = 0.9, .clients = 200},
    {"sample, 200 connections", WORK_SAMPLE, 400, .goal = 0.9, .clients = 200},
    {"insert, curve", WORK_INSERT, 400, .goal = 0.9, .curve = true},
    {"sample, curve", WORK_SAMPLE, 400, .goal = 0.9, .curve = true},
    {"insert 20 kB, curve", WORK_INSERT, 20000, .goal = 0.9, .curve = true, .more = true},
    {"sample 20 kB, curve", WORK_SAMPLE, 20000, .goal = 0.9, .curve = true, .more = true},
    {"insert 400 kB, curve", WORK_INSERT, 400000, .goal = 0.9, .curve = true, .more = true},
    {"sample 400 kB, curve", WORK_SAMPLE, 400000, .goal = 0.9, .curve = true, .more = true},
    {"insert, journal, 500k/s offered", WORK_INSERT, 400, .goal = 0.95, .journal = "1s", .rate = OFFERED},
    {"insert, journal", WORK_INSERT, 400, .journal = "1s", .more = true},
    {"insert, journal without fsync", WORK_INSERT, 400, .journal = "never", .more = true},
    {"insert, journal with fsync always", WORK_INSERT, 400, .journal = "0s", .more = true},
};

#define N_ROWS (sizeof rows / sizeof rows[0])

/* ---- two sides, measured in turn ---- */

static bool start_sides(const struct options *options, struct party *ours, struct party *theirs)
{
    if (!run_broker(options, options->items, options->items, ours) || !run_add_load(options, ours, options->work))
        return false;
    if (!options->against && !options->extra)
        return run_raw(options, ours, theirs);
    struct options other = *options;
    other.extra = NULL;
    uint64_t items = options->against ? options->against : options->items;
    return run_broker(&other, items, items, theirs) && run_add_load(&other, theirs, options->work);
}

/* Measures the broker, and in turn with it libzmq, a broker with another number of items, or one without a journal. */
static bool compare(const struct options *options, const struct compared *as)
{
    static struct party ours, theirs;
    char other[64] = "raw";
    bool raw = !options->against && !options->extra;
    if (options->against)
        snprintf(other, sizeof other, "%llu items", (unsigned long long)options->against);
    else if (!raw)
        snprintf(other, sizeof other, "no journal");
    bool ok = start_sides(options, &ours, &theirs);
    struct row row = {.what = as->name, .other = other, .goal = as->goal, .memory_per_item = ours.memory_per_item};
    enum work work = options->work;
    unsigned groups = work == WORK_INSERT ? GROUP_WRITE : GROUP_ASK;
    const struct phase phases[] = {{&ours, groups, false}, {&theirs, groups, work == WORK_INSERT && raw}};
    ok = report_pair(ok, options, row, phases, work != WORK_INSERT);
    if (ok && as->memory)
        report_cost(options, "memory of an item beyond its payload", row.memory_per_item, GOAL_MEMORY_BYTES, "B");
    return ok;
}

/* ---- mixed ---- */

enum { WRITER_ALONE, SAMPLER_ALONE, TOGETHER, RAW_TOGETHER, N_MIXED };

static void report_mixed(const struct options *options, const struct figures *figures, double goal)
{
    static struct figures sum[2]; /* of inserts and samples: the broker's, raw */
    for (int side = 0; side < 2; side++) {
        sum[side] = figures[side ? RAW_TOGETHER : TOGETHER];
        for (uint32_t i = 0; i < sum[side].n; i++)
            sum[side].rate[0][i] += sum[side].rate[1][i];
    }
    double side = goal > 0 ? GOAL_MIXED_SIDE : 0;
    const struct figures *both = &figures[TOGETHER];
    struct row row = {.what = "mixed: inserts", .other = "alone", .goal = side, .memory_per_item = NAN};
    report_figures(options, row, both, &figures[WRITER_ALONE], false);
    row.what = "mixed: samples, each with an update";
    report_figures(options, row, both, &figures[SAMPLER_ALONE], true);
    row = (struct row){.what = "mixed: both", .other = "raw", .goal = goal, .memory_per_item = NAN};
    report_figures(options, row, &sum[0], &sum[1], false);
}

static bool compare_mixed(const struct options *options, double goal)
{
    static struct party ours, raw;
    static struct figures figures[N_MIXED];
    bool ok = run_broker(options, options->items, options->items, &ours) && run_add_load(options, &ours, WORK_INSERT) &&
              run_add_load(options, &ours, WORK_BOTH) && run_raw(options, &ours, &raw);
    const struct phase phases[] = {{&ours, GROUP_WRITE, false},
                                   {&ours, GROUP_ASK, false},
                                   {&ours, GROUP_WRITE | GROUP_ASK, false},
                                   {&raw, GROUP_WRITE | GROUP_ASK, true}};
    ok = ok && run_phases(options, phases, N_MIXED, figures);
    if (ok)
        report_mixed(options, figures, goal);
    run_end(&ours);
    run_end(&raw);
    return ok;
}

/* ---- commands ---- */

static bool compare_with_journal(const struct options *given, const struct compared *row)
{
    struct options options = *given;
    char folder[300], extra[600];
    if (!files_folder(given->dir, folder, sizeof folder))
        return false;
    /* Checkpoints keep the journal short; they are part of its cost. */
    snprintf(extra, sizeof extra, "folder: %s\njournal: %s\ncheckpoint: {every: 0s, keep: 1}\n", folder, row->journal);
    options.extra = extra;
    bool ok = compare(&options, row);
    files_remove(folder);
    return ok;
}

static bool compare_row(const struct options *given, const struct compared *row)
{
    struct options options = *given;
    options.size = row->size;
    options.per_message = row->per_message;
    options.clients = row->clients;
    options.rate = row->rate;
    options.library = row->client != THIN;
    options.work = row->work;
    options_settle(&options);
    if (row->client != THIN)
        setenv("REPLAY_SHM", row->client == SAME_HOST ? "1" : "0", 1);
    if (row->curve && !curve_init())
        return false;
    bool ok = row->work == WORK_BOTH ? compare_mixed(&options, row->goal)
              : row->journal         ? compare_with_journal(&options, row)
                                     : compare(&options, row);
    if (row->curve)
        curve_fini();
    return ok;
}

bool command_all(struct options *options)
{
    bool ok = true, any = false;
    for (uint32_t i = 0; ok && i < N_ROWS; i++)
        if (options->only ? options_want(options, rows[i].name) : !rows[i].more) {
            any = true;
            ok = compare_row(options, &rows[i]);
        }
    ok = ok && lag_rows(options, &any);
    if (!any)
        fprintf(stderr, "replay-bench: no row is named like '%s'\n", options->only);
    return ok && any;
}

bool command_one(struct options *options)
{
    static const char *const names[] = {"insert", "sample", "update", "mixed"};
    enum work work = options->work;
    struct compared as = {.name = names[work], .goal = options->against ? GOAL_TABLE_SIZE : 0};
    for (uint32_t i = 0; i < N_ROWS && !options->against && !options->library; i++) {
        const struct compared *row = &rows[i];
        if (row->work == work && row->client == THIN && !row->curve && !row->journal && row->size == options->size &&
            row->per_message == options->per_message && row->clients == options->clients)
            as.goal = row->goal;
    }
    options_settle(options);
    return work == WORK_BOTH ? compare_mixed(options, as.goal) : compare(options, &as);
}
