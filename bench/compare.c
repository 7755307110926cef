/* The commands that compare two parties by rates: the broker with libzmq, or with itself in another state. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench/bench.h"

/* The goals of the design, as ratios. */
#define GOAL_INSERT 0.8
#define GOAL_INSERT_SINGLE 0.5
#define GOAL_SAMPLE 0.7
#define GOAL_UPDATE 0.5
#define GOAL_LARGE 0.8
#define GOAL_MANY_CLIENTS 0.9
#define GOAL_CURVE 0.9
#define GOAL_TABLE_SIZE 0.5
#define GOAL_MIXED 0.7
#define GOAL_MIXED_SIDE (1.0 / 3)
#define GOAL_JOURNAL 0.95

static const char *const work_names[] = {"insert", "sample", "update", "sample and update"};

static double goal_of(const struct options *options, enum work work)
{
    if (options->library)
        return 0; /* the goals are for the broker, not for the library */
    if (options->against)
        return GOAL_TABLE_SIZE;
    if (curve_folder())
        return GOAL_CURVE;
    if (options->clients > 1)
        return GOAL_MANY_CLIENTS;
    if (work == WORK_UPDATE)
        return GOAL_UPDATE;
    if (options->size >= LARGE_BYTES)
        return GOAL_LARGE;
    if (work == WORK_SAMPLE)
        return GOAL_SAMPLE;
    return options->per_message == 1 ? GOAL_INSERT_SINGLE : GOAL_INSERT;
}

/* Measures one row: the broker, and in turn with it libzmq or a broker with another number of items. */
static bool compare(const struct options *given, enum work work)
{
    struct options options = *given;
    options_settle(&options);
    static struct party ours, theirs;
    static char other[64];
    struct row row = {.what = work_names[work], .other = "raw", .goal = goal_of(&options, work)};
    bool ok = run_broker(&options, options.items, &ours) && run_add_load(&options, &ours, work);
    row.memory_per_item = ours.memory_per_item;
    if (ok && options.against) {
        snprintf(other, sizeof other, "%llu", (unsigned long long)options.against);
        row.other = other;
        ok = run_broker(&options, options.against, &theirs) && run_add_load(&options, &theirs, work);
    } else if (ok) {
        ok = run_raw(&options, &ours, &theirs);
    }
    unsigned groups = work == WORK_INSERT ? GROUP_WRITE : GROUP_ASK;
    const struct phase phases[] = {{&ours, groups, false}, {&theirs, groups, work == WORK_INSERT && !options.against}};
    return report_pair(ok, &options, row, phases, work != WORK_INSERT);
}

/* A row of a command: what differs from the options that were given; 0: nothing. */
struct variant {
    enum work work;
    uint64_t size;
    uint32_t per_message, clients;
};

static bool compare_all(const struct options *options, const struct variant *variants, uint32_t n)
{
    bool ok = true;
    for (uint32_t i = 0; ok && i < n; i++) {
        struct options one = *options;
        one.size = variants[i].size ? variants[i].size : one.size;
        one.per_message = variants[i].per_message ? variants[i].per_message : one.per_message;
        one.clients = variants[i].clients ? variants[i].clients : one.clients;
        ok = compare(&one, variants[i].work);
    }
    return ok;
}

bool command_insert(struct options *options)
{
    static const struct variant all[] = {{WORK_INSERT, 400, 50, 1},
                                         {WORK_INSERT, 400, 1, 1},
                                         {WORK_INSERT, 40000, 0, 1},
                                         {WORK_INSERT, 400000, 0, 1}},
                                given = {.work = WORK_INSERT};
    return options->all ? compare_all(options, all, 4) : compare_all(options, &given, 1);
}

bool command_sample(struct options *options)
{
    static const struct variant all[] = {{WORK_SAMPLE, 400, 0, 1},
                                         {WORK_SAMPLE, 40000, 0, 1},
                                         {WORK_SAMPLE, 400000, 0, 1}},
                                given = {.work = WORK_SAMPLE};
    return options->all ? compare_all(options, all, 3) : compare_all(options, &given, 1);
}

bool command_update(struct options *options)
{
    return compare(options, WORK_UPDATE);
}

bool command_curve(struct options *options)
{
    static const struct variant all[] = {{WORK_INSERT, 400, 0, 0},    {WORK_SAMPLE, 400, 0, 0},
                                         {WORK_INSERT, 20000, 0, 0},  {WORK_SAMPLE, 20000, 0, 0},
                                         {WORK_INSERT, 400000, 0, 0}, {WORK_SAMPLE, 400000, 0, 0}};
    bool ok = curve_init() && compare_all(options, all, 6);
    curve_fini();
    return ok;
}

bool command_clients(struct options *options)
{
    static const struct variant all[] = {{WORK_INSERT, 0, 0, 64},
                                         {WORK_SAMPLE, 0, 0, 64},
                                         {WORK_INSERT, 0, 0, 200},
                                         {WORK_SAMPLE, 0, 0, 200}},
                                given[] = {{.work = WORK_INSERT}, {.work = WORK_SAMPLE}};
    return options->clients ? compare_all(options, given, 2) : compare_all(options, all, 4);
}

/* ---- mixed ---- */

enum { WRITER_ALONE, SAMPLER_ALONE, TOGETHER, RAW_WRITER, RAW_SAMPLER, RAW_TOGETHER, N_MIXED };

