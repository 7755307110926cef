"""Structures come out as they went in, bit by bit."""
import collections
import random

import numpy as np
import pytest

from replaybus import nest

Pair = collections.namedtuple("Pair", "left right")
KEYS = ["a", "obs", "a/b", "%", "%2F", "(0)", "[1]", "<Pair>left", ".", "ä ö", "a.b", " "]
DTYPES = ["bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64",
          "complex64", "complex128"]


def random_structure(rng, depth):
    kind = rng.choice(["leaf", "leaf", "dict", "tuple", "list", "named"]) if depth else "leaf"
    if kind == "leaf":
        dtype = np.dtype(rng.choice(DTYPES))
        shape = tuple(rng.randint(1, 3) for _ in range(rng.randint(0, 3)))
        size = int(np.prod(shape)) * dtype.itemsize
        bits = bytes(rng.randrange(2 if dtype.kind == "b" else 256) for _ in range(size))
        return np.frombuffer(bits, dtype).reshape(shape)
    if kind == "named":
        return Pair(random_structure(rng, depth - 1), random_structure(rng, depth - 1))
    parts = [random_structure(rng, depth - 1) for _ in range(rng.randint(1, 4))]
    if kind == "dict":
        return dict(zip(rng.sample(KEYS, len(parts)), parts))
    return tuple(parts) if kind == "tuple" else parts


def same(a, b):
    """Whether b is a batch of one item of one step a."""
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (tuple, list)):
        return len(a) == len(b) and all(map(same, a, b))
    return a.dtype == b.dtype and b.shape == (1, 1, *a.shape) and a.tobytes() == b.tobytes()


@pytest.mark.parametrize("seed", range(60))
def test_round_trip(client, seed):
    step = random_structure(random.Random(seed), 4)
    with client.writer(chunk_length=1 + seed % 3) as writer:
        writer.append(step)
        writer.append(step)
        writer.item("queue")
    with client.sampler("queue", 1) as sampler:
        assert same(step, sampler.next(60).data), f"seed {seed}: {step}"


def test_named_tuples_of_other_processes():
    node = nest.node_of_names(["<Elsewhere>x", "<Elsewhere>y"])
    value = nest.pack(node, iter([1, 2]))
    assert type(value).__name__ == "Elsewhere" and value._fields == ("x", "y") and tuple(value) == (1, 2)


@pytest.mark.parametrize("fields", [["a", "a/b"], ["(0)", "(2)"], ["a", "(0)"], ["a//b"], ["<A>x", "<B>y"], ["(0)", "[1]"],
                                    ["/"], ["a/b", "c", "a/d"]])
def test_names_without_structure_are_a_flat_dict(fields):
    assert nest.pack(nest.node_of_names(fields), iter(range(len(fields)))) == dict(zip(fields, range(len(fields))))


def test_names_of_c_programs():
    fields = ["observation", "action", "next_observation"]
    assert nest.pack(nest.node_of_names(fields), iter([1, 2, 3])) == dict(zip(fields, [1, 2, 3]))
