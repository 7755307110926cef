"""The layer below the writers: flat columns, references to their values, and items made of references.

Programs that test their own writers replace this layer, so that its methods keep the names they know from Reverb.
"""
from __future__ import annotations

import collections
import math
import time
import weakref
from typing import Any, NamedTuple, Optional, Sequence

import numpy as np

from .. import _core
from ..errors import DeadlineExceeded, Error
from ..log import logger
from ..writer import Field
from . import _codec, _structure
from ._items import ItemWriter, Rows
from .errors import translated
from .reverb_types import dtype_name, tensor_name, tensor_shape

CLOSE_MS = 5000


class _Deadline:
    """The end of a wait. None and negative numbers wait without a limit."""

    def __init__(self, timeout_ms: Optional[int] = None) -> None:
        self._end = None if timeout_ms is None or timeout_ms < 0 else time.monotonic() + timeout_ms / 1000

    def left(self) -> Optional[float]:
        """The seconds that are left."""
        return None if self._end is None else max(self._end - time.monotonic(), 0)


class ConstantChunkerOptions(NamedTuple):
    """Settings of a column: how many values stay available for items. The length of chunks has no effect here."""

    max_chunk_length: int
    num_keep_alive_refs: int


class AutoTunedChunkerOptions(NamedTuple):
    """Settings of a column: how many values stay available for items. The weight has no effect here."""

    num_keep_alive_refs: int
    throughput_weight: float = 1.0


class ColumnError(ValueError):
    """A value does not belong into its column."""

    def __init__(self, index: int, problem: str, details: str) -> None:
        self.index, self.problem, self.details = index, problem, details
        super().__init__(self.about(str(index)))

    def about(self, column: str) -> str:
        """The message with another name for the column."""
        return f"Tensor of {self.problem} provided for column {column}. {self.details}"


class NamedColumns(list):
    """The references of an item by field, and the names of the fields."""

    def __init__(self, columns: Sequence[Sequence["Reference"]], names: Sequence[str]) -> None:
        super().__init__(columns)
        self.names = tuple(names)


class Reference:
    """A value that was appended: it can be put into items until it expires."""

    __slots__ = ("_writer", "_value", "column", "step", "episode")

    def __init__(self, writer: "weakref.ref[InnerWriter]", value: _codec.Value, column: int, step: int, episode: int) -> None:
        self._writer, self._value, self.column, self.step, self.episode = writer, value, column, step, episode

    @property
    def shape(self) -> tuple:
        """The shape of the value."""
        return self._value.shape

    @property
    def dtype(self) -> np.dtype:
        """The element type; object for strings."""
        return self._value.dtype

    @property
    def expired(self) -> bool:
        """Whether the value is too old for new items."""
        writer = self._writer()
        return writer is None or not writer.keeps(self)

    def numpy(self) -> np.ndarray:
        """A copy of the value."""
        return np.array(_codec.decode("", self._value.suffix, self._value.array))

    def stored(self, writer: "InnerWriter") -> _codec.Value:
        """The value as the broker stores it. Raises ValueError if this writer cannot put it into an item."""
        if self._writer() is not writer:
            raise ValueError("the trajectory has values of another writer: create the item with that writer")
        if not writer.keeps(self):
            raise ValueError(f"the value of step {self.step} has expired: its episode has ended, or num_keep_alive_refs "
                             "newer values were appended")
        return self._value


class _Column:
    """What the values of a column have in common."""

    def __init__(self, value: _codec.Value) -> None:
        self.dtype, self.shape, self.suffix = value.dtype, value.shape, value.suffix

    def check(self, index: int, value: _codec.Value) -> None:
        """Raises ColumnError if the value has another element type or shape."""
        if value.dtype != self.dtype:
            raise ColumnError(index, "wrong dtype",
                              f"Got {tensor_name(value.dtype)} but expected {tensor_name(self.dtype)}.")
        if value.shape != self.shape:
            raise ColumnError(index, "incompatible shape", f"Got {tensor_shape(value.shape)} which is incompatible with "
                              f"{tensor_shape(self.shape)}.")


class _Stream(NamedTuple):
    """A stream of the broker: its writer, the place and the layout of each column in it, and the steps that it keeps."""

    writer: Any
    columns: dict[int, int]
    layouts: list
    keep: int


class _Item(NamedTuple):
    """An item: its fields by name, their references and values, and whether a field is its only value."""

    table: str
    priority: float
    names: Sequence[str]
    columns: Sequence[Sequence[Reference]]
    values: Sequence[Sequence[_codec.Value]]
    squeeze: Sequence[bool]


