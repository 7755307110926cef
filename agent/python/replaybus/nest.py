"""Nested structures: dicts, tuples, named tuples and lists of arrays, and the names that their values travel under.

A value's name is its path: parts joined by ``/``. A dict's key stands as it is, ``(0)`` is an element of a tuple, ``[0]`` of a
list, ``<Step>reward`` a field of the named tuple Step. A structure that is one array has the name ``.``.

>>> names(node_of({"obs": {"x": 0, "y": 0}, "pair": (0, 0)}))
('obs/x', 'obs/y', 'pair/(0)', 'pair/(1)')
>>> pack(node_of_names(("obs/x", "obs/y", "pair/(0)", "pair/(1)")), [1, 2, 3, 4])
{'obs': {'x': 1, 'y': 2}, 'pair': (3, 4)}
"""
import collections
import operator
import re
from typing import Any, Callable, Iterable, Iterator, NamedTuple, Optional, Sequence


class Node(NamedTuple):
    """A structure: kind is leaf, dict, tuple, list or named."""

    kind: str
    keys: tuple = ()
    parts: tuple["Node", ...] = ()
    cls: Optional[type] = None


LEAF = Node("leaf")
_NAMED = re.compile(r"<([A-Za-z_]\w*)>([A-Za-z_]\w*)\Z")
_INDEX = re.compile(r"\((\d+)\)\Z|\[(\d+)\]\Z")
_ESCAPED = re.compile(r"%([0-9A-F]{2})")
_known: dict[tuple, type] = {}  # named tuples by (name, fields): classes that this process has written


def _is_numbers(value: list) -> bool:
    return all(_is_numbers(part) if isinstance(part, list) else isinstance(part, (int, float, complex)) for part in value)


def node_of(value: Any, leaf: tuple[type, ...] = (), path: tuple = ()) -> Node:
    """The structure of a value, which stands at ``path``. Lists of numbers are arrays, not structures, and so are values of the types
    in ``leaf``."""
    if isinstance(value, leaf):
        return LEAF
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, str) or not key:
                raise TypeError(f"a key of a step is a str with at least one character, not {key!r}")
        return _checked(Node("dict", tuple(value), _nodes(value.items(), leaf, path)), path)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return _checked(named_node(type(value), _nodes(zip(value._fields, value), leaf, path)), path)
    if isinstance(value, tuple):
        return _checked(Node("tuple", tuple(range(len(value))), _nodes(enumerate(value), leaf, path)), path)
    if isinstance(value, list) and not _is_numbers(value):
        return _checked(Node("list", tuple(range(len(value))), _nodes(enumerate(value), leaf, path)), path)
    return LEAF


def named_node(cls: type, parts: tuple[Node, ...]) -> Node:
    """A named tuple of this class. Structures that are read get the class, too."""
    _known.setdefault((cls.__name__, cls._fields), cls)
    return Node("named", cls._fields, parts, cls)


def named_class(name: str, fields: tuple[str, ...]) -> type:
    """The class of the named tuple with this name and these fields: one that was written, or a new one."""
    return _known.get((name, fields)) or _known.setdefault((name, fields), collections.namedtuple(name, fields))


def _nodes(parts: Iterable[tuple[Any, Any]], leaf: tuple[type, ...], path: tuple) -> tuple[Node, ...]:
    return tuple(node_of(part, leaf, (*path, key)) for key, part in parts)


def _checked(node: Node, path: tuple) -> Node:
    if not node.parts:
        at = f" ('{'/'.join(map(str, path))}')" if path else ""
        raise ValueError(f"a {node.kind} without values{at} has no place in a step: leave it out")
    return node


def plan(node: Node) -> Any:
    """The structure as the extension reads it."""
    if node.kind == "leaf":
        return None
    return (node.keys if node.kind == "dict" else node.cls), tuple(map(plan, node.parts))


