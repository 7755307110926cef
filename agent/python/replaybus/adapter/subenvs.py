"""Environments in Python, as the actor program steps them.

The program owns memory for actions and observations; a subenv is one environment of it. A subenv's step returns (reward, terminal,
truncated) and writes the observation into the memory.
"""
import inspect
import math
import re
import traceback
from dataclasses import dataclass
from typing import Any, Callable, Mapping

import numpy as np

from .spaces import LAST_OBSERVATION, Action, Mismatch, Observation, Refused, action_of, observation_of

SEED_MASK = 0x7FFFFFFF


@dataclass
class Spec:
    """What the C programs need to know about an environment."""

    observation: Observation
    action: Action
    max_steps: int

    def lines(self) -> list[str]:
        """The spec as lines of YAML, for environment.spec of a run's file."""
        lines = [f"dtype: {self.observation.dtype}", f"shape: {list(self.observation.shape)}"]
        if self.action.actions:
            lines.append(f"actions: {self.action.actions}")
        else:
            lines += [f"low: {self.action.low}", f"high: {self.action.high}"]
        return [*lines, f"max_steps: {self.max_steps}", f"scale: {self.observation.scale:.9g}"]

    def fields(self) -> tuple:
        """(dtype, shape, actions, low, high, max_steps)"""
        action = self.action
        return (self.observation.dtype, self.observation.shape, action.actions, tuple(action.low), tuple(action.high),
                self.max_steps)


def time_limit(env: Any) -> int:
    """Steps after which the environment truncates an episode, as far as its spec says; 0: not known."""
    limit = getattr(getattr(env, "spec", None), "max_episode_steps", None)
    return int(limit) if limit else 0


def check_interface(env: Any, observation_space: str, action_space: str) -> None:
    """Refuses what is no environment."""
    missing = [name for name in ("reset", "step", observation_space, action_space) if not hasattr(env, name)]
    if missing:
        raise Refused(f"it made a {type(env).__name__}, which lacks {', '.join(missing)}: it must follow Gymnasium's interface")


def _takes_seed(reset: Callable) -> bool:
    try:
        parameters = inspect.signature(reset).parameters.values()
    except (TypeError, ValueError):
        return True
    return any(p.name == "seed" or p.kind is p.VAR_KEYWORD for p in parameters)


def first_observation(result: Any) -> Any:
    """The observation of reset(): of (observation, info), or alone, as gym had it."""
    if type(result) is tuple and len(result) == 2 and isinstance(result[1], dict):
        return result[0]
    return result


def _unpack_old(result: Any) -> tuple:
    """The step of gym before 0.26: (observation, reward, done, info)."""
    if not isinstance(result, tuple) or len(result) != 4 or not isinstance(result[3], dict):
        what = f"{len(result)} values" if isinstance(result, tuple) else f"a {type(result).__name__}"
        raise Mismatch(f"returned {what} instead of (observation, reward, terminated, truncated, info)")
    observation, reward, done, info = result
    truncated = bool(done) and bool(info.get("TimeLimit.truncated", False))
    return observation, reward, bool(done) and not truncated, truncated, info


class Infos:
    """The numbers in the infos of environments, such as Gymnasium's ``info["episode"]``: their means between two reports."""

    def __init__(self) -> None:
        self._sums: dict[str, list] = {}  # name: sum, count

    def add(self, infos: Mapping[str, Any], before: str = "info/") -> None:
        """Takes an info, or that of a vector environment: arrays, with masks under the names with an underscore in front. What is no
        such thing is left out: an environment may put anything there."""
        for name, value in ((str(key), value) for key, value in infos.items()):
            mask = infos.get(f"_{name}")
            if type(value) is dict:
                self.add({**({f"_{key}": mask for key in value} if mask is not None else {}), **value},
                         before if name == "final_info" else f"{before}{name}/")
            elif isinstance(value, (bool, int, float, np.number, np.ndarray)) and name[:1] != "_" and name not in LAST_OBSERVATION:
                values = np.asarray(value)
                masked = values.ndim == 1 and isinstance(mask, np.ndarray) and mask.shape == values.shape
                values = values[mask.astype(bool)] if masked else values
                if values.size and values.dtype.kind in "biuf" and (values.ndim == 0 or masked):
                    sums = self._sums.setdefault(_NAME.sub("_", before + name)[:55], [0.0, 0])
                    sums[0] += float(values.sum())
                    sums[1] += values.size

    def take(self, most: int) -> list[tuple[str, float]]:
        """The means since the last call, of so many names at most."""
        means = [(name, total / count) for name, (total, count) in self._sums.items()][:most]
        self._sums.clear()
        return [(name, mean) for name, mean in means if math.isfinite(mean)]


