#!/usr/bin/python3
"""Soft actor-critic in PyTorch with an actor in another process: Pendulum-v1 to a mean return of -165.

  python3 torch_sac.py [SEED]

The program starts a broker and an actor. The actor steps eight environments in one call, writes transitions, and acts by the policy that
the learner publishes. The table's limiter keeps a ratio of samples to inserts, so that the result does not depend on who is faster.
"""
import argparse
import copy
import multiprocessing
import sys
import time

import numpy as np
import torch
from torch import nn

import replaybus
import replaybus.run
import replaybus.torch as rt
from replaybus import envs, weights

ENVIRONMENTS, BATCH, DISCOUNT, TAU, RATE, GOAL = 8, 128, 0.98, 0.01, 2e-3, -165
RANDOM_STEPS, LEARNER_STEPS, EVALUATE_EVERY = 1000, 20_000, 500
TABLE = replaybus.Table("replay", max_size=100_000, limiter={
    "kind": "sample_to_insert_ratio", "samples_per_insert": BATCH, "min_size": RANDOM_STEPS, "error_buffer": 50 * BATCH})


def make_policy() -> nn.Module:
    """Gives the mean and the log deviation of an action before tanh."""
    return nn.Sequential(nn.Linear(3, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))


def draw(policy: nn.Module, observation: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """A random action from -1 to 1, and its log probability."""
    mean, log_std = policy(observation).chunk(2, -1)
    log_std = log_std.clamp(-20, 2)
    noise = torch.randn_like(mean)
    u = mean + log_std.exp() * noise
    log_prob = -0.5 * noise.square() - log_std - 0.919 - 2 * (0.693 - u - nn.functional.softplus(-2 * u))
    return u.tanh(), log_prob


class Critics(nn.Module):
    """Two networks Q(s, a), computed together: their layers are one stack of matrices."""

    def __init__(self) -> None:
        super().__init__()
        layers = [[nn.Linear(*sizes) for sizes in ((4, 64), (64, 64), (64, 1))] for _ in range(2)]
        self.weights = nn.ParameterList(torch.stack([layer.weight.t() for layer in pair]).detach() for pair in zip(*layers))
        self.biases = nn.ParameterList(torch.stack([layer.bias[None] for layer in pair]).detach() for pair in zip(*layers))

    def forward(self, observation: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
        x = torch.cat([observation, action], 1).expand(2, -1, -1)
        for i, (weight, bias) in enumerate(zip(self.weights, self.biases)):
            x = torch.baddbmm(bias, x if i == 0 else x.relu(), weight)
        return x[:, :, 0]


def act(endpoint: str, seed: int) -> None:
    """The actor: runs until the broker or its parent is gone."""
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    client = replaybus.Client(endpoint)
    policy, slot = make_policy(), client.params.subscriber(weights.SLOT)
    world, rng = envs.make_vec("Pendulum-v1", ENVIRONMENTS), np.random.default_rng(seed)
    observation, _ = world.reset(seed=seed)
    with client.vector_writer(ENVIRONMENTS) as writer:
        for step in range(0, 1_000_000, ENVIRONMENTS):
            param = slot.take()
            if param is not None:
                rt.load(policy, weights.decode(param.data), "policy")
            with torch.no_grad():
                action = draw(policy, torch.from_numpy(observation))[0].numpy()
            if step < RANDOM_STEPS:
                action = rng.uniform(-1, 1, action.shape).astype("float32")
            following, reward, _, truncated, info = world.step(2 * action)
            writer.append({"observation": observation, "action": action, "reward": reward.astype("float32"),
                           "next_observation": info["final_obs"] if info else following},
                          done=truncated, item=replaybus.Last(1, "replay"))
            observation = following


def evaluate(policy: nn.Module, episodes: int = 100) -> float:
    world = envs.make_vec("Pendulum-v1", episodes)
    observation, _ = world.reset(seed=1_000_000)
    total = np.zeros(episodes)
    for _ in range(200):
        with torch.no_grad():
            action = policy(torch.from_numpy(observation))[:, :1].tanh().numpy()
        observation, reward, _, _, _ = world.step(2 * action)
        total += reward
    return total.mean()


def learn(run: replaybus.run.Learner) -> bool:
    policy, critics, log_alpha = make_policy(), Critics(), torch.zeros((), requires_grad=True)
    target, begun = copy.deepcopy(critics), time.monotonic()
    policy_adam = torch.optim.Adam([*policy.parameters(), log_alpha], lr=RATE)
    critic_adam, publisher = torch.optim.Adam(critics.parameters(), lr=RATE), run.client.params.publisher(weights.SLOT)
    for batch in run.batches(rt.Sampler(run.client, run.table, BATCH)):
        observation, action, reward, following = (batch.data[name][:, 0] for name in (
            "observation", "action", "reward", "next_observation"))
        alpha = log_alpha.exp().detach()
        with torch.no_grad():
            next_action, log_prob = draw(policy, following)
            value = reward / 10 + DISCOUNT * (target(following, next_action).min(0).values - alpha * log_prob[:, 0])
        descend(critic_adam, (critics(observation, action) - value).square().mean())
        new_action, log_prob = draw(policy, observation)
        policy_loss = (alpha * log_prob[:, 0] - critics(observation, new_action).min(0).values).mean()
        descend(policy_adam, policy_loss - log_alpha * (log_prob.detach().mean() - 1))  # alpha moves the entropy towards -1
        with torch.no_grad():
            torch._foreach_mul_(list(target.parameters()), 1 - TAU)
            torch._foreach_add_(list(target.parameters()), list(critics.parameters()), alpha=TAU)
        run.step()
        if run.steps % 10 == 0:
            publisher.put(weights.encode(rt.tensors_of(policy, "policy")))
        if run.steps % EVALUATE_EVERY == 0:
            result = evaluate(policy)
            print(f"{run.steps} learner steps, {time.monotonic() - begun:.0f} s: mean return {result:.1f}, waited "
                  f"{100 * run.wait_share:.1f}% of the time", flush=True)
            if result >= GOAL or run.steps >= LEARNER_STEPS:
                return result >= GOAL
    return False


def descend(adam: torch.optim.Optimizer, loss: torch.Tensor) -> None:
    adam.zero_grad()
    loss.backward()
    adam.step()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("seed", metavar="SEED", type=int, nargs="?", default=1, help="seed of everything random; 1 if left out")
    SEED = parser.parse_args().seed
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    with replaybus.Server([TABLE]) as server:
        actor = multiprocessing.get_context("spawn").Process(target=act, args=(server.endpoint, SEED), daemon=True)
        actor.start()
        with replaybus.run.Learner(endpoint=server.endpoint, table="replay") as learner:
            reached = learn(learner)
        actor.terminate()
        actor.join()
    sys.exit(0 if reached else 1)
