/* DQN (Mnih et al. 2015) with its options: double Q-learning (van Hasselt et al. 2016), the dueling network (Wang et
 * al. 2016), n-step returns and prioritized replay with importance weights (Schaul et al. 2016). With all of them
 * on, and many actors, it is Ape-X DQN (Horgan et al. 2018).
 *
 *   y_i = R_i + g D_i Q_target(s'_i, a*)    a* = argmax_a Q(s'_i, a) with double Q, else argmax_a Q_target(s'_i, a)
 *   d_i = Q(s_i, a_i) - y_i
 *   L   = 1/n sum_i w_i h(d_i)              h: half the square, or linear beyond `huber`
 *
 * R_i is the n-step return and g D_i what remains of the discounts after it; the adder computes both. |d_i| is the
 * item's new priority. */
#include <assert.h>
#include <math.h>
#include <string.h>

#include "agent/learn/agent.h"
#include "agent/learn/kernel.h"
#include "proto/base/error.h"

struct dqn {
    struct net net; /* the layout of both networks: self->params and target */
    float *target;
    struct optim optim;
    struct net_pass acting; /* acting_rows */
    struct net_pass online; /* rows of s, then of s' with double Q */
    struct net_pass ahead;  /* the target network at s' */
    float *rows;            /* [2 batch][inputs]: s and s' one after the other, as floats */
    float *d_q;             /* [batch][actions]: dL/dQ(s, .) */
    double *priority;       /* [batch] */
};

/* ---- acting ---- */

static void dqn_act(struct agent *self, const struct agent_rows *rows, struct agent_choice *out)
{
    struct dqn *dqn = self->state;
    uint32_t n_actions = self->spec.n_actions;
    const float *s = agent_floats(self, rows->observations, rows->n, self->scratch);
    const float *q = net_forward(&dqn->net, self->params, &dqn->acting, s, rows->n);
    for (uint32_t i = 0; i < rows->n; i++, q += n_actions) {
        uint32_t action = agent_choose_discrete(q, n_actions, &rows->explore[i], rows->rng[i]);
        out[i].discrete = (int32_t)action;
        out[i].value = q[kernel_argmax(q, n_actions)];
        out[i].q = q[action];
        out[i].log_prob = 0.0f;
    }
}

/* ---- learning ---- */

/* Computes Q(s, .), left open for backward, Q_target(s', .) in *target, and in *chooser the values at s' whose
 * maximum is a*. With double Q both observations go through the online network as one batch. */
static const float *forward(struct agent *self, const struct agent_batch *batch, const float **chooser,
                            const float **target)
{
    struct dqn *dqn = self->state;
    uint32_t n = batch->n;
    float *next = dqn->rows + (size_t)n * dqn->net.spec.inputs;
    agent_copy_floats(self, batch->observation, n, dqn->rows);
    agent_copy_floats(self, batch->next_observation, n, next);
    *target = net_forward(&dqn->net, dqn->target, &dqn->ahead, next, n);
    const float *q = net_forward(&dqn->net, self->params, &dqn->online, dqn->rows, self->config.double_q ? 2 * n : n);
    *chooser = self->config.double_q ? q + (size_t)n * self->spec.n_actions : *target;
    /* Only the first n rows have a derivative. */
    dqn->online.batch = n;
    return q;
}

/* h(d), with h'(d) in *slope. */
static double loss_of(double d, double huber, double *slope)
{
    if (huber == 0.0 || !(fabs(d) > huber)) { /* a value that is not a number stays so, and voids the gradient */
        *slope = d;
        return 0.5 * d * d;
    }
    *slope = copysign(huber, d);
    return huber * (fabs(d) - 0.5 * huber);
}

