"""A connection to a broker, and the questions that it answers."""
import contextlib
import json
import os
import threading
import time
from typing import Any, Callable, Iterator, Mapping, NamedTuple, Optional, Sequence, TypeVar, Union

import numpy as np

from . import _core, nest
from .closing import Closing
from .errors import DeadlineExceeded, EndOfStream, Error, FailedPrecondition, InvalidArgument, NotFound, Unavailable
from .params import DEFAULT, Counter, Params, Reduce, Timeout
from .sampler import Batch, Change, Sampler, Updater, as_keys, as_priorities
from .sequences import SequenceAdder
from .writer import Field, StreamShape, VectorWriter, Writer, clock

T = TypeVar("T")
_KEPT = 8  # structures of insert, and tables and sizes of sample


class CheckpointInfo(NamedTuple):
    """What a checkpoint became. based_on is 0 for a checkpoint that is whole in itself."""

    number: int
    based_on: int
    items: int
    written_bytes: int
    seconds: float
    folder: str


class Client(Closing):
    """A connection to the broker at ``endpoint``, such as "tcp://127.0.0.1:7600". It connects when it is first used.

    Of a broker with shards, the endpoint of any shard is enough, or those of several, separated by commas: the client learns of
    the others, and is a client of all.

    ``timeout`` is the deadline in seconds of connecting and of each request; None waits. A client may be used from several
    threads, pickles as its address, and connects anew in a process that was forked. ``key_file`` names the key for a broker that
    uses keys (docs/OPERATE.md); None stands for what the variable REPLAY_KEY_FILE names, if it is set.

    >>> import replaybus
    >>> with replaybus.Server([replaybus.Table("replay")]) as server, replaybus.Client(server.endpoint) as client:
    ...     client.counter("steps").add(5)
    ...     client.params["policy"] = b"weights"
    ...     client.params["policy"].data
    ...     client.tables
    5
    b'weights'
    ['replay']
    """

    def __init__(self, endpoint: str, *, name: Optional[str] = None, timeout: Optional[float] = None,
                 key_file: Union[str, "os.PathLike[str]", None] = None) -> None:
        if not isinstance(endpoint, str):
            raise TypeError(f"an endpoint is a str such as 'tcp://127.0.0.1:7600', not {endpoint!r}")
        if "://" not in endpoint:
            raise InvalidArgument(f"{endpoint!r} is not an endpoint: write tcp://HOST:PORT, such as 'tcp://127.0.0.1:7600'")
        self.endpoint, self.name, self.timeout = endpoint, name, timeout
        self.key_file = None if key_file is None else os.fspath(key_file)
        self._lock, self._pid = threading.RLock(), os.getpid()
        self._core: Optional[_core.Client] = None
        self._closed = False
        self._kept: dict[tuple, Union[Writer, Sampler]] = {}  # of insert and sample, the one used last at the end
        self._server: Any = None  # what made it, which runs while somebody holds it, the client, or what the client has made

    def __repr__(self) -> str:
        return f"Client({self.endpoint!r})" if not self._closed else f"<replaybus.Client: {self.endpoint}, closed>"

    def __reduce__(self):
        return _client, (self.endpoint, self.name, self.timeout, self.key_file)

    def connect(self, timeout: Timeout = DEFAULT) -> "_core.Client":
        """The connection, within ``timeout`` seconds. It is made in the background: after a time-out, the next call goes on
        waiting for it.
        """
        if self._pid != os.getpid():  # a thread of the parent may have held the lock
            self._lock, self._pid = threading.RLock(), os.getpid()
        with self._lock:
            if self._closed:
                raise FailedPrecondition("this client is closed")
            if self._core is None or not self._core.usable:
                self._core = _core.Client(self.endpoint, self.name, self.key_file)
            core = self._core
        core.wait(self._seconds(timeout), timeout is DEFAULT)
        return core

    def _seconds(self, timeout: Timeout) -> Optional[float]:
        """The deadline of a call: its own, or the client's."""
        return self.timeout if timeout is DEFAULT else timeout

    def _made(self, user: Any) -> Any:
        """What uses the connection. It keeps the server, and not the client, which keeps writers and samplers itself."""
        user._keeps = self._server
        return user

    @property
    def params(self) -> Params:
        """The broker's parameter slots."""
        return Params(self)  # made anew: a client that held it would wait for the garbage collection of cycles

    @property
    def closed(self) -> bool:
        """Whether close was called."""
        return self._closed

    def close(self) -> None:
        """Gives up the connection. Writers, samplers and updaters keep it until they are closed."""
        self._closed = True
        while self._kept:
            with contextlib.suppress(Error):
                self._kept.popitem()[1].close()
        core, self._core = self._core, None
        if core is not None:
            core.close()

    def _request(self, kind: str, timeout: Timeout, *arguments: Any) -> Any:
        start = time.monotonic()
        core = self.connect(timeout)
        seconds = self._seconds(timeout)
        if seconds:
            seconds = max(0.0, seconds - (time.monotonic() - start))
        return core.request(kind, seconds, *arguments)

    def _keep(self, key: tuple, timeout: Timeout, make: Callable[[], Any], use: Callable[[Any], T]) -> T:
        """Uses a writer or sampler that was made before, if its connection is still the client's. While it is in use, it is not among
        those that are kept: another thread makes its own."""
        key = (*key, id(self.connect(timeout)), os.getpid())
        with self._lock:
            kept = self._kept.pop(key, None)
        kept = kept or make()
        try:
            return use(kept)
        except BaseException as error:
            if isinstance(kept, Writer) or isinstance(error, Error) and not isinstance(error, DeadlineExceeded):
                kept.__exit__(type(error))  # a writer waits a second for what it has sent; a sampler may hold what it has picked
            raise
        finally:
            old: list = [kept]
            with self._lock:
                if not self._closed and not kept.closed:
                    old = [self._kept.pop(key, None)]
                    self._kept[key] = kept
                    if len(self._kept) > _KEPT:
                        old.append(self._kept.pop(next(iter(self._kept))))
            for one in filter(None, old):
                one.close()

    def insert(self, data: Any, priorities: Mapping[str, float], timeout: Timeout = DEFAULT) -> None:
        """Inserts one step into each of the tables, ``{"replay": 1.0}``, and waits until it is there. The items have no dimension of steps.

        After DeadlineExceeded the broker may have the items, and lets them in when their limiter allows it: a retry may insert them twice.
        A writer costs less where there are many steps.
        """
        if not isinstance(priorities, Mapping):
            raise TypeError(f"priorities is a dict such as {{'replay': 1.0}}, not {priorities!r}")
        left = clock(self._seconds(timeout))
        shape, broker = StreamShape(data), self.connect(timeout).state()
        for table in priorities:
            if table not in broker["tables"]:
                raise NotFound(f"no table {table!r}: the broker has {', '.join(map(repr, broker['tables']))}")

        def use(writer: Writer) -> None:
            selection = writer.select(nest.pack(shape.node, (column[-1] for column in writer.columns_flat())))
            try:
                writer.append(data, left())
                for table, priority in priorities.items():
                    writer.item(table, priority, selection, left())
                if broker["shards"] > 1:
                    writer.end_episode(wait=False)  # the next insert goes to any shard
                writer.flush(timeout=left())
            except DeadlineExceeded:
                writer._give_up()
                raise

        self._keep(("insert", shape.names, *shape.fields), timeout, lambda: self.writer(data, timeout=left()), use)

    def sample(self, table: str, batch_size: int = 256, *, timeout: Timeout = DEFAULT, **options: Any) -> Batch:
        """One batch, picked now. The options are those of ``sampler``, which gets batches ahead and costs less where there are many.

        After ``timeout`` the batch has the items that could be picked by then: ``batch.info["partial"]``, and ``["text"]`` says why.
        DeadlineExceeded: there were none; with ``whole``, not all. If the items have different fields, the batch has those that agree. What
        was picked for it beside, the next call with the same arguments gives.

        >>> import replaybus
        >>> with replaybus.Server([replaybus.Table("replay")]) as server, server.client() as client:
        ...     client.insert({"obs": [1.0, 2.0], "reward": 1.0}, {"replay": 1.0})
        ...     client.sample("replay", 32)["obs"].shape
        (32, 2)
        """
        if {"seed", "memory", "ack"} & options.keys():  # a seed says where to begin; batches under lease hold their client
            with self.sampler(table, batch_size, in_flight=0, **options) as sampler:
                return sampler.next(self._seconds(timeout))
        left = clock(self._seconds(timeout))

        def use(sampler: Sampler) -> Batch:
            try:
                return sampler.next(left())
            except DeadlineExceeded:
                if "tokens_per_batch" not in options:
                    raise
                sampler.stop()  # what it has picked is the batch
                with sampler, contextlib.suppress(EndOfStream):
                    return sampler.next(0)
                raise

        return self._keep((table, batch_size, *sorted(options.items())), timeout,
                          lambda: self.sampler(table, batch_size, in_flight=0, **options), use)

    def writer(self, spec: Any = None, *, name: Optional[str] = None, chunk_length: int = 1,
               keep_alive: Optional[int] = None, max_in_flight: Optional[int] = None, history: bool = False,
               compress: bool = True, timeout: Timeout = DEFAULT) -> Writer:
        """A stream of steps. Items may refer to the newest ``keep_alive`` steps; with ``history``, ``Writer.row`` reads them.

        Steps travel in chunks of ``chunk_length``, which is also the default of ``keep_alive``. ``max_in_flight`` bounds the items
        that are not confirmed yet: calls wait when it is reached. Without ``compress`` steps take more memory, but of a large chunk a
        sample reads only the rows that its items need. ``timeout`` is the deadline of connecting, and of opening the
        stream with the first step.
        """
        return self._made(Writer(self.connect(timeout), spec, name=name, chunk_length=chunk_length, keep_alive=keep_alive,
                                 max_in_flight=max_in_flight, history=history, compress=compress, timeout=self._seconds(timeout)))

    def vector_writer(self, n: int, spec: Any = None, *, timeout: Timeout = DEFAULT, **options: Any) -> VectorWriter:
        """Streams for n environments, written by one call."""
        return self._made(VectorWriter(self.connect(timeout), n, spec, timeout=self._seconds(timeout), **options))

    def sequence_adder(self, n: int, table: str, *, length: int, period: int, burn_in: int = 0, timeout: Timeout = DEFAULT,
                       **options: Any) -> SequenceAdder:
        """Overlapping sequences of the steps of n environments, for recurrent agents."""
        return self._made(SequenceAdder(self.connect(timeout), n, table, length=length, period=period, burn_in=burn_in,
                                        timeout=self._seconds(timeout), **options))

    def sampler(self, table: str, batch_size: Optional[int] = None, *, in_flight: int = 4, beta: float = 0.0, distinct: bool = False,
                timeout: Optional[float] = None, max_samples: int = 0, flexible: bool = False, whole: bool = False,
                memory: Optional[Sequence[Any]] = None, squeeze: bool = False, seed: Optional[int] = None,
                tokens_per_batch: Optional[int] = None, ack: bool = False, lease: float = 30.0) -> Sampler:
        """An iterator over batches of ``batch_size`` (256) items, or of ``tokens_per_batch`` steps (see ``Sampler``), of which up to ``in_flight`` are requested and decoded ahead; with 0,
        each is picked when it is asked for. ``async for`` works, too; with 0, it takes a smaller batch where a limiter holds the rest back.

        It ends after ``max_samples`` items (0: never), and when nothing could be sampled for ``timeout`` seconds, which is also the
        deadline of connecting (at least a second; None: the client's). ``beta`` is the
        exponent of the importance weights; with 0 all weights are 1. ``distinct``: no item appears twice in a batch. ``flexible``:
        a smaller batch instead of waiting for the limiter. ``whole``: pick nothing before the limiter allows the whole batch.

        ``squeeze``: items have one step, and fields no dimension of steps. ``seed``: with ``in_flight=0``, and nobody else who samples
        the table, two runs that insert and sample alike get the same batches.

        ``memory``: buffers that batches are put into, such as arrays in pinned or shared memory, each aligned to 64 bytes. Every batch
        takes one that is free, until it is garbage; ``batch.block()`` shows it. A batch that finds none of 1.2 times its size gets
        memory of its own, so give ``in_flight`` and as many as the program holds.

        ``ack``: the items of a batch stay in their queue, hidden, until ``batch.ack()``; ``lease`` seconds later, or when this process
        dies, they return first in line.

        >>> import replaybus
        >>> with replaybus.Server([replaybus.Table.queue("prompts", 100)]) as server, server.client() as client:
        ...     client.insert({"prompt": 7}, {"prompts": 1.0})
        ...     with client.sampler("prompts", 1, ack=True) as sampler:
        ...         sampler.next(10).release()
        ...         with sampler.next(10) as batch:
        ...             int(batch["prompt"][0]), int(batch.times_sampled[0])
        Change(applied=1, missing=0, refused=0)
        (7, 2)
        """
        return Sampler([(self, table)], batch_size, in_flight=in_flight, beta=beta, distinct=distinct, timeout=timeout,
                       max_samples=max_samples, flexible=flexible, whole=whole, memory=memory, squeeze=squeeze, seed=seed,
                       tokens_per_batch=tokens_per_batch, ack=ack, lease=lease)

    def updater(self, table: str, batch: int = 256, in_flight: int = 64, timeout: Timeout = DEFAULT, *, ack: bool = False) -> Updater:
        """Sends new priorities, or with ``ack`` acknowledgements, in the background. ``timeout`` is the deadline of connecting."""
        return self._made(Updater(self.connect(timeout), table, batch, in_flight, ack))

    def update(self, table: str, keys: Any, priorities: Any, timeout: Timeout = DEFAULT) -> Change:
        """Sets priorities and waits for the answer."""
        keys = as_keys(keys)
        values = as_priorities(priorities, len(keys))
        return Change(*self._request("update", timeout, table, 0, 0, None, keys, values))

    def delete(self, table: str, keys: Any, timeout: Timeout = DEFAULT) -> Change:
        """Deletes items."""
        return Change(*self._request("delete", timeout, table, 0, 0, None, as_keys(keys)))

    def fetch(self, table: str, keys: Any, timeout: Timeout = DEFAULT) -> Batch:
        """Items by key, without counting as samples. Missing keys are left out. With shards, items come one shard after another."""
        array = as_keys(keys)
        try:
            batch = self._request("fetch", timeout, table, 0, 0, None, array)
        except NotFound:
            if table not in self.tables:
                raise
            batch = self._request("fetch", timeout, table, 0, 0, None, array[:0])
        return Batch(batch, {})

    @property
    def tables(self) -> list[str]:
        """The names of the broker's tables."""
        return self.connect().state()["tables"]

    def state(self) -> dict:
        """The connection: connected, id, broker, reconnects, max_batch, endpoint, release, shards, connected_shards, tables."""
        return self.connect().state()

    def counter(self, name: str) -> Counter:
        """A counter that every client sees."""
        return Counter(self, name)

    def reduce(self, group: str, timeout: Timeout = DEFAULT) -> Reduce:
        """Joins a group that sums vectors, round by round."""
        return self._made(Reduce(self.connect(timeout), group, self._seconds(timeout)))

    def info(self, table: Optional[str] = None, *, sessions: bool = False, timeout: Timeout = DEFAULT) -> dict:
        """The broker's state: server, tables, slots, counters, and with ``sessions`` the list of sessions."""
        return json.loads(self._request("info", timeout, table, int(sessions)))

    def _table(self, name: str, timeout: Timeout) -> dict:
        return self.info(name, timeout=timeout)["tables"][0]

    def signature(self, table: str, timeout: Timeout = DEFAULT) -> Any:
        """What a table stores: a Field in the place of each array of an item, in the structure in which it was written.

        It is the signature that the broker's configuration prescribes, or that of the newest item. A shape counts steps first,
        where None is any number, unless an item has one row of the column. None: nothing was inserted yet.

        >>> import numpy as np, replaybus
        >>> with replaybus.Server([replaybus.Table("replay")]) as server, replaybus.Client(server.endpoint) as client:
        ...     with client.writer() as writer:
        ...         writer.append({"obs": {"x": np.zeros(4, "float32")}, "action": np.int64(0)})
        ...         key = writer.item("replay")
        ...     client.signature("replay")
        {'obs': {'x': Field(dtype='float32', shape=(None, 4))}, 'action': Field(dtype='int64', shape=(None,))}
        """
        fields = self._table(table, timeout).get("signature", [])
        if not fields:
            return None
        node = nest.node_of_names(tuple(field["name"] for field in fields))
        return nest.pack(node, (Field(field["dtype"], _shape(field.get("shape", []))) for field in fields))

    def metadata(self, table: str, timeout: Timeout = DEFAULT) -> str:
        """The text that the table was configured with: ``Table(metadata=...)``."""
        return self._table(table, timeout).get("metadata", "")

    def why(self, timeout: Timeout = DEFAULT) -> dict:
        """Who waits inside the broker, and what for."""
        return json.loads(self._request("why", timeout))

    def items(self, table: str, timeout: Timeout = DEFAULT) -> Iterator[dict]:
        """All items of a table, without their data. Raises Unavailable at a shard that does not answer."""
        cursor = 0
        while True:
            page = json.loads(self._request("list", timeout, table, cursor, 1000))
            yield from page["items"]
            for shard in page.get("shards", {}).get("shard", []):
                raise Unavailable(shard["problem"])
            cursor = page["cursor"]
            if not cursor:
                return

    def reset(self, table: str, timeout: Timeout = DEFAULT) -> dict:
        """Removes all items of a table and sets its limiter to zero."""
        return json.loads(self._request("reset", timeout, table))

    def checkpoint(self, timeout: Timeout = DEFAULT) -> CheckpointInfo:
        """Makes a checkpoint and waits until it is on disk."""
        made = json.loads(self._request("checkpoint", timeout))
        folder = made.get("folder", "")
        return CheckpointInfo(made["number"], made["based_on"], made["items"], made["written_bytes"], made["took_ns"] / 1e9,
                              os.path.dirname(folder) if made.get("shards") else folder)  # a shard has a folder in that of all

    def limiter(self, table: str, *, samples_per_insert: Optional[float] = None, min_size: Optional[float] = None,
                min_diff: Optional[float] = None, max_diff: Optional[float] = None,
                error_buffer: Optional[float] = None, max_lag: Optional[int] = None, paused: Optional[bool] = None, timeout: Timeout = DEFAULT) -> dict:
        """A table's limiter. Values that are given are changed while it runs. ``paused``: inserts and samples wait until it is False again."""
        values = (samples_per_insert, min_size, min_diff, max_diff, error_buffer, max_lag)
        fields = (1, 2, 4, 8, 16, 128)
        bits = sum(bit for bit, value in zip(fields, values) if value is not None) + (0 if paused is None else 32 if paused else 64)
        if not bits:
            return self.info(table, timeout=timeout)["tables"][0]["limiter"]
        numbers = np.array([0.0 if value is None else value for value in values])
        return json.loads(self._request("limiter", timeout, table, bits, 0, None, None, numbers))


def _shape(sizes: list) -> tuple:
    """A shape of the broker, in which the number of steps may be 0: any."""
    return tuple(size if i or size else None for i, size in enumerate(sizes))


def _client(endpoint: str, name: Optional[str], timeout: Optional[float], key_file: Optional[str]) -> Client:
    return Client(endpoint, name=name, timeout=timeout, key_file=key_file)
