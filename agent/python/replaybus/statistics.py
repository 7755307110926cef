"""Running means and variances that the actors and the evaluator of a run share, in parameter slots of the broker.

A wrapper such as Gymnasium's NormalizeObservation keeps its statistics in one process: every actor of a run would scale differently,
and the evaluator would begin anew. ``normalize(env)`` in the callable of a run's environment scales alike in all of them:

    def make():
        return replaybus.statistics.normalize(gymnasium.make("Hopper-v5"))

>>> import numpy as np
>>> shared = Statistics((2,))
>>> shared.update(np.array([[0.0, 10.0], [2.0, 30.0]]))
>>> shared.scale(np.array([1.0, 30.0]))
array([0., 1.], dtype=float32)
"""
import collections
import contextlib
import itertools
import os
import warnings
from typing import Any, Iterator, Mapping, Optional, Sequence

import numpy as np

from . import spaces
from .adapter.spaces import LAST_OBSERVATION
from .client import Client
from .errors import Error, PermissionDenied

# "ENDPOINT INDEX" of the actor that runs here; the evaluator has no index, and that of a file no endpoint; or HERE, a run in one process.
# And the run's folder.
ACTOR, FOLDER, HERE = "REPLAY_ACTOR", "REPLAY_FOLDER", "here"
_here: dict[str, dict[str, tuple[int, np.ndarray]]] = collections.defaultdict(dict)  # of a run in one process, what a broker would have
_numbers: dict[tuple, Iterator[int]] = collections.defaultdict(itertools.count)  # of the writers of a name and an index in this process
_FIRST = "0.0"  # the slot of actor 0
_SYNC_S = 5.0  # deadline of an exchange with the broker; after it, the statistics go on as they are


class Statistics:
    """The mean and the variance of values of a shape, over all processes that use the same ``name``.

    Each writer has a slot of its own, ``NAME/RUN/INDEX.NUMBER``, so that nobody overwrites another's; what all have seen is the sum. ``index`` None
    only reads. Without a ``client`` it takes what ``python3 -m replaybus.actor`` says of its run; outside of a run nothing is shared.
    They are exchanged every ``every`` values, and at once when the first are needed. Actor 0 keeps what all have seen as ``actor-0.NAME.npy``
    in the run's folder, for a run that is resumed, for evaluations of its weights, and for readers where no slot has anything.
    """

    def __init__(self, shape: Sequence[int], name: str = "statistics", *, client: Optional[Client] = None, index: Optional[int] = 0,
                 every: int = 1000) -> None:
        here = client is None and os.environ.get(ACTOR) == HERE
        if here:
            index = 0 if name in _here else None  # its evaluator is made first
        elif client is None and os.environ.get(ACTOR):
            endpoint, _, number = os.environ[ACTOR].partition(" ")
            client, index = Client(endpoint, timeout=_SYNC_S) if endpoint else None, int(number) if number else None
        self.name, self.index, self._client, self._every = name, index, client, every
        self._shape, self._own, self._all = tuple(shape), _empty(shape), _empty(shape)
        self._seen, self._due = 0, 0
        self._versions: dict[str, tuple[int, np.ndarray]] = _here[name] if here else {}
        self._slot = None if index is None else f"{index}.{next(_numbers[name, index])}"
        self._place, folder = "", os.environ.get(FOLDER)
        # A host takes files home that begin with the name of their process, and gives them to the next one.
        self._file = os.path.join(folder, f"actor-0.{name}.npy") if folder and (here or client is not None or index is None) else None
        if client is not None:
            with contextlib.suppress(Error):
                self._read()
        if not here:  # a run in one process is repeated, not resumed
            self._load()
        self._own = self._versions.get(self._slot, (0, self._own))[1]  # of an earlier process of this actor
        self._shares, self._saves = here or client is not None, here or self._slot == _FIRST
        self._sum()
        if os.environ.get(ACTOR) == " " and not self.count:
            warnings.warn(f"there is no {self._file}: observations are not scaled as they were when the weights were learned", RuntimeWarning)

    @property
    def count(self) -> int:
        """The number of values that the statistics are made of."""
        return int(self._all[0].flat[0])

    @property
    def mean(self) -> np.ndarray:
        return self._all[1]

    @property
    def variance(self) -> np.ndarray:
        return self._all[2] / np.maximum(self._all[0], 1.0) if self.count else np.ones(self._shape)

    def update(self, values: Any) -> None:
        """Takes values, one in each row. A reader only counts them."""
        values = np.asarray(values, np.float64).reshape(-1, *self._shape)
        if self.index is not None and len(values):
            new = np.stack([np.full(self._shape, float(len(values))), values.mean(0), ((values - values.mean(0)) ** 2).sum(0)])
            self._own, self._all = _joined(self._own, new), _joined(self._all, new)
        self._seen += len(values)
        if self._shares and self._seen >= self._due:
            self._due = self._seen + self._every
            self.sync()

    def sync(self) -> None:
        """Exchanges statistics with the broker now. A broker that is away for a while changes nothing."""
        if not self._shares:
            return
        try:
            if self._client is not None:
                if self.index is not None:
                    self._publish()
                self._read()
                if self.index is None:
                    self._load()
            elif self._slot is not None:
                self._versions[self._slot] = 0, self._own
        except Error:
            return
        self._sum()
        if self._file and self._saves and self.count:
            with contextlib.suppress(OSError):  # a full disk does not stop the run
                part = f"{self._file}.{os.getpid()}.tmp"
                with open(part, "wb") as file:
                    np.save(file, self._all)
                os.replace(part, self._file)

    def _publish(self) -> None:
        try:
            self._client.params[self._in_broker() + self._slot] = self._own.tobytes()
        except PermissionDenied as error:  # of an actor on another host: it goes on with what the others have seen, and its own
            warnings.warn(f"statistics '{self.name}' do not have what this process has seen: {error}", RuntimeWarning)

    def _load(self) -> None:
        if self._file and self._versions.get(_FIRST, (-1,))[0] == -1:
            with contextlib.suppress(OSError, ValueError, EOFError):
                self._versions[_FIRST] = -1, np.load(self._file).reshape(self._own.shape)

    def _in_broker(self) -> str:
        """How the slots of this run begin: tables that runs share (broker.folder) bring those of the others along."""
        self._place = self._place or f"{self.name}/{abs(self._client.counter('run_folder').value)}/"
        return self._place

    def _read(self) -> None:
        place = self._in_broker()
        for slot in self._client.info()["slots"]:
            name = slot["name"][len(place):]
            if slot["name"].startswith(place) and self._versions.get(name, (-1, None))[0] != slot["version"]:
                param = self._client.params[slot["name"]]
                if len(param.data) == self._own.nbytes:
                    self._versions[name] = param.version, np.frombuffer(param.data).reshape(self._own.shape)

    def _sum(self) -> None:
        self._all = self._own
        for name, (_, part) in sorted(self._versions.items()):
            if name != self._slot:
                self._all = _joined(self._all, part)

    def scale(self, values: Any, clip: float = 10.0) -> np.ndarray:
        """Values with mean 0 and variance 1, at most ``clip`` away from 0."""
        scaled = (np.asarray(values, np.float64) - self.mean) / np.sqrt(self.variance + 1e-8)
        return np.clip(scaled, -clip, clip).astype(np.float32)


