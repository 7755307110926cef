"""Actors of your own: a loop in Python with the network, the adders and the standing parameter updates of the C actor.

>>> import replaybus
>>> from replaybus import envs
>>> tables = [replaybus.Table("replay")]
>>> config = {"environment": {"name": "CartPole-v1"}, "agent": {"algorithm": "dqn"}, "broker": {"tables": tables}}
>>> with replaybus.Server(tables) as server, envs.make("CartPole-v1") as env:
...     with replaybus.Actor(server.endpoint, config, env=env, wait=False) as actor:
...         observation, _ = env.reset(seed=1)
...         actor.observe_first(observation)
...         for _ in range(5):
...             observation, reward, terminated, truncated, info = env.step(actor.act(observation))
...             actor.observe(reward, terminated, truncated, observation)
...         actor.steps
5
"""
import json
import os
from typing import Any, Mapping, Optional, Sequence, Union

from .._load_agent import _agent
from ..closing import Flushing
from ..writer import close_at_exit
from .structured import Converter, describe, is_plain

__all__ = ["Actor"]

Config = Union[None, str, "os.PathLike[str]", Mapping[str, Any]]


class Actor(_agent.Actor, Flushing):
    """An actor of a run whose environments the program steps itself.

    It connects to the broker at ``endpoint``, builds the network that ``config`` describes, and waits in the first ``act`` for the
    parameters of a learner. Newer parameters are taken as they arrive, every ``actors.pull_every`` steps. What ``observe`` is told
    becomes items of the run's table. Steps are counted at the broker: ``finished`` says that the run has taken all of ``stop.steps``.

    - config: a run's file, or the same as a dict (docs/CONFIG.md). Learners and evaluators of the run read the same.
    - env: the environment, or the vector environment, that the program steps; its spaces must be those of the configuration. Or
      observation_space and action_space, with the attributes of Gymnasium's. Dicts, tuples and the like become arrays as in runs whose
      environment is in Python (docs/GUIDE.md).
    - environments: the number of environments; the calls then take and return arrays with one row for each, in one pass of the network.
      None: one environment, and calls with its values.
    - index: which actor of the run this is; it decides the seeds and the place on the ladder of epsilons.
    - greedy: True acts without exploration, False explores, None does what actors.greedy says.
    - insert: False records nothing and counts no steps: for an evaluation.
    - wait: False acts with the initial parameters until the learner's first arrive.
    - overrides: changes to the configuration, such as "agent.hidden=[32]".
    - timeout: seconds to connect; None waits.
    """

    def __init__(self, endpoint: str, config: Config = None, *, env: Any = None, observation_space: Any = None, action_space: Any = None,
                 index: int = 0, environments: Optional[int] = None, greedy: Optional[bool] = None, insert: bool = True,
                 wait: bool = True, overrides: Sequence[str] = (), timeout: Optional[float] = 30.0) -> None:
        if env is not None:
            environments = getattr(env, "num_envs", None) if environments is None else environments
            observation_space = getattr(env, "single_observation_space", env.observation_space)
            action_space = getattr(env, "single_action_space", env.action_space)
        if environments is not None and environments < 1:
            raise ValueError(f"an actor has at least 1 environment, not {environments}")
        self.endpoint, self.index, self.environments = endpoint, index, environments
        spec = None
        if observation_space is not None or action_space is not None:
            observation, action = describe(observation_space, action_space)
            spec = observation.dtype, tuple(observation.shape), action.actions, tuple(action.low), tuple(action.high), 0
            if not is_plain(observation_space, action_space, observation):
                self._converter, self.__class__ = Converter(observation, action, environments), _StructuredActor
        self._open(endpoint, _source(config, spec, overrides), spec, index, environments or 1, environments is not None,
                   -1 if greedy is None else int(greedy), insert, wait, timeout)
        close_at_exit(self)

    @property
    def version(self) -> int:
        """The version of the parameters that act: it grows with each that a learner publishes. 0: the initial ones."""
        return self.state()["version"]

    @property
    def learner_steps(self) -> int:
        """The learner's steps when it made the parameters that act."""
        return self.state()["learner_steps"]

    @property
    def epsilon(self) -> float:
        """The share of random actions at present, of the first environment."""
        return self.state()["epsilon"]

    def __repr__(self) -> str:
        return f"<Actor {self.index} at {self.endpoint}>"


class _StructuredActor(Actor):
    """An actor whose observations or actions are converted first."""

    def act(self, observation: Any, /) -> Any:
        return self._converter.action(super().act(self._converter.observation(observation)))

    def observe(self, reward: Any, terminated: Any, truncated: Any, observation: Any, info: Optional[dict] = None, /) -> None:
        convert = self._converter
        super().observe(reward, terminated, truncated, convert.observation(observation), convert.info(info))

    def observe_first(self, observation: Any, mask: Any = None, /) -> None:
        super().observe_first(self._converter.observation(observation), mask)


def _section(spec: tuple) -> dict[str, Any]:
    """The key ``environment`` of a run whose environment only this program knows."""
    dtype, shape, n_actions, low, high, _ = spec
    return {"name": "python:program:own", "spec": {"dtype": dtype, "shape": list(shape), "actions": n_actions,
                                                   "low": list(low), "high": list(high)}}


def _source(config: Config, spec: Optional[tuple], overrides: Sequence[str]) -> tuple:
    if isinstance(overrides, str):
        raise TypeError("overrides are a sequence of texts such as ['agent.batch=64']")
    if config is None or isinstance(config, (str, os.PathLike)):
        return None if config is None else os.fspath(config), None, tuple(overrides)
    config = dict(config)
    if spec is not None:
        config.setdefault("environment", _section(spec))
    return None, json.dumps(config), tuple(overrides)
