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
from torch import nn

import replaybus
import replaybus.run
import replaybus.torch
from common import Actions, Atoms, Noise, Transitions, activation, device, evaluate, flat, follow, last_observations, linear, main, mlp

SETTINGS = dict(low=-60.0, high=0.0, atoms=51, scale=1.0, noise=0.2, memory=0.0, anneal=0)
IN_FLIGHT = 16  # items that the table has not taken yet: so far is an actor ahead of the learner


class Policy(nn.Module):
    """Gives actions between -1 and 1."""

    def __init__(self, env, config):
        super().__init__()
        self.actions = Actions(env)
        self.inputs, self.hidden = int(np.prod(env.single_observation_space.shape)), config["agent.hidden"] or [64, 64]
        self.net = mlp([self.inputs, *self.hidden, self.actions.size], activation(config), 0.1)

    def forward(self, observations):
        return self.net(observations).tanh()

    def best(self, observations):
        return self.actions.to_env(self(flat(observations)).numpy())


class Critic(nn.Module):
    """Gives the logits of the distribution of returns."""

    def __init__(self, policy, config, atoms):
        super().__init__()
        self.net = mlp([policy.inputs + policy.actions.size, *policy.hidden, atoms], activation(config))

    def forward(self, observations, actions):
        return self.net(torch.cat([observations, actions], -1))


def actor():
    with replaybus.run.Actor() as run, run.environments() as env:
        config, settings, n = run.config, run.options(**SETTINGS), env.num_envs
        torch.manual_seed(run.seeds(1)[0] % 2**63)
        policy = Policy(env, config)
        noise = Noise((n, policy.actions.size), settings.memory)
        writer = run.client.writer(max_in_flight=IN_FLIGHT)
        adder = Transitions(writer, replaybus.Last(1, run.table, np.log(settings.atoms)), config["adder.n_step"], config["agent.discount"])
        observations, _ = env.reset()
        while run.claims(n):
            tensors = run.parameters()
            if tensors is not None:
                replaybus.torch.load_states(tensors, policy=policy)
            if run.steps <= config["actors.random_steps"]:
                actions = 2 * torch.rand(n, policy.actions.size) - 1
            else:
                with torch.no_grad():
                    actions = (policy(flat(observations)) + settings.noise * noise()).clamp(-1, 1)
            actions = actions.numpy()
            following, rewards, terminated, truncated, info = env.step(policy.actions.to_env(actions))
            with run.waiting("credit"):
                adder.add(observations, actions, rewards, last_observations(following, info), terminated, terminated | truncated)
            run.took(rewards, terminated | truncated)
            observations = following
        writer.close()


def learner():
    with replaybus.run.Learner() as run:
        config, settings, on = run.config, run.options(**SETTINGS), device()
        torch.manual_seed(run.seeds(1)[0] % 2**63)
        with run.environments(1) as env:
            policy = Policy(env, config).to(on)
        critic, atoms = Critic(policy, config, settings.atoms).to(on), Atoms(settings.low, settings.high, settings.atoms, on)
        target_policy, target_critic = copy.deepcopy(policy), copy.deepcopy(critic)
        rate, batch = config["agent.learning_rate"], config["agent.batch"]
        policy_adam, critic_adam = torch.optim.Adam(policy.parameters(), rate), torch.optim.Adam(critic.parameters(), rate)
        publisher = replaybus.torch.States(run.client, policy=policy).keep(
            critic=critic, target_policy=target_policy, target_critic=target_critic, policy_adam=policy_adam, critic_adam=critic_adam)
        run.publishes(publisher, every=config["learners.publish_every"])
        group, updater = run.share(policy_adam, critic_adam), replaybus.torch.Updater(run.client, run.table)
        sampler = replaybus.torch.Sampler(run.client, run.table, batch, beta=config["agent.importance_exponent"], device=on, squeeze=True)
        for items in run.batches(sampler):
            data, weight = items.data, items.weight
            observations, following = data["observation"].flatten(1), data["next_observation"].flatten(1)
            with torch.no_grad():
                share = target_critic(following, target_policy(following)).softmax(1)
                goal = atoms.project(settings.scale * data["reward"], config["agent.discount"] * data["discount"], share)
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
            follow([target_policy, target_critic], [policy, critic], config["agent.target"])
            run.step(loss=cross_entropy.detach().mean(), q=value.detach().mean())


def gradients(module, loss):
    """Sets the gradients of the module's parameters, and of no other's."""
    parameters = list(module.parameters())
    for parameter, gradient in zip(parameters, torch.autograd.grad(loss, parameters)):
        parameter.grad = gradient


if __name__ == "__main__":
    main("d4pg-pendulum.yaml", actor=actor, learner=learner, evaluator=lambda: evaluate("policy", Policy))
