"""A batch of items as tensors."""
from typing import Any, Optional, Union

import numpy as np
import torch

from .. import _core, nest
from ..sampler import Batch as ArrayBatch
from ..sampler import Lazy, Leased, one_length, running_sums, squeezed

Device = Union[torch.device, str, int]
_TYPES = {name: getattr(torch, name) for name in ("bool", "int8", "int16", "int32", "int64", "uint8", "float16", "float32", "float64",
                                                  "bfloat16", "complex64", "complex128")}
_TYPES.update(uint16=torch.int16, uint32=torch.int32, uint64=torch.int64)
# Element types that torch lacks. Larger signed types hold every value; this is a copy.
_WIDER = {"uint16": (torch.int32, 0xFFFF), "uint32": (torch.int64, 0xFFFFFFFF)}
_ARRAYS = {name: (i, dtype) for i, (name, dtype) in enumerate(_core.ARRAYS)}


def _view(block: torch.Tensor, dtype: str, offset: int, size: int) -> torch.Tensor:
    """The values in ``size`` bytes of a block.

    They share its memory, except that uint16 and uint32 are copied to int32 and int64. uint64 becomes int64 with the same bits.
    """
    values = block[offset:offset + size]
    if dtype == "uint8":
        return values
    if dtype in _WIDER:
        wider, bits = _WIDER[dtype]
        return values.view(_TYPES[dtype]).to(wider).bitwise_and_(bits)
    return values.view(_TYPES[dtype])


def _real(lengths: torch.Tensor, steps: int) -> torch.Tensor:
    return torch.arange(steps, device=lengths.device) < lengths[:, None]


def _without_padding(field: torch.Tensor, lengths: Optional[torch.Tensor]) -> torch.Tensor:
    """The real steps of a field of shape (items, steps, ...)."""
    return field.flatten(0, 1) if lengths is None else field[_real(lengths, field.shape[1])]


