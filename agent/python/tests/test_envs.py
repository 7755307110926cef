"""The environments of the extension _agent."""
import os
import pathlib
import subprocess
import sys
import types

import numpy as np
import pytest

import replaybus
from conftest import BUILD, in_child, run_threads

envs = pytest.importorskip("replaybus.envs", reason="the extension _agent is not built here")

PLUGINS = pathlib.Path(os.environ.get("RP_PLUGIN_DIR", BUILD / "plugins"))


def action_of(env, i):
    """The action of step i, in the environment's own units."""
    space = env.action_space
    if hasattr(space, "n"):
        return i * 7 % 5 % space.n
    unit = np.array([((i * 37 + j * 11) % 21 - 10) / np.float32(10) for j in range(space.shape[0])], np.float32).astype(np.float64)
    low, high = space.low.astype(np.float64), space.high.astype(np.float64)
    return (low + 0.5 * (unit + 1) * (high - low)).astype(np.float32)


@pytest.mark.skipif(not PLUGINS.exists(), reason="needs the plug-ins of a build tree")
def test_environments_of_a_plugin():
    with envs.make("Corridor", plugin=str(PLUGINS / "env_example.so"), length=5, slip=0.5) as env:
        assert env.reset(seed=1)[0].shape == env.observation_space.shape


@pytest.mark.parametrize("name", envs.names())
def test_vector_is_n_single_environments(name):
    n, steps = 3, 250
    singles = [envs.make(name, max_episode_steps=70) for _ in range(n)]
    vector = envs.make_vec(name, n, max_episode_steps=70)
    first, info = vector.reset(seed=11)
    assert info == {}
    assert np.array_equal(first, [env.reset(seed=11 + i)[0] for i, env in enumerate(singles)])
    ended = 0
    for t in range(steps):
        actions = np.array([action_of(singles[0], t + i) for i in range(n)])
        observations, rewards, terminated, truncated, info = vector.step(actions)
        for i, env in enumerate(singles):
            observation, *rest = env.step(actions[i])
            assert rest[:3] == [rewards[i], terminated[i], truncated[i]]
            if terminated[i] or truncated[i]:
                ended += 1
                assert info["_final_obs"][i] and np.array_equal(info["final_obs"][i], observation)
                assert info["final_observation"] is info["final_obs"]
                observation = env.reset()[0]
            elif info:
                assert not info["_final_obs"][i]
            assert np.array_equal(observation, observations[i])
        assert bool(info) == bool(terminated.any() or truncated.any())
    assert ended >= n


def test_spaces_and_spec():
    env = envs.make("Pendulum-v1")
    assert env.action_space.low.tolist() == [-2.0] and env.action_space.high.tolist() == [2.0]
    assert env.observation_space.shape == (3,) and env.observation_space.dtype == np.float32
    assert (env.spec.id, env.spec.max_episode_steps, env.render_mode, env.render()) == ("Pendulum-v1", 200, None, None)
    assert envs.make("Catch").spec.max_episode_steps is None
    assert env.unwrapped is env and env.reset(seed=1)[0] in env.observation_space
    board = envs.make("Breakout")
    assert board.reset(seed=1)[0].dtype == np.uint8 and board.observation_space.contains(board.reset()[0])
    vector = envs.make_vec("Pendulum-v1", 4)
    assert vector.observation_space.shape == (4, 3) and vector.action_space.shape == (4, 1) and len(vector) == vector.num_envs == 4
    assert vector.single_action_space == env.action_space and vector.single_observation_space == env.observation_space
    assert envs.make_vec("CartPole-v1", 2).action_space.nvec.tolist() == [2, 2]


def test_truncation_is_not_termination():
    env = envs.make("Pendulum-v1", max_episode_steps=3)
    env.reset(seed=1)
    assert [env.step([0.0])[2:4] for _ in range(3)] == [(False, False), (False, False), (False, True)]
    with pytest.raises(replaybus.FailedPrecondition, match="call reset"):
        env.step([0.0])
    env.reset()
    env.step([0.0])


