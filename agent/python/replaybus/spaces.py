"""Spaces of observations and actions: the part of Gymnasium's spaces that the built-in environments need.

>>> from replaybus.spaces import Box, Discrete
>>> Discrete(3).contains(2), Discrete(3).contains(3)
(True, False)
>>> box = Box(-1.0, 1.0, (2,))
>>> box.contains(box.sample())
True
"""
import sys
from typing import Any, Optional, Sequence, Union

import numpy as np


class Space:
    """A set of values. ``shape`` and ``dtype`` are those of its values."""

    def __init__(self, shape: tuple[int, ...], dtype: Any, seed: Optional[int] = None) -> None:
        self.shape, self.dtype = tuple(int(size) for size in shape), np.dtype(dtype)
        self._seed, self._random = seed, None

    @property
    def np_random(self) -> np.random.Generator:
        """The generator of ``sample``."""
        if self._random is None:
            self._random = np.random.default_rng(self._seed)
        return self._random

    def seed(self, seed: Optional[int] = None) -> list[Optional[int]]:
        """Seeds ``sample``; None takes entropy from the system."""
        self._seed, self._random = seed, None
        return [seed]

    def sample(self) -> Any:
        """A random value."""
        raise NotImplementedError

    def contains(self, value: Any) -> bool:
        """Whether the value belongs to the space."""
        raise NotImplementedError

    def __contains__(self, value: Any) -> bool:
        return self.contains(value)

    def _key(self) -> tuple:
        return type(self), self.shape, self.dtype

    def __eq__(self, other: Any) -> bool:
        return isinstance(other, Space) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())


class Box(Space):
    """Arrays whose numbers lie between ``low`` and ``high``.

    >>> Box(0, 255, (84, 84, 4), "uint8")
    Box(0, 255, (84, 84, 4), uint8)
    """

    def __init__(self, low: Any, high: Any, shape: Optional[Sequence[int]] = None, dtype: Any = np.float32,
                 seed: Optional[int] = None) -> None:
        if shape is None:
            shape = np.broadcast_shapes(np.shape(low), np.shape(high))
        super().__init__(tuple(shape), dtype, seed)
        self.low = np.broadcast_to(np.asarray(low, self.dtype), self.shape)
        self.high = np.broadcast_to(np.asarray(high, self.dtype), self.shape)

    def sample(self) -> np.ndarray:
        """A random array: uniform between bounds, exponential where one bound is missing, normal where both are."""
        if self.dtype.kind in "iu":
            return self.np_random.integers(self.low, self.high, self.shape, self.dtype, endpoint=True)
        low, high = self.low.astype(np.float64), self.high.astype(np.float64)
        has_low, has_high = np.isfinite(low), np.isfinite(high)
        start, stop = np.where(has_low, low, 0.0), np.where(has_high, high, 0.0)
        tail = self.np_random.exponential(size=self.shape)
        value = np.where(has_low, start + tail, np.where(has_high, stop - tail, self.np_random.normal(size=self.shape)))
        both = has_low & has_high
        value = np.where(both, start + self.np_random.random(self.shape) * np.where(both, stop - start, 0.0), value)
        return np.clip(value.astype(self.dtype), self.low, self.high)

    def contains(self, value: Any) -> bool:
        """Whether the value is an array of this shape, castable without loss of kind, within the bounds."""
        try:
            value = np.asarray(value)
        except (TypeError, ValueError):
            return False
        return bool(value.dtype.kind in "iufb" and np.can_cast(value.dtype, self.dtype, "same_kind") and value.shape == self.shape
                    and np.all(value >= self.low) and np.all(value <= self.high))

    def _key(self) -> tuple:
        return super()._key() + (self.low.tobytes(), self.high.tobytes())

    def __repr__(self) -> str:
        low, high = (side.min() if side.size else side for side in (self.low, self.high))
        return f"Box({low}, {high}, {self.shape}, {self.dtype})"


class Discrete(Space):
    """The integers from 0 to ``n`` - 1.

    >>> Discrete(2)
    Discrete(2)
    """

    start = 0

    def __init__(self, n: int, seed: Optional[int] = None) -> None:
        if n < 1:
            raise ValueError(f"a Discrete space has at least 1 value, not {n}")
        super().__init__((), np.int64, seed)
        self.n = int(n)

    def sample(self) -> np.int64:
        """A random integer."""
        return np.int64(self.np_random.integers(self.n))

    def contains(self, value: Any) -> bool:
        """Whether the value is an integer of the space."""
        if isinstance(value, np.ndarray) and value.shape == ():
            value = value[()]
        return isinstance(value, (int, np.integer)) and not isinstance(value, bool) and 0 <= int(value) < self.n

    def _key(self) -> tuple:
        return super()._key() + (self.n,)

    def __repr__(self) -> str:
        return f"Discrete({self.n})"


class MultiDiscrete(Space):
    """An integer for each of several environments: number i is below ``nvec[i]``.

    >>> MultiDiscrete([2, 2]).contains(np.array([1, 0]))
    True
    """

    def __init__(self, nvec: Sequence[int], seed: Optional[int] = None) -> None:
        self.nvec = np.asarray(nvec, np.int64)
        super().__init__(self.nvec.shape, np.int64, seed)

    def sample(self) -> np.ndarray:
        """A random integer for each place."""
        return self.np_random.integers(self.nvec)

    def contains(self, value: Any) -> bool:
        """Whether the value is an array of such integers."""
        value = np.asarray(value)
        return bool(value.dtype.kind in "iu" and value.shape == self.shape and np.all(value >= 0) and np.all(value < self.nvec))

    def _key(self) -> tuple:
        return super()._key() + (self.nvec.tobytes(),)

    def __repr__(self) -> str:
        return f"MultiDiscrete({self.nvec.tolist()})"


def batch(space: Union[Box, Discrete], n: int) -> Union[Box, MultiDiscrete]:
    """The space of n values of a space, one for each environment.

    >>> batch(Discrete(2), 3)
    MultiDiscrete([2, 2, 2])
    """
    if isinstance(space, Discrete):
        return MultiDiscrete([space.n] * n)
    return Box(np.repeat(space.low[None], n, 0), np.repeat(space.high[None], n, 0), (n, *space.shape), space.dtype)


def to_gymnasium(space: Space) -> Any:
    """The same space as an object of Gymnasium, for a program that has imported gymnasium."""
    gymnasium = sys.modules.get("gymnasium")
    if gymnasium is None:
        raise ImportError("import gymnasium before to_gymnasium: replaybus does not import it by itself")
    if isinstance(space, Discrete):
        return gymnasium.spaces.Discrete(space.n)
    if isinstance(space, MultiDiscrete):
        return gymnasium.spaces.MultiDiscrete(space.nvec)
    if isinstance(space, Box):
        return gymnasium.spaces.Box(space.low.copy(), space.high.copy(), space.shape, space.dtype.type)
    raise TypeError(f"a Box, Discrete or MultiDiscrete is needed, not {space!r}")