def _empty(shape: Sequence[int]) -> np.ndarray:
    """[count, mean, sum of squared distances from it]"""
    return np.zeros((3, *shape))


def _joined(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The statistics of two sets of values together."""
    total = a[0] + b[0]
    share = np.divide(b[0], total, out=np.zeros_like(total), where=total > 0)
    apart = b[1] - a[1]
    return np.stack([total, a[1] + apart * share, a[2] + b[2] + apart ** 2 * a[0] * share])


class Normalized:
    """An environment, or a vector of them, whose observations are scaled. Its other attributes are those of the environment."""

    def __init__(self, env: Any, statistics: Statistics, clip: float) -> None:
        self.env, self.statistics, self._clip = env, statistics, clip
        for name in ("observation_space", "single_observation_space"):
            if hasattr(env, name):
                setattr(self, name, spaces.Box(-clip, clip, getattr(env, name).shape, "float32"))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.env, name)

    def _scaled(self, observation: Any) -> np.ndarray:
        self.statistics.update(observation)
        return self.statistics.scale(observation, self._clip)

    def reset(self, *, seed: Optional[int] = None, options: Optional[Mapping[str, Any]] = None) -> tuple:
        if self.statistics.index is None:
            self.statistics.sync()  # an evaluator has few observations, and the policy sees those of the newest scale
        observation, info = self.env.reset(seed=seed, options=options)
        return self._scaled(observation), info

    def step(self, action: Any) -> tuple:
        observation, *rest, info = self.env.step(action)
        scaled = self._scaled(observation)
        return (scaled, *rest, {**info, **{name: self._lasts(info[name]) for name in LAST_OBSERVATION if name in info}})

    def _lasts(self, rows: np.ndarray) -> np.ndarray:
        """The last observations of episodes that a vector environment has ended; of objects, the others are None."""
        if rows.dtype != object:
            return self.statistics.scale(rows, self._clip)
        out = rows.copy()
        for i in np.flatnonzero([row is not None for row in rows]):
            out[i] = self.statistics.scale(rows[i], self._clip)
        return out


def normalize(env: Any, name: str = "statistics", clip: float = 10.0, **options: Any) -> Normalized:
    """The environment with observations of mean 0 and variance 1, by statistics that all actors and the evaluator of the run share.

    The options are those of Statistics.
    """
    return Normalized(env, Statistics(getattr(env, "single_observation_space", env.observation_space).shape, name, **options), clip)
