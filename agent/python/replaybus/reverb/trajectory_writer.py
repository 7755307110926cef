"""The writer of trajectories: steps with any structure, their history, and items that are selections of its values."""
import collections
import contextlib
import math
import operator
import weakref
from typing import Any, Callable, Iterator, NamedTuple, Optional, Sequence, Union

import numpy as np

from .. import _core, nest
from ..errors import DeadlineExceeded, Error
from ..log import logger
from ..writer import Field, clock
from . import _codec, _structure
from ._items import ItemWriter, Rows
from .errors import ReverbError, translated
from .reverb_types import dtype_name, tensor_name, tensor_shape

CLOSE_MS = 5000
EXIT_MS = 5000  # for the items of a block that an exception has ended


Left = Callable[[], Optional[float]]  # the seconds that are left of a wait


def _clock(timeout_ms: Optional[int] = None) -> Left:
    """None and negative numbers wait without a limit."""
    return clock(None if timeout_ms is None or timeout_ms < 0 else timeout_ms / 1000)


class Reference:
    """A value that was appended: it can be put into items until it expires."""

    __slots__ = ("_writer", "_value", "column", "step", "episode")

    def __init__(self, writer: "weakref.ref[TrajectoryWriter]", value: _codec.Value, column: int, step: int, episode: int) -> None:
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
        return np.array(_codec.decode(self._value.suffix, self._value.array))

    def stored(self, writer: "TrajectoryWriter") -> _codec.Value:
        """The value as the broker stores it. Raises ValueError if this writer cannot put it into an item."""
        if self._writer() is not writer:
            raise ValueError("the trajectory has values of another writer: create the item with that writer")
        if not writer.keeps(self):
            raise ValueError(f"the value of step {self.step} has expired: its episode has ended, or num_keep_alive_refs "
                             "newer values were appended")
        return self._value


class TrajectoryColumn:
    """Values of one column: a field of an item. Made by indexing a column's history.

    ``squeeze``: the field is its only value, without a dimension for steps.
    """

    def __init__(self, data_references: Sequence[Any], squeeze: bool = False, path: Optional[tuple] = None) -> None:
        self._references, self.is_squeezed, self.path = tuple(data_references), squeeze, path
        if squeeze and len(self._references) != 1:
            raise ValueError(f"a squeezed column has exactly 1 value, not {len(self._references)}")
        if None in self._references:
            where = "" if path is None else f" {path}"
            raise ValueError(f"the column{where} cannot contain any None: a step that was chosen has no value in it")

    def __len__(self) -> int:
        return len(self._references)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._references)

    @property
    def shape(self) -> tuple:
        """The shape of the field, its steps first."""
        shape = tuple(self._references[0].shape)
        return shape if self.is_squeezed else (len(self._references), *shape)

    @property
    def dtype(self) -> np.dtype:
        """The element type."""
        return self._references[0].dtype

    def numpy(self) -> np.ndarray:
        """A copy of the values; of a single value that was chosen by its index, without a dimension for steps."""
        if any(reference.expired for reference in self._references):
            raise RuntimeError("the column has values that have expired")
        if self.is_squeezed:
            return self._references[0].numpy()
        return np.stack([reference.numpy() for reference in self._references])


