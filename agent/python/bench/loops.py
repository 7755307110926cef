"""The loops that are measured: writing and sampling, in Python and (loop.c) in C, against one broker."""
import ctypes
import os
import time
from typing import Any, Callable

import numpy as np

import replaybus

STEPS, ENVIRONMENTS, BATCH = 16_384, 64, 256
OPTIONS = {"chunk_length": 64, "keep_alive": 128}
FRAME = (84, 84, 4)
TABLES = {"write": 50_000, "small": 20_000, "frames": 1024}


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
        """CPU ns a step of append and item."""
        return self._checked(self.lib.bench_write(self.writer, b"write", ctypes.c_uint32(STEPS)))

    def sample(self, table: str, batches: int) -> float:
        """Items/s of wall time."""
        sampler = ctypes.c_void_p(self.lib.bench_sampler(self.client, table.encode(), ctypes.c_uint32(BATCH)))
        self._checked(self.lib.bench_sample(sampler, ctypes.c_uint32(batches // 10 + 1)))
        wall = self._checked(self.lib.bench_sample(sampler, ctypes.c_uint32(batches)))
        self.lib.rp_sampler_destroy(ctypes.byref(sampler))
        return BATCH * 1e9 / wall

    @staticmethod
    def _checked(value: float) -> float:
        if value < 0:
            raise RuntimeError(f"the C loop failed with status {-value:g}")
        return value


def write_loop(client: replaybus.Client, make: Callable[[np.ndarray], Any]) -> Callable[[], float]:
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


def flat(observation: np.ndarray) -> dict:
    """Three small columns."""
    return {"observation": observation, "action": ACTION, "reward": REWARD}


def nested(observation: np.ndarray) -> dict:
    return {"observation": {"position": observation}, "outcome": {"action": ACTION, "reward": REWARD}}


def numbers(observation: np.ndarray) -> dict:
    """The same with Python's numbers."""
    return {"observation": observation, "action": 1, "reward": 1.0}


def many_loop(append: Callable[..., int], flush: Callable[..., None], n: int) -> Callable[[], float]:
    """CPU ns a step of calls that append n steps each."""
    steps = {"observation": np.zeros((n, 4), "float32"), "action": np.ones(n, "int32"), "reward": np.ones(n, "float32")}
    item = replaybus.Last(2, "write")

    def run() -> float:
        append(steps, item=item)
        start = time.thread_time_ns()
        for _ in range(STEPS // n):
            append(steps, item=item)
        took = time.thread_time_ns() - start
        flush(timeout=30)
        return took / (STEPS // n * n)

    return run


def fill(client: replaybus.Client) -> None:
    """Fills the tables that are sampled. Frames are random bytes, which no codec makes smaller."""
    with client.writer() as writer:
        writer.append_block({"x": np.zeros((TABLES["small"], 100), "float32")}, item=replaybus.Last(1, "small"))
    frames = np.random.default_rng(1).integers(0, 256, (128, *FRAME), "uint8")
    with client.writer() as writer:
        for _ in range(TABLES["frames"] // len(frames)):
            writer.append_block({"frame": frames}, item=replaybus.Last(1, "frames"))


def _rate(next_batch: Callable[[], Any], batches: int) -> float:
    for _ in range(batches // 10 + 1):
        next_batch()
    start = time.monotonic_ns()
    for _ in range(batches):
        next_batch()
    return BATCH * batches * 1e9 / (time.monotonic_ns() - start)


def sample(client: replaybus.Client, table: str, batches: int) -> float:
    """Items/s of batches as arrays: the fields and four arrays of values per item."""
    with client.sampler(table, BATCH) as sampler:

        def next_batch() -> None:
            batch = next(sampler)
            batch.data, batch.key, batch.priority, batch.probability, batch.weight

        return _rate(next_batch, batches)


def sample_tensors(client: replaybus.Client, table: str, batches: int) -> float:
    """Items/s of batches as tensors."""
    from replaybus.torch import Sampler

    sampler = Sampler(client, table, BATCH)

    def next_batch() -> None:
        batch = next(sampler)
        batch.data, batch.key, batch.weight

    try:
        return _rate(next_batch, batches)
    finally:
        sampler.close()
