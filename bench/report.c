#include "bench/bench.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

struct spread spread_of(const double *values, uint32_t n)
{
    double sorted[MOST_REPEATS];
    if (n == 0)
        return (struct spread){0, 0, 0};
    memcpy(sorted, values, n * sizeof *sorted);
    qsort(sorted, n, sizeof *sorted, compare);
    double median = n % 2 ? sorted[n / 2] : (sorted[n / 2 - 1] + sorted[n / 2]) / 2;
    return (struct spread){median, sorted[0], sorted[n - 1]};
}

struct spread spread_ratio(const double *ours, const double *theirs, uint32_t n)
{
    double ratios[MOST_REPEATS];
    for (uint32_t i = 0; i < n; i++)
        ratios[i] = theirs[i] > 0 ? ours[i] / theirs[i] : 0;
    return spread_of(ratios, n);
}

static uint32_t n_rows;

void report_begin(const struct options *options, const char *command, const char *client)
{
    n_rows = 0;
    if (options->json)
        printf("{\"command\": \"%s\", \"transport\": \"%s\", \"io_threads\": %u, \"client\": \"%s\", \"repeats\": %u, "
               "\"seconds\": %g, \"quick\": %s, \"rows\": [",
               command, options->ipc ? "ipc" : "tcp", options->io_threads, client, options->repeats, options->seconds,
               options->quick ? "true" : "false");
    else if (client[0])
        printf("%s, %s client, %s, %u I/O thread%s; medians of %u x %g s, each side in turn\n", command, client,
               options->ipc ? "ipc" : "tcp", options->io_threads, options->io_threads == 1 ? "" : "s", options->repeats,
               options->seconds);
    else
        printf("%s, CPU time of one thread; medians of %u\n", command, options->repeats);
    fflush(stdout);
}

static void json_spread(const char *name, const struct spread *spread)
{
    printf(", \"%s\": {\"median\": %.6g, \"min\": %.6g, \"max\": %.6g}", name, spread->median, spread->least,
           spread->most);
}

/* CPU time of server and clients together for one item. */
static double cpu_ns(const struct row *row, int side)
{
    double rate = side ? row->theirs.median : row->ours.median;
    return rate > 0 ? (row->server_cpu[side] + row->client_cpu[side]) / rate * 1e9 : 0;
}

static void row_json(const struct options *options, const struct row *row)
{
    printf("%s\n  {\"what\": \"%s\", \"against\": \"%s\", \"size\": %llu, \"items\": %llu, \"per_message\": %u, "
           "\"batch\": "
           "%u, \"in_flight\": %u, \"clients\": %u, \"processes\": %u, \"frames\": \"%s\"",
           n_rows ? "," : "", row->what, row->other, (unsigned long long)options->size,
           (unsigned long long)options->items, options->per_message, options->batch, options->in_flight,
           options->clients, options->processes, options->lend ? "lent" : "copied");
    json_spread("items_per_s", &row->ours);
    json_spread("reference_items_per_s", &row->theirs);
    json_spread("ratio_spread", &row->ratio);
    printf(", \"ratio\": %.4g", row->ratio.median);
    if (row->goal > 0)
        printf(", \"goal\": %g, \"met\": %s", row->goal, row->ratio.median >= row->goal ? "true" : "false");
    printf(
        ", \"broker_cores\": %.3g, \"client_cores\": %.3g, \"reference_server_cores\": %.3g, "
        "\"reference_client_cores\": %.3g, \"core_thread_ns_per_item\": %.4g, "
        "\"reference_core_thread_ns_per_item\": %.4g, \"cpu_ns_per_item\": %.4g, \"reference_cpu_ns_per_item\": %.4g",
        row->server_cpu[0], row->client_cpu[0], row->server_cpu[1], row->client_cpu[1], row->thread_ns[0],
        row->thread_ns[1], cpu_ns(row, 0), cpu_ns(row, 1));
    if (!isnan(row->memory_per_item))
        printf(", \"memory_per_item_beyond_payload\": %.4g", row->memory_per_item);
    printf("}");
}

