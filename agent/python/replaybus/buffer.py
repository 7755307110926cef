"""A replay buffer for programs that keep one in their own memory: the calls that they know, with a broker behind them."""
import contextlib
import functools
import json
import math
import os
import shutil
import tempfile
import warnings
import weakref
from pathlib import Path
from typing import Any, NamedTuple, Optional, Sequence, Union

import numpy as np

from . import _core, nest
from .client import Client
from .closing import Flushing
from .errors import DeadlineExceeded, Error, FailedPrecondition, InvalidArgument
from .sampler import Sampler, _on_host
from .server import Server, Table
from .writer import Field, clock, convert

_SHARE_BYTES = 1024  # observations of this size share rows unasked: two rows of an item then cost less than a copy
_SAMPLERS = 4  # batch sizes with batches ahead
_CLOSE_S = 30.0  # for what a limiter holds back, if the client has no deadline
_EPSILON = 1e-6  # added to errors, so that no transition is lost for good
Infos = Union[Sequence[dict], dict, None]


class ReplayBufferSamples(NamedTuple):
    """A batch of n transitions. dones, rewards and discounts have the shape (n, 1), discrete actions too; keys and weights (n,).

    ``discounts`` is gamma to the power of the number of steps: what the value of ``next_observations`` is worth.
    """

    observations: Any
    actions: Any
    next_observations: Any
    dones: Any
    rewards: Any
    discounts: Any
    keys: Any
    weights: Any


def _fields(space: Any) -> Any:
    """The Field of a space's values; of Dict and Tuple a dict or tuple of them. A Discrete value has the shape (1,)."""
    parts = getattr(space, "spaces", None)
    if parts is not None:
        return {key: _fields(part) for key, part in parts.items()} if hasattr(parts, "items") else tuple(map(_fields, parts))
    if getattr(space, "shape", None) is None or getattr(space, "dtype", None) is None:
        raise InvalidArgument(f"values of {space!r} have no fixed shape: a buffer takes Box, Discrete, MultiDiscrete, MultiBinary, Dict and Tuple")
    discrete = hasattr(space, "n") and not space.shape
    return Field("int64" if discrete else np.dtype(space.dtype).name, (1,) if discrete else tuple(space.shape))


def _convert(columns: Sequence[tuple[str, Field]], n: int, column: int, value: Any) -> np.ndarray:
    """An array for a column, of values with another type or shape."""
    name, field = columns[column]
    array, shape = np.asarray(_on_host(value)), (n, *field.shape)
    alike = [size for size in array.shape if size != 1] == [size for size in shape if size != 1]
    if array.dtype.kind in "biuf" and np.array_equal(cast := array.astype(field.dtype), array):
        array = cast  # such as whole numbers as floats
    return convert(array.reshape(shape) if alike else array, name, field.dtype, shape)


def _truncated(infos: Any, n: int) -> Optional[np.ndarray]:
    """Which episodes a time limit ended, as their infos say. None: they do not say."""
    if isinstance(infos, np.ndarray):
        return infos.reshape(n)
    name = "TimeLimit.truncated"
    if isinstance(infos, dict):
        if name in infos:
            return np.asarray(infos[name], bool).reshape(n) & np.asarray(infos.get(f"_{name}", True))
        infos = infos.get("final_info", [infos] if n == 1 else [])
        if isinstance(infos, dict):
            return _truncated(infos, n) if name in infos else None
    infos = [] if infos is None else [info or {} for info in infos]
    if infos and len(infos) != n:
        raise InvalidArgument(f"add got the infos of {len(infos)} environments, and the buffer has {n}")
    return np.array([bool(info.get(name, False)) for info in infos]) if any(name in info for info in infos) else None


def _dones(handle: bool, n: int, done: Any, infos: Any) -> np.ndarray:
    """What counts as done: not the end of an episode by a time limit."""
    out = np.asarray(_on_host(done), np.float32).reshape(n)
    if not handle and not isinstance(infos, np.ndarray):
        return out
    truncated = _truncated(infos, n)
    if truncated is None:
        warnings.warn("an episode is done, and its infos have no 'TimeLimit.truncated': give add(..., terminated, truncated=truncated); "
                      "if done is never a time limit, give the buffer handle_timeout_termination=False", RuntimeWarning, stacklevel=3)
        return out
    return out * ~truncated


