/* SAC (Haarnoja et al. 2018, with the learned temperature of "Algorithms and Applications"): a random policy that is
 * paid for its entropy.
 *
 * The policy network gives a mean and a log deviation for each number of an action, and with noise e ~ N(0, 1)
 *
 *   u = mean + exp(log_std) e,   a = tanh(u)
 *   log pi(a|s) = sum_j -e_j^2 / 2 - log_std_j - log(2 pi) / 2 - log(1 - a_j^2)
 *
 *   y_i     = R_i + g D_i (min_k Qk_target(s'_i, a'_i) - alpha log pi(a'_i|s'_i))
 *   L_Q     = sum_k 1/n sum_i w_i (Qk(s_i, a_i) - y_i)^2 / 2
 *   L_pi    = 1/n sum_i alpha log pi(a~_i|s_i) - min_k Qk(s_i, a~_i)          a~_i fresh from the policy at s_i
 *   L_alpha = 1/n sum_i -alpha (log pi(a~_i|s_i) + target_entropy)            alpha = exp(parameter)
 *
 * Derivatives of L_pi, with e fixed, written out for one item and one number of its action:
 *
 *   dL/du       = alpha 2 a - dQ/da (1 - a^2)       for d/du -log(1 - tanh^2 u) = 2 tanh u
 *   dL/dmean    = dL/du
 *   dL/dlog_std = dL/du exp(log_std) e - alpha      none where log_std is at its limits */
#include <math.h>
#include <stdlib.h>

#include "agent/learn/algorithm.h"
#include "agent/learn/critic.h"
#include "proto/base/error.h"

#define LOG_STD_MIN (-20.0f)
#define LOG_STD_MAX 2.0f
/* Bound of log alpha. A target entropy that no policy can reach would drive it to infinity. */
#define LOG_ALPHA_LIMIT 20.0f

struct sac {
    struct critic critic;
    struct optim alpha_optim;
    double target_entropy;
    float *log_prob; /* [2 batch]: at s, then at s' */
};

static double alpha_of(const struct agent *self)
{
    const struct sac *sac = self->state;
    return self->config.alpha > 0 ? self->config.alpha : exp((double)self->params[critic_extra_at(&sac->critic)]);
}

static float log_std_of(float output)
{
    return fminf(fmaxf(output, LOG_STD_MIN), LOG_STD_MAX);
}

/* log(1 - tanh(u)^2), also where tanh(u) rounds to 1. */
static float log_slope(float u)
{
    return 2.0f * (0.693147181f - fabsf(u) - log1pf(expf(-2.0f * fabsf(u))));
}

/* Actions and log pi from n rows of the policy's output and their noise. */
static void sample(uint32_t n, uint32_t size, const float *output, const float *noise, float *actions, float *log_prob)
{
    for (uint32_t i = 0; i < n; i++, output += 2 * size, noise += size, actions += size) {
        double sum = 0.0;
        for (uint32_t j = 0; j < size; j++) {
            float log_std = log_std_of(output[size + j]);
            float u = output[j] + expf(log_std) * noise[j];
            actions[j] = tanhf(u);
            sum -= 0.5f * noise[j] * noise[j] + log_std + 0.918938533f + log_slope(u);
        }
        log_prob[i] = (float)sum;
    }
}

/* ---- acting ---- */

/* output: of the policy for row i. */
static void sac_choose(const struct critic *critic, const struct agent_rows *rows, uint32_t i, const float *output,
                       struct agent_choice *out)
{
    const struct agent_explore *explore = &rows->explore[i];
    float noise[RP_ENV_MAX_ACTION], action[RP_ENV_MAX_ACTION], log_prob;
    if (explore->greedy || explore->uniform) {
        critic_choose(critic, critic->greedy + (size_t)i * critic->action, explore, rows->rng[i], out);
        return;
    }
    critic_normals(rows->rng[i], noise, critic->action);
    sample(1, critic->action, output, noise, action, &log_prob);
    critic_choose(critic, action, explore, rows->rng[i], out);
}

static void sac_act(struct agent *self, const struct agent_rows *rows, struct agent_choice *out)
{
    struct critic *critic = self->state;
    const float *output = critic_policy_rows(critic, self, rows->observations, rows->n);
    for (uint32_t i = 0; i < rows->n; i++)
        sac_choose(critic, rows, i, output + (size_t)i * 2 * critic->action, &out[i]);
    critic_judge(critic, self, rows->n, out);
}

/* ---- learning ---- */

static void gradient_of_critics(struct agent *self, const struct agent_batch *batch, struct agent_result *result)
{
    struct sac *sac = self->state;
    struct critic *critic = &sac->critic;
    const float alpha = (float)alpha_of(self);
    float *bonus = sac->log_prob + critic->n;
    for (uint32_t i = 0; i < critic->n; i++)
        bonus[i] *= -alpha;
    critic_set_actions(critic, critic->next, critic->actions + (size_t)critic->n * critic->action);
    critic_targets(critic, self, batch, bonus);
    critic_regress(critic, self, batch, result);
}

