/* Shards of a run's broker, before the run: what is refused, what is hardly meant, and how many there are. */
#include "agent/launch/prepare.h"

#include "agent/launch/plan/profile.h"
#include "agent/launch/process/machine.h"
#include "proto/base/error.h"

void prepare_check_shards(const struct run_config *config, struct schema_report *report)
{
    if (config_shard_endpoint(&config->broker, 0))
        schema_problem(report, "broker.shards",
                       "is a list of brokers, which somebody starts; replay-launch starts the shards of a run itself, "
                       "all on this machine: write their number, or start brokers, actors and learners by hand "
                       "(docs/OPERATE.md)");
    else if (config->broker.shard >= 0)
        schema_problem(report, "broker.shard",
                       "is for a broker that somebody starts; replay-launch numbers the shards of a run: leave it out");
}

rp_status prepare_shards(struct prepared *self, rp_error *err)
{
    uint32_t shards = self->planned && self->plan.broker.shards ? self->plan.broker.shards : 1;
    if (self->config.broker.shards.count == 0 && !run_config_set_shards(&self->config, shards))
        return err_set(err, RP_NO_MEMORY, "no memory for %u shards", shards);
    return RP_OK;
}

static void hint_auto(const struct run_config *config, FILE *out)
{
    const char *missing = !config->actors.on              ? "actors are off"
                          : !config->learners.on          ? "learners are off"
                          : profile_target(config) <= 0.0 ? "the limiter sets no ratio of samples to inserts (plan.spi)"
                                                          : NULL;
    if (missing)
        fprintf(out,
                "hint: broker.shards is auto, and there is nothing to measure, because %s: the broker has one shard\n",
                missing);
}

void prepare_hints(const struct prepared *self, FILE *out)
{
    const struct run_config *config = &self->config;
    uint32_t shards = config_shards(&config->broker);
    double cores = config->plan.cores > 0 ? config->plan.cores : machine_cores();
    if (shards > 1 && shards > cores)
        fprintf(out,
                "hint: broker.shards is %u, and this machine has %.3g cores: shards that share a core gain nothing; "
                "shards: auto measures how many pay\n",
                shards, cores);
    if (config->broker.shards.count == 0)
        hint_auto(config, out);
}
