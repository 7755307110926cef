"""The built-in environments, written in C, with Gymnasium's interface; and environments of plug-ins.

>>> from replaybus import envs
>>> env = envs.make("CartPole-v1")
>>> observation, info = env.reset(seed=1)
>>> observation, reward, terminated, truncated, info = env.step(env.action_space.sample())
>>> observation.shape, reward, terminated, truncated
((4,), 1.0, False, False)
>>> env.close()

Many environments in one call, as arrays whose first dimension counts environments:

>>> with envs.make_vec("CartPole-v1", 16) as env:
...     observations, info = env.reset(seed=1)
...     observations, rewards, terminated, truncated, info = env.step(env.action_space.sample())
...     observations.shape, float(rewards.sum())
((16, 4), 16.0)
"""
import secrets
import sys
from typing import Any, Mapping, NamedTuple, Optional, Sequence, Union

import numpy as np

from . import spaces
from ._load_agent import _agent
from .closing import Closing
from .errors import FailedPrecondition

AUTORESET = ("same_step", "next_step", "disabled")


class EnvSpec(NamedTuple):
    """What ``make`` was asked for. max_episode_steps: the time limit, None without one."""

    id: str
    max_episode_steps: Optional[int]
    kwargs: dict[str, Any]
    reward_threshold: Optional[float] = None
    nondeterministic: bool = False


def names() -> list[str]:
    """The names of the built-in environments."""
    return [name for name, _ in _agent.environments()]


def describe(name: str) -> str:
    """What a built-in environment is, in a sentence.

    >>> describe("CartPole-v1")
    'balance a pole on a cart: 2 actions, 4 numbers, +1 a step, 500 steps; option velocities'
    """
    known = dict(_agent.environments())
    if name not in known:
        raise KeyError(name)
    return known[name]


def _text(value: Any) -> str:
    """An option's value as a run's file writes it; switches are 0 and 1 there."""
    return str(int(value)) if isinstance(value, bool) else str(value)


def _description(name: str, plugin: Optional[str], max_episode_steps: Optional[int], options: Mapping[str, Any]) -> tuple:
    pairs = tuple((key, _text(value)) for key, value in options.items())
    return name, pairs, plugin or "", max_episode_steps or 0


def _spaces_of(spec: tuple) -> tuple[spaces.Box, Union[spaces.Box, spaces.Discrete]]:
    """The spaces of observations and actions that the extension describes."""
    dtype, shape, n_actions, low, high, _ = spec
    bounds = (-np.inf, np.inf) if dtype == "float32" else (0, 255)
    observation = spaces.Box(*bounds, shape, dtype)
    return observation, spaces.Discrete(n_actions) if n_actions else spaces.Box(low, high, (len(low),))


def _check_seed(seed: Optional[int]) -> Optional[int]:
    if seed is not None and not 0 <= seed < 1 << 64:
        raise ValueError(f"a seed is at least 0 and below 2**64, not {seed}")
    return None if seed is None else int(seed)


def _entropy() -> int:
    return secrets.randbits(63)


class _Environment(Closing):
    """What programs expect of any environment."""

    render_mode = None

    def render(self) -> None:
        """Draws nothing: render_mode is None."""

    @property
    def unwrapped(self) -> Any:
        """The environment itself: it has no wrapper."""
        return self


class Env(_agent.Env, _Environment):
    """One environment: ``make(name)``. docs/GUIDE.md lists the names and the options of each.

    plugin: a shared object that has the environment. max_episode_steps: a time limit instead of the environment's own.

    It draws from its own generator: ``reset(seed=...)`` seeds it, later resets go on with it. The first reset without a seed takes one
    from the system. The numbers are those of the same environment in the C programs with the same seed.

    >>> make("DeepSea", size=6).observation_space.shape
    (6, 6, 1)
    """

    metadata: dict[str, Any] = {"render_modes": []}
    reward_range = (-float("inf"), float("inf"))

    def __init__(self, name: str, *, plugin: Optional[str] = None, max_episode_steps: Optional[int] = None,
                 **options: Any) -> None:
        spec = self._open(_description(name, plugin, max_episode_steps, options), 0, AUTORESET.index("disabled"), True)
        self.observation_space, self.action_space = _spaces_of(spec)
        self.spec = EnvSpec(name, spec[-1] or None, options)
        self._seeded = False

    def reset(self, *, seed: Optional[int] = None, options: Optional[Mapping[str, Any]] = None) -> tuple[np.ndarray, dict]:
        """Starts an episode: its first observation, and an empty dict. There are no options."""
        if options:
            raise ValueError(f"{self.spec.id} takes no options at a reset, not {', '.join(options)}")
        seed = _check_seed(seed)
        if seed is None and not self._seeded:
            seed = _entropy()
        observation = self._reset((seed,), None)
        self._seeded = True
        return observation, {}

    def __repr__(self) -> str:
        return f"<Env {self.spec.id}>"


