"""A broker of one's own, as a process or on threads of this one."""
import contextlib
import json
import operator
import os
import re
import shutil
import signal
import subprocess
import tempfile
import threading
import time
import weakref
from concurrent.futures import Future
from pathlib import Path
from typing import IO, Any, Callable, Iterator, Mapping, NoReturn, Optional, Sequence, TypeVar, Union

from . import _core, log, nest
from .client import Client
from .closing import Closing
from .errors import Error, InvalidArgument, Unavailable
from .writer import Field

T = TypeVar("T")


def program(name: str) -> str:
    """The path of a program: the one in the package, or the one on PATH."""
    for path in (str(Path(__file__).parent / "bin" / name), shutil.which(name)):
        if path and os.access(path, os.X_OK):
            return path
    raise Unavailable(f"there is no {name} in the package or on PATH: install it")


def broker_program() -> str:
    """The path of replay-broker: RP_BROKER, the one in the package, or the one on PATH."""
    given = os.environ.get("RP_BROKER")
    return given if given and os.access(given, os.X_OK) else program("replay-broker")


def Table(name: str, *, sampler: Any = "uniform", remover: Any = "fifo", max_size: int = 1_000_000, limiter: Any = None,
          max_times_sampled: int = 0, metadata: Optional[str] = None, max_bytes: Any = None, soft_capacity: Optional[bool] = None,
          signature: Any = None, extensions: Any = None, max_lag: Optional[int] = None, policy_slot: Optional[str] = None,
          max_deliveries: Optional[int] = None, dead_table: Optional[str] = None, group: Any = None) -> dict:
    """A table of a broker's configuration. Keys and values are those of docs/CONFIG.md, ``tables[]``.

    ``group`` is the size of groups, or a mapping with ``size``, ``deadline`` and ``incomplete``.
    ``signature`` may be a structure of Fields, such as ``Client.signature`` returns. ``metadata`` is any text of at most 64 KiB. The broker keeps it, also in checkpoints; ``Client.metadata`` reads it.

    >>> Table("replay", sampler={"kind": "prioritized", "exponent": 0.6}, limiter={"kind": "min_size", "min_size": 100})["name"]
    'replay'
    >>> Table.queue("trajectories", 1000)["limiter"]
    'queue'
    """
    given = {"limiter": limiter, "metadata": metadata or None, "max_bytes": max_bytes, "soft_capacity": soft_capacity,
             "signature": _signature(signature), "extensions": extensions, "max_lag": max_lag, "policy_slot": policy_slot,
             "max_deliveries": max_deliveries, "dead_table": dead_table, "group": group if group is None or isinstance(group, Mapping) else {"size": group}}
    return {"name": name, "sampler": sampler, "remover": remover, "max_size": max_size, "max_times_sampled": max_times_sampled,
            **{key: value for key, value in given.items() if value is not None}}


def _signature(signature: Any) -> Any:
    """A signature as the configuration has it: of a structure of Fields, each field with its shape after its dtype."""
    if not signature:
        return signature
    node = nest.node_of(signature, (Field,))
    leaves = nest.flatten(node, signature)
    if not all(isinstance(leaf, Field) for leaf in leaves):
        return signature
    return {name: [leaf.dtype, *(size or 0 for size in leaf.shape)] for name, leaf in zip(nest.names(node), leaves)}


def _queue(name: str, size: int, **more: Any) -> dict:
    """A table whose items are read once, in order; writers wait while it is full."""
    return Table(name, sampler="fifo", remover="fifo", max_size=size, max_times_sampled=1,
                 limiter="queue", **more)


Table.queue = _queue  # type: ignore[attr-defined]


