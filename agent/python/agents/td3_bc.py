#!/usr/bin/python3
"""TD3+BC: TD3 for recorded data (Fujimoto & Gu 2021). The policy maximises the critic's value and stays near the recorded actions.

What it asks of replay: a table that nobody inserts into, sampled uniformly and for ever. The broker loads it from a checkpoint, or the
learner fills it once from a file: agent.options.data is an npz, HDF5 (Minari), CSV or JSON lines file (replaybus.data).

What it reaches: docs/AGENTS.md. With alpha: 0 the policy ignores the critic, which is behaviour cloning.

  python3 agent/python/agents/mixed_data.py      # records the data, once
  python3 agent/python/agents/td3_bc.py          or: replay-launch configs/agents/td3-bc.yaml
"""
import copy

import torch

import replaybus.run
import replaybus.torch
from common import descend, device, made, main, track
from offline import OPTIONS, Critics, Policy, batches, evaluator

SETTINGS = dict(**OPTIONS, alpha=2.5, policy_delay=2, noise=0.2, noise_clip=0.5)


def learner():
    with replaybus.run.Learner() as run:
        settings, config, on = run.options(**SETTINGS), run.config, device()
        policy = made(run, Policy).to(on)
        critics = Critics(policy, config).to(on)
        target_policy, target_critics = copy.deepcopy(policy), copy.deepcopy(critics)
        rate = config["agent.learning_rate"] or 3e-4
        policy_adam, critic_adam = (torch.optim.Adam(module.parameters(), rate) for module in (policy, critics))
        run.publishes(replaybus.torch.States(run.client, policy=policy).keep(
            critics=critics, target_policy=target_policy, target_critics=target_critics, policy_adam=policy_adam,
            critic_adam=critic_adam), every=100)
        for observation, action, reward, discount, following in batches(run, settings):
            with torch.no_grad():
                noise = (settings.noise * torch.randn_like(action)).clamp(-settings.noise_clip, settings.noise_clip)
                next_action = (target_policy(following) + noise).clamp(-1, 1)
                target = reward + discount * target_critics(following, next_action).min(0).values
            loss = (critics(observation, action) - target).square().mean()
            descend(critic_adam, loss)
            scalars = dict(loss=loss.detach())
            if run.steps % settings.policy_delay == 0:
                chosen = policy(observation)
                q = critics(observation, chosen)[0]
                imitation = (chosen - action).square().mean()
                # The critic's term is divided by the size of its values, so that alpha means the same at every scale of rewards.
                descend(policy_adam, imitation - settings.alpha / q.abs().mean().detach() * q.mean())
                track(run, [target_policy, target_critics], [policy, critics], 0.005, settings.policy_delay)
                scalars.update(policy_loss=imitation.detach(), q=q.detach().mean())
            run.step(**scalars)


if __name__ == "__main__":
    main("td3-bc.yaml", learner=learner, evaluator=evaluator)
