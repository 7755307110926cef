"""Spaces of every kind, as the C programs see them; callables, options and mistakes. No broker and no extension is needed."""
import collections
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest

from replaybus import adapter, describe
from replaybus.adapter import make, subenvs, spaces
from replaybus.adapter.subenvs import Environments


class Box:
    def __init__(self, shape, dtype="float32", low=-1.0, high=1.0):
        self.shape, self.dtype = shape, np.dtype(dtype)
        self.low, self.high = np.full(shape, low), np.full(shape, high)


Discrete = collections.namedtuple("Discrete", "n start", defaults=[0])
MultiDiscrete = collections.namedtuple("MultiDiscrete", "nvec")
MultiBinary = collections.namedtuple("MultiBinary", "n")
Text = collections.namedtuple("Text", "")


class Dict:
    def __init__(self, **parts):
        self.spaces = parts


class Tuple:
    def __init__(self, *parts):
        self.spaces = parts


def stored(space, value):
    observation = spaces.observation_of(space)
    out = np.full(observation.shape, 7, observation.dtype)
    observation.write(value, out)
    return observation, out


PLANES = np.arange(3 * 8 * 6, dtype=np.uint8).reshape(3, 8, 6)


@pytest.mark.parametrize("space, value, dtype, expected", [
    (Box((2,)), [1, 2], "float32", [1, 2]),
    (Box((2,), "float64"), np.array([0.5, 2.0]), "float32", [0.5, 2]),
    (Box((), "float32"), 0.25, "float32", [0.25]),
    (Box((2, 2), "int64"), [[1, 2], [3, 4]], "float32", [[1, 2], [3, 4]]),
    (Box((3,), "bool"), [True, False, True], "float32", [1, 0, 1]),
    (Box((4,), "uint8", 0, 255), np.array([1, 2, 3, 255], np.uint8), "uint8", [1, 2, 3, 255]),
    (Box((2, 3), "uint8", 0, 255), np.ones((2, 3), np.uint8), "uint8", np.ones((2, 3, 1))),
    (Box((3, 8, 6), "uint8", 0, 255), PLANES, "uint8", PLANES.transpose(1, 2, 0)),
    (Box((8, 6, 3), "uint8", 0, 255), PLANES.reshape(8, 6, 3), "uint8", PLANES.reshape(8, 6, 3)),
    (Discrete(3), 2, "float32", [0, 0, 1]),
    (Discrete(3, start=-1), np.int64(-1), "float32", [1, 0, 0]),
    (MultiDiscrete([2, 3]), [1, 0], "float32", [0, 1, 1, 0, 0]),
    (MultiBinary(3), [1, 0, 1], "float32", [1, 0, 1]),
    (Tuple(Discrete(2), Box((2,))), (1, [0.5, 1.5]), "float32", [0, 1, 0.5, 1.5]),
    (Dict(b=Box((1,)), a=Dict(c=Box((1,), "uint8", 0, 255))), {"a": {"c": np.array([255], np.uint8)}, "b": [3.0]}, "float32", [3, 1]),
])
def test_observations(space, value, dtype, expected):
    observation, out = stored(space, value)
    assert observation.dtype == dtype and out.shape == np.shape(expected)
    np.testing.assert_allclose(out, expected)


@pytest.mark.parametrize("space, value", [
    (Box((2,)), [1.0]), (Box((2,)), [[1.0], [2.0]]), (Box((4,)), 1.0), (Box((2,)), ["a", "b"]), (Box((2,)), None),
    (Box((2,), "uint8", 0, 255), np.zeros(2)), (Discrete(3), 3), (Discrete(3), 0.5), (MultiDiscrete([2, 2]), [1]),
    (Dict(a=Box((1,))), {"b": [1.0]}), (Dict(a=Box((1,))), [1.0]), (Tuple(Box((1,))), ([1.0], [1.0])),
])
def test_observations_that_break_their_word(space, value):
    with pytest.raises(adapter.Mismatch, match="^returned"):
        stored(space, value)


def test_bytes_are_scaled_for_networks():
    assert spaces.observation_of(Box((2, 2), "uint8", 0, 255)).scale == pytest.approx(1 / 255)
    assert spaces.observation_of(Box((2, 2), "uint8", 0, 1)).scale == 1.0
    assert spaces.observation_of(Box((2, 2))).scale == 1.0


