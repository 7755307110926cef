"""Feeding a learner on the broker's host: batches of 512 stacks of 5 frames, prioritized, with priorities written back.

References in the same run: rows gathered out of one array without a broker, and the learner with the same batch again and again.
"""
from __future__ import annotations

import argparse
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Callable, Iterator

import numpy as np

import replaybus

from .report import Row

BATCH, STACK, FRAME, ACTIONS = 512, 5, (84, 84), 6
BLOCK = 2000  # steps that are written at once
THREADS = 4   # of the reference


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this case."""
    parser.add_argument("--feed", action="store_true", help="measure feeding a learner with frames, and nothing else")
    parser.add_argument("--device", default="cpu", help="with --feed: where batches go (default cpu; cuda: with a learner)")
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


def _rate(work: Callable[[], Any], seconds: float) -> float:
    """Calls a second, after a few that do not count."""
    for _ in range(5):
        work()
    n, start = 0, time.monotonic()
    while (took := time.monotonic() - start) < seconds:
        work()
        n += 1
    return n / took


# ---- without a broker


class _Gather:
    """Rows of random stacks, out of one array into buffers that are used in turn."""

    def __init__(self, items: int, pinned: bool) -> None:
        self.frames = np.concatenate([_frames(BLOCK)] * -(-items // BLOCK)).reshape(-1, int(np.prod(FRAME)))
        shape = (BATCH * STACK, self.frames.shape[1])
        if pinned:
            import torch

            self.tensors = [torch.empty(shape, dtype=torch.uint8, pin_memory=True) for _ in range(3)]
            self.buffers = [tensor.numpy() for tensor in self.tensors]
        else:
            self.buffers = [np.empty(shape, "uint8") for _ in range(3)]
        self.rng, self.pool, self.turn = np.random.default_rng(6), ThreadPoolExecutor(THREADS), 0

    def __call__(self) -> int:
        """The number of the buffer that has the rows."""
        self.turn = (self.turn + 1) % len(self.buffers)
        first = self.rng.integers(0, len(self.frames) - STACK, BATCH)
        rows, out = (first[:, None] + np.arange(STACK)).ravel(), self.buffers[self.turn]
        part = len(rows) // THREADS
        list(self.pool.map(lambda i: np.take(self.frames, rows[i * part:(i + 1) * part], axis=0, out=out[i * part:(i + 1) * part], mode="clip"),
                           range(THREADS)))
        return self.turn


def _gather_rates(items: int, seconds: float, device: str) -> dict[str, float]:
    gather = _Gather(items, device != "cpu")
    rates = {"gather": _rate(gather, seconds)}
    if device != "cpu":
        import torch

        events = [torch.cuda.Event() for _ in gather.tensors]
        stream = torch.cuda.Stream()

        def copied() -> None:
            events[(gather.turn + 1) % 3].synchronize()  # the buffer that is written next has been read
            turn = gather()
            with torch.cuda.stream(stream):
                gather.tensors[turn].to(device, non_blocking=True)
                events[turn].record(stream)

        rates["gather and copy"] = _rate(copied, seconds)
        torch.cuda.synchronize()
    return rates


# ---- the learner


class _Learner:
    """Ape-X's: Nature CNN, double Q, importance weights, bf16; one update is a CUDA graph over fixed tensors."""

    def __init__(self, device: str) -> None:
        import torch
        from torch import nn

        self.torch = torch

        def net() -> nn.Module:
            body = nn.Sequential(nn.Conv2d(4, 32, 8, 4), nn.ReLU(), nn.Conv2d(32, 64, 4, 2), nn.ReLU(), nn.Conv2d(64, 64, 3, 1), nn.ReLU(),
                                 nn.Flatten(), nn.Linear(3136, 512), nn.ReLU(), nn.Linear(512, ACTIONS))
            return body.to(device, memory_format=torch.channels_last)

        self.net, self.target = net(), net()
        self.optimizer = torch.optim.Adam(self.net.parameters(), 1e-4, capturable=True)
        self.frame = torch.zeros((BATCH, STACK, *FRAME), dtype=torch.uint8, device=device)
        self.action = torch.zeros((BATCH, STACK), dtype=torch.int64, device=device)
        self.reward = torch.zeros((BATCH, STACK), device=device)
        self.weight = torch.ones(BATCH, device=device)
        self.priority = torch.zeros(BATCH, device=device)
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for _ in range(3):
                self._update()
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self._update()

    def _update(self) -> None:
        torch = self.torch
        with torch.autocast("cuda", torch.bfloat16):
            seen, next_seen = (self.frame[:, i:i + 4].to(torch.bfloat16).div_(255).to(memory_format=torch.channels_last) for i in (0, 1))
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
        """An update with a batch on the device."""
        data = batch.data
        self.frame.copy_(data["frame"])
        self.action.copy_(data["action"])
        self.reward.copy_(data["reward"])
        self.weight.copy_(batch.weight)
        self.graph.replay()

    def again(self) -> None:
        """An update with the batch of the last one; as many are under way as with a sampler."""
        self.graph.replay()
        self.priority.cpu()


