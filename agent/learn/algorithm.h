/* What the algorithms share: memory, optimisers, targets, and names for every part that changes while learning, so that a learner
 * can be saved and an actor can follow it. */
#ifndef AGENT_LEARN_ALGORITHM_H
#define AGENT_LEARN_ALGORITHM_H

#include "agent/learn/agent.h"

/* The built-in algorithms. To add one: its file, a name here, a line in the list of agent.c, a test. */
extern const struct agent_ops agent_dqn, agent_ddpg, agent_td3, agent_sac, agent_impala, agent_bc;

/* Allocates params and grads, zeroed, for n_params numbers; agent_destroy frees them. */
rp_status agent_alloc(struct agent *self, uint32_t n_params, rp_error *err);
/* For the end of apply, after self->steps has counted this step: copies params into target every target_period steps,
 * or moves target by tau at each step. */
void agent_update_target(const struct agent *self, float *target, const float *params, uint32_t n);
/* The optimiser of the configuration for n parameters. */
rp_status agent_optim(const struct agent *self, struct optim *out, uint32_t n, rp_error *err);
/* Adds the tensors of a network's parameters, names prefixed ("q/layer0/weight"). */
void agent_add_net(struct agent *self, const char *prefix, const struct net *net, float *params);
void agent_add_vector(struct agent *self, const char *name, int32_t dtype, void *data, uint64_t n);
/* Adds m, v and steps of an optimiser. */
void agent_add_optim(struct agent *self, const char *prefix, struct optim *optim);
/* Declares that all tensors added so far are the policy. */
void agent_end_policy(struct agent *self);
/* Returns n observations as floats: the same memory if they are floats already, otherwise converted into scratch
 * (uint8: as numbers times config.scale). */
const float *agent_floats(const struct agent *self, const void *observation, uint32_t n, float *scratch);
/* Fills spec for a network over observations: inputs, image, hidden layers, activation. */
void agent_net_spec(const struct agent *self, struct net_spec *out);
/* Sets a scalar; replaces one of the same name. The name is borrowed. */
void agent_scalar(struct agent_result *self, const char *name, double value);

#endif