static void gradient_of_policy(struct agent *self, const float *output, struct agent_result *result)
{
    struct sac *sac = self->state;
    struct critic *critic = &sac->critic;
    const uint32_t n = critic->n, size = critic->action;
    const float alpha = (float)alpha_of(self), share = 1.0f / (float)n;
    critic_set_actions(critic, critic->now, critic->actions);
    double value = critic_ascend(critic, self, 2);

    double log_prob = 0.0;
    for (uint32_t i = 0; i < n; i++) {
        const float *out = output + (size_t)i * 2 * size;
        float *d_out = critic->d_policy + (size_t)i * 2 * size;
        for (uint32_t j = 0; j < size; j++) {
            size_t at = (size_t)i * size + j;
            float a = critic->actions[at], log_std = log_std_of(out[size + j]);
            float d_u = share * alpha * 2.0f * a - critic->d_action[at] * (1.0f - a * a);
            d_out[j] = d_u;
            d_out[size + j] = log_std == out[size + j] ? d_u * expf(log_std) * critic->noise[at] - share * alpha : 0.0f;
        }
        log_prob += sac->log_prob[i];
    }
    /* The pass was over s and s'; only the first n rows have a derivative. */
    critic->policy_pass.batch = n;
    net_backward(&critic->policy, self->params, &critic->policy_pass, critic->d_policy, self->grads, NULL);
    agent_scalar(result, "policy_loss", alpha_of(self) * log_prob / n - value);
}

static void gradient_of_alpha(struct agent *self, struct agent_result *result)
{
    struct sac *sac = self->state;
    double log_prob = 0.0, alpha = alpha_of(self);
    for (uint32_t i = 0; i < sac->critic.n; i++)
        log_prob += sac->log_prob[i];
    log_prob /= sac->critic.n;
    if (!(self->config.alpha > 0))
        self->grads[critic_extra_at(&sac->critic)] = (float)(-alpha * (log_prob + sac->target_entropy));
    agent_scalar(result, "alpha", alpha);
    agent_scalar(result, "entropy", -log_prob);
}

static void sac_gradient(struct agent *self, const struct agent_batch *batch, struct agent_result *result)
{
    struct sac *sac = self->state;
    struct critic *critic = &sac->critic;
    critic_begin(critic, self, batch, result);
    const uint32_t n = critic->n;
    const float *output = net_forward(&critic->policy, self->params, &critic->policy_pass, critic->states, 2 * n);
    critic_normals(&self->rng, critic->noise, 2 * n * critic->action);
    sample(2 * n, critic->action, output, critic->noise, critic->actions, sac->log_prob);
    gradient_of_critics(self, batch, result);
    gradient_of_policy(self, output, result);
    gradient_of_alpha(self, result);
}

static void sac_apply(struct agent *self, struct agent_result *result)
{
    struct sac *sac = self->state;
    struct critic *critic = &sac->critic;
    const uint32_t at = critic_extra_at(critic);
    critic_descend(self, &critic->q_optim, critic_at(critic, 0), "gradient_norm", result);
    critic_descend(self, &critic->policy_optim, 0, "policy_gradient_norm", result);
    if (!(self->config.alpha > 0)) {
        critic_descend(self, &sac->alpha_optim, at, "alpha_gradient_norm", result);
        self->params[at] = fminf(fmaxf(self->params[at], -LOG_ALPHA_LIMIT), LOG_ALPHA_LIMIT);
    }
    self->steps++;
    const uint32_t q = critic_at(critic, 0);
    agent_update_target(self, critic->target + q, self->params + q, at - q);
}

/* ---- life ---- */

static rp_status sac_create(struct agent *self, rp_error *err)
{
    struct sac *sac = self->state;
    const struct critic_plan plan = {.n_q = 2, .heads = 2, .n_extra = 1};
    RP_TRY(critic_init(&sac->critic, self, &plan, err));
    RP_TRY(agent_optim(self, &sac->alpha_optim, 1, err));
    sac->log_prob = calloc(2 * (size_t)sac->critic.max_batch, sizeof *sac->log_prob);
    if (!sac->log_prob)
        return err_set(err, RP_NO_MEMORY, "no memory for sac with batches of %u", sac->critic.max_batch);
    double entropy = self->config.target_entropy;
    sac->target_entropy = entropy != 0 ? entropy : -(double)self->spec.action_size;
    agent_add_vector(self, "log_alpha", RP_DTYPE_FLOAT32, self->params + critic_extra_at(&sac->critic), 1);
    agent_add_optim(self, "optimiser/alpha", &sac->alpha_optim);
    return RP_OK;
}

static void sac_destroy(struct agent *self)
{
    struct sac *sac = self->state;
    critic_fini(&sac->critic);
    optim_fini(&sac->alpha_optim);
    free(sac->log_prob);
}

static int64_t sac_hidden[] = {256, 256};
static const struct agent_config sac_defaults = {
    .hidden = {.data = sac_hidden, .count = 2},
    .batch = 256,
    .discount = 0.99,
    .learning_rate = 3e-4,
    .tau = 0.005,
};

const struct agent_ops agent_sac = {
    .name = "sac",
    .help = "a random policy that maximises return and entropy, with twin critics and a learned temperature",
    .data = AGENT_TRANSITIONS,
    .continuous = true,
    .defaults = &sac_defaults,
    .state_size = sizeof(struct sac),
    .create = sac_create,
    .destroy = sac_destroy,
    .act = sac_act,
    .value = critic_value,
    .gradient = sac_gradient,
    .apply = sac_apply,
};
