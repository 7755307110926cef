"""A writer whose items are any selection of the recent steps' values."""
from __future__ import annotations

import collections
import operator
from typing import Any, Iterator, Optional, Sequence, Union

import numpy as np

from .. import nest
from . import _structure
from ._inner import AutoTunedChunkerOptions, ColumnError, ConstantChunkerOptions, NamedColumns
from .errors import ReverbError, translated

EXIT_MS = 5000  # for the items of a block that an exception has ended


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

    def __init__(self, path: tuple, buffer_size: int, history_padding: int = 0) -> None:
        self._path = path
        self._references: collections.deque = collections.deque([None] * min(history_padding, buffer_size), buffer_size)
        self._count = history_padding

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

    def has(self, step: int) -> bool:
        """Whether the value of a step is kept."""
        index = step - (self._count - len(self._references))
        return 0 <= index < len(self._references) and self._references[index] is not None

    def append(self, reference: Any) -> None:
        """Adds the value of the newest step; None: the step has none."""
        self._references.append(reference)
        self._count += 1

    def resize(self, buffer_size: int) -> None:
        """Sets how many values are kept."""
        self._references = collections.deque(self._references, buffer_size)

    def reset(self) -> None:
        """Forgets all values."""
        self._references.clear()
        self._count = 0


class TrajectoryWriter:
    """Appends steps, and creates items from their history. ``Client.trajectory_writer`` makes one.

    >>> import replaybus.reverb as reverb
    >>> server = reverb.Server([reverb.Table.queue("queue", 10)])
    >>> client = server.localhost_client()
    >>> with client.trajectory_writer(num_keep_alive_refs=3) as writer:
    ...     for t in range(3):
    ...         _ = writer.append({"reward": float(t), "action": t})
    ...     writer.create_item("queue", 1.0, {"r": writer.history["reward"][-2:], "a": writer.history["action"][-1]})
    >>> [column.tolist() for column in next(client.sample("queue", emit_timesteps=False)).data]
    [2, [1.0, 2.0]]
    >>> server.stop()
    """

    def __init__(self, internal_writer: Any) -> None:
        self._writer = internal_writer
        self._node: Optional[nest.Node] = None
        self._paths: list[tuple] = []
        self._histories: list[_ColumnHistory] = []
        self._indices: dict[tuple, int] = {}
        self._history: Any = None
        self._plans: dict[nest.Node, list[int]] = {}  # by structure of a step: the column of each value
        self._configs: dict[tuple, Any] = {}
        self._set: set[int] = set()  # columns with a value in the open step
        self._episode_steps = 0
        self._steps = 0  # in the histories
        self._closed = False

    # ---- steps

    @property
    def history(self) -> Any:
        """The structure of a step, with the history of a column in the place of each value."""
        if self._node is None:
            raise RuntimeError("history is empty before the first append")
        if self._history is None:
            self._history = _structure.pack(self._node, [self.column(path) for path in _structure.paths(self._node)])
        return self._history

    def column(self, path: tuple) -> Optional[_ColumnHistory]:
        """The history of the column at this path in a step; None if no step has had it."""
        index = self._indices.get(path)
        return None if index is None else self._histories[index]

    @property
    def episode_steps(self) -> int:
        """The number of complete steps in the present episode."""
        return self._episode_steps

    @property
    def step_is_open(self) -> bool:
        """Whether the newest step is incomplete."""
        return bool(self._set)

    def append(self, data: Any, *, partial_step: bool = False) -> Any:
        """Appends a step, or with partial_step=True a part of one, which the next call continues. None: no value.

        Returns the structure with a reference to each value.
        """
        self._check_open()
        node = _structure.node_of(data)
        values = nest.flatten(node, data)
        if not values:
            raise ValueError("a step must have at least one value")
        plan = self._plans.get(node)
        if plan is None or any(index < 0 and value is not None for index, value in zip(plan, values)):
            plan = self._new_plan(node, data, values)
        flat: list[Any] = [None] * len(self._paths)
        for index, value in zip(plan, values):
            if index >= 0:
                flat[index] = value
        for index in self._set:
            if flat[index] is not None:
                raise ValueError(f"Field {self._paths[index]} has already been set in the active step by previous (partial) "
                                 f"append call and thus must be omitted or set to None but got: {flat[index]}")
        try:
            references = self._writer.AppendPartial(flat) if partial_step else self._writer.Append(flat)
        except ColumnError as error:
            raise ValueError(self._about(error)) from None
        self._record(references, complete=not partial_step)
        return _structure.pack(node, [references[index] if index >= 0 else None for index in plan])

    def _new_plan(self, node: nest.Node, data: Any, values: list) -> list[int]:
        """Finds the column of each value of a step with this structure. Adds the columns that are new."""
        self._node = _structure.merged(self._node, node, data)
        for path, value in zip(_structure.paths(node), values):
            if value is not None and path not in self._indices:
                self._add_column(path)
        self._plans[node] = [self._indices.get(path, -1) for path in _structure.paths(node)]
        return self._plans[node]

    def _add_column(self, path: tuple) -> None:
        self._history = None
        index = self._indices[path] = len(self._paths)
        self._paths.append(path)
        self._histories.append(_ColumnHistory(path, self._writer.max_num_keep_alive_refs, self._steps))
        if path in self._configs:
            self._configure(index, self._configs.pop(path))

    def _about(self, error: ColumnError) -> str:
        """The message of a refused value."""
        return error.about(str(self._paths[error.index]))

    def _record(self, references: Sequence[Any], complete: bool) -> None:
        """Adds references to the histories."""
        for index, reference in enumerate(references):
            if reference is not None:
                self._histories[index].append(reference)
                self._set.add(index)
        if complete:
            self._end_step()

    def end_step(self) -> None:
        """Completes an open step. Columns that were not set have no value in it."""
        self._writer.Append([None] * len(self._paths))
        self._end_step()

    def _end_step(self) -> None:
        for index, history in enumerate(self._histories):
            if index not in self._set:
                history.append(None)
        self._set.clear()
        self._steps += 1
        self._episode_steps += 1

    # ---- items

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
        with translated():
            self._writer.CreateItem(table, priority, NamedColumns([list(column) for column in columns], names),
                                    [column.is_squeezed for column in columns])

    # ---- waiting

    def flush(self, block_until_num_items: int = 0, timeout_ms: Optional[int] = None) -> None:
        """Waits until at most block_until_num_items items are not in their tables yet."""
        self._check_open()
        if block_until_num_items < 0:
            raise ValueError(f"block_until_num_items must be 0 or more, not {block_until_num_items}")
        with translated():
            self._writer.Flush(block_until_num_items, timeout_ms)

    def end_episode(self, clear_buffers: bool = True, timeout_ms: Optional[int] = None) -> None:
        """Waits until all items are in their tables, then begins an episode. clear_buffers=False keeps the history."""
        self._check_open()
        if self._set:
            self._end_step()
        with translated():
            self._writer.EndEpisode(clear_buffers, timeout_ms)
        self._episode_steps = 0
        if clear_buffers:
            self._steps = 0
            for history in self._histories:
                history.reset()

    def configure(self, path: Sequence[Union[int, str]], *, num_keep_alive_refs: int, max_chunk_length: Optional[int]) -> None:
        """Sets how many values of the column at this path stay available for items. All columns share their chunks here."""
        if num_keep_alive_refs < 1:
            raise ValueError(f"num_keep_alive_refs must be 1 or more, not {num_keep_alive_refs}")
        if max_chunk_length is not None and not 1 <= max_chunk_length <= num_keep_alive_refs:
            raise ValueError(f"max_chunk_length must be between 1 and num_keep_alive_refs {num_keep_alive_refs}, not "
                             f"{max_chunk_length}")
        options: Any = AutoTunedChunkerOptions(num_keep_alive_refs, 1.0)
        if max_chunk_length is not None:
            options = ConstantChunkerOptions(max_chunk_length, num_keep_alive_refs)
        if tuple(path) in self._indices:
            self._configure(self._indices[tuple(path)], options)
        else:
            self._configs[tuple(path)] = options

    def _configure(self, index: int, options: Any) -> None:
        self._histories[index].resize(options.num_keep_alive_refs)
        self._writer.ConfigureChunker(index, options)

    def close(self) -> None:
        """Closes the writer. Items have a few seconds to reach their tables; flush waits as long as it takes."""
        if not self._closed:
            self._closed = True
            self._writer.Close()

    def _check_open(self) -> None:
        if self._closed:
            raise RuntimeError("this writer is closed")

    def __enter__(self) -> "TrajectoryWriter":
        return self

    def __exit__(self, kind: Any, *_: Any) -> None:
        if kind is None:
            self.flush()
            self.close()
            return
        try:  # the exception on its way out must not be hidden by another one
            if not issubclass(kind, ReverbError):
                self.flush(timeout_ms=EXIT_MS)
            self.close()
        except (ReverbError, RuntimeError):
            pass
