/* The sequence of measurements: curves (profile_alone.c), the network (profile_hosts.c), joint runs (profile_joint.c); or what the
 * cache has of them. */
#include "agent/launch/profile/profile.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "agent/launch/profile/profile_cache.h"
#include "agent/launch/profile/profile_config.h"
#include "agent/launch/profile/profile_hosts.h"
#include "agent/launch/profile/profile_impl.h"
#include "proto/base/clock.h"
#include "proto/base/error.h"

/* What a profile has of an earlier one. */
enum known { KNOWN_NOTHING, KNOWN_CURVES, KNOWN_ALL };

void profile_say(struct profile *self, const char *format, ...)
{
    char line[200];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    if (self->options->progress)
        self->options->progress(self->options->context, line, self->session.share);
}

static rp_status measure_curves(struct profile *self, rp_error *err)
{
    const struct profile_options *options = self->options;
    plan_input_free(self->out);
    *self->out = (struct plan_input){0};
    if (profile_is_spread(options))
        RP_TRY(profile_hosts_fill(options->hosts, self->out, err));
    profile_fill(options->config, self->out);
    return profile_measure_alone(self, err);
}

static rp_status measure(const struct profile_options *options, struct plan_input *out, enum known known, rp_error *err)
{
    struct profile self = {.options = options,
                           .config = options->config,
                           .table = run_config_table(options->config),
                           .out = out,
                           .batch = (uint64_t)profile_batch(options->config),
                           .items_per_step = profile_items_per_step(options->config)};
    if (!self.table)
        return err_set(err, RP_NOT_FOUND, "there is no table '%s' in broker.tables", options->config->adder.table);
    struct clock clock = clock_system();
    self.began_ns = clock_now(&clock);
    if (known == KNOWN_NOTHING)
        RP_TRY(measure_curves(&self, err));
    if (profile_is_spread(options)) {
        bool same;
        profile_hosts_adopt(options->hosts, out, &same); /* with those that have come, or come back, meanwhile */
        RP_TRY(profile_measure_network(&self, err));
        self.began_ns = clock_now(&clock); /* curves of several kinds leave joint runs their time */
    }
    profile_fill(options->config, out);
    return profile_measure_joints(&self, err);
}

/* Takes what the cache has for a key, as far as it holds for the hosts of now. */
static enum known load(const char *key, const struct profile_options *options, struct plan_input *out)
{
    bool same = true;
    if (!key || !profile_load(key, out))
        return KNOWN_NOTHING;
    bool hosts = profile_is_spread(options);
    if (hosts ? profile_hosts_adopt(options->hosts, out, &same) : out->n_hosts == 0)
        return same ? KNOWN_ALL : KNOWN_CURVES;
    plan_input_free(out);
    return KNOWN_NOTHING;
}

/* Curves measured for auto counts also hold for fixed counts; curves measured for fixed counts hold only for those. */
static enum known load_auto(const struct profile_options *options, struct plan_input *out)
{
    struct run_config config = *options->config;
    struct profile_options other = *options;
    config.actors.count = config.learners.count = 0;
    other.config = &config;
    char *key = profile_key(&other);
    enum known known = load(key, options, out);
    free(key);
    if (known != KNOWN_ALL)
        return known;
    struct plan_load next;
    profile_fill(options->config, out);
    if (!profile_next_shards(out, &next))
        return KNOWN_ALL;
    out->settled = false; /* with shards: auto, these counts need a run of their own */
    return KNOWN_CURVES;
}

rp_status profile_measure(const struct profile_options *options, struct plan_input *out, bool *from_cache,
                          rp_error *err)
{
    char *key = profile_key(options);
    rp_status status = RP_OK;
    enum known known = KNOWN_NOTHING;
    *out = (struct plan_input){0};
    if (!options->fresh)
        known = load(key, options, out);
    if (!options->fresh && known == KNOWN_NOTHING)
        known = load_auto(options, out);
    *from_cache = known == KNOWN_ALL || (known == KNOWN_CURVES && options->cached);
    if (*from_cache)
        profile_fill(options->config, out);
    else if (options->cached)
        status = err_set(err, RP_NOT_FOUND, "nothing was measured yet for this configuration, build and machine");
    else
        status = measure(options, out, known, err);
    /* If the cache cannot be written, the next run measures again; this run loses nothing. */
    if (status == RP_OK && !*from_cache && key)
        profile_store(key, out, NULL);
    if (status != RP_OK)
        plan_input_free(out);
    free(key);
    return status;
}
