#!/usr/bin/python3
"""R2D2: recurrent replay distributed DQN (Kapturowski et al. 2019), for tasks in which an observation does not tell the state; and R2D3
(Gulcehre et al. 2020), which is R2D2 with demonstrations.

What it asks of replay: overlapping sequences (adder.length, period) that share their steps, with the LSTM's state before their first
step (a column of which an item has one row), a burn-in (adder.burn_in) that refreshes this state, episodes' ends padded and masked,
and priorities of 0.9 x the largest + 0.1 x the mean error of a sequence. Double Q-learning over n steps with rescaled values. R2D3 has one
sampler over two tables: a share `ratio` of each batch comes from the table `demonstrations`, which has priorities of its own.

What it reaches: docs/AGENTS.md has CartPole-v1 without velocities at 150,000 steps, and Memory over 30 steps, which DQN cannot solve;
and DeepSea of size 20 with 100 demonstrations.

  python3 agent/python/agents/r2d2.py        or: replay-launch configs/agents/r2d2-cartpole.yaml, r2d2-memory.yaml, r2d3.yaml
"""
import copy

import numpy as np
import torch
from torch import nn

import replaybus.run
import replaybus.torch
from common import (DEMONSTRATIONS, descend, fill_once, follow, linear, made, main, play_expert, pull, returns,
                    sequence_adder, sources)
from replaybus.sequences import FIRST, priorities, trained

SETTINGS = dict(batch=32, n_step=5, target_every=100, target_share=1.0, epsilon=0.4, epsilon_alpha=7.0, beta=0.4, rescale=True, anneal=0,
                demonstrations=100, ratio=0.0)


class Recurrent(nn.Module):
    """Values of actions. Its input is an observation, the action before it and that action's reward."""

    def __init__(self, env, config):
        super().__init__()
        self.actions, hidden = int(env.single_action_space.n), (config["agent.hidden"] or [64])[0]
        self.inputs, self.hidden = int(np.prod(env.single_observation_space.shape)) + self.actions + 1, hidden
        self.encoder, self.lstm = nn.Linear(self.inputs, hidden), nn.LSTM(hidden, hidden, batch_first=True)
        self.head, self.value, self.advantage = nn.Linear(hidden, 64), nn.Linear(64, 1), nn.Linear(64, self.actions)
        self.register_buffer("mean", torch.zeros(self.inputs))
        self.register_buffer("deviation", torch.ones(self.inputs))
        remember = torch.rand(hidden).mul(config["adder.length"] - 1).add(1).log()
        with torch.no_grad():  # at first, units forget after 1 to adder.length steps (Tallec and Ollivier 2018)
            self.lstm.bias_ih_l0.copy_(torch.cat([-remember, remember, torch.zeros(2 * hidden)]))
            self.lstm.bias_hh_l0.zero_()

    def forward(self, inputs, state):
        """inputs: [items, steps, inputs]; state: [items, 2 * hidden]. The values of all steps, and the state after the last."""
        state = tuple(part.contiguous()[None] for part in state.split(self.hidden, 1))
        out, state = self.lstm(torch.relu(self.encoder((inputs - self.mean) / self.deviation.clamp(min=0.01))), state)
        out = torch.relu(self.head(out))
        advantage = self.advantage(out)
        return self.value(out) + advantage - advantage.mean(-1, keepdim=True), torch.cat(state, 2)[0]

    @torch.no_grad()
    def scale(self, inputs, share):
        """Moves the scale of inputs towards that of a batch. A memory of small changes, such as speeds, needs them at the scale of 1."""
        self.mean.lerp_(inputs.mean(0), share)
        self.deviation.lerp_(inputs.std(0), share)

    def start(self, n):
        return torch.zeros(n, 2 * self.hidden)

    def input(self, observations, actions=None, rewards=None):
        """Without actions: of the first observation of an episode."""
        n = len(observations)
        out = np.zeros((n, self.inputs), "float32")
        out[:, :self.inputs - self.actions - 1] = observations.reshape(n, -1)
        if actions is not None:
            out[np.arange(n), actions - self.actions - 1] = 1
            out[:, -1] = rewards
        return out

    @torch.no_grad()
    def act(self, inputs, state):
        """The best actions, and the state after them."""
        values, state = self(torch.from_numpy(inputs)[:, None], state)
        return values[:, 0].argmax(1).numpy(), state


def actor():
    with replaybus.run.Actor() as run, run.environments() as env:
        config, settings, n = run.config, run.options(**SETTINGS), env.num_envs
        random, network = np.random.default_rng(run.seeds(1)[0]), Recurrent(env, config)
        place = (run.index * n + np.arange(n)) / max(1, run.count * n - 1)  # on the ladder of all environments of the run
        epsilon = settings.epsilon ** (1 + settings.epsilon_alpha * place)
        adder = sequence_adder(run, n, run.table, start=["state"])
        inputs, state = network.input(env.reset()[0]), network.start(n)
        while run.claims(n):
            if pull(run, network=network):
                adder.set_policy(run.learner_steps)
            best, after = network.act(inputs, state)
            explore = random.random(n) < (epsilon if run.learner_steps else 1)
            actions = np.where(explore, random.integers(0, network.actions, n), best)
            with run.waiting("credit"):
                (inputs, state), rewards, ended = step(env, adder, network, inputs, state, after, actions)
            run.took(rewards, ended)
        adder.close()


