#!/usr/bin/python3
"""DQN in one process, in the style of single-file scripts: CartPole-v1 to a mean return of 475.

  python3 single_process.py [SEED]

``replaybus.torch.ReplayBuffer`` takes the place of the buffer in the program's own memory: ``add`` and ``sample`` are the same. It sums
rewards over several steps, and with a seed the whole run is the same every time. A broker runs on threads of this process; give the
buffer a client of another broker, and other processes can add transitions. The rest of the program stays as it is.
"""
import argparse
import copy
import sys
import time

import numpy as np
import torch

from replaybus import envs
from replaybus.torch import ReplayBuffer

BATCH, DISCOUNT, N_STEP, TAU, GOAL = 64, 0.99, 10, 0.01, 475
STEPS, RANDOM_STEPS, EXPLORE_STEPS, EVALUATE_EVERY = 100_000, 1000, 10_000, 2500


def network() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(4, 64), torch.nn.Tanh(), torch.nn.Linear(64, 64), torch.nn.Tanh(), torch.nn.Linear(64, 2))


def greedy(q: torch.nn.Module, observation: np.ndarray) -> np.ndarray:
    with torch.no_grad():
        return q(torch.from_numpy(observation)).argmax(1).numpy()


def evaluate(q: torch.nn.Module, episodes: int = 50) -> float:
    """The mean return of the greedy policy over so many episodes, all at the same time."""
    world = envs.make_vec("CartPole-v1", episodes)
    observation, _ = world.reset(seed=1_000_000)
    returns, running = np.zeros(episodes), np.ones(episodes, bool)
    while running.any():
        observation, reward, terminated, truncated, _ = world.step(greedy(q, observation))
        returns += reward * running
        running &= ~(terminated | truncated)
    return returns.mean()


def train(q: torch.nn.Module, target: torch.nn.Module, adam: torch.optim.Optimizer, data) -> None:
    """One step on a batch, with double Q-learning; the target network follows slowly."""
    with torch.no_grad():
        best = q(data.next_observations).argmax(1, keepdim=True)
        following = target(data.next_observations).gather(1, best)
        value = data.rewards + data.discounts * (1 - data.dones) * following
    loss = torch.nn.functional.mse_loss(q(data.observations).gather(1, data.actions), value) / 2
    adam.zero_grad()
    loss.backward()
    adam.step()
    with torch.no_grad():
        torch._foreach_mul_(list(target.parameters()), 1 - TAU)
        torch._foreach_add_(list(target.parameters()), list(q.parameters()), alpha=TAU)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("seed", metavar="SEED", type=int, nargs="?", default=1, help="seed of everything random; 1 if left out")
    seed, begun = parser.parse_args().seed, time.monotonic()
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    rng, world, q = np.random.default_rng(seed), envs.make("CartPole-v1"), network()
    target, adam = copy.deepcopy(q), torch.optim.Adam(q.parameters(), lr=1e-3)
    buffer = ReplayBuffer(50_000, world.observation_space, world.action_space, n_step=N_STEP, gamma=DISCOUNT, seed=seed)
    observation, _ = world.reset(seed=seed)
    for step in range(1, STEPS + 1):
        explore = step < RANDOM_STEPS or rng.random() < max(0.2, 1 - step / EXPLORE_STEPS)
        action = rng.integers(2) if explore else greedy(q, observation[None])[0]
        following, reward, terminated, truncated, _ = world.step(action)
        buffer.add(observation, following, action, reward, terminated, truncated=truncated)
        observation = world.reset()[0] if terminated or truncated else following
        if step >= RANDOM_STEPS and step % 2 == 0:
            train(q, target, adam, buffer.sample(BATCH))
        if step % EVALUATE_EVERY == 0:
            value = evaluate(q)
            print(f"{step} steps, {time.monotonic() - begun:.0f} s: mean return {value:.1f}", flush=True)
            if value >= GOAL:
                buffer.close()
                return 0
    return 1


if __name__ == "__main__":
    sys.exit(main())
