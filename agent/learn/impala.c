/* IMPALA (Espeholt et al. 2018): an actor-critic that learns from sequences of slightly older policies, corrected by
 * V-trace. Two networks: a policy (logits of a softmax) and a value.
 *
 *   L = 1/m sum over the m transitions of
 *       - advantage_t log pi(a_t | x_t) + value_cost (v_t - V(x_t))^2 - entropy_cost H(pi(. | x_t))
 *
 * v_t and advantage_t are V-trace's and count as constants. The mean, not the sum, so that a learning rate suits any
 * length of sequence.
 *
 * Rows t and t + 1 of a sequence are transition t. The row LAST of an episode has an observation and no action: its
 * value is the bootstrap of the row before, and no trace passes it. So the last row of a sequence, LAST rows and
 * padding are in no term of the loss.
 *
 * V-trace (equation 1 of the paper) gives values of a policy pi from steps that another policy mu took:
 *
 *   v_s     = V(x_s) + sum_{t >= s} g_s ... g_{t-1} c_s ... c_{t-1} delta_t
 *   delta_t = rho_t (r_t + g_t V(x_{t+1}) - V(x_t))
 *   rho_t   = c_t = min(1, pi(a_t) / mu(a_t))
 *
 * g_t is the discount of step t with the environment's part in it, so 0 after a terminal step. */
#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "agent/learn/adder.h" /* step_type */
#include "agent/learn/agent.h"
#include "agent/learn/kernel.h"
#include "proto/base/error.h"
#include "proto/base/log.h"

/* Buffers of a batch, in the agent's memory for that; they grow with the longest sequence so far, because the adder sets the
 * length of sequences. */
struct workspace {
    uint32_t rows;
    struct net_pass policy, value;
    float *input;                                  /* [rows][inputs], for observations that are not floats */
    float *log_pi;                                 /* [rows][actions] */
    float *d_logits, *d_value;                     /* [rows][actions], [rows] */
    float *discount, *log_rho, *reward, *baseline; /* [n][length - 1]: g_t, log pi / mu, r_t and V(x_t) */
    float *bootstrap;                              /* [n]: V of the last row */
    float *target;                                 /* [n][length - 1]: v_t */
    float *advantage;                              /* the same: rho_t (r_t + g_t v_{t+1} - V(x_t)) */
    uint8_t *used;                                 /* [n][length - 1]: this is a transition */
    double *priority;                              /* [n] */
};

struct impala {
    struct net policy, value; /* the policy's parameters come first in self->params */
    struct optim policy_optim, value_optim;
    struct net_pass acting, valuing; /* acting_rows */
    float *log_pi;                   /* [actions], for acting */
    struct workspace work;
};

static float *value_params(const struct agent *self)
{
    const struct impala *impala = self->state;
    return self->params + impala->policy.n_params;
}

static void log_softmax(const float *logits, uint32_t n, float *out)
{
    float highest = logits[0];
    for (uint32_t a = 1; a < n; a++)
        highest = fmaxf(highest, logits[a]);
    double max = (double)highest, sum = exp((double)logits[0] - max);
    for (uint32_t a = 1; a < n; a++)
        sum += exp((double)logits[a] - max);
    double log_sum = max + log(sum);
    for (uint32_t a = 0; a < n; a++)
        out[a] = (float)((double)logits[a] - log_sum);
}

static double entropy_of(const float *log_pi, uint32_t n)
{
    double entropy = 0.0;
    for (uint32_t a = 0; a < n; a++)
        entropy -= exp((double)log_pi[a]) * (double)log_pi[a];
    return entropy;
}

/* ---- acting ---- */

static uint32_t draw(const float *log_pi, uint32_t n, struct rng *rng)
{
    double u = rng_unit(rng);
    for (uint32_t a = 0; a + 1 < n; a++) {
        u -= exp((double)log_pi[a]);
        if (u < 0.0)
            return a;
    }
    return n - 1;
}

static void impala_choose(const float *log_pi, uint32_t n, const struct agent_explore *explore, struct rng *rng,
                          struct agent_choice *out)
{
    uint32_t action;
    if (explore->greedy)
        action = kernel_argmax(log_pi, n);
    else if (explore->uniform)
        action = (uint32_t)rng_below(rng, n);
    else
        action = draw(log_pi, n, rng);
    out->discrete = (int32_t)action;
    out->log_prob = explore->uniform && !explore->greedy ? -logf((float)n) : log_pi[action];
}

