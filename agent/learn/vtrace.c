#include "agent/learn/vtrace.h"

#include <math.h>
#include <stddef.h>

/* The sum in reverse order (remark 1 of the paper): v_t - V_t = delta_t + g_t c_t (v_{t+1} - V_{t+1}). */
static void one_sequence(const struct vtrace *self, size_t first, double bootstrap)
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

void vtrace_targets(const struct vtrace *self)
{
    for (uint32_t i = 0; i < self->n; i++)
        one_sequence(self, (size_t)i * self->length, (double)self->bootstrap[i]);
}
