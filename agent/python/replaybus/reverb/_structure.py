"""Structures as Reverb orders them, signatures of tables, and what a server tells its clients about both.

>>> list(ordered({"b": 1, "a": {"d": 2, "c": 3}}))
['a', 'b']
"""
from __future__ import annotations

import functools
import json
from typing import Any, NamedTuple, Optional, Sequence

import numpy as np

from .. import nest
from ..errors import DeadlineExceeded
from ..writer import Field

SLOT = "replaybus.reverb"
names = functools.lru_cache(maxsize=1024)(nest.names)
node_of_names = functools.lru_cache(maxsize=1024)(nest.node_of_names)


def ordered(value: Any) -> Any:
    """The same structure with the keys of its dicts in alphabetical order, which is the order of flat samples."""
    if isinstance(value, dict):
        return {key: ordered(value[key]) for key in sorted(value)}
    if isinstance(value, tuple) and not isinstance(value, Field):
        return type(value)(*map(ordered, value)) if hasattr(value, "_fields") else tuple(map(ordered, value))
    if isinstance(value, list) and nest.node_of(value).kind != "leaf":
        return [ordered(part) for part in value]
    return value


def array_of(name: str, value: Any) -> np.ndarray:
    """A value of a step as an array of numbers."""
    array = np.asarray(value)
    if array.dtype.kind not in "biufc":
        raise ValueError(f"'{name}' is {array.dtype}, and items hold numbers: encode strings as uint8")
    if not array.size:
        raise ValueError(f"'{name}' has the shape {array.shape}, and every dimension must be 1 or more")
    return array


class Spec(NamedTuple):
    """The name, element type and shape of one value of a signature. None: any size, or any shape."""

    name: str
    dtype: str
    shape: Optional[tuple]


def dtype_name(value: Any) -> str:
    """The name of an element type."""
    dtype = getattr(value, "as_numpy_dtype", value)  # TensorFlow's element types
    return np.dtype(dtype).name


def shape_of(value: Any) -> Optional[tuple]:
    """A shape as a tuple; None: any."""
    if value is None:
        return None
    dims = getattr(value, "dims", value)  # TensorFlow's shapes
    return None if dims is None else tuple(None if dim is None else int(dim) for dim in dims)


def specs_of(signature: Any) -> Optional[list[Spec]]:
    """The values of a signature: a structure of objects with dtype and shape, such as replaybus.Field or arrays."""
    if signature is None:
        return None
    signature = ordered(signature)
    node = nest.node_of(signature, (Field,))
    return [Spec(name, dtype_name(leaf.dtype), shape_of(leaf.shape))
            for name, leaf in zip(names(node), nest.flatten(node, signature))]


def signature_of(specs: Optional[Sequence[Spec]]) -> Any:
    """The structure of these values, with a replaybus.Field in the place of each."""
    if not specs:
        return None
    return nest.pack(node_of_names(tuple(spec.name for spec in specs)), iter([Field(s.dtype, s.shape) for s in specs]))


def _fits(want: Optional[tuple], got: tuple) -> bool:
    return want is None or (len(want) == len(got) and all(w is None or w == g for w, g in zip(want, got)))


def check(table: str, specs: Optional[Sequence[Spec]], fields: Sequence[Spec]) -> None:
    """Raises ValueError if an item with these fields does not have the table's signature."""
    if specs is None:
        return
    same = len(specs) == len(fields) and all(
        want.name == got.name and want.dtype == got.dtype and _fits(want.shape, got.shape)
        for want, got in zip(specs, fields))
    if not same:
        raise ValueError(f"the item does not have the signature of table '{table}': the signature is {_text(specs)}, "
                         f"the item is {_text(fields)}")


def _text(specs: Sequence[Spec]) -> str:
    return "[" + ", ".join(f"{spec.name} {spec.dtype}{spec.shape}" for spec in specs) + "]"


class Facts(NamedTuple):
    """What a server stores for its clients: signatures by table, and the folder of its checkpoints."""

    signatures: dict
    checkpoints: Optional[str] = None


def publish(client: Any, facts: Facts) -> None:
    """Stores the facts in a parameter slot of the broker."""
    client.params.put(SLOT, json.dumps(facts._asdict()).encode())


def lookup(client: Any) -> Facts:
    """Reads the facts. A broker that was not started by this module has none."""
    try:
        stored = json.loads(bytes(client.params.get(SLOT, timeout=0).data))
    except DeadlineExceeded:
        return Facts({})
    signatures = {name: specs and [Spec(part[0], part[1], None if part[2] is None else tuple(part[2])) for part in specs]
                  for name, specs in stored["signatures"].items()}
    return Facts(signatures, stored["checkpoints"])