class Server(Closing):
    """A broker that stops at the end of a ``with`` block, on ``stop``, or at exit.

    ``mode`` "process" starts replay-broker; "thread" runs the broker on threads of this process, which starts faster and
    shares its cores and its fate. Both are reached at ``endpoint``, also from other processes.

    ``tables`` are what ``Table`` makes; ``port`` None takes a free port. ``journal`` or ``checkpoint`` names a folder: with a
    journal nothing that was confirmed is lost by ``kill -9``. More keys of docs/CONFIG.md go into ``config``.

    ``shards`` above 1 starts as many brokers that are one logical broker (docs/OPERATE.md): settings are those of the whole, and a
    client of ``endpoint`` is a client of all shards. ``endpoints`` lists those of all.

    >>> with Server([Table("replay")]) as server:
    ...     server.client().info()["tables"][0]["name"]
    'replay'
    """

    def __init__(self, tables: Sequence[Mapping[str, Any]], *, port: Optional[int] = None,
                 journal: Union[str, os.PathLike, None] = None, checkpoint: Union[str, os.PathLike, None] = None,
                 mode: str = "process", config: Optional[Mapping[str, Any]] = None, log_level: str = "warn",
                 timeout: float = 10.0, shards: int = 1) -> None:
        if isinstance(tables, (Mapping, str)):
            raise TypeError("tables is a list of tables: Server([Table('replay')])")
        if mode not in ("process", "thread"):
            raise InvalidArgument(f"mode is 'process' or 'thread', not {mode!r}")
        self._pid, self._folder, self._stopped = os.getpid(), "", False
        if not hasattr(shards, "__index__") or not 1 <= operator.index(shards) <= 255:
            raise InvalidArgument(f"a broker has 1 to 255 shards, not {shards!r}")
        self.endpoint, self.shards = "", operator.index(shards)
        self.endpoints: list[str] = []
        self._cores: list[_core.Server] = []
        self.process: Optional[subprocess.Popen] = None
        self._log: Optional[IO[bytes]] = None
        settings = _settings(tables, port, journal, checkpoint, config)
        try:
            if mode == "thread":
                self._run_threads(settings)
            else:
                self._run_process(settings, log_level, timeout)
        except BaseException:
            self.stop()
            raise
        log.stopped.difference_update(self.endpoints)
        _live.add(self)

    def _run_threads(self, settings: dict) -> None:
        for part in self._parts(settings):
            try:
                self._cores.append(_apart(_core.Server, _yaml(part)))
            except InvalidArgument as error:
                raise InvalidArgument(_mistakes(str(error))) from None
        self.endpoints = [core.endpoint for core in self._cores]
        self.endpoint = self.endpoints[0]

    def _parts(self, settings: dict) -> Iterator[dict]:
        """The settings of each shard: they find each other at sockets in a folder, or with a port at every third from it on."""
        if self.shards == 1:
            yield settings
            return
        self._folder = tempfile.mkdtemp(prefix="replaybus-")
        services = [f"ipc://{self._folder}/service-{i}" for i in range(self.shards)]
        host, _, port = settings["service"].rpartition(":")
        if port not in ("0", "*"):
            services = [f"{host}:{int(port) + 3 * i}" for i in range(self.shards)]
        for i in range(self.shards):
            here = {"ingest": f"ipc://{self._folder}/ingest-{i}", "events": f"ipc://{self._folder}/events-{i}"}
            yield {**settings, **here, "service": services[i], "shards": services, "shard": i}

    def _run_process(self, settings: dict, log_level: str, timeout: float) -> None:
        if self.shards > 1:
            settings["shards"] = self.shards
        self._log = tempfile.TemporaryFile()
        with tempfile.TemporaryDirectory(prefix="replaybus-") as folder:  # a program that is killed leaves nothing
            path, endpoints = os.path.join(folder, "broker.json"), os.path.join(folder, "endpoints")
            Path(path).write_text(_yaml(settings), encoding="utf-8")
            command = [broker_program(), "-c", path, "--endpoints-file", endpoints, "--log-level", log_level, "--parent", str(self._pid)]
            # A session of its own: Ctrl-C reaches this process, which stops the broker when it is done with it.
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log,
                                            start_new_session=True)
            self.endpoints = self._await(endpoints, timeout)
        self.endpoint = self.endpoints[0]
        log.hand_on(self.log())

    def _await(self, file: str, timeout: float) -> list[str]:
        """The service endpoints of all shards, as soon as they are bound."""
        deadline = time.monotonic() + timeout
        while True:
            if os.path.exists(file):
                lines = [line.partition(" ") for line in Path(file).read_text().splitlines()]
                found = [endpoint.strip() for name, _, endpoint in lines if name.split(".")[-1] == "service" and endpoint]
                if found:
                    return found
            status = self.process.poll() if self.process else None
            if status is not None:
                if status == 2:
                    raise InvalidArgument(_mistakes(self.log()))
                raise Unavailable(f"the broker did not start (exit status {status}): {self.log().strip()}")
            if time.monotonic() > deadline:
                raise Unavailable(f"the broker has not started within {timeout:g} s: {self.log().strip()}")
            time.sleep(0.002)

    def log(self) -> str:
        """What a broker in a process of its own has logged. One in a thread logs to the logger "replaybus"."""
        try:
            return Path("/proc/self/fd", str(self._log.fileno())).read_text(errors="replace") if self._log else ""
        except ValueError:  # it has stopped
            return ""

    def client(self, *, name: Optional[str] = None, timeout: Optional[float] = 30.0) -> Client:
        """A client of this broker."""
        client = Client(self.endpoint, name=name, timeout=timeout)
        client._server = self
        return client

    def stop(self, timeout: float = 10.0) -> None:
        """Stops the broker: it makes its last checkpoint, if it makes any. A process is killed after ``timeout`` seconds."""
        if self._pid != os.getpid():
            return  # the broker is the parent's
        if self.running:
            log.stopped.update(self.endpoints)
        self._stopped = True
        while self._cores:  # a wait that is interrupted leaves the others to the next call
            _apart(self._cores.pop(0).stop)
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(timeout)
            except subprocess.TimeoutExpired:
                os.killpg(self.process.pid, signal.SIGKILL)  # with all shards: they are its group
                self.process.wait()
        if self._log is not None:
            self._log.close()
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)

    close = stop  # type: ignore[assignment]

    @property
    def running(self) -> bool:
        """Whether the broker runs. One in a process of its own may have died."""
        return not self._stopped and (self.process is None or self.process.poll() is None)

    def __repr__(self) -> str:
        where = "in a thread" if self.process is None else f"process {self.process.pid}"
        where += f", {self.shards} shards" if self.shards > 1 else ""
        return f"<replaybus.Server: {self.endpoint}, {where}, {'running' if self.running else 'not running'}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a server cannot be pickled: pickle its client, or its endpoint")

    def __del__(self) -> None:
        try:
            self.stop()
        except (Error, OSError, AttributeError, TypeError):
            pass  # the interpreter is going down, and atexit has stopped the broker


