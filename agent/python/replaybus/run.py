"""A learner of one's own under replay-launch: ``learners: {command: [python3, my_learner.py]}`` (docs/LAUNCH.md).

``Learner`` does what the launcher expects: it stops at SIGTERM, counts its steps at the broker, reports waits and losses to the
run's folder, publishes parameters, marks the last of them, and saves them. So the launcher profiles, sizes, supervises and shows the
run as it does with its own learner. Without a launcher it works with any broker.

>>> import numpy as np, replaybus, replaybus.run
>>> server = replaybus.Server([replaybus.Table("replay")], mode="thread")
>>> with server.client() as client, client.writer() as writer:
...     writer.append_block({"reward": np.ones(100)}, item=replaybus.Last(1, "replay"))
100
>>> with replaybus.run.Learner(endpoint=server.endpoint, table="replay") as run:
...     for batch in run.batches(run.client.sampler(run.table, batch_size=8)):
...         run.step(loss=0.5)
...         if run.steps == 10:
...             run.stop()
>>> server.client().counter("learner_steps").value
10
>>> server.stop()
"""
from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any, Iterator, Optional, Protocol, TypeVar, Union

from .client import Client
from .errors import DeadlineExceeded, EndOfStream, Error, InvalidArgument, Unavailable

STEPS, LEARNER_STEPS, LEARNER_END = "environment_steps", "learner_steps", "learner_end"  # counters of the broker
CAUSES = ("sample", "parameters", "reduce", "updates", "counters")  # what a learner may wait for
STATE_FILE = "learner.weights"
_SLICE_S = 0.2  # a wait for a batch; between two of them the learner notices a request to stop
_REQUEST_S = 1.0  # deadline of a look at the counters, in case the broker is away
_LAST_S = 3.0  # deadline of the last publication


class Publishes(Protocol):
    """What publishes parameters, such as replaybus.torch.Publisher."""

    def put(self, step: int) -> None: ...
    def flush(self, timeout: Optional[float] = None) -> int: ...
    def save(self, path: Any, step: int) -> None: ...
    def load(self, path: Any) -> int: ...


class Batches(Protocol):
    """What gives batches: replaybus.Sampler, replaybus.torch.Sampler."""

    def next(self, timeout: Optional[float] = None) -> Any: ...


_T = TypeVar("_T")


def _from(name: str, value: Optional[_T], default: Optional[str]) -> Union[_T, str, None]:
    return value if value is not None else os.environ.get(f"REPLAY_{name}", default)