def test_actions():
    assert spaces.action_of(Discrete(4)).actions == 4 and spaces.action_of(Discrete(4)).decode(3) == 3
    assert spaces.action_of(Discrete(4, start=10)).decode(3) == 13
    grid = spaces.action_of(MultiDiscrete([2, 3]))
    assert grid.actions == 6 and [grid.decode(i).tolist() for i in (0, 1, 3, 5)] == [[0, 0], [0, 1], [1, 0], [1, 2]]
    bits = spaces.action_of(MultiBinary(3))
    assert bits.actions == 8 and bits.decode(5).tolist() == [1, 0, 1]
    box = spaces.action_of(Box((2, 1), "float64", -3, 5))
    assert (box.low, box.high) == ([-3.0, -3.0], [5.0, 5.0])
    row = np.array([1.0, 2.0], np.float32)
    action = box.decode(row)
    assert action.shape == (2, 1) and action.dtype == np.float64 and not np.shares_memory(action, row)


@pytest.mark.parametrize("space", [Box((2,), "float32", -np.inf, np.inf), Box((2,), "int32", 0, 3), Box((65,)), Box((2,), "float32", 1, 1),
                                   MultiDiscrete([100, 100]), MultiBinary(20), Text(), Dict(a=Discrete(2))])
def test_actions_that_cannot_be_used(space):
    with pytest.raises(adapter.Refused, match="its action_space"):
        spaces.action_of(space)


@pytest.mark.parametrize("space", [Text(), Dict(a=Text()), Dict(), Box((2, 0))])
def test_observations_that_cannot_be_used(space):
    with pytest.raises(adapter.Refused, match="its observation"):
        spaces.observation_of(space)


def test_spaces_are_known_by_their_attributes():
    class Numbers:
        low, high, shape, dtype = -1, 1, (2,), "float32"

    class Choice:
        n = 5

    assert spaces.kind_of(Numbers()) == "Box" and spaces.kind_of(Choice()) == "Discrete"
    assert spaces.kind_of(type("Mine", (Box,), {})((1,))) == "Box"
    one_of = type("OneOf", (), {"spaces": (Discrete(2), Discrete(3)), "__module__": "gymnasium.spaces.oneof"})
    assert spaces.kind_of(one_of()) == "OneOf"


class Walk:
    """Counts to `length`; its options show what arrived."""

    observation_space, action_space = Box((1,)), Discrete(2)
    made = []

    def __init__(self, **options):
        Walk.made.append(options)

    def reset(self, *, seed=None, options=None):
        self.seed = seed
        return [0.0], {}

    def step(self, action):
        return [1.0], 1, True, True, {}


def test_options_become_arguments():
    name = f"{__name__}:Walk"
    envs = adapter.open_environments(name, "", {"a": "1", "b": "0.5", "c": "true", "d": "null", "e": "human", "f": "nan"}, 2)
    assert Walk.made[-1] == {"a": 1, "b": 0.5, "c": True, "d": None, "e": "human", "f": "nan"}
    assert len(envs.subenvs) == 2 and not envs.together
    assert envs.spec.fields() == ("float32", (1,), 2, (), (), 0)


def test_seeds_reach_the_next_reset_only():
    envs = adapter.open_environments(f"{__name__}:Walk", "", {})
    observations, actions = np.zeros((1, 1), np.float32), np.zeros((1, 1), np.int32)
    envs.bind(observations, actions)
    subenv = envs.subenvs[0]
    subenv.seed(2 ** 40 + 5)
    subenv.reset()
    assert envs._envs[0].seed == 5
    subenv.reset()
    assert envs._envs[0].seed is None
    assert subenv.step(1) == (1, True, True) and observations[0, 0] == 1.0


class Pair:
    """A vector environment that takes one seed, and tells of its episodes as Gymnasium's wrapper does."""

    num_envs, single_observation_space, single_action_space = 2, Box((1,)), Discrete(2)
    metadata = {"autoreset_mode": "NEXT_STEP"}

    def reset(self, *, seed=None, options=None):
        assert seed is None or type(seed) is int
        self.seed = seed
        return np.zeros((2, 1), "f4"), {}

    def step(self, actions):
        episode = {"r": np.array([7.0, 0.0]), "l": np.array([3, 0]), "_r": np.array([True, False]), "_l": np.array([True, False])}
        infos = {"episode": episode, "_episode": np.array([True, False]), "speed": np.array([1.0, 3.0]), "_speed": np.array([True, True]),
                 "final_obs": np.zeros((2, 1)), "words": "no number"}
        return np.zeros((2, 1), "f4"), np.ones(2), np.array([True, False]), np.zeros(2, bool), infos


class Painter(Walk):
    """Renders a frame of two colours, or fails."""

    render_mode, metadata = "rgb_array", {"render_fps": 20}

    def render(self):
        frame = np.zeros((250, 400, 3), np.uint8)
        frame[:, 200:] = 200
        return frame


