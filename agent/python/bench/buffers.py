"""The replay buffer next to arrays of numpy in the caller's own thread, as most programs have them.

CPU time: of the calling thread, and of all threads of the process. The two buffers take turns. Before a sample, the program does
something else, as a learner does: a caller that would have to wait helps to make the batch.
"""
import time
from typing import Any, Callable, NamedTuple

import numpy as np

import replaybus
from replaybus.spaces import Box, Discrete

from .report import Row


class Rings:
    """The reference: an array per column with a row per step and environment, filled by assignment and sampled by random indices. What
    was picked is copied once more, as it is where tensors are made of it."""

    def __init__(self, size: int, shape: tuple[int, ...], dtype: str) -> None:
        self.columns = {name: np.zeros((size, 1, *more), kind) for name, more, kind in (
            ("observations", shape, dtype), ("next_observations", shape, dtype), ("actions", (1,), "int64"), ("rewards", (), "float32"),
            ("dones", (), "float32"), ("timeouts", (), "float32"))}
        self.size, self.at, self.full = size, 0, False

    def add(self, obs: Any, next_obs: Any, action: Any, reward: Any, done: Any, infos: Any) -> None:
        timeouts = [info.get("TimeLimit.truncated", False) for info in infos]
        for name, values in (("observations", obs), ("next_observations", next_obs), ("actions", action), ("rewards", reward),
                             ("dones", done), ("timeouts", timeouts)):
            column = self.columns[name]
            column[self.at] = np.array(values).reshape(column.shape[1:])
        self.at = (self.at + 1) % self.size
        self.full = self.full or self.at == 0

    def sample(self, n: int) -> tuple:
        rows, envs = np.random.randint(0, self.size if self.full else self.at, n), np.random.randint(0, 1, n)
        part = {name: column[rows, envs] for name, column in self.columns.items()}
        dones = (part["dones"] * (1 - part["timeouts"])).reshape(-1, 1)
        found = part["observations"], part["actions"], part["next_observations"], dones, part["rewards"].reshape(-1, 1)
        return tuple(map(np.array, found))


def _nothing() -> None:
    pass


def _rest(ours: replaybus.ReplayBuffer) -> None:
    for _ in range(1000):
        if all(sampler.stats()["ready"] for sampler in ours._samplers.values()):
            return
        time.sleep(1e-4)


class Cost(NamedTuple):
    """CPU microseconds of a call."""

    caller: float
    all: float


def _cost(call: Callable[[int], Any], n: int, settle: Callable[[], Any], rest: Callable[[], Any]) -> Cost:
    for i in range(n // 10 + 1):
        call(i)
    settle()
    caller, thread, everything = 0, time.thread_time_ns(), time.process_time_ns()
    for i in range(n):
        rest()
        start = time.thread_time_ns()
        call(i)
        caller += time.thread_time_ns() - start
    settle()
    others = time.process_time_ns() - everything - (time.thread_time_ns() - thread)
    return Cost(caller / n / 1e3, (caller + others) / n / 1e3)


def _case(rounds: int, shape: tuple[int, ...], dtype: str, size: int, batch: int, samples: int) -> dict[str, list[Cost]]:
    """Costs of add and sample of both buffers, round by round."""
    values = np.random.default_rng(1).integers(0, 256, (64, *shape)).astype(dtype)
    action, reward, done, infos = np.array([1]), np.array([1.0]), np.array([False]), [{}]
    out: dict[str, list[Cost]] = {}
    with replaybus.ReplayBuffer(size, Box(0, 255, shape, dtype), Discrete(2)) as ours:
        for _ in range(rounds):
            for name, buffer, settle, rest in (("ours", ours, ours.flush, lambda: _rest(ours)),
                                               ("numpy", Rings(size, shape, dtype), _nothing, _nothing)):
                cost = _cost(lambda i: buffer.add(values[i % 64], values[(i + 1) % 64], action, reward, done, infos), size, settle,
                             _nothing)
                out.setdefault(f"add {name}", []).append(cost)
                out.setdefault(f"sample {name}", []).append(_cost(lambda _: buffer.sample(batch), samples, _nothing, rest))
    return out


def rows(rounds: int, quick: bool) -> list[Row]:
    out = []
    for what, shape, dtype, size, batch, goals in (
            ("4 floats", (4,), "float32", 20_000, 256, {"add, all threads": 1.2, "sample, caller": 0.4}),
            ("frames 4x84x84", (4, 84, 84), "uint8", 2_000, 32,
             {"add, all threads": 1.2, "sample, caller": 0.25, "sample, all threads": 1.0})):
        costs = _case(rounds, shape, dtype, size // 20 if quick else size, batch, 20 if quick else 500)
        for call in ("add", "sample"):
            for threads in ("caller", "all"):
                label = f"{call}, {'caller' if threads == 'caller' else 'all threads'}"
                ours, theirs = ([getattr(cost, threads) for cost in costs[f"{call} {name}"]] for name in ("ours", "numpy"))
                full = f"{what}: {call}{f'({batch})' if call == 'sample' else ''}, {label.partition(', ')[2]}"
                out.append(Row(full, "us CPU", ours))
                out.append(Row(f"{full} / numpy", "ratio", [a / b for a, b in zip(ours, theirs)], goals.get(label), True))
    return out