def test_seeds():
    env = envs.make("CartPole-v1")
    first = env.reset(seed=3)[0]
    second = env.reset()[0]
    assert not np.array_equal(first, second)
    assert np.array_equal(env.reset(seed=3)[0], first) and np.array_equal(env.reset()[0], second)
    fresh = [envs.make("CartPole-v1").reset()[0].tobytes() for _ in range(3)]
    assert len(set(fresh)) == 3
    vector = envs.make_vec("CartPole-v1", 2)
    assert np.array_equal(vector.reset(seed=[3, 3])[0], [first, first])
    assert np.array_equal(vector.reset(seed=[3, None])[0][0], first)
    for seed in (-1, 2**64):
        with pytest.raises(ValueError):
            env.reset(seed=seed)
    with pytest.raises(ValueError, match="1 seeds for 2"):
        vector.reset(seed=[1])
    with pytest.raises(TypeError):
        env.reset(seed="x")


@pytest.mark.parametrize("action", [2, -1, 1 << 40])
def test_wrong_discrete_action(action):
    env, vector = envs.make("CartPole-v1"), envs.make_vec("CartPole-v1", 2)
    env.reset(seed=1), vector.reset(seed=1)
    with pytest.raises(ValueError, match="may be 0 to 1"):
        env.step(action)
    with pytest.raises(ValueError, match="action 1 is"):
        vector.step(np.array([0, action]))
    env.step(0), vector.step([0, 1])


def test_actions_of_other_types():
    env = envs.make("CartPole-v1")
    env.reset(seed=1)
    for action in (1, np.int32(1), np.int64(0), np.array(1), np.uint8(1), True):
        env.step(action)
    for action in (1.0, None, np.array([0, 1]), "1"):
        with pytest.raises(TypeError):
            env.step(action)
    vector = envs.make_vec("CartPole-v1", 2)
    vector.reset(seed=1)
    for actions in ([0, 1], (1, 1), np.array([0, 1], np.int32), np.array([0, 9, 1, 9])[::2], np.array([0, 1], np.uint8)):
        vector.step(actions)
    for actions in ([0], [0, 1, 0], np.zeros((2, 1), int)):
        with pytest.raises(ValueError):
            vector.step(actions)
    with pytest.raises(TypeError):
        vector.step([0.0, 1.0])
    pendulum = envs.make("Pendulum-v1")
    pendulum.reset(seed=1)
    for action in ([0.5], np.array([0.5]), np.array([1], np.int64), np.array([np.nan], np.float32)):
        pendulum.step(action)
    with pytest.raises(ValueError):
        pendulum.step(0.5)


def test_reset_comes_first():
    for env in (envs.make("CartPole-v1"), envs.make_vec("CartPole-v1", 2)):
        with pytest.raises(replaybus.FailedPrecondition, match="call reset"):
            env.step([0, 0] if hasattr(env, "num_envs") else 0)


@pytest.mark.parametrize("call, error, match", [
    (lambda: envs.make("CartPol-v1"), replaybus.NotFound, "did you mean 'CartPole-v1'"),
    (lambda: envs.make("Breakout", stickey=1), replaybus.InvalidArgument, "sticky"),
    (lambda: envs.make("X", plugin="/nowhere.so"), replaybus.InputOutput, "nowhere.so"),
    (lambda: envs.make("CartPole-v1", max_episode_steps=-1), replaybus.InvalidArgument, "max_steps"),
    (lambda: envs.make_vec("CartPole-v1", 0), ValueError, ""),
    (lambda: envs.make_vec("CartPole-v1", 1, autoreset="never"), ValueError, "same_step"),
    (lambda: envs.make("CartPole-v1").reset(options={"low": 1}), ValueError, "options"),
    (lambda: envs.describe("CartPol-v1"), KeyError, "")])
def test_errors_name_the_thing(call, error, match):
    with pytest.raises(error, match=match):
        call()


@pytest.mark.parametrize("options", [{}, {"size": 20, "randomize": True, "seed": 3}])
def test_the_expert_of_deepsea_finds_the_treasure(options):
    env, size = envs.make("DeepSea", **options), options.get("size", 10)
    env.reset(seed=1)
    for step in range(size):
        _, reward, terminated, _, _ = env.step(env.expert())
        assert terminated == (step == size - 1) and abs(reward - (terminated - 0.01 / size)) < 1e-6
    with pytest.raises(replaybus.FailedPrecondition, match="call reset"):
        env.expert()
    env.reset()
    env.step(1 - env.expert())
    rewards = [env.step(env.expert())[1] for _ in range(size - 1)]
    assert rewards == [0] * (size - 1)  # the treasure is out of reach: no more costs


