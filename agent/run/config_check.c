/* Mistakes that concern several keys of a run, found before anything starts: names that do not exist, parts that do not
 * fit each other, and limiters with which actors and learners would wait for each other. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "agent/run/config.h"
#include "broker/selector.h"

/* Of all sequences of a batch together. */
#define MOST_STEPS (INT64_C(1) << 24)

/* Items in a learner step. */
static int64_t batch_of(const struct run_config *config)
{
    const struct agent_ops *ops = run_config_algorithm(config);
    return config->agent.batch > 0 || !ops ? config->agent.batch : ops->defaults->batch;
}

/* The environment and the agent, made for trial: whatever could be wrong with them is said by those who know. */
static void check_agent(const struct run_config *config, struct schema_report *report)
{
    rp_error err = {0};
    struct env env;
    if (env_open(&env, &config->environment, &err) != RP_OK) {
        bool name = err.status == RP_NOT_FOUND;
        bool plugin = !name && config->environment.plugin && config->environment.plugin[0];
        schema_problem(report,
                       name     ? "environment.name"
                       : plugin ? "environment.plugin"
                                : "environment",
                       "%s", err.text);
        return;
    }
    const struct agent_ops *ops = run_config_algorithm(config);
    if (ops) {
        bool suits = env.spec.n_actions > 0 ? ops->discrete : ops->continuous;
        struct agent *agent = agent_new(&config->agent, config->environment.name, &env.spec, 1, &err);
        if (!agent)
            schema_problem(report, suits ? "agent" : "agent.algorithm", "%s", err.text);
        agent_destroy(&agent);
    }
    env_close(&env);
}

static void check_algorithm(const struct run_config *config, struct schema_report *report)
{
    const char *names[32];
    uint32_t n = 0;
    if (run_config_algorithm(config))
        return;
    char list[256] = "";
    for (size_t used = 0; n < 32 && agent_algorithms[n]; n++) {
        names[n] = agent_algorithms[n]->name;
        if (used < sizeof list)
            used += (size_t)snprintf(list + used, sizeof list - used, "%s%s", n ? ", " : "", names[n]);
    }
    const char *name = config->agent.algorithm ? config->agent.algorithm : "";
    const char *near = schema_nearest(name, names, n);
    if (near)
        schema_problem(report, "agent.algorithm", "unknown algorithm '%s' (did you mean '%s'?)", name, near);
    else
        schema_problem(report, "agent.algorithm", "unknown algorithm '%s'; there are %s", name, list);
}

static void check_adder(const struct run_config *config, struct schema_report *report)
{
    const struct adder_config *adder = &config->adder;
    const struct agent_ops *ops = run_config_algorithm(config);
    if (ops && ops->data == AGENT_TRANSITIONS && adder->kind != ADDER_TRANSITION)
        schema_problem(report, "adder.kind", "%s learns from transitions: write kind: transition", ops->name);
    if (ops && ops->data == AGENT_SEQUENCES && adder->kind == ADDER_TRANSITION)
        schema_problem(report, "adder.kind", "%s learns from sequences: write kind: sequence", ops->name);
    if (adder->kind == ADDER_SEQUENCE && adder->length < 2)
        schema_problem(report, "adder.length", "a sequence of %lld steps has nothing to learn from: write at least 2",
                       (long long)adder->length);
    else if (adder->kind == ADDER_SEQUENCE && adder->period > adder->length)
        schema_problem(report, "adder.period",
                       "%lld is more than the length %lld: steps in between would be in no item; write at most %lld",
                       (long long)adder->period, (long long)adder->length, (long long)adder->length);
    int64_t steps = adder->kind == ADDER_EPISODE ? adder->max_length + 1 : adder->length, batch = batch_of(config);
    if (ops && ops->data == AGENT_SEQUENCES && adder->kind != ADDER_TRANSITION && batch > MOST_STEPS / steps)
        schema_problem(report, "agent.batch",
                       "%lld sequences of up to %lld steps are too much for one learner step: write at most %lld",
                       (long long)batch, (long long)steps, (long long)(MOST_STEPS / steps));
    if (adder->actor_priorities && adder->kind != ADDER_TRANSITION)
        schema_problem(report, "adder.actor_priorities", "are those of transitions: leave them out with this kind");
    if (adder->buffer_items < adder->batch_items)
        schema_problem(report, "adder.buffer_items", "a batch of %lld items (batch_items) does not fit into %lld",
                       (long long)adder->batch_items, (long long)adder->buffer_items);
}

