"""Items by rule: patterns of rows that count back from the newest step, and conditions that say when to make an item.

>>> step = create_reference_step({"a": None, "b": None})
>>> pattern = {"before": step["a"][-2], "both": step["b"][-2:]}
>>> config = create_config(pattern, table="replay", conditions=[Condition.step_index() % 2 == 1])
>>> config.rows
2
"""
import dataclasses
import operator
from typing import Any, Callable, NamedTuple, Optional, Sequence, Union

import numpy as np

from .. import nest
from . import _structure
from .reverb_types import TensorSpec, dtype_name, shape_of
from .trajectory_writer import TrajectoryWriter


@dataclasses.dataclass(frozen=True)
class PatternNode:
    """Rows of the column at a path, which count back from the newest step."""

    path: tuple
    rows: Union[int, slice]

    @property
    def depth(self) -> int:
        """The number of steps that an episode must have for these rows."""
        return -(self.rows.start if isinstance(self.rows, slice) else self.rows)

    def steps(self, count: int) -> range:
        """The numbers of the rows in an episode of ``count`` steps."""
        if isinstance(self.rows, slice):
            return range(*self.rows.indices(count))
        return range(count + self.rows, count + self.rows + 1)

    def shape(self, row: tuple) -> tuple:
        """The shape of the field, for rows of this shape."""
        return (len(self.steps(self.depth)), *row) if isinstance(self.rows, slice) else row


class ReferenceColumn:
    """A column of a step that does not exist yet; ``[-1]``, ``[-3:]`` and ``[-4:-1]`` make parts of a pattern."""

    def __init__(self, path: tuple) -> None:
        self.path = path

    def __getitem__(self, rows: Union[int, slice]) -> PatternNode:
        if isinstance(rows, slice):
            stop = -0.5 if rows.stop is None else rows.stop
            if rows.start is None or rows.start >= 0 or not rows.start < stop < 0 or (rows.step or 1) < 1:
                raise ValueError(f"a slice of a pattern counts back from the newest step and is not empty, such as [-3:] or "
                                 f"[-3:-1]; column {self.path} was given {rows}")
        elif rows >= 0:
            raise ValueError(f"a row of a pattern counts back from the newest step, -1; column {self.path} was given {rows}")
        return PatternNode(self.path, rows)


Pattern = Any  # a structure of PatternNode


class State(NamedTuple):
    """What conditions look at."""

    step_index: int
    steps_since_applied: int
    is_end_episode: bool
    data: Callable[[tuple], Any]


class _Test:
    """A condition that is complete."""

    def __init__(self, holds: Callable[[State], bool], at_end: bool = False) -> None:
        self.holds, self.at_end = holds, at_end


class _Value:
    """The left side of a condition: compare it with a number."""

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, read: Callable[[State], Any]) -> None:
        self._read = read

    def __mod__(self, number: int) -> "_Value":
        if number < 1:
            raise ValueError(f"the divisor must be 1 or more, not {number}")
        return _Value(lambda state: self._read(state) % number)

    def _comparison(compare: Callable[[Any, Any], bool]) -> Callable[["_Value", Any], Any]:  # type: ignore[misc]  # of the class body
        return lambda self, number: _Test(lambda state: bool(np.all(compare(self._read(state), number))))

    __eq__, __ne__ = _comparison(operator.eq), _comparison(operator.ne)  # type: ignore[assignment]
    __lt__, __le__ = _comparison(operator.lt), _comparison(operator.le)
    __gt__, __ge__ = _comparison(operator.gt), _comparison(operator.ge)


class Condition:
    """When a pattern makes an item: compare one of these with a number."""

    @staticmethod
    def step_index() -> _Value:
        """The number of the newest step in its episode, from 0."""
        return _Value(lambda state: state.step_index)

    @staticmethod
    def steps_since_applied() -> _Value:
        """The number of steps since the pattern made its last item."""
        return _Value(lambda state: state.steps_since_applied)

    @staticmethod
    def is_end_episode() -> _Test:
        """The episode ends: the pattern makes items in end_episode only."""
        return _Test(lambda state: state.is_end_episode, at_end=True)

    @staticmethod
    def data(step_structure: Any) -> Any:
        """The values of the newest step: a structure like a step's."""
        def value(path: tuple) -> _Value:
            return _Value(lambda state: state.data(path))
        return _mapped(step_structure, value)


