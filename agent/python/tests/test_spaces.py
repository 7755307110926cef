"""Properties of the spaces."""
import pickle
import sys
import types

import numpy as np
import pytest

from replaybus import spaces
from replaybus.spaces import Box, Discrete, MultiDiscrete

SPACES = [Discrete(1), Discrete(7), MultiDiscrete([1, 2, 9]), Box(-1, 1, (3,)), Box(0, 255, (4, 4, 2), "uint8"), Box(-np.inf, np.inf, (5,)),
          Box([0, -np.inf], [np.inf, 3]), Box(-3, 3, (2, 2), "float64"), Box(-128, 127, (3,), "int8"), Box(0, 1, ())]


@pytest.mark.parametrize("space", SPACES, ids=repr)
def test_samples_belong_to_the_space(space):
    space.seed(3)
    for _ in range(200):
        value = space.sample()
        assert value in space and np.shape(value) == space.shape and np.asarray(value).dtype == space.dtype


@pytest.mark.parametrize("space", SPACES, ids=repr)
def test_seeds_repeat(space):
    assert space.seed(5) == [5]
    first = [np.asarray(space.sample()).tobytes() for _ in range(20)]
    space.seed(5)
    assert first == [np.asarray(space.sample()).tobytes() for _ in range(20)]
    space.seed(6)
    assert space in (SPACES[0],) or first != [np.asarray(space.sample()).tobytes() for _ in range(20)]


@pytest.mark.parametrize("space", SPACES, ids=repr)
def test_equality_and_pickle(space):
    copy = pickle.loads(pickle.dumps(space))
    assert copy == space and hash(copy) == hash(space)
    assert [other for other in SPACES if other == space] == [space]


def test_bounds_are_reached():
    assert {int(Discrete(3, seed=i).sample()) for i in range(50)} == {0, 1, 2}
    space = Box(0, 3, (100,), "uint8", seed=1)
    assert set(space.sample()) == {0, 1, 2, 3}


@pytest.mark.parametrize("space, inside, outside", [
    (Discrete(3), [1, np.int8(0), np.array(2), np.uint64(2)], [-1, 3, 1.0, "1", None, True, np.array([1])]),
    (Box(-1, 1, (3,)), [], [[0, 0], [0, 0, 2], [0, 0, np.nan], [0, 0, 1 + 1e-6], "abc", None, [1j, 0, 0], [[0, 0, 0]]]),
    (Box(0, 9, (1,), "int64"), [[3]], [np.array([3.0])])], ids=repr)
def test_what_belongs_to_a_space(space, inside, outside):
    assert [value for value in inside if value not in space] == [value for value in outside if value in space] == []


def test_no_empty_discrete():
    with pytest.raises(ValueError):
        Discrete(0)


def test_to_gymnasium(monkeypatch):
    monkeypatch.delitem(sys.modules, "gymnasium", raising=False)
    with pytest.raises(ImportError, match="import gymnasium"):
        spaces.to_gymnasium(Discrete(2))
    made = []
    kinds = {name: (lambda *args, name=name: made.append((name, args))) for name in ("Box", "Discrete", "MultiDiscrete")}
    monkeypatch.setitem(sys.modules, "gymnasium", types.SimpleNamespace(spaces=types.SimpleNamespace(**kinds)))
    for space in (Discrete(2), MultiDiscrete([2, 3]), Box(0, 1, (2,))):
        spaces.to_gymnasium(space)
    assert [name for name, _ in made] == ["Discrete", "MultiDiscrete", "Box"] and made[2][1][2:] == ((2,), np.float32)
    with pytest.raises(TypeError):
        spaces.to_gymnasium(None)
