"""Sampling: batches of items, as arrays that share the memory of the library."""
import contextlib
import time
from collections import deque
from concurrent.futures import Future, wait
from typing import TYPE_CHECKING, Any, Callable, NamedTuple, Optional, Sequence, Union

import numpy as np

from . import _core, nest
from .closing import Closing, Flushing
from .errors import DeadlineExceeded, EndOfStream, FailedPrecondition, InvalidArgument
from .params import DEFAULT, Timeout
from .writer import clock, is_bfloat16

if TYPE_CHECKING:
    from .client import Client

_LOOK_S = 0.1  # how long a thread waits for a batch of an ``async for``: what the program does next waits no longer than this
Source = Union[tuple["Client", str], tuple["Client", str, Optional[float]]]


class Lazy:
    """A property that is computed once. functools.cached_property takes a lock, which costs more than making an array."""

    def __init__(self, compute: Callable[[Any], Any]) -> None:
        self._compute, self.__doc__ = compute, compute.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, batch: Any, owner: Any = None) -> Any:
        if batch is None:
            return self
        value = batch.__dict__[self._name] = self._compute(batch)
        return value


class Leased:
    """What becomes of the items of a batch whose sampler was made with ``ack=True``. ``with batch:`` acknowledges them at its end, and
    releases them after an exception; what is neither acknowledged nor released returns when the lease ends."""

    key: Any
    source: Any
    _leased: Sequence[tuple["Client", str]] = ()  # the sources
    _own: Optional["Leased"] = None  # what this rank took, if ranks have exchanged items: a lease is its client's

    def _lease(self, op: int, seconds: float, timeout: Timeout) -> "Change":
        if self._own is not None:
            return self._own._lease(op, seconds, timeout)
        if not self._leased:
            raise FailedPrecondition("this batch is not under lease: its sampler was made without ack=True")
        keys, source, every = self.key, self.source, []
        for i, (client, table) in enumerate(self._leased):
            own = keys if source is None else keys[source == i]
            every.append(client._request("lease", timeout, table, op, milliseconds(seconds), None, as_keys(own)))
        return Change(*map(sum, zip(*every)))

    def ack(self, timeout: Timeout = DEFAULT) -> "Change":
        """The items are done with: they leave their table. Items whose lease had ended count as missing; others may have them by now."""
        return self._lease(0, 0.0, timeout)

    def release(self, timeout: Timeout = DEFAULT) -> "Change":
        """The items return to their table, first in line."""
        return self._lease(1, 0.0, timeout)

    def touch(self, seconds: float, timeout: Timeout = DEFAULT) -> "Change":
        """The lease ends this many seconds from now."""
        return self._lease(2, seconds, timeout)

    def __enter__(self) -> Any:
        return self

    def __exit__(self, kind: Any, *_: Any) -> None:
        (self.ack if kind is None else self.release)()