def _apart(call: Callable[..., T], *arguments: Any) -> T:
    """Calls it on a thread, which goes on when a signal ends the wait for it."""
    done: "Future[T]" = Future()

    def run() -> None:
        try:
            done.set_result(call(*arguments))
        except BaseException as error:
            done.set_exception(error)

    try:
        threading.Thread(target=run, daemon=True).start()
    except RuntimeError:  # the interpreter is going down, and starts no threads
        run()
    while not done.done():
        with contextlib.suppress(TimeoutError):
            done.exception(0.05)  # in between, signals and lines of the log are handled
    return done.result()


def _settings(tables: Sequence[Mapping[str, Any]], port: Optional[int], journal: Any, checkpoint: Any,
              config: Optional[Mapping[str, Any]]) -> dict:
    settings: dict[str, Any] = {"service": f"tcp://127.0.0.1:{port or 0}", "ingest": "tcp://127.0.0.1:0",
                                "events": "tcp://127.0.0.1:0", "tables": list(tables)}
    folder = checkpoint if journal is None else journal
    if journal is not None and checkpoint is not None and os.path.abspath(os.fspath(journal)) != os.path.abspath(os.fspath(checkpoint)):
        raise InvalidArgument("journal and checkpoint name two folders: a broker has one folder for both")
    if folder is not None:
        os.makedirs(folder, exist_ok=True)
        settings["folder"] = os.path.abspath(os.fspath(folder))
        if journal is None:
            settings["journal"] = "off"
    return {**settings, **(config or {})}


def _yaml(settings: dict) -> str:
    """The settings as JSON that is YAML, too: YAML takes neither pairs of surrogates nor bare control characters."""
    text = json.dumps(settings, default=_plain, ensure_ascii=False)
    return _BARE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _plain(value: Any) -> Any:
    """Numbers and arrays of numpy, and mappings, as JSON has them."""
    return value.tolist() if hasattr(value, "tolist") else dict(value)


def _mistakes(text: str) -> str:
    """Mistakes in the settings, without their places in a text that nobody can look at."""
    return re.sub(r"^(\S*/broker\.json|configuration):\d+:\d+: |^replay-broker: \d+ mistake.*", "", text, flags=re.M).strip()


_BARE = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")
_live: "weakref.WeakSet[Server]" = weakref.WeakSet()


def stop_all() -> None:
    """Stops the brokers that are still running at the end of the program."""
    for server in list(_live):
        server.stop()