def step(env, adder, network, inputs, state, after, actions):
    """Takes a step and adds it. Returns the next inputs with the state before them, the rewards, and which episodes ended."""
    actions = actions.astype("int32")  # of both tables: items of another type would not fit into one batch
    observations, rewards, terminated, truncated, info = env.step(actions)
    last = network.input(info["final_obs"], actions, rewards) if "final_obs" in info else None
    adder.add({"observation": inputs, "action": actions, "reward": rewards.astype("float32"), "state": state.numpy()}, terminated,
              truncated, last)
    ended, following = terminated | truncated, network.input(observations, actions, rewards)
    following[ended, network.inputs - network.actions - 1:] = 0
    after[torch.from_numpy(ended)] = 0
    return (following, after), rewards, ended


def demonstrations(run, network, n):
    """Writes n episodes of the environment's expert, with the states that the first network has in them."""
    with run.environments(n) as env, sequence_adder(run, n, DEMONSTRATIONS, start=["state"]) as adder:
        play_expert(env, (network.input(env.reset()[0]), network.start(n)),
                    lambda seen, actions: step(env, adder, network, *seen, network.act(*seen)[1], actions))


def squash(x, rescale):
    """h of the paper: it brings values of all scales close to each other, so that rewards need not be clipped."""
    return x.sign() * ((x.abs() + 1).sqrt() - 1) + 1e-3 * x if rescale else x


def unsquash(x, rescale):
    return x.sign() * ((((1 + 4e-3 * (x.abs() + 1 + 1e-3)).sqrt() - 1) / 2e-3).square() - 1) if rescale else x


def values_of(network, data, burn_in):
    """The values of all steps. The burn-in makes the state and no more: nothing is learned through it, unless it begins an episode."""
    first, rest = data["observation"].tensor_split([burn_in], 1)
    if burn_in == 0:
        return network(rest, data["state"])[0]
    values, state = network(first, data["state"])
    state = torch.where(data["step_type"][:, :1] == FIRST, state, state.detach())
    return torch.cat([values, network(rest, state)[0]], 1)


def loss_of(network, target, data, weight, settings, config):
    """The loss of a batch, and the errors of its steps with the mask of those that count."""
    burn_in = config["adder.burn_in"]
    q = values_of(network, data, burn_in)
    with torch.no_grad():
        of_target, _ = target(data["observation"], data["state"])
        values = of_target.gather(2, q.argmax(2, keepdim=True)).squeeze(2)
        values = returns(data, unsquash(values, settings.rescale), config["agent.discount"] or 0.99, settings.n_step)
        wanted = squash(values, settings.rescale)
        mask = trained(data["step_type"], burn_in)
        mask[:, -1] = False  # what follows the last row is not known
    errors = (q.gather(2, data["action"].long()[:, :, None]).squeeze(2) - wanted) * mask
    return (weight * errors.square().sum(1)).sum() / mask.sum() / 2, errors.detach(), mask


def learner():
    with replaybus.run.Learner() as run:
        config, settings = run.config, run.options(**SETTINGS)
        network = made(run, Recurrent)
        target = copy.deepcopy(network)
        rate = config["agent.learning_rate"] or 1e-3
        adam = torch.optim.Adam(network.parameters(), rate, eps=1e-5)
        run.publishes(replaybus.torch.States(run.client, network=network, target=target).keep(adam=adam), every=5)
        if settings.ratio > 0:
            fill_once(run, DEMONSTRATIONS, lambda: demonstrations(run, network, settings.demonstrations))
        tables = sources(run, settings.ratio)
        sampler = replaybus.torch.Sampler(tables, batch_size=settings.batch, beta=settings.beta)
        updaters = [replaybus.torch.Updater(client, table) for client, table, *_ in tables]
        for batch in run.batches(sampler):
            network.scale(batch.data["observation"][batch.data["step_type"] < 2], max(0.01, 1 / (run.steps + 1)))
            loss, errors, mask = loss_of(network, target, batch.data, batch.weight, settings, config)
            if settings.anneal:  # learner steps over which the learning rate falls
                adam.param_groups[0]["lr"] = linear(rate, rate / 50, run.steps / settings.anneal)
            descend(adam, loss, config["agent.clip_norm"] or 10)
            priority = priorities(errors, mask) + 1e-6
            for i, updater in enumerate(updaters):
                rows = slice(None) if batch.source is None else batch.source == i
                updater.add(batch.key[rows], priority[rows])
            run.step(loss=loss.detach())
            if run.steps % settings.target_every == 0:
                follow([target], [network], settings.target_share)


def evaluator():
    with replaybus.run.Evaluator() as run, run.environments(run.episodes) as env:
        network = Recurrent(env, run.config)
        for tensors in run.parameters():
            replaybus.torch.load_states(tensors, target=network)  # it is the steadier of the two
            inputs, state = network.input(env.reset()[0]), network.start(env.num_envs)
            returns, running = np.zeros(env.num_envs), np.ones(env.num_envs, bool)
            while running.any():  # the first episode of each environment
                actions, state = network.act(inputs, state)
                observations, rewards, terminated, truncated, _ = env.step(actions)
                returns += rewards * running
                running &= ~(terminated | truncated)
                inputs = network.input(observations, actions, rewards)
            run.result(returns)


if __name__ == "__main__":
    main("r2d2-cartpole.yaml", actor=actor, learner=learner, evaluator=evaluator)
