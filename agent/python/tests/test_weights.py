"""Blocks of named tensors."""
import sys

import numpy as np
import pytest

import replaybus
from replaybus import _core, weights

# The example of proto/PROTOCOL.md, 21, which tests/unit/net/test_weights.c compares with the C encoder.
EXAMPLE = bytes.fromhex("52505754 01000000 01000000 20000000 4c00000000000000 0000000000000000 010c010000000000"
                        "4000000000000000 0200000000000000 6200000000000000 0000803f 000000c0 b80bbce5")


def test_the_documented_block():
    assert weights.encode({"b": np.array([1, -2], "float32")}) == EXAMPLE
    assert weights.decode(EXAMPLE)["b"].tolist() == [1, -2]


def test_all_types_and_shapes():
    tensors = {f"{dtype}/{len(shape)}": np.ones(shape, dtype) * 3 for shape in ((), (2,), (2, 3, 4), (0, 5))
               for dtype in ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32",
                             "float64", "complex64", "complex128")}
    tensors["bool"] = np.array([True, False])
    back = weights.decode(weights.encode(tensors))
    assert list(back) == list(tensors)
    for name, array in tensors.items():
        assert back[name].dtype == array.dtype and back[name].shape == array.shape
        assert np.array_equal(back[name], array)


def test_an_array_that_is_not_in_c_order():
    matrix = np.arange(6, dtype="float32").reshape(2, 3)
    assert np.array_equal(weights.decode(weights.encode({"w": matrix.T}))["w"], matrix.T)


@pytest.mark.parametrize("at", [0, 4, 8, 16, 34, 40, 64, 75])
def test_a_damaged_block_is_rejected(at):
    block = bytearray(EXAMPLE)
    block[at] ^= 0xFF
    with pytest.raises((replaybus.DataLoss, replaybus.Unsupported)):
        weights.decode(block)


def test_names_and_values_that_are_not_allowed():
    for name in ("", "a b", "x" * 128, "ä"):
        with pytest.raises(ValueError, match="1 to 127 visible ASCII"):
            weights.encode({name: np.zeros(1)})
    with pytest.raises(ValueError, match="tensor 'o'"):
        weights.encode({"o": np.array(["text"])})
    with pytest.raises(ValueError, match="at most 1024"):
        weights.encode({str(i): 0.0 for i in range(1025)})


def test_files(tmp_path):
    weights.save(tmp_path / "a.weights", {"x": np.arange(3)})
    assert weights.load(tmp_path / "a.weights")["x"].tolist() == [0, 1, 2]
    assert [path.name for path in tmp_path.iterdir()] == ["a.weights"]


@pytest.mark.skipif(sys.version_info < (3, 12), reason="only from 3.12 on does reading a buffer run Python")
def test_a_buffer_that_changes_its_dict():
    class Grows:
        def __buffer__(self, flags):
            tensors.update((f"more{i}", np.ones(4)) for i in range(1000))
            return memoryview(b"1234")

    tensors = {"first": Grows()}
    assert list(weights.decode(_core.weights_encode(tensors))) == ["first"]
