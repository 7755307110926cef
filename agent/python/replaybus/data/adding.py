"""Rows of a file become items, as the adders of actors make them (docs/GUIDE.md): transitions over n steps, sequences, episodes."""
import collections
from typing import Any, Iterable, NamedTuple, Optional

import numpy as np

from .. import nest
from ..client import Client
from ..errors import Error, InvalidArgument
from ..sequences import FIRST, LAST, MID
from ..writer import Field, Slice
from .files import Place, Row


class Counts(NamedTuple):
    """What was read or written. dropped: steps at the cut end of an episode, whose next observation is not known."""

    steps: int
    episodes: int
    items: int
    dropped: int = 0


class Adder:
    """Writes rows to a table. Of ``length`` and ``whole`` at most one is given; without, items are transitions over ``n_step`` steps."""

    def __init__(self, client: Client, table: str, *, n_step: int = 1, discount: float = 0.99, length: int = 0, period: int = 0,
                 whole: int = 0, dtypes: Optional[dict[str, str]] = None, text: bool = False) -> None:
        if n_step < 1 or length < 0 or period < 0 or whole < 0 or not 0 <= discount <= 1 or bool(length) + bool(whole) + (n_step > 1) > 1:
            raise InvalidArgument("give one of n_step (1 or more), length (of sequences) and whole (the longest episode), and a discount "
                                  "from 0 to 1")
        self._client, self._table, self._n, self._discount = client, table, n_step, discount
        self._sequences = client.sequence_adder(1, table, length=length, period=period or length) if length else None
        self._whole = whole
        self._text, self._dtypes = text, dict(dtypes or {})
        self._writer: Any = None
        self._held: Optional[dict] = None  # the newest step of a sequence
        self._selections: dict = {}
        self._window: collections.deque = collections.deque(maxlen=n_step)  # (reward, discount) of the newest steps
        self._rows = 0
        self.steps = self.episodes = self.items = self.dropped = 0

    def _open(self, place: Place, row: Row) -> None:
        """Decides element types and shapes: those of the table's items, else the ones that were asked for, else the file's."""
        stored = self._client.signature(self._table)
        known = stored if isinstance(stored, dict) else {}
        spec: dict[str, Any] = {}
        for name, value in (("observation", row.observation), ("action", row.action)):
            node = nest.node_of(value)
            try:
                fields = nest.flatten(node, known[name]) if name in known else [None] * len(nest.flatten(node, value))
            except (ValueError, KeyError, TypeError):
                raise place.wrong(row.place, f"'{name}' has another structure than in table '{self._table}': {known[name]}") from None
            leaves = zip(nest.names(node), nest.flatten(node, value), fields)
            spec[name] = nest.pack(node, [Field(self._dtype(name, path, leaf, field), np.shape(leaf)) for path, leaf, field in leaves])
        spec.update(reward=Field("float32"), discount=Field("float32"))
        if self._whole:
            spec["step_type"] = Field("uint8")
        self._zeros = {name: nest.mapped(lambda field: np.zeros(field.shape, field.dtype), part, leaf=(Field,)) for name, part in spec.items()}
        self._spec = spec
        self._writer = self._sequences or self._client.writer(spec, keep_alive=max(self._n, self._whole) + 1)

    def _dtype(self, name: str, path: str, value: Any, field: Optional[Field]) -> str:
        asked = self._dtypes.get(name if path == "." else f"{name}/{path}", self._dtypes.get(name))
        if asked or field:
            return asked or field.dtype
        kind = np.asarray(value).dtype
        if not self._text:
            return kind.name
        return "float32" if name == "observation" or kind.kind == "f" else kind.name

    def _cast(self, place: Place, row: Row, name: str, value: Any) -> Any:
        """A value of the row in the element types of its column."""
        try:
            return nest.mapped(_fit, self._spec[name], value, leaf=(Field,))
        except (ValueError, KeyError, TypeError, OverflowError) as error:
            raise place.wrong(row.place, f"'{name}' does not fit: {error}; mend the file, or choose the element type of an empty "
                              f"table with --dtype {name}=float32") from None

    def add_all(self, place: Place, rows: Iterable[Row]) -> None:
        """Adds the rows of a file. Where it says nothing else, its end is the end of an episode."""
        held: Optional[Row] = None
        try:
            for row in rows:
                if held is not None:
                    self._add_held(place, held, row)
                elif row.action is None and self._rows:
                    raise place.wrong(row.place, "an observation without an action follows the end of an episode")
                held = row if row.action is not None else None
            if held is not None:
                self._add(place, held, held.next_observation, True)
        except Error:
            raise
        except (ValueError, TypeError, LookupError, RuntimeError) as error:  # values of kinds that nothing above expects
            raise place.wrong(held.place if held else "", f"{error}: the file does not hold steps as they are needed here") from None

    def _add_held(self, place: Place, held: Row, row: Row) -> None:
        """Adds a step, now that the row after it is known."""
        following = held.next_observation
        ends = bool(_number(held.terminated) or _number(held.truncated) or row.action is None or differ(held.episode, row.episode)
                    or following is not None and differ(following, row.observation))
        if following is None and (row.action is None or not ends):
            following = row.observation
        self._add(place, held, following, ends)

    def _add(self, place: Place, row: Row, following: Any, ends: bool) -> None:
        if self._writer is None:
            self._open(place, row)
        terminated = bool(_number(row.terminated))
        observation = self._cast(place, row, "observation", row.observation)
        if ends and following is None and not terminated:  # s_T is not known: this step cannot be used, its observation is s_T
            self.dropped += 1
            if self._rows:
                self._end(observation)
            return
        reward = float(_number(row.reward))
        factor = (0.0 if terminated else 1.0) if row.discount is None else float(_number(row.discount))
        if not np.isfinite(reward) or not np.isfinite(factor):
            raise place.wrong(row.place, f"the reward is {reward} and the discount {factor}: they must be finite numbers")
        self._step(observation, self._cast(place, row, "action", row.action), reward, factor)
        self.steps += 1
        if ends:
            self._end(observation if following is None else self._cast(place, row, "observation", following))

    def _append(self, observation: Any, action: Any, reward: float, discount: float, kind: int) -> None:
        row = {"observation": observation, "action": action, "reward": reward, "discount": discount}
        if "step_type" in self._spec:
            row["step_type"] = kind
        self._writer.append(row)
        self._rows += 1

    def _step(self, observation: Any, action: Any, reward: float, factor: float) -> None:
        if self._sequences:
            self._sequence(False, None)
            self._held = {"observation": observation, "action": action, "reward": np.float32(reward), "discount": np.float32(factor)}
            self._rows += 1
            return
        if self._whole:
            if self._rows >= self._whole:
                raise InvalidArgument(f"an episode has more than {self._whole} steps: raise --whole")
            self._append(observation, action, reward, factor, MID if self._rows else FIRST)
            return
        self._append(observation, action, *self._sums(), MID)
        if self._window:
            self._item(len(self._window), 0)
        self._window.append((reward, factor))

    def _end(self, observation: Any) -> None:
        zeros = self._zeros
        if self._sequences:
            self._sequence(True, observation)
        elif self._whole:
            self._append(observation, zeros["action"], 0.0, 0.0, LAST)
            self._make("whole", lambda column, _: Slice(column, 0, 0, 1, False))
        else:
            k = len(self._window)
            for j in range(k):
                self._append(zeros["observation"] if j else observation, zeros["action"], *self._sums(), MID)
                self._item(k, j)
                self._window.popleft()
        if not self._sequences:
            self._writer.end_episode(wait=False)
        self._window.clear()
        self._rows = 0
        self.episodes += 1

    def _sums(self) -> tuple[float, float]:
        """R and D of the window: its discounted rewards, and the product of its discounts, of which the learner applies the last."""
        total, factor, product = 0.0, 1.0, 0.0
        for reward, discount in self._window:
            total += factor * reward
            product = factor * discount
            factor = product * self._discount
        return total, product

    def _sequence(self, ends: bool, last: Any) -> None:
        """Adds the newest step, now that it is known whether the episode ends with it."""
        if self._held is not None:
            rows, last = (nest.mapped(lambda value: np.asarray(value)[None], part) if part is not None else None for part in (self._held, last))
            self.items += self._sequences.add(rows, truncated=np.array([ends]), last=last)
        self._held = None

    def _item(self, k: int, j: int) -> None:
        """A transition that begins k rows before the newest; its last observation is j rows before the newest."""
        back = {"observation": k + 1, "action": k + 1, "reward": 1, "discount": 1, "next_observation": j + 1}
        self._make((k, j), lambda column, name: Slice(column, -back[name], 1, 1, True))

    def _make(self, key: Any, slice_of: Any) -> None:
        selection = self._selections.get(key)
        if selection is None:
            columns = self._writer.columns
            if not self._whole:
                columns["next_observation"] = columns["observation"]
            slices = {name: nest.mapped(lambda column, name=name: slice_of(column.index, name), part) for name, part in columns.items()}
            selection = self._selections[key] = self._writer.select(slices)
        self._writer.item(self._table, 1.0, selection)
        self.items += 1

    def close(self) -> Counts:
        """Waits until the broker has everything. An item that it refused is an error with its reason."""
        if self._writer is not None:
            try:
                self._writer.flush()
            finally:
                self._writer.close()
        return Counts(self.steps, self.episodes, self.items, self.dropped)


def _fit(field: Field, value: Any) -> np.ndarray:
    array = np.asarray(value)
    if array.shape != field.shape:
        raise ValueError(f"its shape is {array.shape}, and the column has {field.shape}")
    if array.dtype == field.dtype:
        return array
    out = array.astype(field.dtype) if array.dtype.kind in "biufc" else None
    if out is None or not np.can_cast(array.dtype, out.dtype, "same_kind") and not np.array_equal(out, array):
        raise ValueError(f"it is {array.dtype}, and the column is {field.dtype}")
    return out


def _number(value: Any) -> Any:
    array = np.asarray(value)
    if array.size != 1 or array.dtype.kind not in "biuf":
        raise ValueError(f"{value!r} stands for a reward, a discount or the end of an episode, and is not one number")
    return array.item()


def differ(a: Any, b: Any) -> bool:
    """Whether two values, or structures of them, differ."""
    if isinstance(a, dict):
        return any(differ(a[key], b[key]) for key in a)
    if isinstance(a, tuple):
        return any(map(differ, a, b))
    return not np.array_equal(a, b)
