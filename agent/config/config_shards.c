/* Shards of a run's broker: what the agent needs of each of them, and how many the tables allow. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/config/config.h"
#include "proto/base/need.h"

/* The room that a limiter needs for batches of a size: for a batch on either side, the ratio would swing between the bounds with
 * less, and for the samples of one insert, which the broker itself demands. */
struct room {
    int64_t batch;
    uint32_t shards;
    double least; /* on either side, at each shard */
};

static void check_buffer(double buffer, const struct room *room, const char *path, struct schema_report *report)
{
    char at[96];
    snprintf(at, sizeof at, "%s.error_buffer", path);
    if (room->shards > 1)
        schema_problem(report, at,
                       "%g is %g for each of %u shards, below one batch of %lld (agent.batch): samplers would wait at "
                       "every batch; write at least %g, or fewer shards",
                       buffer, buffer / room->shards, room->shards, (long long)room->batch, room->least * room->shards);
    else
        schema_problem(report, at,
                       "%g is below one batch of %lld (agent.batch): actors and learners would wait for each other at "
                       "every batch; write at least %g",
                       buffer, (long long)room->batch, room->least);
}

static void check_bounds(double width, const struct room *room, const char *path, struct schema_report *report)
{
    if (room->shards > 1)
        schema_problem(report, path,
                       "max_diff less min_diff is %g for each of %u shards, below two batches of %lld (agent.batch): "
                       "samplers would wait at every batch; let them be %g apart, or write fewer shards",
                       width / room->shards, room->shards, (long long)room->batch, 2.0 * room->least * room->shards);
    else
        schema_problem(report, path,
                       "max_diff less min_diff is %g, below two batches of %lld (agent.batch): actors and learners "
                       "would wait for each other at every batch; let them be %g apart",
                       width, (long long)room->batch, 2.0 * room->least);
}

/* Each shard has its part of the room, and gives whole batches. */
void run_config_check_room(const struct run_config *self, int64_t batch, struct schema_report *report)
{
    const struct table_config *table = run_config_table(self);
    if (batch <= 0 || !table || table->limiter.kind != LIMITER_RATIO)
        return;
    const struct limiter_section *limiter = &table->limiter;
    double spi = limiter->samples_per_insert, width = limiter->max_diff - limiter->min_diff;
    struct room room = {batch, config_shards(&self->broker), fmax((double)batch, isfinite(spi) ? spi : 0.0)};
    char path[64];
    size_t index = (size_t)(table - (const struct table_config *)self->broker.tables.data);
    snprintf(path, sizeof path, "broker.tables[%zu].limiter", index);
    if (limiter->error_buffer >= 0 && limiter->error_buffer < (double)batch * room.shards)
        check_buffer(limiter->error_buffer, &room, path, report);
    else if (limiter->error_buffer < 0 && width < 2.0 * (double)batch * room.shards)
        check_bounds(width, &room, path, report);
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
        run_config_check_room(&config, batch, report);
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

void run_config_set_shards(struct run_config *self, uint32_t shards)
{
    struct schema_list *list = &self->broker.shards;
    char **names = need_alloc(shards * sizeof *names), **old = list->data;
    for (uint32_t i = 0; i < shards; i++)
        names[i] = need_text("");
    for (uint32_t i = 0; i < list->count; i++)
        free(old[i]);
    free(old);
    *list = (struct schema_list){names, shards};
}