class _ColumnHistory:
    """References to the values of a column in the present episode: numbers, slices and lists of numbers choose from them."""

    def __init__(self, path: tuple, index: int, first: _codec.Value, keep: int, steps: int) -> None:
        """first: the first value, whose element type and shape all others have. steps: those before it, which have none."""
        self._path, self.index, self._dtype, self._shape = path, index, first.dtype, first.shape
        self._references: collections.deque = collections.deque([None] * min(steps, keep), keep)
        self._count = steps

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Any]:
        """The references that are kept, oldest first; None for a step without a value."""
        return iter(self._references)

    def __getitem__(self, rows: Union[int, slice, Sequence[int]]) -> TrajectoryColumn:
        if isinstance(rows, slice):
            return TrajectoryColumn([self._reference(step) for step in self._steps(rows)], path=self._path)
        if isinstance(rows, (list, tuple, np.ndarray)):
            if len(rows) == 0:
                raise ValueError(f"the list of rows of column {self._path} is empty")
            return TrajectoryColumn([self._reference(self._step(row)) for row in rows], path=self._path)
        return TrajectoryColumn([self._reference(self._step(rows))], squeeze=True, path=self._path)

    def _steps(self, rows: slice) -> Sequence[int]:
        """The steps of a slice. A slice that is open at its older end begins with the oldest value that is kept."""
        steps: Sequence[int] = range(*rows.indices(self._count))
        if (rows.start if (rows.step or 1) > 0 else rows.stop) is None:
            steps = [step for step in steps if step >= self._count - len(self._references)]
        if not steps:
            raise ValueError(f"the slice {rows} of column {self._path} is empty: the column has {self._count} rows")
        return steps

    def _step(self, row: int) -> int:
        if isinstance(row, (bool, np.bool_)):
            raise TypeError(f"rows of column {self._path} are chosen by their numbers, not by a mask: use numpy.flatnonzero")
        row = operator.index(row)
        if not -self._count <= row < self._count:
            raise IndexError(f"column {self._path} has {self._count} rows, and no row {row}")
        return row % self._count

    def _reference(self, step: int) -> Any:
        index = step - (self._count - len(self._references))
        if index < 0:
            raise ValueError(f"column {self._path}: the value of step {step} has expired; num_keep_alive_refs is "
                             f"{self._references.maxlen}")
        return self._references[index]

    def check(self, value: _codec.Value) -> None:
        """Raises ValueError if the value has another element type or shape than those before it."""
        if value.dtype != self._dtype:
            raise ValueError(f"Tensor of wrong dtype provided for column {self._path}. Got {tensor_name(value.dtype)} but expected "
                             f"{tensor_name(self._dtype)}.")
        if value.shape != self._shape:
            raise ValueError(f"Tensor of incompatible shape provided for column {self._path}. Got {tensor_shape(value.shape)} "
                             f"which is incompatible with {tensor_shape(self._shape)}.")

    def has(self, step: int) -> bool:
        """Whether the value of a step is kept."""
        index = step - (self._count - len(self._references))
        return 0 <= index < len(self._references) and self._references[index] is not None

    def keeps(self, step: int) -> bool:
        """Whether a value of this step can be put into items."""
        return step >= self._count - self._references.maxlen

    def append(self, reference: Any) -> None:
        """Adds the value of the newest step; None: the step has none."""
        self._references.append(reference)
        self._count += 1

    def resize(self, keep: int) -> None:
        """Sets how many values are kept."""
        self._references = collections.deque(self._references, keep)

    def reset(self) -> None:
        """Forgets all values."""
        self._references.clear()
        self._count = 0


class _Stream(NamedTuple):
    """A stream of the broker: its writer, the place and the layout of each column in it, and the steps that it keeps."""

    writer: Any
    columns: dict[int, int]
    layouts: list
    keep: int


class _Item(NamedTuple):
    """An item: its fields by name, and their values."""

    table: str
    priority: float
    names: Sequence[str]
    columns: Sequence[TrajectoryColumn]
    values: Sequence[Sequence[_codec.Value]]