class Learner:
    """One learner of a run. Values that are not given come from the environment that replay-launch sets.

    client, table, index, count, seed and folder describe the run; ``steps`` counts the learner's steps, and a learner that continues
    from a saved state sets it. Use it in a ``with`` block: its end publishes, saves and reports the last parameters.
    """

    def __init__(self, *, endpoint: Optional[str] = None, table: Optional[str] = None, index: Optional[int] = None,
                 folder: Union[str, os.PathLike, None] = None, every: float = 0.5, save_every: float = 60.0,
                 timeout: Optional[float] = 30.0) -> None:
        where = _from("ENDPOINT", endpoint, None)
        if not where:
            raise InvalidArgument("a learner needs the broker's address: give endpoint, or set REPLAY_ENDPOINT as replay-launch does")
        self.index, self.count = int(_from("INDEX", index, "0")), int(os.environ.get("REPLAY_COUNT", "1"))
        self.seed = int(os.environ.get("REPLAY_SEED", str(self.index)))
        self.table = str(_from("TABLE", table, "replay"))
        home = _from("FOLDER", None if folder is None else os.fspath(folder), None)
        self.folder: Optional[Path] = Path(home) if home else None
        self.name = f"learner-{self.index}"
        self.client = Client(str(where), name=self.name, timeout=timeout)
        self.steps, self.stopped = 0, False
        self.idle = dict.fromkeys(CAUSES, 0.0)  # seconds waited since the start, by cause
        self._every, self._save_every, self._publisher, self._publish_every = every, save_every, None, 1
        self._began = self._reported = self._saved = time.monotonic()
        self._before: tuple = (0, 0, dict(self.idle))  # steps, items and waits at the last report
        self._items, self._scalars, self._environment_steps = 0, {}, 0
        self._broker, self._handlers = None, {}

    # ---- life

    def __enter__(self) -> "Learner":
        if threading.current_thread() is threading.main_thread():
            self._handlers = {number: signal.signal(number, self._on_signal) for number in (signal.SIGTERM, signal.SIGINT)}
        return self

    def _on_signal(self, number: int, frame: Any) -> None:
        self.stopped = True
        self._restore_signals()  # a second signal ends the process at once

    def _restore_signals(self) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._handlers = {}

    def __exit__(self, kind: Any, *_: Any) -> None:
        try:
            if kind is None:
                self._finish()
        finally:
            self._restore_signals()
            self.client.close()

    def stop(self) -> None:
        """Ends ``batches`` before its next batch, as SIGTERM does."""
        self.stopped = True

    def _finish(self) -> None:
        """Saves first: the rest waits for a broker that may be gone, and the launcher kills what takes too long."""
        if self._publisher is not None and self.index == 0:
            self._save()
            with contextlib.suppress(Error):
                self._publisher.put(self.steps)
                self._publisher.flush(_LAST_S)
                mark = self.client.counter(LEARNER_END)  # tells the evaluator that these parameters are the last
                mark.add(self.steps + 1 - mark.read(_REQUEST_S), _REQUEST_S)
        self.report()

    # ---- learning

    def publishes(self, publisher: Publishes, every: int = 10) -> None:
        """Publishes the first parameters now, for which actors wait, and others every so many steps and at the end.

        Of several learners, the first one publishes. ``publisher`` is for example ``replaybus.torch.Publisher``. Parameters that an
        earlier process of the run has saved are loaded first, with their step: a learner that was restarted continues. Copy networks
        (targets) after this call. The state of an optimiser is not saved.
        """
        self._publisher, self._publish_every = publisher, every
        if self.folder is not None and (self.folder / STATE_FILE).exists():
            self.steps = publisher.load(self.folder / STATE_FILE)
        if self.index == 0:
            publisher.put(self.steps)
            publisher.flush(self.client.timeout)
        self._broker = self._instance()

    def batches(self, sampler: Batches) -> Iterator[Any]:
        """The sampler's batches, until the run stops or the sampler ends. Waits are counted as waits for samples."""
        while not self.stopped:
            begun = time.monotonic()
            try:
                batch = sampler.next(_SLICE_S)
            except EndOfStream:
                return
            except (DeadlineExceeded, Unavailable):
                self._add_idle("sample", begun)
                self._while_waiting()
                continue
            self._add_idle("sample", begun)
            self._items += len(batch)
            yield batch

    def step(self, **scalars: Any) -> None:
        """Counts one step of the learner. The newest scalars (loss, q, policy_loss, entropy ...) go into the next report."""
        self.steps += 1
        self._scalars.update(scalars)
        if self._publisher is not None and self.index == 0 and self.steps % self._publish_every == 0:
            self._publisher.put(self.steps)
        now = time.monotonic()
        if now - self._reported >= self._every:
            self.report()
        if now - self._saved >= self._save_every:
            with contextlib.suppress(OSError):  # a full disk does not stop the run
                self._save()

    def _save(self) -> None:
        self._saved = time.monotonic()
        if self._publisher is not None and self.index == 0 and self.folder is not None:
            self._publisher.save(self.folder / STATE_FILE, self.steps)

    @contextlib.contextmanager
    def waiting(self, cause: str) -> Iterator[None]:
        """Counts the time of a ``with`` block as a wait: for "updates", "reduce", "parameters" or "counters"."""
        begun = time.monotonic()
        try:
            yield
        finally:
            self._add_idle(cause, begun)

    @property
    def wait_share(self) -> float:
        """The share of the time since the start for which the learner waited."""
        return sum(self.idle.values()) / max(1e-9, time.monotonic() - self._began)

    def _add_idle(self, cause: str, begun: float) -> None:
        self.idle[cause] += time.monotonic() - begun

    def _while_waiting(self) -> None:
        if time.monotonic() - self._reported >= self._every:
            self.report()

    # ---- the broker

    def _instance(self) -> Any:
        """The instance of the broker; None while there is no connection."""
        try:
            state = self.client.state()
        except Error:
            return None
        return state["broker"] if state["connected"] else None

    def _exchange_counts(self) -> None:
        """The first learner counts. A restarted broker without a journal has lost counts and parameters: it gets them again."""
        if self.index == 0:
            instance, steps = self._instance(), self.client.counter(STEPS)
            if instance is not None and instance != self._broker:
                missing = self._environment_steps - steps.read(_REQUEST_S)
                if self._broker is not None and missing > 0:
                    steps.add(missing, _REQUEST_S)
                if self._publisher is not None:
                    self._publisher.put(self.steps)
                self._broker = instance
            counter = self.client.counter(LEARNER_STEPS)
            new = self.steps - counter.read(_REQUEST_S)
            if new > 0:
                counter.add(new, _REQUEST_S)
        self._environment_steps = max(self._environment_steps, self.client.counter(STEPS).read(_REQUEST_S))

    def report(self) -> None:
        """Writes a line to the run's folder and counts the steps. ``step`` and ``batches`` call it now and then."""
        with self.waiting("counters"), contextlib.suppress(Error):
            self._exchange_counts()
        now = time.monotonic()
        seconds, self._reported = max(1e-9, now - self._reported), now
        steps, items, idle = self._before
        self._before = (self.steps, self._items, dict(self.idle))
        shares = {f"idle_{cause}": (self.idle[cause] - idle[cause]) / seconds for cause in CAUSES}
        line = {"time": time.time(), "process": self.name, "environment_steps": self._environment_steps,
                "learner_steps": self.steps, "updates_per_second": (self.steps - steps) / seconds,
                "samples_per_second": (self._items - items) / seconds, "wait_share": sum(shares.values()), **shares,
                **{name: _number(value) for name, value in self._scalars.items()}}
        self._write(json.dumps(line))

    def _write(self, line: str) -> None:
        if self.folder is None:
            return
        with contextlib.suppress(OSError):  # a full disk does not stop the run
            with open(self.folder / f"{self.name}.jsonl", "a") as file:
                file.write(line + "\n")


def _number(value: Any) -> Optional[float]:
    """None for what is not finite: JSON has no such number."""
    number = float(value)
    return number if math.isfinite(number) else None
