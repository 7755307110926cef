/* runs: lists runs, compares some of them, or removes old ones. */
#include <stdlib.h>
#include <string.h>

#include "agent/launch/launch.h"
#include "agent/launch/view/report.h"
#include "agent/launch/view/runs.h"
#include "agent/launch/watch.h"
#include "proto/base/error.h"
#include "proto/base/json.h"
#include "proto/base/need.h"

#define RUNS "runs"
#define CHART "compare.svg"

/* ---- all of them ---- */

static void print_list(const struct run_summary *runs, uint32_t n)
{
    static const char *const titles[] = {"run",     "result",    ">return", ">best", ">steps", ">time",
                                         ">actors", ">learners", ">seed",   ">disk", ">tables"};
    struct grid grid;
    format_buffer a;
    grid_init(&grid, titles, sizeof titles / sizeof titles[0]);
    for (uint32_t i = 0; i < n; i++) {
        const struct run_summary *run = &runs[i];
        grid_add(&grid, run->name);
        grid_add(&grid, run->result);
        grid_add(&grid, report_value(run->final_value, a));
        grid_add(&grid, report_value(run->best, a));
        grid_add(&grid, format_count(a, run->steps));
        grid_add(&grid, format_seconds(a, run->seconds));
        grid_addf(&grid, "%u", run->actors);
        grid_addf(&grid, "%u", run->learners);
        grid_add(&grid, run->seed);
        grid_add(&grid, format_bytes(a, run->bytes));
        grid_add(&grid, format_bytes(a, run->tables));
    }
    grid_print(&grid, stdout);
    grid_fini(&grid);
}

static void print_json(const struct run_summary *runs, uint32_t n)
{
    struct json out = {0};
    json_open(&out, '[');
    for (uint32_t i = 0; i < n; i++) {
        json_open(&out, '{');
        runs_json(&out, &runs[i]);
        json_close(&out, '}');
    }
    json_close(&out, ']');
    char *text = json_take(&out);
    puts(text ? text : "");
    free(text);
}

static int list(const struct launch *launch)
{
    uint32_t n = 0;
    struct run_summary *runs = runs_list(RUNS, &n);
    if (launch->json)
        print_json(runs, n);
    else if (n > 0)
        print_list(runs, n);
    else
        puts("there are no runs in '" RUNS "'");
    free(runs);
    return EXIT_FINE;
}

/* ---- some of them ---- */

static int compare(const struct launch *launch)
{
    struct run_summary *runs = need_alloc(launch->n_arguments * sizeof *runs);
    rp_error err = {0};
    rp_status status = RP_OK;
    for (uint32_t i = 0; status == RP_OK && i < launch->n_arguments; i++) {
        char folder[FOLDER_SIZE];
        status = run_folder_find(RUNS, launch->arguments[i], folder, &err);
        if (status == RP_OK && !runs_read(folder, &runs[i]))
            status = err_set(&err, RP_NOT_FOUND, "there is no run in '%s'", folder);
    }
    const char *chart = launch->svg ? launch->svg : CHART;
    if (status == RP_OK && launch->json)
        print_json(runs, launch->n_arguments);
    else if (status == RP_OK)
        runs_print_compared(runs, launch->n_arguments, stdout);
    if (status == RP_OK && (launch->svg || !launch->json))
        status = runs_write_svg(runs, launch->n_arguments, chart, &err);
    if (status == RP_OK && !launch->json)
        printf("\nreturns in one chart: %s\n", chart);
    free(runs);
    return status == RP_OK ? EXIT_FINE : launch_fail(&err);
}

/* ---- the old ones ---- */

/* Removes all but the newest N runs, or the tables of those that are done: the others are resumed with them. A run that a launcher
 * works on stays, and counts as one of the N. */
static int prune(const struct launch *launch)
{
    uint32_t n = 0, removed = 0;
    uint64_t bytes = 0;
    int status = EXIT_FINE;
    format_buffer size;
    bool tables = launch->tables;
    const char *would = launch->dry_run ? "would be " : "", *of = tables ? "the tables of " : "";
    struct run_summary *runs = runs_list(RUNS, &n);
    for (uint64_t i = (uint64_t)launch->keep; i < n; i++) {
        rp_error err = {0};
        const struct run_summary *run = &runs[i];
        uint64_t part = tables ? run->tables : run->bytes;
        if (run->active || watch_is_free(run->folder, &err) != RP_OK ||
            (tables && (part == 0 || strcmp(run->result, "done") != 0)))
            continue;
        if (!launch->dry_run && (tables ? runs_remove_tables : runs_remove)(run->folder, &err) != RP_OK) {
            status = launch_fail(&err);
            continue;
        }
        removed++;
        bytes += part;
        printf("%s%s %sremoved (%s)\n", of, run->folder, would, format_bytes(size, part));
    }
    printf("%s%u run%s %sremoved, %s; %u run%s left\n", of, removed, removed == 1 ? "" : "s", would,
           format_bytes(size, bytes), n - (tables ? 0 : removed), n - (tables ? 0 : removed) == 1 ? "" : "s");
    free(runs);
    return status;
}

int launch_runs(struct launch *launch)
{
    if (launch->prune && launch->n_arguments > 0)
        return launch_usage("--prune removes old runs; it compares none");
    if ((launch->tables || launch->dry_run) && !launch->prune)
        return launch_usage("--tables and --dry-run belong to --prune N");
    if (launch->prune)
        return prune(launch);
    if (launch->n_arguments > RUNS_MOST_COMPARED)
        return launch_usage("%u runs are too many to compare: %u at most", launch->n_arguments, RUNS_MOST_COMPARED);
    return launch->n_arguments > 0 ? compare(launch) : list(launch);
}
