"""Tables, and the broker that holds them."""
import dataclasses
import glob
import os
import shutil
import threading
import weakref
from typing import Any, Mapping, Optional, Sequence

from .. import server as native
from ..closing import Closing
from . import _structure, checkpointers, item_selectors, rate_limiters
from .client import Client
from .errors import ReverbError, translated
from .reverb_types import RateLimiterInfo, TableInfo, options_of

_METADATA_MOST = 65536  # bytes that the broker keeps for a table


class Table:
    """A table of a server: which items it gives, which it removes, how many it holds, and when it makes callers wait.

    ``signature`` is a structure of ``TensorSpec``, or of other objects with ``dtype`` and ``shape``. Clients check it.
    """

    def __init__(self, name: str, sampler: item_selectors.Selector, remover: item_selectors.Selector, max_size: int,
                 rate_limiter: rate_limiters.RateLimiter, max_times_sampled: int = 0, extensions: Sequence[Any] = (),
                 signature: Any = None) -> None:
        if max_size < 1:
            raise ValueError(f"max_size must be 1 or more, not {max_size}")
        if not isinstance(sampler, item_selectors.Selector) or not isinstance(remover, item_selectors.Selector):
            raise TypeError("sampler and remover must be selectors, such as reverb.selectors.Uniform()")
        if not isinstance(rate_limiter, rate_limiters.RateLimiter):
            raise TypeError("rate_limiter must be a limiter, such as reverb.rate_limiters.MinSize(1)")
        self._arguments = dict(name=name, sampler=sampler, remover=remover, max_size=max_size, rate_limiter=rate_limiter,
                               max_times_sampled=max_times_sampled, extensions=tuple(extensions), signature=signature)
        self.facts = _structure.TableFacts(_structure.signature_of(signature), sampler.config, remover.config)
        size = len(self.facts.metadata())
        if size > _METADATA_MOST:
            raise ValueError(f"the signature of table '{name}' takes {size} bytes; it may take {_METADATA_MOST}: use fewer or shorter names")
        self._client: Optional[Client] = None

    @classmethod
    def queue(cls, name: str, max_size: int, extensions: Sequence[Any] = (), signature: Any = None) -> "Table":
        """Items are sampled once, oldest first; inserts wait while the table is full."""
        return cls(name, item_selectors.Fifo(), item_selectors.Fifo(), max_size, rate_limiters.Queue(max_size), 1,
                   extensions, signature)

    @classmethod
    def stack(cls, name: str, max_size: int, extensions: Sequence[Any] = (), signature: Any = None) -> "Table":
        """Items are sampled once, newest first; inserts wait while the table is full."""
        return cls(name, item_selectors.Lifo(), item_selectors.Lifo(), max_size, rate_limiters.Stack(max_size), 1,
                   extensions, signature)

    @property
    def name(self) -> str:
        """The table's name."""
        return self._arguments["name"]

    @property
    def config(self) -> dict:
        """The table as docs/CONFIG.md describes it. Extensions are given in that form, too."""
        a = self._arguments
        more = {"extensions": list(a["extensions"])} if a["extensions"] else {}
        size = min(a["max_size"], getattr(a["rate_limiter"], "size", a["max_size"]))  # a queue is as long as its table
        return native.Table(a["name"], sampler=a["sampler"].config, remover=a["remover"].config, max_size=size,
                            limiter=a["rate_limiter"].config, max_times_sampled=max(a["max_times_sampled"], 0),
                            metadata=self.facts.metadata(), **more)

    def replace(self, **changes: Any) -> "Table":
        """A new table with some of the constructor's arguments changed."""
        return Table(**{**self._arguments, **changes})

    @property
    def info(self) -> TableInfo:
        """The table's state. Before a server has it, its settings."""
        a = self._arguments
        if self._client is not None and self._client.native.closed:
            raise ReverbError(f"the server of table '{self.name}' has stopped")
        if self._client is not None:
            return dataclasses.replace(self._client.server_info()[self.name], signature=a["signature"])
        limiter = a["rate_limiter"]
        rates = RateLimiterInfo(limiter.samples_per_insert, limiter.min_diff, limiter.max_diff, limiter.min_size_to_sample)
        return TableInfo(a["name"], options_of(a["sampler"].config), options_of(a["remover"].config), a["max_size"],
                         a["max_times_sampled"], rates, a["signature"])

    def can_sample(self, num_samples: int) -> bool:
        """Whether the limiter would allow so many samples now."""
        info = self.info
        rates, size = info.rate_limiter_info, info.current_size
        cursor = rates.insert_stats.completed * rates.samples_per_insert - rates.sample_stats.completed
        return size >= rates.min_size_to_sample and cursor - num_samples >= rates.min_diff

    def can_insert(self, num_inserts: int) -> bool:
        """Whether the limiter would allow so many inserts now."""
        info = self.info
        rates = info.rate_limiter_info
        inserts = rates.insert_stats.completed + num_inserts
        if info.current_size + num_inserts <= rates.min_size_to_sample:
            return True
        return inserts * rates.samples_per_insert - rates.sample_stats.completed <= rates.max_diff

    def __repr__(self) -> str:
        return "Table(" + ", ".join(f"{key}={value!r}" for key, value in self._arguments.items()) + ")"


