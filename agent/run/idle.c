#include "agent/run/idle.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define LEAST_TOLD 0.005

const char *const idle_keys[IDLE_CAUSES] = {
    [IDLE_SAMPLE] = "idle_sample", [IDLE_CREDIT] = "idle_credit",   [IDLE_PARAMETERS] = "idle_parameters",
    [IDLE_REDUCE] = "idle_reduce", [IDLE_UPDATES] = "idle_updates", [IDLE_COUNTERS] = "idle_counters",
};

const char *idle_name(uint32_t cause)
{
    return idle_keys[cause] + strlen("idle_");
}

/* ---- of one process ---- */

uint64_t idle_total(const struct idle *self)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < IDLE_CAUSES; i++)
        sum += self->ns[i];
    return sum;
}

uint32_t idle_report(const struct idle *self, struct idle *before, double seconds, const char *total, uint32_t causes,
                     struct agent_scalar out[IDLE_CAUSES + 1])
{
    uint32_t n = 1;
    double scale = seconds > 0.0 ? 1e-9 / seconds : 0.0;
    out[0] = (struct agent_scalar){total, (double)(idle_total(self) - idle_total(before)) * scale};
    for (uint32_t i = 0; i < IDLE_CAUSES; i++)
        if (causes >> i & 1)
            out[n++] = (struct agent_scalar){idle_keys[i], (double)(self->ns[i] - before->ns[i]) * scale};
    *before = *self;
    return n;
}

/* ---- of all ---- */

void idle_shares_none(struct idle_shares *out)
{
    for (uint32_t i = 0; i < IDLE_CAUSES; i++)
        out->actor[i] = out->learner[i] = NAN;
}

static void add(double *sum, double share, double weight)
{
    if (isfinite(share))
        *sum = (isfinite(*sum) ? *sum : 0.0) + share * weight;
}

void idle_shares_add(struct idle_shares *self, const struct idle_shares *other, double weight)
{
    for (uint32_t i = 0; i < IDLE_CAUSES; i++) {
        add(&self->actor[i], other->actor[i], weight);
        add(&self->learner[i], other->learner[i], weight);
    }
}

/* The largest share that was not written yet; IDLE_CAUSES: none that is large enough. */
static uint32_t next_cause(const double shares[IDLE_CAUSES], uint32_t told)
{
    uint32_t best = IDLE_CAUSES;
    for (uint32_t i = 0; i < IDLE_CAUSES; i++)
        if (!(told >> i & 1) && shares[i] >= LEAST_TOLD && (best == IDLE_CAUSES || shares[i] > shares[best]))
            best = i;
    return best;
}

const char *idle_words(const double shares[IDLE_CAUSES], char *out, size_t size)
{
    size_t used = 0;
    uint32_t told = 0;
    out[0] = '\0';
    for (uint32_t i; (i = next_cause(shares, told)) < IDLE_CAUSES; told |= 1u << i) {
        int n = snprintf(out + used, size - used, "%s%s %.0f%%", used ? ", " : "", idle_name(i), 100 * shares[i]);
        if (n < 0 || (size_t)n >= size - used) {
            out[used] = '\0';
            break;
        }
        used += (size_t)n;
    }
    return out;
}
