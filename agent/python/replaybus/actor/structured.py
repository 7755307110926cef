"""Observations and actions that are not plain arrays: dicts, tuples, images with planes first, several discrete actions.

They become what the network sees in the same way as in a run whose environment is in Python (docs/GUIDE.md), so that learners
can be told so by the run's file.
"""
from typing import Any, Optional

import numpy as np

from ..adapter.spaces import LAST_OBSERVATION, Action, Mismatch, Observation, Refused, action_of, kind_of, observation_of, row_of


def describe(observation_space: Any, action_space: Any) -> tuple[Observation, Action]:
    """How values of the spaces are stored. ValueError says which space cannot be used."""
    if observation_space is None or action_space is None:
        raise ValueError("give both spaces, observation_space and action_space")
    try:
        return observation_of(observation_space), action_of(action_space)
    except Refused as error:
        raise ValueError(f"the environment cannot be used: {error}") from None


def is_plain(observation_space: Any, action_space: Any, observation: Observation) -> bool:
    """Whether observations are arrays as the network sees them, and actions are what the network gives."""
    simple = kind_of(observation_space) == "Box" and observation.shape == tuple(observation_space.shape)
    if kind_of(action_space) == "Box":
        return simple and len(action_space.shape) == 1
    return simple and kind_of(action_space) == "Discrete" and int(getattr(action_space, "start", 0)) == 0


class Converter:
    """Converts the values of one environment, or of n."""

    def __init__(self, observation: Observation, action: Action, n: Optional[int]) -> None:
        self._observation, self._action, self._n = observation, action, n

    def observation(self, value: Any) -> np.ndarray:
        """The array of an observation, or of a batch of them."""
        if self._n is None:
            out = np.zeros(self._observation.shape, self._observation.dtype)
            self._write(value, out)
            return out
        return self._rows([row_of(value, i) for i in range(self._n)])

    def info(self, info: Optional[dict]) -> Optional[dict]:
        """The last observations of a batch's episodes, as arrays."""
        name = next((name for name in LAST_OBSERVATION if info and name in info), None)
        if self._n is None or name is None:
            return None
        mask = np.asarray(info["_" + name], bool)
        rows = self._rows([row_of(info[name], i) if mask[i] else None for i in range(self._n)])
        return {"final_obs": rows, "_final_obs": mask}

    def action(self, value: Any) -> Any:
        """What step() takes."""
        return self._action.decode(value) if self._n is None else np.stack([self._action.decode(row) for row in value])

    def _rows(self, values: list) -> np.ndarray:
        out = np.zeros((len(values), *self._observation.shape), self._observation.dtype)
        for value, row in zip(values, out):
            if value is not None:
                self._write(value, row)
        return out

    def _write(self, value: Any, out: np.ndarray) -> None:
        try:
            self._observation.write(value, out)
        except Mismatch as error:
            raise ValueError(f"the environment {error}") from None
