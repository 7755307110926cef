"""Structures as Reverb flattens them, signatures of tables, and what a server tells its clients about both.

Lists are structures, the keys of a dict are taken in alphabetical order, and None stands for a value that is missing. Dicts,
tuples and lists may be empty: they have no values, and items do not store them.

>>> node = node_of({"b": [1, 2], "a": 3})
>>> paths(node)
(('a',), ('b', 0), ('b', 1))
>>> names(node)
('a', 'b/[0]', 'b/[1]')
"""
import functools
import json
from collections.abc import Mapping
from typing import Any, NamedTuple, Optional, Sequence

import numpy as np

from .. import nest
from .reverb_types import TensorSpec, dtype_name, shape_of

_MARK = "replaybus.reverb "
LEAF = nest.LEAF
_VALUES = frozenset((np.ndarray, int, float, bool, str, bytes, type(None)))
names = functools.lru_cache(maxsize=1024)(nest.names)
node_of_names = functools.lru_cache(maxsize=1024)(nest.node_of_names)


def node_of(value: Any, leaf: tuple[type, ...] = ()) -> nest.Node:
    """The structure of a value. Values of the types in ``leaf`` are no structures."""
    if type(value) in _VALUES or isinstance(value, leaf) or not isinstance(value, (Mapping, tuple, list)):
        return LEAF
    if isinstance(value, Mapping):
        keys = tuple(sorted(value, key=_key))
        return nest.Node("dict", keys, tuple(node_of(value[key], leaf) for key in keys))
    fields = getattr(value, "_fields", None)
    if fields is not None and {"dtype", "shape"}.issubset(fields):
        return LEAF  # a spec, such as replaybus.Field
    parts = tuple(node_of(part, leaf) for part in value)
    if fields is not None:
        return nest.named_node(type(value), parts)
    return nest.Node("tuple" if isinstance(value, tuple) else "list", tuple(range(len(value))), parts)


def _key(key: Any) -> str:
    if not isinstance(key, str) or not key:
        raise TypeError(f"a key of a structure is a str with at least one character, not {key!r}")
    return key


@functools.lru_cache(maxsize=1024)
def paths(node: nest.Node) -> tuple[tuple, ...]:
    """The path of each value: keys and numbers."""
    if node.kind == "leaf":
        return ((),)
    return tuple((key, *rest) for key, part in zip(node.keys, node.parts) for rest in paths(part))


def merged(old: Optional[nest.Node], new: nest.Node, value: Any) -> nest.Node:
    """The structure of all steps so far, with what a step adds to it. ``new`` is the structure of ``value``."""
    if old is None or not (old.keys or old.kind == "leaf"):
        return new
    if value is None or not (new.keys or new.kind == "leaf"):
        return old
    if old.kind != new.kind or old.cls is not new.cls:
        kinds = (f"{node.cls.__module__}.{node.cls.__qualname__}({', '.join(node.keys)})" if node.cls else node.kind for node in (new, old))
        raise ValueError(f"the structure of this step contradicts that of the steps before it: a {' is in the place of a '.join(kinds)}")
    if new.kind == "leaf":
        return new
    parts = dict(zip(old.keys, old.parts))
    values = [value[key] for key in new.keys] if new.kind == "dict" else value
    for key, part, child in zip(new.keys, new.parts, values):
        parts[key] = merged(parts.get(key), part, child)
    keys = tuple(sorted(parts)) if new.kind == "dict" else tuple(parts)
    return nest.Node(new.kind, keys, tuple(parts[key] for key in keys), new.cls)


class Spec(NamedTuple):
    """The name, element type and shape of one value of a signature. None: any size, or any shape."""

    name: str
    dtype: str
    shape: Optional[tuple]


def agree(one: Optional[tuple], other: Optional[tuple]) -> bool:
    """Whether a value can have both shapes."""
    return one is None or other is None or (len(one) == len(other) and all(
        a is None or b is None or a == b for a, b in zip(one, other)))


def check(table: str, specs: Sequence[Spec], fields: Sequence[Spec]) -> None:
    """Raises ValueError if an item with these fields does not have the table's signature. Names do not count."""
    same = len(specs) == len(fields) and all(
        want.dtype == got.dtype and agree(want.shape, got.shape) for want, got in zip(specs, fields))
    if not same:
        raise ValueError(f"the item does not have the signature of table '{table}': the signature is {_text(specs)}, "
                         f"the item is {_text(fields)}")


def _text(specs: Sequence[Spec]) -> str:
    return "[" + ", ".join(f"{spec.name} {spec.dtype}{spec.shape}" for spec in specs) + "]"


class Signature(NamedTuple):
    """The structure of a signature, and the spec of each of its values."""

    node: nest.Node
    specs: list[Spec]

    def structure(self) -> Any:
        """The structure with a TensorSpec in the place of each value."""
        return nest.pack(self.node, [TensorSpec(spec.shape, object if spec.dtype == "string" else spec.dtype)
                                     for spec in self.specs])


class TableFacts(NamedTuple):
    """What the broker does not know of a table: its signature and the settings of its selectors. They are the table's metadata."""

    signature: Optional[Signature] = None
    sampler: Optional[dict] = None
    remover: Optional[dict] = None

    def metadata(self) -> str:
        """The text that the broker keeps; empty if it knows everything."""
        if self.signature is None and all(list(selector) == ["kind"] for selector in (self.sampler, self.remover)):
            return ""
        signature = None if self.signature is None else [_plain(self.signature.node), [spec[1:] for spec in self.signature.specs]]
        return _MARK + json.dumps([signature, self.sampler, self.remover], separators=(",", ":"))


def facts_of(metadata: str) -> TableFacts:
    """The facts in a table's metadata. A broker that was not started by this module has none."""
    if not metadata.startswith(_MARK):
        return TableFacts()
    signature, sampler, remover = json.loads(metadata[len(_MARK):])
    return TableFacts(_stored_signature(signature), sampler, remover)


def signature_of(structure: Any) -> Optional[Signature]:
    """The signature of a structure of objects with dtype and shape, such as TensorSpec, Field or arrays; None of None."""
    if structure is None:
        return None
    node = node_of(structure)
    return Signature(node, [Spec(name, dtype_name(leaf.dtype), shape_of(leaf.shape))
                            for name, leaf in zip(names(node), nest.flatten(node, structure))])


def _stored_signature(stored: Optional[list]) -> Optional[Signature]:
    if stored is None:
        return None
    node = _from_plain(stored[0])
    return Signature(node, [Spec(name, dtype, None if shape is None else tuple(shape))
                            for name, (dtype, shape) in zip(names(node), stored[1])])


def _plain(node: nest.Node) -> Optional[list]:
    """A structure as JSON."""
    if node.kind == "leaf":
        return None
    return [node.kind, node.cls.__name__ if node.cls else None, list(node.keys), [_plain(part) for part in node.parts]]


def _from_plain(stored: Optional[list]) -> nest.Node:
    if stored is None:
        return LEAF
    kind, cls, keys, parts = stored
    nodes = tuple(map(_from_plain, parts))
    if kind == "named":
        return nest.named_node(nest.named_class(cls, tuple(keys)), nodes)
    return nest.Node(kind, tuple(keys), nodes)
