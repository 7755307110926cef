"""Batches on a device before they are asked for, and priorities back from it.

A batch is one block of memory. It goes to the device by one copy on a stream of its own, and its tensors are views of the copy. The
consumer's thread queues these copies: with each batch that it takes, those of the next ones. A thread of its own would compete with
the consumer for the interpreter, and would have nothing to wait for: the library gets batches ahead on its own threads.
"""
import collections
import contextlib
import os
import warnings
import weakref
from typing import Any, Callable, Iterable, Iterator, NamedTuple, Optional

import torch

from .. import _core
from ..errors import Cancelled, DeadlineExceeded
from .batch import Batch, Device


class Copy(NamedTuple):
    """A block on a device, when the copy is done."""

    block: torch.Tensor
    done: Any  # an event: query(), synchronize()
    maker: Any = None  # the stream that the memory belongs to


class Pinned(_core.Pool):
    """Memory of batches that a device reads by itself. The library adds blocks on its own threads; each is pinned when it is first used."""

    def __new__(cls, device: Device = "cuda") -> "Pinned":
        return super().__new__(cls, ())

    def __init__(self, device: Device = "cuda") -> None:
        self._device = device
        self._known: set[int] = set()
        self._pinned: list[int] = []
        self._pid, self._runtime = os.getpid(), torch.cuda.cudart()

    def pin(self, address: int) -> None:
        """Pins the block at an address, and others that are new. Memory that cannot be pinned is copied as well, but slower."""
        if address not in self._known:
            new = [block for block in self.blocks() if block[0] not in self._known]
            codes = [int(self._runtime.cudaHostRegister(*block, 0)) for block in new]
            self._known.update(block[0] for block in new)
            self._pinned += [block[0] for block, code in zip(new, codes) if not code]
            failed = [code for code in codes if code]
            if failed:
                with contextlib.suppress(RuntimeError, AssertionError):
                    torch.ones(1, device=self._device)  # takes CUDA's last error, which the consumer's next work would raise
                warnings.warn(f"{len(failed)} blocks of batches could not be pinned (cudaHostRegister: error {failed[0]}): copies to the "
                              "device are slower. Look at the limit of locked memory (ulimit -l)", RuntimeWarning)

    def __del__(self) -> None:
        for address in self._pinned:
            if os.getpid() == self._pid:
                self._runtime.cudaHostUnregister(address)


class Cuda:
    """Copies to a CUDA device. Nothing here waits for the device."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.memory = device, Pinned(device)
        self.stream = torch.cuda.Stream(device)

    def copy(self, block: torch.Tensor) -> Copy:
        """Queues a copy. The block must stay as it is until the copy is done."""
        self.memory.pin(block.data_ptr())
        consumer = torch.cuda.current_stream(self.device)
        out = torch.empty(block.shape, dtype=block.dtype, device=self.device)
        self.stream.wait_stream(consumer)  # it may still use this memory, which was freed by then
        with torch.cuda.stream(self.stream):
            out.copy_(block, non_blocking=True)
        return Copy(out, self.stream.record_event(torch.cuda.Event(blocking=True)), consumer)

    def use(self, copy: Copy) -> None:
        """Lets what the consumer queues from now on wait for the copy."""
        consumer = torch.cuda.current_stream(self.device)
        consumer.wait_event(copy.done)
        if consumer != copy.maker:
            copy.block.record_stream(consumer)  # the memory is not given to another batch before this stream is done with it


class _Done:
    """The event of what is done at once."""

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        pass


DONE = _Done()


class Other:
    """Copies to any other device, which are done at once."""

    memory = None

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def copy(self, block: torch.Tensor) -> Copy:
        return Copy(block.to(self.device), DONE)

    def use(self, copy: Copy) -> None:
        pass


def to_host(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
    """A copy in the memory of the CPU, and the event after which it is there. Does not wait for the device.

    The copy is queued on the consumer's stream, whose next work may overwrite the tensor.
    """
    tensor = tensor.detach()
    if not tensor.is_cuda:
        return tensor, DONE
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    host.copy_(tensor, non_blocking=True)
    return host, torch.cuda.current_stream(tensor.device).record_event(torch.cuda.Event(blocking=True))


def _drained(entries: "collections.deque") -> Iterator[Any]:
    """Takes all entries, also while another thread adds or takes some."""
    with contextlib.suppress(IndexError):
        while True:
            yield entries.popleft()


def _end(pid: int, device: Any, started: "collections.deque", held: "collections.deque") -> None:
    """Gives up copies under way: their memory is free when they are done."""
    if os.getpid() != pid:
        return  # a child has no use of its parent's device
    for _, copy in _drained(started):
        device.use(copy)
    for _, copy in _drained(held):
        copy.done.synchronize()


class Feed:
    """Batches on a device, ``ahead`` of them copied before they are asked for.

    ``take(timeout)`` gives a batch, raises DeadlineExceeded if there is none yet, or another error. ``close`` gives up copies under way,
    also while another thread waits in ``next``.
    """

    def __init__(self, take: Callable[[Optional[float]], Batch], device: Any, ahead: int = 2) -> None:
        self._take, self._device, self._ahead = take, device, ahead
        self._started: "collections.deque[tuple[Batch, Copy]]" = collections.deque()  # on the device
        self._held: "collections.deque[tuple[Batch, Copy]]" = collections.deque()  # on the host, until the copy is done
        self._error: Optional[Exception] = None
        self._taken: Optional[Batch] = None  # not copied yet
        self._ended = (os.getpid(), device, self._started, self._held)
        self.close = weakref.finalize(self, _end, *self._ended)

    def next(self, timeout: Optional[float] = None) -> Batch:
        """The next batch. An error of a later one waits until the batches before it are taken."""
        while self.close.alive and len(self._started) <= self._ahead and self._error is None:
            try:
                if self._taken is None:
                    self._taken = self._take(0.0 if self._started else timeout)
                self._start(self._taken)
            except Exception as error:
                if self._started and isinstance(error, DeadlineExceeded):
                    break
                self._error = error
        try:
            batch, copy = self._started.popleft()
        except IndexError:
            error, self._error = self._error, None
            raise error or Cancelled("the batches were given up: their feed was closed") from None
        self._device.use(copy)
        return batch

    def _start(self, batch: Batch) -> None:
        copy = self._device.copy(batch.block)
        self._held.append((batch, copy))
        self._started.append((batch.on(copy.block), copy))
        self._taken = None  # until here an error of the device leaves it for the next call
        with contextlib.suppress(IndexError):  # another thread has closed the feed
            while len(self._held) > self._ahead + 2 or self._held[0][1].done.query():
                first = self._held.popleft()  # keeps the memory until the copy is done
                first[1].done.synchronize()
        if not self.close.alive:
            _end(*self._ended)


def feeding(device: Device) -> Any:
    """What copies to a device."""
    device = torch.device(device)
    return Cuda(device) if device.type == "cuda" else Other(device)


def prefetch(batches: Iterable[Batch], device: Device, ahead: int = 2) -> Iterator[Batch]:
    """The batches on a device, ``ahead`` of them copied before they are asked for. batches: also those of a DataLoader.

    >>> list(prefetch([], "cpu"))
    []
    """
    source = iter(batches)
    feed = Feed(lambda timeout: next(source), feeding(device), max(1, ahead))
    try:
        while True:
            try:
                batch = feed.next()
            except StopIteration:
                return
            yield batch
    finally:
        feed.close()