static void dqn_gradient(struct agent *self, const struct agent_batch *batch, struct agent_result *result)
{
    struct dqn *dqn = self->state;
    uint32_t n = batch->n, n_actions = self->spec.n_actions;
    assert(n > 0 && n <= self->config.batch);
    const int32_t *actions = batch->action;
    const float *chooser, *target;
    const float *q = forward(self, batch, &chooser, &target);

    double loss = 0.0, sum_q = 0.0, sum_error = 0.0;
    memset(dqn->d_q, 0, (size_t)n * n_actions * sizeof *dqn->d_q);
    for (uint32_t i = 0; i < n; i++) {
        size_t row = (size_t)i * n_actions;
        uint32_t best = kernel_argmax(chooser + row, n_actions);
        /* A broker may hand out any number; an action that does not exist teaches nothing. */
        if ((uint32_t)actions[i] >= n_actions) {
            dqn->priority[i] = 0.0;
            continue;
        }
        size_t taken = row + (uint32_t)actions[i];
        double y =
            (double)batch->reward[i] + self->config.discount * (double)batch->discount[i] * (double)target[row + best];
        double d = (double)q[taken] - y;
        double weight = batch->weight ? (double)batch->weight[i] : 1.0;
        double slope;
        loss += weight * loss_of(d, self->config.huber, &slope);
        dqn->d_q[taken] = (float)(weight * slope / n);
        dqn->priority[i] = fabs(d);
        sum_q += (double)q[taken];
        sum_error += fabs(d);
    }
    memset(self->grads, 0, self->n_params * sizeof *self->grads);
    net_backward(&dqn->net, self->params, &dqn->online, dqn->d_q, self->grads, NULL);

    result->priority = dqn->priority;
    agent_scalar(result, "loss", loss / n);
    agent_scalar(result, "q", sum_q / n);
    agent_scalar(result, "td_error", sum_error / n);
}

static void dqn_apply(struct agent *self, struct agent_result *result)
{
    struct dqn *dqn = self->state;
    agent_scalar(result, "gradient_norm", agent_descend(self, &dqn->optim, 0));
    self->steps++;
    agent_update_target(self, dqn->target, self->params, self->n_params);
}

/* ---- life ---- */

static rp_status dqn_create(struct agent *self, rp_error *err)
{
    struct dqn *dqn = self->state;
    uint32_t batch = (uint32_t)self->config.batch;
    struct net_spec spec = agent_net_spec(self, self->spec.n_actions);
    spec.dueling = self->config.dueling;
    RP_TRY(net_init(&dqn->net, &spec, err));
    RP_TRY(net_pass_init(&dqn->acting, &dqn->net, self->config.acting_rows, &self->memory, err));
    RP_TRY(net_pass_init(&dqn->online, &dqn->net, self->config.double_q ? 2 * batch : batch, &self->memory, err));
    RP_TRY(net_pass_init(&dqn->ahead, &dqn->net, batch, &self->memory, err));
    agent_alloc(self, dqn->net.n_params);
    agent_optim(self, &dqn->optim, self->n_params);
    dqn->rows = arena_take(&self->memory, 2 * (size_t)batch * spec.inputs, sizeof *dqn->rows);
    dqn->d_q = arena_take(&self->memory, (size_t)batch * spec.outputs, sizeof *dqn->d_q);
    dqn->priority = arena_take(&self->memory, batch, sizeof *dqn->priority);
    net_fill(&dqn->net, self->params, &self->rng);
    dqn->target = arena_copy(&self->memory, self->params, self->n_params * sizeof *dqn->target);
    agent_add_net(self, "q", &dqn->net, self->params);
    agent_end_policy(self);
    agent_add_net(self, "target", &dqn->net, dqn->target);
    agent_add_optim(self, "optimiser", &dqn->optim);
    return RP_OK;
}

static int64_t dqn_hidden[] = {64, 64};
static const struct agent_config dqn_defaults = {
    .hidden = {.data = dqn_hidden, .count = 2},
    .batch = 256,
    .discount = 0.99,
    .learning_rate = 1e-3,
    .clip_norm = 40.0,
    .target_period = 100,
    .importance_exponent = 0.2,
};

const struct agent_ops agent_dqn = {
    .name = "dqn",
    .help = "Q-learning for discrete actions, with double, dueling, n-step and prioritized options",
    .data = AGENT_TRANSITIONS,
    .discrete = true,
    .defaults = &dqn_defaults,
    .state_size = sizeof(struct dqn),
    .create = dqn_create,
    .act = dqn_act,
    .gradient = dqn_gradient,
    .apply = dqn_apply,
};
