"""Programs of one's own under replay-launch: ``learners: {command: [python3, my.py, learner]}``, and the same for actors and the
evaluator (docs/LAUNCH.md).

``Learner``, ``Actor`` and ``Evaluator`` do what the launcher expects: they stop at SIGTERM, count their steps at the broker, and report
waits, losses and returns to the run's folder. A learner publishes parameters, marks the last of them, and saves them; an evaluator
keeps the best. So the launcher profiles, sizes, supervises and shows the run as it does with its own programs. Without a launcher they
work with any broker.

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
import argparse
import contextlib
import json
import math
import os
import signal
import threading
import time
import types
import zlib
from pathlib import Path
from typing import Any, Iterator, Mapping, Optional, Protocol, Sequence, TypeVar, Union

import numpy as np

from . import weights
from .client import Client
from .errors import DeadlineExceeded, EndOfStream, Error, FailedPrecondition, InvalidArgument, Unavailable
from .params import Subscriber
from .writer import close_all

STEPS, LEARNER_STEPS, LEARNER_END = "environment_steps", "learner_steps", "learner_end"  # counters of the broker
EVALUATE, SAVE = "evaluations_asked", "saves_asked"  # counters that replay-launch ask raises
CAUSES = ("sample", "parameters", "reduce", "updates", "counters")  # what a learner may wait for
ACTOR_CAUSES = ("credit", "sample", "parameters", "counters")  # what an actor may wait for
STATE_FILE, BEST_FILE = "learner.weights", "best.weights"
_SLICE_S = 0.2  # a wait for a batch or for parameters; between two of them the program notices a request to stop
_REQUEST_S = 1.0  # deadline of a look at the counters, in case the broker is away
_ADD_S = 30.0  # deadline of an addition that must count once: one that is given up may count all the same
_LAST_S = 4.0  # deadline of all requests at the end together: replay-launch kills the program after launch.grace
_LOOK_S = 0.02  # between two looks of an evaluator at the progress of the run
_ROUNDS = 16  # rounds of an actor that are claimed together: so many steps are lost at most if it is killed


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


def config(path: Union[str, os.PathLike, None] = None) -> dict[str, Any]:
    """A run's configuration by the names of docs/CONFIG.md: ``config()["environment.name"]``. Times are seconds, ``auto`` is -1, and the
    elements of lists of maps (tables, hosts) are left out. Without a path, the file that REPLAY_CONFIG names, or the defaults."""
    from ._load_agent import _agent

    file = os.environ.get("REPLAY_CONFIG") if path is None else os.fspath(path)
    return _agent.config((file, None, ()))


def _as(default: Any, text: str, name: str) -> Any:
    """An option's text as a value of the default's type."""
    if isinstance(default, bool):
        known = {"true": True, "1": True, "false": False, "0": False}
        if text.lower() not in known:
            raise InvalidArgument(f"agent.options.{name} is {text!r}: write true or false")
        return known[text.lower()]
    try:
        return int(float(text)) if isinstance(default, int) and float(text).is_integer() else type(default)(text)
    except ValueError:
        raise InvalidArgument(f"agent.options.{name} is {text!r}: write a value like {default!r}") from None


class Stopped(BaseException):
    """Ends a ``with`` block of a program that was asked to stop and did not end by itself in time."""


class _Process:
    """What all programs of a run have. Values that are not given come from the environment that replay-launch sets."""

    role, causes, idle_name = "", (), "wait_share"
    _patience_s: Optional[float] = 1.0  # from a request to stop to Stopped; None: the program ends by itself

    def __init__(self, *, endpoint: Optional[str] = None, table: Optional[str] = None, index: Optional[int] = None,
                 folder: Union[str, os.PathLike, None] = None, every: float = 0.5, timeout: Optional[float] = 30.0) -> None:
        self.index, self.count = int(_from("INDEX", index, "0")), int(os.environ.get("REPLAY_COUNT", "1"))
        self.seed = int(os.environ.get("REPLAY_SEED", str(self.index)))
        self.table = str(_from("TABLE", table, "replay"))
        home = _from("FOLDER", None if folder is None else os.fspath(folder), None)
        self.folder: Optional[Path] = Path(home) if home else None
        self.name = f"{self.role}-{self.index}"
        self.stopped = False
        self.idle = dict.fromkeys(self.causes, 0.0)  # seconds waited since the start, by cause
        self._every, self._environment_steps, self._config = every, 0, None
        self._began = self._reported = time.monotonic()
        self._idle_before = dict(self.idle)  # at the last report
        self._items = 0  # that batches() gave
        self._handlers: dict[int, Any] = {}
        self._seen: Optional[int] = None  # of the counter that asks this program for something
        self._end = math.inf  # the deadline of the last requests, once the program ends
        self.client = self._connect(_from("ENDPOINT", endpoint, None), timeout)

    def _connect(self, endpoint: Optional[str], timeout: Optional[float]) -> Client:
        if not endpoint:
            raise InvalidArgument(f"the {self.role} needs the broker's address: give endpoint, or set REPLAY_ENDPOINT as replay-launch "
                                  "does")
        return Client(str(endpoint), name=self.name, timeout=timeout)

    @property
    def config(self) -> dict[str, Any]:
        """The run's configuration: see ``replaybus.run.config``."""
        if self._config is None:
            self._config = config()
        return self._config

    @property
    def environment_steps(self) -> int:
        """The steps of all actors when the program last looked."""
        return self._environment_steps

    def options(self, **defaults: Any) -> types.SimpleNamespace:
        """The program's own settings: the defaults, changed by ``agent.options`` of the run's file."""
        given = self.config["agent.options"]
        unknown = [name for name in given if name not in defaults]
        if unknown:
            raise InvalidArgument(f"agent.options.{unknown[0]}: there is no such option; there are {', '.join(defaults)}")
        return types.SimpleNamespace(**{**defaults, **{name: _as(defaults[name], text, name) for name, text in given.items()}})

    def seeds(self, n: int) -> list[int]:
        """Seeds that depend on the run's seed, the role and the index: no two processes of a run, nor two runs, share one."""
        words = (self.config["seed"], zlib.crc32(self.role.encode()), self.index)
        return [int(seed) for seed in np.random.SeedSequence(words).generate_state(n, np.uint64)]

    def environments(self, n: Optional[int] = None, **options: Any) -> Any:
        """The run's environment as a ``replaybus.envs.VectorEnv`` of n (None: actors.environments) that was given its seeds and awaits
        the first ``reset``."""
        from . import envs

        name, limit = self.config["environment.name"], self.config["environment.max_steps"]
        if name.startswith(("python:", "gym:")):
            raise InvalidArgument(f"environment.name: {name} is made by your program itself; built-in ones and plug-ins are made here")
        n = self.config["actors.environments"] if n is None else n
        env = envs.make_vec(name, n, plugin=self.config["environment.plugin"] or None, max_episode_steps=limit or None,
                            **self.config["environment.options"], **options)
        env.reset(seed=self.seeds(n))
        return env

    def __enter__(self) -> Any:
        if threading.current_thread() is threading.main_thread():
            self._handlers = {number: signal.signal(number, self._on_signal) for number in (signal.SIGTERM, signal.SIGINT)}
        return self

    def _on_signal(self, number: int, frame: Any) -> None:
        self.stopped = True
        self._restore_signals()  # a second signal ends the process at once
        if self._patience_s is not None:
            self._handlers = {signal.SIGALRM: signal.signal(signal.SIGALRM, self._on_alarm)}
            signal.setitimer(signal.ITIMER_REAL, self._patience_s)

    def _on_alarm(self, number: int, frame: Any) -> None:
        raise Stopped

    def _restore_signals(self) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._handlers = {}

    def __exit__(self, kind: Any, *_: Any) -> bool:
        self._patience_s, self._end = None, time.monotonic() + _LAST_S  # what follows ends by itself
        if signal.SIGALRM in self._handlers:
            signal.setitimer(signal.ITIMER_REAL, 0)
        try:
            if kind is Stopped:
                close_all(0.0)  # the table was full, and whoever samples from it stops as well
            if kind is None or kind is Stopped:
                self._finish()
        finally:
            self._restore_signals()
            self.client.close()
        return kind is Stopped

    def stop(self) -> None:
        """Asks the program to end, as SIGTERM does."""
        self.stopped = True

    def _finish(self) -> None:
        self.report()

    def _takes_part(self) -> bool:
        """False: another moment passes before the next batch."""
        return True

    def batches(self, sampler: Batches) -> Iterator[Any]:
        """The sampler's batches, until the run stops or the sampler ends. Waits are counted as waits for samples."""
        while not self.stopped:
            if not self._takes_part():
                self._report_when_due()
                continue
            begun = time.monotonic()
            try:
                batch = sampler.next(_SLICE_S)
            except EndOfStream:
                return
            except FailedPrecondition:
                if self.stopped:
                    return  # another rank has stopped a moment earlier
                raise
            except (DeadlineExceeded, Unavailable):
                self._add_idle("sample", begun)
                self._report_when_due()
                continue
            self._add_idle("sample", begun)
            self._items += len(batch)
            yield batch

    @contextlib.contextmanager
    def waiting(self, cause: str) -> Iterator[None]:
        """Counts the time of a ``with`` block as a wait: a learner's for "updates", "reduce", "parameters" or "counters", an actor's for
        "credit"."""
        begun = time.monotonic()
        try:
            yield
        finally:
            self._add_idle(cause, begun)

    @property
    def wait_share(self) -> float:
        """The share of the time since the start for which the program waited."""
        return sum(self.idle.values()) / max(1e-9, time.monotonic() - self._began)

    def _add_idle(self, cause: str, begun: float) -> None:
        self.idle[cause] += time.monotonic() - begun

    def _request_s(self, usual: float = _REQUEST_S) -> float:
        """The deadline of a request. At the end nobody repeats it: it may take all the time that is left."""
        return usual if self._end == math.inf else max(0.0, self._end - time.monotonic())

    def _asked(self, counter: str) -> bool:
        """Whether somebody has raised the counter since the last look; the first look only learns its value."""
        with contextlib.suppress(Error):
            before, self._seen = self._seen, self.client.counter(counter).read(self._request_s())
            return before is not None and self._seen > before
        return False

    def _report_when_due(self) -> None:
        if time.monotonic() - self._reported >= self._every:
            self.report()

    def report(self) -> None:
        """Writes a line to the run's folder."""
        raise NotImplementedError

    def _line(self, learner_steps: int, scalars: Any) -> None:
        """Writes a report. scalars(seconds since the last one): what this kind of program reports."""
        now = time.monotonic()
        seconds, self._reported = max(1e-9, now - self._reported), now
        shares = {f"idle_{cause}": (self.idle[cause] - before) / seconds for cause, before in self._idle_before.items()}
        self._idle_before = dict(self.idle)
        line = {"time": time.time(), "process": self.name, "environment_steps": self._environment_steps,
                "learner_steps": learner_steps, **({self.idle_name: sum(shares.values())} if shares else {}), **shares,
                **{name: _number(value) for name, value in scalars(seconds).items()}}
        if self.folder is not None:
            with contextlib.suppress(OSError), open(self.folder / f"{self.name}.jsonl", "a") as file:  # a full disk does not stop the run
                file.write(json.dumps(line) + "\n")


