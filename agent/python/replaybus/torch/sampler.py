"""Sampling tensors: an iterator, and a dataset for torch's DataLoader."""
import os
from typing import Any, Iterator, Optional, Sequence, Union

import torch
import torch.utils.data

from ..client import Client
from ..closing import Closing
from ..errors import DeadlineExceeded, EndOfStream, InvalidArgument
from ..sampler import Sampler as ArraySampler
from ..sampler import Source
from .batch import Batch, Device
from .device import Feed, feeding
from .ranks import Ranks

_LOOK_S = 1.0  # between two looks at whether the process that wanted the batches is still there


class Sampler(Closing):
    """An iterator over batches of tensors, requested and decoded ahead.

    On the CPU, tensors share the library's memory. With a CUDA ``device``, batches are gathered into pinned memory and copied on a
    stream of their own, ``prefetch`` of them ahead. Other arguments are those of ``Client.sampler``. In place of a client and a table,
    ``client`` may be the list of sources of a ``replaybus.Sampler``. With ``ack`` nothing is got ahead.

    ``rank`` and ``world``: this is one of ``world`` ranks of data-parallel training, which take a global batch together. Each takes
    ``batch_size`` items, or ``tokens_per_batch`` steps, and ``max_samples``, as its share. Then they exchange items (groups stay whole)
    until their steps are even, to about 1 % if lengths allow it: an item longer than the mean share is alone, and the other ranks share
    the rest. All ranks call ``next`` equally often, and end together; towards the end, a rank may have few items, or none. Nothing is got
    ahead. FailedPrecondition names a rank that is gone; what it had under lease (``ack``) returns. ``ack`` is for what a rank took: call it
    after the step that all have made. The constructor returns when all ranks are there; ranks of one table meet one world at a time.
    """

    def __init__(self, client: Union[Client, Sequence[Source]], table: Optional[str] = None, batch_size: Optional[int] = None, *,
                 device: Optional[Device] = None, prefetch: int = 2, in_flight: int = 4, beta: float = 0.0, distinct: bool = False,
                 timeout: Optional[float] = None,
                 max_samples: int = 0, flexible: bool = False, whole: bool = False, squeeze: bool = False,
                 tokens_per_batch: Optional[int] = None, ack: bool = False, lease: float = 30.0, rank: int = 0, world: int = 1) -> None:
        if not 0 <= rank < world:
            raise InvalidArgument(f"rank {rank} of {world}: ranks count from 0, and world says how many there are")
        if isinstance(client, Client) != isinstance(table, str):
            raise TypeError("a sampler takes a client and a table, or a list of sources: [(client, table, share), ...]")
        sources = [(client, table)] if isinstance(client, Client) else client
        on = None if device is None or torch.device(device).type == "cpu" else feeding(device)
        arrays = ArraySampler(sources, batch_size, in_flight=in_flight if world == 1 else 0, beta=beta, distinct=distinct, timeout=timeout,
                              max_samples=max_samples, flexible=flexible, whole=whole, memory=on and on.memory, squeeze=squeeze,
                              tokens_per_batch=tokens_per_batch, ack=ack, lease=lease)
        self._arrays, self._ranks = arrays, None
        if world > 1:
            try:
                self._ranks = Ranks(arrays, sources[0][0], rank, world, beta)
            except BaseException:
                arrays.close()
                raise
        self._feed = on and Feed(self._take, on, 0 if ack or world > 1 else max(1, prefetch))

    def _take(self, timeout: Optional[float]) -> Batch:
        return Batch(self._arrays.next(timeout)) if self._ranks is None else self._ranks.next(timeout)

    def next(self, timeout: Optional[float] = None) -> Batch:
        """The next batch within a deadline. DeadlineExceeded says what the table waits for; call again."""
        return self._take(timeout) if self._feed is None else self._feed.next(timeout)

    def __iter__(self) -> "Sampler":
        return self

    def __next__(self) -> Batch:
        try:
            return self.next()
        except EndOfStream:
            raise StopIteration from None

    def stats(self) -> dict[str, Any]:
        """Counts of what the sampler has done. ``wait_share``: of the last 10 to 20 s, the share that was spent waiting for batches."""
        return self._arrays.stats()

    def __repr__(self) -> str:
        state = "closed" if self._arrays.closed else f"waiting {self.stats()['wait_share']:.1%} of the time"
        return f"<replaybus.torch.Sampler: {', '.join(map(repr, self._arrays.tables))}, {state}>"

    def stop(self) -> None:
        """Requests nothing more. The iteration ends after the batches that were picked already."""
        self._arrays.stop()

    def close(self) -> None:
        """Ends the sampler, and drops batches that were got ahead. A call that waits ends with Cancelled."""
        self._arrays.close()
        if self._ranks is not None:
            self._ranks.close()
        if self._feed is not None:
            self._feed.close()


class Dataset(torch.utils.data.IterableDataset):
    """Batches for ``DataLoader(dataset, batch_size=None, num_workers=n)``.

    Each worker has its own connection and its own share of ``max_samples``. ``client`` may be an address. The iteration ends after
    ``max_samples`` items, or when nothing could be sampled for ``timeout`` seconds. ``device`` is for a loader without workers; with
    workers, give ``pin_memory=True`` to the DataLoader and use ``replaybus.torch.prefetch``.
    Further arguments are those of ``Sampler``.
    """

    def __init__(self, client: Union[Client, str], table: str, batch_size: Optional[int] = None, *, max_samples: int = 0,
                 timeout: Optional[float] = None, device: Optional[Device] = None, **options: Any) -> None:
        super().__init__()
        self.client = Client(client) if isinstance(client, str) else client
        self.table, self.batch_size, self.max_samples, self.timeout = table, batch_size, max_samples, timeout
        self._device, self._options = device, options

    def _share(self, worker: int, workers: int) -> int:
        """The items of one worker. 0: without an end."""
        share = self.max_samples // workers + (worker < self.max_samples % workers)
        return share if share or not self.max_samples else -1

    def __iter__(self) -> Iterator[Batch]:
        info = torch.utils.data.get_worker_info()
        if info is None:
            yield from self._batches(self.max_samples, self._device)
            return
        if self._device is not None:
            raise InvalidArgument("a worker of a DataLoader makes batches in ordinary memory: give pin_memory=True to the "
                                  "DataLoader, and its batches to replaybus.torch.prefetch(loader, device)")
        if self._options.get("world", 1) > 1:
            raise InvalidArgument("a rank has one sampler, and a DataLoader with workers has several: use num_workers=0")
        share = self._share(info.id, info.num_workers)
        if share >= 0:
            yield from self._batches(share, None)

    def _batches(self, max_samples: int, device: Optional[Device]) -> Iterator[Batch]:
        parent = os.getppid()
        with Sampler(self.client, self.table, self.batch_size, max_samples=max_samples, timeout=self.timeout, device=device,
                     **self._options) as sampler:
            while True:
                try:
                    yield sampler.next(_LOOK_S)
                except DeadlineExceeded:
                    if os.getppid() != parent:
                        return  # the program that used this worker was killed
                except EndOfStream:
                    return
