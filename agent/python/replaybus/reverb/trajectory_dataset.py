"""Whole items of a table, as an iterator."""
from __future__ import annotations

from typing import Iterator

from ._dataset import Dataset
from ._samples import Item
from .replay_sample import ReplaySample


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
        yield ReplaySample(item.info, self._data(item, item.fields))