class Learner(_Process):
    """One learner of a run. Values that are not given come from the environment that replay-launch sets.

    client, table, index, count, seed and folder describe the run; ``steps`` counts the learner's steps, and a learner that continues
    from a saved state sets it. Use it in a ``with`` block: its end publishes, saves and reports the last parameters.
    """

    role, causes = "learner", CAUSES
    _patience_s = None  # batches() ends

    def __init__(self, *, save_every: float = 60.0, **options: Any) -> None:
        super().__init__(**options)
        self.steps = 0
        self._save_every, self._publisher, self._publish_every = save_every, None, 1
        self._saved = time.monotonic()
        self._before = (0, 0)  # steps and items at the last report
        self._scalars, self._broker, self._learned = {}, None, 0
        self._group: Any = None  # of parallel learners

    @property
    def leads(self) -> bool:
        """Whether this learner publishes, counts and saves: of several that share, the first one that takes part."""
        return self.index == 0 if self._group is None else self._group.leads

    def _finish(self) -> None:
        """Saves first: the rest waits for a broker that may be gone, and the launcher kills what takes too long. A disk that is full keeps
        nobody from getting the last parameters."""
        try:
            self._save()
        finally:
            if self._publisher is not None and self.leads:
                with contextlib.suppress(Error):
                    self._publisher.put(self.steps)
                    self._publisher.flush(self._request_s())
                    mark = self.client.counter(LEARNER_END)  # tells the evaluator that these parameters are the last
                    mark.add(self.steps + 1 - mark.read(self._request_s()), self._request_s())
            if self._group is not None:
                self._group.close()  # not earlier: another learner would lead, and save, too
            self.report()

    def _takes_part(self) -> bool:
        return self._group is None or self._group.join()

    def publishes(self, publisher: Publishes, every: int = 10) -> None:
        """Publishes the first parameters now, for which actors wait, and others every so many steps and at the end.

        Of several learners, the first one publishes. ``publisher`` is for example ``replaybus.torch.Publisher``. Parameters that an
        earlier process of the run has saved are loaded first, with their step: a learner that was restarted continues. What else
        belongs to its state, such as optimisers and target networks, is saved and loaded with them if the publisher keeps it:
        ``publisher.keep(adam=adam, target=target)``, before this call.
        """
        self._publisher, self._publish_every = publisher, every
        if self.folder is not None and (self.folder / STATE_FILE).exists():
            self.steps = publisher.load(self.folder / STATE_FILE)
        if self.index == 0:
            publisher.put(self.steps)
            publisher.flush(self.client.timeout)
        self._broker = self._instance()

    def share(self, *optimizers: Any, backend: Optional[str] = None) -> Any:
        """Makes the learners of a run (``learners.count``) learn as one: see ``replaybus.torch.Share``. Call it after ``publishes``, and
        ``mean`` of the result between the backward pass and the optimisers' steps. One learner alone keeps its gradients.

        The sums go through the broker, or through torch.distributed: backend "gloo" or "nccl".
        """
        from .torch.share import Share

        self._group = Share(self, self._publisher, optimizers, backend)
        return self._group

    def step(self, **scalars: Any) -> None:
        """Counts one step of the learner. The newest scalars (loss, q, policy_loss, entropy ...) go into the next report."""
        self.steps += 1
        self._scalars.update(scalars)
        if self._group is not None:
            self._group.applied()
        if self._publisher is not None and self.leads and self.steps % self._publish_every == 0:
            self._publisher.put(self.steps)
        self._report_when_due()
        if time.monotonic() - self._saved >= self._save_every:
            self._save_or_not()

    def _save_or_not(self) -> None:
        with contextlib.suppress(OSError):  # a full disk does not stop the run
            self._save()

    def _save(self) -> None:
        self._saved = time.monotonic()
        if self._publisher is not None and self.leads and self.folder is not None:
            self._publisher.save(self.folder / STATE_FILE, self.steps)

    def _instance(self) -> Any:
        """The instance of the broker; None while there is no connection."""
        try:
            state = self.client.state()
        except Error:
            return None
        return state["broker"] if state["connected"] else None

    def _exchange_counts(self) -> None:
        """The leading learner counts. A restarted broker without a journal has lost counts and parameters: it gets them again.
        Fast actors may have counted more than before by then: the learner's own count, which nobody else adds to, tells it too."""
        if self.leads:
            instance, steps, learned = self._instance(), self.client.counter(STEPS), self.client.counter(LEARNER_STEPS)
            counted, fresh = learned.read(self._request_s()), instance != self._broker
            total = steps.read(self._request_s()) if fresh else 0
            if instance is None or instance != self._instance():
                return  # whose counts are these?
            if fresh:
                if self._publisher is not None:
                    self._publisher.put(self.steps)
                if total < self._environment_steps or counted < self._learned:
                    steps.add(self._environment_steps, self._request_s(_ADD_S))
                self._broker = instance
            self._learned = learned.add(self.steps - counted, self._request_s()) if self.steps > counted else counted
        self._environment_steps = max(self._environment_steps, self.client.counter(STEPS).read(self._request_s()))

    def report(self) -> None:
        """Writes a line to the run's folder and counts the steps. ``step`` and ``batches`` call it now and then."""
        with self.waiting("counters"), contextlib.suppress(Error):
            self._exchange_counts()
        if self._asked(SAVE):
            self._save_or_not()
        steps, items = self._before
        self._before = (self.steps, self._items)
        self._line(self.steps, lambda seconds: {"updates_per_second": (self.steps - steps) / seconds,
                                                "samples_per_second": (self._items - items) / seconds, **self._scalars})


