/* The sequence of measurements: one actor alone; then learners alone on the items that the actor has left; then more
 * actors, as long as learners could use their items. Joint runs are in profile_joint.c. */
#include "agent/launch/profile/profile.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/launch/profile/profile_cache.h"
#include "agent/launch/profile/profile_config.h"
#include "agent/launch/profile/profile_impl.h"
#include "proto/base/clock.h"
#include "proto/base/error.h"
#include "replay/admin.h"

/* Shares of the whole work, for progress. */
#define FIRST_END 0.1
#define LEARNERS_END 0.4
/* More processes do not pay if twice as many gain less than this; with all cores busy, less than the second number. */
#define LEAST_GROWTH 0.10
#define LEAST_GROWTH_BUSY 0.25
#define BUSY 0.95
/* Actors that make this many times what all learners use are not measured. */
#define PLENTY 3.0
#define WARM_NS (300 * NS_PER_MS)
#define FOREIGN_SLOT_NS (5 * NS_PER_S)
#define FILL_NS (10 * NS_PER_S)
#define INFO_MS 2000
/* Bytes of an item beside its data: its place in the table, the sampler and the index. */
#define ITEM_BYTES 160.0

/* ---- which counts ---- */

/* Returns the next count after `count` (0: the first); 0: there is none. */
static uint32_t next_count(uint32_t count, uint32_t fixed, uint32_t most)
{
    if (count == 0)
        return 1;
    if (fixed > 0)
        return count < fixed ? fixed : 0;
    if (count >= most)
        return 0;
    return count * 2 < most ? count * 2 : most;
}

/* True if the last point was worth its processes and there is memory for the next. */
static bool goes_on(const struct profile *self, const struct plan_curve *curve, uint32_t fixed, uint32_t next)
{
    if (curve->n == 0 || fixed > 0)
        return curve->n < PLAN_MAX_POINTS;
    const struct plan_point *last = &curve->points[curve->n - 1];
    if (curve->n == PLAN_MAX_POINTS || last->memory * next + (double)self->session.base_memory > self->out->memory)
        return false;
    if (curve->n == 1)
        return true;
    const struct plan_point *before = last - 1;
    double growth = before->rate > 0 ? last->rate / before->rate - 1.0 : 1.0;
    bool busy = last->cpu + last->broker_cpu >= BUSY * self->out->cores;
    return growth >= (busy ? LEAST_GROWTH_BUSY : LEAST_GROWTH);
}

static void tell(struct profile *self, double from, double to, uint32_t done, uint32_t count, const char *what)
{
    double share = from + (to - from) * (1.0 - pow(0.7, done)), next = from + (to - from) * (1.0 - pow(0.7, done + 1));
    profile_session_tell(&self->session, share, next, "%u %s%s", count, what, count == 1 ? "" : "s");
}

static void add_point(struct plan_curve *curve, uint32_t count, double rate, enum role role,
                      const struct profile_measured *measured)
{
    curve->points[curve->n++] = (struct plan_point){.count = count,
                                                    .rate = rate,
                                                    .cpu = measured->cpu[role],
                                                    .broker_cpu = measured->cpu[ROLE_BROKER],
                                                    .memory = measured->memory[role]};
}

/* ---- actors ---- */

static bool has_policy(struct profile_session *session, void *context)
{
    (void)context;
    return session->seen.policy > 0;
}

/* Actors wait for the first parameters. These stay when the learner that made them ends. */
static rp_status first_parameters(struct profile *self, rp_error *err)
{
    bool foreign = self->config->learners.command.count > 0;
    profile_session_tell(&self->session, 0.0, 0.0, "first parameters");
    RP_TRY(profile_session_start(&self->session, ROLE_LEARNER, 1, err));
    rp_status status =
        profile_session_await(&self->session, has_policy, NULL, foreign ? FOREIGN_SLOT_NS : PROFILE_FIRST_NS, err);
    if (status == RP_DEADLINE_EXCEEDED && !foreign)
        return err_set(err, status, "the learner published no parameters within %d s: see %s/learner-0.log",
                       (int)(PROFILE_FIRST_NS / NS_PER_S), self->session.folder);
    if (status != RP_DEADLINE_EXCEEDED)
        RP_TRY(status);
    return profile_session_stop(&self->session, ROLE_LEARNER, err);
}

struct all_insert {
    uint32_t count;
    bool any; /* at least one actor has inserted */
};