def test_experts_of_a_vector():
    for mode in ("same_step", "next_step"):
        env = envs.make_vec("DeepSea", 3, size=5, autoreset=mode)
        env.reset(seed=1)
        total = 0
        for _ in range(12):
            actions = env.expert()
            assert actions.shape == (3,) and actions.dtype == np.int64
            total += env.step(actions)[1].sum()
        assert abs(total - 3 * 2 * 0.99) < 0.05
    with pytest.raises(NotImplementedError, match="CartPole-v1 has no expert"):
        single = envs.make("CartPole-v1")
        single.reset(seed=1)
        single.expert()


def test_autoreset_next_step():
    env = envs.make_vec("CartPole-v1", 2, autoreset="next_step", max_episode_steps=2)
    single = envs.make("CartPole-v1", max_episode_steps=2)
    env.reset(seed=[5, 5]), single.reset(seed=5)
    for _ in range(2):
        observations, _, _, truncated, info = env.step([0, 0])
        last = single.step(0)[0]
    assert truncated.all() and info == {} and np.array_equal(observations[0], last)
    observations, rewards, terminated, truncated, _ = env.step([1, 1])
    assert np.array_equal(observations[1], single.reset()[0])
    assert not rewards.any() and not terminated.any() and not truncated.any()
    assert np.array_equal(env.step([1, 1])[0][0], single.step(1)[0])


def test_autoreset_disabled():
    env = envs.make_vec("CartPole-v1", 3, autoreset="disabled")
    with pytest.raises(replaybus.FailedPrecondition):
        env.reset(options={"reset_mask": [True, False, False]})
    env.reset(seed=1)
    done = np.zeros(3, bool)
    while not done.any():
        observations, _, terminated, truncated, info = env.step([0, 1, 0])
        done = terminated | truncated
        assert info == {}
    with pytest.raises(replaybus.FailedPrecondition, match="reset_mask"):
        env.step([0, 0, 0])
    again, _ = env.reset(options={"reset_mask": done})
    assert np.array_equal(again[~done], observations[~done]) and not np.array_equal(again[done], observations[done])
    env.step([0, 0, 0])
    with pytest.raises(ValueError, match="disabled"):
        envs.make_vec("CartPole-v1", 1).reset(options={"reset_mask": [True]})


def test_preallocated_arrays():
    env = envs.make_vec("CartPole-v1", 4, copy=False)
    first, _ = env.reset(seed=2)
    rows = [env.step([0, 1, 0, 1]) for _ in range(3)]
    assert all(array is rows[0][k] for row in rows for k, array in enumerate(row[:4])) and rows[0][0] is first
    copying = envs.make_vec("CartPole-v1", 4)
    copying.reset(seed=2)
    for _ in range(3):
        last = copying.step([0, 1, 0, 1])
    assert all(np.array_equal(one, other) for one, other in zip(last[:4], rows[-1][:4]))
    assert last[0] is not copying.step([0, 1, 0, 1])[0]
    env.close()
    assert np.array_equal(first, last[0])  # the arrays outlive the environment


def test_closes():
    for env in (envs.make("CartPole-v1"), envs.make_vec("CartPole-v1", 2)):
        assert not env.closed
        env.close()
        env.close()
        assert env.closed
        with pytest.raises(replaybus.FailedPrecondition, match="closed"):
            env.reset()
        with pytest.raises(replaybus.FailedPrecondition, match="closed"):
            env.step(0)


def test_closed_by_the_action_itself():
    env = envs.make("Pendulum-v1")
    env.reset(seed=1)

    class Closes:
        def __array__(self, *_):
            env.close()
            return np.zeros(1, np.float32)

    env.step(Closes())
    with pytest.raises(replaybus.FailedPrecondition):
        env.step([0.0])


def test_not_open():
    for kind in (envs._agent.Env, envs._agent.VectorEnv):
        with pytest.raises(replaybus.FailedPrecondition, match="not open"):
            kind().step(0)
    env = envs.make("CartPole-v1")
    with pytest.raises(replaybus.FailedPrecondition, match="already"):
        env.__init__("CartPole-v1")


def test_works_in_a_forked_child():
    env = envs.make("CartPole-v1")
    env.reset(seed=1)
    expected = envs.make("CartPole-v1")
    expected.reset(seed=1)
    want = expected.step(1)[0]
    assert np.array_equal(in_child(lambda: env.step(1)[0]), want)
    assert np.array_equal(env.step(1)[0], want)


