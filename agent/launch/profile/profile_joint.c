/* Joint runs of the pairs that plan_next asks for: everything that a run has, under the real limiter. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "agent/launch/profile/profile_config.h"
#include "agent/launch/profile/profile_hosts.h"
#include "agent/launch/profile/profile_impl.h"
#include "agent/launch/profile/profile_session.h"
#include "proto/base/clock.h"
#include "proto/base/error.h"

#define LEAST_RUNS 3u
#define MOST_RUNS 9u
/* After the first few, no joint run begins later than this many times plan.measure (24 s by default). */
#define MOST_TIMES 12
#define WARM_NS (700 * NS_PER_MS)
/* Long enough that each process reports its idle share at least twice. */
#define JOINT_LEAST_NS (1500 * NS_PER_MS)
#define JOINT_FILL_S 2.0
#define JOINT_BUFFER_S 0.25
#define LIMIT_IS_NONE 1e17

/* Keeps the limiter, but with fewer items to fill first and less room to run ahead, so that a few seconds show the
 * lasting rate. */
static void shorten(const struct profile *self, uint32_t actors, uint32_t learners,
                    struct profile_session_options *options)
{
    const struct limiter_section *limiter = &self->table->limiter;
    double rate = plan_actors_rate(self->out, actors), batch = (double)(self->batch * learners);
    double least = ceil(fmax(2.0 * batch, JOINT_FILL_S * rate));
    if (limiter->kind != LIMITER_RATIO && limiter->kind != LIMITER_MIN_SIZE)
        return;
    double cut = limiter->min_size > least ? limiter->min_size - least : 0.0;
    options->min_size = cut > 0 ? least : 0.0;
    if (limiter->kind == LIMITER_MIN_SIZE)
        return;
    uint32_t shards = options->shards ? options->shards : config_shards(&self->config->broker);
    /* For each shard as much as for a broker alone: with less room, more shards would look slower than they are. */
    double room = shards * fmax(8.0 * batch, JOINT_BUFFER_S * rate * limiter->samples_per_insert);
    if (limiter->error_buffer > room)
        options->buffer = fmax(room, 2.0 * fmax(1.0, limiter->samples_per_insert));
    bool bounds =
        limiter->error_buffer < 0 && fabs(limiter->min_diff) < LIMIT_IS_NONE && fabs(limiter->max_diff) < LIMIT_IS_NONE;
    options->shift = bounds ? -cut * limiter->samples_per_insert : 0.0;
}

static bool in_time(const struct profile *self)
{
    struct clock clock = clock_system();
    return clock_now(&clock) - self->began_ns < MOST_TIMES * self->config->plan.measure_ns;
}

static double joint_share(uint32_t done)
{
    return PROFILE_ALONE_END + (1.0 - PROFILE_ALONE_END) * (1.0 - pow(0.5, done));
}

/* Starts both sides where the run would. */
static rp_status start_pair(struct profile *self, uint32_t actors, uint32_t learners, rp_error *err)
{
    uint32_t n = self->out->n_hosts, *at = n > 0 ? calloc((size_t)n * 2, sizeof *at) : NULL;
    if (n > 0 && !at)
        return err_set(err, RP_NO_MEMORY, "no memory for %u hosts", n);
    if (at)
        plan_place(self->out, actors, learners, at, at + n);
    rp_status status = profile_session_spread(&self->session, ROLE_LEARNER, learners, at ? at + n : NULL, n, err);
    if (status == RP_OK)
        status = profile_session_spread(&self->session, ROLE_ACTOR, actors, at, n, err);
    free(at);
    return status;
}

/* Notes how busy the broker was. */
static void note_load(struct profile *self, const struct plan_joint *joint, const struct profile_measured *measured,
                      uint32_t shards)
{
    plan_add_load(self->out, &(struct plan_load){.shards = shards,
                                                 .core = measured->core,
                                                 .cores = measured->home + measured->others,
                                                 .joint = *joint});
}