def test_frames_are_small(capsys):
    rgb, width, height, step_s = adapter.open_environments(f"{__name__}:Painter", "", {}).subenvs[0].render(96)
    image = np.frombuffer(rgb, np.uint8).reshape(height, width, 3)
    assert (width, height, step_s) == (80, 50, 0.05) and (image[:, :40] == 0).all() and (image[:, 40:] == 200).all()
    assert adapter.open_environments(f"{__name__}:Walk", "", {}).subenvs[0].render(96) is None  # it has no render_mode
    broken = adapter.open_environments(f"{__name__}:Painter", "", {})
    broken.subenvs[0].render.__self__._env.render = lambda: 1 // 0
    assert broken.subenvs[0].render(96) is None and broken.subenvs[0].render(96) is None
    assert capsys.readouterr().err.count("ZeroDivisionError") == 1  # and the run goes on without pictures


def test_a_vector_takes_one_seed_and_its_infos_are_counted():
    envs = adapter.open_environments(f"{__name__}:Pair", "", {})
    envs.bind(np.zeros((2, 1), np.float32), np.zeros((2, 1), np.int32))
    for i, subenv in enumerate(envs.subenvs):
        subenv.seed(40 + i)
    envs.subenvs[0].reset()
    assert envs._env.seed == 40
    envs.run()
    assert dict(envs.metrics(16)) == {"info/episode/r": 7.0, "info/episode/l": 3.0, "info/speed": 2.0}
    assert envs.metrics(16) == []


def test_numbers_of_infos_are_means_with_clean_names():
    infos = subenvs.Infos()
    for value in (1, 2.5, np.float32(0.5), True):
        infos.add({"my metric, really": value, "text": "x", "image": np.zeros((2, 2)), "nothing": None, "inf": float("inf")})
    assert infos.take(16) == [("info/my_metric__really", 1.25)]
    infos.add({f"m{i}": i for i in range(30)})
    assert len(infos.take(16)) == 16
    infos.add({0: 1.5, ("a", 1): 2, "x": np.arange(3.0), "_x": np.array([True, False]), "y": {"z": np.ones(2)}, "_y": "text"})
    assert infos.take(16) == [("info/0", 1.5), ("info/__a___1_", 2.0)]


@pytest.mark.parametrize("target, words", [
    ("no_such_module_at_all:make", "there is no module 'no_such_module_at_all'"), (f"{__name__}:Wlak", "did you mean 'Walk'"),
    (f"{__name__}:PLANES", "not something that can be called"), ("nonsense", "is not module:callable"), ("builtins:dict", "lacks reset"),
])
def test_callables_that_do_not_exist(target, words):
    with pytest.raises(adapter.Refused, match=words) as caught:
        adapter.open_environments(target, "", {})
    assert f"environment '{target}'" in str(caught.value)


def test_gymnasium_is_asked_for_only_when_named(monkeypatch):
    assert "gymnasium" not in sys.modules
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    monkeypatch.setitem(sys.modules, "gym", None)
    with pytest.raises((adapter.Refused, ImportError)):
        make.gym_make()
    fake = type(sys)("gymnasium")
    fake.make = lambda id, **options: Walk(id=id, **options)
    monkeypatch.setitem(sys.modules, "gymnasium", fake)
    assert isinstance(adapter.open_environments("", "Walk-v3", {"x": "2"}), Environments)
    assert Walk.made[-1] == {"id": "Walk-v3", "x": 2}


def test_description_is_yaml(tmp_path):
    (tmp_path / "mine.py").write_text(
        "import numpy as np\nprint('noise')\n"
        "class Box:\n    def __init__(self, shape, dtype, low, high):\n"
        "        self.shape, self.dtype, self.low, self.high = shape, dtype, low, high\n"
        "class Env:\n    observation_space = Box((3, 8, 6), 'uint8', 0, 255)\n    action_space = Box((2,), 'float32', -1.5, 2)\n"
        "    def reset(self, seed=None): return np.zeros((3, 8, 6), np.uint8), {}\n"
        "    def step(self, action): return np.zeros((3, 8, 6), np.uint8), 0.0, False, False, {}\n")
    package = str(pathlib.Path(adapter.__file__).absolute().parents[2])
    out = subprocess.run([sys.executable, "-m", "replaybus.describe", "--python", "mine:Env"], cwd=tmp_path, capture_output=True,
                         text=True, env=dict(os.environ, PYTHONPATH=package))
    assert out.returncode == 0, out.stderr
    assert out.stdout.splitlines() == ["dtype: uint8", "shape: [8, 6, 3]", "low: [-1.5, -1.5]", "high: [2.0, 2.0]", "max_steps: 0",
                                       "scale: 0.00392156863"]


def test_description_tries_the_environment_out():
    class Liar(Walk):
        def step(self, action):
            return [1.0, 2.0], 1.0, False, False, {}

    envs = Environments("liar", Liar, Liar(), 1)
    with pytest.raises(adapter.Refused, match=r"environment 'liar': step\(\) returned an observation of shape \(2,\)"):
        describe.try_out(envs)
