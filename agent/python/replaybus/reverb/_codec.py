"""Values that the broker has no element type for: strings.

A string travels as uint8 with its length in front. The field's name ends in what it takes to read the value: ``%string``.

>>> value = encode("name", np.array(["ab", "c"]))
>>> value.array.shape, value.suffix
((2, 16), '%string')
>>> decode(value.suffix, value.array)
array([b'ab', b'c'], dtype=object)
"""
from typing import Any, NamedTuple, Sequence

import numpy as np

STRINGS = np.dtype(object)
_STRING = "%string"
_LENGTH = 4  # bytes in front of a string
_NARROWEST = 16


class Value(NamedTuple):
    """A value as the broker stores it, and its element type and shape as the program sees them. Strings are ``object``."""

    array: np.ndarray
    dtype: np.dtype
    shape: tuple
    suffix: str = ""


def encode(name: Any, value: Any) -> Value:
    """A value of a step. Copies it. name: what messages call it."""
    if isinstance(value, (str, bytes)):
        return _encode_strings(name, np.array(value, dtype=object))
    try:
        array = np.array(value)
    except ValueError as error:
        raise ValueError(f"'{name}' is not an array: {error}") from error
    if array.dtype.kind in "SUO":
        return _encode_strings(name, array)
    if array.dtype.kind not in "biufc":
        raise ValueError(f"'{name}' is {array.dtype}, and items hold numbers, booleans and strings")
    return Value(array, array.dtype, array.shape)


def _encode_strings(name: Any, array: np.ndarray) -> Value:
    strings = [_as_bytes(name, part) for part in array.reshape(-1)]
    width = max(_NARROWEST, 1 << (max(map(len, strings), default=0) + _LENGTH - 1).bit_length())  # few widths, hence few layouts
    rows = b"".join((len(part).to_bytes(_LENGTH, "little") + part).ljust(width, b"\0") for part in strings)
    return Value(np.frombuffer(rows, np.uint8).reshape(*array.shape, width), STRINGS, array.shape, _STRING)


def _as_bytes(name: Any, value: Any) -> bytes:
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytes):
        return bytes(value)
    raise ValueError(f"'{name}' has an element of {type(value).__name__}, and items hold numbers, booleans and strings")


def stack(rows: Sequence[np.ndarray], suffix: str) -> np.ndarray:
    """Rows of a column as one array. Strings of several widths get the greatest one."""
    if suffix:
        width = max(row.shape[-1] for row in rows)
        rows = [np.pad(row, [(0, 0)] * (row.ndim - 1) + [(0, width - row.shape[-1])]) for row in rows]
    return np.stack(rows)


def split(name: str) -> tuple[str, str]:
    """A field's name without its suffix, and the suffix."""
    head = name.removesuffix(_STRING)
    return head, name[len(head):]


def decode(suffix: str, array: np.ndarray) -> np.ndarray:
    """A field as the program wrote it."""
    if not suffix:
        return array
    out = np.empty(array.shape[:-1], dtype=object)
    flat = out.reshape(-1)
    for i, row in enumerate(np.ascontiguousarray(array).reshape(-1, array.shape[-1])):
        data = row.tobytes()
        flat[i] = data[_LENGTH:_LENGTH + int.from_bytes(data[:_LENGTH], "little")]
    return out
