"""Named tensors as one block of bytes: what learners publish and C actors read (proto/PROTOCOL.md, 21).

>>> import numpy as np
>>> block = encode({"q/layer0/weight": np.ones((4, 2), "float32"), "steps": np.array([7], "uint64")})
>>> block[:4], len(block)
(b'RPWT', 204)
>>> decode(block)["q/layer0/weight"].shape
(4, 2)
"""
import os
from typing import Any, Mapping, Union

import numpy as np

from . import _core

SLOT = "policy"  # the parameter slot that C actors and evaluators read
STEPS = "steps"  # the tensor with the learner's step


def encode(tensors: Mapping[str, Any]) -> bytes:
    """A block of arrays (or of what numpy makes arrays of), in the order of the mapping."""
    return _core.weights_encode({name: np.asarray(value, order="C") for name, value in tensors.items()})


def decode(block: Any) -> dict[str, np.ndarray]:
    """The tensors of a block. The arrays share the block's memory; bfloat16 is shown as uint16.

    DataLoss, or Unsupported for another version, says what is wrong with the block.
    """
    out = {}
    for name, dtype, shape, offset in _core.weights_list(block):
        kind = np.dtype("uint16" if dtype == "bfloat16" else dtype)
        count = int(np.prod(shape, dtype=np.int64))
        out[name] = np.frombuffer(block, kind, count, offset).reshape(shape) if count else np.zeros(shape, kind)
    return out


def bf16(block: Any) -> bytes:
    """The same tensors with bfloat16, rounded to nearest, for float32: half the bytes.

    >>> decode(bf16(encode({"w": np.array([1.0, 3.14159], "float32")})))["w"].tolist()  # as bits: 1 and 3.140625
    [16256, 16457]
    """
    return _core.weights_bf16(block)


def save(path: Union[str, os.PathLike], tensors: Mapping[str, Any]) -> None:
    """Writes a file that C programs read. A crash leaves the old file or the new file, never a part."""
    path = os.fspath(path)
    temporary = f"{path}.tmp"
    with open(temporary, "wb") as file:
        file.write(encode(tensors))
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    folder = os.open(os.path.dirname(path) or ".", os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def load(path: Union[str, os.PathLike]) -> dict[str, np.ndarray]:
    """The tensors of a file: a saved learner's, or best.weights."""
    with open(path, "rb") as file:
        return decode(file.read())