static bool all_insert(struct profile_session *session, void *context)
{
    struct all_insert *wanted = context;
    rp_info *info = NULL;
    uint32_t n = 0;
    if (rp_admin_info(observer_client(session->observer), NULL, 1, INFO_MS, &info, NULL) != RP_OK)
        return false;
    for (uint32_t i = 0; i < info->n_sessions; i++)
        n += !info->sessions[i].expired && info->sessions[i].resolved > 0;
    rp_info_free(&info);
    wanted->any = n > 0;
    return n >= wanted->count;
}

/* A user's own actors may share a session: then the visible sessions have to do. */
static rp_status await_inserts(struct profile *self, uint32_t count, rp_error *err)
{
    struct all_insert wanted = {.count = count};
    bool foreign = self->config->actors.command.count > 0;
    rp_status status = profile_session_await(&self->session, all_insert, &wanted, PROFILE_FIRST_NS, err);
    if (status == RP_DEADLINE_EXCEEDED && foreign && wanted.any)
        return RP_OK;
    if (status == RP_DEADLINE_EXCEEDED)
        return err_set(err, status, "%s of %u actors inserted an item into '%s' within %d s: see %s/actor-*.log",
                       wanted.any ? "not each" : "none", count, self->config->adder.table,
                       (int)(PROFILE_FIRST_NS / NS_PER_S), self->session.folder);
    return status;
}

/* True if this many actors make far more than all learners can use: more actors would show nothing. */
static bool is_plenty(const struct profile *self, uint32_t fixed)
{
    const struct plan_curve *actors = &self->out->actors, *learners = &self->out->learners;
    double most = 0.0;
    for (uint32_t i = 0; i < learners->n; i++)
        most = fmax(most, learners->points[i].rate);
    return fixed == 0 && learners->n > 0 && actors->n > 1 && self->out->spi > 0 &&
           actors->points[actors->n - 1].rate * self->out->spi > PLENTY * most;
}

/* Continues the curve up to `until` actors. */
static rp_status measure_actors(struct profile *self, uint32_t until, rp_error *err)
{
    struct plan_curve *curve = &self->out->actors;
    struct profile_session *session = &self->session;
    uint32_t fixed = self->out->fixed_actors, most = (uint32_t)self->config->plan.max_actors;
    uint32_t count = plan_last(curve);
    while ((count = next_count(count, fixed, most)) && count <= until && goes_on(self, curve, fixed, count) &&
           !is_plenty(self, fixed)) {
        struct profile_measured measured;
        if (curve->n == 0)
            tell(self, 0.0, FIRST_END, 0, count, "actor");
        else
            tell(self, LEARNERS_END, PROFILE_ALONE_END, curve->n - 1, count, "actor");
        RP_TRY(profile_session_start(session, ROLE_ACTOR, count, err));
        RP_TRY(await_inserts(self, count, err));
        RP_TRY(profile_session_wait(session, WARM_NS, err));
        RP_TRY(profile_session_measure(session, PROFILE_INSERTS, 1, self->config->plan.measure_ns, &measured, err));
        double rate = profile_lasting(self->items_per_step, measured.steps, measured.inserts);
        add_point(curve, count, rate, ROLE_ACTOR, &measured);
    }
    return RP_OK;
}

/* ---- what the learners find ---- */

static bool filled(struct profile_session *session, void *context)
{
    const uint64_t *wanted = context;
    return session->seen.size >= *wanted ||
           (session->seen.max_size > 0 && session->seen.size >= session->seen.max_size);
}

/* Bytes of the broker with full tables, from what items take now. */
static double full_memory(const struct profile *self)
{
    const struct observation *seen = &self->session.seen;
    double items = 0.0, limit = (double)self->config->broker.memory_limit;
    if (seen->size > 0)
        items = (double)seen->max_size * ((double)seen->broker_bytes / (double)seen->size + ITEM_BYTES);
    if (self->table->max_bytes > 0)
        items = fmin(items, (double)self->table->max_bytes * 1.25);
    return (double)self->session.base_memory + fmin(items, limit);
}

static rp_status leave_table(struct profile *self, rp_error *err)
{
    struct profile_session *session = &self->session;
    uint64_t wanted = 4 * self->batch;
    profile_session_tell(session, FIRST_END, FIRST_END, "filling the table for learners");
    rp_status status = profile_session_await(session, filled, &wanted, FILL_NS, err);
    if (status != RP_DEADLINE_EXCEEDED)
        RP_TRY(status);
    if (session->seen.size == 0)
        return err_set(err, RP_FAILED_PRECONDITION, "table '%s' is empty after its actors have run: see %s/actor-*.log",
                       self->config->adder.table, session->folder);
    self->out->broker_memory = full_memory(self);
    return profile_session_stop(session, ROLE_ACTOR, err);
}

