"""Data in and out: files of steps into a table, and a table or a checkpoint into files. ``python3 -m replaybus.data`` does both.

>>> import os, tempfile, numpy as np, replaybus
>>> from replaybus import data
>>> path = os.path.join(tempfile.mkdtemp(), "steps.npz")
>>> np.savez(path, observations=np.eye(4, dtype="float32"), actions=np.arange(4), rewards=np.ones(4), terminals=[0, 1, 0, 1])
>>> with replaybus.Server([replaybus.Table("replay")]) as server, server.client() as client:
...     data.load(client, path, "replay", n_step=2), data.save(client, path, "replay").items
(Counts(steps=4, episodes=2, items=6, dropped=0), 6)
"""
import os
from typing import Any, Callable, Iterator, NamedTuple, Optional, Union

import numpy as np

from .. import nest
from ..client import Client
from ..errors import Error, InvalidArgument, NotFound
from ..saved import Checkpoint
from ..sequences import LAST, PADDING
from .adding import Adder, Counts, differ
from .files import NAMES, Place, format_of, write_file

__all__ = ["Counts", "load", "save"]
Path = Union[str, "os.PathLike[str]"]
FETCH_ITEMS = 256
OPEN_BYTES = 1 << 28  # of episodes whose end has not come yet; beyond, the longest is written as it is


def _quiet(_: float) -> None:
    pass


def load(client: Client, path: Path, table: str, *, n_step: int = 1, discount: float = 0.99, length: int = 0, period: int = 0,
         whole: int = 0, dtypes: Optional[dict[str, str]] = None, format: Optional[str] = None,
         report: Callable[[float], None] = _quiet) -> Counts:
    """Reads a file into a table, as the adder of an actor would have: transitions over ``n_step`` steps with their discounted sums;
    with ``length``, sequences that begin every ``period`` steps and are padded at the end; with ``whole``, episodes of at most that
    many steps. Element types are those of the table's signature; else ``dtypes``, such as {"observation": "uint8"}; else the file's
    (of text: float32, and int64 for actions that are whole numbers).
    """
    path = os.fspath(path)
    kind = format_of(path, format)
    place = Place(path, report)
    if not os.path.exists(path):
        raise NotFound(f"there is no file '{path}'")
    adder = Adder(client, table, n_step=n_step, discount=discount, length=length, period=period, whole=whole, dtypes=dtypes, text=kind.text)
    try:
        adder.add_all(place, kind.read(place))
    except Error as error:
        raise type(error)(f"{error}; {adder.close().items} items of what stands before are in table '{table}'") from None
    return adder.close()


class _Stored(NamedTuple):
    """An item of a table or of a checkpoint, without what an export does not need."""

    data: Any
    session: int
    step: int
    episode: Optional[int]


def _of_table(client: Client, table: str, report: Callable[[float], None]) -> Iterator[_Stored]:
    """The items in the order of sessions and steps. They may leave the table meanwhile."""
    columns = ("session", "step", "episode", "key")
    listed = np.fromiter((tuple(item[name] for name in columns) for item in client.items(table)), [(name, "u8") for name in columns])
    listed.sort(order=columns)
    for start in range(0, len(listed), FETCH_ITEMS):
        part = listed[start:start + FETCH_ITEMS]
        batch = client.fetch(table, part["key"])
        places = {int(key): i for i, key in enumerate(batch.key)}
        node, fields, lengths = batch.structure(), batch.fields(), batch.field_lengths()
        for session, step, episode, key in part.tolist():
            i = places.get(key)
            if i is not None:
                cut = (field[i] if n is None else field[i][:n[i]] for field, n in zip(fields, lengths))
                yield _Stored(nest.pack(node, cut), session, step, episode)
        report((start + len(part)) / len(listed))


def _of_checkpoint(saved: Checkpoint, table: str, report: Callable[[float], None]) -> Iterator[_Stored]:
    total = max(saved.tables.get(table, 0), 1)
    for done, item in enumerate(saved.items(table), 1):
        yield _Stored(item.data, item.session, item.step, None)
        report(done / total)


