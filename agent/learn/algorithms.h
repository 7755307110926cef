/* The built-in algorithms. To add one: its file, a line here, a line in the list of agent.c, a test. */
#ifndef AGENT_LEARN_ALGORITHMS_H
#define AGENT_LEARN_ALGORITHMS_H

#include "agent/learn/agent.h"

extern const struct agent_ops agent_dqn, agent_ddpg, agent_td3, agent_sac, agent_impala, agent_bc;

#endif
