#!/usr/bin/python3
"""D4PG: distributed distributional deterministic policy gradients (Barth-Maron et al. 2018).

A deterministic policy climbs a critic that predicts a distribution of returns over `atoms` values between `low` and `high`.

What it asks of replay: transitions over n steps, which the actor's adder computes; priorities, which the learner sets to the critic's
cross-entropy, with importance weights; and a ratio of samples to inserts that the table holds.

What it reaches: docs/AGENTS.md has Pendulum-v1 at 20,000 steps and CartPoleSwingUp at 100,000, worst of 20 fresh seeds.

  python3 agent/python/agents/d4pg.py         or: replay-launch configs/agents/d4pg-pendulum.yaml, d4pg-swingup.yaml
"""
import copy

import numpy as np
import torch

import replaybus
import replaybus.run
import replaybus.torch
from common import Atoms, device, evaluate, linear, made, main, track
from continuous import Critic, Policy, act

SETTINGS = dict(low=-60.0, high=0.0, atoms=51, scale=1.0, noise=0.2, memory=0.0, anneal=0)


def actor():
    with replaybus.run.Actor() as run, run.environments() as env:
        settings = run.options(**SETTINGS)
        torch.manual_seed(run.seeds(1)[0] % 2**63)
        policy, item = Policy(env, run.config), replaybus.Last(1, run.table, np.log(settings.atoms))
        act(run, env, policy, item, settings.memory, lambda observations, noise: policy(observations) + settings.noise * noise)


def learner():
    with replaybus.run.Learner() as run:
        config, settings, on = run.config, run.options(**SETTINGS), device()
        policy = made(run, Policy).to(on)
        critic, atoms = Critic(policy, config, settings.atoms).to(on), Atoms(settings.low, settings.high, settings.atoms, on)
        target_policy, target_critic = copy.deepcopy(policy), copy.deepcopy(critic)
        rate, batch, discount = config["agent.learning_rate"] or 1e-3, config["agent.batch"] or 128, config["agent.discount"] or 0.99
        policy_adam, critic_adam = torch.optim.Adam(policy.parameters(), rate), torch.optim.Adam(critic.parameters(), rate)
        publisher = replaybus.torch.States(run.client, policy=policy).keep(
            critic=critic, target_policy=target_policy, target_critic=target_critic, policy_adam=policy_adam, critic_adam=critic_adam)
        run.publishes(publisher, every=config["learners.publish_every"])
        group, updater = run.share(policy_adam, critic_adam), replaybus.torch.Updater(run.client, run.table)
        beta = config["agent.importance_exponent"] if config["agent.importance_exponent"] >= 0 else 0.4
        sampler = replaybus.torch.Sampler(run.client, run.table, batch, beta=beta, device=on, squeeze=True)
        for items in run.batches(sampler):
            data, weight = items.data, items.weight
            observations, following = data["observation"].flatten(1), data["next_observation"].flatten(1)
            with torch.no_grad():
                share = target_critic(following, target_policy(following)).softmax(1)
                goal = atoms.project(settings.scale * data["reward"], discount * data["discount"], share)
            cross_entropy = -(goal * critic(observations, data["action"]).log_softmax(1)).sum(1)
            value = atoms.mean(critic(observations, policy(observations)))
            gradients(critic, (weight * cross_entropy).mean())
            gradients(policy, -value.mean())
            updater.add(items.key, cross_entropy.detach())
            if not group.mean():
                continue
            for adam in (critic_adam, policy_adam):
                adam.param_groups[0]["lr"] = linear(rate, 0, run.steps / settings.anneal) if settings.anneal else rate
                adam.step()
            track(run, [target_policy, target_critic], [policy, critic], 0.005)
            run.step(loss=cross_entropy.detach().mean(), q=value.detach().mean())


def gradients(module, loss):
    """Sets the gradients of the module's parameters, and of no other's."""
    parameters = list(module.parameters())
    for parameter, gradient in zip(parameters, torch.autograd.grad(loss, parameters)):
        parameter.grad = gradient


if __name__ == "__main__":
    main("d4pg-pendulum.yaml", actor=actor, learner=learner, evaluator=lambda: evaluate("policy", Policy))
