#!/usr/bin/python3
"""CQL: conservative Q-learning (Kumar et al. 2020), on soft actor-critic. The critics are pushed down on actions that the data does not
have, and up on those that it has, so that the policy gains nothing by leaving the data.

What it asks of replay: a table that nobody inserts into, sampled uniformly and for ever. The broker loads it from a checkpoint, or the
learner fills it once from a file: agent.options.data is an npz, HDF5 (Minari), CSV or JSON lines file (replaybus.data).

What it reaches: docs/AGENTS.md.

  python3 agent/python/agents/mixed_data.py      # records the data, once
  python3 agent/python/agents/cql.py             or: replay-launch configs/agents/cql.yaml
"""
import copy
import math

import torch
from torch import nn

import replaybus.run
import replaybus.torch
from common import descend, device, made, main, track
from offline import OPTIONS, Critics, Policy, batches, evaluator

SETTINGS = dict(**OPTIONS, conservatism=1.0, actions_each=4)


def draw(policy, observation):
    """A random action between -1 and 1, and its log probability."""
    mean, log_deviation = policy.net(observation).chunk(2, -1)
    log_deviation = log_deviation.clamp(-5, 2)
    noise = torch.randn_like(mean)
    u = mean + log_deviation.exp() * noise
    normal = -0.5 * noise.square() - log_deviation - 0.5 * math.log(2 * math.pi)
    return u.tanh(), (normal - 2 * (math.log(2) - u - nn.functional.softplus(-2 * u))).sum(-1)


def others(policy, observation, following, n):
    """n random actions a state, n of the policy, n of the policy in the next state; and their log probabilities: [3n, batch]."""
    size, width = len(observation), policy.actions.size
    uniform = torch.rand(n * size, width, device=observation.device) * 2 - 1
    drawn = [(uniform, torch.full((n * size,), -width * math.log(2), device=observation.device)),
             draw(policy, observation.repeat(n, 1)), draw(policy, following.repeat(n, 1))]
    actions, log_probabilities = (torch.cat(parts) for parts in zip(*drawn))
    return actions, log_probabilities.view(3 * n, size)


def learner():
    with replaybus.run.Learner() as run:
        settings, config, on = run.options(**SETTINGS), run.config, device()
        policy = made(run, lambda env, config: Policy(env, config, heads=2)).to(on)
        critics = Critics(policy, config).to(on)
        target, temperature = copy.deepcopy(critics), nn.ParameterList([nn.Parameter(torch.zeros((), device=on))])  # its logarithm
        rate = config["agent.learning_rate"] or 3e-4
        policy_adam = torch.optim.Adam([*policy.parameters(), *temperature.parameters()], rate)
        critic_adam = torch.optim.Adam(critics.parameters(), rate)
        run.publishes(replaybus.torch.States(run.client, policy=policy).keep(
            critics=critics, target=target, temperature=temperature, policy_adam=policy_adam, critic_adam=critic_adam), every=100)
        for observation, action, reward, discount, following in batches(run, settings):
            n = settings.actions_each
            with torch.no_grad():
                backed_up = reward + discount * target(following, draw(policy, following)[0]).min(0).values
                actions, log_probabilities = others(policy, observation, following, n)
            every = critics(torch.cat([observation.repeat(3 * n, 1), observation]), torch.cat([actions, action]))
            q = every[:, -len(action):]
            elsewhere = every[:, :-len(action)].view(2, 3 * n, -1) - log_probabilities
            gap = (elsewhere.logsumexp(1) - math.log(3 * n) - q).mean()
            loss = (q - backed_up).square().mean()
            descend(critic_adam, loss + settings.conservatism * gap)
            chosen, log_probability = draw(policy, observation)
            alpha = temperature[0].exp()
            policy_loss = (alpha.detach() * log_probability - critics(observation, chosen).min(0).values).mean()
            descend(policy_adam, policy_loss - temperature[0] * (log_probability.detach().mean() - policy.actions.size))
            track(run, [target], [critics], 0.005)
            run.step(loss=loss.detach(), policy_loss=policy_loss.detach(), q=q.detach().mean(), entropy=-log_probability.detach().mean(),
                     gap=gap.detach(), alpha=alpha.detach())


if __name__ == "__main__":
    main("cql.yaml", learner=learner, evaluator=lambda: evaluator(heads=2))