def test_threads_take_turns():
    env = envs.make_vec("Cheetah", 8)
    env.reset(seed=1)
    actions, seen = np.zeros((8, 6), np.float32), []

    def work(i):
        for _ in range(20):
            seen.append(env.step(actions)[0].tobytes())

    assert not run_threads(4, work)
    alone = envs.make_vec("Cheetah", 8)
    alone.reset(seed=1)
    assert set(seen) == {alone.step(actions)[0].tobytes() for _ in range(80)} and len(seen) == 80


def test_to_gymnasium(monkeypatch):
    """A stand-in for gymnasium: its bases and spaces, as far as they are touched."""
    env, seeds = envs.make("CartPole-v1"), []
    monkeypatch.delitem(sys.modules, "gymnasium", raising=False)
    with pytest.raises(ImportError, match="import gymnasium"):
        envs.to_gymnasium(env)
    base = type("Base", (), {"reset": lambda self, *, seed=None, options=None: seeds.append(seed)})
    spaces = types.SimpleNamespace(Box=lambda *a: a, Discrete=lambda n: n, MultiDiscrete=lambda n: n)
    fake = types.SimpleNamespace(Env=base, spaces=spaces, vector=types.SimpleNamespace(
        VectorEnv=base, AutoresetMode=types.SimpleNamespace(SAME_STEP="same")))
    monkeypatch.setitem(sys.modules, "gymnasium", fake)
    one, many = envs.to_gymnasium(env), envs.to_gymnasium(envs.make_vec("CartPole-v1", 3))
    assert isinstance(one, base) and one.action_space == 2 and one.reset(seed=5)[0].shape == (4,) and len(one.step(1)) == 5
    assert many.num_envs == 3 and many.metadata["autoreset_mode"] == "same" and many.reset(seed=[1, 2, 3])[0].shape == (3, 4)
    assert seeds == [5]
    one.close()
    assert env.closed


def test_the_package_alone_loads_neither_openblas_nor_mujoco():
    code = ("import replaybus; maps = open('/proc/self/maps').read(); assert '_core' in maps; "
            "assert '_agent' not in maps and 'mujoco' not in maps; import replaybus.envs; "
            "assert 'mujoco' in open('/proc/self/maps').read()")
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_a_missing_extension_is_named():
    code = ("import sys; sys.modules['replaybus._agent'] = None\n"
            "import replaybus\n"
            "try:\n    import replaybus.envs\n"
            "except ImportError as error:\n    assert 'libopenblas-dev' in str(error), error\n"
            "else:\n    sys.exit('no error')\n")
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


@pytest.mark.parametrize("name, actions", [("CartPole-v1", [0, 1, 1, 0]), ("Catch", [0, 0, 1, 2])])
def test_states_repeat_an_episode(name, actions):
    """From a state, the same actions lead to the same observations: what a search relies on."""
    states = {"CartPole-v1": lambda rows: rows, "Catch": lambda rows: [[np.argmax(row) // 5, np.argmax(row) % 5, 2] for row in rows]}[name]
    with envs.make_vec(name, 3) as first, envs.make_vec(name, 3) as second:
        start, _ = first.reset(seed=5)
        assert np.array_equal(second.set_state(states(start)), start)
        for action in actions:
            for a, b in zip(first.step(np.full(3, action)), second.step(np.full(3, action))):
                assert np.allclose(a, b, atol=1e-6) if isinstance(a, np.ndarray) else a == b
        with pytest.raises(replaybus.InvalidArgument, match=f"environment {name}: these 7 numbers are none of its states"):
            second.set_state(np.zeros((3, 7)))
        with pytest.raises(ValueError, match="a row for each of 3 environments"):
            second.set_state(np.zeros(3))


def test_a_refused_state_changes_no_observation():
    with envs.make_vec("Catch", 2, autoreset="disabled", copy=False) as env:
        shown = env.set_state([[3, 3, 3], [4, 4, 4]])
        before = shown.copy()
        shown[:] = 7
        with pytest.raises(replaybus.InvalidArgument):
            env.set_state([[9, 9, 9], [4, 4, 4]])
        assert np.array_equal(env.reset(options={"reset_mask": np.array([False, True])})[0][0], before[0])
