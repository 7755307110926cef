"""Loads the extension _agent: environments, networks and adders, with OpenBLAS and MuJoCo.

Only replaybus.envs and replaybus.actor use it, so that "import replaybus" loads neither of these libraries.
"""
from typing import Any

import numpy as np

from . import errors, log
from .writer import learn_numpy

try:
    from . import _agent
except ImportError as error:
    raise ImportError("replaybus.envs and replaybus.Actor need the extension replaybus._agent: install OpenBLAS and MuJoCo (Debian: "
                      f"libopenblas-dev libmujoco-dev) and the package anew ({error})") from error


def convert(value: Any, name: str, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    """A contiguous array of a type and shape, for a value that does not have them."""
    array, want = np.asarray(value), np.dtype(dtype)
    if array.dtype == object and array.shape == shape[:1]:  # rows and None, as Gymnasium gives last observations
        rows, array = array, np.zeros(shape, want)
        for i, row in enumerate(rows):
            if row is not None:
                array[i] = row
    if array.shape != shape:
        raise ValueError(f"the {name} has shape {shape}, not {array.shape}")
    out = np.ascontiguousarray(array, want).reshape(shape) if np.can_cast(array.dtype, want, "same_kind") else None
    if out is None or want.kind in "iu" and not np.can_cast(array.dtype, want) and not np.array_equal(out, array):
        raise TypeError(f"the {name} is an array of {want}, not of {array.dtype}: convert it first")
    return out


_agent.setup(errors.BY_STATUS, convert)
learn_numpy(_agent)
log.add_extension(_agent)
