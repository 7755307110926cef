#!/usr/bin/python3
"""AlphaZero-style search (Silver et al. 2017) for one player: a network proposes, a tree search improves, the network learns from it.

What it asks of replay: extra columns beside the observations. An item is one step with the visit counts of the search at its root
(what the policy learns) and the return that followed (what the value learns), sampled uniformly, a few times each. Actors search: the
rules come from a second vector environment that is put into the states of the tree's leaves (`VectorEnv.set_state`).

What it reaches: docs/AGENTS.md has Catch and CartPole-v1, worst of 20 fresh seeds.

  python3 agent/python/agents/mcts.py         or: replay-launch configs/agents/mcts-catch.yaml, mcts-cartpole.yaml
"""
import numpy as np
import torch
from torch import nn

import replaybus
import replaybus.run
import replaybus.torch
from common import activation, descend, flat, last_observations, linear, made, main, mlp, pull, returns_of

SETTINGS = dict(batch=128, simulations=16, horizon=32, trace=0.95, scale=1.0, explore=1.25, noise=0.25, greedy_after=0.5)


class Network(nn.Module):
    def __init__(self, env, config):
        super().__init__()
        inputs, hidden = int(np.prod(env.single_observation_space.shape)), config["agent.hidden"] or [64, 64]
        self.policy = mlp([inputs, *hidden, int(env.single_action_space.n)], activation(config), 0.01)
        self.value = mlp([inputs, *hidden, 1], activation(config), 0.1)

    def forward(self, observations):
        """Probabilities of actions, and values, as arrays."""
        with torch.no_grad():
            rows = flat(observations)
            return torch.softmax(self.policy(rows), 1).double().numpy(), self.value(rows).squeeze(1).double().numpy()


