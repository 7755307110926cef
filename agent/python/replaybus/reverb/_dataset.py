"""What the two datasets share: options, iteration and batches."""
import itertools
from typing import Any, Callable, Iterator, Optional

import numpy as np

from .. import nest
from . import _structure
from ._samples import DEFAULT_BATCH, Item, Request, sampled
from .client import Client
from .errors import translated
from .replay_sample import ReplaySample, SampleInfo
from .reverb_types import TensorSpec, dtype_name, shape_of, tensor_name, tensor_shape

_INFO = SampleInfo(np.uint64, np.float64, np.int64, np.float64, np.int32)


def _stacked(samples: list) -> Any:
    """Samples as one sample, whose arrays have a first dimension for the samples."""
    node = _structure.node_of(samples[0])
    columns = zip(*(nest.flatten(node, sample) for sample in samples))
    return nest.pack(node, map(np.stack, columns))


class Iterable:
    """Something that can be iterated over again and again, with the few methods of datasets that need no TensorFlow."""

    def __init__(self, begin: Callable[[], Iterator[ReplaySample]]) -> None:
        self._begin = begin

    def __iter__(self) -> Iterator[ReplaySample]:
        return self._begin()

    as_numpy_iterator = __iter__

    def take(self, count: int) -> "Iterable":
        """The first samples; all of them if count is negative."""
        return Iterable(lambda: itertools.islice(iter(self), None if count < 0 else count))

    def map(self, map_func: Callable[[ReplaySample], Any], *_: Any, **__: Any) -> "Iterable":
        """The results of a function of each sample."""
        return Iterable(lambda: map(map_func, iter(self)))

    def prefetch(self, buffer_size: Any = None) -> "Iterable":
        """The same samples: they are always fetched ahead, up to max_in_flight_samples_per_worker."""
        return self

    def batch(self, batch_size: int, drop_remainder: bool = False) -> "Iterable":
        """Samples in batches. Their arrays must have the same shapes."""
        if batch_size < 1:
            raise ValueError(f"batch_size must be 1 or more, not {batch_size}")
        return Iterable(lambda: self._batches(batch_size, drop_remainder))

    def _batches(self, batch_size: int, drop_remainder: bool) -> Iterator[ReplaySample]:
        samples = iter(self)
        while part := list(itertools.islice(samples, batch_size)):
            if len(part) == batch_size or not drop_remainder:
                yield _stacked(part)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"'{name}' is not a method of this dataset: methods of TensorFlow's datasets other than batch, "
                             "map, take, prefetch and as_numpy_iterator need TensorFlow, which replaybus does not use; "
                             "iterate over it")


def _declared(dtypes: Any, shapes: Any) -> _structure.Signature:
    """The form that the caller declared. Lists become tuples, as in TensorFlow's datasets."""
    node = _structure.node_of(_as_tuples(dtypes))
    sizes = [None] * len(_structure.paths(node)) if shapes is None else _shapes(node, shapes)
    return _structure.Signature(node, [_structure.Spec(name, dtype_name(dtype), shape_of(shape)) for name, dtype, shape in
                                       zip(_structure.names(node), nest.flatten(node, dtypes), sizes)])


def _as_tuples(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _as_tuples(part) for key, part in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*map(_as_tuples, value))
    return tuple(map(_as_tuples, value)) if isinstance(value, (list, tuple)) else value


def _shapes(node: nest.Node, shapes: Any) -> list:
    """The shapes of a structure's values. A shape is a tuple or a list itself, so that the node says where values are."""
    if node.kind == "leaf":
        return [shapes]
    parts = [shapes[key] for key in node.keys] if node.kind == "dict" else list(shapes)
    if len(parts) != len(node.parts):
        raise ValueError("dtypes and shapes must have the same structure")
    return [shape for child, part in zip(node.parts, parts) for shape in _shapes(child, part)]


def _text(value: Any) -> str:
    """An address or a name; also as a tensor of a string."""
    value = value.numpy() if hasattr(value, "numpy") else value
    value = value.item() if isinstance(value, np.ndarray) else value
    return value.decode() if isinstance(value, bytes) else value


def _pair(dtype: Any, shape: Optional[tuple]) -> str:
    return f"(dtype, shape): ({tensor_name(dtype) if dtype != 'string' else dtype}, {tensor_shape(shape)})"


def _check_options(in_flight: int, timeout_ms: int, **counts: int) -> None:
    if in_flight < 1:
        raise ValueError(f"max_in_flight_samples_per_worker must be 1 or more, not {in_flight}")
    for name, value in counts.items():
        if value < 1 and value != -1:
            raise ValueError(f"{name} must be -1, or 1 or more, not {value}")
    if timeout_ms < -1:
        raise ValueError(f"rate_limiter_timeout_ms must be an integer >= -1, not {timeout_ms}")


