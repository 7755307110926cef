"""Sequences of steps for recurrent agents: items that overlap, share their steps, and never cross the end of an episode."""
from typing import Any, Optional, Sequence

import numpy as np

from . import _core, nest
from .errors import InvalidArgument
from .writer import Last, Slice, VectorWriter, _append_rows, _first_row

FIRST, MID, LAST, PADDING = range(4)  # the column step_type


class SequenceAdder(VectorWriter):
    """Makes sequences of the steps of n environments, by the rules of the adder in C. ``Client.sequence_adder`` makes one.

    An item has ``length`` rows, and one begins every ``period`` rows of an episode. A row is a step: what ``add`` is given, with
    ``discount`` (0 after a terminal step, otherwise 1, unless it is given) and ``step_type`` (FIRST, MID) added. After the steps of an episode
    comes a row with its last observation (LAST), and rows of zeros (PADDING) complete its last item. ``start`` names values of which an
    item has only the one of its first row, such as the state of a recurrent network: the others are not stored. The first
    ``burn_in`` rows of an item are there to warm up that state; ``trained`` says which rows are to be trained on. Each row is stored once,
    in chunks of ``chunk_length`` rows (0: as many as divide the period, up to 32), however many items overlap.

    >>> import numpy as np, replaybus
    >>> with replaybus.Server([replaybus.Table("replay")]) as server, server.client() as client:
    ...     with client.sequence_adder(2, "replay", length=4, period=2, burn_in=1, start=["state"]) as adder:
    ...         for t in range(5):
    ...             steps = {"observation": np.full((2, 3), t, "float32"), "state": np.full((2, 8), t, "float32")}
    ...             end = np.array([t == 4, False])
    ...             items = adder.add(steps, terminated=end, last=np.full((2, 3), 9, "float32") if end.any() else None)
    ...     items = client.fetch("replay", sorted(item["key"] for item in client.items("replay")))  # by environment
    >>> items.data["step_type"].tolist(), items.data["state"][:, 0].tolist()
    ([[0, 1, 1, 1], [1, 1, 1, 2], [0, 1, 1, 1]], [0.0, 2.0, 0.0])
    >>> trained(items.data["step_type"], burn_in=1).astype(int).tolist()
    [[1, 1, 1, 1], [0, 1, 1, 0], [1, 1, 1, 1]]
    """

    def __init__(self, client: "_core.Client", n: int, table: str, *, length: int, period: int, burn_in: int = 0,
                 start: Sequence[str] = (), chunk_length: int = 0, **options: Any) -> None:
        _core.check_sequence(length, period, burn_in)
        chunk_length = chunk_length or max(size for size in range(1, 33) if period % size == 0)
        super().__init__(client, n, None, keep_alive=length, chunk_length=chunk_length, **options)
        self._table, self._start = table, frozenset(start)
        self._rule: tuple = (length, period, burn_in)
        self._types, self._whole = np.zeros(n, np.uint8), np.ones(n, np.float32)

    def add(self, steps: dict[str, Any], terminated: Any = None, truncated: Any = None, last: Any = None, priority: Any = 1.0,
            timeout: Optional[float] = None) -> int:
        """Adds a step of each environment: the observation in which it acted, and what followed. Returns the number of items.

        Arrays have a row for each environment; ``steps["observation"]`` must be there. ``last`` has the observations after this
        step and is needed where an episode ends: ``info.get("final_obs")`` of a vector environment.
        """
        ended = [np.asarray(flags, bool) for flags in (terminated, truncated) if flags is not None]
        rows = dict(steps)
        if "discount" not in rows:
            rows["discount"] = self._whole if terminated is None else 1 - np.asarray(terminated, np.float32)
        rows["step_type"] = self._types
        if not self._writers[-1].is_open:
            self._open(rows, steps)
        done = np.logical_or.reduce(ended) if ended else None
        given = None if last is None or done is None or not done.any() else tuple(nest.flatten(self._observation, last))
        return _append_rows(self._writers, False, rows, Last(self._rule[0], self._table, priority), done, timeout, (*self._plan, given))

    def _open(self, rows: dict[str, Any], given: dict[str, Any]) -> None:
        if "observation" not in rows or not self._start <= rows.keys() - {"observation", "discount", "step_type"}:
            raise InvalidArgument(f"a step needs {', '.join(['observation', *sorted(self._start)])}, and this one has "
                                  f"{', '.join(given)}")
        step = _first_row(rows)
        for writer in self._writers:
            writer._first(step)
        self._observation = nest.node_of(step["observation"])
        length, roles, slices = self._rule[0], "", {}
        for name, part in self._writers[0].columns.items():
            node = nest.node_of(part)
            columns = nest.flatten(node, part)
            roles += len(columns) * {"observation": "o", "step_type": "t"}.get(name, "s" if name in self._start else ".")
            count = 1 if name in self._start else length
            slices[name] = nest.pack(node, [Slice(column.index, -length, count, 1, name in self._start) for column in columns])
        self._plan = (*self._rule, roles.encode(), self._writers[0].select(slices))


def trained(step_type: Any, burn_in: int) -> Any:
    """Which rows of sequences (items, rows) a learner trains on: steps that were taken, beyond the burn-in. A sequence that begins
    an episode needs none. Takes and gives arrays or tensors."""
    mask = step_type < LAST
    mask[:, :burn_in] &= step_type[:, :1] == FIRST
    return mask


def priorities(errors: Any, mask: Any, eta: float = 0.9) -> Any:
    """The priorities of sequences: of the absolute errors of the trained rows, eta times the largest and 1 - eta times the mean.
    Takes and gives arrays or tensors.

    >>> priorities(np.array([[1.0, -3.0, 7.0]]), np.array([[True, True, False]]))
    array([2.9])
    """
    errors = abs(errors) * mask
    largest = errors.max(1)
    return eta * getattr(largest, "values", largest) + (1 - eta) * errors.sum(1) / mask.sum(1).clip(1)