static void impala_act(struct agent *self, const struct agent_rows *rows, struct agent_choice *out)
{
    struct impala *impala = self->state;
    uint32_t n = self->spec.n_actions;
    const float *x = agent_floats(self, rows->observations, rows->n, self->scratch);
    const float *logits = net_forward(&impala->policy, self->params, &impala->acting, x, rows->n);
    const float *values = net_forward(&impala->value, value_params(self), &impala->valuing, x, rows->n);
    for (uint32_t i = 0; i < rows->n; i++) {
        log_softmax(logits + (size_t)i * n, n, impala->log_pi);
        impala_choose(impala->log_pi, n, &rows->explore[i], rows->rng[i], &out[i]);
        out[i].value = out[i].q = values[i];
    }
}

/* ---- learning ---- */

/* Makes room for batches of so many rows. Without it this learner cannot continue. */
static void workspace_reserve(struct agent *self, uint32_t rows)
{
    struct impala *impala = self->state;
    struct workspace *work = &impala->work;
    struct arena *memory = &self->batch;
    size_t inputs = impala->policy.spec.inputs, n_actions = self->spec.n_actions;
    rp_error err = {0};
    if (rows <= work->rows)
        return;
    arena_fini(memory);
    if (net_pass_init(&work->policy, &impala->policy, rows, memory, &err) != RP_OK ||
        net_pass_init(&work->value, &impala->value, rows, memory, &err) != RP_OK) {
        log_line(LEVEL_ERROR, "A0206", "a batch is too large", "rows=%u why=\"%s\"", rows, err.text);
        abort();
    }
    work->input = arena_take(memory, rows * inputs, sizeof(float));
    work->log_pi = arena_take(memory, rows * n_actions, sizeof(float));
    work->d_logits = arena_take(memory, rows * n_actions, sizeof(float));
    work->used = arena_take(memory, rows, sizeof *work->used);
    work->priority = arena_take(memory, rows, sizeof *work->priority);
    float **vectors[] = {&work->d_value,  &work->discount,  &work->log_rho, &work->reward,
                         &work->baseline, &work->bootstrap, &work->target,  &work->advantage};
    for (size_t i = 0; i < sizeof vectors / sizeof vectors[0]; i++)
        *vectors[i] = arena_take(memory, rows, sizeof(float));
    work->rows = rows;
}

/* True if rows t and t + 1 of sequence i are a step of one episode. Rows come from a broker and may hold any number. */
static bool is_transition(const struct agent *self, const struct agent_batch *batch, uint32_t i, uint32_t t)
{
    if (batch->lengths && t + 1 >= batch->lengths[i])
        return false;
    size_t row = (size_t)i * batch->length + t;
    if ((uint32_t)((const int32_t *)batch->action)[row] >= self->spec.n_actions)
        return false;
    if (!batch->step_type)
        return true;
    uint8_t here = batch->step_type[row], next = batch->step_type[row + 1];
    return (here == STEP_FIRST || here == STEP_MID) && (next == STEP_MID || next == STEP_LAST);
}

/* Lays out the inputs of V-trace; returns the number of transitions. A row that is not a transition is made worth
 * exactly its own value (reward V, discount 0, ratio 1), so that v = V there: the row before it bootstraps from V,
 * and nothing passes further. */
static uint32_t lay_out(struct agent *self, const struct agent_batch *batch, const float *value)
{
    struct impala *impala = self->state;
    struct workspace *work = &impala->work;
    uint32_t n_actions = self->spec.n_actions, used = 0;
    const int32_t *actions = batch->action;
    size_t k = 0;
    for (uint32_t i = 0; i < batch->n; i++) {
        for (uint32_t t = 0; t + 1 < batch->length; t++, k++) {
            size_t row = (size_t)i * batch->length + t;
            work->used[k] = is_transition(self, batch, i, t);
            work->baseline[k] = value[row];
            if (!work->used[k]) {
                work->reward[k] = value[row];
                work->discount[k] = work->log_rho[k] = 0.0f;
                continue;
            }
            used++;
            work->reward[k] = batch->reward[row];
            work->discount[k] = (float)(self->config.discount * (double)batch->discount[row]);
            work->log_rho[k] = work->log_pi[row * n_actions + (uint32_t)actions[row]] - batch->log_prob[row];
        }
        work->bootstrap[i] = value[(size_t)i * batch->length + batch->length - 1];
    }
    return used;
}