class _Pulls(_Process):
    """A program that acts with a learner's parameters."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.learner_steps = 0  # of the learner when it made the newest parameters
        self.version = 0  # of these parameters
        self._slot: Optional[Subscriber] = None

    def _pull(self, timeout: float) -> Optional[dict[str, np.ndarray]]:
        """The tensors of a version that was not taken yet; None if there is none in time."""
        if self._slot is None:
            self._slot = self.client.params.subscriber(weights.SLOT)
        try:
            param = self._slot.take(timeout)
        except (DeadlineExceeded, Unavailable):
            return None
        if param is None:
            return None
        tensors, self.version = weights.decode(param.data), param.version
        self.learner_steps = int(tensors[weights.STEPS][0]) if weights.STEPS in tensors else 0
        return tensors


class Actor(_Pulls):
    """One actor of a run: it takes steps, and writes items through ``client``.

    ``while actor.claims(n)`` goes around once for each step of n environments, until the run has all of ``stop.steps`` or stops. An
    actor that works on a queue takes its ``batches`` instead.
    A program that waits for room in a table while the run stops is interrupted after a second: its ``with`` block ends there.
    """

    role, causes, idle_name = "actor", ACTOR_CAUSES, "blocked_share"

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.steps = 0  # of this actor
        self.episodes = 0
        self._claimed, self._counter = 0, self.client.counter(STEPS)
        self._running: Any = None  # return and length of each environment's episode
        self._ended: list[tuple[float, float]] = []
        self._steps_before = 0

    def claims(self, n: int) -> bool:
        """True: take one step of each of n environments. False: the run has all its steps, or it stops."""
        self._report_when_due()
        while self._claimed < n:
            if self.stopped:
                return False
            begun = time.monotonic()
            try:
                more = self._claim(n)
            except (DeadlineExceeded, Unavailable):
                more = None  # the broker is away: try again
            self._add_idle("counters", begun)
            if more == 0:
                return False
            self._claimed += more or 0
        self._claimed -= n
        self.steps += n
        return True

    def _claim(self, n: int) -> int:
        """Claims whole rounds at the broker. The last one may go beyond stop.steps; 0: all of them are claimed."""
        limit, size = self.config["stop.steps"], n * _ROUNDS
        total = self._counter.add(size, _ADD_S)
        beyond = min(size, (total - limit) // n * n) if limit and total > limit else 0
        if beyond:
            self._counter.add(-beyond, _ADD_S)
        self._environment_steps = total - beyond
        return size - beyond

    def parameters(self, wait: bool = False) -> Optional[dict[str, np.ndarray]]:
        """The newest parameters, or None if they were taken before. The first call waits for the first ones, and ``wait`` for others than
        those that were taken. ``version`` is theirs, which items are stamped with, and ``learner_steps`` says how much they have learned."""
        tensors = self._pull(0)
        while tensors is None and (wait or self._first):
            if self.stopped:
                raise Stopped
            self._report_when_due()
            with self.waiting("parameters"):
                tensors = self._pull(_SLICE_S)
        self._first = False
        return tensors

    _first = True  # no parameters were taken yet

    def took(self, rewards: np.ndarray, ended: np.ndarray) -> None:
        """Takes the rewards of a step of each environment, and which episodes it ended: for the reports."""
        if self._running is None:
            self._running = np.zeros((2, len(rewards)))
        self._running[0] += rewards
        self._running[1] += 1
        for i in np.flatnonzero(ended):
            self._ended.append(tuple(self._running[:, i]))
            self._running[:, i] = 0
            self.episodes += 1

    def _finish(self) -> None:
        if self._claimed:
            with contextlib.suppress(Error):
                self._counter.add(-self._claimed, self._request_s())
        self.report()

    def report(self) -> None:
        """Writes a line to the run's folder. ``claims`` and ``parameters`` call it now and then."""
        values, self._ended = self._ended, []
        before, self._steps_before = self._steps_before, self.steps
        value, length = np.mean(values, 0) if values else (math.nan, math.nan)
        self._line(self.learner_steps, lambda seconds: {
            "actor_steps": self.steps, "steps_per_second": (self.steps - before) / seconds, "episodes": self.episodes,
            "return": value, "episode_length": length})


