"""Whole items of a table, as an iterator."""
from typing import Iterator, Sequence

import numpy as np

from ._dataset import Dataset
from ._samples import Block, Item, block_of, sampled_batches
from .errors import translated
from .replay_sample import ReplaySample, SampleInfo


class TrajectoryDataset(Dataset):
    """Iterates over the items of a table: ReplaySample with the item's info, and its data in the structure of the item.

    >>> import replaybus.reverb as reverb
    >>> with reverb.Server([reverb.Table.queue("queue", 10)]) as server:
    ...     client = server.localhost_client()
    ...     with client.trajectory_writer(num_keep_alive_refs=3) as writer:
    ...         for step in range(3):
    ...             references = writer.append({"a": step, "b": 0.5})
    ...         writer.create_item("queue", 1.0, {"a": writer.history["a"][-2:], "b": writer.history["b"][-1]})
    ...     dataset = reverb.TrajectoryDataset(client.server_address, "queue", max_samples=1)
    ...     [(sample.data["a"].tolist(), float(sample.data["b"])) for sample in dataset]
    [([1, 2], 0.5)]
    """

    def _of_item(self, item: Item) -> Iterator[ReplaySample]:
        yield ReplaySample(item.info, self._data(item.names, item.fields))

    def _batches(self, batch_size: int, drop_remainder: bool) -> Iterator[ReplaySample]:
        """Batches as the broker gives them: a batch that comes whole is not copied."""
        with translated:
            self._check_signature()
            parts: list[Block] = []
            count = 0
            for batch in sampled_batches(self._client.native, self._requests(batch_size)):
                parts.append(block_of(batch))
                count += len(batch)
                while count >= batch_size:
                    whole, parts = _split(parts, batch_size)
                    count -= batch_size
                    yield self._sample(whole)
            if parts and not drop_remainder:
                yield self._sample(_joined(parts))

    def _sample(self, block: Block) -> ReplaySample:
        return ReplaySample(block.info, self._data(block.names, block.fields, skip=1))


def _joined(parts: Sequence[Block]) -> Block:
    if len(parts) == 1:
        return parts[0]
    if len({len(part.fields) for part in parts}) != 1:
        raise ValueError("the items of a batch differ in their fields, so that they cannot be stacked")
    arrays = [np.concatenate(columns) for columns in zip(*(part.arrays() for part in parts))]
    infos = len(SampleInfo._fields)
    return Block(parts[0].names, SampleInfo(*arrays[:infos]), arrays[infos:])


def _split(parts: Sequence[Block], size: int) -> tuple[Block, list[Block]]:
    """The first items as one block, and the rest."""
    block = _joined(parts)
    if len(block.info.key) == size:
        return block, []
    rest = Block(block.names, SampleInfo(*(part[size:] for part in block.info)), [part[size:] for part in block.fields])
    first = Block(block.names, SampleInfo(*(part[:size] for part in block.info)), [part[:size] for part in block.fields])
    return first, [rest]