/* Computes targets and advantages of the rows from `first` on, in reverse (remark 1 of the paper):
 * v_t - V_t = delta_t + g_t c_t (v_{t+1} - V_{t+1}). */
static void trace_sequence(struct workspace *work, size_t first, uint32_t length, double bootstrap)
{
    double next_value = bootstrap, next_target = bootstrap;
    for (size_t t = first + length; t-- > first;) {
        double rho = fmin(1.0, exp((double)work->log_rho[t])), c = rho;
        double discount = (double)work->discount[t], reward = (double)work->reward[t],
               value = (double)work->baseline[t];
        double delta = rho * (reward + discount * next_value - value);
        double target = value + delta + discount * c * (next_target - next_value);
        work->target[t] = (float)target;
        work->advantage[t] = (float)(rho * (reward + discount * next_target - value));
        next_value = value;
        next_target = target;
    }
}

/* What the policy's loss says about one row. */
struct row_terms {
    uint32_t action;
    double advantage, entropy_cost, entropy;
    double factor; /* multiplies all terms */
};

/* d L / d logits of one row. */
static void score(const struct row_terms *terms, const float *log_pi, uint32_t n, float *d_logits)
{
    for (uint32_t a = 0; a < n; a++) {
        double p = exp((double)log_pi[a]);
        double d = terms->advantage * (p - (a == terms->action ? 1.0 : 0.0)) +
                   terms->entropy_cost * p * ((double)log_pi[a] + terms->entropy);
        d_logits[a] = (float)(terms->factor * d);
    }
}

struct losses {
    double policy, value, entropy, rho;
};

/* Adds sequence i: derivatives by logits and values, sums of losses, and the mean of |v - V| as its priority. */
static void add_sequence(struct agent *self, const struct agent_batch *batch, uint32_t i, double factor,
                         struct losses *losses)
{
    struct impala *impala = self->state;
    struct workspace *work = &impala->work;
    uint32_t n_actions = self->spec.n_actions, used = 0;
    const struct agent_config *config = &self->config;
    double weight = batch->weight ? (double)batch->weight[i] : 1.0, sum_error = 0.0;
    for (uint32_t t = 0; t + 1 < batch->length; t++) {
        size_t k = (size_t)i * (batch->length - 1) + t, row = (size_t)i * batch->length + t;
        if (!work->used[k])
            continue;
        const float *log_pi = work->log_pi + row * n_actions;
        uint32_t action = (uint32_t)((const int32_t *)batch->action)[row];
        double error = (double)work->target[k] - (double)work->baseline[k], advantage = (double)work->advantage[k];
        double entropy = entropy_of(log_pi, n_actions);
        const struct row_terms terms = {action, advantage, config->entropy_cost, entropy, weight * factor};
        score(&terms, log_pi, n_actions, work->d_logits + row * n_actions);
        work->d_value[row] = (float)(-2.0 * config->value_cost * error * weight * factor);
        losses->policy -= weight * advantage * (double)log_pi[action];
        losses->value += weight * error * error;
        losses->entropy += weight * entropy;
        losses->rho += exp((double)work->log_rho[k]);
        sum_error += fabs(error);
        used++;
    }
    work->priority[i] = used ? sum_error / used : 0.0;
}

static void report(const struct agent *self, struct agent_result *result, const struct losses *sums, double factor)
{
    double policy = sums->policy * factor, value = sums->value * factor, entropy = sums->entropy * factor;
    agent_scalar(result, "loss", policy + self->config.value_cost * value - self->config.entropy_cost * entropy);
    agent_scalar(result, "policy_loss", policy);
    agent_scalar(result, "value_loss", value);
    agent_scalar(result, "entropy", entropy);
    agent_scalar(result, "rho", sums->rho * factor);
}