class Batch(_core.Batch, Leased):
    """Items that were sampled together. Arrays are made when they are first asked for, share the batch's memory, and keep it.

    ``data`` has the structure that the items were written with; each array's first dimension counts items, and the second
    counts steps (except where an item has one row of a column, such as ``column[-1]``). One value per item: ``key``,
    ``priority``, ``probability``, ``weight``, ``times_sampled``, ``age``, ``policy``, ``step``, ``session``; with several
    sources ``source``, with shards ``shard``, with groups ``group`` (None otherwise).

    ``packed`` has the same items without padding, and ``offsets`` says where each begins. The memory holds one of the two forms; the
    other is a copy, unless all items have the same number of steps. A sampler with ``tokens_per_batch`` gives packed memory.
    """

    def _shape(self) -> tuple[nest.Node, Callable[[Sequence[Any]], Any]]:
        names = self.names()
        shape = self._nodes.get(names)
        if shape is None:
            node = nest.node_of_names(names)
            shape = self._nodes[names] = node, nest.packer(node)
        return shape

    def structure(self) -> nest.Node:
        """The structure that the fields' names describe."""
        return self._shape()[0]

    _squeeze = False  # items of one step lose the dimension of their steps
    _packed = False  # the memory has the steps of all items one behind the other

    @Lazy
    def data(self) -> Any:
        """The items' fields, in the structure in which they were written."""
        fields = self.fields()
        if self._packed:
            fields = [field if one else padded(field, n) for field, n, one in zip(fields, self.field_lengths(), self.squeezes())]
        if self._squeeze:
            fields = [field.reshape(squeezed(name, field.shape)) for name, field in zip(self.names(), fields)]
        return self._shape()[1](fields)

    @Lazy
    def lengths(self) -> Any:
        """The same structure with the number of real steps of each item (later steps are 0); None for fields without steps, or if every
        item has all of them."""
        return self._shape()[1](self.field_lengths())

    @Lazy
    def packed(self) -> Any:
        """The same structure with the steps of all items one behind the other; one row per item where a field has no steps."""
        return self._shape()[1]([field if self._packed or one else without_padding(field, n)
                                 for field, n, one in zip(self.fields(), self.field_lengths(), self.squeezes())])

    @Lazy
    def offsets(self) -> np.ndarray:
        """Where each item begins in ``packed``, and the end of the last: int32, one more than there are items. InvalidArgument: the
        fields take different numbers of steps from an item, so each has offsets of its own, the running sums of its ``lengths``."""
        every = [np.full(len(self), field.shape[1], np.uint32) if n is None else n
                 for field, n, one in zip(self.fields(), self.field_lengths(), self.squeezes()) if not one]
        return running_sums(one_length(every, len(self)))

    @Lazy
    def age(self) -> np.ndarray:
        """Seconds since each item was inserted, float64."""
        return self.age_ns / 1e9

    @Lazy
    def info(self) -> dict:
        """n, partial, table_size, waited_ns, and a text that says why a batch is partial."""
        return self._info()

    def __getitem__(self, key: Any) -> Any:
        return self.data[key]

    def __repr__(self) -> str:
        fields = (f"{name} {array.dtype.name} {array.shape}" for name, array in zip(self.names(), self.fields()))
        return f"<replaybus.Batch: {len(self)} items, {', '.join(fields)}>"


def milliseconds(seconds: float) -> int:
    """The time of a lease."""
    if not 0 <= seconds <= 86400:
        raise InvalidArgument(f"a lease of {seconds} seconds: it must be above 0, and at most 86400, a day")
    return max(1, round(seconds * 1000))


def without_padding(field: np.ndarray, lengths: Optional[np.ndarray]) -> np.ndarray:
    """The real steps of a field of shape (items, steps, ...)."""
    items, steps, *shape = field.shape
    if lengths is None or not items or lengths.min() == steps:
        return field.reshape(items * steps, *shape)
    return field[np.arange(steps, dtype=np.uint32) < lengths[:, None]]


def padded(rows: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """The inverse of ``without_padding``: steps that an item lacks are 0."""
    items, steps = len(lengths), int(lengths.max(initial=0))
    if len(rows) == items * steps:
        return rows.reshape(items, steps, *rows.shape[1:])
    out = np.zeros((items, steps, *rows.shape[1:]), rows.dtype)
    out[np.arange(steps, dtype=np.uint32) < lengths[:, None]] = rows
    return out


def one_length(every: Sequence[np.ndarray], items: int) -> np.ndarray:
    """The steps of each item that all fields agree on; 1 if no field has steps."""
    if any(not np.array_equal(every[0], other) for other in every[1:]):
        raise InvalidArgument("the fields of this batch take different numbers of steps from an item: the offsets of a field are the "
                              "running sums of its lengths")
    return every[0] if every else np.ones(items, np.uint32)


def running_sums(lengths: np.ndarray) -> np.ndarray:
    """0, then the sum of the first length, of the first two, and so on: int32, as attention over sequences of different lengths takes it."""
    sums = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=sums[1:])
    if sums[-1] > np.iinfo(np.int32).max:
        raise InvalidArgument(f"a batch of {sums[-1]} steps has no offsets of 32 bits: sample fewer items at once")
    return sums.astype(np.int32)


