#!/usr/bin/python3
"""IQL: implicit Q-learning (Kostrikov et al. 2021). It never asks the critic about actions that are not in the data: a value network
learns an upper expectile of Q over the recorded actions, and the policy imitates those that are better than that value.

What it asks of replay: a table that nobody inserts into, sampled uniformly and for ever. The broker loads it from a checkpoint, or the
learner fills it once from a file: agent.options.data is an npz, HDF5 (Minari), CSV or JSON lines file (replaybus.data).

What it reaches: docs/AGENTS.md.

  python3 agent/python/agents/mixed_data.py      # records the data, once
  python3 agent/python/agents/iql.py             or: replay-launch configs/agents/iql.yaml
"""
import copy

import torch

import replaybus.run
import replaybus.torch
from common import activation, descend, device, linear, made, main, mlp, track
from offline import OPTIONS, Critics, Policy, batches, evaluator

SETTINGS = dict(**OPTIONS, expectile=0.9, temperature=3.0, most_weight=100.0)


def learner():
    with replaybus.run.Learner() as run:
        settings, config, on = run.options(**SETTINGS), run.config, device()
        policy = made(run, Policy).to(on)
        critics, value = Critics(policy, config).to(on), mlp([policy.inputs, *policy.hidden, 1], activation(config)).to(on)
        target = copy.deepcopy(critics)
        rate = config["agent.learning_rate"] or 3e-4
        adams = policy_adam, critic_adam, value_adam = [torch.optim.Adam(module.parameters(), rate) for module in (policy, critics, value)]
        run.publishes(replaybus.torch.States(run.client, policy=policy).keep(
            critics=critics, target=target, value=value, policy_adam=policy_adam, critic_adam=critic_adam, value_adam=value_adam), every=100)
        for observation, action, reward, discount, following in batches(run, settings):
            for adam in adams if config["agent.anneal"] else []:
                adam.param_groups[0]["lr"] = linear(rate, rate / 10, run.steps / config["agent.anneal"])
            with torch.no_grad():
                q = target(observation, action).min(0).values
                backed_up = reward + discount * value(following)[:, 0]
            advantage = q - value(observation)[:, 0]
            weight = torch.where(advantage > 0, settings.expectile, 1 - settings.expectile)
            value_loss = (weight * advantage.square()).mean()
            descend(value_adam, value_loss)
            loss = (critics(observation, action) - backed_up).square().mean()
            descend(critic_adam, loss)
            weight = (settings.temperature * advantage.detach()).exp().clamp(max=settings.most_weight)
            policy_loss = (weight * (policy(observation) - action).square().sum(1)).mean()
            descend(policy_adam, policy_loss)
            track(run, [target], [critics], 0.005)
            run.step(loss=loss.detach(), value_loss=value_loss.detach(), policy_loss=policy_loss.detach(), q=q.mean())


if __name__ == "__main__":
    main("iql.yaml", learner=learner, evaluator=evaluator)
