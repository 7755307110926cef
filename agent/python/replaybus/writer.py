"""Writing: steps go into a stream, and items refer to slices of its recent steps."""
import contextlib
import importlib
import threading
import time
import weakref
from typing import Any, Callable, Iterator, NamedTuple, Optional, Sequence, Union

import numpy as np

from . import _core, nest
from .closing import Flushing
from .errors import BY_STATUS, DeadlineExceeded, Error, InvalidArgument


class Field(NamedTuple):
    """The element type and the shape of one value of a step, for a spec.

    >>> Field("float32", (4,))
    Field(dtype='float32', shape=(4,))
    """

    dtype: str
    shape: tuple[int, ...] = ()


class Last(NamedTuple):
    """An item over the last ``steps`` steps after each step of a block, as soon as the episode has that many."""

    steps: int
    table: str
    priority: Any = 1.0


class Slice(NamedTuple):
    """Rows of a column: made by indexing a Column."""

    column: int
    start: int
    count: int  # type: ignore[assignment]  # hides tuple.count
    stride: int
    squeeze: bool


class Rejection(NamedTuple):
    """An item that the broker refused."""

    error: Error
    key: int
    table: str


class Compared:
    """The left side of a condition of ``Writer.pattern``: compare it with a number."""

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, kind: int, column: int) -> None:
        self._kind, self._column = kind, column

    def _comparison(code: int) -> Callable[["Compared", Any], Any]:  # type: ignore[misc]  # a function of the class body
        return lambda self, number: (self._kind, self._column, code, number)

    __eq__, __ne__, __lt__, __le__, __gt__, __ge__ = map(_comparison, range(1, 7))  # type: ignore[assignment]


