/* Behaviour cloning (Pomerleau 1989): supervised learning of what an expert does. No rewards, no targets, no
 * environment: a table of the expert's steps is enough, so it learns offline.
 *
 *   discrete:    pi(a | s) = softmax(net(s))_a    l_i = -log pi(a_i | s_i)           the cross-entropy
 *   continuous:  mu(s) = tanh(net(s))             l_i = 1/2 |mu(s_i) - a_i|^2        in canonical actions
 *
 *   L = 1/n sum_i w_i l_i
 *
 * It acts by the likeliest action, or by mu. l_i is the item's new priority: what is imitated badly is worth another
 * look. There are no values: whoever asks for one gets 0. */
#include <assert.h>
#include <math.h>
#include <string.h>

#include "agent/learn/agent.h"
#include "agent/learn/kernel.h"
#include "proto/base/error.h"

struct bc {
    struct net net;
    struct optim optim;
    struct net_pass acting; /* acting_rows */
    struct net_pass pass;
    float *rows;      /* [batch][inputs]: observations that are not floats */
    float *d_out;     /* [batch][outputs]: dL/dnet(s) */
    double *priority; /* [batch] */
};

/* ---- acting ---- */

static void bc_choose(const struct agent *self, const float *y, const struct agent_explore *explore, struct rng *rng,
                      struct agent_choice *out)
{
    float action[RP_ENV_MAX_ACTION];
    for (uint32_t j = 0; j < self->spec.action_size; j++)
        action[j] = tanhf(y[j]);
    *out = (struct agent_choice){0};
    if (self->spec.n_actions)
        out->discrete = (int32_t)agent_choose_discrete(y, self->spec.n_actions, explore, rng);
    else
        agent_choose_continuous(self, action, explore, rng, out);
}

static void bc_act(struct agent *self, const struct agent_rows *rows, struct agent_choice *out)
{
    struct bc *bc = self->state;
    const float *s = agent_floats(self, rows->observations, rows->n, self->scratch);
    const float *y = net_forward(&bc->net, self->params, &bc->acting, s, rows->n);
    for (uint32_t i = 0; i < rows->n; i++)
        bc_choose(self, y + (size_t)i * bc->net.spec.outputs, &rows->explore[i], rows->rng[i], &out[i]);
}

/* ---- learning ---- */

/* -log softmax(z)_a, and its derivative softmax(z) - 1[. = a] times w. */
static double cross_entropy(const float *z, uint32_t n, uint32_t a, double w, float *d_z)
{
    double highest = (double)z[kernel_argmax(z, n)], sum = exp((double)z[0] - highest);
    for (uint32_t k = 1; k < n; k++)
        sum += exp((double)z[k] - highest);
    for (uint32_t k = 0; k < n; k++)
        d_z[k] = (float)(w * (exp((double)z[k] - highest) / sum - (k == a ? 1.0 : 0.0)));
    return log(sum) + highest - (double)z[a];
}

/* 1/2 |tanh z - a|^2, and its derivative (tanh z - a) (1 - tanh^2 z) times w. */
static double squared_error(const float *z, uint32_t n, const float *a, double w, float *d_z)
{
    double loss = 0.0;
    for (uint32_t k = 0; k < n; k++) {
        double mu = tanh((double)z[k]), d = mu - (double)a[k];
        loss += 0.5 * d * d;
        d_z[k] = (float)(w * d * (1.0 - mu * mu));
    }
    return loss;
}

static void bc_gradient(struct agent *self, const struct agent_batch *batch, struct agent_result *result)
{
    struct bc *bc = self->state;
    uint32_t n = batch->n, outputs = bc->net.spec.outputs;
    assert(n > 0 && n <= self->config.batch);
    const int32_t *labels = batch->action;
    const float *actions = batch->action;
    const float *s = agent_floats(self, batch->observation, n, bc->rows);
    const float *y = net_forward(&bc->net, self->params, &bc->pass, s, n);

    double loss = 0.0;
    uint32_t agreed = 0;
    memset(bc->d_out, 0, (size_t)n * outputs * sizeof *bc->d_out);
    for (uint32_t i = 0; i < n; i++) {
        const float *z = y + (size_t)i * outputs;
        float *d_z = bc->d_out + (size_t)i * outputs;
        double w = batch->weight ? (double)batch->weight[i] : 1.0, l = 0.0;
        if (self->spec.n_actions == 0) {
            l = squared_error(z, outputs, actions + (size_t)i * outputs, w / n, d_z);
        } else if ((uint32_t)labels[i] <
                   outputs) { /* a broker may hand out any number; no such action teaches nothing */
            l = cross_entropy(z, outputs, (uint32_t)labels[i], w / n, d_z);
            agreed += kernel_argmax(z, outputs) == (uint32_t)labels[i];
        }
        loss += w * l;
        bc->priority[i] = l;
    }
    memset(self->grads, 0, self->n_params * sizeof *self->grads);
    net_backward(&bc->net, self->params, &bc->pass, bc->d_out, self->grads, NULL);

    result->priority = bc->priority;
    agent_scalar(result, "loss", loss / n);
    if (self->spec.n_actions > 0)
        agent_scalar(result, "accuracy", (double)agreed / n);
}

static void bc_apply(struct agent *self, struct agent_result *result)
{
    struct bc *bc = self->state;
    agent_scalar(result, "gradient_norm", agent_descend(self, &bc->optim, 0));
    self->steps++;
}

/* ---- life ---- */

static rp_status bc_create(struct agent *self, rp_error *err)
{
    struct bc *bc = self->state;
    uint32_t batch = (uint32_t)self->config.batch;
    struct net_spec spec = agent_net_spec(self, self->spec.n_actions ? self->spec.n_actions : self->spec.action_size);
    RP_TRY(net_init(&bc->net, &spec, err));
    RP_TRY(net_pass_init(&bc->acting, &bc->net, self->config.acting_rows, &self->memory, err));
    RP_TRY(net_pass_init(&bc->pass, &bc->net, batch, &self->memory, err));
    agent_alloc(self, bc->net.n_params);
    agent_optim(self, &bc->optim, self->n_params);
    bc->rows = arena_take(&self->memory, (size_t)batch * spec.inputs, sizeof *bc->rows);
    bc->d_out = arena_take(&self->memory, (size_t)batch * spec.outputs, sizeof *bc->d_out);
    bc->priority = arena_take(&self->memory, batch, sizeof *bc->priority);
    net_fill(&bc->net, self->params, &self->rng);
    agent_add_net(self, "policy", &bc->net, self->params);
    agent_end_policy(self);
    agent_add_optim(self, "optimiser", &bc->optim);
    return RP_OK;
}

static int64_t bc_hidden[] = {64, 64};
static const struct agent_config bc_defaults = {
    .hidden = {.data = bc_hidden, .count = 2},
    .batch = 256,
    .discount = 0.99, /* for the adder's n-step returns: bc itself uses no reward */
    .learning_rate = 1e-3,
};

const struct agent_ops agent_bc = {
    .name = "bc",
    .help = "behaviour cloning: imitates the steps that a table holds, for discrete and continuous actions",
    .data = AGENT_TRANSITIONS,
    .discrete = true,
    .continuous = true,
    .defaults = &bc_defaults,
    .state_size = sizeof(struct bc),
    .create = bc_create,
    .act = bc_act,
    .gradient = bc_gradient,
    .apply = bc_apply,
};