def states_of(name, observations):
    """The state behind each observation, as `VectorEnv.set_state` takes it."""
    if name == "CartPole-v1":
        return observations.astype("float64")
    if name == "Catch":  # the row and column of the ball, the column of the paddle in the last row
        cells = observations.reshape(len(observations), -1).astype(bool)
        ball, paddle = cells.argmax(1), cells.shape[1] - 1 - cells[:, ::-1].argmax(1)
        return np.stack([ball // 5, ball % 5, paddle % 5], 1).astype("float64")
    raise replaybus.InvalidArgument(f"environment.name: {name}: mcts.py can search where observations show the whole state, which it knows of "
                                    "CartPole-v1 and Catch; add the state to states_of")


class Search:
    """A tree for each of n environments, all grown together: each simulation adds a leaf to every tree, in one pass of the network."""

    def __init__(self, network, env, rules, discount, settings, rng):
        self.network, self.env, self.rules, self.discount, self.settings, self.rng = network, env, rules, discount, settings, rng

    def run(self, observations, noise):
        """The visit counts and the value of each root."""
        n, nodes = len(observations), self.settings.simulations + 1
        actions = int(self.env.single_action_space.n)
        rows = np.arange(n)
        self.visits, self.total = np.zeros((n, nodes, actions)), np.zeros((n, nodes, actions))
        self.reward, self.prior = np.zeros((n, nodes, actions)), np.zeros((n, nodes, actions))
        self.child = np.full((n, nodes, actions), -1)
        self.terminal = np.zeros((n, nodes), bool)
        self.low, self.high = np.full(n, np.inf), np.full(n, -np.inf)
        self.prior[:, 0], values = self.network(observations)
        if noise:
            self.prior[:, 0] += self.settings.noise * (self.rng.dirichlet([0.3] * actions, n) - self.prior[:, 0])
        roots = states_of(self.env.spec.id, observations)
        self.states = np.zeros((n, nodes, roots.shape[1]))
        self.states[:, 0] = roots
        for node in range(1, nodes):
            path = self.descend(rows)
            self.back_up(rows, path, self.expand(rows, path, node))
        counts = self.visits[:, 0]
        return counts, (values + self.total[:, 0].sum(1)) / (1 + counts.sum(1))

    def descend(self, rows):
        """The nodes and actions from each root to a new leaf, or to the end of an episode: [(trees, nodes, actions)]."""
        path, trees, at = [], rows, np.zeros(len(rows), int)
        while len(trees):
            counts = self.visits[trees, at]
            spread = np.maximum(self.high[trees] - self.low[trees], 1e-9)[:, None]
            means = np.divide(self.total[trees, at], counts, out=np.zeros_like(counts), where=counts > 0)
            quality = np.where(counts > 0, np.clip((means - self.low[trees, None]) / spread, 0, 1), 0)
            bonus = self.settings.explore * self.prior[trees, at] * np.sqrt(counts.sum(1, keepdims=True) + 1) / (1 + counts)
            chosen = (quality + bonus).argmax(1)
            path.append((trees, at, chosen))
            following = self.child[trees, at, chosen]
            further = (following >= 0) & ~self.terminal[trees, following]
            trees, at = trees[further], following[further]
        return path

    def expand(self, rows, path, node):
        """Makes the leaf of each tree; gives its value."""
        at, chosen = np.zeros(len(rows), int), np.zeros(len(rows), int)
        for trees, nodes, actions in path:
            at[trees], chosen[trees] = nodes, actions
        self.rules.set_state(self.states[rows, at])
        observations, rewards, terminated, _, info = self.rules.step(chosen)
        observations = last_observations(observations, info)
        prior, value = self.network(observations)
        self.child[rows, at, chosen] = np.where(self.child[rows, at, chosen] < 0, node, self.child[rows, at, chosen])
        self.reward[rows, at, chosen] = rewards * self.settings.scale
        self.prior[:, node], self.terminal[:, node] = prior, terminated
        self.states[:, node] = states_of(self.env.spec.id, observations)
        return np.where(terminated, 0, value)

    def back_up(self, rows, path, value):
        value = value.copy()
        for trees, at, chosen in reversed(path):
            value[trees] = self.reward[trees, at, chosen] + self.discount * value[trees]
            self.total[trees, at, chosen] += value[trees]
            self.visits[trees, at, chosen] += 1
            mean = self.total[trees, at, chosen] / self.visits[trees, at, chosen]
            self.low[trees], self.high[trees] = np.minimum(self.low[trees], mean), np.maximum(self.high[trees], mean)


def actor():
    with replaybus.run.Actor() as run, run.environments() as env, run.environments(env.num_envs) as rules:
        settings, n, limit = run.options(**SETTINGS), env.num_envs, run.config["stop.steps"]
        rng = np.random.default_rng(run.seeds(1)[0])
        network, discount = Network(env, run.config), run.config["agent.discount"] or 0.99
        search = Search(network, env, rules, discount, settings, rng)
        observations, rows = env.reset()[0], [[] for _ in range(n)]
        with run.client.writer(max_in_flight=256) as writer:
            while run.claims(n):
                pull(run, network=network)
                counts, values = search.run(observations, True)
                late = limit > 0 and run.environment_steps > settings.greedy_after * limit
                actions = ((4 if late else 1) * np.log(np.maximum(counts, 1e-9)) + rng.gumbel(size=counts.shape)).argmax(1)
                following, rewards, terminated, truncated, info = env.step(actions)
                after = last_observations(following, info)
                run.took(rewards, terminated | truncated)
                for i in range(n):
                    rows[i].append((observations[i], counts[i], values[i], rewards[i] * settings.scale))
                full = np.array([len(stretch) == settings.horizon for stretch in rows])
                done = terminated | truncated | full
                if done.any():
                    bootstrap = np.where(terminated, 0, network(after)[1])
                    with run.waiting("credit"):
                        for i in np.flatnonzero(done):
                            write(run, writer, rows[i], bootstrap[i], discount, settings.trace)
                            rows[i] = []
                observations = following


def write(run, writer, rows, bootstrap, discount, trace):
    """Each step becomes an item with the visit counts and the return that followed, which mixes rewards and values of the search."""
    observations, counts, values, rewards = (np.stack(column) for column in zip(*rows))
    following, target = np.append(values[1:], bootstrap), np.zeros(len(rows))
    running = bootstrap
    for t in reversed(range(len(rows))):
        running = target[t] = rewards[t] + discount * ((1 - trace) * following[t] + trace * running)
    writer.append_block(dict(observation=observations, visits=(counts / counts.sum(1, keepdims=True)).astype("float32"),
                             value=target.astype("float32")), replaybus.Last(1, run.table))


def learner():
    with replaybus.run.Learner() as run:
        config, settings = run.config, run.options(**SETTINGS)
        network = made(run, Network)
        rate, limit = config["agent.learning_rate"] or 1e-3, config["stop.steps"]
        adam = torch.optim.Adam(network.parameters(), rate)
        run.publishes(replaybus.torch.States(run.client, network=network).keep(adam=adam), every=20)
        for batch in run.batches(replaybus.torch.Sampler(run.client, run.table, settings.batch, squeeze=True)):
            rows = batch.data["observation"].flatten(1).float()
            policy_loss = -(batch.data["visits"] * torch.log_softmax(network.policy(rows), 1)).sum(1).mean()
            value_loss = (network.value(rows).squeeze(1) - batch.data["value"]).square().mean()
            adam.param_groups[0]["lr"] = linear(rate, 0, run.environment_steps / limit) if limit else rate
            descend(adam, policy_loss + value_loss)
            run.step(policy_loss=policy_loss.detach(), value_loss=value_loss.detach())


def evaluator():
    """Acts by the most visited action of a search without noise."""
    with replaybus.run.Evaluator() as run, run.environments(run.episodes) as env, run.environments(run.episodes) as rules:
        network = Network(env, run.config)
        search = Search(network, env, rules, run.config["agent.discount"] or 0.99, run.options(**SETTINGS), None)
        for tensors in run.parameters():
            replaybus.torch.load_states(tensors, network=network)
            run.result(returns_of(env, lambda observations: search.run(observations, False)[0].argmax(1)))


if __name__ == "__main__":
    main("mcts-catch.yaml", actor=actor, learner=learner, evaluator=evaluator)
