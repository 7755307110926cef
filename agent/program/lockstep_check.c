/* Whether the limiter of a run's table suits a run in one process. */
#include <math.h>

#include "agent/program/lockstep.h"
#include "proto/base/error.h"

/* The most items that all actors make in a round: the end of an episode adds the items that begin with its last
 * steps. */
static double items_per_round(const struct run_config *config)
{
    double most = config->adder.kind == ADDER_TRANSITION ? (double)config->adder.n_step + 1.0 : 2.0;
    return most * (double)(config->actors.count * config->actors.environments);
}

/* The learner's turn comes after a round, so all inserts of a round must have room: otherwise an insert would wait
 * for a learner that waits for the insert. */
static rp_status check_room(const struct run_config *config, const struct table_config *table, double batch,
                            rp_error *err)
{
    const struct limiter_section *limiter = &table->limiter;
    double items = items_per_round(config);
    if (limiter->kind != LIMITER_RATIO) {
        double size = limiter->size > 0 ? limiter->size : (double)table->max_size, least = batch - 1.0 + items;
        return size >= least
                   ? RP_OK
                   : err_set(err, RP_INVALID_ARGUMENT,
                             "the limiter of table '%s' has room for %.0f items; a run in one process needs "
                             "%.0f: a batch, and what %lld actors insert in one round",
                             table->name, size, least, (long long)(config->actors.count * config->actors.environments));
    }
    double ratio = limiter->samples_per_insert, round = items * ratio, centre = ratio * limiter->min_size;
    bool buffer = limiter->error_buffer >= 0;
    double low = buffer ? centre - limiter->error_buffer : limiter->min_diff;
    double high = buffer ? centre + limiter->error_buffer : limiter->max_diff;
    double lack = fmax(batch + round - (high - low), 2.0 * (centre + round - ratio - high));
    if (lack <= 0.0)
        return RP_OK;
    return err_set(err, RP_INVALID_ARGUMENT,
                   "the limiter of table '%s' leaves less room than a run in one process needs: a batch, and what %lld "
                   "actors insert in one round; write error_buffer of at least %.0f",
                   table->name, (long long)(config->actors.count * config->actors.environments),
                   ceil((high - low + lack) / 2.0));
}

rp_status lockstep_check(const struct run_config *config, double batch, rp_error *err)
{
    const struct table_config *table = run_config_table(config);
    uint32_t shards = config_shards(&config->broker);
    if (shards > 1)
        return err_set(err, RP_INVALID_ARGUMENT,
                       "a run in one process has one broker, and broker.shards says %u: write 1, or use replay-launch",
                       shards);
    if (!table)
        return err_set(err, RP_INVALID_ARGUMENT, "there is no table '%s' in broker.tables", config->adder.table);
    if (!config->actors.on || !config->learners.on)
        return RP_OK; /* no turns to take */
    if (table->limiter.kind == LIMITER_MIN_SIZE || table->limiter.kind == LIMITER_NONE)
        return err_set(err, RP_INVALID_ARGUMENT,
                       "a run in one process learns for as long as the limiter of table '%s' lets it, and a %s "
                       "limiter always does: use sample_to_insert_ratio or queue",
                       table->name, limiter_kind_name(table->limiter.kind));
    return check_room(config, table, batch, err);
}