static void report_mixed(const struct options *options, const struct figures *figures)
{
    double sum[2][MOST_REPEATS];
    uint32_t n = figures[0].n;
    for (uint32_t i = 0; i < n; i++)
        for (int side = 0; side < 2; side++) {
            const struct figures *both = &figures[side ? RAW_TOGETHER : TOGETHER];
            sum[side][i] = both->rate[0][i] + both->rate[1][i];
        }
    static const char *const names[] = {"broker: inserts/s, writer alone", "broker: samples/s, sampler alone",
                                        "broker: inserts/s together",      "raw: inserts/s, writer alone",
                                        "raw: samples/s, sampler alone",   "raw: inserts/s together"};
    static const int order[] = {WRITER_ALONE, SAMPLER_ALONE, TOGETHER, RAW_WRITER, RAW_SAMPLER, RAW_TOGETHER};
    for (int i = 0; i < N_MIXED; i++) {
        const struct figures *at = &figures[order[i]];
        bool sampler = order[i] == SAMPLER_ALONE || order[i] == RAW_SAMPLER;
        report_value(options, names[i], spread_of(at->rate[sampler], n).median, 0, "items/s");
        if (order[i] == TOGETHER) {
            report_value(options, "broker: samples/s together", spread_of(at->rate[1], n).median, 0, "items/s");
            report_value(options, "broker: updates/s together", spread_of(at->updates, n).median, 0, "items/s");
        } else if (order[i] == RAW_TOGETHER) {
            report_value(options, "raw: samples/s together", spread_of(at->rate[1], n).median, 0, "items/s");
        }
    }
    double goal = options->library ? 0 : GOAL_MIXED, goal_side = options->library ? 0 : GOAL_MIXED_SIDE;
    report_value(options, "writer together / alone",
                 spread_ratio(figures[TOGETHER].rate[0], figures[WRITER_ALONE].rate[0], n).median, goal_side, "ratio");
    report_value(options, "sampler together / alone",
                 spread_ratio(figures[TOGETHER].rate[1], figures[SAMPLER_ALONE].rate[1], n).median, goal_side, "ratio");
    report_value(options, "sum together / raw sum together", spread_ratio(sum[0], sum[1], n).median, goal, "ratio");
    report_value(options, "broker cores together", spread_of(figures[TOGETHER].server_cpu, n).median, 0, "cores");
    report_value(options, "clients' cores together", spread_of(figures[TOGETHER].client_cpu, n).median, 0, "cores");
}

bool command_mixed(struct options *options)
{
    if (!options->in_flight)
        options->in_flight = 16;
    options_settle(options);
    static struct party ours, raw;
    static struct figures figures[N_MIXED];
    bool ok = run_broker(options, options->items, &ours) && run_add_load(options, &ours, WORK_INSERT) &&
              run_add_load(options, &ours, WORK_BOTH) && run_raw(options, &ours, &raw);
    const struct phase phases[] = {
        {&ours, GROUP_WRITE, false}, {&ours, GROUP_ASK, false}, {&ours, GROUP_WRITE | GROUP_ASK, false},
        {&raw, GROUP_WRITE, true},   {&raw, GROUP_ASK, true},   {&raw, GROUP_WRITE | GROUP_ASK, true}};
    ok = ok && run_phases(options, phases, N_MIXED, figures);
    if (ok)
        report_mixed(options, figures);
    run_end(&ours);
    run_end(&raw);
    return ok;
}

/* ---- inserts with the journal on, next to inserts without it ---- */

#define OFFERED 500000.0

struct journaling {
    const char *sync; /* the key journal */
    double rate;
    double goal;
    const char *what;
};

static bool compare_journal(const struct options *given, const struct journaling *setting)
{
    static struct party with, without;
    char folder[300], extra[600], what[120];
    if (!files_folder(given->dir, folder, sizeof folder))
        return false;
    /* Checkpoints keep the journal short; they are part of its cost. */
    snprintf(extra, sizeof extra, "folder: %s\njournal: %s\ncheckpoint: {every: 0s, keep: 1}\n", folder, setting->sync);
    struct options options = *given, plain = *given;
    options.rate = plain.rate = setting->rate;
    options.extra = extra;
    bool ok = run_broker(&options, options.items, &with) && run_add_load(&options, &with, WORK_INSERT) &&
              run_broker(&plain, plain.items, &without) && run_add_load(&plain, &without, WORK_INSERT);
    const struct phase phases[] = {{&with, GROUP_WRITE, false}, {&without, GROUP_WRITE, false}};
    snprintf(what, sizeof what, "insert, journal: %s, %s", setting->sync, setting->what);
    struct row row = {.what = what, .other = "no journal", .goal = setting->goal};
    row.memory_per_item = with.memory_per_item;
    ok = report_pair(ok, &options, row, phases, false);
    files_remove(folder);
    return ok;
}

bool command_journal(struct options *options)
{
    options_settle(options);
    double offered = options->rate > 0 ? options->rate : OFFERED;
    char what[60];
    snprintf(what, sizeof what, "%.0f items/s offered", offered);
    const struct journaling settings[] = {{"1s", offered, GOAL_JOURNAL, what},
                                          {"1s", 0, 0, "as many as can be"},
                                          {"never", 0, 0, "as many as can be"},
                                          {"0s", 0, 0, "as many as can be"}};
    bool ok = true;
    for (uint32_t i = 0; ok && i < (options->quick ? 1 : 4); i++)
        ok = compare_journal(options, &settings[i]);
    return ok;
}