/* With less room than a batch on either side, the ratio would swing between the two bounds. */
static void check_ratio(const struct limiter_section *limiter, int64_t batch, const char *path,
                        struct schema_report *report)
{
    char at[96];
    snprintf(at, sizeof at, "%s.error_buffer", path);
    if (limiter->error_buffer >= 0 && limiter->error_buffer < (double)batch)
        schema_problem(report, at,
                       "%g is below one batch of %lld (agent.batch): actors and learners would wait for each other at "
                       "every batch; write at least %lld",
                       limiter->error_buffer, (long long)batch, (long long)batch);
    else if (limiter->error_buffer < 0 && limiter->max_diff - limiter->min_diff < 2 * (double)batch)
        schema_problem(report, path,
                       "max_diff less min_diff is %g, below two batches of %lld (agent.batch): actors and learners "
                       "would wait for each other at every batch",
                       limiter->max_diff - limiter->min_diff, (long long)batch);
}

static void check_queue(const struct table_config *table, int64_t batch, const char *path, struct schema_report *report)
{
    double size = table->limiter.size > 0 ? table->limiter.size : (double)table->max_size;
    if (size <= (double)(batch + 1))
        schema_problem(report, path,
                       "a queue of %.0f items is not larger than a batch of %lld (agent.batch) and one more: write a "
                       "size of at least %lld",
                       size, (long long)batch, (long long)batch + 2);
}

static void check_sampler(const struct run_config *config, const struct table_config *table,
                          struct schema_report *report)
{
    const char *kind = table->sampler.kind ? table->sampler.kind : "";
    if (config->agent.importance_exponent > 0 && strcmp(kind, "prioritized") != 0 && selector_builtin(kind))
        schema_problem(report, "agent.importance_exponent",
                       "importance weights make up for prioritized sampling, and the sampler of table '%s' is %s: "
                       "write 0, or a prioritized sampler",
                       table->name, kind);
}

static void check_table(const struct run_config *config, struct schema_report *report)
{
    const struct table_config *table = run_config_table(config);
    if (!table) {
        const char *names[64];
        const struct table_config *tables = config->broker.tables.data;
        uint32_t n = 0;
        for (; n < config->broker.tables.count && n < 64; n++)
            names[n] = tables[n].name ? tables[n].name : "";
        const char *near = schema_nearest(config->adder.table ? config->adder.table : "", names, n);
        if (near)
            schema_problem(report, "adder.table", "there is no table '%s' in broker.tables (did you mean '%s'?)",
                           config->adder.table, near);
        else if (n > 0)
            schema_problem(report, "adder.table", "there is no table '%s' in broker.tables", config->adder.table);
        return;
    }
    char path[64];
    size_t index = (size_t)(table - (const struct table_config *)config->broker.tables.data);
    int64_t batch = batch_of(config);
    snprintf(path, sizeof path, "broker.tables[%zu].limiter", index);
    if (table->limiter.kind == LIMITER_RATIO)
        check_ratio(&table->limiter, batch, path, report);
    if (table->limiter.kind == LIMITER_QUEUE)
        check_queue(table, batch, path, report);
    check_sampler(config, table, report);
}

void run_config_check(const void *root, struct schema_report *report)
{
    const struct run_config *config = root;
    schema_report_within(report, "broker");
    broker_schema.check(&config->broker, report);
    schema_report_within(report, NULL);
    check_algorithm(config, report);
    check_table(config, report);
    check_adder(config, report);
    check_agent(config, report);
}