class Column(Compared):
    """One value of the steps. ``column[-1]`` is its newest row, ``column[-3:]`` its last three, ``column[-9::4]`` every fourth.
    Its comparison with a number, ``column >= 1``, is a condition for ``Writer.pattern``."""

    def __init__(self, writer: "Writer", index: int, name: str, field: Field) -> None:
        super().__init__(5, index)
        self._writer = weakref.ref(writer)
        self.index, self.name, self.dtype, self.shape = index, name, field.dtype, field.shape

    def __repr__(self) -> str:
        return f"Column({self.name!r}, {self.dtype}, {self.shape})"

    def __getitem__(self, rows: Union[int, slice]) -> Slice:
        if not isinstance(rows, slice):
            return Slice(self.index, int(rows), 1, 1, True)
        stride = 1 if rows.step is None else int(rows.step)
        start = 0 if rows.start is None else int(rows.start)
        if stride < 1:
            raise ValueError(f"a slice of a column goes forward: its step is 1 or more, not {stride}")
        if rows.stop is None:
            return Slice(self.index, start, 0, stride, False)
        stop = int(rows.stop)
        if (start < 0) != (stop < 0):
            writer = self._writer()
            steps = writer.episode_steps if writer else 0
            start, stop = (start + steps if start < 0 else start), (stop + steps if stop < 0 else stop)
        count = -(-(stop - start) // stride)
        if count < 1:
            raise ValueError(f"the slice [{rows.start}:{rows.stop}] of column '{self.name}' is empty")
        return Slice(self.index, start, count, stride, False)


def is_bfloat16(value: Any) -> bool:
    """Whether a value is a tensor of torch of bfloat16, which numpy does not have."""
    return hasattr(value, "detach") and str(getattr(value, "dtype", "")) == "torch.bfloat16"


def _array(value: Any, dtype: str) -> np.ndarray:
    """A value as an array; a tensor of bfloat16 as float32, or as its bits for a column of that type."""
    if not is_bfloat16(value):
        return np.asarray(value)
    array = np.asarray(value.float())
    return (array.view(np.uint32) >> 16).astype(np.uint16) if dtype == "bfloat16" else array


def _field_of(value: Any) -> Field:
    """The field of an example value, or of a Field."""
    if isinstance(value, Field):
        if None in value.shape:
            raise ValueError(f"the shape {value.shape} has None: write that of one step, without the dimension of steps")
        return Field(np.dtype(value.dtype).name if value.dtype != "bfloat16" else "bfloat16", tuple(map(int, value.shape)))
    array = _array(value, "float32")
    if array.dtype.kind not in "biufc":
        raise ValueError(f"{type(value).__name__} ({array.dtype}) cannot be stored: use numbers, or arrays of numbers")
    return Field("bfloat16" if is_bfloat16(value) else array.dtype.name, array.shape)


def _value(data: Optional[bytes], field: Field) -> Optional[np.ndarray]:
    """A value of the history."""
    if data is None:
        return None
    return np.frombuffer(data, np.uint16 if field.dtype == "bfloat16" else field.dtype).reshape(field.shape)


def convert(value: Any, name: str, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    """A contiguous array of a column's type and shape, for a value that does not have them."""
    want = np.dtype("uint16" if dtype == "bfloat16" else dtype)
    try:
        array = _array(value, dtype)
    except (RuntimeError, TypeError) as error:  # a tensor with a gradient, or on a GPU
        raise type(error)(f"column '{name}': {error}") from None
    if array.shape != shape:
        raise ValueError(f"column '{name}' has shape {shape}, and the value has {array.shape}")
    is_number = isinstance(value, (bool, int, float, list)) and array.dtype.kind != "c"
    if dtype == "bfloat16" and array.dtype.kind == "f" or not is_number and not np.can_cast(array.dtype, want, "same_kind"):
        how = "to uint16 with the same bits" if dtype == "bfloat16" else "first"
        raise ValueError(f"column '{name}' is {dtype}, and the value is {array.dtype}: convert it {how}")
    with contextlib.suppress(OverflowError):
        out = np.ascontiguousarray(array, dtype=want).reshape(shape)
        if want.kind not in "iub" or np.can_cast(array.dtype, want) or np.array_equal(out, array):
            return out
    shown = repr(value) if is_number or array.size == 1 else f"numbers from {array.min()} to {array.max()}"
    raise ValueError(f"column '{name}' is {dtype}, which cannot hold {shown}")


_ELEMENTS = ("bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64 complex64 complex128").split()


def learn_numpy(extension: Any = _core) -> dict[str, bool]:
    """Hands numpy's functions to an extension, and a value of each element type. Returns which are read in place from now on."""
    try:
        multiarray = importlib.import_module("numpy._core._multiarray_umath")
    except ImportError:  # before numpy 2
        multiarray = importlib.import_module("numpy.core._multiarray_umath")
    extension.numpy_setup(multiarray._ARRAY_API)
    arrays = {name: np.zeros((2, 3), name) for name in _ELEMENTS}
    return {name: extension.numpy_learn(array, array.T, array[0, 0]) for name, array in arrays.items()}


class StreamShape:
    """The structure and the columns of a stream."""

    def __init__(self, spec: Any) -> None:
        self.node = nest.node_of(spec, (Field,))
        self.names = nest.names(self.node)
        self.fields = []
        for name, leaf in zip(self.names, nest.flatten(self.node, spec)):
            try:
                self.fields.append(_field_of(leaf))
            except (RuntimeError, TypeError, ValueError) as error:
                raise type(error)(f"column '{name}': {error}") from None


class Writer(_core.Writer, Flushing):
    """A stream of steps, and items over them. ``Client.writer`` makes one.

    The first step, or ``spec``, decides the structure, element types and shapes of all steps.

    >>> import numpy as np, replaybus
    >>> with replaybus.Server([replaybus.Table("replay")]) as server, server.client() as client:
    ...     with client.writer(keep_alive=2) as writer:
    ...         for t in range(3):
    ...             writer.append({"obs": np.full(2, t, "float32"), "reward": 1.0})
    ...         key = writer.item("replay", priority=1.0, slices=2)
    ...     batch = next(client.sampler("replay", batch_size=1))
    ...     batch.data["obs"].tolist()
    [[[1.0, 1.0], [2.0, 2.0]]]
    """

    def __init__(self, client: "_core.Client", spec: Any = None, *, name: Optional[str] = None, chunk_length: int = 1,
                 keep_alive: Optional[int] = None, max_in_flight: Optional[int] = None, history: bool = False,
                 compress: bool = True, timeout: Optional[float] = None) -> None:
        if keep_alive is not None and keep_alive < 0:
            raise ValueError(f"keep_alive is {keep_alive}: it must be 0 or more steps")
        self._options = name, chunk_length, max(keep_alive or 0, chunk_length, 1), max_in_flight or 0, history, compress, timeout
        self._shape: Optional[StreamShape] = None
        self._policy: Optional[int] = None  # until the stream is open
        self._group = 0
        self._lock = threading.RLock()  # a signal handler may use the writer while it opens
        _live.add(self)
        if spec is not None:
            self._first(spec)

    def _first(self, step: Any) -> None:
        """Opens the stream with the structure of a step. The extension calls it before the first append."""
        with self._lock:
            if self._shape is None:
                shape = StreamShape(step)
                columns = tuple((name, *field) for name, field in zip(shape.names, shape.fields))
                self._open(nest.plan(shape.node), columns, *self._options)
                self._shape = shape
                if self._policy is not None:
                    super().set_policy(self._policy)
                super().set_group(self._group)

    def set_policy(self, version: int) -> None:
        """Sets the version of the parameters that make the steps from now on. ``batch.policy`` is the oldest of an item's steps."""
        if self.is_open:
            super().set_policy(version)
        self._policy = version

    def set_group(self, group: int) -> None:
        """Sets the group of the items from now on, for tables with groups: ``batch.group`` of the learner. 0: none. ``item(group=)``
        sets that of one item. With shards, a group lives at one of them: set it before the first step of an episode."""
        if self.is_open:
            super().set_group(group)
        self._group = group

    @property
    def columns(self) -> Any:
        """The structure of a step with a Column in the place of each value; index it to make slices of an item."""
        if self._shape is None:
            raise BY_STATUS[6]("the writer has no columns before its first step: give it a spec")
        return nest.pack(self._shape.node, self.columns_flat())

    def columns_flat(self) -> list[Column]:
        """The columns in order, without their structure."""
        return [Column(self, i, name, field) for i, (name, field) in enumerate(zip(self._shape.names, self._shape.fields))]

    def select(self, slices: Any) -> "_core.Selection":
        """Prepares the slices of items: a structure of slices of ``columns``. Pass the result to ``item`` again and again."""
        node = nest.node_of(slices, (Slice,))
        leaves = nest.flatten(node, slices)
        if not all(isinstance(leaf, Slice) for leaf in leaves):
            raise TypeError("slices are made by indexing Writer.columns: writer.columns['reward'][-3:]")
        return _core.Selection(tuple((name, leaf.column, leaf.count, leaf.start, leaf.stride, leaf.squeeze)
                                     for name, leaf in zip(nest.names(node), leaves)))

    @property
    def steps(self) -> "Compared":
        """The number of steps of the episode, for conditions of ``pattern``: ``writer.steps >= 3``."""
        return Compared(6, 0)

    def row(self, step: int = -1) -> Any:
        """The values of a step that items may still refer to: -1 is the newest, 0 the first of the episode.

        The writer must keep them: ``client.writer(history=True)``. A value that the step does not have is None.
        """
        rows = self._row(step)
        shape = self._shape
        return nest.pack(shape.node, [_value(data, field) for data, field in zip(rows, shape.fields)])

    def pattern(self, table: str, slices: Any, priority: float = 1.0, *, every: Optional[int] = None,
                min_steps: Optional[int] = None, modulo: Optional[tuple[int, int]] = None, at_end: bool = False,
                when: Sequence[tuple[int, int, int, float]] = ()) -> None:
        """Makes an item with these slices after each step for which all conditions hold.

        every: steps since the pattern's last item; min_steps: steps of the episode; modulo (a, b): the episode's steps modulo a
        are b; at_end: only at the end of an episode. when: comparisons of the newest values with numbers, or of the number of
        steps: ``[writer.columns["reward"] > 0, writer.steps <= 10]``. Slices count back from the newest step.
        """
        if not self.is_open:
            raise BY_STATUS[6]("the writer has no columns before its first step: give it a spec")
        conditions = list(when)
        if modulo is not None:
            conditions.append((1, 0, *modulo))
        if at_end:
            conditions.append((2, 0, 0, 0))
        if min_steps is not None:
            conditions.append((3, 0, min_steps, 0))
        if every is not None:
            conditions.append((4, 0, every, 0))
        self._add_pattern(table, float(priority), self.select(slices), tuple(conditions))

    def append_block(self, steps: Any, item: Optional[Last] = None, timeout: Optional[float] = None) -> int:
        """Appends many steps at once: arrays whose first dimension counts steps. With ``item``, makes an item after each step.

        Returns the number of items. The text of DeadlineExceeded says how many steps were appended with their items: go on from there.
        """
        if not self.is_open:
            self._first(_first_row(steps))
        return _append_rows((self,), True, steps, item, None, timeout)

    def rejections(self) -> Iterator[Rejection]:
        """The items that the broker refused since this was last asked."""
        while (row := self._rejection()) is not None:
            status, key, table, text = row
            yield Rejection(BY_STATUS[status](text), key, table)

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"{self.episode_steps} steps of this episode" if self.is_open else "no steps yet"
        columns = f", columns {', '.join(self._shape.names)}" if self._shape else ""
        return f"<replaybus.Writer: {state}{columns}>"


def _first_row(steps: Any) -> Any:
    node = nest.node_of(steps)
    leaves = [leaf if hasattr(leaf, "detach") else np.asarray(leaf) for leaf in nest.flatten(node, steps)]
    for name, leaf in zip(nest.names(node), leaves):
        if leaf.ndim == 0 or len(leaf) == 0:
            raise ValueError(f"column '{name}' has the shape {leaf.shape}: its first dimension must count steps, at least 1")
    return nest.pack(node, [leaf[0] for leaf in leaves])


def _append_rows(writers: tuple, block: bool, steps: Any, item: Optional[Last], done: Any, timeout: Optional[float],
                 sequence: Optional[tuple] = None) -> int:
    """Appends all rows to one writer if they are a block, otherwise row i to writer i."""
    count, table, priority = item or (1, None, 1.0)
    kept = writers[0]._options[2]
    if not 1 <= count <= kept:
        raise InvalidArgument(f"an item over the last {count} steps: it has 1 to {kept}, as many as the writer keeps (keep_alive)")
    if not isinstance(priority, (int, float)):
        priority = np.ascontiguousarray(_array(priority, "float64"), dtype=np.float64)
    if done is not None:
        done = np.ascontiguousarray(done, dtype=np.bool_)
    return _core.append_rows(writers, block, steps, table, count, priority, done, timeout, sequence)


class VectorWriter(Flushing):
    """A stream for each of n environments; one call appends a step to every one of them.

    >>> import numpy as np, replaybus
    >>> with replaybus.Server([replaybus.Table("replay")]) as server, server.client() as client:
    ...     with client.vector_writer(3, keep_alive=2) as writer:
    ...         item = replaybus.Last(2, "replay")
    ...         sum(writer.append({"obs": np.zeros((3, 4))}, done=np.array([False, t == 1, False]), item=item) for t in range(3))
    5
    """

    def __init__(self, client: "_core.Client", n: int, spec: Any = None, **options: Any) -> None:
        if n < 1:
            raise ValueError(f"a vector writer has at least 1 environment, not {n}")
        self._writers = tuple(Writer(client, spec, **options) for _ in range(n))

    def __len__(self) -> int:
        return len(self._writers)

    def append(self, steps: Any, done: Any = None, item: Optional[Last] = None, timeout: Optional[float] = None) -> int:
        """Appends row i of the arrays to stream i, makes its item, and ends its episode where done[i].

        Returns the number of items. After DeadlineExceeded no row was appended.
        """
        if not self._writers[-1].is_open:
            step = _first_row(steps)
            for writer in self._writers:
                writer._first(step)
        return _append_rows(self._writers, False, steps, item, done, timeout)

    def set_policy(self, version: int) -> None:
        """Sets the version of the parameters that make the items of all streams from now on."""
        for writer in self._writers:
            writer.set_policy(version)

    def set_group(self, groups: Sequence[int]) -> None:
        """Sets the group of the items of each stream from now on; see ``Writer.set_group``."""
        for writer, group in zip(self._writers, groups, strict=True):
            writer.set_group(int(group))

    def flush(self, max_unconfirmed: int = 0, timeout: Optional[float] = None) -> None:
        """Waits until each stream has at most max_unconfirmed unconfirmed items. ``timeout`` is for all streams together."""
        left = clock(timeout)
        for i, writer in enumerate(self._writers):
            try:
                writer.flush(max_unconfirmed, left())
            except DeadlineExceeded as error:
                raise DeadlineExceeded(f"stream {i} of {len(self)}, {timeout:g} s for all: {error}") from None

    def info(self) -> list[dict]:
        """Counts of steps and items of each stream."""
        return [writer.info() for writer in self._writers]

    def close(self, timeout: Optional[float] = None) -> None:
        """Waits until all items are confirmed, then closes the streams; those that are not done in time stay open. ``timeout`` is for all."""
        left, first = clock(timeout), None
        for i, writer in enumerate(self._writers):
            try:
                writer.close(left())
            except DeadlineExceeded as error:
                first = first or DeadlineExceeded(f"stream {i} of {len(self)}, {timeout:g} s for all: {error}")
            except Error as error:
                first = first or error
        if first is not None:
            raise first

    def _give_up(self) -> None:
        for writer in self._writers:
            writer._give_up()

    def __repr__(self) -> str:
        return f"<replaybus.VectorWriter: {len(self)} streams, the first is {self._writers[0]!r}>"


def clock(timeout: Optional[float]) -> Callable[[], Optional[float]]:
    """A function that returns what is left of a time-out, which several calls share."""
    if timeout is None or not timeout > 0:
        return lambda: timeout
    end = time.monotonic() + timeout
    return lambda: max(0.0, end - time.monotonic())


_live: "weakref.WeakSet[Any]" = weakref.WeakSet()
EXIT_SECONDS = 5.0


def close_at_exit(stream: Any) -> None:
    """Has ``close_all`` close what else has items that the broker has not confirmed."""
    _live.add(stream)


def close_all(timeout: float = EXIT_SECONDS) -> None:
    """Closes what is open at the end of the program: items get a few seconds to be confirmed."""
    left = clock(timeout)
    for stream in list(_live):
        stream._end(left())
