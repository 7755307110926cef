#!/usr/bin/env python3
"""Prioritized Q-learning in one process: a broker on threads, 16 environments in one call, a learner with priorities.

The environment is a corridor: a step to the right costs a little, and the end of the corridor pays. The program ends with exit
status 0 when the greedy policy walks straight to the end.

  python3 agent/python/examples/q_learning.py
"""
import sys

import numpy as np

import replaybus

LENGTH, ENVIRONMENTS, BATCH = 12, 16, 64
DISCOUNT, RATE = 0.97, 0.5


class Corridors:
    """Many corridors side by side. Action 1 goes right, 0 goes left; position LENGTH - 1 ends the episode with reward 1."""

    def __init__(self, n: int) -> None:
        self.position = np.zeros(n, "int32")
        self.steps = np.zeros(n, "int32")

    def step(self, action: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Returns reward, terminated and truncated."""
        self.position = np.clip(self.position + 2 * action - 1, 0, LENGTH - 1).astype("int32")
        self.steps += 1
        terminated = self.position == LENGTH - 1
        return np.where(terminated, 1.0, -0.01).astype("float32"), terminated, (self.steps >= 100) & ~terminated

    def reset(self, where: np.ndarray) -> None:
        self.position[where] = 0
        self.steps[where] = 0


def act(q: np.ndarray, position: np.ndarray, rng: np.random.Generator, epsilon: float) -> np.ndarray:
    greedy = q[position].argmax(axis=1)
    return np.where(rng.random(len(position)) < epsilon, rng.integers(0, 2, len(position)), greedy).astype("int32")


def learn(q: np.ndarray, batch: replaybus.Batch) -> np.ndarray:
    """One update from a batch of transitions; returns the absolute errors, the new priorities."""
    step = batch.data
    bootstrap = np.where(step["terminated"], 0, q[step["next_position"]].max(axis=1))
    error = step["reward"] + DISCOUNT * bootstrap - q[step["position"], step["action"]]
    np.add.at(q, (step["position"], step["action"]), RATE * batch.weight * error / 4)
    return np.abs(error)


def greedy_steps(q: np.ndarray) -> int:
    """The steps that the greedy policy needs to the end of the corridor; 100 if it does not get there."""
    world = Corridors(1)
    for step in range(1, 101):
        if world.step(q[world.position].argmax(axis=1))[1][0]:
            return step
    return 100


def main() -> int:
    rng, q, world = np.random.default_rng(0), np.zeros((LENGTH, 2)), Corridors(ENVIRONMENTS)
    table = replaybus.Table("replay", sampler={"kind": "prioritized", "exponent": 0.6}, max_size=5000,
                            limiter={"kind": "min_size", "min_size": BATCH})
    with replaybus.Server([table], mode="thread") as server, server.client() as client:
        sampler, updater = client.sampler("replay", BATCH, beta=0.4, in_flight=2), client.updater("replay")
        with client.vector_writer(ENVIRONMENTS) as writer:
            for step in range(1, 2001):
                position, action = world.position.copy(), act(q, world.position, rng, epsilon=0.3)
                reward, terminated, truncated = world.step(action)
                writer.append({"position": position, "action": action, "reward": reward, "terminated": terminated,
                               "next_position": world.position}, done=terminated | truncated,
                              item=replaybus.Last(1, "replay", priority=1.0))
                world.reset(terminated | truncated)
                if step * ENVIRONMENTS < 2 * BATCH:
                    continue
                batch = squeeze(next(sampler))
                updater.add(batch.key, learn(q, batch) + 1e-3)
                if step % 200 == 0 and greedy_steps(q) == LENGTH - 1:
                    break
        print(f"{step * ENVIRONMENTS} steps, {client.info('replay')['tables'][0]['updates']} updates of priorities: "
              f"the greedy policy needs {greedy_steps(q)} steps, the shortest way has {LENGTH - 1}")
        updater.close(), sampler.close()
    return 0 if greedy_steps(q) == LENGTH - 1 else 1


def squeeze(batch: replaybus.Batch) -> replaybus.Batch:
    """Items of one step: drops the dimension that counts steps."""
    batch.data = {name: array[:, 0] for name, array in batch.data.items()}
    return batch


if __name__ == "__main__":
    sys.exit(main())
