"""The types that programs get back: specs of values, and the state of a table.

>>> TensorSpec((None, 3), np.float32)
TensorSpec(shape=(None, 3), dtype=float32, name=None)
>>> options_of({"kind": "prioritized", "exponent": 0.6}).prioritized.priority_exponent
0.6
"""
import dataclasses
import functools
from typing import Any, Mapping, NamedTuple, Optional

import numpy as np

STRING = "string"


def dtype_name(value: Any) -> str:
    """The name of an element type: numpy's name, or "string"."""
    return _name_of(np.dtype(getattr(value, "as_numpy_dtype", value)))  # as_numpy_dtype: an element type of TensorFlow


@functools.lru_cache(maxsize=256)
def _name_of(dtype: np.dtype) -> str:
    return STRING if dtype.kind in "SUO" else dtype.name


def shape_of(value: Any) -> Optional[tuple]:
    """A shape as a tuple; None: any."""
    if value is None or getattr(value, "dims", ()) is None:
        return None
    dims = value.as_list() if hasattr(value, "as_list") else value  # as_list, dims: a shape of TensorFlow
    return tuple(None if dim is None else int(dim) for dim in dims)


_TENSOR_NAMES = {"float16": "half", "float32": "float", "float64": "double"}


def tensor_name(dtype: Any) -> str:
    """The name of an element type in messages."""
    return _TENSOR_NAMES.get(dtype_name(dtype), dtype_name(dtype))


def tensor_shape(shape: Optional[tuple]) -> str:
    """A shape in messages.

    >>> tensor_shape((None, 3))
    '[?,3]'
    """
    return "<unknown>" if shape is None else f"[{','.join('?' if dim is None else str(dim) for dim in shape)}]"


class TensorSpec:
    """The shape and the element type of a value of a signature. A size of None is any size; strings are ``object``.

    It equals every spec with the same shape and element type, whatever its class, unless both have names that differ.
    """

    def __init__(self, shape: Any, dtype: Any = np.float32, name: Optional[str] = None) -> None:
        self.shape, self.name = shape_of(shape), name
        self.dtype = np.dtype(object if dtype_name(dtype) == STRING else dtype_name(dtype))

    def __eq__(self, other: object) -> bool:
        if not hasattr(other, "shape") or not hasattr(other, "dtype"):
            return NotImplemented
        name = getattr(other, "name", None)
        return (shape_of(other.shape) == self.shape and dtype_name(other.dtype) == dtype_name(self.dtype)
                and (name is None or self.name is None or name == self.name))

    def __hash__(self) -> int:
        return hash((self.shape, self.dtype))

    def __repr__(self) -> str:
        return f"TensorSpec(shape={self.shape}, dtype={self.dtype}, name={self.name!r})"


class PrioritizedOptions(NamedTuple):
    """The settings of a prioritized selector. None: the broker does not tell."""

    priority_exponent: Optional[float] = None


class HeapOptions(NamedTuple):
    """The settings of a heap."""

    min_heap: bool


class SelectorOptions(NamedTuple):
    """A selector: one field is set, the field of its kind."""

    fifo: bool = False
    lifo: bool = False
    uniform: bool = False
    prioritized: Optional[PrioritizedOptions] = None
    heap: Optional[HeapOptions] = None

    def HasField(self, name: str) -> bool:  # the name that Reverb's programs call
        """Whether this field is set."""
        return bool(getattr(self, name))

    @property
    def is_deterministic(self) -> bool:
        """Whether the selector picks in an order rather than at random."""
        return not (self.uniform or self.prioritized)


def options_of(config: Mapping[str, Any]) -> SelectorOptions:
    """A selector's entry of the broker's configuration as options."""
    kind = config["kind"]
    if kind == "prioritized":
        return SelectorOptions(prioritized=PrioritizedOptions(config.get("exponent")))
    if kind in ("min_heap", "max_heap"):
        return SelectorOptions(heap=HeapOptions(kind == "min_heap"))
    return SelectorOptions(**{kind: True}) if kind in ("fifo", "lifo", "uniform") else SelectorOptions()


class CallStats(NamedTuple):
    """How many inserts or samples were made, and how many wait."""

    completed: int = 0
    pending: int = 0


class RateLimiterInfo(NamedTuple):
    """A limiter's bounds and counts."""

    samples_per_insert: float
    min_diff: float
    max_diff: float
    min_size_to_sample: int
    insert_stats: CallStats = CallStats()
    sample_stats: CallStats = CallStats()


@dataclasses.dataclass(frozen=True)
class TableInfo:
    """A table's settings and counts. num_episodes are those with items in the table; a reset sets all counts to 0."""

    name: str
    sampler_options: SelectorOptions
    remover_options: SelectorOptions
    max_size: int
    max_times_sampled: int
    rate_limiter_info: RateLimiterInfo
    signature: Any
    current_size: int = 0
    num_episodes: int = 0
    num_deleted_episodes: int = 0
    num_unique_samples: int = 0
    table_worker_time: Any = None


def table_info(table: Mapping[str, Any], sampler: Mapping[str, Any], remover: Mapping[str, Any], signature: Any) -> TableInfo:
    """The broker's JSON as a TableInfo."""
    limiter = table["limiter"]
    rates = RateLimiterInfo(
        float(limiter.get("samples_per_insert", 1)), float(limiter.get("min_diff", 0)), float(limiter.get("max_diff", 0)),
        int(float(limiter.get("min_size", 1))),
        CallStats(int(limiter.get("inserts", 0)), int(table.get("waiting_inserts", 0))),
        CallStats(int(limiter.get("samples", 0)), int(table.get("waiting_samplers", 0))))
    episodes, gone = int(table.get("episodes", 0)), int(table.get("deleted_episodes", 0))
    return TableInfo(table["name"], options_of(sampler), options_of(remover), int(table.get("max_size", 0)),
                     int(table.get("max_times_sampled", 0)), rates, signature, int(table.get("size", 0)),
                     episodes - gone, gone, int(table.get("unique_samples", 0)))
