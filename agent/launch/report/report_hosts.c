/* The hosts of a run in its report. */
#include <math.h>
#include <stdio.h>

#include "agent/launch/report/report_impl.h"

#define PRINT_MOST 16u /* rows in the terminal */

uint32_t report_hosts(const struct status *last)
{
    return last->hosts && last->n_hosts > 1 ? last->n_hosts : 0;
}

static void count(char *out, uint32_t n)
{
    if (n)
        snprintf(out, FORMAT_SIZE, "%u", n);
    else
        snprintf(out, FORMAT_SIZE, "-");
}

void report_host(const struct status *last, uint32_t index, struct report_host *out)
{
    const struct status_host *host = &last->hosts[index];
    format_buffer time;
    *out = (struct report_host){
        .name = host->name, .model = host->model, .was_lost = host->losses > 0 || !isfinite(host->mean_cpu)};
    count(out->actors, host->actors_wanted);
    count(out->learners, host->learners_wanted);
    if (host->losses)
        snprintf(out->lost, sizeof out->lost, "%u time%s, %s", host->losses, host->losses > 1 ? "s" : "",
                 format_seconds(time, host->lost_s));
    else
        snprintf(out->lost, sizeof out->lost, "%s", isfinite(host->mean_cpu) ? "never" : "never there");
    if (!isfinite(host->mean_cpu))
        snprintf(out->cores, sizeof out->cores, "-");
    else if (host->cores > 0)
        snprintf(out->cores, sizeof out->cores, "%.1f of %.4g", host->mean_cpu, host->cores);
    else
        snprintf(out->cores, sizeof out->cores, "%.1f", host->mean_cpu);
}

/* With many hosts, only those that were lost or never there have a row: the page has all. */
static uint32_t print_rows(const struct status *last, struct grid *grid)
{
    char clean[sizeof last->hosts->name];
    uint32_t n = report_hosts(last), rows = 0;
    for (uint32_t i = 0; i < n && rows < PRINT_MOST; i++) {
        struct report_host host;
        report_host(last, i, &host);
        if (n > PRINT_MOST && !host.was_lost)
            continue;
        grid_add(grid, format_clean(clean, sizeof clean, host.name));
        grid_add(grid, host.actors);
        grid_add(grid, host.learners);
        grid_add(grid, host.cores);
        grid_add(grid, host.lost);
        rows++;
    }
    return rows;
}

void report_hosts_print(const struct status *last, FILE *out)
{
    static const char *const titles[] = {"host", ">actors", ">learners", ">cores used", "lost"};
    struct grid grid;
    uint32_t n = report_hosts(last);
    if (n == 0)
        return;
    grid_init(&grid, titles, sizeof titles / sizeof *titles);
    uint32_t rows = print_rows(last, &grid);
    if (rows)
        grid_print(&grid, out);
    grid_fini(&grid);
    if (rows < n)
        fprintf(out, "%s%u %shosts: see the report\n", rows ? "and " : "", n - rows, rows ? "more " : "");
    fprintf(out, "\n");
}
