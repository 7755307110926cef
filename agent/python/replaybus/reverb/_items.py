"""Items whose rows are given as arrays, rather than as slices of the steps of a stream."""
import collections
from typing import Any, NamedTuple, Optional, Sequence

import numpy as np

from .. import _core
from ..client import Client
from ..writer import Field

MAX_STREAMS = 16


class Rows(NamedTuple):
    """One field of an item: an array whose first dimension counts steps. squeeze: the field is its only row."""

    name: str
    values: np.ndarray
    squeeze: bool


def _padded(values: np.ndarray, steps: int) -> np.ndarray:
    """The array with rows of zeros at its end, so that it has this many steps."""
    missing = steps - len(values)
    return np.pad(values, [(0, missing)] + [(0, 0)] * (values.ndim - 1)) if missing else values


class ItemWriter:
    """Writes items of any layout: a stream for each combination of element types and shapes, opened when first needed.

    The newest item is confirmed after those before it only within a stream, so that a change of layout waits for the
    items of the layout before.
    """

    def __init__(self, client: Client, max_in_flight: Optional[int] = None) -> None:
        self._client, self._max_in_flight = client, max_in_flight
        self._streams: "collections.OrderedDict[tuple, Any]" = collections.OrderedDict()
        self._last: Any = None

    def create(self, table: str, priority: float, fields: Sequence[Rows]) -> int:
        """Writes an item and returns its key. Does not wait until the item is in the table."""
        steps = max(len(field.values) for field in fields)
        stream = self._stream(tuple((field.values.dtype.name, field.values.shape[1:]) for field in fields), steps)
        if self._last is not None and self._last is not stream:
            self._last.flush()
        self._last = stream
        stream.append_block({f"c{i}": _padded(field.values, steps) for i, field in enumerate(fields)})
        selection = _core.Selection(tuple((field.name, i, len(field.values), -steps, 1, field.squeeze)
                                          for i, field in enumerate(fields)))
        return stream.item(table, priority, selection)

    def _stream(self, layout: tuple, steps: int) -> Any:
        key = (layout, 1 << (steps - 1).bit_length())  # few streams for items of many lengths
        stream = self._streams.get(key)
        if stream is None:
            spec = {f"c{i}": Field(dtype, shape) for i, (dtype, shape) in enumerate(layout)}
            stream = self._client.writer(spec, keep_alive=key[1], max_in_flight=self._max_in_flight)
            self._streams[key] = stream
            if len(self._streams) > MAX_STREAMS:
                self._streams.popitem(last=False)[1].close()
        self._streams.move_to_end(key)
        return stream

    def flush(self, max_unconfirmed: int = 0, timeout: Optional[float] = None) -> None:
        """Waits until at most this many items are unconfirmed."""
        if self._last is not None:
            self._last.flush(max_unconfirmed, timeout)

    def end_episode(self) -> None:
        """Begins a new episode in every stream."""
        for stream in self._streams.values():
            stream.end_episode(wait=False)

    def close(self, timeout: Optional[float] = None) -> None:
        """Waits until all items are confirmed, then closes the streams. Without waiting for more, if a stream fails."""
        self._last = None
        try:
            for stream in self._streams.values():
                stream.close(timeout)
        finally:
            for stream in self._streams.values():
                stream._give_up()
            self._streams.clear()
