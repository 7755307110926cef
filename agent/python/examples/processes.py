#!/usr/bin/env python3
"""Actors and a learner in processes of their own: a client is handed over by pickle, weights travel through a slot.

The task is a linear regression: actors measure y = w * x with noise, the learner fits w and publishes it, and the actors attach the
version of the weights that they used. The program ends with exit status 0 when the fit is good.

  python3 agent/python/examples/processes.py
"""
import multiprocessing
import sys

import numpy as np

import replaybus

ACTORS, STEPS, BATCH = 2, 2000, 100
TRUE = np.array([0.5, -1.5, 2.0])


def actor(client: replaybus.Client, seed: int) -> None:
    """Writes measurements, and follows the learner's weights without waiting for them."""
    rng = np.random.default_rng(seed)
    with client.params.subscriber("weights") as subscriber, client.writer() as writer:
        for _ in range(STEPS):
            x = rng.normal(size=3)
            writer.append({"x": x, "y": float(TRUE @ x + 0.1 * rng.normal())})
            newer = subscriber.take()
            if newer is not None:
                writer.set_policy(newer.version)
            writer.item("measurements")
        client.counter("steps").add(STEPS)


def learner(client: replaybus.Client) -> tuple[np.ndarray, int]:
    """Reads every measurement once and publishes the weights after each batch."""
    weights, used = np.zeros(3), 0
    with client.params.publisher("weights") as publisher:
        for batch in client.sampler("measurements", BATCH, max_samples=ACTORS * STEPS):
            x, y = batch.data["x"][:, 0], batch.data["y"][:, 0]
            weights += 0.5 * x.T @ (y - x @ weights) / len(batch)
            publisher.put(weights)
            used = max(used, int(batch.policy.max()))
    return weights, used


def main() -> int:
    with replaybus.Server([replaybus.Table.queue("measurements", 500)]) as server, server.client() as client:
        context = multiprocessing.get_context("spawn")
        actors = [context.Process(target=actor, args=(client, seed)) for seed in range(ACTORS)]
        for process in actors:
            process.start()
        weights, used = learner(client)
        for process in actors:
            process.join()
        error = float(np.abs(weights - TRUE).max())
        print(f"{client.counter('steps').value} steps; weights {weights.round(2)}, error {error:.3f}; "
              f"the actors used versions up to {used} of {client.params['weights'].version}")
    return 0 if error < 0.1 else 1


if __name__ == "__main__":
    sys.exit(main())