def _mapped(structure: Any, make: Callable[[tuple], Any]) -> Any:
    node = _structure.node_of(structure)
    return nest.pack(node, map(make, _structure.paths(node)))


def create_reference_step(step_structure: Any) -> Any:
    """The structure of a step with a ReferenceColumn in the place of each value; index it to make a pattern."""
    return _mapped(step_structure, ReferenceColumn)


def pattern_from_transform(step_structure: Any, transform: Callable[[Any], Any]) -> Any:
    """The pattern that a function makes of a reference step."""
    return transform(create_reference_step(step_structure))


class TdError(NamedTuple):
    """A priority from the absolute values of a column: a weighted sum of their greatest and their mean."""

    max_priority_weight: float
    path: tuple

    def of(self, errors: np.ndarray) -> float:
        """The priority of an item that has these errors."""
        sizes = np.abs(errors.astype(np.float64))
        return float(self.max_priority_weight * sizes.max() + (1 - self.max_priority_weight) * sizes.mean())


def td_error(max_priority_weight: float, step_structure: Any,
             get_field_from_step_fn: Callable[[Any], ReferenceColumn]) -> TdError:
    """A priority for ``create_config``: made of the errors in a column, over all steps that the item spans."""
    if not 0 <= max_priority_weight <= 1:
        raise ValueError(f"max_priority_weight must be between 0 and 1, not {max_priority_weight}")
    column = get_field_from_step_fn(create_reference_step(step_structure))
    if not isinstance(column, ReferenceColumn):
        raise TypeError("get_field_from_step_fn must return a column of the step")
    return TdError(float(max_priority_weight), column.path)


class Config:
    """A rule: after each step for which all conditions hold and which has enough steps before it, make an item."""

    def __init__(self, pattern: Any, table: str, conditions: Sequence[_Test] = (), priority: Union[float, TdError] = 1.0) -> None:
        self.table, self.conditions = table, tuple(conditions)
        self.priority = priority if isinstance(priority, TdError) else float(priority)
        self.node = _structure.node_of(pattern)
        self.nodes = nest.flatten(self.node, pattern)
        if not self.nodes:
            raise ValueError("a pattern must have rows of at least one column")
        for part in self.nodes:
            if not isinstance(part, PatternNode):
                raise TypeError(f"a pattern consists of rows of a reference step, such as step['a'][-1], not {part!r}")
        for condition in self.conditions:
            if not isinstance(condition, _Test):
                raise TypeError("a condition is a comparison, such as Condition.step_index() >= 2")
        self.rows = max(part.depth for part in self.nodes)
        self.at_end = any(condition.at_end for condition in self.conditions)

    def applies(self, state: State, steps: int) -> bool:
        """Whether the rule makes an item now, of so many steps."""
        return self.at_end == state.is_end_episode and steps >= self.rows and all(test.holds(state) for test in self.conditions)


create_config = Config


def unpack_pattern(config: Config) -> Any:
    """The pattern of a rule."""
    return nest.pack(config.node, config.nodes)


def infer_signature(configs: Sequence[Config], step_spec: Any) -> Any:
    """The signature of the items that rules make of steps like ``step_spec``, a structure of arrays or specs.

    >>> step = create_reference_step({"a": None})
    >>> rules = [create_config({"x": step["a"][-3:]}, "t"), create_config({"x": step["a"][-2:]}, "t")]
    >>> infer_signature(rules, {"a": np.zeros(4, np.float32)})
    {'x': TensorSpec(shape=(None, 4), dtype=float32, name='x')}
    """
    if not configs:
        raise ValueError("At least one config must be provided.")
    tables = sorted({config.table for config in configs})
    if len(tables) > 1:
        raise ValueError(f"All configs must target the same table but provided configs included {', '.join(tables)}.")
    node = configs[0].node
    if any(config.node != node for config in configs):
        raise ValueError("All configs must have exactly the same pattern_structure.")
    spec_node = _structure.node_of(step_spec)
    columns = dict(zip(_structure.paths(spec_node), nest.flatten(spec_node, step_spec)))
    fields = zip(_structure.paths(node), zip(*(config.nodes for config in configs)))
    return nest.pack(node, [_inferred(path, parts, columns) for path, parts in fields])