static rp_status measure_pair(struct profile *self, uint32_t actors, uint32_t learners, uint32_t shards,
                              struct plan_joint *joint, rp_error *err)
{
    struct profile_session *session = &self->session;
    struct profile_measured measured;
    double fill_s = self->table->limiter.min_size / fmax(1e-9, plan_actors_rate(self->out, actors));
    int64_t limit_ns = PROFILE_FIRST_NS + (int64_t)(2e9 * fmin(fmax(fill_s, 0.0), JOINT_FILL_S));
    uint32_t done = self->joint_runs++;
    char with[32] = "";
    if (shards > 1)
        snprintf(with, sizeof with, " with %u shards", shards);
    profile_session_tell(session, joint_share(done), joint_share(done + 1), "%u actor%s and %u learner%s together%s",
                         actors, actors == 1 ? "" : "s", learners, learners == 1 ? "" : "s", with);
    RP_TRY(start_pair(self, actors, learners, err));
    if (self->config->evaluator.on)
        RP_TRY(profile_session_start(session, ROLE_EVALUATOR, 1, HOST_POOL_HOME, err));
    RP_TRY(profile_await_samples(self, 2 * learners * self->batch, limit_ns, err));
    RP_TRY(profile_session_wait(session, WARM_NS, err));
    int64_t ns = self->config->plan.measure_ns;
    ns = ns > JOINT_LEAST_NS ? ns : JOINT_LEAST_NS;
    RP_TRY(profile_session_measure(session, PROFILE_BOTH, learners * self->batch, ns, &measured, err));
    *joint = (struct plan_joint){.actors = actors,
                                 .learners = learners,
                                 .inserts = measured.inserts,
                                 .samples = measured.samples,
                                 .actor_idle = measured.actor_idle,
                                 .learner_idle = measured.learner_idle,
                                 .others = measured.others,
                                 .waits = measured.idle_by};
    for (int role = 0; role < ROLES; role++)
        joint->cpu += measured.cpu[role];
    profile_lasting_joint(self->items_per_step, measured.steps, joint);
    note_load(self, joint, &measured, shards);
    return RP_OK;
}

/* shards: 0: as the file says. */
static rp_status joint_run(struct profile *self, uint32_t actors, uint32_t learners, uint32_t shards,
                           struct plan_joint *joint, rp_error *err)
{
    char name[24];
    snprintf(name, sizeof name, "joint-%u", self->joint_runs);
    struct profile_session_options options = {.profile = self->options,
                                              .name = name,
                                              .share = joint_share(self->joint_runs),
                                              .shards = shards,
                                              .limited = true};
    shorten(self, actors, learners, &options);
    rp_status status = profile_session_open(&self->session, &options, err);
    if (status == RP_OK)
        status =
            measure_pair(self, actors, learners, shards ? shards : config_shards(&self->config->broker), joint, err);
    profile_session_close(&self->session);
    return status;
}

/* A run from which other programs took processor time is repeated, and the faster one counts: other programs only
 * slow a run down. */
static rp_status add_joint(struct profile *self, uint32_t actors, uint32_t learners, uint32_t shards, rp_error *err)
{
    struct plan_joint joint, again;
    RP_TRY(joint_run(self, actors, learners, shards, &joint, err));
    if (joint.others > 0 && in_time(self)) {
        RP_TRY(joint_run(self, actors, learners, shards, &again, err));
        joint = again.inserts > joint.inserts ? again : joint;
    }
    if (shards == 0) /* a pair with other shards than the run's is another thing */
        plan_add_joint(self->out, &joint);
    return RP_OK;
}

bool profile_next_shards(const struct plan_input *input, struct plan_load *next)
{
    struct plan plan;
    struct plan_input alone = *input;
    alone.fixed_shards = 1;
    return plan_solve(&alone, &plan, NULL) == RP_OK && plan_next_shards(input, &plan.chosen, next);
}

/* Where the broker's core thread holds the best pair back: more shards and more processes, as long as they pay. */
static rp_status measure_shards(struct profile *self, rp_error *err)
{
    struct plan_load next;
    while (profile_next_shards(self->out, &next)) {
        rp_status status = add_joint(self, next.joint.actors, next.joint.learners, next.shards, err);
        if (status == RP_CANCELLED || self->session.lost != PROFILE_NO_HOST)
            return status == RP_CANCELLED ? status : RP_OK;
        RP_TRY(status);
    }
    return RP_OK;
}

/* If no plan can be made of the measurements, plan_solve says so. */
rp_status profile_measure_joints(struct profile *self, rp_error *err)
{
    uint32_t actors, learners;
    while (self->joint_runs < MOST_RUNS && (self->joint_runs < LEAST_RUNS || in_time(self)) &&
           plan_next(self->out, &actors, &learners)) {
        rp_status status = add_joint(self, actors, learners, 0, err);
        uint32_t lost = self->session.lost;
        if (status != RP_OK && (lost == PROFILE_NO_HOST || !profile_hosts_leave_out(self, lost)))
            return status;
    }
    self->out->settled = true;
    return measure_shards(self, err);
}
