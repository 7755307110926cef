"""Spaces of Gymnasium's kind, as the C networks see them.

An observation becomes one array of float32 or uint8, and an action one whole number or a vector of float32. Spaces are recognised
by their names and attributes, so that gymnasium, gym and classes that only look like theirs all do.
"""
import math
from dataclasses import dataclass, field
from typing import Any, Callable

import numpy as np

MOST_ACTIONS = 4096  # combinations of a MultiDiscrete or MultiBinary action
MOST_SIZE = 64  # numbers of a continuous action
MOST_RANK = 8
LAST_OBSERVATION = ("final_obs", "final_observation")  # in the info of a vector environment: the newer name, and the older one
KINDS = ("Box", "Discrete", "MultiDiscrete", "MultiBinary", "Dict", "Tuple")


class Refused(Exception):
    """An environment cannot be used; the text is the whole sentence."""


class Mismatch(Exception):
    """An environment returned something else than its spaces promise; the text follows "reset()" or "step()"."""


def kind_of(space: Any) -> str:
    """The kind of a space: the name of its class or of a base class, or else what its attributes show."""
    for base in type(space).__mro__:
        if base.__name__ in KINDS:
            return base.__name__
    if type(space).__module__.split(".")[0] in ("gymnasium", "gym"):
        return type(space).__name__  # Text, Graph, Sequence, OneOf: nothing that a network can take
    if all(hasattr(space, name) for name in ("low", "high", "shape")):
        return "Box"
    if hasattr(space, "nvec"):
        return "MultiDiscrete"
    if hasattr(space, "spaces"):
        return "Dict" if hasattr(space.spaces, "keys") else "Tuple"
    if isinstance(getattr(space, "n", None), (int, np.integer)):
        return "Discrete"
    return type(space).__name__


def row_of(batch: Any, i: int) -> Any:
    """Environment i of a batch of observations, which may be a dict or a tuple of batches."""
    if isinstance(batch, dict):
        return {name: row_of(part, i) for name, part in batch.items()}
    if isinstance(batch, tuple):
        return tuple(row_of(part, i) for part in batch)
    return batch[i]


Write = Callable[[Any, np.ndarray], None]


@dataclass
class Observation:
    """How observations are stored: dtype and shape of the array, and a function that writes a value into it. Networks multiply
    what is stored by `scale`."""

    dtype: str
    shape: tuple
    write: Write
    scale: float = 1.0


def _array(value: Any, shape: tuple) -> np.ndarray:
    array = value if type(value) is np.ndarray else np.asarray(value)
    if array.shape != shape:
        raise Mismatch(f"returned an observation of shape {array.shape} where its space has {shape}")
    return array


def _write_numbers(shape: tuple) -> Write:
    def write(value: Any, out: np.ndarray) -> None:
        array = _array(value, shape)
        if array.dtype.kind not in "fiub":
            raise Mismatch(f"returned an observation of type {array.dtype}, which is no number")
        out[...] = array if shape else array.reshape(1)

    return write


def _is_planes_first(shape: tuple) -> bool:
    return len(shape) == 3 and shape[0] <= 4 < min(shape[1:])


def _write_bytes(shape: tuple) -> Write:
    planes_first = _is_planes_first(shape)

    def write(value: Any, out: np.ndarray) -> None:
        array = _array(value, shape)
        if array.dtype != np.uint8:
            raise Mismatch(f"returned an observation of type {array.dtype} where its space has uint8")
        out[...] = array.transpose(1, 2, 0) if planes_first else array.reshape(out.shape)

    return write


def _box(space: Any) -> Observation:
    shape = tuple(int(n) for n in space.shape)
    if len(shape) > MOST_RANK or 0 in shape:
        raise Refused(f"its observations have shape {shape}; at most {MOST_RANK} dimensions can be used, none of them empty")
    if np.dtype(space.dtype) != np.uint8:
        return Observation("float32", shape or (1,), _write_numbers(shape))
    stored = (*shape[1:], shape[0]) if _is_planes_first(shape) else (*shape, 1) if len(shape) == 2 else shape or (1,)
    return Observation("uint8", stored, _write_bytes(shape), 1.0 / 255.0 if np.max(space.high) > 1 else 1.0)


def _whole(value: Any, low: int, high: int) -> int:
    number = int(value)
    if number != value or not low <= number < high:
        raise Mismatch(f"returned {value!r} where its space has whole numbers from {low} to {high - 1}")
    return number


def _one_hot(sizes: list[int], starts: list[int]) -> tuple[int, Write]:
    offsets = np.cumsum([0, *sizes])

    def write(value: Any, out: np.ndarray) -> None:
        out[...] = 0.0
        values = np.ravel(value)
        if len(values) != len(sizes):
            raise Mismatch(f"returned {len(values)} numbers where its space has {len(sizes)}")
        for number, offset, size, start in zip(values, offsets, sizes, starts):
            out[offset + _whole(number, start, start + size) - start] = 1.0

    return int(offsets[-1]), write


def _flat_box(space: Any) -> tuple[int, Write]:
    shape = tuple(int(n) for n in space.shape)
    scale = 1.0 / 255.0 if np.dtype(space.dtype) == np.uint8 else 1.0
    numbers = _write_numbers(shape)

    def write(value: Any, out: np.ndarray) -> None:
        numbers(value, out.reshape(shape or (1,)))
        if scale != 1.0:
            out *= scale

    return math.prod(shape), write


