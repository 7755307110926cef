/* V-trace against the sum of the paper, written down as it stands there. */

#include "agent/learn/vtrace.h"
#include "tests/support/naive.h"

#define MAX_N 4
#define MAX_LENGTH 12

struct arrays {
    float discount[MAX_N * MAX_LENGTH], log_rho[MAX_N * MAX_LENGTH], reward[MAX_N * MAX_LENGTH];
    float value[MAX_N * MAX_LENGTH], bootstrap[MAX_N], target[MAX_N * MAX_LENGTH], advantage[MAX_N * MAX_LENGTH];
    struct vtrace vtrace;
};

static void make(struct arrays *self, uint32_t n, uint32_t length, struct rng *rng)
{
    memset(self, 0, sizeof *self);
    for (uint32_t k = 0; k < n * length; k++) {
        self->discount[k] = rng_below(rng, 5) == 0 ? 0.0f : 0.97f;
        self->log_rho[k] = (float)(4.0 * rng_unit(rng) - 2.0);
        self->reward[k] = (float)(2.0 * rng_unit(rng) - 1.0);
        self->value[k] = (float)(10.0 * rng_unit(rng) - 5.0);
    }
    for (uint32_t i = 0; i < n; i++)
        self->bootstrap[i] = (float)(10.0 * rng_unit(rng) - 5.0);
    self->vtrace = (struct vtrace){.n = n,
                                   .length = length,
                                   .discount = self->discount,
                                   .log_rho = self->log_rho,
                                   .reward = self->reward,
                                   .value = self->value,
                                   .bootstrap = self->bootstrap,
                                   .target = self->target,
                                   .advantage = self->advantage};
}

static void check_near(double got, double expected)
{
    if (!(fabs(got - expected) <= 1e-5 * (1.0 + fabs(expected))))
        fail_msg("%.9g, not %.9g", got, expected);
}

/* One sequence; V(x_length) is the bootstrap. */
static double value_at(const struct vtrace *v, uint32_t i, uint32_t t)
{
    return (double)(t == v->length ? v->bootstrap[i] : v->value[i * v->length + t]);
}

static double naive_target(const struct vtrace *v, uint32_t i, uint32_t s)
{
    double sum = value_at(v, i, s);
    for (uint32_t t = s; t < v->length; t++) {
        double product = 1.0;
        for (uint32_t j = s; j < t; j++)
            product *= (double)v->discount[i * v->length + j] * fmin(1.0, exp((double)v->log_rho[i * v->length + j]));
        uint32_t k = i * v->length + t;
        double rho = fmin(1.0, exp((double)v->log_rho[k]));
        sum +=
            product * rho * ((double)v->reward[k] + (double)v->discount[k] * value_at(v, i, t + 1) - value_at(v, i, t));
    }
    return sum;
}

TEST(equals_the_sum_of_the_paper)
{
    struct rng rng = naive_rng(__func__);
    for (int round = 0; round < 500; round++) {
        struct arrays a;
        make(&a, 1 + (uint32_t)rng_below(&rng, MAX_N), (uint32_t)rng_below(&rng, MAX_LENGTH + 1), &rng);
        struct vtrace *v = &a.vtrace;
        vtrace_targets(v);
        for (uint32_t i = 0; i < v->n; i++)
            for (uint32_t s = 0; s < v->length; s++) {
                uint32_t k = i * v->length + s;
                check_near(v->target[k], naive_target(v, i, s));
                double next = s + 1 == v->length ? (double)v->bootstrap[i] : naive_target(v, i, s + 1);
                double rho = fmin(1.0, exp((double)v->log_rho[k]));
                check_near(v->advantage[k],
                           rho * ((double)v->reward[k] + (double)v->discount[k] * next - (double)v->value[k]));
            }
    }
}

/* Remark 1 of the paper: on its own policy's steps a target is the return of all that follows. */
TEST(on_policy_is_the_n_step_return)
{
    struct rng rng = naive_rng(__func__);
    struct arrays a;
    make(&a, MAX_N, MAX_LENGTH, &rng);
    memset(a.log_rho, 0, sizeof a.log_rho);
    vtrace_targets(&a.vtrace);
    for (uint32_t i = 0; i < MAX_N; i++) {
        double back = (double)a.bootstrap[i];
        for (uint32_t t = MAX_LENGTH; t-- > 0;) {
            uint32_t k = i * MAX_LENGTH + t;
            back = (double)a.reward[k] + (double)a.discount[k] * back;
            check_near(a.target[k], back);
            check_near(a.advantage[k], back - (double)a.value[k]);
        }
    }
}

TEST(survives_ratios_past_all_bounds)
{
    struct rng rng = rng_of(1);
    struct arrays a;
    make(&a, 1, 3, &rng);
    a.log_rho[0] = 1e30f;
    a.log_rho[1] = -1e30f;
    a.log_rho[2] = INFINITY;
    vtrace_targets(&a.vtrace);
    for (uint32_t k = 0; k < 3; k++)
        assert_true(isfinite(a.target[k]) && isfinite(a.advantage[k]));
    assert_true(a.target[1] == a.value[1]);
}
