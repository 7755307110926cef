/* Shards of a run's broker: what the agent needs of each of them, and how many the tables allow. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/config/config.h"

/* Each shard has its part of the room, and gives whole batches. */
static void check_ratio(const struct limiter_section *limiter, int64_t batch, uint32_t shards, const char *path,
                        struct schema_report *report)
{
    char at[96];
    bool buffer = limiter->error_buffer >= 0;
    double room = buffer ? limiter->error_buffer : (limiter->max_diff - limiter->min_diff) / 2.0;
    snprintf(at, sizeof at, "%s%s", path, buffer ? ".error_buffer" : "");
    if (room < (double)batch || room >= (double)batch * shards) /* less than a batch is a mistake without shards, too */
        return;
    if (buffer)
        schema_problem(report, at,
                       "%g is %g for each of %u shards, below one batch of %lld (agent.batch): samplers would wait at "
                       "every batch; write at least %lld, or fewer shards",
                       room, room / shards, shards, (long long)batch, (long long)batch * shards);
    else
        schema_problem(report, at,
                       "max_diff less min_diff is %g for each of %u shards, below two batches of %lld (agent.batch): "
                       "samplers would wait at every batch; let them be %lld apart, or write fewer shards",
                       2.0 * room / shards, shards, (long long)batch, 2 * (long long)batch * shards);
}

void run_config_check_shards(const struct run_config *self, int64_t batch, struct schema_report *report)
{
    const struct table_config *table = run_config_table(self);
    uint32_t shards = config_shards(&self->broker);
    char path[64];
    if (shards == 1 || batch <= 0 || !table || table->limiter.kind != LIMITER_RATIO)
        return;
    size_t index = (size_t)(table - (const struct table_config *)self->broker.tables.data);
    snprintf(path, sizeof path, "broker.tables[%zu].limiter", index);
    check_ratio(&table->limiter, batch, shards, path, report);
}

/* True if nothing speaks against this many shards. */
static bool allows(const struct run_config *self, int64_t batch, uint32_t shards, char **names)
{
    struct run_config config = *self;
    struct schema_report *report = schema_report_new();
    config.broker.shards = (struct schema_list){names, shards};
    config.broker.shard = -1;
    if (report) {
        config_check_shards(&config.broker, report);
        run_config_check_shards(&config, batch, report);
    }
    bool ok = report && schema_report_count(report) == 0;
    schema_report_destroy(&report);
    return ok;
}

uint32_t run_config_most_shards(const struct run_config *self, int64_t batch)
{
    static char none[] = "";
    char *names[CONFIG_MAX_SHARDS];
    uint32_t most = 1;
    for (uint32_t i = 0; i < CONFIG_MAX_SHARDS; i++)
        names[i] = none;
    while (2 * most <= CONFIG_MAX_SHARDS && allows(self, batch, 2 * most, names))
        most *= 2;
    return most;
}

bool run_config_set_shards(struct run_config *self, uint32_t shards)
{
    char **names = calloc(shards, sizeof *names);
    bool ok = names != NULL;
    for (uint32_t i = 0; ok && i < shards; i++)
        ok = (names[i] = strdup("")) != NULL;
    struct schema_list *list = &self->broker.shards;
    char **old = ok ? list->data : names;
    uint32_t n = ok ? list->count : shards;
    for (uint32_t i = 0; old && i < n; i++)
        free(old[i]);
    free(old);
    if (ok)
        *list = (struct schema_list){names, shards};
    return ok;
}
