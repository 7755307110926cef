"""The older writer: items are the last steps with all of their values."""
from __future__ import annotations

import collections
from typing import Any, Optional

import numpy as np

from .. import nest
from . import _structure
from ._inner import ColumnError, InnerWriter
from .errors import ReverbError
from .reverb_types import dtype_name


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
        self._client, self._closed = client, False
        self._writer = InnerWriter(client, max_sequence_length, max_in_flight_items, chunk_length or 1)
        self._rows: collections.deque = collections.deque(maxlen=max_sequence_length)
        self._node: Optional[nest.Node] = None

    def append(self, data: Any) -> None:
        """Appends a step. All steps have the same structure."""
        self._check_open()
        node = _structure.node_of(data)
        if self._node not in (None, node):
            raise ValueError("the structure of this step differs from that of the steps before it")
        values = nest.flatten(node, data)
        if not values or any(value is None for value in values):
            raise ValueError("a step must have at least one value, and no None")
        try:
            self._rows.append(self._writer.Append(values))
        except ColumnError as error:
            raise ValueError(error.about(str(_structure.paths(node)[error.index]))) from None
        self._node = node

    def append_sequence(self, sequence: Any) -> None:
        """Appends many steps: arrays whose first dimension counts steps."""
        node = _structure.node_of(sequence)
        arrays = [np.asarray(leaf) for leaf in nest.flatten(node, sequence)]
        if any(not array.ndim for array in arrays) or len({len(array) for array in arrays}) != 1:
            raise ValueError("the arrays of a sequence must have the same number of steps")
        for step in range(len(arrays[0])):
            self.append(_structure.pack(node, [array[step] for array in arrays]))

    def create_item(self, table: str, num_timesteps: int, priority: float) -> None:
        """Creates an item over the last num_timesteps steps."""
        self._check_open()
        if not 1 <= num_timesteps <= len(self._rows):
            raise ValueError(f"num_timesteps must be between 1 and {len(self._rows)}, the number of steps that the writer has, "
                             f"not {num_timesteps}")
        names = _structure.names(self._node)
        _structure.check(table, self._client.specs(table), [
            _structure.Spec(name, dtype_name(reference.dtype), reference.shape)
            for name, reference in zip(names, self._rows[-1])])
        columns = list(zip(*list(self._rows)[-num_timesteps:]))
        self._writer.create(table, priority, names, columns, [False] * len(columns))

    def flush(self) -> None:
        """Waits until all items are in their tables."""
        self._check_open()
        self._writer.Flush()

    def close(self, retry_on_unavailable: bool = True) -> None:
        """Waits until all items are in their tables, then closes the writer."""
        self.flush()
        self._closed = True
        self._writer.Close()

    def _check_open(self) -> None:
        if self._closed:
            raise ValueError("this writer is closed")

    def __repr__(self) -> str:
        return f"Writer(closed={self._closed}, steps={len(self._rows)})"

    def __enter__(self) -> "Writer":
        self._check_open()
        return self

    def __exit__(self, kind: Any, *_: Any) -> None:
        if self._closed:
            return
        if kind is None:
            self.close()
            return
        self._closed = True
        try:  # the exception on its way out must not be hidden by another one
            self._writer.Close()
        except ReverbError:
            pass
