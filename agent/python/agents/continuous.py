"""What the agents of continuous actions share: a policy, a critic, noise, and an actor that makes transitions."""
import collections

import numpy as np
import torch
from torch import nn

from common import Actions, activation, flat, last_observations, mlp, pull

IN_FLIGHT = 16  # items that a table has not taken yet: so far is an actor ahead of the learner


class Policy(nn.Module):
    """Gives actions between -1 and 1; with two heads, draws them from a distribution."""

    def __init__(self, env, config, heads=1):
        super().__init__()
        self.actions = Actions(env)
        if self.actions.discrete:
            raise ValueError(f"{config['environment.name']} has discrete actions: this agent takes continuous ones")
        self.inputs, self.hidden = int(np.prod(env.single_observation_space.shape)), config["agent.hidden"] or [64, 64]
        self.net = mlp([self.inputs, *self.hidden, heads * self.actions.size], activation(config), 0.1)

    def forward(self, observations):
        return self.net(observations)[:, :self.actions.size].tanh()

    def best(self, observations):
        return self.actions.to_env(self(flat(observations)).numpy())


class Critic(nn.Module):
    """Gives the value of an action, or the logits of its distribution. Actions are clipped, as the environment does it."""

    def __init__(self, policy, config, outputs):
        super().__init__()
        self.net = mlp([policy.inputs + policy.actions.size, *policy.hidden, outputs], activation(config))

    def forward(self, observations, actions):
        return self.net(torch.cat([observations, actions.clamp(-1, 1)], -1))


class Transitions:
    """Makes transitions over n steps of a vector of environments, fewer at the end of an episode, with the fields of C's transition adder
    (docs/GUIDE.md). They go through one writer; ``item`` says into which table."""

    def __init__(self, writer, item, n, discount):
        self._writer, self._item, self._n, self._discount = writer, item, n, discount
        self._steps, self._held = collections.deque(maxlen=n), 0  # observations, actions and rewards; how many of them, by environment

    def add(self, observations, actions, rewards, following, terminated, ended):
        """Takes a step of each environment; following: the observations after it, also where it ended an episode."""
        self._steps.append((observations, actions, rewards))
        self._held = np.minimum(self._held + np.ones(len(ended), int), self._n)
        rows = [self._rows(k, np.flatnonzero(self._held >= k if k == self._n else ended & (self._held >= k)), following, terminated)
                for k in range(len(self._steps), 0, -1)]
        self._held[ended] = 0
        rows = {name: np.concatenate([part[name] for part in rows]) for name in rows[0]}
        if len(rows["reward"]):
            self._writer.append_block(rows, self._item)

    def _rows(self, k, which, following, terminated):
        """The transitions over the last k steps of these environments."""
        recent = list(self._steps)[-k:]
        reward = sum(self._discount**i * step[2][which] for i, step in enumerate(recent))
        return dict(observation=recent[0][0][which], action=recent[0][1][which], reward=reward.astype("float32"),
                    discount=(self._discount**(k - 1) * ~terminated[which]).astype("float32"), next_observation=following[which])


class Noise:
    """Standard normal noise for exploration, of which each value keeps the share `memory` of the one before: where steps are short, the
    independent pushes of white noise cancel each other."""

    def __init__(self, shape, memory):
        self._value, self._memory = torch.zeros(shape), memory

    def __call__(self):
        self._value = self._memory * self._value + (1 - self._memory**2)**0.5 * torch.randn_like(self._value)
        return self._value


def act(run, env, policy, item, memory, explore, begin=lambda writer: None):
    """An actor: random actions at first (actors.random_steps), then explore(observations, noise). ``item`` says into which table transitions
    go; begin(writer) is called when the random actions end."""
    config, n, is_random = run.config, env.num_envs, True
    noise, writer = Noise((n, policy.actions.size), memory), run.client.writer(max_in_flight=IN_FLIGHT)
    adder = Transitions(writer, item, config["adder.n_step"], config["agent.discount"] or 0.99)
    observations, _ = env.reset()
    while run.claims(n):
        pull(run, policy=policy)
        if run.steps <= config["actors.random_steps"]:
            actions = 2 * torch.rand(n, policy.actions.size) - 1
        else:
            with torch.no_grad():
                actions = explore(flat(observations), noise()).clamp(-1, 1)
            if is_random:
                begin(writer)
                is_random = False
        actions = actions.numpy()
        following, rewards, terminated, truncated, info = env.step(policy.actions.to_env(actions))
        with run.waiting("credit"):
            adder.add(observations, actions, rewards, last_observations(following, info), terminated, terminated | truncated)
        run.took(rewards, terminated | truncated)
        observations = following
    writer.close()
