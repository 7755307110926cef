#!/usr/bin/python3
"""MPO: maximum a posteriori policy optimisation (Abdolmaleki et al. 2018); DMPO with a categorical critic (`atoms` above 0).

Each state gets several actions of the policy; their values weigh them, and the policy is fitted to the weighted actions, within a
bound on how far its mean and its deviation may move. Temperature and bounds are multipliers that are learned beside it.

What it asks of replay: a mixture. Each transition goes into a replay table and into a queue; `fresh` is the share of a batch that
comes from the queue, where each is sampled once. So the learner sees all new data soon, and the queue alone paces the run.

What it reaches: docs/AGENTS.md has CartPoleSwingUp at 100,000 steps, worst of 20 fresh seeds.

  python3 agent/python/agents/mpo.py          or: replay-launch configs/agents/mpo-swingup.yaml, dmpo-swingup.yaml
"""
import copy
import math

import torch
from torch import nn
from torch.nn.functional import softplus

import replaybus
import replaybus.run
import replaybus.torch
import continuous
from common import Atoms, device, evaluate, flat, made, main, track

SETTINGS = dict(fresh=1 / 32, samples=16, epsilon=0.1, mean_bound=0.0025, deviation_bound=1e-5, dual_rate=1e-2, deviation=0.5,
                memory=0.0, atoms=0, low=0.0, high=100.0)
QUEUE = "fresh"  # the table beside the run's own


class Policy(continuous.Policy):
    """A normal distribution for each number of an action: its mean between -1 and 1, and its deviation."""

    def __init__(self, env, config, deviation):
        super().__init__(env, config, heads=2)
        self._deviation = deviation

    def forward(self, observations):
        mean, width = self.net(observations).chunk(2, -1)
        return mean.tanh(), self._deviation * softplus(width) / math.log(2) + 1e-3

    def best(self, observations):
        return self.actions.to_env(self(flat(observations))[0].numpy())


class Multipliers(nn.Module):
    """The temperature of the weights, and the prices of moving the mean and the deviation of each number of an action."""

    def __init__(self, size):
        super().__init__()
        self.values = nn.ParameterList([nn.Parameter(torch.full((n,), first)) for n, first in ((1, 1.0), (size, 1.0), (size, 10.0))])

    def forward(self):
        return [softplus(value.clamp(min=-18)) + 1e-8 for value in self.values]


def actor():
    with replaybus.run.Actor() as run, run.environments() as env:
        settings = run.options(**SETTINGS)
        torch.manual_seed(run.seeds(1)[0] % 2**63)
        policy = Policy(env, run.config, settings.deviation)

        def explore(observations, noise):
            mean, deviation = policy(observations)
            return mean + deviation * noise

        def queue(writer):  # random steps are for replay alone: the queue would be full before replay may be sampled
            writer.pattern(QUEUE, {name: column[-1:] for name, column in writer.columns.items()})

        continuous.act(run, env, policy, replaybus.Last(1, run.table), settings.memory, explore, queue)


class Learning:
    """The networks, and the losses of a batch."""

    def __init__(self, env, config, settings, on):
        self.settings, self.discount = settings, config["agent.discount"] or 0.99
        self.policy = Policy(env, config, settings.deviation).to(on)
        self.critic = continuous.Critic(self.policy, config, settings.atoms or 1).to(on)
        self.multipliers = Multipliers(self.policy.actions.size).to(on)
        self.target_policy, self.target_critic = copy.deepcopy(self.policy), copy.deepcopy(self.critic)
        self.atoms = Atoms(settings.low, settings.high, settings.atoms, on) if settings.atoms else None

    def losses(self, data):
        """Of critic, policy and multipliers. The actions at the next states serve the critic's goal and the policy's step."""
        following = data["next_observation"].flatten(1)
        with torch.no_grad():
            old = self.target_policy(following)
            actions = torch.normal(*(part.expand(self.settings.samples, -1, -1) for part in old))
            out = self.target_critic(following.expand(self.settings.samples, -1, -1), actions)
        critic, q = self._critic_loss(data, out)
        return critic, *self._policy_losses(old, self.policy(following), actions, q)

    def _critic_loss(self, data, out):
        """Also the values of the actions."""
        discount, predicted = self.discount * data["discount"], self.critic(data["observation"].flatten(1), data["action"])
        if self.atoms is None:
            q = out[..., 0]
            return (predicted[:, 0] - data["reward"] - discount * q.mean(0)).square().mean() / 2, q
        goal = self.atoms.project(data["reward"], discount, out.softmax(-1).mean(0))
        return -(goal * predicted.log_softmax(1)).sum(1).mean(), self.atoms.mean(out)

    def _policy_losses(self, old, new, actions, q):
        settings, (temperature, mean_price, deviation_price) = self.settings, self.multipliers()
        weight = (q / temperature.detach()).softmax(0)
        heat = temperature * (settings.epsilon + (q / temperature).logsumexp(0).mean() - math.log(len(q)))
        fit = sum(-(weight * log_probability(actions, *part)).sum(0).mean() for part in ((new[0], old[1]), (old[0], new[1])))
        mean_moved = ((new[0] - old[0]) / old[1]).square().mean(0) / 2
        ratio = old[1] / new[1]
        deviation_moved = (ratio.square() / 2 - ratio.log() - 0.5).mean(0)
        policy = fit + (mean_price.detach() * mean_moved + deviation_price.detach() * deviation_moved).sum()
        prices = (mean_price * (settings.mean_bound - mean_moved.detach())
                  + deviation_price * (settings.deviation_bound - deviation_moved.detach()))
        return policy, heat.sum() + prices.sum()


def log_probability(actions, mean, deviation):
    """Without its constant."""
    return (-((actions - mean) / deviation).square() / 2 - deviation.log()).sum(-1)


def learner():
    with replaybus.run.Learner() as run:
        config, settings, on = run.config, run.options(**SETTINGS), device()
        my = made(run, lambda env, config: Learning(env, config, settings, on))
        rate, batch = config["agent.learning_rate"] or 1e-3, config["agent.batch"] or 128
        rates = (my.critic, rate), (my.policy, rate), (my.multipliers, settings.dual_rate)
        adam = torch.optim.Adam([dict(params=module.parameters(), lr=rate) for module, rate in rates])
        run.publishes(replaybus.torch.States(run.client, policy=my.policy).keep(
            critic=my.critic, multipliers=my.multipliers, target_policy=my.target_policy, target_critic=my.target_critic, adam=adam),
            every=config["learners.publish_every"])
        group, sources = run.share(adam), [(run.client, run.table, 1 - settings.fresh), (run.client, QUEUE, settings.fresh)]
        for items in run.batches(replaybus.torch.Sampler(sources, batch_size=batch, device=on, squeeze=True)):
            critic, policy, multipliers = my.losses(items.data)
            adam.zero_grad()
            (critic + policy + multipliers).backward()
            if not group.mean():
                continue
            adam.step()
            track(run, [my.target_policy, my.target_critic], [my.policy, my.critic], 0.01)
            run.step(loss=critic.detach(), policy_loss=policy.detach())


if __name__ == "__main__":
    main("mpo-swingup.yaml", actor=actor, learner=learner,
         evaluator=lambda: evaluate("policy", lambda env, config: Policy(env, config, 1.0)))