_NAME = re.compile(r"[^A-Za-z0-9_./-]")


class Frames:
    """What an environment renders (render_mode "rgb_array"), small enough to be recorded."""

    def __init__(self, env: Any) -> None:
        self._env = env if getattr(env, "render_mode", None) == "rgb_array" else None
        fps = (getattr(env, "metadata", None) or {}).get("render_fps")
        self._step_s = 1.0 / fps if fps else 1.0 / 30

    def take(self, side: int, index: int | None = None) -> tuple[bytes, int, int, float] | None:
        """RGB, width, height, and seconds of a step; None: there is no frame. index: of the environment in a vector."""
        if self._env is None:
            return None
        try:
            frames = self._env.render()
            frame = np.asarray(frames if index is None else frames[index])
            by = -(-max(frame.shape[:2]) // side)  # each pixel is the mean of a square
            height, width = frame.shape[0] // by, frame.shape[1] // by
            small = frame[:height * by, :width * by, :3].reshape(height, by, width, by, 3).mean((1, 3))
            return small.astype(np.uint8).tobytes(), width, height, self._step_s
        except Exception:  # noqa: BLE001 - a picture is not worth the run
            traceback.print_exc()
            self._env = None
            return None


class Subenv:
    def __init__(self, env: Any, spec: Spec, infos: Infos) -> None:
        self._env, self._step, self._reset, self._infos = env, env.step, env.reset, infos
        self._write, self._decode = spec.observation.write, spec.action.decode
        self._discrete = spec.action.actions > 0
        self._seed: int | None = None
        self.render = Frames(env).take

    def bind(self, observation: np.ndarray, action: np.ndarray) -> None:
        self._out, self._row = observation, action

    def seed(self, seed: int) -> None:
        self._seed = seed & SEED_MASK

    def reset(self) -> None:
        seed, self._seed = self._seed, None
        if seed is None:
            result = self._reset()
        elif _takes_seed(self._reset):
            result = self._reset(seed=seed)
        else:
            if hasattr(self._env, "seed"):
                self._env.seed(seed)
            result = self._reset()
        self._write(first_observation(result), self._out)

    def step(self, action: int | None) -> tuple:
        """Takes a step; the floats of a continuous action are in the memory."""
        result = self._step(self._decode(action if self._discrete else self._row))
        try:
            observation, reward, terminal, truncated, info = result
        except (TypeError, ValueError):
            observation, reward, terminal, truncated, info = _unpack_old(result)
        if info:
            self._infos.add(info)
        self._write(observation, self._out)
        return reward, terminal, truncated


class Environments:
    """n separate environments, which step one by one."""

    together = False

    def __init__(self, name: str, make: Callable[[], Any], first: Any, n: int) -> None:
        check_interface(first, "observation_space", "action_space")
        self.name = name
        self._envs = [first, *(make() for _ in range(n - 1))]
        self.spec = Spec(observation_of(first.observation_space), action_of(first.action_space), time_limit(first))
        self.infos = Infos()
        self.subenvs = [Subenv(env, self.spec, self.infos) for env in self._envs]

    def metrics(self, most: int) -> list[tuple[str, float]]:
        """Numbers of the infos since the last call, for the report."""
        return self.infos.take(most)

    def bind(self, observations: Any, actions: Any) -> None:
        """The memory of all subenvs: buffers with one row for each."""
        dtype, shape = self.spec.observation.dtype, self.spec.observation.shape
        rows = np.frombuffer(observations, dtype).reshape(len(self.subenvs), *shape)
        moves = np.frombuffer(actions, np.int32 if self.spec.action.actions else np.float32).reshape(len(self.subenvs), -1)
        for i, subenv in enumerate(self.subenvs):
            subenv.bind(rows[i], moves[i])

    def explain(self, error: BaseException, method: str, step: int, episode: int) -> str:
        """One sentence about a failure. Prints the traceback of an error in the environment's own code."""
        when = f"at step {step} of episode {episode}" if method == "step" else f"at the start of episode {episode}"
        if isinstance(error, Mismatch):
            return f"environment '{self.name}': {method}() {error} ({when})"
        traceback.print_exception(error)
        return f"environment '{self.name}': {method}() raised {type(error).__name__}: {_short(error)} ({when})"

    def close(self) -> None:
        """Closes the environments; an error while closing is printed and changes nothing."""
        for env in self._envs:
            try:
                if hasattr(env, "close"):
                    env.close()
            except Exception:  # noqa: BLE001 - the run has its results already
                traceback.print_exc()


def _short(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return text if len(text) <= 200 else f"{text[:197]}..."
