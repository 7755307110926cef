"""Feeding a learner on the broker's host: batches of 512 stacks of 5 frames, prioritized, with priorities written back.

References in the same run: rows gathered out of one array and copied without a broker, and the learner with the same batch again and
again. On the CPU the same code runs, with small batches: its figures mean little.
"""
import argparse
import collections
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Callable, Iterator, Optional

import numpy as np

import replaybus

from .report import Row

STACK, FRAME, ACTIONS = 5, (84, 84), 6
BLOCK = 500   # steps that are written at once
THREADS = 4   # of the reference
LATE = 4      # batches and updates that the program is ahead of the device


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--feed", action="store_true", help="measure feeding a learner with frames, and nothing else")
    parser.add_argument("--device", default="cpu", help="with --feed: where batches go and the learner runs (default cpu; or cuda)")
    parser.add_argument("--batch", type=int, default=512, help="with --feed: items of a batch (default 512)")
    parser.add_argument("--items", type=int, default=20_000, help="with --feed: items of the table (default 20000)")
    parser.add_argument("--chunks", type=int, nargs="+", default=[1, 10], metavar="STEPS", help="with --feed: steps of a chunk (default 1 10)")
    parser.add_argument("--shards", type=int, default=1, help="with --feed: shards of the broker (default 1)")
    parser.add_argument("--seconds", type=float, default=3, help="with --feed: length of a measurement (default 3)")


def _frames(n: int) -> np.ndarray:
    return np.random.default_rng(5).integers(0, 256, (n, *FRAME), "uint8")