def _remove(folder: str, pid: int) -> None:
    """Removes the folder of a buffer, unless this process was forked from the one that has it."""
    if os.getpid() == pid:
        shutil.rmtree(folder, ignore_errors=True)


class ReplayBuffer(Flushing):
    """``add``, ``sample`` and ``update_priorities`` with the arguments that scripts of CleanRL, Stable-Baselines3 and cpprb have.

    Without a ``client`` it starts a broker on threads of this process; with one, ``table`` of that broker holds the transitions, and
    other processes may add to it and sample from it. Up to ``prefetch`` batches are made ahead by other threads, so the newest
    transitions appear that many batches later. With ``prefetch=0``, which ``seed`` implies, a transition can be sampled as soon as it
    was added (where no limiter holds inserts back), and two runs with the same seed and calls get the same batches.

    ``n_step`` sums rewards over so many steps with ``gamma``, fewer at the end of an episode. ``prioritized`` samples by priority to the
    power of ``alpha``; ``weights`` correct for it with ``beta``. With ``optimize_memory_usage`` the observation after a step and
    the one before the next are stored once; large ones always are. With ``handle_timeout_termination`` the end of an episode by a time
    limit (infos: "TimeLimit.truncated") does not count as done.

    >>> from replaybus import envs
    >>> env = envs.make("CartPole-v1")
    >>> with ReplayBuffer(1000, env.observation_space, env.action_space, prioritized=True, seed=1) as buffer:
    ...     observation, _ = env.reset(seed=1)
    ...     for t in range(8):
    ...         following, reward, terminated, truncated, _ = env.step(t % 2)
    ...         buffer.add(observation, following, t % 2, reward, terminated, truncated=truncated)
    ...         observation = following
    ...     batch = buffer.sample(32, beta=0.5)
    ...     buffer.update_priorities(batch.keys, abs(batch.rewards))
    >>> batch.observations.shape, batch.actions.shape, batch.dones.dtype, batch.weights.shape
    ((32, 4), (32, 1), dtype('float32'), (32,))
    """

    def __init__(self, buffer_size: int, observation_space: Any, action_space: Any, device: Any = "cpu", n_envs: int = 1,
                 optimize_memory_usage: bool = False, handle_timeout_termination: bool = True, *, n_step: int = 1, gamma: float = 0.99,
                 prioritized: bool = False, alpha: float = 0.6, beta: float = 0.4, seed: Optional[int] = None,
                 prefetch: Optional[int] = None, client: Optional[Client] = None, table: str = "replay") -> None:
        if n_envs < 1 or n_step < 1 or (client is None and buffer_size < 1):
            raise InvalidArgument(f"buffer_size {buffer_size}, n_envs {n_envs}, n_step {n_step}: each must be 1 or more")
        if client is not None and seed is not None:
            raise InvalidArgument("a seed is for the buffer's own broker: set 'seed' in the configuration of the broker of this client")
        self.device, self.n_envs, self.n_step, self.gamma = self._device(device), n_envs, int(n_step), float(gamma)
        self.buffer_size, self.observation_space, self.action_space = buffer_size, observation_space, action_space
        self.prioritized, self.alpha, self.beta, self.table = bool(prioritized), alpha, beta, table
        self.prefetch = (2 if seed is None else 0) if prefetch is None else prefetch
        self._seed, self._timeouts = seed, handle_timeout_termination
        self._steps, self._items, self._highest = 0, 0, 1.0
        self._observation, self._action = _fields(observation_space), _fields(action_space)
        fields = nest.flatten(nest.node_of(self._observation, (Field,)), self._observation)
        size = sum(np.dtype(field.dtype).itemsize * math.prod(field.shape) for field in fields)
        self._n_observations, self._shared = len(fields), optimize_memory_usage or n_step > 1 or size >= _SHARE_BYTES
        self._powers, self._constants = self._array(gamma ** np.arange(n_step + 1, dtype=np.float32)), {}
        self._server, self._folder, self._given = None, "", client
        self._open()

    def _open(self, saved: Optional[str] = None) -> None:
        """Starts the broker, with what was saved, and opens the streams."""
        self._samplers: dict[int, Any] = {}
        self._closed = False
        if self._given is None:
            self._folder = tempfile.mkdtemp(prefix="replaybus-")  # sockets, and what save copies
            weakref.finalize(self, _remove, self._folder, os.getpid())  # for programs that do not close it
            self._data = os.path.join(self._folder, "data")
            if saved:
                shutil.copytree(saved, self._data)
            sampler = {"kind": "prioritized", "exponent": self.alpha} if self.prioritized else "uniform"
            config = {"seed": 0 if self._seed is None else int(self._seed) % (2**63 - 1) + 1, "checkpoint": {"every": "0s"},
                      **{socket: f"ipc://{self._folder}/{socket}" for socket in ("service", "ingest", "events")}}
            self._server = Server([Table(self.table, max_size=self.buffer_size, sampler=sampler)], mode="thread",
                                  checkpoint=self._data, config=config)
        self.client = self._given or self._server.client()
        if self.table not in self.client.tables:
            raise InvalidArgument(f"the broker has no table {self.table!r}; it has {', '.join(self.client.tables)}")
        # A limiter may hold transitions back until somebody samples, so a sample must not wait for them.
        self._held = self._given is not None and self.client.limiter(self.table)["max_diff"] < 1e300
        number = Field("float32")
        rest = {"actions": self._action, "dones": number, "rewards": number}
        spec = ({"observations": self._observation, **rest} if self._shared else
                {"next_observations": self._observation, **rest, "observations": self._observation})
        options = {"keep_alive": self.n_step + self._shared}
        self._writers = tuple(self.client.writer(spec, **options) for _ in range(self.n_envs if self._shared else 1))
        columns = [(column.name, Field(column.dtype, column.shape)) for column in self._writers[0].columns_flat()]
        plan = nest.plan(nest.node_of((self._observation, self._action, number, number, self._observation), (Field,)))
        self._rows = _core.Transitions(
            self._writers, self.n_envs, plan, self._n_observations, next(i for i, (name, _) in enumerate(columns) if name == "dones"), self.table,
            self.prefetch == 0 and len(self._writers) > 1, tuple(self._selection(steps) for steps in range(1, self.n_step + 1)),
            functools.partial(_convert, columns, self.n_envs), functools.partial(_dones, self._timeouts, self.n_envs))
        self._dirty = True
        self._alone = not self._shared and self.client.state()["shards"] > 1  # no item refers to the steps of another
        self._updater = self.client.updater(self.table) if self.prefetch else None

    def _selection(self, steps: int) -> "_core.Selection":
        """The fields of an item over so many steps."""
        writer = self._writers[0]
        columns = writer.columns

        def pick(name: str, row: int) -> Any:
            return nest.mapped(lambda column: column[row], columns[name], leaf=(type(columns["dones"]),))

        following = "observations" if self._shared else "next_observations"
        return writer.select({"observations": pick("observations", -steps - self._shared), "actions": pick("actions", -steps),
                              "next_observations": pick(following, -1), "dones": columns["dones"][-1],
                              "rewards": columns["rewards"][-steps:] if self.n_step > 1 else columns["rewards"][-1]})

    def add(self, obs: Any, next_obs: Any, action: Any, reward: Any, done: Any, infos: Infos = None, truncated: Any = None) -> None:
        """Adds one transition of each environment. ``truncated``: a time limit ended the episode. ``done`` is then what Gymnasium calls
        terminated: where both are true, the episode counts as done.

        With ``n_step`` above 1, an ``obs`` that is not the last ``next_obs`` begins an episode, too.
        """
        if truncated is not None:
            infos = np.asarray(_on_host(truncated), bool).reshape(self.n_envs)
            if infos.any():
                over = np.asarray(_on_host(done), bool).reshape(self.n_envs)
                done, infos = over | infos, infos & ~over
        self._items += self._rows.add((next_obs, action, done, reward, obs), infos, self._highest, self.client.timeout)
        if self._alone:
            self._writers[0].end_episode(wait=False)  # the next rows go to any shard
        self._steps += 1
        self._dirty = True

    def extend(self, *columns: Any) -> None:
        """Adds many transitions: the arguments of ``add``, each with one more dimension in front."""
        parts = [self._observation, self._observation, self._action][:len(columns)]
        nodes = [nest.node_of(part, (Field,)) for part in parts + [Field("float32")] * (len(columns) - len(parts))]
        leaves = [nest.flatten(node, column) for node, column in zip(nodes, columns)]
        counts = [len(leaf) for part in leaves for leaf in part]
        if len(set(counts)) != 1:
            raise InvalidArgument(f"extend got columns of {', '.join(map(str, counts)) or 'no'} rows: each needs one for each transition")
        for t in range(counts[0]):
            self.add(*(nest.pack(node, [leaf[t] for leaf in part]) for node, part in zip(nodes, leaves)))

    def flush(self) -> None:
        """Waits until all that was added is in the table."""
        for writer in self._writers if self._dirty else ():
            writer.flush(timeout=self.client.timeout)
        self._dirty = False

    def _device(self, device: Any) -> Any:
        if str(device) not in ("cpu", "auto"):
            raise InvalidArgument(f"device {device!r}: arrays are in ordinary memory; replaybus.torch.ReplayBuffer gives tensors")
        return "cpu"

    def _array(self, values: np.ndarray) -> Any:
        return values

    def _sampler(self, batch_size: int) -> Any:
        return Sampler([(self.client, self.table)], batch_size, in_flight=self.prefetch)

    def _batch(self, batch_size: int) -> Any:
        """The next batch as the library gives it."""
        sampler = self._samplers.get(batch_size)
        if self._dirty and not self._held and (sampler is None or not self.prefetch):
            self.flush()
        if sampler is None:
            if self._closed:
                raise FailedPrecondition("this buffer is closed")
            if self._given is None and self._items == 0:
                raise FailedPrecondition("the buffer is empty: add transitions before you sample"
                                         + (f"; an item of {self.n_step} steps is there after as many" if self._steps else ""))
            while len(self._samplers) >= _SAMPLERS:
                self._samplers.pop(next(iter(self._samplers))).close()
            sampler = self._samplers[batch_size] = self._sampler(batch_size)
        return sampler.next(self.client.timeout)

    def sample(self, batch_size: int, env: Any = None, *, beta: Optional[float] = None) -> ReplayBufferSamples:
        """A batch of transitions. ``beta`` replaces that of the buffer."""
        if env is not None:
            raise InvalidArgument("the buffer does not normalize: apply env.normalize_obs and env.normalize_reward to the batch")
        batch = self._batch(batch_size)
        data = batch.data
        dones, rewards = data["dones"], data["rewards"]
        if self.n_step == 1:
            rewards, discounts = rewards[:, None], self._constant("discount", batch_size)[:, None]
        else:
            lengths, powers = batch.lengths["rewards"], self._powers
            discounts = (self._constant("discount", batch_size) if lengths is None else powers[lengths])[:, None]
            rewards = (rewards @ powers[:rewards.shape[1]])[:, None]
        weights = self._weights(batch, self.beta if beta is None else beta) if self.prioritized else self._constant("weight", batch_size)
        return ReplayBufferSamples(data["observations"], data["actions"], data["next_observations"], dones[:, None], rewards, discounts,
                                   batch.key, weights)

    def _constant(self, kind: str, n: int) -> Any:
        """Equal values for a batch, made once."""
        value = self._constants.get((kind, n))
        if value is None:
            value = self._array(np.full(n, self.gamma ** self.n_step if kind == "discount" else 1.0, np.float32))
            self._constants[kind, n] = value
        return value

    def _weights(self, batch: Any, beta: float) -> Any:
        """The importance weights: 1 for the least likely transition of the batch."""
        return ((batch.probability / batch.probability.min()) ** -beta).astype(np.float32)

    def update_priorities(self, keys: Any, td: Any) -> None:
        """Sets the priorities of transitions to the size of their errors. New ones get the largest that was ever set."""
        errors = np.abs(np.asarray(_on_host(td), np.float64)).reshape(-1) + _EPSILON
        if self._updater is not None:
            self._updater.add(keys, errors, self.client.timeout)
        else:
            self.client.update(self.table, keys, errors)
        if errors.size and np.isfinite(largest := float(errors.max())):
            self._highest = max(self._highest, largest)

    def size(self) -> int:
        """The number of transitions."""
        if self._given is None:
            return min(self._items, self.buffer_size)
        if not self._held:
            self.flush()
        return self._stored()

    __len__ = size

    @property
    def pos(self) -> int:
        """The row that the next ``add`` fills, of ``buffer_size // n_envs``."""
        return self._steps % max(self.buffer_size // self.n_envs, 1)

    @property
    def full(self) -> bool:
        """Whether old transitions make room for new ones."""
        return self._steps >= max(self.buffer_size // self.n_envs, 1)

    def reset(self) -> None:
        """Removes all transitions, and batches that were made ahead."""
        self._close_samplers()
        self.flush()
        for writer in self._writers:  # steps that are no items yet are removed, too
            writer.end_episode(timeout=self.client.timeout)
        self.client.reset(self.table)
        self._steps, self._items, self._highest = 0, 0, 1.0

    def _own(self, what: str) -> None:
        if self._given is not None:
            raise FailedPrecondition(f"{what} is for a buffer with a broker of its own: this table belongs to a broker that makes checkpoints "
                                     "itself (client.checkpoint())")

    def save(self, path: Union[str, "os.PathLike[str]"]) -> None:
        """Writes the buffer into a new folder: transitions, priorities, and the state of the random numbers. The last
        ``n_step - 1`` transitions of an episode that goes on, which no sample can have yet, are not in it: after ``load`` an episode begins."""
        self._own("save")
        self.flush()
        if self._updater is not None:
            self._updater.flush(self.client.timeout)
        self.client.checkpoint()
        shutil.copytree(self._data, path, ignore=shutil.ignore_patterns("lock*", "*.lock"))
        counts = [self._steps, self._items, self._highest, self._stored()]
        Path(path, "buffer.json").write_text(json.dumps({"made": self._made(), "counts": counts}))

    def load(self, path: Union[str, "os.PathLike[str]"]) -> None:
        """Replaces all transitions by saved ones, of a buffer with the same spaces, n_step, gamma, prioritized and table. A load that fails
        changes nothing; while it runs, both are in memory."""
        self._own("load")
        try:
            saved = json.loads(Path(path, "buffer.json").read_text())
            made, (*counts, stored) = saved["made"], saved["counts"]
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise InvalidArgument(f"'{os.fspath(path)}' is no folder that ReplayBuffer.save has written: {error}") from error
        for name, value in self._made().items():
            if made.get(name) != value:
                raise InvalidArgument(f"the saved buffer has {name} {made.get(name)}, and this one {value}")
        old = object.__new__(type(self))
        old.__dict__.update(self.__dict__)
        self._writers, self._updater, self._server = (), None, None
        try:
            self._open(os.fspath(path))
            if self._stored() != min(stored, self.buffer_size):
                raise InvalidArgument(f"'{os.fspath(path)}' lacks files: it has {self._stored()} of {stored} transitions")
        except BaseException:
            with contextlib.suppress(Error):
                self._give_up()
            self.__dict__.update(old.__dict__)
            raise
        self._steps, self._items, self._highest = counts
        old.close()

    def _made(self) -> dict:
        """What a saved buffer and the one that loads it must agree on."""
        spaces = {"observations": self._observation, "actions": self._action}
        leaves = nest.flatten(node := nest.node_of(spaces, (Field,)), spaces)
        fields = [f"{name} {field.dtype} {list(field.shape)}" for name, field in zip(nest.names(node), leaves)]
        return {"spaces": fields, "n_step": self.n_step, "gamma": self.gamma, "prioritized": self.prioritized, "table": self.table}

    def _stored(self) -> int:
        """The transitions that the table has now."""
        return self.client.info(self.table)["tables"][0]["size"]

    def __repr__(self) -> str:
        kind = f"{type(self).__module__.rpartition('.buffer')[0]}.{type(self).__name__}"
        if self._closed:
            return f"<{kind}: closed>"
        count = f"{self.size()} of {self.buffer_size}" if self._given is None else self.size()
        more = f", {self.n_envs} environments" * (self.n_envs > 1) + f", {self.n_step} steps" * (self.n_step > 1) + ", prioritized" * self.prioritized
        return f"<{kind}: {count} transitions{more}>"

    def _close_samplers(self) -> None:
        for sampler in self._samplers.values():
            sampler.close()
        self._samplers.clear()

    def close(self, timeout: Optional[float] = None) -> None:
        """Ends the samplers, and the broker if the buffer has its own. What a limiter holds back for longer than ``timeout`` (None: that of
        the client, or 30 s) is given up with a warning."""
        limits = (limit for limit in (timeout, self.client.timeout, _CLOSE_S) if limit is not None)
        left = clock(next(limits))
        self._close_samplers()
        try:
            for end in (*self._writers, self._updater):
                with contextlib.suppress(DeadlineExceeded):
                    if end is not None:
                        end.close(left())
        finally:
            self._give_up()

    def _give_up(self) -> None:
        self._closed = True
        for end in (*self._writers, self._updater):
            if end is not None:
                end._give_up()
        if self._server is not None:
            self.client.close()
            self._server.stop()
            shutil.rmtree(self._folder, ignore_errors=True)
