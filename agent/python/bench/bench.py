#!/usr/bin/env python3
"""Measures the package next to the C library, in one process and against one broker.

  ./dev build --preset release
  PYTHONPATH=build/release/lib/python agent/python/bench/bench.py [--rounds N] [--json]

Writing: CPU ns of the caller's thread for a step of three small columns with an item over two steps. Sampling: items/s of wall time,
batches of 256 items of 400 bytes. Each round runs every case once, in turn; the figures are medians over the rounds. Exit status 1:
a goal is missed (with --check).
"""
from __future__ import annotations

import argparse
import ctypes
import json
import os
import statistics
import sys
import time
from typing import Callable

import numpy as np

import replaybus

STEPS, BATCHES, ENVIRONMENTS = 16_384, 400, 64
OPTIONS = {"chunk_length": 64, "keep_alive": 128}


class CLoops:
    """The loops of loop.c."""

    def __init__(self, endpoint: str) -> None:
        folder = os.path.dirname(os.path.realpath(replaybus._core.__file__))
        self.lib = lib = ctypes.CDLL(os.path.join(folder, "..", "..", "replay_python_bench.so"))
        lib.rp_log_set(None, None, 4)  # the connections that the end of the broker breaks are no news
        for name in ("bench_connect", "bench_writer", "bench_sampler"):
            getattr(lib, name).restype = ctypes.c_void_p
        lib.bench_write.restype = lib.bench_sample.restype = ctypes.c_double
        self.client = ctypes.c_void_p(lib.bench_connect(endpoint.encode()))
        self.writer = ctypes.c_void_p(lib.bench_writer(self.client))

    def write(self) -> float:
        return self._checked(self.lib.bench_write(self.writer, b"write", ctypes.c_uint32(STEPS)))

    def sample(self) -> tuple[float, float]:
        sampler = ctypes.c_void_p(self.lib.bench_sampler(self.client, b"read", ctypes.c_uint32(256)))
        cpu = ctypes.c_double()
        self.lib.bench_sample(sampler, ctypes.c_uint32(20), ctypes.byref(cpu))
        wall = self._checked(self.lib.bench_sample(sampler, ctypes.c_uint32(BATCHES), ctypes.byref(cpu)))
        self.lib.rp_sampler_destroy(ctypes.byref(sampler))
        return wall, cpu.value

    @staticmethod
    def _checked(value: float) -> float:
        if value < 0:
            raise RuntimeError(f"the C loop failed with status {-value:g}")
        return value


# ---- writing


def write_loop(client: replaybus.Client, make: Callable) -> Callable[[], float]:
    """CPU ns a step of append and item with the steps that make(observation) gives."""
    observation = np.zeros(4, "float32")
    writer = client.writer(make(observation), **OPTIONS)

    def run() -> float:
        append, item, step = writer.append, writer.item, make(observation)
        append(step)
        start = time.thread_time_ns()
        for _ in range(STEPS):
            append(step)
            item("write", 1.0, 2)
        took = time.thread_time_ns() - start
        writer.flush(timeout=30)
        return took / STEPS

    return run


ACTION, REWARD = np.int32(1), np.float32(1)


def flat(observation):
    return {"observation": observation, "action": ACTION, "reward": REWARD}


def nested(observation):
    return {"observation": {"position": observation}, "outcome": {"action": ACTION, "reward": REWARD}}


def scalars(observation):
    return {"observation": observation, "action": 1, "reward": 1.0}


def rows(n: int) -> dict:
    return {"observation": np.zeros((n, 4), "float32"), "action": np.ones(n, "int32"), "reward": np.ones(n, "float32")}


