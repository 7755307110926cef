"""A replay buffer for programs that keep one in their own memory: the same calls, with a broker behind them."""
from __future__ import annotations

from typing import Any, NamedTuple, Optional, Sequence, Union

import numpy as np
import torch

from ..client import Client
from ..closing import Closing
from ..server import Server, Table
from ..writer import Field, Last
from .batch import Device
from .sampler import Sampler


class ReplayBufferSamples(NamedTuple):
    """A batch of n transitions. dones and rewards have the shape (n, 1); actions (n, 1) if they are discrete."""

    observations: torch.Tensor
    actions: torch.Tensor
    next_observations: torch.Tensor
    dones: torch.Tensor
    rewards: torch.Tensor


class ReplayBuffer(Closing):
    """``add`` and ``sample`` with the arguments and results that scripts of CleanRL and Stable-Baselines3 expect.

    Without a ``client`` it starts a broker on threads of this process; with one, ``table`` of that broker holds the transitions, and
    other processes may add to it and sample from it. Batches are sampled up to ``prefetch`` ahead, so the newest transitions appear
    that many batches later. ``handle_timeout_termination`` lets episodes that a time limit ended (infos[i]["TimeLimit.truncated"])
    count as not done.

    >>> from replaybus import envs
    >>> env = envs.make("CartPole-v1")
    >>> with ReplayBuffer(1000, env.observation_space, env.action_space, handle_timeout_termination=False) as buffer:
    ...     observation, _ = env.reset(seed=1)
    ...     for t in range(8):
    ...         following, reward, terminated, truncated, info = env.step(t % 2)
    ...         buffer.add(observation, following, t % 2, reward, terminated, [info])
    ...         observation = following
    ...     batch = buffer.sample(32)
    >>> batch.observations.shape, batch.actions.shape, batch.dones.dtype
    (torch.Size([32, 4]), torch.Size([32, 1]), torch.float32)
    """

    def __init__(self, buffer_size: int, observation_space: Any, action_space: Any, device: Device = "cpu", n_envs: int = 1,
                 optimize_memory_usage: bool = False, handle_timeout_termination: bool = True, *,
                 client: Optional[Client] = None, table: str = "replay", prefetch: int = 2) -> None:
        if device == "auto":
            device = "cuda" if torch.cuda.is_available() else "cpu"
        self.device, self.n_envs, self.table = torch.device(device), n_envs, table
        self._timeouts, self._prefetch = handle_timeout_termination, prefetch
        self._server = None
        if client is None:
            self._server = Server([Table(table, max_size=buffer_size)], mode="thread")
            client = self._server.client()
        self.client = client
        discrete = hasattr(action_space, "n")
        observation = Field(np.dtype(observation_space.dtype).name, tuple(observation_space.shape))
        action = Field("int64" if discrete else np.dtype(action_space.dtype).name, (1,) if discrete else tuple(action_space.shape))
        self._forms = {"observations": (observation.dtype, (n_envs, *observation.shape)), "actions": (action.dtype, (n_envs, *action.shape))}
        self._writer = client.vector_writer(n_envs, {"observations": observation, "actions": action, "next_observations": observation,
                                                     "dones": Field("float32"), "rewards": Field("float32")}, chunk_length=1)
        self._item, self._never_done = Last(1, table), np.zeros(n_envs, bool)
        self._samplers: dict[int, Sampler] = {}

    def add(self, obs: np.ndarray, next_obs: np.ndarray, action: np.ndarray, reward: np.ndarray, done: np.ndarray,
            infos: Union[Sequence[dict], dict, None] = None) -> None:
        """Adds one transition of each environment."""
        done = np.asarray(done, "float32").reshape(self.n_envs)
        if self._timeouts and infos is not None and not isinstance(infos, dict):
            done = done * np.array([not info.get("TimeLimit.truncated", False) for info in infos], "float32")
        self._writer.append({"observations": self._rows(obs, "observations"), "actions": self._rows(action, "actions"),
                             "next_observations": self._rows(next_obs, "observations"), "dones": done,
                             "rewards": np.asarray(reward, "float32").reshape(self.n_envs)}, done=self._never_done, item=self._item)

    def _rows(self, values: Any, kind: str) -> np.ndarray:
        dtype, shape = self._forms[kind]
        return np.asarray(values, dtype).reshape(shape)

    def sample(self, batch_size: int, env: Any = None) -> ReplayBufferSamples:
        """A batch of transitions, picked uniformly unless the table has another sampler."""
        sampler = self._samplers.get(batch_size)
        if sampler is None:
            self._writer.flush(timeout=self.client.timeout)
            sampler = self._samplers[batch_size] = Sampler(self.client, self.table, batch_size, device=self.device,
                                                           in_flight=self._prefetch)
        data = sampler.next(self.client.timeout).data
        return ReplayBufferSamples(data["observations"][:, 0], data["actions"][:, 0], data["next_observations"][:, 0], data["dones"],
                                   data["rewards"])

    def size(self) -> int:
        """The number of transitions in the table."""
        self._writer.flush(timeout=self.client.timeout)
        return self.client.info(self.table)["tables"][0]["size"]

    __len__ = size

    def close(self) -> None:
        """Ends the samplers, and the broker if the buffer has its own."""
        for sampler in self._samplers.values():
            sampler.close()
        self._writer.close()
        if self._server is not None:
            self.client.close()
            self._server.stop()
