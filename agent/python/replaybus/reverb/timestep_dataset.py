"""The timesteps of the items of a table, as an iterator."""
from __future__ import annotations

from typing import Iterator

from ._dataset import Dataset
from ._samples import Item
from .replay_sample import ReplaySample


class TimestepDataset(Dataset):
    """Iterates over the timesteps of a table's items, one by one. All fields of an item must have the same number of steps."""

    def _of_item(self, item: Item) -> Iterator[ReplaySample]:
        for step in range(item.timesteps()):
            yield ReplaySample(item.info, self._data(item, [field[step, ...] for field in item.fields]))
