"""The layer below the writers: flat columns, references to their values, and items made of references.

Programs that test their own writers replace this layer, so that its methods keep the names they know from Reverb.
"""
from __future__ import annotations

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
from .reverb_types import dtype_name

CLOSE_SECONDS = 5.0
_TENSOR_NAMES = {"float16": "half", "float32": "float", "float64": "double"}


def seconds(timeout_ms: Optional[int]) -> Optional[float]:
    """A time-out in seconds. None and negative numbers wait without a limit."""
    return None if timeout_ms is None or timeout_ms < 0 else timeout_ms / 1000


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
        return np.dtype(object) if self._value.dtype == _codec.STRING else np.dtype(self._value.dtype)

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
            raise ColumnError(index, "wrong dtype", f"Got {_tensor_name(value.dtype)} but expected "
                              f"{_tensor_name(self.dtype)}.")
        if value.shape != self.shape:
            raise ColumnError(index, "incompatible shape", f"Got {_tensor_shape(value.shape)} which is incompatible with "
                              f"{_tensor_shape(self.shape)}.")


def _tensor_name(dtype: str) -> str:
    return _TENSOR_NAMES.get(dtype, dtype)


def _tensor_shape(shape: tuple) -> str:
    return f"[{','.join(map(str, shape))}]"


class _Stream(NamedTuple):
    """A stream of the broker: its writer, the place and the layout of each column in it, and the steps that it keeps."""

    writer: Any
    columns: dict[int, int]
    layouts: list
    keep: int


class InnerWriter:
    """Appends steps of flat columns to a stream of the broker, and creates items over references.

    Items refer to steps that were sent once, if all steps of the episode have the same columns and the rows of each field have
    a fixed distance. Other items (lists of rows, steps with missing columns, a step that is not complete) are sent as copies.
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
        if self._sharing:
            with translated():
                self._sharing = self._share(values)

    def _share(self, values: dict[int, _codec.Value]) -> bool:
        """Appends the step to the stream. False: the step has other columns than the episode's first one."""
        layouts = [(value.array.dtype.name, value.array.shape) for value in values.values()]
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
        keep = max([self.max_num_keep_alive_refs, *self._keeps.values()])
        spec = {f"c{i}": Field(*layout) for i, layout in enumerate(layouts)}
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
        rows = [[reference.stored(self) for reference in refs] for refs in columns]
        names = [name + values[0].suffix for name, values in zip(names, rows)]
        with translated():
            selection = self._selection(names, columns, squeeze)
            if selection is None:
                self._switch(self._copies)
                self._copies.create(table, float(priority), [
                    Rows(name, _codec.stack([value.array for value in values], values[0].suffix), one)
                    for name, values, one in zip(names, rows, squeeze)])
            else:
                self._switch(self._stream.writer)
                self._stream.writer.item(table, float(priority), selection)

    def _selection(self, names: Sequence[str], columns: Sequence[Sequence[Reference]], squeeze: Sequence[bool]) -> Any:
        """The fields as slices of the stream; None if they cannot be."""
        if not self._sharing or self._stream is None:
            return None
        slices = []
        for name, refs, one in zip(names, columns, squeeze):
            first, last = refs[0].step, refs[-1].step
            stride = refs[1].step - first if len(refs) > 1 else 1
            regular = len(refs) < 3 or all(ref.step == first + i * stride for i, ref in enumerate(refs))
            if stride < 1 or not regular or last >= self._steps or first < self._steps - self._stream.keep:
                return None
            if any(ref.column != refs[0].column for ref in refs):
                return None
            slices.append((name, self._stream.columns[refs[0].column], len(refs), first - self._steps, stride, one))
        return _core.Selection(tuple(slices))

    def _switch(self, writer: Any) -> None:
        """Items reach the tables in the order of their creation: another writer's items come after the present one's."""
        if self._last is not None and self._last is not writer:
            self._last.flush()
        self._last = writer

    # ---- waiting

    def Flush(self, block_until_num_items: int = 0, timeout_ms: Optional[int] = None) -> None:
        """Waits until at most block_until_num_items items are not in their tables yet."""
        self._check_open()
        with translated():
            try:
                if self._last is not None:
                    self._last.flush(block_until_num_items, seconds(timeout_ms))
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
        """Gives items CLOSE_SECONDS to reach their tables, or no time if an earlier wait for them timed out, then closes."""
        if self._closed:
            return
        self._closed = True
        timeout = 0 if self._gave_up else CLOSE_SECONDS
        failure: Optional[Error] = None
        for writer in ([] if self._stream is None else [self._stream.writer]) + [self._copies]:
            try:
                writer.close(timeout)
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