def request_size(batch_size: Optional[int], tokens_per_batch: Optional[int]) -> int:
    """The items that one request asks for."""
    if batch_size is not None:
        return batch_size
    return 256 if tokens_per_batch is None else min(256, max(1, tokens_per_batch // 256))


def squeezed(name: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of a field of items of one step, without the dimension of their steps."""
    if len(shape) < 2 or shape[1] != 1:
        raise InvalidArgument(f"squeeze is for items of one step, and field '{name}' of this batch has the shape {shape}")
    return shape[0], *shape[2:]


class Sampler(_core.Sampler, Closing):
    """An iterator over batches, which are requested and decoded ahead. ``Client.sampler`` makes one for a table.

    ``sources`` is a list of (client, table) or (client, table, share), such as demonstrations beside replay. Each item of a batch
    comes from a source that is drawn by the shares; sources without a share divide the rest by the sums of their priorities (by
    their sizes, if they are uniform). ``batch.source`` says which. ``probability`` and ``weight`` are those of the whole mixture.
    All sources must have the same fields. The other arguments are those of ``Client.sampler``.

    The iteration ends (StopIteration) after ``max_samples`` items, or when nothing could be sampled for ``timeout`` seconds. After
    ``stop`` it ends with the batches that were picked already; ``close`` drops them. In a queue their items are nowhere else: ``stop``
    and take the rest, or sample with ``ack``, or with ``in_flight=0`` and ``whole=True``: nothing is requested ahead, and a call that Ctrl-C
    ends loses at most what it has picked of its batch (with ``whole``, nothing): the next call gets one that was complete. What comes after
    ``close`` stays.

    With ``tokens_per_batch``, a batch takes items in the order in which they come, while their steps together are at most this many: at
    least one item, and one that does not fit begins the next batch. The batch before the end is smaller. ``batch_size`` is then the
    number of items that a request asks for, by default ``tokens_per_batch // 256``, between 1 and 256.

    With ``ack``, items are under lease for ``lease`` seconds: see ``Batch.ack``. The table has ``max_times_sampled=1``. Nothing is
    requested ahead (``in_flight`` is not used), because the time of a batch that nobody has taken would pass.

    >>> import replaybus
    >>> tables = [replaybus.Table("replay"), replaybus.Table("demonstrations")]
    >>> with replaybus.Server(tables) as server, server.client() as client:
    ...     with client.writer() as writer:
    ...         for table in ("replay", "demonstrations"):
    ...             writer.append({"x": 1.0})
    ...             key = writer.item(table)
    ...     with replaybus.Sampler([(client, "replay"), (client, "demonstrations", 0.25)], 400) as sampler:
    ...         batch = sampler.next(10)
    ...     50 < int(batch.source.sum()) < 150
    True
    """

    def __new__(cls, sources: Sequence[Source], batch_size: Optional[int] = None, *, in_flight: int = 4, beta: float = 0.0,
                distinct: bool = False, timeout: Optional[float] = None, max_samples: int = 0, flexible: bool = False,
                whole: bool = False, memory: Union[Sequence[Any], _core.Pool, None] = None, squeeze: bool = False,
                seed: Optional[int] = None, tokens_per_batch: Optional[int] = None, ack: bool = False, lease: float = 30.0) -> "Sampler":
        connect = DEFAULT if timeout is None else max(timeout, 1.0)  # what is short for a sample is too short for a connection
        pool = memory if memory is None or isinstance(memory, _core.Pool) else _core.Pool(tuple(memory))
        if tokens_per_batch is not None and (tokens_per_batch < 1 or squeeze):
            raise InvalidArgument("squeeze is for items of one step: leave it out with tokens_per_batch" if squeeze
                                  else f"tokens_per_batch is {tokens_per_batch}; it must be 1 or more")
        return super().__new__(cls, tuple(_source(connect, *source) for source in sources), request_size(batch_size, tokens_per_batch),
                               0 if ack else in_flight, beta, distinct, timeout, max_samples, flexible, whole, pool,
                               0 if seed is None else int(seed) % 2**63 + 1, tokens_per_batch or 0, milliseconds(lease) if ack else 0)

    def __init__(self, sources: Sequence[Source], *_: Any, in_flight: int = 4, timeout: Optional[float] = None, squeeze: bool = False,
                 tokens_per_batch: Optional[int] = None, ack: bool = False, **__: Any) -> None:
        self.tables, self._keeps = [source[1] for source in sources], [source[0]._server for source in sources]
        self._nodes: dict = {}
        self._on_demand, self._squeeze, self._packed = ack or in_flight == 0, squeeze, tokens_per_batch is not None
        self._leased = [source[:2] for source in sources] if ack else []
        self._patience = timeout if self._on_demand else None  # the library ends the iteration of a sampler that requests ahead
        self._waited, self._end = 0.0, ""  # since the last batch; why the iteration has ended
        self._asked: "deque[Future[Batch]]" = deque()  # batches of awaits that were cancelled

    def _batch(self, timeout: Optional[float]) -> Batch:
        batch = Batch(self.take(timeout) if self._patience is None else self._patiently(timeout, self._patience), self._nodes)
        if self._squeeze:
            batch._squeeze = True
        if self._packed:
            batch._packed = True
        if self._leased:
            batch._leased = self._leased
        return batch

    def _patiently(self, timeout: Optional[float], patience: float) -> "_core.Batch":
        """Takes a batch on demand. When nothing came for so long, the iteration ends with what was picked and fills no batch of tokens."""
        if not self._end:
            start, left = time.monotonic(), max(0.0, patience - self._waited)
            try:
                batch = self.take(left if timeout is None else min(timeout, left))
                self._waited = 0.0
                return batch
            except DeadlineExceeded as error:
                self._waited += time.monotonic() - start
                if self._waited < patience:
                    raise
                self._end = f"nothing could be sampled for {patience:g} s: {error}"
                self.stop()
        try:
            return self.take(0)
        except (DeadlineExceeded, EndOfStream):
            raise EndOfStream(self._end) from None

    @property
    def table(self) -> str:
        """The name of the table; of several sources, the first one's."""
        return self.tables[0]

    def __repr__(self) -> str:
        tables = ", ".join(repr(table) for table in self.tables)
        return f"<replaybus.Sampler: table{'s' if len(self.tables) > 1 else ''} {tables}{', closed' if self.closed else ''}>"

    def __iter__(self) -> "Sampler":
        return self

    def __next__(self) -> Batch:
        try:
            return self.next()
        except EndOfStream:
            raise StopIteration from None

    def __aiter__(self) -> "Sampler":
        return self

    async def __anext__(self) -> Batch:
        import asyncio  # takes as long to load as all the rest

        asked = None
        try:
            with contextlib.suppress(IndexError):
                asked = self._asked.popleft()
            if asked is None and not self._on_demand:
                with contextlib.suppress(DeadlineExceeded):
                    return self._batch(0)
            while True:
                if asked is None:
                    asked = Future[Batch]()
                    asked.set_running_or_notify_cancel()  # a cancelled await leaves it as it is
                    asyncio.get_running_loop().run_in_executor(None, self._answer, asked)
                try:
                    with contextlib.suppress(DeadlineExceeded):
                        return await asyncio.wrap_future(asked)
                except asyncio.CancelledError:
                    self._asked.append(asked)
                    raise
                asked = None
        except EndOfStream:
            if self._asked:  # another one may have got a batch before the end
                return await self.__anext__()
            raise StopAsyncIteration from None
        finally:
            asked = None  # its error has a traceback that leads to here

    def _answer(self, asked: "Future[Batch]") -> None:
        try:
            asked.set_result(self._batch(_LOOK_S))
        except BaseException as error:
            asked.set_exception(error.with_traceback(None))

    def next(self, timeout: Optional[float] = None) -> Batch:
        """The next batch within a deadline. DeadlineExceeded says what the table waits for; call again."""
        if self._asked:
            left = clock(timeout)
            with contextlib.suppress(IndexError):  # another thread has taken it
                asked = self._asked.popleft()
                try:
                    late = wait([asked], left()).not_done
                except BaseException:
                    self._asked.appendleft(asked)
                    raise
                if late:
                    self._asked.appendleft(asked)
                    raise DeadlineExceeded("a batch is on its way that an await was to get, and was cancelled")
                with contextlib.suppress(DeadlineExceeded, EndOfStream):  # another one may have got a batch before the end
                    return asked.result()
            return self.next(left())
        return self._batch(timeout)


def _source(timeout: Timeout, client: "Client", table: str, share: Optional[float] = None) -> tuple["_core.Client", str, float]:
    if share is not None and share < 0:
        raise InvalidArgument(f"the share of table {table!r} is {share}: write a number above 0 and at most 1, or None")
    return client.connect(timeout), table, -1.0 if share is None else share


class Change(NamedTuple):
    """What became of updates, deletes or leases: keys that are not in the table, or not under lease, count as missing."""

    applied: int
    missing: int
    refused: int


def _on_host(values: Any) -> Any:
    """A tensor of torch without its gradient, in the memory of the CPU, and bfloat16 as float32; other values as they are."""
    if not hasattr(values, "detach"):
        return values
    return values.detach().cpu().float() if is_bfloat16(values) else values.detach().cpu()


def as_keys(keys: Any) -> np.ndarray:
    """Keys as uint64. int64 arrays (torch has no uint64) keep their bits."""
    array = np.asarray(_on_host(keys))
    if array.size and array.dtype.kind not in "iu":
        raise TypeError(f"keys are integers, not {array.dtype}")
    if array.dtype == np.int64:
        array = array.view(np.uint64) if array.flags.c_contiguous else array.astype(np.uint64)
    return np.ascontiguousarray(array, dtype=np.uint64).reshape(-1)


def as_priorities(priorities: Any, n: int) -> np.ndarray:
    """Priorities as float64, one per key; a number stands for all."""
    array = np.asarray(_on_host(priorities), dtype=np.float64)
    if array.size not in (1, n):
        raise ValueError(f"{array.size} priorities for {n} keys: give one per key, or one number for all")
    return np.ascontiguousarray(np.broadcast_to(array.reshape(-1) if array.ndim else array, (n,)))


class Updater(_core.Updater, Flushing):
    """Sends new priorities of one table in batches, without waiting for the answers. ``Client.updater`` makes one.

    With ``ack``, ``add(batch.key)`` acknowledges items under lease as ``batch.ack`` does, and leaves at once. The next ``add``, ``flush`` or
    ``close`` raises what went wrong, and that ``add`` takes nothing; ``flush().missing`` counts items whose lease had ended. Without
    ``close``, the last items may return.
    """

    def __init__(self, client: "_core.Client", table: str, *_: Any, **__: Any) -> None:
        self.table = table

    def __repr__(self) -> str:
        return f"<replaybus.Updater: table {self.table!r}>"

    def add(self, keys: Any, priorities: Any = None, timeout: Optional[float] = None) -> None:
        """Takes new priorities, or keys to acknowledge. Waits only while too many requests are without an answer."""
        keys = as_keys(keys)
        self._call(timeout, keys, None if priorities is None else as_priorities(priorities, len(keys)))

    def flush(self, timeout: Optional[float] = None) -> Change:
        """Waits until everything is answered; returns the totals so far."""
        return Change(*self._flush(timeout))

    def close(self, timeout: Optional[float] = None) -> None:
        """Flushes. After DeadlineExceeded it can be called again."""
        self._close(timeout)
