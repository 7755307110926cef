/* V-trace (Espeholt et al. 2018, equation 1): values of a policy pi from steps that another policy mu took.
 *
 *   v_s     = V(x_s) + sum_{t >= s} g_s ... g_{t-1} c_s ... c_{t-1} delta_t
 *   delta_t = rho_t (r_t + g_t V(x_{t+1}) - V(x_t))
 *   rho_t   = c_t = min(1, pi(a_t) / mu(a_t))
 *
 * g_t is the discount of step t with the environment's part in it, so 0 after a terminal step. */
#ifndef AGENT_LEARN_VTRACE_H
#define AGENT_LEARN_VTRACE_H

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

void vtrace_targets(const struct vtrace *self);

#endif
