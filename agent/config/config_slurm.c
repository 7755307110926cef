/* Checks of launch.slurm, and the numbers in it. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/config/config.h"
#include "proto/base/need.h"

/* Reads "8" or "4-64". */
static bool read_range(const char *text, uint32_t *least, uint32_t *most)
{
    char low[16] = "", high[16] = "";
    int64_t a, b;
    const char *dash = strchr(text, '-');
    size_t n = dash ? (size_t)(dash - text) : strlen(text);
    const char *rest = dash ? dash + 1 : text;
    if (n >= sizeof low || strlen(rest) >= sizeof high)
        return false;
    memcpy(low, text, n);
    memcpy(high, rest, strlen(rest));
    if (!schema_parse_int(low, &a) || !schema_parse_int(high, &b) || a < 1 || b < a || b > RUN_SLURM_ACTORS)
        return false;
    *least = (uint32_t)a;
    *most = (uint32_t)b;
    return true;
}

bool run_config_slurm_actors(const struct run_config *self, uint32_t *least, uint32_t *most)
{
    const char *text = self->launch.slurm.actors_count;
    if (text[0])
        return read_range(text, least, most);
    bool fixed = self->actors.count > 0;
    *least = fixed ? (uint32_t)self->actors.count : 1;
    *most = (uint32_t)(fixed ? self->actors.count : self->plan.max_actors);
    return *most <= RUN_SLURM_ACTORS;
}

uint32_t run_config_slurm_tasks(const struct run_config *self, uint32_t actors)
{
    uint32_t each = (uint32_t)self->launch.slurm.actors_per_task;
    return (actors + each - 1) / (each ? each : 1);
}

static void check_count(const struct run_config *config, struct schema_report *report)
{
    static const char path[] = "launch.slurm.actors.count";
    uint32_t least = 0, most = 0;
    if (!run_config_slurm_actors(config, &least, &most)) {
        schema_problem(report, path,
                       "'%s' is neither a number of actors, such as 8, nor a range from the least to the most, such as "
                       "4-64 (at most %u)",
                       config->launch.slurm.actors_count, RUN_SLURM_ACTORS);
        return;
    }
    uint32_t tasks = run_config_slurm_tasks(config, most);
    if (tasks > RUN_SLURM_TASKS)
        schema_problem(
            report, "launch.slurm.actors.per_task",
            "%u actors need %u tasks with so few actors in each, and an array has at most %u: write a larger "
            "number",
            most, tasks, RUN_SLURM_TASKS);
    int64_t fixed = config->actors.count;
    if (fixed > 0 && (fixed < least || fixed > most))
        schema_problem(report, "actors.count",
                       "is %" PRId64 ", but launch.slurm.actors.count allows %u to %u: write a number between them, or "
                       "auto",
                       fixed, least, most);
}

/* An option becomes a line of a script. */
static void check_options(const struct schema_list *options, const char *path, struct schema_report *report)
{
    char *const *words = options->data;
    for (uint32_t i = 0; i < options->count; i++)
        if (words[i][0] != '-' || strpbrk(words[i], "\n\r"))
            schema_problem(report, path, "'%s' is no option of sbatch: write it as --name=value", words[i]);
}

/* A partition becomes a part of such a line. Several are separated by commas. */
static void check_partition(const char *name, const char *path, struct schema_report *report)
{
    if (name[0] == '-' || strpbrk(name, " \t\n\r"))
        schema_problem(report, path, "'%s' is no name of a partition: 'sinfo' shows those of the cluster", name);
}

void run_config_check_slurm(const struct run_config *self, struct schema_report *report)
{
    const struct slurm_section *slurm = &self->launch.slurm;
    if (self->launch.engine != ENGINE_SLURM)
        return;
    check_count(self, report);
    check_partition(slurm->partition, "launch.slurm.partition", report);
    check_partition(slurm->actors_partition, "launch.slurm.actors.partition", report);
    check_options(&slurm->options, "launch.slurm.options", report);
    check_options(&slurm->actors_options, "launch.slurm.actors.options", report);
    if (slurm->time_ns > 0 && slurm->time_ns <= slurm->warning_ns)
        schema_problem(report, "launch.slurm.warning",
                       "is as long as launch.slurm.time: the run would have no time between its start and its end");
}

/* The range is written out, because the plan replaces auto by a number. */
static void complete_count(struct run_config *self)
{
    uint32_t least, most;
    char **count = &self->launch.slurm.actors_count;
    if (!run_config_slurm_actors(self, &least, &most))
        return;
    self->plan.max_actors = most;
    if ((*count)[0])
        return;
    free(*count);
    *count = need_print("%u-%u", least, most);
}

void run_config_complete_slurm(struct run_config *self)
{
    if (self->launch.engine != ENGINE_SLURM)
        return;
    complete_count(self);
    if (config_folder(&self->broker))
        return;
    free(self->broker.checkpoint_dir);
    self->broker.checkpoint_dir = need_text("checkpoint");
}