def many_loop(append: Callable, flush: Callable, n: int) -> Callable[[], float]:
    """CPU ns a step of calls that append n steps each."""
    steps, item = rows(n), replaybus.Last(2, "write")

    def run() -> float:
        append(steps, item=item)
        start = time.thread_time_ns()
        for _ in range(STEPS // n):
            append(steps, item=item)
        took = time.thread_time_ns() - start
        flush(timeout=30)
        return took / (STEPS // n * n)

    return run


# ---- sampling


def fill(client: replaybus.Client) -> None:
    with client.writer() as writer:
        writer.append_block({"x": np.zeros((20_000, 100), "float32")}, item=replaybus.Last(1, "read"))


def sample_loop(client: replaybus.Client) -> tuple[float, float]:
    """Wall ns and the caller's CPU ns of a batch: the field and four arrays of values per item."""
    with client.sampler("read", 256) as sampler:
        for _ in range(20):
            next(sampler)
        start, cpu = time.monotonic_ns(), time.thread_time_ns()
        for _ in range(BATCHES):
            batch = next(sampler)
            batch.data, batch.key, batch.priority, batch.probability, batch.weight
        return (time.monotonic_ns() - start) / BATCHES, (time.thread_time_ns() - cpu) / BATCHES


# ---- all of it


def measure(rounds: int) -> dict[str, float]:
    tables = [replaybus.Table("write", max_size=50_000), replaybus.Table("read", max_size=20_000)]
    with replaybus.Server(tables) as server, server.client() as client:
        fill(client)
        c, block = CLoops(server.endpoint), client.writer(**OPTIONS)
        vector = client.vector_writer(ENVIRONMENTS, **OPTIONS)
        cases = {"c_write": c.write, "append": write_loop(client, flat), "append_nested": write_loop(client, nested),
                 "append_scalars": write_loop(client, scalars), "block": many_loop(block.append_block, block.flush, 64),
                 "vector": many_loop(vector.append, vector.flush, ENVIRONMENTS), "c_sample": c.sample,
                 "sample": lambda: sample_loop(client)}
        results: dict[str, list] = {name: [] for name in cases}
        for _ in range(rounds):
            for name, run in cases.items():
                results[name].append(run())
        block.close(), vector.close()
    out = {}
    for name, values in results.items():
        if isinstance(values[0], tuple):
            out[f"{name}_items_per_s"] = 256e9 / statistics.median(wall for wall, _ in values)
            out[f"{name}_batch_cpu_us"] = statistics.median(cpu for _, cpu in values) / 1e3
        else:
            out[f"{name}_ns"] = statistics.median(values)
    return out


def report(figures: dict[str, float]) -> list[tuple[str, str, str, bool]]:
    """Rows: what, figure, goal, reached."""
    f, c = figures, figures["c_write_ns"]
    ratio = f["sample_items_per_s"] / f["c_sample_items_per_s"]
    return [
        ("C loop", f"{c:.0f} ns", "", True),
        ("append + item", f"{f['append_ns']:.0f} ns", "<= 450", f["append_ns"] <= 450),
        ("append + item, nested dict", f"{f['append_nested_ns']:.0f} ns", "<= 600", f["append_nested_ns"] <= 600),
        ("append + item, Python numbers", f"{f['append_scalars_ns']:.0f} ns", "", True),
        ("append_block(64)", f"{f['block_ns']:.0f} ns, {f['block_ns'] / c:.2f} of C", "<= 1.2", f["block_ns"] <= 1.2 * c),
        ("64 environments", f"{f['vector_ns']:.0f} ns, {f['vector_ns'] / c:.2f} of C", "<= 1.7", f["vector_ns"] <= 1.7 * c),
        ("sampling in C", f"{f['c_sample_items_per_s'] / 1e6:.2f} M items/s, {f['c_sample_batch_cpu_us']:.0f} us a batch", "", True),
        ("sampling", f"{f['sample_items_per_s'] / 1e6:.2f} M items/s, {f['sample_batch_cpu_us']:.0f} us a batch, {ratio:.2f} of C",
         ">= 0.9", ratio >= 0.9),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument("--check", action="store_true", help="exit status 1 if a goal is missed")
    arguments = parser.parse_args()
    replaybus.log_level("off")
    figures = measure(arguments.rounds)
    if arguments.json:
        print(json.dumps(figures))
    table = report(figures)
    if not arguments.json:
        for what, figure, goal, reached in table:
            print(f"{what:30} {figure:42} {goal:8} {'' if not goal else 'reached' if reached else 'missed'}")
    return 1 if arguments.check and not all(row[3] for row in table) else 0


if __name__ == "__main__":
    sys.exit(main())
