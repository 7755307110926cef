"""Batches on a device before they are asked for.

A thread takes batches and copies them to the device on a stream of its own. The consumer's stream waits for the copy by an event,
so that the consumer never waits for the device.
"""
from __future__ import annotations

import queue
import threading
import time
import weakref
from typing import Any, Callable, Iterable, Iterator, Optional

import torch

from ..errors import Cancelled, DeadlineExceeded
from .batch import Batch, Device

_SLICE_S = 0.1  # between two looks at whether the consumer is gone
_LOOK_S = 1.0   # between two questions what the table waits for
_END_S = 2.0    # how long the end waits for the thread


class _Cuda:
    """Copies to a CUDA device. start: on the feeding thread; finish: on the consumer's.

    A copy out of ordinary memory returns when the driver has read it, so the batch may be freed at once. Copying into pinned memory
    first was measured: 2.2 GB/s instead of 3.8 on an H200, for the driver stages faster than a copy of our own.
    """

    def __init__(self, device: torch.device, wait: bool) -> None:
        self.device, self.wait = device, wait
        with torch.cuda.device(device):
            self.stream = torch.cuda.Stream()

    def start(self, batch: Batch) -> tuple:
        with torch.cuda.device(self.device), torch.cuda.stream(self.stream):
            moved = batch.map(lambda tensor: tensor.to(self.device, non_blocking=True))
            copied = torch.cuda.Event()
            copied.record(self.stream)
        return moved, copied

    def finish(self, started: tuple) -> Batch:
        moved, copied = started
        current = torch.cuda.current_stream(self.device)
        current.wait_event(copied)
        if self.wait:
            copied.synchronize()

        def used_here(tensor: torch.Tensor) -> torch.Tensor:
            tensor.record_stream(current)  # its memory is not given to another batch before this stream is done with it
            return tensor

        return moved.map(used_here)


class _Copy:
    """Copies to any other device."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def start(self, batch: Batch) -> Batch:
        return batch.to(self.device)

    def finish(self, started: Batch) -> Batch:
        return started


def _feed(take: Callable[[float], Batch], mover: Any, ready: "queue.Queue", stop: threading.Event, waits: list) -> None:
    """Runs on the thread until the batches end, fail, or nobody wants them. waits[0]: why the last batch is late."""
    def put(value: tuple) -> None:
        while not stop.is_set():
            try:
                return ready.put(value, timeout=_SLICE_S)
            except queue.Full:
                pass

    while not stop.is_set():
        try:
            batch = take(_LOOK_S)
            if stop.is_set():
                return
            started = mover.start(batch)
        except DeadlineExceeded as late:
            waits[0] = str(late)
        except BaseException as error:  # the consumer raises it: the end of the stream, too
            return put((None, error))
        else:
            waits[0] = ""
            put((started, None))


def _end(stop: threading.Event, thread: threading.Thread) -> None:
    """Also at the exit of the program, which a thread within torch would abort."""
    stop.set()
    if thread is not threading.current_thread():
        thread.join(_END_S)


class Feed:
    """Batches on a device. ``take(timeout)`` gives a batch, or raises DeadlineExceeded, or ends by another error.

    ``close`` ends the thread; who waits in ``take`` must be woken before, or holds it up for a moment.
    """

    def __init__(self, take: Callable[[float], Batch], device: Device, ahead: int = 2, wait: bool = False) -> None:
        device = torch.device(device)
        self._mover = _Cuda(device, wait) if device.type == "cuda" else _Copy(device)
        self._ready: "queue.Queue" = queue.Queue(max(1, ahead))
        self._stop, self._waits, self._error = threading.Event(), [""], None
        self._thread = threading.Thread(target=_feed, args=(take, self._mover, self._ready, self._stop, self._waits), daemon=True,
                                        name="replaybus-prefetch")
        self._thread.start()
        self.close = weakref.finalize(self, _end, self._stop, self._thread)

    def next(self, timeout: Optional[float] = None) -> Batch:
        deadline = None if timeout is None else time.monotonic() + timeout
        while self._error is None:
            left = _SLICE_S if deadline is None else min(_SLICE_S, deadline - time.monotonic())
            try:
                started, self._error = self._ready.get(timeout=max(0, left))
            except queue.Empty:
                self._check(deadline)
            else:
                if self._error is None:
                    return self._mover.finish(started)
        raise self._error

    def _check(self, deadline: Optional[float]) -> None:
        """Ends a wait for which there is no reason any more."""
        if self._stop.is_set() or not self._thread.is_alive() and self._ready.empty():
            raise Cancelled("this sampler was closed, or belongs to the parent of this process")
        if deadline is not None and time.monotonic() >= deadline:
            raise DeadlineExceeded(self._waits[0] or "no batch was ready in time")


def prefetch(batches: Iterable[Batch], device: Device, ahead: int = 2) -> Iterator[Batch]:
    """The batches on a device, ``ahead`` of them copied before they are asked for. batches: also those of a DataLoader.

    >>> list(prefetch([], "cpu"))
    []
    """
    source = iter(batches)
    feed = Feed(lambda timeout: next(source), device, ahead)
    try:
        while True:
            try:
                batch = feed.next()
            except StopIteration:
                return
            yield batch
    finally:
        feed.close()