def _inferred(path: tuple, parts: Sequence[PatternNode], columns: dict) -> TensorSpec:
    """The spec of a field that several patterns fill."""
    for part in parts:
        if part.path not in columns:
            raise ValueError(f"the step has no column {part.path}, which the pattern has at {path}")
    dtypes = sorted({dtype_name(columns[part.path].dtype) for part in parts})
    if len(dtypes) > 1:
        raise ValueError(f"Configs produce trajectories with multiple dtypes at {path}. Got {dtypes}.")
    shapes = [part.shape(shape_of(columns[part.path].shape)) for part in parts]
    if len({(len(shape), shape[1:]) for shape in shapes}) > 1:
        raise ValueError(f"Configs produce trajectories with incompatible shapes at {path}. Got {shapes}.")
    shape = shapes[0] if len(set(shapes)) == 1 else (None, *shapes[0][1:])
    return TensorSpec(shape, columns[parts[0].path].dtype, "/".join(map(str, path)))


class StructuredWriter(TrajectoryWriter):
    """Appends steps; the rules make the items. ``Client.structured_writer`` makes one."""

    def __init__(self, client: Any, configs: Sequence[Config]) -> None:
        if not configs:
            raise ValueError("a structured writer must have at least one config")
        super().__init__(client, max(config.rows for config in configs))
        self._configs, self._since = tuple(configs), [0] * len(configs)
        self._first: Optional[set[tuple]] = None  # the columns of the first step, which are those of all steps
        self._ended = False

    def append(self, data: Any, *, partial_step: bool = False) -> None:
        """Appends a step, or a part of one, and makes the items of a step that is complete."""
        if self._first is not None:
            node = _structure.node_of(data)
            paths = _structure.paths(node)
            if any(value is not None and path not in self._first for path, value in zip(paths, nest.flatten(node, data))):
                raise ValueError(f"Flattened data has an unexpected length, got {len(paths)} but wanted {len(self._first)}.")
        super().append(data, partial_step=partial_step)

    def end_step(self) -> None:
        """Completes the present step, and makes its items."""
        super().end_step()
        self._ended = False
        if self._first is None:
            self._first = set(_structure.paths(self._node))
        self._since = [steps + 1 for steps in self._since]
        self._apply(at_end=False)

    def _apply(self, at_end: bool) -> None:
        steps = self.episode_steps
        for i, config in enumerate(self._configs):
            if config.applies(State(steps - 1, self._since[i], at_end, self._newest), steps):
                self._make(i, config)

    def _make(self, i: int, config: Config) -> None:
        """Makes an item, unless one of its rows has no value."""
        columns = [self.column(part.path) for part in config.nodes]
        if all(column is not None and all(map(column.has, part.steps(len(column))))
               for column, part in zip(columns, config.nodes)):
            fields = [column[part.rows] for column, part in zip(columns, config.nodes)]
            self.create_item(config.table, self._priority(config), nest.pack(config.node, fields))
            self._since[i] = 0

    def _priority(self, config: Config) -> float:
        if not isinstance(config.priority, TdError):
            return config.priority
        column = self.column(config.priority.path)
        if column is None:
            raise ValueError(f"no step has a column {config.priority.path}, which the priority is made of")
        return config.priority.of(column[-config.rows:].numpy())

    def _newest(self, path: tuple) -> Any:
        """The newest value of a column; NaN, which equals no number, if there is none."""
        column = self.column(path)
        return column[-1].numpy() if column is not None and column.has(len(column) - 1) else np.nan

    def end_episode(self, clear_buffers: bool = True, timeout_ms: Optional[int] = None) -> None:
        """Makes the items of the episode's end, waits until all items are in their tables, and begins an episode."""
        self._check_open()
        if self.step_is_open:
            self.end_step()
        if self.episode_steps and not self._ended:
            self._ended = True  # a call that is repeated after a time-out makes no second item
            self._apply(at_end=True)
        super().end_episode(clear_buffers, timeout_ms)
        self._since = [0] * len(self._configs)