class Evaluator(_Pulls):
    """The evaluator of a run, and of weights in a file: ``replay-launch`` starts ``evaluator.command`` with the words
    ``--weights FILE --episodes N`` for the latter.

    ``parameters`` gives those that are to be evaluated; ``result`` takes the returns of ``episodes`` episodes. The best parameters are
    kept in the run's folder.
    """

    role = "evaluator"

    def __init__(self, *, argv: Optional[Sequence[str]] = None, **options: Any) -> None:
        reader = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
        reader.add_argument("--weights")
        reader.add_argument("--episodes", type=int)
        reader.add_argument("--json", action="store_true")
        self._of = reader.parse_known_args(argv)[0]
        super().__init__(**options)
        self.episodes = self._of.episodes or self.config["evaluator.episodes"]
        self._tensors: Mapping[str, np.ndarray] = {}
        self._began_s, self._best = 0.0, -math.inf

    def _connect(self, endpoint: Optional[str], timeout: Optional[float]) -> Client:
        if self._of.weights:
            return Client(str(endpoint or "tcp://127.0.0.1:1"))  # never used: there may be no broker
        return super()._connect(endpoint, timeout)

    def parameters(self) -> Iterator[dict[str, np.ndarray]]:
        """Parameters to evaluate: every ``evaluator.every`` steps the newest ones, and at the end of the run the last ones."""
        if self._of.weights:
            yield self._begin(weights.load(self._of.weights))
            return
        with contextlib.suppress(OSError, KeyError, Error):
            if self.folder is not None:
                self._best = float(weights.load(self.folder / BEST_FILE)["evaluation/return"][0])
        every = due = self.config["evaluator.every"]
        tensors = None
        while not self.stopped:
            tensors = self._pull(0 if tensors is not None else _SLICE_S) or tensors
            progress, last = self._look()
            asked = self._asked(EVALUATE)
            if tensors is None or not (last or asked or (every and progress >= due)):
                time.sleep(_LOOK_S)
                continue
            due += every * max(0, (progress - due) // every + 1) if every else 0
            tensors = self._await_last(tensors) if last else self._newest() or tensors
            yield self._begin(tensors)
            if last:
                return

    def _begin(self, tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        self._tensors, self._began_s = tensors, time.monotonic()
        self.learner_steps = int(tensors[weights.STEPS][0]) if weights.STEPS in tensors else 0
        return tensors

    def _look(self) -> tuple[int, bool]:
        """The progress of the run, in steps of actors (without actors: of the learner), and whether it was the last one."""
        acts, progress = self.config["actors.count"] != 0, self.learner_steps
        if acts:
            with contextlib.suppress(DeadlineExceeded, Unavailable):
                self._environment_steps = self.client.counter(STEPS).read(_REQUEST_S)
            progress = self._environment_steps
        limit = self.config["stop.steps" if acts else "stop.learner_steps"]
        return progress, bool(limit and progress >= limit)

    def _newest(self) -> Optional[dict[str, np.ndarray]]:
        """What the broker has now: the subscriber may receive it a moment later. None while the broker is away."""
        with contextlib.suppress(DeadlineExceeded, Unavailable):
            return weights.decode(self.client.params.get(weights.SLOT, timeout=_REQUEST_S).data)
        return None

    def _await_last(self, tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The parameters that the learner marks as its last ones; the newest, if the launcher stops waiting for it."""
        while not self.stopped:
            tensors = self._pull(_SLICE_S) or tensors
            with contextlib.suppress(DeadlineExceeded, Unavailable):
                if self.client.counter(LEARNER_END).read(_REQUEST_S) == self.learner_steps + 1:
                    break
        return tensors

    def result(self, returns: Sequence[float]) -> float:
        """Takes the returns of the episodes; gives their mean. ``stop.value`` ends the run."""
        mean = float(np.mean(returns))
        if self._of.weights:
            self._print(returns, mean)
            return mean
        steps = self._environment_steps
        if self.folder is not None and mean >= self._best:
            self._best = mean
            with contextlib.suppress(OSError):  # a full disk does not stop the run
                weights.save(self.folder / BEST_FILE, {
                    **{name: array for name, array in self._tensors.items() if not name.startswith("evaluation/") and name != weights.STEPS},
                    "evaluation/return": np.array([mean]), "evaluation/episodes": np.array([len(returns)], "uint64"),
                    "evaluation/environment_steps": np.array([steps], "uint64"), weights.STEPS: np.array([self.learner_steps], "uint64")})
        took = time.monotonic() - self._began_s
        self._line(self.learner_steps, lambda _: {"return": mean, "episodes": len(returns), "seconds": took})
        self.stopped = self.stopped or mean >= self.config["stop.value"]
        return mean

    def _print(self, returns: Sequence[float], mean: float) -> None:
        if self._of.json:
            print(json.dumps({"weights": self._of.weights, "learner_steps": self.learner_steps, "episodes": len(returns), "return": mean,
                              "lowest": float(min(returns)), "highest": float(max(returns)), "deviation": float(np.std(returns))}))
            return
        print(f"mean return of {len(returns)} episodes: {mean:.6g}\nfrom {min(returns):.6g} to {max(returns):.6g}, standard deviation "
              f"{np.std(returns):.6g}\n{self._of.weights}, of learner step {self.learner_steps}")

    def _finish(self) -> None:
        """Every evaluation was reported already."""


def _number(value: Any) -> Optional[float]:
    """None for what is not finite: JSON has no such number."""
    number = float(value)
    return number if math.isfinite(number) else None