def _parts(names: list, spaces: list, is_map: bool) -> tuple[int, Write]:
    flat = [_flatten(space) for space in spaces]
    offsets = [int(n) for n in np.cumsum([0, *(size for size, _ in flat)])]
    parts = [(name, write, slice(a, b)) for name, (_, write), a, b in zip(names, flat, offsets, offsets[1:])]

    def write(value: Any, out: np.ndarray) -> None:
        if is_map and not hasattr(value, "keys"):
            raise Mismatch(f"returned a {type(value).__name__} where its space is a Dict")
        if len(value) != len(parts):
            raise Mismatch(f"returned {len(value)} parts where its space has {len(parts)}")
        for name, part, place in parts:
            if is_map and name not in value:
                raise Mismatch(f"returned an observation without {name!r}, which its space has")
            part(value[name], out[place])

    return offsets[-1], write


def _flatten(space: Any) -> tuple[int, Write]:
    """The number of float32 that a space takes in a vector, and a function that writes them."""
    kind = kind_of(space)
    if kind == "Box":
        return _flat_box(space)
    if kind == "Discrete":
        return _one_hot([int(space.n)], [int(getattr(space, "start", 0))])
    if kind == "MultiDiscrete":
        sizes = [int(n) for n in np.ravel(space.nvec)]
        starts = np.ravel(space.start) if getattr(space, "start", None) is not None else [0] * len(sizes)
        return _one_hot(sizes, [int(n) for n in starts])
    if kind == "MultiBinary":
        shape = tuple(int(n) for n in np.atleast_1d(space.n))
        return math.prod(shape), lambda value, out: _write_numbers(shape)(value, out.reshape(shape))
    if kind == "Dict":
        return _parts(list(space.spaces), list(space.spaces.values()), True)
    if kind == "Tuple":
        return _parts(list(range(len(space.spaces))), list(space.spaces), False)
    raise Refused(f"its observation_space has a {kind}; usable kinds are {', '.join(KINDS)}")


def observation_of(space: Any) -> Observation:
    """How the observations of a space are stored.

    A Box keeps its shape: bytes stay uint8 (images become height x width x planes), all other numbers become float32. Every
    other space becomes one vector of float32: parts one after the other, whole numbers as one-hot vectors, bytes divided by
    255.
    """
    if kind_of(space) == "Box":
        return _box(space)
    size, write = _flatten(space)
    if size == 0:
        raise Refused("its observation_space is empty")
    return Observation("float32", (size,), write)


@dataclass
class Action:
    """How actions are stored: a number below `actions`, or floats between `low` and `high`; and what step() receives."""

    decode: Callable[[Any], Any]
    actions: int = 0
    low: list = field(default_factory=list)
    high: list = field(default_factory=list)


def _combined(sizes: list[int], starts: np.ndarray, shape: tuple, dtype: Any) -> Action:
    count = math.prod(sizes)
    if not 1 <= count <= MOST_ACTIONS:
        raise Refused(f"its action_space has {count} combinations; at most {MOST_ACTIONS} can be used")
    grid = np.stack(np.unravel_index(np.arange(count), sizes), axis=1) + starts
    table = [row.reshape(shape).astype(dtype) for row in grid]
    return Action(lambda index: table[index].copy(), actions=count)


def _bounded(space: Any) -> Action:
    shape, dtype = tuple(int(n) for n in space.shape), np.dtype(space.dtype)
    low = np.broadcast_to(np.asarray(space.low, np.float64), shape).ravel()
    high = np.broadcast_to(np.asarray(space.high, np.float64), shape).ravel()
    if dtype.kind != "f":
        raise Refused(f"its action_space is a Box of {dtype}; a Box of floats can be used, or Discrete and MultiDiscrete")
    if not 1 <= len(low) <= MOST_SIZE:
        raise Refused(f"its action_space has {len(low)} numbers; 1 to {MOST_SIZE} can be used")
    if not (np.isfinite(low).all() and np.isfinite(high).all() and (low < high).all()):
        raise Refused("its action_space is a Box whose bounds are not finite, or equal: actions need finite bounds "
                      "(gymnasium.wrappers.RescaleAction, or a Box with low and high)")
    return Action(lambda row: np.array(row, dtype).reshape(shape), low=low.tolist(), high=high.tolist())


def action_of(space: Any) -> Action:
    """How the actions of a space are stored. MultiDiscrete and MultiBinary become one number for each combination."""
    kind = kind_of(space)
    if kind == "Discrete":
        start = int(getattr(space, "start", 0))
        return Action((lambda index: index + start) if start else int, actions=int(space.n))
    if kind == "Box":
        return _bounded(space)
    if kind == "MultiDiscrete":
        nvec = np.asarray(space.nvec)
        start = getattr(space, "start", None)
        starts = np.ravel(start) if start is not None else np.zeros(nvec.size, np.int64)
        return _combined([int(n) for n in nvec.ravel()], starts, nvec.shape, getattr(space, "dtype", np.int64))
    if kind == "MultiBinary":
        shape = tuple(int(n) for n in np.atleast_1d(space.n))
        size = math.prod(shape)
        return _combined([2] * size, np.zeros(size, np.int64), shape, np.int8)
    raise Refused(f"its action_space is a {kind}; usable kinds are Discrete, Box, MultiDiscrete and MultiBinary")
