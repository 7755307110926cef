"""The older writer: items are the last steps with all of their values."""
from __future__ import annotations

from typing import Any, Optional

import numpy as np

from .. import nest
from . import _structure
from .errors import translated


class Writer:
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
        self._client, self._steps, self._closed = client, 0, False
        self._max_sequence_length = max_sequence_length
        self._specs: list[_structure.Spec] = []
        self._native = client.native.writer(chunk_length=chunk_length or 1, keep_alive=max_sequence_length,
                                            max_in_flight=max_in_flight_items)

    def append(self, data: Any) -> None:
        """Appends a step."""
        self._check_open()
        data = _structure.ordered(data)
        if not self._steps:
            node = nest.node_of(data)
            names = _structure.names(node)
            arrays = [_structure.array_of(name, leaf) for name, leaf in zip(names, nest.flatten(node, data))]
            self._specs = [_structure.Spec(name, array.dtype.name, array.shape) for name, array in zip(names, arrays)]
        with translated():
            self._native.append(data)
        self._steps += 1

    def append_sequence(self, sequence: Any) -> None:
        """Appends many steps: arrays whose first dimension counts steps."""
        sequence = _structure.ordered(sequence)
        node = nest.node_of(sequence)
        arrays = [np.asarray(leaf) for leaf in nest.flatten(node, sequence)]
        if len({len(array) for array in arrays}) != 1:
            raise ValueError("the arrays of a sequence must have the same number of steps")
        for step in range(len(arrays[0])):
            self.append(nest.pack(node, iter([array[step] for array in arrays])))

    def create_item(self, table: str, num_timesteps: int, priority: float) -> None:
        """Creates an item over the last num_timesteps steps."""
        self._check_open()
        available = min(self._steps, self._max_sequence_length)
        if not 1 <= num_timesteps <= available:
            raise ValueError(f"num_timesteps must be between 1 and {available}, the number of steps that the writer has, not "
                             f"{num_timesteps}")
        _structure.check(table, self._client.specs(table), self._specs)
        with translated():
            self._native.item(table, float(priority), num_timesteps)

    def flush(self) -> None:
        """Waits until all items are in their tables."""
        self._check_open()
        with translated():
            self._native.flush()

    def close(self, retry_on_unavailable: bool = True) -> None:
        """Waits until all items are in their tables, then closes the writer."""
        self._check_open()
        self._closed = True
        with translated():
            self._native.close()

    def _check_open(self) -> None:
        if self._closed:
            raise ValueError("this writer is closed")

    def __enter__(self) -> "Writer":
        return self

    def __exit__(self, kind: Any, *_: Any) -> None:
        if kind is not None:
            self._closed = True
            self._native.__exit__(kind)
        elif not self._closed:
            self.close()
