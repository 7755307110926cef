/* See resize.h. A step is sized so that both sides would wait as the plan says: with a factor k more actors, the
 * rate of items grows by k as long as learners wait. One such step is enough where the shares are steady. It is
 * rounded up, so a step down never starves the learners and is not undone by a step up. A window begins where one
 * side is idle beyond the margin and goes on while it is beyond half of it. */
#include "agent/launch/resize.h"

#include <math.h>
#include <stdio.h>

#define ALL_BUSY 0.95      /* share of the cores */
#define LEAST_AT_WORK 0.05 /* a smaller share is noise and would lead to a step of any size */
#define DOUBT 2.0          /* standard errors of a mean that a step does not rely on */
#define ROUNDING 0.1       /* of an actor: too little to start another actor for */

static double predicted(double idle)
{
    return isfinite(idle) ? fmin(1, fmax(0, idle)) : 0;
}

static double at_work(double idle)
{
    return fmin(1, fmax(LEAST_AT_WORK, 1 - idle));
}

/* Returns which side waits longer than planned by more than a margin: +1 the learners, -1 the actors, 0 neither or
 * both. */
static int32_t who_waits(const struct resize_limits *limits, const struct resize_seen *seen, double margin)
{
    bool actors = seen->actor_idle > predicted(limits->predicted_actor_idle) + margin;
    bool learners = seen->learner_idle > predicted(limits->predicted_learner_idle) + margin;
    return (int32_t)learners - (int32_t)actors;
}

static bool may_go(const struct resize_limits *limits, const struct resize_seen *seen, int32_t direction)
{
    if (direction > 0)
        return seen->actors < limits->most && !(limits->cores > 0 && seen->cpu >= ALL_BUSY * limits->cores);
    return direction < 0 && seen->actors > limits->least && seen->actors > 1;
}

static void sum_add(struct resize_sum *self, double value)
{
    self->sum += value;
    self->squares += value * value;
}

static double mean_of(const struct resize *self, const struct resize_sum *sum)
{
    return sum->sum / self->n;
}

/* How far the mean may be from the lasting value because of noise. */
static double doubt_of(const struct resize *self, const struct resize_sum *sum)
{
    double mean = mean_of(self, sum), variance = sum->squares / self->n - mean * mean;
    return self->n > 1 ? DOUBT * sqrt(fmax(0, variance) / (self->n - 1)) : 1;
}

static uint32_t step(const struct resize *self, const struct resize_limits *limits, uint32_t now)
{
    bool up = self->direction > 0;
    double actors = at_work(mean_of(self, &self->actor_idle) - (up ? 0 : doubt_of(self, &self->actor_idle)));
    double learners = at_work(mean_of(self, &self->learner_idle) - (up ? doubt_of(self, &self->learner_idle) : 0));
    actors /= at_work(predicted(limits->predicted_actor_idle));
    learners /= at_work(predicted(limits->predicted_learner_idle));
    double wanted = ceil(now * (actors / learners) - ROUNDING);
    /* With k times the actors all processes have k times the work. */
    double cpu = mean_of(self, &self->cpu),
           most = limits->cores > 0 && cpu > 0 ? ALL_BUSY * limits->cores / cpu : INFINITY;
    if (up)
        wanted = fmax(fmin(wanted, floor(now * most)), now + 1.0);
    else
        wanted = fmin(wanted, now);
    return (uint32_t)fmax(1, fmin(fmax(wanted, limits->least), limits->most));
}

struct change {
    uint32_t from, to; /* actors */
    double seconds;    /* for which they were watched */
};

static void explain(const struct resize *self, const struct resize_limits *limits, const struct change *change,
                    char *reason, uint32_t size)
{
    bool up = self->direction > 0;
    double idle = mean_of(self, up ? &self->learner_idle : &self->actor_idle);
    double plan = predicted(up ? limits->predicted_learner_idle : limits->predicted_actor_idle);
    snprintf(reason, size, "%s waited %.0f%% of the last %.3g s (plan: %.0f%%) for %s: %u -> %u actors",
             up ? "learners" : "actors", 100 * idle, change->seconds, 100 * plan, up ? "items" : "learners",
             change->from, change->to);
}

uint32_t resize_decide(struct resize *self, const struct resize_limits *limits, const struct resize_seen *seen,
                       int64_t now_ns, char *reason, uint32_t size)
{
    if (size)
        reason[0] = '\0';
    if (!seen->steady || seen->actors == 0) {
        *self = (struct resize){0};
        return seen->actors;
    }
    if (!isfinite(seen->actor_idle) || !isfinite(seen->learner_idle))
        return seen->actors;
    bool open = self->direction != 0;
    int32_t direction = who_waits(limits, seen, open ? limits->margin / 2 : limits->margin);
    if (open && direction != self->direction) {
        *self = (struct resize){0};
        direction = who_waits(limits, seen, limits->margin);
    }
    if (!may_go(limits, seen, direction)) {
        *self = (struct resize){0};
        return seen->actors;
    }
    if (self->direction == 0)
        *self = (struct resize){.since_ns = now_ns, .direction = direction};
    sum_add(&self->actor_idle, seen->actor_idle);
    sum_add(&self->learner_idle, seen->learner_idle);
    sum_add(&self->cpu, isfinite(seen->cpu) ? seen->cpu : 0);
    self->n++;
    if (now_ns - self->since_ns < limits->after_ns)
        return seen->actors;
    struct resize_seen mean = {.actor_idle = mean_of(self, &self->actor_idle),
                               .learner_idle = mean_of(self, &self->learner_idle)};
    uint32_t wanted = seen->actors;
    if (who_waits(limits, &mean, limits->margin) == self->direction)
        wanted = step(self, limits, seen->actors);
    if (wanted != seen->actors)
        explain(self, limits, &(struct change){seen->actors, wanted, (double)(now_ns - self->since_ns) / 1e9}, reason,
                size);
    *self = (struct resize){0};
    return wanted;
}