static void impala_gradient(struct agent *self, const struct agent_batch *batch, struct agent_result *result)
{
    struct impala *impala = self->state;
    struct workspace *work = &impala->work;
    uint32_t rows = batch->n * batch->length, n_actions = self->spec.n_actions;
    assert(batch->n > 0 && batch->length > 0);
    workspace_reserve(self, rows);
    const float *x = agent_floats(self, batch->observation, rows, work->input);
    const float *logits = net_forward(&impala->policy, self->params, &work->policy, x, rows);
    const float *value = net_forward(&impala->value, value_params(self), &work->value, x, rows);
    for (size_t row = 0; row < rows; row++)
        log_softmax(logits + row * n_actions, n_actions, work->log_pi + row * n_actions);

    uint32_t used = lay_out(self, batch, value);
    for (uint32_t i = 0; i < batch->n; i++)
        trace_sequence(work, (size_t)i * (batch->length - 1), batch->length - 1, (double)work->bootstrap[i]);

    memset(work->d_logits, 0, (size_t)rows * n_actions * sizeof(float));
    memset(work->d_value, 0, rows * sizeof(float));
    struct losses losses = {0};
    double factor = used ? 1.0 / used : 0.0;
    for (uint32_t i = 0; i < batch->n; i++)
        add_sequence(self, batch, i, factor, &losses);
    memset(self->grads, 0, self->n_params * sizeof *self->grads);
    net_backward(&impala->policy, self->params, &work->policy, work->d_logits, self->grads, NULL);
    net_backward(&impala->value, value_params(self), &work->value, work->d_value, self->grads + impala->policy.n_params,
                 NULL);
    result->priority = work->priority;
    report(self, result, &losses, factor);
}

static void impala_apply(struct agent *self, struct agent_result *result)
{
    struct impala *impala = self->state;
    agent_scalar(result, "gradient_norm", optim_clip(self->grads, self->n_params, self->config.clip_norm));
    optim_step(&impala->policy_optim, self->params, self->grads);
    optim_step(&impala->value_optim, value_params(self), self->grads + impala->policy.n_params);
    self->steps++;
}

/* ---- life ---- */

static rp_status impala_create(struct agent *self, rp_error *err)
{
    struct impala *impala = self->state;
    struct net_spec spec = agent_net_spec(self, 1);
    RP_TRY(net_init(&impala->value, &spec, err));
    spec.outputs = self->spec.n_actions;
    /* The first policy is close to uniform: with every action likely, the first sequences say something about each. */
    spec.output_scale = 0.01f;
    RP_TRY(net_init(&impala->policy, &spec, err));
    RP_TRY(net_pass_init(&impala->acting, &impala->policy, self->config.acting_rows, &self->memory, err));
    RP_TRY(net_pass_init(&impala->valuing, &impala->value, self->config.acting_rows, &self->memory, err));
    agent_alloc(self, impala->policy.n_params + impala->value.n_params);
    agent_optim(self, &impala->policy_optim, impala->policy.n_params);
    agent_optim(self, &impala->value_optim, impala->value.n_params);
    impala->log_pi = arena_take(&self->memory, spec.outputs, sizeof *impala->log_pi);
    net_fill(&impala->policy, self->params, &self->rng);
    net_fill(&impala->value, value_params(self), &self->rng);
    agent_add_net(self, "policy", &impala->policy, self->params);
    agent_add_net(self, "value", &impala->value, value_params(self));
    agent_end_policy(self);
    agent_add_optim(self, "policy_optimiser", &impala->policy_optim);
    agent_add_optim(self, "value_optimiser", &impala->value_optim);
    return RP_OK;
}

static int64_t impala_hidden[] = {64, 64};
static const struct agent_config impala_defaults = {
    .hidden = {.data = impala_hidden, .count = 2},
    .batch = 32,
    .discount = 0.99,
    .learning_rate = 2e-4,
    .clip_norm = 40.0,
    .entropy_cost = 0.01,
    .value_cost = 0.5,
};

const struct agent_ops agent_impala = {
    .name = "impala",
    .help = "actor-critic with V-trace for discrete actions, on sequences that are used once",
    .data = AGENT_SEQUENCES,
    .discrete = true,
    .stores_log_prob = true,
    .defaults = &impala_defaults,
    .state_size = sizeof(struct impala),
    .create = impala_create,
    .act = impala_act,
    .gradient = impala_gradient,
    .apply = impala_apply,
};
