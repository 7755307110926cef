#include "bench/commands.h"

#include <stdio.h>
#include <stdlib.h>

#include "bench/curve.h"
#include "bench/report.h"
#include "bench/run.h"

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
    static struct figures figures[2];
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
    ok = ok && run_phases(&options, phases, 2, figures);
    if (ok) {
        row_fill(&row, figures, work != WORK_INSERT);
        report_row(&options, &row);
    }
    run_end(&ours);
    run_end(&theirs);
    return ok;
}

/* size, items to a message, connections; 0: as given */
struct variant {
    uint64_t size;
    uint32_t per_message, clients;
};

static int compare_all(struct options *options, enum work work, const char *name, const struct variant *variants,
                       uint32_t n)
{
    report_begin(options, name);
    bool ok = true;
    for (uint32_t i = 0; ok && i < n; i++) {
        struct options one = *options;
        if (variants[i].size)
            one.size = variants[i].size;
        if (variants[i].per_message)
            one.per_message = variants[i].per_message;
        if (variants[i].clients)
            one.clients = variants[i].clients;
        ok = compare(&one, work);
    }
    report_end(options);
    return ok ? 0 : 1;
}

int command_insert(struct options *options)
{
    static const struct variant all[] = {{400, 50, 1}, {400, 1, 1}, {40000, 0, 1}, {400000, 0, 1}}, given = {0};
    return compare_all(options, WORK_INSERT, "insert", options->all ? all : &given, options->all ? 4 : 1);
}

int command_sample(struct options *options)
{
    static const struct variant all[] = {{400, 0, 1}, {40000, 0, 1}, {400000, 0, 1}}, given = {0};
    return compare_all(options, WORK_SAMPLE, "sample", options->all ? all : &given, options->all ? 3 : 1);
}

int command_update(struct options *options)
{
    static const struct variant given = {0};
    return compare_all(options, WORK_UPDATE, "update", &given, 1);
}

int command_curve(struct options *options)
{
    static const uint64_t sizes[] = {400, 20000, 400000};
    bool ok = curve_init();
    report_begin(options, "curve");
    for (uint32_t i = 0; ok && i < 3; i++) {
        struct options one = *options;
        one.size = sizes[i];
        ok = compare(&one, WORK_INSERT) && compare(&one, WORK_SAMPLE);
    }
    report_end(options);
    curve_fini();
    return ok ? 0 : 1;
}

int command_clients(struct options *options)
{
    static const uint32_t counts[] = {64, 200};
    report_begin(options, "clients");
    bool ok = true;
    for (uint32_t i = 0; ok && i < (options->clients ? 1 : 2); i++) {
        struct options one = *options;
        if (!options->clients)
            one.clients = counts[i];
        ok = compare(&one, WORK_INSERT) && compare(&one, WORK_SAMPLE);
    }
    report_end(options);
    return ok ? 0 : 1;
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

int command_mixed(struct options *options)
{
    if (!options->in_flight)
        options->in_flight = 16;
    options_settle(options);
    static struct party ours, raw;
    static struct figures figures[N_MIXED];
    report_begin(options, "mixed");
    bool ok = run_broker(options, options->items, &ours) && run_add_load(options, &ours, WORK_INSERT) &&
              run_add_load(options, &ours, WORK_BOTH) && run_raw(options, &ours, &raw);
    const struct phase phases[] = {
        {&ours, GROUP_WRITE, false}, {&ours, GROUP_ASK, false}, {&ours, GROUP_WRITE | GROUP_ASK, false},
        {&raw, GROUP_WRITE, true},   {&raw, GROUP_ASK, true},   {&raw, GROUP_WRITE | GROUP_ASK, true}};
    ok = ok && run_phases(options, phases, N_MIXED, figures);
    if (ok)
        report_mixed(options, figures);
    report_end(options);
    run_end(&ours);
    run_end(&raw);
    return ok ? 0 : 1;
}
