/* Runs of which one side is off. Without actors, learners learn from what the broker loads; without learners, actors
 * fill a table for later. In both cases some limiters would make the other side wait for ever, and some stop
 * conditions would never be met. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "agent/config/config.h"

/* A bound this large means "unlimited". */
#define NO_BOUND 1e17

static bool is_queue(const struct limiter_section *limiter)
{
    return limiter->kind == LIMITER_QUEUE || limiter->kind == LIMITER_STACK;
}

static void path_of(const struct run_config *config, const char *key, char *out, size_t size)
{
    size_t index = (size_t)(run_config_table(config) - (const struct table_config *)config->broker.tables.data);
    snprintf(out, size, "broker.tables[%zu].%s", index, key);
}

/* ---- without actors ---- */

/* Without inserts, the limiter eventually stops all samples. */
static void check_samples(const struct run_config *config, const struct table_config *table,
                          struct schema_report *report)
{
    const struct limiter_section *limiter = &table->limiter;
    char path[64];
    bool held = limiter->kind == LIMITER_RATIO && (limiter->error_buffer >= 0 || limiter->min_diff > -NO_BOUND);
    path_of(config, "limiter", path, sizeof path);
    if (held || is_queue(limiter))
        schema_problem(
            report, path,
            "a %s limiter lets learners sample as often as actors insert, and no actor inserts (actors.on is "
            "false): they would wait for ever; write kind: min_size",
            limiter_kind_name((enum limiter_kind)limiter->kind));
    path_of(config, "max_times_sampled", path, sizeof path);
    if (table->max_times_sampled > 0)
        schema_problem(report, path,
                       "items leave after %lld samples, and no actor inserts others (actors.on is false): the table "
                       "would run empty; write 0",
                       (long long)table->max_times_sampled);
}

/* Without actors the table must be loaded. */
static void check_source(const struct run_config *config, struct schema_report *report)
{
    const char *load = config->broker.checkpoint_load ? config->broker.checkpoint_load : "";
    if (!config_folder(&config->broker))
        schema_problem(
            report, "actors.on",
            "is false, so no actor fills table '%s': write broker.checkpoint.dir, the folder of a checkpoint "
            "to load",
            config->adder.table ? config->adder.table : "");
    else if (strcmp(load, "none") == 0)
        schema_problem(report, "broker.checkpoint.load",
                       "is none, and actors.on is false, so no actor fills table '%s': write newest",
                       config->adder.table ? config->adder.table : "");
}

static void check_learners_alone(const struct run_config *config, struct schema_report *report)
{
    const struct table_config *table = run_config_table(config);
    check_source(config, report);
    if (table)
        check_samples(config, table, report);
    if (config->stop.steps > 0)
        schema_problem(report, "stop.steps",
                       "are taken by actors, and actors.on is false: this end never comes; write stop.learner_steps "
                       "or stop.time");
    if (config->learners.count == 0)
        schema_problem(report, "learners.count",
                       "auto weighs learners against actors, and actors.on is false: write a number");
}

/* ---- without learners ---- */

static void check_inserts(const struct run_config *config, const struct table_config *table,
                          struct schema_report *report)
{
    const struct limiter_section *limiter = &table->limiter;
    char path[64];
    bool held = limiter->kind == LIMITER_RATIO && (limiter->error_buffer >= 0 || limiter->max_diff < NO_BOUND);
    path_of(config, "limiter", path, sizeof path);
    if (held || is_queue(limiter))
        schema_problem(
            report, path,
            "a %s limiter lets actors insert as often as learners sample, and no learner samples (learners.on is "
            "false): they would wait for ever; write kind: min_size",
            limiter_kind_name((enum limiter_kind)limiter->kind));
}

static void check_actors_alone(const struct run_config *config, struct schema_report *report)
{
    const struct table_config *table = run_config_table(config);
    if (config->actors.command.count == 0 && !config->actors.weights[0])
        schema_problem(report, "learners.on",
                       "is false, so actors have no parameters: write actors.weights, the saved state "
                       "of a learner such as runs/latest/learner.weights");
    if (table)
        check_inserts(config, table, report);
    if (config->stop.learner_steps > 0)
        schema_problem(report, "stop.learner_steps",
                       "are made by learners, and learners.on is false: this end never comes; write stop.steps or "
                       "stop.time");
    if (!(isinf(config->stop.value) && config->stop.value > 0))
        schema_problem(report, "stop.value",
                       "is what a learner's parameters give, and learners.on is false: this end never comes; write "
                       "stop.steps or stop.time");
    if (config->actors.count == 0)
        schema_problem(report, "actors.count",
                       "auto weighs actors against learners, and learners.on is false: write a number");
}

void run_config_check_sides(const struct run_config *self, struct schema_report *report)
{
    if (!self->actors.on && !self->learners.on)
        schema_problem(report, "learners.on",
                       "no actor runs (actors.on is false) and no learner: nothing would happen");
    else if (!self->actors.on)
        check_learners_alone(self, report);
    else if (!self->learners.on)
        check_actors_alone(self, report);
}
