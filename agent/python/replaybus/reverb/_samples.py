"""Batches of the broker as Reverb's samples."""
from typing import Any, Iterator, NamedTuple, Optional

import numpy as np

from .. import nest
from ..client import Client
from ..sampler import Batch
from . import _codec, _structure
from .replay_sample import ReplaySample, SampleInfo


class Item(NamedTuple):
    """A sampled item and its fields in order."""

    info: SampleInfo
    names: tuple
    fields: list

    def timesteps(self) -> int:
        """The number of steps, which is the first dimension of all fields."""
        counts = {len(field) if field.ndim else None for field in self.fields}
        if len(counts) != 1 or None in counts:
            raise ValueError(f"the fields of item {self.info.key} differ in their steps, so that it cannot be split into "
                             "timesteps: sample it with emit_timesteps=False, or with TrajectoryDataset")
        return counts.pop()

    def sample(self, node: Optional[nest.Node]) -> ReplaySample:
        """The whole item: a list of fields, or a structure with them."""
        return ReplaySample(self.info, self._packed(node, list(self.fields)))

    def steps(self, node: Optional[nest.Node]) -> list[ReplaySample]:
        """A sample for each timestep."""
        rows = [[field[step, ...] for field in self.fields] for step in range(self.timesteps())]
        return [ReplaySample(self.info, self._packed(node, row)) for row in rows]

    def _packed(self, node: Optional[nest.Node], values: list) -> Any:
        if node is None:
            return values
        if len(values) != len(_structure.paths(node)):
            raise ValueError(f"item {self.info.key} has {len(values)} fields, and the signature of its table has "
                             f"{len(_structure.paths(node))}: sample it with unpack_as_table_signature=False")
        return nest.pack(node, values)


DEFAULT_BATCH = 32
LARGEST_BATCH = 1024


class Request(NamedTuple):
    """What to sample. About ``in_flight`` items are requested ahead, ``batch_size`` at once. 0 max_samples: without end."""

    table: str
    in_flight: int
    timeout: Optional[float] = None
    max_samples: int = 0
    batch_size: int = DEFAULT_BATCH


def sampled_batches(client: Client, request: Request) -> Iterator[Batch]:
    """Batches of a table.

    Tables that pick at random give batches, which are flexible: a limiter that allows a single sample gives that sample at
    once. Tables that pick in an order give items one by one, since a batch puts items of the same layout together.
    """
    in_order = not client.info(request.table)["tables"][0]["sampler"].startswith(("uniform", "prioritized"))
    size = 1 if in_order else min(request.in_flight, request.batch_size, LARGEST_BATCH)
    with client.sampler(request.table, size, in_flight=max(request.in_flight // size, 1), timeout=request.timeout,
                        max_samples=request.max_samples, flexible=True) as sampler:
        yield from sampler


def sampled(client: Client, request: Request) -> Iterator[Item]:
    """Items of a table, one by one."""
    for batch in sampled_batches(client, request):
        yield from items(batch)


class Block(NamedTuple):
    """Items of one layout: arrays whose first dimension counts items."""

    names: tuple
    info: SampleInfo
    fields: list

    def arrays(self) -> list[np.ndarray]:
        """The arrays of the infos and of the fields."""
        return [*self.info, *self.fields]


def block_of(batch: Batch) -> Block:
    """A batch whose items have the same number of steps. Raises ValueError if they differ."""
    names, suffixes = zip(*map(_codec.split, batch.names()))
    fields = [_same_length(*parts) for parts in zip(names, batch.fields(), batch.field_lengths())]
    info = SampleInfo(batch.key, batch.probability, np.full(len(batch), batch.info["table_size"], np.int64), batch.priority,
                      batch.times_sampled.astype(np.int32))
    return Block(names, info, [_codec.decode(*parts) for parts in zip(suffixes, fields)])


def _same_length(name: str, field: np.ndarray, lengths: Optional[np.ndarray]) -> np.ndarray:
    if lengths is None or not len(lengths):
        return field
    if lengths.min() != lengths.max():
        raise ValueError(f"the items of a batch differ in the steps of '{name}', from {lengths.min()} to {lengths.max()}, so "
                         "that they cannot be stacked: batch items of the same length, or iterate without batch")
    return field[:, :lengths[0]]


def items(batch: Batch) -> Iterator[Item]:
    """The items of a batch, one by one, without the rows that only fill up shorter items."""
    names, suffixes = zip(*map(_codec.split, batch.names()))
    fields, lengths = batch.fields(), batch.field_lengths()
    size = int(batch.info["table_size"])
    for i in range(len(batch)):
        info = SampleInfo(int(batch.key[i]), float(batch.probability[i]), size, float(batch.priority[i]),
                          int(batch.times_sampled[i]))
        rows = [field[i, ...] if length is None else field[i, :length[i]] for field, length in zip(fields, lengths)]
        yield Item(info, names, [_codec.decode(*parts) for parts in zip(suffixes, rows)])
