"""A writer whose items are any selection of the recent steps' values."""
from __future__ import annotations

import collections
import operator
from typing import Any, Iterator, Mapping, NamedTuple, Optional, Sequence, Union

import numpy as np

from .. import _core, nest
from ..writer import Field
from . import _structure
from ._items import ItemWriter, Rows
from .errors import translated


def seconds(timeout_ms: Optional[int]) -> Optional[float]:
    """A time-out in seconds. None and negative numbers wait without a limit."""
    return None if timeout_ms is None or timeout_ms < 0 else timeout_ms / 1000


class TrajectoryColumn:
    """Rows of one column: a field of an item. Made by indexing a column's history."""

    def __init__(self, history: "ColumnHistory", steps: Sequence[int], squeeze: bool) -> None:
        self.history, self.steps, self.is_squeezed = history, steps, squeeze
        self.episode = history.episode

    def __len__(self) -> int:
        return len(self.steps)

    @property
    def shape(self) -> tuple:
        """The shape of the field, its steps first."""
        return self.history.shape if self.is_squeezed else (len(self.steps), *self.history.shape)

    @property
    def dtype(self) -> np.dtype:
        """The element type."""
        return self.history.dtype

    def rows(self) -> list[np.ndarray]:
        """The rows. Raises ValueError if a row is gone, or was never set."""
        if self.episode != self.history.episode:
            raise ValueError(f"column '{self.history.name}': the rows belong to an episode that has ended")
        return [self.history.row(step) for step in self.steps]

    def numpy(self) -> np.ndarray:
        """A copy of the rows; of a single row that was chosen by its index, without a dimension for steps."""
        rows = self.rows()
        return rows[0].copy() if self.is_squeezed else np.stack(rows)


class ColumnHistory:
    """The values of one column in the present episode: ``[-1]``, ``[-3:]``, ``[a:b:c]`` and lists of numbers choose rows."""

    def __init__(self, name: str, keep: int, example: np.ndarray, before: int) -> None:
        self.name, self.dtype, self.shape = name, example.dtype, example.shape
        self.episode = 0
        self._rows: collections.deque = collections.deque([None] * min(before, keep), maxlen=keep)
        self._count = before

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[TrajectoryColumn]:
        return (self[step] for step in range(self._count))

    def __getitem__(self, rows: Union[int, slice, Sequence[int]]) -> TrajectoryColumn:
        if isinstance(rows, slice):
            steps = range(*rows.indices(self._count))
            if not steps:
                raise ValueError(f"the slice {rows} of column '{self.name}' is empty: the column has {self._count} rows")
            return TrajectoryColumn(self, steps, False)
        if isinstance(rows, (list, tuple, np.ndarray)):
            if len(rows) == 0:
                raise ValueError(f"the list of rows of column '{self.name}' is empty")
            return TrajectoryColumn(self, [self._step(row) for row in rows], False)
        return TrajectoryColumn(self, (self._step(rows),), True)

    def _step(self, row: int) -> int:
        if isinstance(row, (bool, np.bool_)):
            raise TypeError(f"rows of column '{self.name}' are chosen by their numbers, not by a mask: use numpy.flatnonzero")
        row = operator.index(row)
        if not -self._count <= row < self._count:
            raise IndexError(f"column '{self.name}' has {self._count} rows, and no row {row}")
        return row % self._count

    def has(self, step: int) -> bool:
        """Whether the row of a step is kept and has a value."""
        index = step - (self._count - len(self._rows))
        return 0 <= index < len(self._rows) and self._rows[index] is not None

    def row(self, step: int) -> np.ndarray:
        """The row of a step."""
        index = step - (self._count - len(self._rows))
        if index < 0:
            raise ValueError(f"column '{self.name}': the row of step {step} has expired; num_keep_alive_refs is "
                             f"{self._rows.maxlen}")
        row = self._rows[index]
        if row is None:
            raise ValueError(f"column '{self.name}' has no value in step {step}")
        return row

    def numpy(self) -> np.ndarray:
        """All rows that are kept."""
        return np.stack([row for row in self._rows if row is not None])

    def add(self, value: Optional[np.ndarray]) -> None:
        """Adds the row of the newest step; None: the step has no value in this column."""
        self._rows.append(value)
        self._count += 1

    def check(self, value: np.ndarray) -> None:
        """Raises ValueError if the value does not belong into the column."""
        if value.dtype != self.dtype or value.shape != self.shape:
            raise ValueError(f"column '{self.name}' holds {self.dtype}{self.shape}, and the value is "
                             f"{value.dtype}{value.shape}")

    def clear(self) -> None:
        """Forgets all rows."""
        self._rows.clear()
        self._count = 0
        self.episode += 1