def _padded(rows: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """The inverse: steps that an item lacks are 0."""
    steps = int(lengths.max()) if len(lengths) else 0
    out = rows.new_zeros((len(lengths), steps, *rows.shape[1:]))
    out[_real(lengths, steps)] = rows
    return out


class _PerItem(Lazy):
    """The tensor of the array with the same name."""

    def __init__(self, doc: str, moves: bool = False) -> None:
        super().__init__(self._tensor)
        self.__doc__, self._moves = doc, moves

    def _tensor(self, batch: "Batch") -> Optional[torch.Tensor]:
        at, dtype = _ARRAYS[self._name]
        offset, size = batch._places[at], 4 * batch._n if dtype in ("float32", "uint32") else 8 * batch._n
        block = batch.block if self._moves else torch.from_numpy(batch._host)
        return None if offset is None else _view(block, dtype, offset, size)


class Batch(Leased):
    """Items that were sampled together, as tensors. They are made when first asked for, share the batch's memory, and keep it.

    ``data`` has the structure that was written, and ``packed`` the same without padding. All of a batch is one block of memory, which ``to`` and ``pin_memory`` copy at once.
    key, times_sampled, age, policy, step, source, shard and group always stay on the CPU, where an updater needs the keys.
    """

    block: torch.Tensor
    """The memory of all tensors, as bytes."""

    def __init__(self, batch: ArrayBatch) -> None:
        self._batch, self._leased = batch, batch._leased
        self._node, self._n, self._fields, self._places = batch.structure(), len(batch), batch.places(), batch.array_places()
        self._packed, self._squeezes = batch._packed, batch.squeezes()
        if batch._squeeze:
            self._fields = tuple((*field[:3], squeezed(name, field[3]), field[4]) for name, field in zip(batch.names(), self._fields))
            self._squeezes = (True,) * len(self._fields)
        self._host = batch.block()
        self.block = torch.from_numpy(self._host)

    def __len__(self) -> int:
        return self._n

    def __getitem__(self, key: Any) -> Any:
        return self.data[key]

    @Lazy
    def data(self) -> Any:
        """The items' fields, in the structure in which they were written."""
        views = self._views()
        if self._packed:
            views = [field if one else _padded(field, n) for field, n, one in zip(views, self._lengths(), self._squeezes)]
        return nest.pack(self._node, views)

    @Lazy
    def packed(self) -> Any:
        """The same structure with the steps of all items one behind the other; one row per item where a field has no steps."""
        views = self._views()
        if not self._packed:
            views = [field if one else _without_padding(field, n) for field, n, one in zip(views, self._lengths(), self._squeezes)]
        return nest.pack(self._node, views)

    @Lazy
    def offsets(self) -> torch.Tensor:
        """Where each item begins in ``packed``, and the end of the last: int32, one more than there are items, beside the data.
        InvalidArgument: the fields take different numbers of steps from an item."""
        every = [self._steps(field) for field, one in zip(self._fields, self._squeezes) if not one]
        return torch.from_numpy(running_sums(one_length(every, self._n))).to(self.block.device)

    def _steps(self, field: tuple) -> np.ndarray:
        """The steps of each item in a field that has steps."""
        *_, shape, at = field
        return np.full(self._n, shape[1], np.uint32) if at is None else self._host[at:at + 4 * self._n].view(np.uint32)

    def _views(self) -> list[torch.Tensor]:
        return [_view(self.block, dtype, offset, size).view(shape) for dtype, offset, size, shape, _ in self._fields]

    def _lengths(self) -> list[Optional[torch.Tensor]]:
        return [None if offset is None else _view(self.block, "uint32", offset, 4 * self._n) for *_, offset in self._fields]

    @Lazy
    def lengths(self) -> Any:
        """The same structure with the number of real steps of each item; None for fields without steps."""
        return nest.pack(self._node, self._lengths())

    key = _PerItem("The items' keys as int64 with the bits of the uint64 keys; updaters take them.")
    priority = _PerItem("The items' priorities, float64.", moves=True)
    probability = _PerItem("The probability of each pick when it was made, float64.", moves=True)
    weight = _PerItem("Importance weights, float32.", moves=True)
    times_sampled = _PerItem("How often each item was sampled, this time included.")
    age_ns = _PerItem("Nanoseconds since each item was inserted.")
    policy = _PerItem("The version of the parameters that made each item.")
    step = _PerItem("The number of each item's first step in its stream.")
    source = _PerItem("The index of the source that each item came from; None: the sampler has one source.")
    shard = _PerItem("The number of the shard that has each item; None: there are no shards.")
    group = _PerItem("The key of each item's group, as int64 with the bits of the uint64 key; None: the table has no groups.")

    @Lazy
    def age(self) -> torch.Tensor:
        """Seconds since each item was inserted, float64."""
        return self.age_ns.double() / 1e9

    @Lazy
    def info(self) -> dict:
        """n, partial, table_size, waited_ns, and a text that says why a batch is partial."""
        return self._batch.info

    def _head(self) -> np.ndarray:
        """A copy of what the block has before the fields: the arrays."""
        return self._host[:min((field[1] for field in self._fields), default=None)].copy()

    def on(self, block: torch.Tensor) -> "Batch":
        """The same items in a copy of the block. Does not keep the memory of this batch."""
        batch = _restore((self._node, *self._form(), block, self._head(), self.info))
        batch._leased, batch._own = self._leased, self._own
        return batch

    def to(self, device: Device, non_blocking: bool = False) -> "Batch":
        """A copy on a device. non_blocking: the copy from pinned memory runs while the program continues."""
        return self.on(self.block.to(device, non_blocking=non_blocking))

    def pin_memory(self, device: Optional[Device] = None) -> "Batch":
        """A copy in pinned memory, from which copies to a CUDA device are fast. DataLoader(pin_memory=True) calls it."""
        return self.on(self.block.pin_memory())

    def __reduce__(self) -> tuple:
        # Named tuples of the structure may have classes that only this process knows: the names of the fields describe them.
        return _restore, ((nest.names(self._node), *self._form(), self.block, self._head(), self.info),)

    def _form(self) -> tuple:
        return self._n, self._fields, self._places, self._packed, self._squeezes


def _restore(values: tuple) -> Batch:
    batch = Batch.__new__(Batch)
    (node, batch._n, batch._fields, batch._places, batch._packed, batch._squeezes, batch.block, batch._host, batch.info) = values
    batch._node = node if isinstance(node, nest.Node) else nest.node_of_names(node)
    return batch
