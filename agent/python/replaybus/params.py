"""Named, versioned values at the broker, counters, and the sum over parallel learners."""
from typing import TYPE_CHECKING, Any, Iterator, NamedTuple, Optional, Union

import numpy as np

from . import _core, weights
from .closing import Closing, Flushing
from .errors import DeadlineExceeded, NotFound, Unavailable

if TYPE_CHECKING:
    from .client import Client

DEFAULT: Any = object()  # the client's deadline
Timeout = Union[float, None]


class Param(NamedTuple):
    """One version of a parameter slot."""

    version: int
    data: Union[bytes, memoryview]  # more than 4 MiB: a read-only memoryview; on the broker's host, of the broker's own memory
    age: float  # seconds since it was stored


def _param(version: int, data: Any, age_ns: int, _bf16: bool) -> Param:
    return Param(version, data, age_ns / 1e9)


class Publisher(_core.Publisher, Flushing):
    """Stores versions of a slot without waiting. At most one put is under way; of the blocks that wait, the newest is sent."""

    _bf16 = False
    _timeout: Timeout = None  # the client's

    def put(self, data: Any) -> None:
        """Takes a block and returns at once. Of blocks that wait, only the newest is sent."""
        self._call(0, data, weights.bf16(data) if self._bf16 else None)

    def flush(self, timeout: Timeout = DEFAULT) -> int:
        """Waits until the newest block is stored; returns its version."""
        return self._flush(self._timeout if timeout is DEFAULT else timeout)

    def close(self, timeout: Timeout = DEFAULT) -> None:
        """Flushes. After DeadlineExceeded it can be called again."""
        self._close(self._timeout if timeout is DEFAULT else timeout)


class Subscriber(_core.Subscriber, Closing):
    """Receives versions of a slot in the background, so that a loop of steps never waits for them."""

    _bf16 = False

    def take(self, timeout: Timeout = 0) -> Optional[Param]:
        """The newest version that has arrived since the last one was taken; None if there is none."""
        row = self._call(timeout)
        if row is not None and self._bf16 and not row[3]:  # the publisher does not offer it
            row = (row[0], weights.bf16(row[1]), *row[2:])
        return None if row is None else _param(*row)

    def close(self, timeout: Timeout = None) -> None:
        """Stops asking."""
        self._close(timeout)


class Params:
    """Slots: ``client.params["policy"] = data`` and ``client.params["policy"].data``."""

    def __init__(self, client: "Client") -> None:
        self._client = client

    def put(self, name: str, data: Any, timeout: Timeout = DEFAULT) -> int:
        """Stores a new version and returns its number. data: anything with the buffer protocol."""
        if isinstance(data, (dict, str, type(None))) or isinstance(data, np.ndarray) and data.dtype.hasobject:
            raise TypeError(f"slot {name!r} takes bytes or an array, not {data!r:.80}: replaybus.weights.encode makes bytes of a dict of arrays")
        return self._client._request("put", timeout, name, 0, 0, data)

    def get(self, name: str, have: int = 0, timeout: Timeout = DEFAULT) -> Param:
        """Waits until the slot has another version than ``have``. timeout 0 polls; DeadlineExceeded if there is none."""
        return _param(*self._client._request("get", timeout, name, have))

    def publisher(self, name: str, timeout: Timeout = DEFAULT, *, bf16: bool = False) -> Publisher:
        """Stores versions in the background. ``timeout`` is the deadline of connecting. ``bf16``: blocks of ``replaybus.weights`` are
        offered with bfloat16 for float32, too, to subscribers that ask for it."""
        made = self._client._made(Publisher(self._client.connect(timeout), name))
        made._bf16, made._timeout = bf16, self._client.timeout
        return made

    def subscriber(self, name: str, have: int = 0, timeout: Timeout = DEFAULT, *, bf16: bool = False) -> Subscriber:
        """Receives versions other than ``have`` in the background. ``timeout`` is the deadline of connecting. ``bf16``: takes blocks with
        bfloat16 for float32: half the bytes, where the publisher offers them."""
        made = self._client._made(Subscriber(self._client.connect(timeout), name, have, bf16))
        made._bf16 = bf16
        return made

    def _newest(self, name: str) -> Optional[Param]:
        """The newest version; None if there is none. Waits for the broker, but not for a version."""
        self._client.connect()
        try:
            return self.get(name, timeout=0)
        except (DeadlineExceeded, Unavailable):  # there is none, or the broker was late: it says which
            slots = self._client.info()["slots"]
            return self.get(name) if any(slot["name"] == name and slot["version"] for slot in slots) else None

    def __contains__(self, name: str) -> bool:
        """Whether the slot has a version."""
        return self._newest(name) is not None

    def __iter__(self) -> Iterator[str]:
        """The names of the slots that have a version."""
        return iter([slot["name"] for slot in self._client.info()["slots"] if slot["version"]])

    def __repr__(self) -> str:
        return f"<replaybus.Params of {self._client!r}>"

    def __getitem__(self, name: str) -> Param:
        """The newest version. NotFound, which is a KeyError, if there is none yet; ``get`` waits for the first one."""
        param = self._newest(name)
        if param is None:
            raise NotFound(f"slot {name!r} has no version yet: params.get({name!r}, timeout=60) waits for the first one")
        return param

    def __setitem__(self, name: str, data: Any) -> None:
        self.put(name, data)


class Counter:
    """A number at the broker that every client sees."""

    def __init__(self, client: "Client", name: str) -> None:
        self._client, self.name = client, name

    def __repr__(self) -> str:
        return f"<replaybus.Counter: {self.name!r}>"

    def add(self, amount: int = 1, timeout: Timeout = DEFAULT) -> int:
        """Adds to the counter and returns its new value."""
        return self._client._request("add", timeout, self.name, amount)

    def read(self, timeout: Timeout = DEFAULT) -> int:
        """The counter's value; 0 if nothing was added yet."""
        return self._client._request("read", timeout, self.name)

    @property
    def value(self) -> int:
        """The counter's value."""
        return self.read()


class Reduced(NamedTuple):
    """A round of a sum: how many vectors it holds, and whether this member's is one of them."""

    round: int
    contributors: int
    members: int
    counted: bool


class Reduce(_core.Reduce, Closing):
    """A member of a group that sums float32 vectors, round by round. ``Client.reduce`` joins one."""

    def add(self, values: np.ndarray, round_timeout: Timeout = None, timeout: Timeout = None) -> Reduced:
        """Replaces the vector by the sum over all members: the same bytes for each.

        round_timeout bounds the wait for other members: the round then closes without those that are missing. After
        DeadlineExceeded the vector stays in its round; call again to wait on.
        """
        return Reduced(*self._call(timeout, values, None, round_timeout))

    def close(self) -> None:
        """Leaves the group."""
        self._close(None)