class _Episode:
    """The steps of an episode so far."""

    def __init__(self) -> None:
        self.rows: list[dict] = []
        self.last: Any = None  # observation after the last step
        self.step = self.bytes = self._row_bytes = 0
        self.episode: Optional[int] = None

    def add(self, row: dict) -> None:
        if not self.rows:
            self._row_bytes = sum(leaf.nbytes + 100 for leaf in map(np.asarray, nest.flatten(nest.node_of(row), row)))
        self.rows.append(row)
        self.bytes += self._row_bytes

    def arrays(self) -> dict:
        """As writers take it."""
        rows = self.rows
        out = {name: _stack([row[name] for row in rows]) for name in ("observation", "action", "reward")}
        if self.last is not None:
            out["observation"] = _stack([row["observation"] for row in rows] + [self.last])
        ended = rows[-1]["done"]
        out["terminated"] = np.array([False] * (len(rows) - 1) + [ended])
        out["truncated"] = np.array([False] * (len(rows) - 1) + [not ended])
        if "discount" in rows[0]:
            out["discount"] = _stack([row["discount"] for row in rows])
        return out


def _stack(values: list) -> Any:
    if isinstance(values[0], dict):
        return {key: _stack([value[key] for value in values]) for key in values[0]}
    if isinstance(values[0], (tuple, list)):
        return {str(i): _stack([value[i] for value in values]) for i in range(len(values[0]))}
    return np.stack([np.asarray(value) for value in values])


def _rows_of(item: _Stored, table: str) -> tuple[list[dict], bool]:
    """The steps of an item by the names of this module, and whether it is a transition."""
    if not isinstance(item.data, dict) or not {"observation", "action"} <= {NAMES.get(name) for name in item.data}:
        names = ", ".join(item.data) if isinstance(item.data, dict) else "no names"
        raise InvalidArgument(f"items of table '{table}' have the fields {names}: an export needs 'observation' and 'action'")
    fields = {NAMES.get(name, name): value for name, value in item.data.items()}
    reward = np.asarray(fields.setdefault("reward", np.float32(0)))
    if reward.ndim == 0:
        rows = [fields]
    else:
        for name, value in fields.items():
            if any(np.shape(leaf)[:1] != reward.shape[:1] for leaf in nest.flatten(nest.node_of(value), value)):
                raise InvalidArgument(f"an item of table '{table}' has {len(reward)} rewards and not as many rows of '{name}': an export needs "
                                      "sequences, or transitions with one reward")
        rows = [nest.mapped(lambda leaf: leaf[t], fields) for t in range(len(reward))]
    for row in rows:
        row["done"] = bool(np.all(row["discount"] == 0)) if "discount" in row else bool(np.any(row.get("terminated", False)))
    return rows, "next_observation" in fields


def _episodes(items: Iterator[_Stored], table: str) -> Iterator[_Episode]:
    """Puts the steps of items together. One episode of each session is open at a time."""
    opened: dict[int, _Episode] = {}
    for item in items:
        rows, transition = _rows_of(item, table)
        for j, row in enumerate(rows):
            at, step, kind = opened.get(item.session), item.step + j, int(row.get("step_type", 1))
            if at is not None and at.rows:
                same = at.episode == item.episode
                if not transition and same and step <= at.step or kind == PADDING:
                    continue  # sequences overlap
                if not same or step != at.step + 1 or kind == 0 or transition and differ(at.last, row["observation"]):
                    yield opened.pop(item.session)
                    at = None
            if kind == PADDING:
                continue
            if at is None:
                at = opened[item.session] = _Episode()
            at.step, at.episode = step, item.episode
            if kind == LAST:
                at.last = row["observation"]
            else:
                at.add(row)
                at.last = row.get("next_observation")
            if at.rows and (kind == LAST or transition and row["done"]):
                yield opened.pop(item.session)
        if sum(episode.bytes for episode in opened.values()) > OPEN_BYTES:
            yield opened.pop(max(opened, key=lambda session: opened[session].bytes))
    yield from opened.values()


def save(source: Union[Client, Checkpoint], path: Path, table: str, *, format: Optional[str] = None,
         report: Callable[[float], None] = _quiet) -> Counts:
    """Writes the items of a table to a file, episode by episode. ``source``: a client, or a broker's files (``replaybus.open``).

    Overlapping sequences become the steps they are made of. A transition that does not continue the one before it, such as one over
    several steps, is an episode of one step; its discount is kept.
    """
    path = os.fspath(path)
    steps = episodes = items = 0

    def counted() -> Iterator[_Stored]:
        nonlocal items
        each = _of_checkpoint if isinstance(source, Checkpoint) else _of_table
        for item in each(source, table, report):
            items += 1
            yield item

    def whole() -> Iterator[dict]:
        nonlocal episodes, steps
        for episode in _episodes(counted(), table):
            if episode.rows:
                episodes, steps = episodes + 1, steps + len(episode.rows)
                yield episode.arrays()

    write_file(path, format_of(path, format), whole())
    return Counts(steps, episodes, items)
