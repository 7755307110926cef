"""Actors in Python: CartPole from replaybus.envs, the C network and the C adders, one environment and many in one call."""
import json
import os
import resource
import subprocess
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Callable

import numpy as np

import replaybus
from replaybus import weights

from .report import Row

ENVIRONMENTS, STEPS = 64, 20_000
TABLE = "acting"
WHAT = {"acting_c": "actor of 1 CartPole in C, with its start", "acting_one": "actor of 1 CartPole", "acting_many": f"actor of {ENVIRONMENTS} CartPoles"}
GOALS = {"acting_c": None, "acting_one": 30, "acting_many": 100}  # thousand steps/s
PROGRAM = Path(replaybus.__file__).parents[3] / "replay-actor"  # of the build whose lib/python this is


def config() -> dict:
    """A run of DQN with the default network, 64 and 64 units, that follows no learner."""
    return {"environment": {"name": "CartPole-v1"}, "agent": {"algorithm": "dqn"}, "adder": {"table": TABLE, "n_step": 1},
            "actors": {"count": 1, "epsilon": 0.1}, "broker": {"tables": [replaybus.Table(TABLE, max_size=50_000)]}}


def c_program(endpoint: str) -> Callable[[], tuple[float, float]]:
    """The same of replay-actor, a process for each round."""
    shapes = [(4, 64), (64, 64), (64, 2)]
    tensors: dict = {}
    for layer, shape in enumerate(shapes):
        tensors[f"q/layer{layer}/weight"] = np.random.default_rng(layer).normal(size=shape).astype("float32") / 8
        tensors[f"q/layer{layer}/bias"] = np.zeros(shape[1], "float32")
    with replaybus.Client(endpoint) as client:
        client.params[weights.SLOT] = weights.encode({**tensors, weights.STEPS: np.array([1], "uint64")})
    taken = 0

    def run() -> tuple[float, float]:
        nonlocal taken
        with replaybus.Client(endpoint) as client:
            taken = client.counter("environment_steps").value + 5 * STEPS
        settings = {**config(), "stop": {"steps": taken}}
        before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        subprocess.run([PROGRAM, "-c", "/dev/stdin", "-e", endpoint, "--log-level", "off"], input=json.dumps(settings), text=True, check=True,
                       stdout=subprocess.DEVNULL)
        took, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        return 5 * STEPS / took, cpu / (5 * STEPS) * 1e6

    return run


def one_loop(endpoint: str, stack: ExitStack) -> Callable[[], tuple[float, float]]:
    """Steps/s of wall time, and CPU us of the loop's thread a step: act, step and observe, one by one."""
    from replaybus import envs
    env = envs.make("CartPole-v1")
    actor = stack.enter_context(replaybus.Actor(endpoint, config(), env=env, wait=False))
    observation, _ = env.reset(seed=1)
    actor.observe_first(observation)

    def run() -> tuple[float, float]:
        nonlocal observation
        act, step, observe = actor.act, env.step, actor.observe
        start, cpu = time.perf_counter(), time.thread_time()
        for _ in range(STEPS):
            observation, reward, terminated, truncated, _ = step(act(observation))
            observe(reward, terminated, truncated, observation)
            if terminated or truncated:
                observation, _ = env.reset()
                actor.observe_first(observation)
        return STEPS / (time.perf_counter() - start), (time.thread_time() - cpu) / STEPS * 1e6

    return run


def many_loop(endpoint: str, stack: ExitStack) -> Callable[[], tuple[float, float]]:
    """The same with many environments in each call."""
    from replaybus import envs
    env = envs.make_vec("CartPole-v1", ENVIRONMENTS, copy=False)
    actor = stack.enter_context(replaybus.Actor(endpoint, config(), env=env, wait=False, index=1))
    observations, _ = env.reset(seed=1)
    actor.observe_first(observations)

    def run() -> tuple[float, float]:
        nonlocal observations
        rounds = 5 * STEPS // ENVIRONMENTS
        act, step, observe = actor.act, env.step, actor.observe
        start, cpu = time.perf_counter(), time.thread_time()
        for _ in range(rounds):
            observations, rewards, terminated, truncated, info = step(act(observations))
            observe(rewards, terminated, truncated, observations, info)
        steps = rounds * ENVIRONMENTS
        return steps / (time.perf_counter() - start), (time.thread_time() - cpu) / steps * 1e6

    return run


def measure(rounds: int) -> dict[str, list[tuple[float, float]]]:
    """The figures of all rounds, the two loops in turn, against a broker of their own. Empty: the extension is not there."""
    try:
        with replaybus.Server(config()["broker"]["tables"]) as server, ExitStack() as stack:
            loops = {"acting_one": one_loop(server.endpoint, stack), "acting_many": many_loop(server.endpoint, stack)}
            if os.access(PROGRAM, os.X_OK):
                loops["acting_c"] = c_program(server.endpoint)
            figures: dict[str, list[tuple[float, float]]] = {name: [] for name in loops}
            for _ in range(rounds):
                for name, run in loops.items():
                    figures[name].append(run())
            return figures
    except ImportError:
        return {}


def rows(figures: dict[str, list[tuple[float, float]]]) -> list[Row]:
    out = []
    for name, what in WHAT.items():
        if name not in figures:
            out.append(Row(what, "k/s", missing="there is no replay-actor here" if figures else "built without OpenBLAS and MuJoCo"))
            continue
        out.append(Row(what, "k/s", [rate / 1e3 for rate, _ in figures[name]], GOALS[name]))
        out.append(Row(f"... CPU, {'all threads' if name == 'acting_c' else 'the thread of the loop'}", "us CPU", [cpu for _, cpu in figures[name]]))
    return out