def flatten(node: Node, value: Any) -> list:
    """The values in order. The value has the node's structure."""
    if node.kind == "leaf":
        return [value]
    parts = [value[key] for key in node.keys] if node.kind == "dict" else list(value)
    if node.cls and getattr(value, "_fields", node.keys) != node.keys:
        raise ValueError(f"the structure differs: wanted the fields {node.keys}, got {value._fields}")
    if len(parts) != len(node.parts) or len(value) != len(parts):
        raise ValueError(f"the structure differs: wanted {len(node.parts)} parts, got {len(value)}")
    return [leaf for part, child in zip(parts, node.parts) for leaf in flatten(child, part)]


def pack(node: Node, values: Iterable[Any]) -> Any:
    """The structure, filled with values in order."""
    leaves = iter(values)
    if node.kind == "leaf":
        return next(leaves)
    parts = [next(leaves) if part is LEAF else pack(part, leaves) for part in node.parts]
    if node.kind == "dict":
        return dict(zip(node.keys, parts))
    if node.kind == "named":
        return node.cls(*parts)
    return tuple(parts) if node.kind == "tuple" else parts


def mapped(function: Callable[..., Any], value: Any, *others: Any, leaf: tuple[type, ...] = ()) -> Any:
    """The structure of a value, with the results of the function in the place of its values. The others have the same structure."""
    node = node_of(value, leaf)
    return pack(node, map(function, flatten(node, value), *(flatten(node, other) for other in others)))


def packer(node: Node) -> Callable[[Sequence[Any]], Any]:
    """pack for a sequence of values; quick for a flat structure."""
    if node is LEAF:
        return operator.itemgetter(0)
    if node.kind == "dict" and all(part is LEAF for part in node.parts):
        return lambda values: dict(zip(node.keys, values))
    return lambda values: pack(node, values)


def _escape(key: str) -> str:
    out = key.replace("%", "%25").replace("/", "%2F")
    return f"%{ord(out[0]):02X}{out[1:]}" if out[0] in "([<." else out


def _part_names(node: Node) -> list[str]:
    if node.kind == "dict":
        return [_escape(key) for key in node.keys]
    if node.kind == "named":
        return [f"<{node.cls.__name__}>{key}" for key in node.keys]
    form = "({})" if node.kind == "tuple" else "[{}]"
    return [form.format(key) for key in node.keys]


def _paths(node: Node, before: str) -> Iterator[str]:
    if node.kind == "leaf":
        yield before
        return
    for name, part in zip(_part_names(node), node.parts):
        yield from _paths(part, f"{before}/{name}" if before else name)


def names(node: Node) -> tuple[str, ...]:
    """The name of each value, in order."""
    return (".",) if node.kind == "leaf" else tuple(_paths(node, ""))


def node_of_names(fields: Sequence[str]) -> Node:
    """The structure that these names describe; a flat dict if they describe none."""
    if tuple(fields) == (".",):
        return LEAF
    if not fields:
        return Node("dict")
    try:
        node = _build([name.split("/") for name in fields])
        if names(node) == tuple(fields):
            return node
    except ValueError:
        pass
    return Node("dict", tuple(fields), (LEAF,) * len(fields))


def _build(paths: list[list[str]]) -> Node:
    if len(paths) == 1 and not paths[0]:
        return LEAF
    groups: dict[str, list[list[str]]] = {}
    for path in paths:
        if not path or not path[0]:
            raise ValueError("a value where a structure stands")
        groups.setdefault(path[0], []).append(path[1:])
    return _node(list(groups), tuple(_build(rest) for rest in groups.values()))


def _node(heads: list[str], parts: tuple[Node, ...]) -> Node:
    named = [_NAMED.match(head) for head in heads]
    if all(named):
        fields = tuple(found[2] for found in named)
        return Node("named", fields, parts, named_class(named[0][1], fields))
    if all(_INDEX.match(head) for head in heads):
        return Node("tuple" if heads[0][0] == "(" else "list", tuple(range(len(heads))), parts)
    return Node("dict", tuple(_ESCAPED.sub(lambda found: chr(int(found[1], 16)), head) for head in heads), parts)