class VectorEnv(_agent.VectorEnv, _Environment):
    """``num_envs`` environments of one kind that are stepped in one call: ``make_vec(name, num_envs)``.

    ``autoreset`` says when an environment whose episode has ended begins the next one, with the names of Gymnasium's modes:

    - "same_step": within the step that ended the episode. The step returns the first observation of the new episode; the last one of the
      old episode is row i of info["final_obs"], where info["_final_obs"][i] is True. (The same arrays are also there under the
      older names final_observation and _final_observation.) Steps in which no episode ended have an empty info.
    - "next_step": the next step resets the environment, ignores its action and has a reward of 0.
    - "disabled": the program calls reset(options={"reset_mask": ended}).

    With copy=False, all calls write into the same arrays, and a caller that keeps one copies it.
    """

    def __init__(self, name: str, num_envs: int = 1, *, autoreset: str = "same_step", copy: bool = True, plugin: Optional[str] = None,
                 max_episode_steps: Optional[int] = None, **options: Any) -> None:
        if num_envs < 1:
            raise ValueError(f"a vector environment has at least 1 environment, not {num_envs}")
        if autoreset not in AUTORESET:
            raise ValueError(f"autoreset is one of {', '.join(AUTORESET)}, not {autoreset!r}")
        description = _description(name, plugin, max_episode_steps, options)
        spec = self._open(description, num_envs, AUTORESET.index(autoreset), copy)
        self.num_envs, self.autoreset = int(num_envs), autoreset
        self.metadata: dict[str, Any] = {"render_modes": [], "autoreset_mode": autoreset.upper()}
        self.single_observation_space, self.single_action_space = _spaces_of(spec)
        self.observation_space = spaces.batch(self.single_observation_space, num_envs)
        self.action_space = spaces.batch(self.single_action_space, num_envs)
        self.spec = EnvSpec(name, spec[-1] or None, options)
        self._seeded = False

    def reset(self, *, seed: Union[None, int, Sequence[Optional[int]]] = None,
              options: Optional[Mapping[str, Any]] = None) -> tuple[np.ndarray, dict]:
        """Starts episodes: their first observations, and an empty dict.

        seed: environment i gets seed + i, or the number i of a sequence. options={"reset_mask": mask} resets only some, which needs
        autoreset "disabled".
        """
        mask = dict(options or {})
        which = mask.pop("reset_mask", None)
        if mask:
            raise ValueError(f"{self.spec.id} takes no options at a reset but reset_mask, not {', '.join(mask)}")
        if which is not None and self.autoreset != "disabled":
            raise ValueError(f"a reset_mask needs autoreset='disabled', not {self.autoreset!r}")
        if which is not None and not self._seeded:
            raise FailedPrecondition("the first reset has no reset_mask: all environments begin an episode")
        observations = self._reset(self._seeds(seed), which)
        self._seeded = True
        return observations, {}

    def set_state(self, states: Any) -> np.ndarray:
        """Puts each environment into the state of its row, as the first of an episode, and returns the observations there: the rules of
        an environment, for a search. What the numbers are is said at the top of each file in agent/env.

        >>> with make_vec("CartPole-v1", 2) as env:
        ...     env.set_state([[0, 0, 0.1, 0], [0, 0, -0.1, 0]])[:, 2].round(3).tolist()
        [0.10000000149011612, -0.10000000149011612]
        """
        states = np.ascontiguousarray(states, np.float64)
        if states.ndim != 2 or len(states) != self.num_envs:
            raise ValueError(f"states are a row for each of {self.num_envs} environments, not an array of the shape {states.shape}")
        observations = self._set_state(states, states.shape[1])
        self._seeded = True
        return observations

    def _seeds(self, seed: Union[None, int, Sequence[Optional[int]]]) -> Optional[tuple]:
        if seed is None:
            return None if self._seeded else tuple(_entropy() for _ in range(self.num_envs))
        if isinstance(seed, (int, np.integer)):
            seed = [int(seed) + i for i in range(self.num_envs)]
        if len(seed) != self.num_envs:
            raise ValueError(f"there are {len(seed)} seeds for {self.num_envs} environments")
        return tuple(_check_seed(one) for one in seed)

    def __len__(self) -> int:
        return self.num_envs

    def __repr__(self) -> str:
        return f"<VectorEnv {self.spec.id}, {self.num_envs} environments>"


make, make_vec = Env, VectorEnv


def to_gymnasium(env: Union[Env, VectorEnv]) -> Any:
    """The same environment as a ``gymnasium.Env``, or a ``gymnasium.vector.VectorEnv``, for wrappers and libraries that insist on one. The
    program has imported gymnasium."""
    gymnasium = sys.modules.get("gymnasium")
    if gymnasium is None:
        raise ImportError("import gymnasium before to_gymnasium: replaybus does not import it by itself")
    vector = isinstance(env, VectorEnv)
    base = gymnasium.vector.VectorEnv if vector else gymnasium.Env

    def reset(self: Any, *, seed: Any = None, options: Any = None) -> tuple:
        if seed is None or isinstance(seed, int):
            base.reset(self, seed=seed, options=options)  # it seeds what the wrappers draw from
        return env.reset(seed=seed, options=options)

    members = {"reset": reset, "step": lambda self, action: env.step(action), "close": lambda self, **_: env.close(),
               "render": lambda self: None, "metadata": dict(env.metadata), "render_mode": None}
    for name in ("single_observation_space", "single_action_space", "observation_space", "action_space"):
        if hasattr(env, name):
            members[name] = spaces.to_gymnasium(getattr(env, name))
    if vector:
        members["num_envs"] = env.num_envs
        modes = getattr(gymnasium.vector, "AutoresetMode", None)
        if modes is not None:
            members["metadata"]["autoreset_mode"] = getattr(modes, env.autoreset.upper())
    return type(f"Gymnasium{type(env).__name__}", (base,), members)()