def _end(pid: int, server: native.Server, folder: Optional[str]) -> None:
    """Stops a broker. Removes a temporary folder that nobody knows, because no checkpoint was asked for: the last one does not count."""
    if os.getpid() != pid:
        return  # the broker is the parent's
    known = folder is None or bool(glob.glob(os.path.join(glob.escape(folder), "checkpoint-*")))
    server.stop()
    if not known:
        shutil.rmtree(folder, ignore_errors=True)


class Server(Closing):
    """A broker with these tables, reached at ``localhost:port``. It stops on ``stop``, or at the end of the program.

    The broker runs on threads of this process, or with ``mode="process"`` in a process of its own. It accepts connections
    from this machine; ``host="0.0.0.0"`` accepts connections from everywhere. ``journal`` keeps, in the
    checkpointer's folder, every item that was confirmed. ``config`` takes further keys of docs/CONFIG.md. Without a checkpointer,
    checkpoints go to a temporary folder, which stays if a client has asked for one.
    """

    def __init__(self, tables: Optional[Sequence[Table]] = None, port: Optional[int] = None,
                 checkpointer: Optional[checkpointers.DefaultCheckpointer] = None, *, mode: str = "thread",
                 host: str = "127.0.0.1", journal: bool = False, config: Optional[Mapping[str, Any]] = None) -> None:
        tables = list(tables or [])
        if not tables:
            raise ValueError("a server must have at least one table")
        names = [table.name for table in tables]
        if len(set(names)) != len(names):
            raise ValueError(f"the names of tables must differ: {names}")
        own = checkpointer is None and not journal
        checkpointer = checkpointer or checkpointers.default_checkpointer()
        checkpointer.prepare()
        settings = dict(config or {})
        if host != "127.0.0.1":
            settings = {"service": f"tcp://{host}:{port or 0}", "ingest": f"tcp://{host}:0", "events": f"tcp://{host}:0",
                        **settings}
        with translated:
            try:
                server = native.Server([table.config for table in tables], port=port, checkpoint=checkpointer.path,
                                       journal=checkpointer.path if journal else None, mode=mode, config=settings)
            except BaseException:
                if own:
                    shutil.rmtree(checkpointer.path, ignore_errors=True)
                raise
            self._end = weakref.finalize(self, _end, os.getpid(), server, checkpointer.path if own else None)
            self._port = int(server.endpoint.rpartition(":")[2])
            self._client = self.localhost_client()
        for table in tables:
            table._client = self._client
        self._stopped = threading.Event()

    @property
    def port(self) -> int:
        """The port of the broker."""
        return self._port

    def localhost_client(self) -> Client:
        """A client of this server."""
        return Client(f"localhost:{self._port}")

    in_process_client = localhost_client

    def stop(self) -> None:
        """Stops the broker. Clients that wait for it go on waiting: a new server at the same port can serve them."""
        if self._end.alive:
            with translated:
                self._client.native.close()
                self._end()
            self._stopped.set()

    close = stop  # type: ignore[assignment]

    def wait(self) -> bool:
        """Waits until the server is stopped by another thread, or by Ctrl-C, which raises KeyboardInterrupt."""
        while not self._stopped.wait(0.1):
            pass
        return False

    def __repr__(self) -> str:
        return f"Server(port={self._port})"