static void text_side(const char *name, const struct row *row, int side, uint64_t size)
{
    const struct spread *rate = side ? &row->theirs : &row->ours;
    printf("  %-8s %11.0f items/s  (%.0f to %.0f)  %6.2f GB/s\n", name, rate->median, rate->least, rate->most,
           rate->median * (double)size * 1e-9);
    printf("  %-8s %11.2f cores in the server, %.2f in clients; ns an item: %.0f in all, %.0f in the server's first "
           "thread\n",
           "", row->server_cpu[side], row->client_cpu[side], cpu_ns(row, side), row->thread_ns[side]);
}

static void row_text(const struct options *options, const struct row *row)
{
    printf("\n%s: %llu B items, %llu in the table, %u to a message, batch %u, %u connection%s in %u process%s, frames "
           "%s\n",
           row->what, (unsigned long long)options->size, (unsigned long long)options->items, options->per_message,
           options->batch, options->clients, options->clients == 1 ? "" : "s", options->processes,
           options->processes == 1 ? "" : "es", options->lend ? "lent" : "copied");
    text_side("broker", row, 0, options->size);
    text_side(row->other, row, 1, options->size);
    printf("  ratio    %11.2f  (%.2f to %.2f)", row->ratio.median, row->ratio.least, row->ratio.most);
    if (row->goal > 0)
        printf("   goal >= %.2f: %s", row->goal, row->ratio.median >= row->goal ? "met" : "missed");
    printf("\n");
    if (!isnan(row->memory_per_item))
        printf("  memory   %11.0f B for each item beyond its payload%s\n", row->memory_per_item,
               options->size == 400 && options->items >= 100000 ? "   goal <= 160" : "");
}

static void report_row(const struct options *options, const struct row *row)
{
    if (options->json)
        row_json(options, row);
    else
        row_text(options, row);
    n_rows++;
    fflush(stdout);
}

static void row_fill(struct row *row, const struct figures *figures, bool group)
{
    const struct figures *ours = &figures[0], *theirs = &figures[1];
    row->ours = spread_of(ours->rate[group], ours->n);
    row->theirs = spread_of(theirs->rate[group], theirs->n);
    row->ratio = spread_ratio(ours->rate[group], theirs->rate[group], ours->n);
    for (int i = 0; i < 2; i++) {
        row->server_cpu[i] = spread_of(figures[i].server_cpu, figures[i].n).median;
        row->thread_ns[i] = spread_of(figures[i].thread_ns, figures[i].n).median;
        row->client_cpu[i] = spread_of(figures[i].client_cpu, figures[i].n).median;
    }
}

bool report_pair(const struct options *options, struct row row, const struct phase phases[2], bool askers)
{
    static struct figures figures[2];
    if (!run_phases(options, phases, 2, figures))
        return false;
    row_fill(&row, figures, askers);
    report_row(options, &row);
    return true;
}

static void print_value(const struct options *options, const char *name, double value, double goal, bool at_most,
                        const char *unit)
{
    bool met = at_most ? value <= goal : value >= goal;
    if (options->json) {
        /* Names may be indented for readers of the text. */
        printf("%s\n  {\"what\": \"%s\", \"%s\": %.6g", n_rows++ ? "," : "", name + strspn(name, " "),
               strcmp(unit, "ratio") == 0 ? "ratio" : "value", value);
        if (goal > 0)
            printf(", \"goal\": %g, \"met\": %s", goal, met ? "true" : "false");
        printf(", \"unit\": \"%s\"}", unit);
        return;
    }
    printf("  %-44s %12.6g %s", name, value, unit);
    if (goal > 0)
        printf("   goal %s %.3g: %s", at_most ? "<=" : ">=", goal, met ? "met" : "missed");
    printf("\n");
}

void report_value(const struct options *options, const char *name, double value, double goal, const char *unit)
{
    print_value(options, name, value, goal, false, unit);
}

void report_cost(const struct options *options, const char *name, double value, double goal, const char *unit)
{
    print_value(options, name, value, goal, true, unit);
}

void report_end(const struct options *options)
{
    if (options->json)
        printf("\n]}\n");
}
