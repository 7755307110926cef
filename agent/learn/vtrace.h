/* V-trace (Espeholt et al. 2018, equation 1): values of a policy pi from steps that another policy mu took.
 *
 *   v_s     = V(x_s) + sum_{t >= s} g_s ... g_{t-1} c_s ... c_{t-1} delta_t
 *   delta_t = rho_t (r_t + g_t V(x_{t+1}) - V(x_t))
 *   rho_t   = c_t = min(1, pi(a_t) / mu(a_t))
 *
 * g_t is the discount of step t with the environment's part in it, so 0 after a terminal step. */
#ifndef AGENT_LEARN_VTRACE_H
#define AGENT_LEARN_VTRACE_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>

/* Arrays are [n][length], sequences first; `bootstrap` is [n]. */
struct vtrace {
    uint32_t n, length;
    const float *discount;  /* g_t */
    const float *log_rho;   /* log pi(a_t) - log mu(a_t) */
    const float *reward;    /* r_t */
    const float *value;     /* V(x_t) */
    const float *bootstrap; /* V(x_length) */
    float *target;          /* written: v_t */
    float *advantage;       /* written: rho_t (r_t + g_t v_{t+1} - V(x_t)), what multiplies the score of the action */
};

/* The sum in reverse order (remark 1 of the paper): v_t - V_t = delta_t + g_t c_t (v_{t+1} - V_{t+1}). */
static inline void vtrace_sequence(const struct vtrace *self, size_t first, double bootstrap)
{
    double next_value = bootstrap, next_target = bootstrap;
    for (size_t t = first + self->length; t-- > first;) {
        double ratio = exp((double)self->log_rho[t]);
        double rho = fmin(1.0, ratio), c = rho;
        double discount = (double)self->discount[t], reward = (double)self->reward[t], value = (double)self->value[t];
        double delta = rho * (reward + discount * next_value - value);
        double target = value + delta + discount * c * (next_target - next_value);
        self->target[t] = (float)target;
        self->advantage[t] = (float)(rho * (reward + discount * next_target - value));
        next_value = value;
        next_target = target;
    }
}

static inline void vtrace_targets(const struct vtrace *self)
{
    for (uint32_t i = 0; i < self->n; i++)
        vtrace_sequence(self, (size_t)i * self->length, (double)self->bootstrap[i]);
}

#endif