class _Priorities:
    """Writes priorities back some updates later: the learner does not wait for the device."""

    LATE = 8

    def __init__(self, client: replaybus.Client, torch: Any) -> None:
        self.updater, self.torch, self.pending = client.updater("replay"), torch, []

    def add(self, keys: Any, priority: Any) -> None:
        """The priorities of a batch, on the device."""
        host = self.torch.empty(priority.shape, pin_memory=True)
        host.copy_(priority, non_blocking=True)
        event = self.torch.cuda.Event()
        event.record()
        self.pending.append((keys, host, event))
        if len(self.pending) > self.LATE:
            keys, host, event = self.pending.pop(0)
            event.synchronize()
            self.updater.add(keys.numpy(), host.numpy())


def _learn(client: replaybus.Client, sampler: Any, learner: _Learner, seconds: float) -> tuple[float, float]:
    """Updates a second with data from the broker, and the share of time that the learner waited for it."""
    priorities, waited = _Priorities(client, learner.torch), 0.0

    def update() -> None:
        nonlocal waited
        start = time.monotonic()
        batch = next(sampler)
        waited += time.monotonic() - start
        learner.step(batch)
        priorities.add(batch.key, learner.priority)

    start = time.monotonic()
    rate = _rate(update, seconds)
    return rate, waited / (time.monotonic() - start)


# ---- the case


def _sampled(client: replaybus.Client, arguments: argparse.Namespace) -> Iterator[tuple[str, float]]:
    from replaybus.torch import Sampler

    with Sampler(client, "replay", BATCH, beta=0.4) as sampler:
        yield "on the CPU", _rate(lambda: next(sampler).data["frame"], arguments.seconds)
    if arguments.device == "cpu":
        return
    with Sampler(client, "replay", BATCH, beta=0.4, device=arguments.device) as sampler:
        yield f"to {arguments.device}", _rate(lambda: next(sampler).data["frame"], arguments.seconds)


def rows(arguments: argparse.Namespace) -> list[Row]:
    """All figures, in batches a second."""
    cuda = arguments.device.startswith("cuda")
    seconds = 0.3 if arguments.quick else arguments.seconds
    arguments.seconds = seconds
    out = [Row(f"512 x 5 frames: {what}, no broker, {THREADS} threads", "batch/s", [rate])
           for what, rate in _gather_rates(arguments.items, seconds, arguments.device).items()]
    best = out[-1].values[0]
    learner = _Learner(arguments.device) if cuda else None
    if learner:
        out.append(Row("the learner alone", "batch/s", [_rate(learner.again, seconds)]))
        alone = out[-1].values[0]
    table = replaybus.Table("replay", sampler={"kind": "prioritized", "exponent": 0.6}, max_size=10 * arguments.items)
    for chunk in arguments.chunks:
        memory = f"{arguments.items * 84 * 84 * 2 // 2**20 + 1024}MiB"
        with replaybus.Server([table], config={"memory_limit": memory}, shards=arguments.shards) as server, server.client() as client:
            _fill(client, arguments.items, chunk)
            for what, rate in _sampled(client, arguments):
                out.append(Row(f"chunks of {chunk}: {what}", "batch/s", [rate]))
            out.append(Row(f"chunks of {chunk}: of what the machine can do", "ratio", [out[-1].values[0] / best], 0.55))
            if learner:
                from replaybus.torch import Sampler

                with Sampler(client, "replay", BATCH, beta=0.4, device=arguments.device) as sampler:
                    rate, waited = _learn(client, sampler, learner, seconds)
                out += [Row(f"chunks of {chunk}: with the learner", "batch/s", [rate]),
                        Row(f"chunks of {chunk}: of the learner alone", "ratio", [rate / alone], 0.9),
                        Row(f"chunks of {chunk}: the learner waits", "of time", [waited], 0.05, True)]
    return out