class InnerWriter:
    """Appends steps of flat columns to a stream of the broker, and creates items over references.

    Items refer to steps that were sent once, if all steps of the episode have the same columns and the rows of each field have
    a fixed distance. Other items (lists of rows, steps with missing columns) are sent as copies. An item with values of an open
    step waits until the step is complete, or is sent as a copy by a Flush that allows fewer items.
    """

    def __init__(self, client: Any, num_keep_alive_refs: int, max_in_flight: Optional[int] = None,
                 chunk_length: int = 1) -> None:
        self._client, self._max_in_flight, self._chunk_length = client, max_in_flight, chunk_length
        self.max_num_keep_alive_refs, self._keeps = num_keep_alive_refs, {}
        self._self = weakref.ref(self)
        self._columns: dict[int, _Column] = {}
        self._open: dict[int, _codec.Value] = {}
        self._steps = self._episode = 0
        self._stream: Optional[_Stream] = None
        self._sharing = True  # all steps of the episode are in the stream
        self._copies = ItemWriter(client.native, max_in_flight)
        self._waiting: collections.deque[_Item] = collections.deque()
        self._last: Any = None
        self._gave_up = self._closed = False

    # ---- steps

    def Append(self, data: Sequence[Any]) -> list[Optional[Reference]]:
        """Appends values by column, None for no value, and completes the step. Returns a reference to each value."""
        references = self.AppendPartial(data)
        self.end_step()
        return references

    def AppendPartial(self, data: Sequence[Any]) -> list[Optional[Reference]]:
        """Appends values to a step that stays open."""
        self._check_open()
        values = {i: _codec.encode(f"column {i}", value) for i, value in enumerate(data) if value is not None}
        for i, value in values.items():
            if i in self._open:
                raise ValueError(f"column {i} already has a value in this step")
            if i in self._columns:
                self._columns[i].check(i, value)
        for i, value in values.items():
            if i not in self._columns:
                self._columns[i] = _Column(value)
        self._open.update(values)
        return [Reference(self._self, values[i], i, self._steps, self._episode) if i in values else None
                for i in range(len(data))]

    @property
    def step_is_open(self) -> bool:
        """Whether the newest step is incomplete."""
        return bool(self._open)

    def keeps(self, reference: Reference) -> bool:
        """Whether a reference of this writer can be put into items."""
        newest = self._steps if reference.column in self._open else self._steps - 1
        keep = self._keeps.get(reference.column, self.max_num_keep_alive_refs)
        return reference.episode == self._episode and reference.step > newest - keep

    def end_step(self) -> None:
        """Completes the present step. Columns that were not set have no value in it."""
        values, self._open = dict(sorted(self._open.items())), {}
        self._steps += 1
        with translated():
            self._sharing = self._sharing and self._share(values)
            self._send_waiting(_Deadline())

    def _share(self, values: dict[int, _codec.Value]) -> bool:
        """Appends the step to the stream. False: the step has other columns than the episode's first one."""
        layouts = [(value.array.dtype, value.array.shape) for value in values.values()]
        fits = self._stream is not None and list(self._stream.columns) == list(values) and self._stream.layouts == layouts
        if not fits:
            if self._steps != 1 or not values:
                return False
            self._open_stream(list(values), layouts)
        self._stream.writer.append({f"c{i}": value.array for i, value in enumerate(values.values())})
        return True

    def _open_stream(self, columns: list[int], layouts: list) -> None:
        if self._stream is not None:
            self._stream.writer.close()  # an episode with other columns; waits for the items of the episode before
            if self._last is self._stream.writer:
                self._last = None
        keep = max([self.max_num_keep_alive_refs, *self._keeps.values()]) + 1  # for items that waited for the end of a step
        spec = {f"c{i}": Field(dtype.name, shape) for i, (dtype, shape) in enumerate(layouts)}
        writer = self._client.native.writer(spec, keep_alive=keep, max_in_flight=self._max_in_flight,
                                            chunk_length=min(self._chunk_length, keep))
        self._stream = _Stream(writer, {column: i for i, column in enumerate(columns)}, layouts, keep)

    # ---- items

    def CreateItem(self, table: str, priority: float, columns: Sequence[Sequence[Reference]], squeeze: Sequence[bool]) -> None:
        """Creates an item with a field for each list of references. ``squeeze``: the field is its only value."""
        self._check_open()
        names = getattr(columns, "names", None) or [f"[{i}]" for i in range(len(columns))]
        wanted = self._client.specs(table)
        if wanted is not None:
            _structure.check(table, wanted, [
                _structure.Spec(name, dtype_name(refs[0].dtype), refs[0].shape if one else (len(refs), *refs[0].shape))
                for name, refs, one in zip(names, columns, squeeze)])
        self.create(table, priority, names, columns, squeeze)

    def create(self, table: str, priority: float, names: Sequence[str], columns: Sequence[Sequence[Reference]],
               squeeze: Sequence[bool]) -> None:
        """Creates an item without a look at the table's signature."""
        if not (math.isfinite(priority) and priority >= 0):
            raise ValueError(f"the priority of an item must be 0 or more, and finite, not {priority}")
        values = [[reference.stored(self) for reference in refs] for refs in columns]
        names = [name + part[0].suffix for name, part in zip(names, values)]
        item = _Item(table, float(priority), names, columns, values, squeeze)
        if self._waiting or self._sharing and any(ref.step == self._steps for refs in columns for ref in refs):
            self._waiting.append(item)
            return
        with translated():
            self._send(item, _Deadline())

    def _send_waiting(self, deadline: _Deadline) -> None:
        while self._waiting:
            item = self._waiting.popleft()
            try:
                self._send(item, deadline)
            except DeadlineExceeded:
                self._waiting.appendleft(item)
                raise

    def _send(self, item: _Item, deadline: _Deadline) -> None:
        selection = self._selection(item)
        if selection is None:
            self._switch(self._copies, deadline)
            self._copies.create(item.table, item.priority, [
                Rows(name, _codec.stack([value.array for value in values], values[0].suffix), one)
                for name, values, one in zip(item.names, item.values, item.squeeze)])
        else:
            self._switch(self._stream.writer, deadline)
            self._stream.writer.item(item.table, item.priority, selection)

    def _selection(self, item: _Item) -> Any:
        """The fields as slices of the stream; None if they cannot be."""
        if not self._sharing or self._stream is None:
            return None
        slices = []
        for name, refs, one in zip(item.names, item.columns, item.squeeze):
            first, last = refs[0].step, refs[-1].step
            stride = refs[1].step - first if len(refs) > 1 else 1
            regular = len(refs) < 3 or all(ref.step == first + i * stride for i, ref in enumerate(refs))
            if stride < 1 or not regular or last >= self._steps or first < self._steps - self._stream.keep:
                return None
            if any(ref.column != refs[0].column for ref in refs):
                return None
            slices.append((name, self._stream.columns[refs[0].column], len(refs), first - self._steps, stride, one))
        return _core.Selection(tuple(slices))

    def _switch(self, writer: Any, deadline: _Deadline) -> None:
        """Items reach the tables in the order of their creation: another writer's items come after the present one's."""
        if self._last is not None and self._last is not writer:
            self._last.flush(0, deadline.left())
        self._last = writer

    # ---- waiting

    def Flush(self, block_until_num_items: int = 0, timeout_ms: Optional[int] = None) -> None:
        """Waits until at most block_until_num_items items are not in their tables yet."""
        self._check_open()
        deadline = _Deadline(timeout_ms)
        with translated():
            try:
                if len(self._waiting) > block_until_num_items:
                    self._send_waiting(deadline)
                if self._last is not None:
                    self._last.flush(block_until_num_items - len(self._waiting), deadline.left())
            except DeadlineExceeded:
                self._gave_up = True
                raise

    def EndEpisode(self, clear_buffers: bool = True, timeout_ms: Optional[int] = None) -> None:
        """Completes an open step, waits until all items are in their tables, then begins an episode."""
        self._check_open()
        if self._open:
            self.end_step()
        self.Flush(0, timeout_ms)
        if not clear_buffers:
            return
        with translated():
            if self._stream is not None:
                self._stream.writer.end_episode(wait=False)
            self._copies.end_episode()
        self._episode += 1
        self._steps, self._sharing = 0, True

    def ConfigureChunker(self, column: int, options: Any) -> None:
        """Sets how many values of a column stay available for items."""
        self._keeps[column] = options.num_keep_alive_refs

    def Close(self) -> None:
        """Gives items CLOSE_MS to reach their tables, or no time if an earlier wait for them timed out, then closes."""
        if self._closed:
            return
        self._closed = True
        deadline = _Deadline(0 if self._gave_up else CLOSE_MS)
        closings = [lambda: self._send_waiting(deadline), lambda: self._copies.close(deadline.left())]
        if self._stream is not None:
            closings.append(lambda: self._stream.writer.close(deadline.left()))
        failure: Optional[Error] = None
        for close in closings:
            try:
                close()
            except DeadlineExceeded as error:
                logger.warning("a writer was closed, and its items that were not in their tables are lost: %s", error)
            except Error as error:
                failure = failure or error
        if failure is not None:
            with translated():
                raise failure

    def _check_open(self) -> None:
        if self._closed:
            raise RuntimeError("this writer is closed")
