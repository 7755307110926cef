"""The older writer: items are the last steps with all of their values."""
from typing import Any, Optional

import numpy as np

from .. import nest
from . import _structure
from .reverb_types import dtype_name
from .trajectory_writer import TrajectoryColumn, TrajectoryWriter


class Writer(TrajectoryWriter):
    """Appends steps, and creates items over the newest of them. ``Client.writer`` makes one."""

    def __init__(self, client: Any, max_sequence_length: int, chunk_length: Optional[int],
                 max_in_flight_items: Optional[int]) -> None:
        if max_sequence_length < 1:
            raise ValueError(f"max_sequence_length must be 1 or more, not {max_sequence_length}")
        if chunk_length is not None and not 1 <= chunk_length <= max_sequence_length:
            raise ValueError(f"chunk_length must be between 1 and max_sequence_length {max_sequence_length}, not "
                             f"{chunk_length}")
        if max_in_flight_items is not None and max_in_flight_items < 1:
            raise ValueError(f"max_in_flight_items must be 1 or more, not {max_in_flight_items}")
        super().__init__(client, max_sequence_length, max_in_flight_items, chunk_length or 1)

    def append(self, data: Any) -> None:  # type: ignore[override]
        """Appends a step. All steps have the same structure."""
        self._check_open()
        node = _structure.node_of(data)
        if self._node not in (None, node):
            raise ValueError("the structure of this step differs from that of the steps before it")
        if any(value is None for value in nest.flatten(node, data)):
            raise ValueError("a step must have at least one value, and no None")
        super().append(data)

    def append_sequence(self, sequence: Any) -> None:
        """Appends many steps: arrays whose first dimension counts steps."""
        node = _structure.node_of(sequence)
        arrays = [np.asarray(leaf) for leaf in nest.flatten(node, sequence)]
        if any(not array.ndim for array in arrays) or len({len(array) for array in arrays}) != 1:
            raise ValueError("the arrays of a sequence must have the same number of steps")
        for step in range(len(arrays[0])):
            self.append(nest.pack(node, [array[step] for array in arrays]))

    def create_item(self, table: str, num_timesteps: int, priority: float) -> None:  # type: ignore[override]
        """Creates an item over the last num_timesteps steps."""
        self._check_open()
        steps = min(self.episode_steps, self._keep)
        if not 1 <= num_timesteps <= steps:
            raise ValueError(f"num_timesteps must be between 1 and {steps}, the number of steps that the writer has, not {num_timesteps}")
        self._create(table, priority, _structure.names(self._node), [column[-num_timesteps:] for column in self._histories])

    def _spec(self, name: str, column: TrajectoryColumn) -> _structure.Spec:
        return _structure.Spec(name, dtype_name(column.dtype), column.shape[1:])  # a signature describes one step

    def close(self, retry_on_unavailable: bool = True) -> None:
        """Waits until all items are in their tables, then closes the writer."""
        self.flush()
        super().close()

    def __enter__(self) -> "Writer":
        self._check_open()
        return self

    def _check_open(self) -> None:
        if self._closed:
            raise ValueError("this writer is closed")

    def __repr__(self) -> str:
        return f"Writer(closed={self._closed}, steps={min(self.episode_steps, self._keep)})"
