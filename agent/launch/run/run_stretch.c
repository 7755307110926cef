/* Stretches of a run: from one change of the number of actors to the next, with the rates achieved in each. */
#include <math.h>
#include <string.h>

#include "agent/launch/run/run_impl.h"

/* The first reports still cover the start. */
#define SETTLE_MOST_NS (5 * NS_PER_S)
#define SETTLE_MORE_NS (NS_PER_S / 2)

void run_stretch_begin(struct run *self, uint32_t actors)
{
    if (self->n_stretches > 0 && self->stretches[self->n_stretches - 1].actors == actors)
        return;
    if (self->n_stretches == REPORT_STRETCHES) /* the newest are kept */
        memmove(self->stretches, self->stretches + 1, --self->n_stretches * sizeof *self->stretches);
    self->stretches[self->n_stretches++] =
        (struct stretch){.actors = actors, .from_s = run_elapsed(self), .from_ns = clock_now(&self->clock)};
}

static void add_sums(struct stretch_sums *sums, const struct observation *before, const struct observation *seen)
{
    double seconds = (double)(seen->at_ns - before->at_ns) * 1e-9;
    sums->seconds += seconds;
    sums->inserts += (double)(seen->inserts - before->inserts);
    sums->samples += (double)(seen->samples - before->samples);
    idle_shares_add(&sums->idle_by, &seen->idle_by, seconds);
    if (isfinite(seen->actor_idle)) {
        sums->actor_idle += seconds * seen->actor_idle;
        sums->actor_s += seconds;
    }
    if (isfinite(seen->learner_idle)) {
        sums->learner_idle += seconds * seen->learner_idle;
        sums->learner_s += seconds;
    }
}

/* Adds what happened between two looks at the same broker, unless the table was reset meanwhile and its counts began
 * again. Time in which nothing moves counts only within the settled part: starting and ending may take long. */
void run_stretch_add(struct run *self, const struct observation *before)
{
    const struct observation *seen = &self->seen;
    if (self->n_stretches == 0 || before->at_ns == 0 || seen->broker_instance != before->broker_instance ||
        seen->inserts < before->inserts || seen->samples < before->samples)
        return;
    struct stretch *stretch = &self->stretches[self->n_stretches - 1];
    if (seen->inserts != before->inserts || seen->samples != before->samples)
        add_sums(&stretch->whole, before, seen);
    int64_t every = self->config->report.every_ns, from = stretch->from_ns;
    from = from > self->running_ns ? from : self->running_ns;
    if (self->phase == PHASE_RUNNING &&
        before->at_ns >= from + (every < SETTLE_MOST_NS ? every : SETTLE_MOST_NS) + SETTLE_MORE_NS)
        add_sums(&stretch->settled, before, seen);
}

static struct report_steady rates_of(const struct stretch_sums *sums)
{
    struct report_steady out = {.seconds = sums->seconds, .spi = NAN, .actor_idle = NAN, .learner_idle = NAN};
    idle_shares_none(&out.idle_by);
    if (sums->seconds <= 0.0)
        return out;
    out.inserts = sums->inserts / sums->seconds;
    out.samples = sums->samples / sums->seconds;
    out.spi = sums->inserts > 0.0 ? sums->samples / sums->inserts : NAN;
    out.actor_idle = sums->actor_s > 0.0 ? sums->actor_idle / sums->actor_s : NAN;
    out.learner_idle = sums->learner_s > 0.0 ? sums->learner_idle / sums->learner_s : NAN;
    for (int i = 0; i < IDLE_CAUSES; i++) {
        out.idle_by.actor[i] = sums->actor_s > 0.0 ? sums->idle_by.actor[i] / sums->actor_s : NAN;
        out.idle_by.learner[i] = sums->learner_s > 0.0 ? sums->idle_by.learner[i] / sums->learner_s : NAN;
    }
    return out;
}

/* A run that ends before the first reports is described by the last ones: each process reports when it ends. */
static void fill_idle(struct report_steady *rates, const struct observation *seen)
{
    if (isnan(rates->actor_idle)) {
        rates->actor_idle = seen->actor_idle;
        memcpy(rates->idle_by.actor, seen->idle_by.actor, sizeof rates->idle_by.actor);
    }
    if (isnan(rates->learner_idle)) {
        rates->learner_idle = seen->learner_idle;
        memcpy(rates->idle_by.learner, seen->idle_by.learner, sizeof rates->idle_by.learner);
    }
}

uint32_t run_stretches(const struct run *self, struct report_stretch out[REPORT_STRETCHES])
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < self->n_stretches; i++) {
        const struct stretch *stretch = &self->stretches[i];
        bool settled = stretch->settled.seconds > 0.0;
        struct report_steady rates = rates_of(settled ? &stretch->settled : &stretch->whole);
        if (rates.seconds <= 0.0)
            continue;
        if (i + 1 == self->n_stretches)
            fill_idle(&rates, &self->seen);
        out[n++] = (struct report_stretch){.actors = stretch->actors,
                                           .learners = run_config_learners(self->config),
                                           .from_s = stretch->from_s,
                                           .settled = settled,
                                           .rates = rates};
    }
    return n;
}