def _merged(old: Any, new: Any) -> Any:
    """A structure with the values of both."""
    if old is None or new is None:
        return new if old is None else old
    if isinstance(old, dict) and isinstance(new, dict):
        return {key: _merged(old.get(key), new.get(key)) for key in sorted({*old, *new})}
    if isinstance(old, tuple) and isinstance(new, tuple) and len(old) == len(new):
        parts = map(_merged, old, new)
        return type(old)(*parts) if hasattr(old, "_fields") else tuple(parts)
    return old


def _leaves(data: Any) -> dict[str, Any]:
    node = nest.node_of(data)
    return dict(zip(_structure.names(node), nest.flatten(node, data)))


class _Stream(NamedTuple):
    """A stream of the broker and the place of each column in it."""

    writer: Any
    columns: dict


class TrajectoryWriter:
    """Appends steps, and creates items from their history. ``Client.trajectory_writer`` makes one.

    Items refer to steps that were sent once, if all steps have the same columns and the rows of each field have a fixed
    distance. Other items (lists of rows, steps with missing columns, a step that is not complete) are sent as copies.
    """

    def __init__(self, client: Any, num_keep_alive_refs: int, max_in_flight_items: Optional[int] = None) -> None:
        if num_keep_alive_refs < 1:
            raise ValueError(f"num_keep_alive_refs must be 1 or more, not {num_keep_alive_refs}")
        self._client, self._keep = client, num_keep_alive_refs
        self._max_in_flight = max_in_flight_items
        self._columns: dict[str, ColumnHistory] = {}
        self._template: Any = None
        self._open: set[str] = set()
        self._steps = self._episode_steps = 0
        self._stream: Optional[_Stream] = None
        self._sharing = True  # all steps of the episode are in the stream
        self._copies = ItemWriter(client.native, max_in_flight_items)
        self._last: Any = None
        self._closed = False

    # ---- steps

    @property
    def history(self) -> Any:
        """The structure of a step, with the history of a column in the place of each value."""
        if self._template is None:
            raise RuntimeError("history is empty before the first append")
        node = nest.node_of(self._template)
        return nest.pack(node, iter([self._columns.get(name) for name in _structure.names(node)]))

    def column(self, name: str) -> Optional[ColumnHistory]:
        """The history of the column with this name, its path in a step; None if no step has had it."""
        return self._columns.get(name)

    @property
    def episode_steps(self) -> int:
        """The number of complete steps in the present episode."""
        return self._episode_steps

    def append(self, data: Any, *, partial_step: bool = False) -> Any:
        """Appends a step, or with partial_step=True a part of one, which the next call continues. None: no value.

        Returns the structure with a reference to each value.
        """
        self._check_open()
        data = _structure.ordered(data)
        values = {name: _structure.array_of(name, leaf).copy() for name, leaf in _leaves(data).items() if leaf is not None}
        for name, value in values.items():
            if name in self._open:
                raise ValueError(f"column '{name}' already has a value in this step")
            if name in self._columns:
                self._columns[name].check(value)
        if not values.keys() <= self._columns.keys():
            self._new_columns(data, values)
        for name, value in values.items():
            self._columns[name].add(value)
        self._open.update(values)
        if not partial_step:
            self.end_step()
        node = nest.node_of(data)
        return nest.pack(node, iter([self._columns[name][-1] if name in values else None for name in _structure.names(node)]))

    def _new_columns(self, data: Any, values: Mapping[str, np.ndarray]) -> None:
        template = _merged(self._template, data)
        if not {*values, *self._columns} <= set(_structure.names(nest.node_of(template))):
            raise ValueError("the structure of this step contradicts that of the steps before it")
        self._template = template
        for name, value in values.items():
            if name not in self._columns:
                self._columns[name] = ColumnHistory(name, self._keep, value, self._steps)

    def end_step(self) -> None:
        """Completes the present step. Columns that were not set have no value in it."""
        values = {name: column.row(self._steps) for name, column in self._columns.items() if name in self._open}
        for name, column in self._columns.items():
            if name not in self._open:
                column.add(None)
        self._open.clear()
        self._steps += 1
        self._episode_steps += 1
        with translated():
            self._share(values)

    def _share(self, values: Mapping[str, np.ndarray]) -> None:
        """Appends the step to the stream, if all steps of the episode had the stream's columns."""
        if not self._sharing:
            return
        if self._stream is not None and self._stream.columns.keys() != values.keys() and self._steps == 1:
            self._stream.writer.close()  # a new episode with other columns; waits for its items
            if self._last is self._stream.writer:
                self._last = None
            self._stream = None
        if self._stream is None:
            if self._steps != 1:
                self._sharing = False
                return
            spec = {f"c{i}": Field(value.dtype.name, value.shape) for i, value in enumerate(values.values())}
            writer = self._client.native.writer(spec, keep_alive=self._keep, max_in_flight=self._max_in_flight)
            self._stream = _Stream(writer, {name: i for i, name in enumerate(values)})
        if self._stream.columns.keys() != values.keys():
            self._sharing = False
            return
        self._stream.writer.append({f"c{i}": values[name] for name, i in self._stream.columns.items()})

    # ---- items

    def create_item(self, table: str, priority: float, trajectory: Any) -> None:
        """Creates an item from references to rows: a structure of ``history[...]``. Waits for the items before it only
        where items that share rows and items that are copies follow each other."""
        self._check_open()
        trajectory = _structure.ordered(trajectory)
        node = nest.node_of(trajectory, (TrajectoryColumn,))
        fields = list(zip(_structure.names(node), nest.flatten(node, trajectory)))
        for name, field in fields:
            if not isinstance(field, TrajectoryColumn):
                raise TypeError(f"'{name}' of the trajectory must be rows of a history, such as history['a'][-2:], not "
                                f"{type(field).__name__}")
        rows = [field.rows() for _, field in fields]
        for name, field in fields:
            if self._columns.get(field.history.name) is not field.history:
                raise ValueError(f"'{name}' of the trajectory has rows of another writer's history: create the item with that "
                                 "writer")
        specs = [_structure.Spec(name, field.dtype.name, field.shape) for name, field in fields]
        _structure.check(table, self._client.specs(table), specs)
        with translated():
            selection = self._selection(fields)
            self._switch(self._copies if selection is None else self._stream.writer)
            if selection is None:
                self._copies.create(table, float(priority), [
                    Rows(name, np.stack(values), field.is_squeezed) for (name, field), values in zip(fields, rows)])
            else:
                self._stream.writer.item(table, float(priority), selection)

    def _selection(self, fields: Sequence[tuple[str, TrajectoryColumn]]) -> Any:
        """The fields as slices of the stream; None if they cannot be."""
        if not self._sharing or self._stream is None:
            return None
        slices = []
        for name, field in fields:
            steps = field.steps
            stride = steps[1] - steps[0] if len(steps) > 1 else 1
            regular = all(after - before == stride for before, after in zip(steps, steps[1:]))
            if stride < 1 or not regular or steps[-1] >= self._steps:
                return None
            column = self._stream.columns[field.history.name]
            slices.append((name, column, len(steps), steps[0] - self._steps, stride, field.is_squeezed))
        return _core.Selection(tuple(slices))

    def _switch(self, writer: Any) -> None:
        """Items reach the tables in the order of their creation: another writer's items come after the present one's."""
        if self._last is not None and self._last is not writer:
            self._last.flush()
        self._last = writer

    def flush(self, block_until_num_items: int = 0, timeout_ms: Optional[int] = None) -> None:
        """Waits until at most block_until_num_items items are not in their tables yet."""
        self._check_open()
        if block_until_num_items < 0:
            raise ValueError(f"block_until_num_items must be 0 or more, not {block_until_num_items}")
        with translated():
            if self._last is not None:
                self._last.flush(block_until_num_items, seconds(timeout_ms))

    def end_episode(self, clear_buffers: bool = True, timeout_ms: Optional[int] = None) -> None:
        """Waits until all items are in their tables, then begins an episode. clear_buffers=False keeps the history."""
        self._check_open()
        if self._open:
            self.end_step()
        self.flush(0, timeout_ms)
        self._episode_steps = 0
        if not clear_buffers:
            return
        with translated():
            if self._stream is not None:
                self._stream.writer.end_episode(wait=False)
            self._copies.end_episode()
        for column in self._columns.values():
            column.clear()
        self._steps, self._sharing = 0, True

    def configure(self, path: Sequence[Union[int, str]], *, num_keep_alive_refs: int, max_chunk_length: Optional[int]) -> None:
        """Accepted for programs that call it. All columns of a writer share their settings here."""
        if num_keep_alive_refs < 1 or (max_chunk_length is not None and not 1 <= max_chunk_length <= num_keep_alive_refs):
            raise ValueError(f"num_keep_alive_refs must be 1 or more, and max_chunk_length between 1 and it: "
                             f"{num_keep_alive_refs}, {max_chunk_length}")

    def close(self) -> None:
        """Waits until all items are in their tables, then closes the writer."""
        if self._closed:
            return
        self._closed = True
        with translated():
            if self._stream is not None:
                self._stream.writer.close()
            self._copies.close()

    def _check_open(self) -> None:
        if self._closed:
            raise RuntimeError("this writer is closed")

    def __enter__(self) -> "TrajectoryWriter":
        return self

    def __exit__(self, kind: Any, *_: Any) -> None:
        if kind is None:
            self.close()
        else:
            self._closed = True
            for writer in ([self._stream.writer] if self._stream else []) + list(self._copies._streams.values()):
                writer.__exit__(kind)
