"""What the two datasets share: options, iteration and batches."""
from __future__ import annotations

import itertools
from typing import Any, Callable, Iterator, Optional

import numpy as np

from .. import nest
from . import _structure
from ._samples import Item, sampled
from .client import Client
from .errors import translated
from .replay_sample import ReplaySample


def _stacked(samples: list) -> Any:
    """Samples as one sample, whose arrays have a first dimension for the samples."""
    node = nest.node_of(samples[0])
    columns = zip(*(nest.flatten(node, sample) for sample in samples))
    return nest.pack(node, map(np.stack, columns))


class _Iterable:
    """Something that can be iterated over again and again, with the few methods of datasets that need no TensorFlow."""

    def __init__(self, begin: Callable[[], Iterator[ReplaySample]]) -> None:
        self._begin = begin

    def __iter__(self) -> Iterator[ReplaySample]:
        return self._begin()

    as_numpy_iterator = __iter__

    def take(self, count: int) -> "_Iterable":
        """The first samples; all of them if count is negative."""
        return _Iterable(lambda: itertools.islice(iter(self), None if count < 0 else count))

    def prefetch(self, buffer_size: int) -> "_Iterable":
        """The same samples: they are always fetched ahead, up to max_in_flight_samples_per_worker."""
        return self

    def batch(self, batch_size: int, drop_remainder: bool = False) -> "_Iterable":
        """Samples in batches. Their arrays must have the same shapes."""
        if batch_size < 1:
            raise ValueError(f"batch_size must be 1 or more, not {batch_size}")
        return _Iterable(lambda: self._batches(batch_size, drop_remainder))

    def _batches(self, batch_size: int, drop_remainder: bool) -> Iterator[ReplaySample]:
        samples = iter(self)
        while part := list(itertools.islice(samples, batch_size)):
            if len(part) == batch_size or not drop_remainder:
                yield _stacked(part)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"'{name}' is not a method of this dataset: methods of TensorFlow's datasets other than batch, take, "
                             "prefetch and as_numpy_iterator need TensorFlow, which replaybus does not use; iterate over it")


class Dataset(_Iterable):
    """Samples of a table, without end unless max_samples or rate_limiter_timeout_ms says otherwise."""

    def __init__(self, server_address: str, table: str, dtypes: Any = None, shapes: Any = None,
                 max_in_flight_samples_per_worker: int = 100, num_workers_per_iterator: int = -1,
                 max_samples_per_stream: int = -1, rate_limiter_timeout_ms: int = -1, max_samples: int = -1) -> None:
        if max_in_flight_samples_per_worker < 1:
            raise ValueError(f"max_in_flight_samples_per_worker must be 1 or more, not {max_in_flight_samples_per_worker}")
        for name, value in (("num_workers_per_iterator", num_workers_per_iterator),
                            ("max_samples_per_stream", max_samples_per_stream), ("max_samples", max_samples)):
            if value < 1 and value != -1:
                raise ValueError(f"{name} must be -1, or 1 or more, not {value}")
        if rate_limiter_timeout_ms < -1:
            raise ValueError(f"rate_limiter_timeout_ms must be -1, or 0 or more, not {rate_limiter_timeout_ms}")
        super().__init__(self._samples)
        self._client, self._table = Client(server_address), table
        self._in_flight, self._max_samples = max_in_flight_samples_per_worker, max(max_samples, 0)
        self._timeout = None if rate_limiter_timeout_ms < 0 else rate_limiter_timeout_ms / 1000
        self._node: Optional[nest.Node] = None
        self._specs: Optional[list] = None
        if dtypes is not None:
            self._expect(dtypes, shapes)

    @classmethod
    def from_table_signature(cls, server_address: str, table: str, max_in_flight_samples_per_worker: int,
                             num_workers_per_iterator: int = -1, max_samples_per_stream: int = -1,
                             rate_limiter_timeout_ms: int = -1, get_signature_timeout_secs: Optional[int] = None,
                             max_samples: int = -1) -> "Dataset":
        """A dataset with the structure of the table's signature."""
        client = Client(server_address)
        info = client.server_info(get_signature_timeout_secs)
        if table not in info:
            raise ValueError(f"the server has no table '{table}': it has {sorted(info)}")
        if info[table].signature is None:
            raise ValueError(f"table '{table}' has no signature")
        return cls(server_address, table, None, None, max_in_flight_samples_per_worker, num_workers_per_iterator,
                   max_samples_per_stream, rate_limiter_timeout_ms, max_samples)

    def _expect(self, dtypes: Any, shapes: Any) -> None:
        """Keeps the structure, types and shapes that the caller declared."""
        dtypes = _structure.ordered(dtypes)
        self._node = nest.node_of(dtypes)
        names, types = _structure.names(self._node), nest.flatten(self._node, dtypes)
        sizes = [None] * len(types) if shapes is None else _shapes(self._node, _structure.ordered(shapes))
        self._specs = [_structure.Spec(name, _structure.dtype_name(dtype), _structure.shape_of(shape))
                       for name, dtype, shape in zip(names, types, sizes)]

    def _data(self, item: Item, fields: list) -> Any:
        """Fields in the declared structure, or in the structure in which they were written."""
        if self._node is None:
            return item.structured(fields)
        got = [_structure.Spec(spec.name, field.dtype.name, field.shape) for spec, field in zip(self._specs, fields)]
        if len(fields) != len(self._specs):
            raise ValueError(f"the items of table '{self._table}' have {len(fields)} fields, and dtypes has {len(self._specs)}")
        _structure.check(self._table, self._specs, got)
        return nest.pack(self._node, iter(fields))

    def _samples(self) -> Iterator[ReplaySample]:
        with translated():
            for item in sampled(self._client.native, self._table, self._in_flight, self._timeout, self._max_samples):
                yield from self._of_item(item)

    def _of_item(self, item: Item) -> Iterator[ReplaySample]:
        raise NotImplementedError


def _shapes(node: nest.Node, shapes: Any) -> list:
    """The shapes of a structure's values. A shape is a tuple or a list itself, so that the node says where values are."""
    if node.kind == "leaf":
        return [shapes]
    parts = [shapes[key] for key in node.keys] if node.kind == "dict" else list(shapes)
    if len(parts) != len(node.parts):
        raise ValueError("dtypes and shapes must have the same structure")
    return [shape for child, part in zip(node.parts, parts) for shape in _shapes(child, part)]