class Dataset(Iterable):
    """Samples of a table, without end unless max_samples or rate_limiter_timeout_ms says otherwise.

    flexible_batch_size: how many items of a table that picks at random are requested at once.
    """

    def __init__(self, server_address: str, table: str, dtypes: Any = None, shapes: Any = None,
                 max_in_flight_samples_per_worker: int = 100, num_workers_per_iterator: int = -1,
                 max_samples_per_stream: int = -1, rate_limiter_timeout_ms: int = -1, max_samples: int = -1, *,
                 flexible_batch_size: int = -1) -> None:
        _check_options(max_in_flight_samples_per_worker, rate_limiter_timeout_ms,
                       num_workers_per_iterator=num_workers_per_iterator, max_samples_per_stream=max_samples_per_stream,
                       max_samples=max_samples, flexible_batch_size=flexible_batch_size)
        super().__init__(self._samples)
        self._client, self._table = Client(_text(server_address)), _text(table)
        self._request = Request(self._table, max_in_flight_samples_per_worker,
                                None if rate_limiter_timeout_ms < 0 else rate_limiter_timeout_ms / 1000, max(max_samples, 0))
        self._flexible_batch_size = max(flexible_batch_size, 0)
        self._form = None if dtypes is None else _declared(dtypes, shapes)
        self._declared = dtypes is not None  # and samples must have this form

    @classmethod
    def from_table_signature(cls, server_address: str, table: str, max_in_flight_samples_per_worker: int,
                             num_workers_per_iterator: int = -1, max_samples_per_stream: int = -1,
                             rate_limiter_timeout_ms: int = -1, get_signature_timeout_secs: Optional[int] = None,
                             max_samples: int = -1, *, flexible_batch_size: int = -1) -> "Dataset":
        """A dataset with the structure of the table's signature."""
        client = Client(server_address)
        info = client.server_info(get_signature_timeout_secs)
        if table not in info:
            raise ValueError(f"Server at {server_address} does not contain any table named {table}. Found: "
                             f"{', '.join(sorted(info))}.")
        signature = client.stored_signature(table)
        if signature is None:
            raise ValueError(f"Table {table} at {server_address} does not have a signature.")
        dataset = cls(server_address, table, None, None, max_in_flight_samples_per_worker, num_workers_per_iterator,
                      max_samples_per_stream, rate_limiter_timeout_ms, max_samples, flexible_batch_size=flexible_batch_size)
        dataset._form = signature
        return dataset

    @property
    def element_spec(self) -> ReplaySample:
        """A sample with a TensorSpec in the place of each array."""
        if self._form is None:
            raise ValueError("the dataset was made without dtypes: it takes items of any structure")
        info = SampleInfo(*(TensorSpec((), dtype) for dtype in _INFO))
        return ReplaySample(info, self._form.structure())

    def _data(self, names: tuple, fields: list, skip: int = 0) -> Any:
        """Fields in the form that is known, or in the structure in which they were written.

        skip: the number of dimensions before those of the form.
        """
        if self._form is None:
            return nest.pack(_structure.node_of_names(names), fields)
        specs = self._form.specs
        if len(fields) != len(specs):
            raise ValueError(f"the items of table '{self._table}' have {len(fields)} fields, and {len(specs)} are expected")
        if self._declared:
            for spec, field in zip(specs, fields):
                if spec.dtype != dtype_name(field.dtype) or not _structure.agree(spec.shape, field.shape[skip:]):
                    raise ValueError(f"an item of table '{self._table}' does not have the declared form at '{spec.name}'. Specification "
                                     f"has {_pair(spec.dtype, spec.shape)}.  Tensor has {_pair(field.dtype, field.shape[skip:])}.")
        return nest.pack(self._form.node, fields)

    def _check_signature(self) -> None:
        """Raises ValueError if the declared form contradicts the table's signature. Infos count among the tensors, but for the newest
        of them, times_sampled."""
        signature, infos = self._client.stored_signature(self._table), len(_INFO) - 1
        if signature is None or not self._declared:
            return
        if len(signature.specs) != len(self._form.specs):
            raise ValueError(f"Inconsistent number of tensors requested from table '{self._table}'.  Requested "
                             f"{infos + len(self._form.specs)} tensors, but table signature shows {infos + len(signature.specs)} "
                             "tensors.")
        for i, (want, have) in enumerate(zip(self._form.specs, signature.specs)):
            if want.dtype != have.dtype or not self._may_be(want.shape, have.shape):
                raise ValueError(f"Requested incompatible tensor at flattened index {infos + i} from table '{self._table}'.  "
                                 f"Requested {_pair(want.dtype, want.shape)}.  Signature {_pair(have.dtype, have.shape)}")

    def _may_be(self, want: Optional[tuple], have: Optional[tuple]) -> bool:
        """Whether a field of a signature can have the shape that was declared for it."""
        return _structure.agree(want, have)

    def _requests(self, batch_size: int) -> Request:
        return self._request._replace(batch_size=self._flexible_batch_size or batch_size)

    def _samples(self) -> Iterator[ReplaySample]:
        with translated:
            self._check_signature()
            for item in sampled(self._client.native, self._requests(DEFAULT_BATCH)):
                info = SampleInfo(*(dtype(value) for dtype, value in zip(_INFO, item.info)))
                yield from self._of_item(item._replace(info=info))

    def _of_item(self, item: Item) -> Iterator[ReplaySample]:
        raise NotImplementedError
