"""Batches of the broker as Reverb's samples."""
from __future__ import annotations

from typing import Any, Iterator, NamedTuple, Optional

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

    def structured(self, values: list) -> Any:
        """Values in the structure in which the item was written."""
        return _structure.pack(_structure.node_of_names(self.names), values)

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
        return _structure.pack(node, values)


LARGEST_BATCH = 32


def sampled(client: Client, table: str, in_flight: int, timeout: Optional[float], max_samples: int,
            batch_size: int = 0) -> Iterator[Item]:
    """Items of a table, of which about ``in_flight`` are requested ahead. 0 max_samples: without end.

    Tables that pick at random give batches, which are flexible: a limiter that allows a single sample gives that sample at
    once. Tables that pick in an order give items one by one, since a batch puts items of the same layout together.
    """
    in_order = not client.info(table)["tables"][0]["sampler"].startswith(("uniform", "prioritized"))
    size = 1 if in_order else min(in_flight, batch_size or LARGEST_BATCH)
    with client.sampler(table, size, in_flight=max(in_flight // size, 1), timeout=timeout, max_samples=max_samples,
                        flexible=True) as sampler:
        for batch in sampler:
            yield from items(batch)


def items(batch: Batch) -> Iterator[Item]:
    """The items of a batch, one by one, without the rows that only fill up shorter items."""
    names, suffixes = zip(*map(_codec.split, batch.names()))
    fields, lengths = batch.fields(), batch.field_lengths()
    size = int(batch.info["table_size"])
    for i in range(len(batch)):
        info = SampleInfo(int(batch.key[i]), float(batch.probability[i]), size, float(batch.priority[i]),
                          int(batch.times_sampled[i]))
        rows = [field[i, ...] if length is None else field[i, :length[i]] for field, length in zip(fields, lengths)]
        yield Item(info, names, [_codec.decode(*parts) for parts in zip(names, suffixes, rows)])
