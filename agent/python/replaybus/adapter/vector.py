"""Vector environments: one call of step() for all of them, as gymnasium.vector has it.

After the end of an episode a vector environment begins the next one by itself, in one of three ways (metadata["autoreset_mode"]):
in the same step, whose info has the last observation; in the next step, which ignores the action; or only when it is asked to.
"""
from typing import Any

import numpy as np

from .subenvs import SEED_MASK, Environments, Frames, Infos, Spec, check_interface, first_observation, time_limit
from .spaces import LAST_OBSERVATION, Mismatch, Refused, action_of, kind_of, observation_of, row_of

SAME, NEXT, DISABLED = "SAME_STEP", "NEXT_STEP", "DISABLED"


def _mode_of(env: Any) -> str | None:
    """How the environment resets itself; None: not known before the first end of an episode."""
    mode = (getattr(env, "metadata", None) or {}).get("autoreset_mode")
    text = str(getattr(mode, "name", mode)).upper()
    return next((name for name in (SAME, NEXT, DISABLED) if text.endswith(name)), None)


class VectorSubenv:
    """One environment of a vector."""

    def __init__(self, whole: "Vector", index: int) -> None:
        self._whole, self._i = whole, index

    def bind(self, observation: np.ndarray, action: np.ndarray) -> None:
        self._out, self._action = observation, action

    def seed(self, seed: int) -> None:
        self._whole.seeds[self._i] = seed & SEED_MASK

    def render(self, side: int) -> tuple | None:
        return self._whole.frames.take(side, self._i)

    def reset(self) -> None:
        self._whole.write(self._whole.first_of(self._i), self._out)

    def step(self, action: int | None) -> tuple:
        """The outcome of the round that the vector has taken."""
        whole, i = self._whole, self._i
        whole.write(whole.last_of(i), self._out)
        return whole.rewards[i], whole.terminals[i], whole.truncated[i]


class Vector(Environments):
    """The environments of one vector environment, which step together."""

    together = True

    def __init__(self, name: str, env: Any, n: int) -> None:
        check_interface(env, "single_observation_space", "single_action_space")
        self.name, self._env, self._envs = name, env, [env]
        count = int(env.num_envs)
        if n not in (1, count):
            raise Refused(f"it is a vector of {count} environments, but actors.environments is {n}: leave actors.environments out")
        space = env.single_action_space
        self.spec = Spec(observation_of(env.single_observation_space), action_of(space), time_limit(env))
        self.write = self.spec.observation.write
        self._whole_batch = kind_of(space) in ("Discrete", "Box") and int(getattr(space, "start", 0)) == 0
        self._mode = _mode_of(env)
        self.infos = Infos()
        self.frames = Frames(env)
        self.subenvs = [VectorSubenv(self, i) for i in range(count)]
        self.seeds: list = [None] * count
        self._observations: Any = None
        self._infos: dict = {}
        self.rewards = self.terminals = self.truncated = np.zeros(count)
        self._over = np.zeros(count, bool)  # the episode has ended, and nobody has begun the next one

    def bind(self, observations: Any, actions: Any) -> None:
        super().bind(observations, actions)
        discrete = self.spec.action.actions > 0
        self._actions = np.frombuffer(actions, np.int32 if discrete else np.float32).reshape(len(self.subenvs), -1)
        if discrete:
            self._actions = self._actions[:, 0]

    @property
    def resets_within_round(self) -> bool:
        """True if ended episodes begin anew in the next step."""
        return self._mode == NEXT

    def _batch(self) -> Any:
        if self._whole_batch:
            space = self._env.single_action_space
            return np.array(self._actions, getattr(space, "dtype", None)).reshape(len(self.subenvs), *getattr(space, "shape", ()))
        return np.stack([self.spec.action.decode(row) for row in self._actions])

    def run(self) -> None:
        """Steps all environments with the actions in the memory."""
        if self._mode == DISABLED and self._over.any():
            self._reset_masked(self._over)
        result = self._env.step(self._batch())
        if not isinstance(result, tuple) or len(result) != 5:
            raise Mismatch("returned something else than (observations, rewards, terminations, truncations, infos)")
        self._observations, self.rewards, self.terminals, self.truncated, self._infos = result
        if self._infos:
            self.infos.add(self._infos)
        ends = np.logical_or(self.terminals, self.truncated)
        if len(ends) != len(self.subenvs):
            raise Mismatch(f"returned {len(ends)} terminations for {len(self.subenvs)} environments")
        self._over = ends
        if self._mode is None and ends.any():
            self._mode = SAME if any(name in self._infos for name in LAST_OBSERVATION) else NEXT

    def first_of(self, i: int) -> Any:
        if self._observations is None:
            self._observations = first_observation(self._env.reset(seed=self.seeds[0]))  # every vector takes one seed, few take a list
        elif self._mode == DISABLED and self._over[i]:
            self._reset_masked(np.arange(len(self.subenvs)) == i)
        return row_of(self._observations, i)

    def _reset_masked(self, mask: np.ndarray) -> None:
        self._observations = first_observation(self._env.reset(options={"reset_mask": mask.copy()}))
        self._over = self._over & ~mask

    def last_of(self, i: int) -> Any:
        """The observation after the step of environment i: at the end of an episode the last one of that episode."""
        if self._mode == SAME and (self.terminals[i] or self.truncated[i]):
            for name in LAST_OBSERVATION:
                if name in self._infos:
                    last = self._infos[name]
                    return row_of(last, i)
            raise Mismatch(f"ended an episode in environment {i} without {LAST_OBSERVATION[0]} in its infos")
        return row_of(self._observations, i)