def _fill(client: replaybus.Client, items: int, chunk: int) -> None:
    block = {"frame": _frames(BLOCK), "action": np.arange(BLOCK, dtype="int32") % ACTIONS, "reward": np.ones(BLOCK, "float32")}
    with client.writer(chunk_length=chunk, keep_alive=chunk + STACK) as writer:
        for _ in range(-(-items // BLOCK)):
            writer.append_block(block, item=replaybus.Last(STACK, "replay"))
        writer.flush(timeout=600)


class _Device:
    """The device of a run. What is queued there counts when it is done."""

    def __init__(self, name: str) -> None:
        self.name, self.cuda, self.marks = name, name.startswith("cuda"), collections.deque()

    def finish(self) -> None:
        if self.cuda:
            import torch

            torch.cuda.synchronize(self.name)

    def mark(self) -> None:
        """Lets the program be LATE calls of this ahead of the device, and no more."""
        if self.cuda:
            import torch

            self.marks.append(torch.cuda.current_stream(self.name).record_event())
            if len(self.marks) > LATE:
                self.marks.popleft().synchronize()

    def rate(self, work: Callable[[], Any], seconds: float) -> float:
        """Calls a second, after a few that do not count."""
        for _ in range(5):
            work()
        self.finish()
        n, start = 0, time.monotonic()
        while time.monotonic() - start < seconds:
            work()
            n += 1
        self.finish()
        return n / (time.monotonic() - start)


class _Gather:
    """Rows of random stacks, out of one array into buffers that are used in turn, and from there to the device."""

    def __init__(self, items: int, batch: int, device: _Device) -> None:
        self.frames = np.concatenate([_frames(BLOCK)] * -(-items // BLOCK)).reshape(-1, int(np.prod(FRAME)))
        self.batch, self.device, self.turn = batch, device, 0
        self.rng, self.pool = np.random.default_rng(6), ThreadPoolExecutor(THREADS)
        shape = (batch * STACK, self.frames.shape[1])
        if device.cuda:
            import torch

            self.tensors = [torch.empty(shape, dtype=torch.uint8, pin_memory=True) for _ in range(3)]
            self.buffers, self.events = [tensor.numpy() for tensor in self.tensors], [torch.cuda.Event() for _ in range(3)]
            self.stream, self.torch = torch.cuda.Stream(device.name), torch
        else:
            self.buffers = [np.empty(shape, "uint8") for _ in range(3)]

    def gather(self) -> None:
        self.turn = (self.turn + 1) % len(self.buffers)
        first = self.rng.integers(0, len(self.frames) - STACK, self.batch)
        rows, out = (first[:, None] + np.arange(STACK)).ravel(), self.buffers[self.turn]
        part = len(rows) // THREADS
        list(self.pool.map(lambda i: np.take(self.frames, rows[i * part:(i + 1) * part], axis=0, out=out[i * part:(i + 1) * part], mode="clip"),
                           range(THREADS)))

    def copied(self) -> None:
        """Fills the next buffer, and queues its copy."""
        self.events[(self.turn + 1) % 3].synchronize()  # it has been read
        self.gather()
        with self.torch.cuda.stream(self.stream):
            self.tensors[self.turn].to(self.device.name, non_blocking=True)
            self.events[self.turn].record(self.stream)


class _Learner:
    """Ape-X's: Nature CNN, double Q, importance weights. On CUDA, one update in bf16 is a graph over fixed tensors."""

    def __init__(self, batch: int, device: _Device) -> None:
        import torch
        from torch import nn

        self.torch, self.device, name = torch, device, device.name

        def net() -> nn.Module:
            body = nn.Sequential(nn.Conv2d(4, 32, 8, 4), nn.ReLU(), nn.Conv2d(32, 64, 4, 2), nn.ReLU(), nn.Conv2d(64, 64, 3, 1), nn.ReLU(),
                                 nn.Flatten(), nn.Linear(3136, 512), nn.ReLU(), nn.Linear(512, ACTIONS))
            return body.to(name, memory_format=torch.channels_last)

        self.net, self.target = net(), net()
        self.optimizer = torch.optim.Adam(self.net.parameters(), 1e-4, capturable=device.cuda)
        self.frame = torch.zeros((batch, STACK, *FRAME), dtype=torch.uint8, device=name)
        self.action = torch.zeros((batch, STACK), dtype=torch.int64, device=name)
        self.reward = torch.zeros((batch, STACK), device=name)
        self.weight = torch.ones(batch, device=name)
        self.priority = torch.zeros(batch, device=name)
        self.update = self._update
        if device.cuda:
            self._capture()

    def _capture(self) -> None:
        torch = self.torch
        torch.cuda.synchronize()
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(3):
                self._update()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._update()
        self.update = graph.replay

    def _update(self) -> None:
        torch = self.torch
        with torch.autocast("cuda" if self.device.cuda else "cpu", torch.bfloat16, enabled=self.device.cuda):
            kind = torch.bfloat16 if self.device.cuda else torch.float32
            seen, next_seen = (self.frame[:, i:i + 4].to(kind).div_(255).to(memory_format=torch.channels_last) for i in (0, 1))
            with torch.no_grad():
                best = self.net(next_seen).argmax(1, keepdim=True)
                goal = self.reward[:, 3] + 0.99 * self.target(next_seen).gather(1, best).squeeze(1).float()
            error = goal - self.net(seen).gather(1, self.action[:, 3:4]).squeeze(1).float()
        loss = (self.weight * torch.nn.functional.huber_loss(error, torch.zeros_like(error), reduction="none")).mean()
        self.optimizer.zero_grad(set_to_none=False)
        loss.backward()
        self.optimizer.step()
        self.priority.copy_(error.detach().abs() + 1e-3)

    def step(self, batch: Any) -> None:
        data = batch.data
        self.frame.copy_(data["frame"])
        self.action.copy_(data["action"])
        self.reward.copy_(data["reward"])
        self.weight.copy_(batch.weight)
        self.update()

    def again(self) -> None:
        """An update with the batch of the last one."""
        self.update()
        self.device.mark()


class _Nowhere:
    """A device that takes no time: what is left is the work of the interpreter."""

    memory = None

    def copy(self, block: Any) -> Any:
        from replaybus.torch import device

        return device.Copy(block, device.DONE)

    def use(self, copy: Any) -> None:
        pass


def _interpreter_us(client: replaybus.Client, batch: int) -> float:
    """Microseconds of CPU that the consumer's thread spends on a batch, without waiting and copying."""
    from replaybus.torch import Batch, device

    with client.sampler("replay", batch, beta=0.4, in_flight=2) as arrays:
        again = arrays.next(60)
        feed = device.Feed(lambda wait: Batch(again), _Nowhere())
        best = float("inf")
        for _ in range(20):
            start = time.thread_time()
            for _ in range(20):
                taken = feed.next()
                taken.data, taken.weight, taken.key
            best = min(best, (time.thread_time() - start) / 20)
    return best * 1e6


class _Case:
    """The figures of one table."""

    def __init__(self, client: replaybus.Client, arguments: argparse.Namespace, device: _Device) -> None:
        self.client, self.arguments, self.device = client, arguments, device

    def sampler(self, name: Optional[str]) -> Any:
        from replaybus.torch import Sampler

        return Sampler(self.client, "replay", self.arguments.batch, beta=0.4, device=name)

    def fed(self, name: Optional[str]) -> tuple[float, dict]:
        """Batches a second, and the sampler's counts."""
        with self.sampler(name) as sampler:
            return self.device.rate(lambda: next(sampler).data["frame"], self.arguments.seconds), sampler.stats()

    def learn(self, learner: _Learner) -> tuple[float, float]:
        """Updates a second with data from the broker, and the share of time that the learner waited for it."""
        from replaybus.torch import Updater

        with self.sampler(self.device.name) as sampler, Updater(self.client, "replay") as updater:

            def update() -> None:
                batch = next(sampler)
                learner.step(batch)
                updater.add(batch.key, learner.priority)

            rate = self.device.rate(update, self.arguments.seconds)
            return rate, sampler.stats()["wait_share"]

    def rows(self, name: str, best: float, learner: _Learner, alone: float) -> Iterator[Row]:
        """All of them. best, alone: the references."""
        device, arguments = self.device, self.arguments
        goal = 700 if device.cuda and arguments.batch == 512 and arguments.shards == 1 else None
        if device.cuda:
            yield Row(f"{name}: feed to the CPU", "batch/s", [self.fed(None)[0]])
        rate, stats = self.fed(device.name)
        way = "shared memory" if stats["shared_bytes"] else "socket"
        yield Row(f"{name}: feed to {device.name} by {way}", "batch/s", [rate], goal)
        yield Row(f"{name}: decoding a batch", "ms", [stats["decode_ns"] / stats["batches"] / 1e6])
        yield Row(f"{name}: of the reference", "ratio", [rate / best], 0.55)
        rate, waited = self.learn(learner)
        yield Row(f"{name}: with the learner", "batch/s", [rate])
        yield Row(f"{name}: of the learner alone", "ratio", [rate / alone], 0.9)
        yield Row(f"{name}: the learner waits", "of time", [waited], 0.05, True)


def rows(arguments: argparse.Namespace) -> list[Row]:
    """All figures. A batch is one of rows; a quick run has small ones."""
    if arguments.quick:
        arguments.batch, arguments.items, arguments.seconds = min(arguments.batch, 8), min(arguments.items, BLOCK), 0.2
    items, batch, device, seconds = arguments.items, arguments.batch, _Device(arguments.device), arguments.seconds
    gather, size = _Gather(items, batch, device), f"{batch} x {STACK} frames"
    out = [Row(f"{size}: gathered by {THREADS} threads, no broker", "batch/s", [device.rate(gather.gather, seconds)])]
    if device.cuda:
        out.append(Row(f"{size}: gathered and copied, no broker", "batch/s", [device.rate(gather.copied, seconds)]))
    best = out[-1].values[0]
    del gather
    learner = _Learner(batch, device)
    alone = device.rate(learner.again, seconds)
    out.append(Row("the learner alone", "batch/s", [alone]))
    table = replaybus.Table("replay", sampler={"kind": "prioritized", "exponent": 0.6}, max_size=10 * items)
    memory = f"{items * 84 * 84 * 2 // 2**20 + 1024}MiB"
    for chunk in arguments.chunks:
        with replaybus.Server([table], config={"memory_limit": memory}, shards=arguments.shards) as server, server.client() as client:
            _fill(client, items, chunk)
            if chunk == arguments.chunks[0]:
                out.append(Row("interpreter's work for a batch", "us CPU", [_interpreter_us(client, batch)], 150, True))
            out += _Case(client, arguments, device).rows(f"chunks of {chunk}", best, learner, alone)
    return out
