"""A batch of items as tensors."""
from __future__ import annotations

from typing import Any, Callable, Optional, Union

import numpy as np
import torch

from .. import nest
from ..sampler import Batch as ArrayBatch
from ..sampler import Lazy

Device = Union[torch.device, str, int]
# Element types that torch lacks. Larger signed types hold every value; this is a copy.
_WIDER = {np.dtype("uint16"): np.int32, np.dtype("uint32"): np.int64}


def as_tensor(array: np.ndarray, dtype: str = "") -> torch.Tensor:
    """The array as a tensor that shares its memory.

    uint64 becomes int64 with the same bits, bfloat16 (whose bits are uint16 in numpy, so ``dtype`` names it) torch.bfloat16.
    uint16 and uint32 become int32 and int64, which is a copy.

    >>> as_tensor(np.array([2**64 - 1], "uint64"))
    tensor([-1])
    >>> as_tensor(np.array([0x3F80], "uint16"), "bfloat16")
    tensor([1.], dtype=torch.bfloat16)
    """
    if dtype == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    if array.dtype == np.uint64:
        return torch.from_numpy(array.view(np.int64))
    wider = _WIDER.get(array.dtype)
    return torch.from_numpy(array if wider is None else array.astype(wider))


class _PerItem(Lazy):
    """The tensor of the array with the same name."""

    def __init__(self, doc: str) -> None:
        super().__init__(self._tensor)
        self.__doc__ = doc

    def _tensor(self, batch: "Batch") -> Optional[torch.Tensor]:
        array = getattr(batch._batch, self._name)
        return None if array is None else as_tensor(array)


class Batch:
    """Items that were sampled together, as tensors. They are made when first asked for, share the batch's memory, and keep it.

    ``data`` has the structure that was written. ``to`` and ``pin_memory`` copy data, lengths, priority, probability and weight;
    key, times_sampled, age, policy, step, source and shard always stay on the CPU, where an updater needs the keys.
    """

    def __init__(self, batch: ArrayBatch) -> None:
        self._batch, self._node, self._n = batch, batch.structure(), len(batch)

    def __len__(self) -> int:
        return self._n

    @Lazy
    def data(self) -> Any:
        """The items' fields, in the structure in which they were written."""
        batch = self._batch
        return nest.pack(self._node, iter([as_tensor(field, dtype) for field, dtype in zip(batch.fields(), batch.dtypes())]))

    @Lazy
    def lengths(self) -> Any:
        """The same structure with the number of real steps of each item; None for fields without steps."""
        lengths = self._batch.field_lengths()
        return nest.pack(self._node, iter([None if length is None else as_tensor(length) for length in lengths]))

    key = _PerItem("The items' keys as int64 with the bits of the uint64 keys; updaters take them.")
    priority = _PerItem("The items' priorities, float64.")
    probability = _PerItem("The probability of each pick when it was made, float64.")
    weight = _PerItem("Importance weights, float32.")
    times_sampled = _PerItem("How often each item was sampled, this time included.")
    age = _PerItem("Seconds since each item was inserted, float64.")
    policy = _PerItem("The version of the parameters that made each item.")
    step = _PerItem("The number of each item's first step in its stream.")
    source = _PerItem("The index of the source that each item came from; None: the sampler has one source.")
    shard = _PerItem("The number of the shard that has each item; None: there are no shards.")

    @Lazy
    def info(self) -> dict:
        """n, partial, table_size, waited_ns, and a text that says why a batch is partial."""
        return self._batch.info

    # ---- copies

    def map(self, function: Callable[[torch.Tensor], torch.Tensor]) -> "Batch":
        """A batch with the function's result for each tensor that ``to`` would copy."""
        values = {name: getattr(self, name) for name in _ON_HOST}
        for name in _STRUCTURES:
            leaves = nest.flatten(self._node, getattr(self, name))
            values[name] = nest.pack(self._node, iter([None if leaf is None else function(leaf) for leaf in leaves]))
        values.update((name, function(getattr(self, name))) for name in _PER_ITEM)
        return _make(self._node, self._n, values)

    def to(self, device: Device, non_blocking: bool = False) -> "Batch":
        """A copy on a device. non_blocking: the copy from pinned memory runs while the program continues."""
        return self.map(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self, device: Optional[Device] = None) -> "Batch":
        """A copy in pinned memory, from which copies to a CUDA device are fast. DataLoader(pin_memory=True) calls it."""
        return self.map(torch.Tensor.pin_memory)

    def __reduce__(self) -> tuple:
        # Named tuples of the structure may have classes that only this process knows: the names of the fields describe them.
        values = {name: getattr(self, name) for name in _ON_HOST + _PER_ITEM}
        values.update((name, nest.flatten(self._node, getattr(self, name))) for name in _STRUCTURES)
        return _restore, (nest.names(self._node), self._n, values)


_STRUCTURES = ("data", "lengths")
_PER_ITEM = ("priority", "probability", "weight")
_ON_HOST = ("key", "times_sampled", "age", "policy", "step", "source", "shard", "info")


def _make(node: nest.Node, n: int, values: dict[str, Any]) -> Batch:
    batch = Batch.__new__(Batch)
    batch.__dict__.update(values, _node=node, _n=n, _batch=None)
    return batch


def _restore(names: tuple[str, ...], n: int, values: dict[str, Any]) -> Batch:
    node = nest.node_of_names(names)
    values.update((name, nest.pack(node, iter(values[name]))) for name in _STRUCTURES)
    return _make(node, n, values)