/* ---- learners ---- */

static bool samples_flow(struct profile_session *session, void *context)
{
    const uint64_t *wanted = context;
    return session->seen.samples >= *wanted;
}

rp_status profile_await_samples(struct profile *self, uint64_t more, int64_t limit_ns, rp_error *err)
{
    struct profile_session *session = &self->session;
    uint64_t wanted = session->seen.samples + more;
    rp_status status = profile_session_await(session, samples_flow, &wanted, limit_ns, err);
    if (status != RP_DEADLINE_EXCEEDED)
        return status;
    const char *why = session->seen.samples_wait[0] ? session->seen.samples_wait : session->seen.inserts_wait;
    return err_set(err, status, "learners did not sample from '%s' within %d s%s%s: see %s/learner-*.log",
                   self->config->adder.table, (int)(limit_ns / NS_PER_S), why[0] ? "; " : "", why, session->folder);
}

static rp_status measure_learners(struct profile *self, rp_error *err)
{
    struct plan_curve *curve = &self->out->learners;
    struct profile_session *session = &self->session;
    uint32_t fixed = self->out->fixed_learners, most = (uint32_t)self->config->plan.max_learners;
    for (uint32_t count = 0; (count = next_count(count, fixed, most)) && goes_on(self, curve, fixed, count);) {
        struct profile_measured measured;
        tell(self, FIRST_END, LEARNERS_END, curve->n, count, "learner");
        RP_TRY(profile_session_look(session, err));
        RP_TRY(profile_session_start(session, ROLE_LEARNER, count, err));
        RP_TRY(profile_await_samples(self, 2 * count * self->batch, PROFILE_FIRST_NS, err));
        RP_TRY(profile_session_wait(session, WARM_NS, err));
        RP_TRY(profile_session_measure(session, PROFILE_SAMPLES, count * self->batch, self->config->plan.measure_ns,
                                       &measured, err));
        add_point(curve, count, measured.samples, ROLE_LEARNER, &measured);
        RP_TRY(profile_session_stop(session, ROLE_LEARNER, err));
    }
    return RP_OK;
}

/* ---- the whole ---- */

static rp_status measure_alone(struct profile *self, rp_error *err)
{
    struct profile_session_options options = {.profile = self->options, .name = "alone"};
    rp_status status = profile_session_open(&self->session, &options, err);
    if (status == RP_OK)
        status = first_parameters(self, err);
    if (status == RP_OK)
        status = measure_actors(self, 1, err);
    if (status == RP_OK)
        status = leave_table(self, err);
    if (status == RP_OK)
        status = measure_learners(self, err);
    if (status == RP_OK)
        status = measure_actors(self, UINT32_MAX, err);
    profile_session_close(&self->session);
    return status;
}

static rp_status measure(const struct profile_options *options, struct plan_input *out, rp_error *err)
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
    *out = (struct plan_input){0};
    profile_fill(options->config, out);
    RP_TRY(measure_alone(&self, err));
    profile_fill(options->config, out);
    return profile_measure_joints(&self, err);
}

/* Curves measured for auto counts also hold for fixed counts; curves measured for fixed counts hold only for those. */
static bool load_auto(const struct profile_options *options, struct plan_input *out)
{
    struct run_config config = *options->config;
    struct profile_options other = *options;
    config.actors.count = config.learners.count = 0;
    other.config = &config;
    char *key = profile_key(&other);
    bool found = key && profile_load(key, out);
    free(key);
    return found;
}

rp_status profile_measure(const struct profile_options *options, struct plan_input *out, bool *from_cache,
                          rp_error *err)
{
    char *key = profile_key(options);
    rp_status status = RP_OK;
    *from_cache = key && !options->fresh && (profile_load(key, out) || load_auto(options, out));
    if (*from_cache)
        profile_fill(options->config, out);
    else if (options->cached)
        status = err_set(err, RP_NOT_FOUND, "nothing was measured yet for this configuration, build and host");
    else
        status = measure(options, out, err);
    /* If the cache cannot be written, the next run measures again; this run loses nothing. */
    if (status == RP_OK && !*from_cache && key)
        profile_store(key, out, NULL);
    free(key);
    return status;
}
