/* What each shard says by itself (--shards), and those that say nothing. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "agent/ctl/ctl.h"
#include "proto/base/format.h"

void ctl_print_missing(const Replay__Shards *shards)
{
    const char *blank = "\n";
    for (size_t i = 0; shards && i < shards->n_shard; i++) {
        char clean[512];
        if (!shards->shard[i]->problem[0])
            continue;
        printf("%s%s: its part is missing here\n", blank, format_clean(clean, sizeof clean, shards->shard[i]->problem));
        blank = "";
    }
}

void ctl_warn_missing(const Replay__Shards *shards, const char *what)
{
    for (size_t i = 0; shards && i < shards->n_shard; i++) {
        char clean[512];
        if (shards->shard[i]->problem[0])
            fprintf(stderr, "replay-ctl: %s: its %s missing here\n",
                    format_clean(clean, sizeof clean, shards->shard[i]->problem), what);
    }
}

/* Parts of min_size differ by one at most, and bounds around min_size * samples_per_insert with them. */
static bool same_limiter(const Replay__LimiterInfo *a, const Replay__LimiterInfo *b)
{
    if (!a || !b)
        return true;
    double slack = fabs(a->samples_per_insert) * 1.001;
    return a->samples_per_insert == b->samples_per_insert && fabs(a->min_size - b->min_size) <= 1 &&
           fabs(a->min_diff - b->min_diff) <= slack && fabs(a->max_diff - b->max_diff) <= slack;
}

/* The first shard that answers is what the others are compared with. */
static const Replay__TableInfo *first_table(const Replay__Shards *shards, const char *name, uint32_t *shard)
{
    for (size_t i = 0; i < shards->n_shard; i++)
        for (size_t k = 0; k < shards->shard[i]->n_tables; k++)
            if (strcmp(shards->shard[i]->tables[k]->name, name) == 0) {
                *shard = shards->shard[i]->shard;
                return shards->shard[i]->tables[k];
            }
    return NULL;
}

void ctl_print_differences(const Replay__Shards *shards)
{
    for (size_t i = 0; shards && i < shards->n_shard; i++)
        for (size_t k = 0; k < shards->shard[i]->n_tables; k++) {
            const Replay__TableInfo *table = shards->shard[i]->tables[k];
            uint32_t other = 0;
            char clean[256];
            const Replay__TableInfo *first = first_table(shards, table->name, &other);
            if (same_limiter(table->limiter, first->limiter))
                continue;
            format_clean(clean, sizeof clean, table->name);
            printf("shard %u has another limiter of %s than shard %u (--shards shows them): set it once more for all "
                   "with 'replay-ctl limiter %s KEY=VALUE ...'\n",
                   shards->shard[i]->shard, clean, other, clean);
        }
}

static void add_server(struct grid *grid, const Replay__ServerInfo *server)
{
    format_buffer b;
    if (!server) {
        for (uint32_t i = 0; i < 5; i++)
            grid_add(grid, "-");
        return;
    }
    grid_add(grid, format_time(b, server->uptime_ns));
    grid_add(grid, format_bytes(b, server->memory_bytes));
    grid_add(grid, format_count(b, server->session_count));
    grid_add(grid, format_count(b, server->waiter_count));
    grid_add(grid, format_count(b, server->messages_in));
}

static void print_servers(const Replay__Shards *shards)
{
    static const char *const titles[] = {">shard",  "service",   "state",    ">up",
                                         ">memory", ">sessions", ">waiting", ">messages"};
    struct grid grid;
    grid_init(&grid, titles, 8);
    for (size_t i = 0; i < shards->n_shard; i++) {
        const Replay__ShardInfo *row = shards->shard[i];
        grid_addf(&grid, "%u", row->shard);
        grid_add(&grid, row->service);
        grid_add(&grid, row->problem[0] ? "does not answer" : "answers");
        add_server(&grid, row->server);
    }
    grid_print(&grid, stdout);
    grid_fini(&grid);
}

static void add_table(struct grid *grid, const Replay__ShardInfo *row, const Replay__TableInfo *table)
{
    const Replay__LimiterInfo *limiter = table->limiter;
    format_buffer a, b;
    grid_add(grid, table->name);
    grid_addf(grid, "%u", row->shard);
    grid_add(grid, format_count(a, table->size));
    grid_add(grid, table->max_size ? format_count(a, table->max_size) : "-");
    grid_add(grid, format_bytes(a, table->bytes));
    grid_add(grid, format_rate(a, table->insert_rate));
    grid_add(grid, format_rate(a, table->sample_rate));
    grid_addf(grid, "%llu+%llu", (unsigned long long)table->waiting_inserts,
              (unsigned long long)table->waiting_samplers);
    grid_add(grid, limiter ? format_bound(a, limiter->min_size) : "-");
    if (!ctl_has_ratio(limiter)) {
        for (uint32_t i = 0; i < 3; i++)
            grid_add(grid, "-");
        return;
    }
    grid_addf(grid, "%.6g", limiter->samples_per_insert);
    grid_addf(grid, "%.6g", limiter->cursor);
    grid_addf(grid, "%s to %s", format_bound(a, limiter->min_diff), format_bound(b, limiter->max_diff));
}

static void print_tables(const Replay__Shards *shards)
{
    static const char *const titles[] = {"table",   ">shard",   ">items",    ">of",    ">bytes",  ">insert",
                                         ">sample", ">waiting", ">min_size", ">ratio", ">cursor", "between"};
    struct grid grid;
    size_t most = 0;
    grid_init(&grid, titles, 12);
    for (size_t i = 0; i < shards->n_shard; i++)
        most = shards->shard[i]->n_tables > most ? shards->shard[i]->n_tables : most;
    for (size_t t = 0; t < most; t++)
        for (size_t i = 0; i < shards->n_shard; i++)
            if (t < shards->shard[i]->n_tables)
                add_table(&grid, shards->shard[i], shards->shard[i]->tables[t]);
    grid_print(&grid, stdout);
    grid_fini(&grid);
}

void ctl_print_shards(const Replay__Shards *shards, bool servers)
{
    printf("\n");
    if (!shards) {
        printf("the broker is alone: it has no shards\n");
        return;
    }
    if (servers) {
        print_servers(shards);
        printf("\n");
    }
    print_tables(shards);
}

void ctl_print_removed(const Replay__Shards *shards)
{
    for (size_t i = 0; shards && i < shards->n_shard; i++) {
        const Replay__ShardInfo *row = shards->shard[i];
        format_buffer count;
        if (row->change)
            printf("  shard %u: %s\n", row->shard, format_count(count, row->change->applied));
    }
}