class TrajectoryWriter:
    """Appends steps, and creates items from their history. ``Client.trajectory_writer`` makes one; ``TrajectoryDataset`` has an example.

    Items refer to steps that were sent once, if all steps of the episode have the same columns and the rows of each field have
    a fixed distance. Other items (lists of rows, steps with missing columns) are sent as copies. An item with values of an open
    step waits until the step is complete, or is sent as a copy by a flush that allows fewer items.
    """

    def __init__(self, client: Any, num_keep_alive_refs: int, max_in_flight: Optional[int] = None, chunk_length: int = 1) -> None:
        self._client, self._max_in_flight, self._chunk_length = client, max_in_flight, chunk_length
        self._keep, self._keeps = num_keep_alive_refs, {}  # values of a column that stay available: of all columns, and by path
        self._self = weakref.ref(self)
        self._node: Optional[nest.Node] = None
        self._known: set[nest.Node] = set()  # structures of steps that are part of it
        self._columns: dict[tuple, _ColumnHistory] = {}
        self._histories: list[_ColumnHistory] = []  # the same, by their numbers
        self._history: Any = None
        self._open: dict[int, _codec.Value] = {}  # by column: the values of the open step
        self._episode_steps = 0
        self._steps = self._episode = 0  # steps in the histories, and the number of the episode
        self._stream: Optional[_Stream] = None
        self._sharing = True  # all steps of the episode are in the stream
        self._copies = ItemWriter(client.native, max_in_flight)
        self._waiting: collections.deque[_Item] = collections.deque()
        self._last: Any = None
        self._gave_up = self._closed = False

    @property
    def history(self) -> Any:
        """The structure of a step, with the history of a column in the place of each value."""
        if self._node is None:
            raise RuntimeError("history is empty before the first append")
        if self._history is None:
            self._history = nest.pack(self._node, map(self.column, _structure.paths(self._node)))
        return self._history

    def column(self, path: tuple) -> Optional[_ColumnHistory]:
        """The history of the column at this path in a step; None if no step has had it."""
        return self._columns.get(path)

    @property
    def episode_steps(self) -> int:
        """The number of complete steps in the present episode."""
        return self._episode_steps

    @property
    def step_is_open(self) -> bool:
        """Whether the newest step is incomplete."""
        return bool(self._open)

    def append(self, data: Any, *, partial_step: bool = False) -> Any:
        """Appends a step, or with partial_step=True a part of one, which the next call continues. None: no value.

        Returns the structure with a reference to each value.
        """
        self._check_open()
        node = _structure.node_of(data)
        paths, leaves = _structure.paths(node), nest.flatten(node, data)
        if not leaves:
            raise ValueError("a step must have at least one value")
        values = {path: self._encoded(path, leaf) for path, leaf in zip(paths, leaves) if leaf is not None}
        if node not in self._known or any(path not in self._columns for path in values):
            self._node, self._history = _structure.merged(self._node, node, data), None
            self._known.add(node)
        references = {path: self._record(path, value) for path, value in values.items()}
        if not partial_step:
            self.end_step()
        return nest.pack(node, map(references.get, paths))

    def _encoded(self, path: tuple, leaf: Any) -> _codec.Value:
        """The value as the broker stores it. Raises ValueError if it cannot be in its column, or not in this step."""
        column, value = self._columns.get(path), _codec.encode(path, leaf)
        if column is not None:
            if column.index in self._open:
                raise ValueError(f"Field {path} has already been set in the active step by previous (partial) append call and thus "
                                 f"must be omitted or set to None but got: {leaf}")
            column.check(value)
        return value

    def _record(self, path: tuple, value: _codec.Value) -> Reference:
        column = self._columns.get(path)
        if column is None:
            column = _ColumnHistory(path, len(self._histories), value, self._keeps.get(path, self._keep), self._steps)
            self._columns[path] = column
            self._histories.append(column)
        reference = Reference(self._self, value, column.index, self._steps, self._episode)
        column.append(reference)
        self._open[column.index] = value
        return reference

    def keeps(self, reference: Reference) -> bool:
        """Whether a reference of this writer can be put into items."""
        return reference.episode == self._episode and self._histories[reference.column].keeps(reference.step)

    def end_step(self) -> None:
        """Completes the present step. Columns that were not set have no value in it."""
        values, self._open = dict(sorted(self._open.items())), {}
        sharing, self._sharing = self._sharing, False  # until the stream has the step: it may never get it
        for column in self._histories:
            if column.index not in values:
                column.append(None)
        self._steps += 1
        self._episode_steps += 1
        with translated:
            self._sharing = sharing and self._share(values)
            self._send_waiting(_clock())

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
        keep = max([self._keep, *self._keeps.values()]) + 1  # for items that waited for the end of a step
        spec = {f"c{i}": Field(dtype.name, shape) for i, (dtype, shape) in enumerate(layouts)}
        writer = self._client.native.writer(spec, keep_alive=keep, max_in_flight=self._max_in_flight,
                                            chunk_length=min(self._chunk_length, keep))
        self._stream = _Stream(writer, {column: i for i, column in enumerate(columns)}, layouts, keep)

    def create_item(self, table: str, priority: float, trajectory: Any) -> None:
        """Creates an item from values of the history: a structure of ``history[...]``.

        Waits for the items before it only where items that share rows and items that are copies follow each other.
        """
        self._check_open()
        node = _structure.node_of(trajectory, (TrajectoryColumn,))
        names, columns = _structure.names(node), nest.flatten(node, trajectory)
        if not columns:
            raise ValueError("a trajectory must have at least one column")
        for name, column in zip(names, columns):
            if not isinstance(column, TrajectoryColumn):
                raise TypeError(f"'{name}' of the trajectory must be values of a history, such as history['a'][-2:], not "
                                f"{type(column).__name__}")
        self._create(table, priority, names, columns)

    def _create(self, table: str, priority: float, names: Sequence[str], columns: Sequence[TrajectoryColumn]) -> None:
        wanted = self._client.stored_signature(table)
        if wanted is not None:
            _structure.check(table, wanted.specs, [self._spec(name, column) for name, column in zip(names, columns)])
        if not (math.isfinite(priority) and priority >= 0):
            raise ValueError(f"the priority of an item must be 0 or more, and finite, not {priority}")
        values = [[reference.stored(self) for reference in column] for column in columns]
        names = [name + part[0].suffix for name, part in zip(names, values)]
        item = _Item(table, float(priority), names, columns, values)
        if self._waiting or self._sharing and any(reference.step == self._steps for column in columns for reference in column):
            self._waiting.append(item)
            return
        with translated:
            self._send(item, _clock())

    def _spec(self, name: str, column: TrajectoryColumn) -> _structure.Spec:
        """What the table's signature must say of a field."""
        return _structure.Spec(name, dtype_name(column.dtype), column.shape)

    def _send_waiting(self, left: Left) -> None:
        while self._waiting:
            item = self._waiting.popleft()
            try:
                self._send(item, left)
            except DeadlineExceeded:
                self._waiting.appendleft(item)
                raise

    def _send(self, item: _Item, left: Left) -> None:
        selection = self._selection(item)
        if selection is None:
            self._switch(self._copies, left)
            self._copies.create(item.table, item.priority, [
                Rows(name, _codec.stack([value.array for value in values], values[0].suffix), column.is_squeezed)
                for name, values, column in zip(item.names, item.values, item.columns)])
        else:
            self._switch(self._stream.writer, left)
            self._stream.writer.item(item.table, item.priority, selection)

    def _selection(self, item: _Item) -> Any:
        """The fields as slices of the stream; None if they cannot be."""
        if not self._sharing or self._stream is None:
            return None
        slices = []
        for name, column in zip(item.names, item.columns):
            refs = tuple(column)
            first, last = refs[0].step, refs[-1].step
            stride = refs[1].step - first if len(refs) > 1 else 1
            regular = len(refs) < 3 or all(ref.step == first + i * stride for i, ref in enumerate(refs))
            if stride < 1 or not regular or last >= self._steps or first < self._steps - self._stream.keep:
                return None
            if any(ref.column != refs[0].column for ref in refs):
                return None
            slices.append((name, self._stream.columns[refs[0].column], len(refs), first - self._steps, stride, column.is_squeezed))
        return _core.Selection(tuple(slices))

    def _switch(self, writer: Any, left: Left) -> None:
        """Items reach the tables in the order of their creation: another writer's items come after the present one's."""
        if self._last is not None and self._last is not writer:
            self._last.flush(0, left())
        self._last = writer

    def flush(self, block_until_num_items: int = 0, timeout_ms: Optional[int] = None) -> None:
        """Waits until at most block_until_num_items items are not in their tables yet."""
        self._check_open()
        if block_until_num_items < 0:
            raise ValueError(f"block_until_num_items must be 0 or more, not {block_until_num_items}")
        left = _clock(timeout_ms)
        with translated:
            try:
                if len(self._waiting) > block_until_num_items:
                    self._send_waiting(left)
                if self._last is not None:
                    self._last.flush(block_until_num_items - len(self._waiting), left())
            except DeadlineExceeded:
                self._gave_up = True
                raise

    def end_episode(self, clear_buffers: bool = True, timeout_ms: Optional[int] = None) -> None:
        """Completes an open step, waits until all items are in their tables, then begins an episode. clear_buffers=False keeps the
        history."""
        self._check_open()
        if self._open:
            self.end_step()
        self.flush(0, timeout_ms)
        self._episode_steps = 0
        if not clear_buffers:
            return
        with translated:
            if self._stream is not None:
                self._stream.writer.end_episode(wait=False)
            self._copies.end_episode()
        self._episode += 1
        self._steps, self._sharing = 0, True
        for history in self._histories:
            history.reset()

    def configure(self, path: Sequence[Union[int, str]], *, num_keep_alive_refs: int, max_chunk_length: Optional[int]) -> None:
        """Sets how many values of the column at this path stay available for items. All columns share their chunks here."""
        if num_keep_alive_refs < 1:
            raise ValueError(f"num_keep_alive_refs must be 1 or more, not {num_keep_alive_refs}")
        if max_chunk_length is not None and not 1 <= max_chunk_length <= num_keep_alive_refs:
            raise ValueError(f"max_chunk_length must be between 1 and num_keep_alive_refs {num_keep_alive_refs}, not "
                             f"{max_chunk_length}")
        self._keeps[tuple(path)] = num_keep_alive_refs
        if tuple(path) in self._columns:
            self._columns[tuple(path)].resize(num_keep_alive_refs)

    def close(self) -> None:
        """Closes the writer. Items have a few seconds to reach their tables, or no time if an earlier wait for them timed out; flush
        waits as long as it takes."""
        if self._closed:
            return
        self._closed = True
        left = _clock(0 if self._gave_up else CLOSE_MS)
        closings = [lambda: self._send_waiting(left), lambda: self._copies.close(left())]
        if self._stream is not None:
            closings.append(lambda: self._stream.writer.close(left()))
        failure: Optional[Error] = None
        for close in closings:
            try:
                close()
            except DeadlineExceeded as error:
                logger.warning("a writer was closed, and its items that were not in their tables are lost: %s", error)
            except Error as error:
                failure = failure or error
        if self._stream is not None:
            self._stream.writer._give_up()
        if failure is not None:
            with translated:
                raise failure

    def _check_open(self) -> None:
        if self._closed:
            raise RuntimeError("this writer is closed")

    def __enter__(self) -> "TrajectoryWriter":
        return self

    def __exit__(self, kind: Any, *_: Any) -> None:
        if self._closed:
            return
        if kind is None:
            self.flush()
            self.close()
            return
        with contextlib.suppress(ReverbError, RuntimeError):  # the exception on its way out must not be hidden by another one
            if not issubclass(kind, ReverbError):
                self.flush(timeout_ms=EXIT_MS)
        with contextlib.suppress(ReverbError, RuntimeError):
            TrajectoryWriter.close(self)  # of this class: the older writer's waits for its items
