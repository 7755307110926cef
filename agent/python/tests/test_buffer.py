"""The replay buffer against a list in Python."""
import contextlib
import functools
import os
import shutil
import subprocess
import sys
import warnings

import numpy as np
import pytest

import replaybus
from conftest import served
from replaybus.spaces import Box, Discrete

NUMBERS = Box(-9, 9, (2,))


class Space:
    """A space as Gymnasium has it, of a kind that the package has none of."""

    def __init__(self, spaces=None, shape=None, dtype=None, **more):
        self.__dict__.update({"spaces": spaces, "shape": shape, "dtype": dtype, **more})


DICT = Space({"image": Box(0, 255, (2, 2), "uint8"), "pair": Space((Discrete(4), NUMBERS))})
ACTIONS = {"discrete": Discrete(3), "multi": Space(shape=(2,), dtype="int64"), "binary": Space(shape=(3,), dtype="int8", n=3)}


def observe(space, number):
    if space is DICT:
        return {"image": np.full((len(number), 2, 2), number[:, None, None] % 256, "uint8"),
                "pair": (number % 4, np.stack([number, -number], 1).astype("float32"))}
    return np.stack([number, -number], 1).astype("float32")


def number_of(space, observations):
    return (observations["pair"][1] if space is DICT else observations)[:, 0]


def naive(episodes, n, gamma):
    """{first observation: (last observation, return, done, discount)} of lists of (observation, reward, following, done)."""
    out = {}
    for steps in episodes:
        for i in range(len(steps)):
            window = steps[i:i + n]
            out[steps[i][0]] = (window[-1][2], sum(gamma ** k * step[1] for k, step in enumerate(window)), window[-1][3], gamma ** len(window))
    return out


@pytest.mark.parametrize("space, action, n_envs, n_step, shared, say",
                         [(NUMBERS, "discrete", 1, 1, False, True), (NUMBERS, "discrete", 3, 1, False, True), (NUMBERS, "multi", 3, 1, True, False),
                          (DICT, "binary", 2, 3, True, True), (NUMBERS, "discrete", 1, 3, False, False), (DICT, "discrete", 1, 1, False, True)])
def test_transitions(space, action, n_envs, n_step, shared, say):
    """Whole episodes of random lengths: ends that are said, and ends that only the next observation shows."""
    random = np.random.default_rng(n_envs * 10 + n_step)
    episodes = [[[]] for _ in range(n_envs)]
    now, fresh = np.arange(n_envs) * 10_000, np.arange(n_envs) * 10_000
    one = ACTIONS[action]
    with replaybus.ReplayBuffer(10_000, space, one, n_envs=n_envs, n_step=n_step, gamma=0.9, optimize_memory_usage=shared,
                                handle_timeout_termination=say, seed=5) as buffer:
        for _ in range(120):
            ends = random.choice(3, n_envs, p=[0.8, 0.1, 0.1])  # 1: terminated, 2: truncated
            reward = random.integers(0, 100, n_envs) / 4
            fresh += 1
            for i in range(n_envs):
                episodes[i][-1].append((now[i], reward[i], fresh[i], ends[i] == 1))
                if ends[i]:
                    episodes[i].append([])
            acts = np.ones((n_envs, *one.shape), one.dtype)
            truncated = ends == 2
            buffer.add(observe(space, now), observe(space, fresh), acts, reward, ends == 1, **{"truncated": truncated} if say else {})
            fresh = fresh + (ends > 0)
            now = fresh.copy()
        model = naive([episode for env in episodes for episode in env], n_step, 0.9)
        for _ in range(n_step):  # the windows that are still open
            fresh += 2
            buffer.add(observe(space, fresh), observe(space, fresh + 1), acts, np.zeros(n_envs), np.ones(n_envs, bool), truncated=np.zeros(n_envs, bool))
        batches = [buffer.sample(4000) for _ in range(3)]
    seen = {}
    for batch in batches:
        assert batch.actions.shape[1:] == ((1,) if action == "discrete" else one.shape) and (batch.actions == 1).all()
        first, last = number_of(space, batch.observations), number_of(space, batch.next_observations)
        seen |= {int(a): (int(b), float(r), bool(d), float(g)) for a, b, r, d, g in
                 zip(first, last, batch.rewards[:, 0], batch.dones[:, 0], batch.discounts[:, 0])}
    seen = {key: value for key, value in seen.items() if key in model}
    assert len(seen) == len(model) == 120 * n_envs
    for key, value in model.items():
        assert seen[key] == (value[0], pytest.approx(value[1]), value[2], pytest.approx(value[3])), key


def fill(buffer, n=50):
    for t in range(n):
        buffer.add(np.full(2, t, "float32"), np.full(2, t + 1, "float32"), t % 3, float(t), False)


def small(**options):
    return replaybus.ReplayBuffer(options.pop("size", 100), NUMBERS, Discrete(3), handle_timeout_termination=False, **options)


@pytest.mark.parametrize("options", [{}, {"prioritized": True}, {"n_envs": 2, "optimize_memory_usage": True}])
def test_same_batches(options):
    def run():
        out = []
        with small(seed=7, **options) as buffer:
            n = buffer.n_envs
            for t in range(150):
                o = np.full((n, 2), t, "float32") + np.arange(n)[:, None] * 1000
                buffer.add(o, o + 1, np.full(n, t % 3), np.full(n, t), np.zeros(n))
                batch = buffer.sample(16)
                if buffer.prioritized:
                    buffer.update_priorities(batch.keys, batch.rewards)
                out.append(b"".join(np.ascontiguousarray(part).tobytes() for part in batch if part is not batch.keys))
        return out

    assert run() == run()


def test_any_whole_number_is_a_seed():
    for seed in (-1, np.int64(3), 2**64):
        batches = []
        for _ in range(2):
            with small(seed=seed) as buffer:
                fill(buffer)
                batches.append(buffer.sample(32).rewards.tolist())
        assert batches[0] == batches[1]


def test_reset_forgets_steps_that_are_no_items_yet():
    with small(n_step=3, seed=1) as buffer:
        fill(buffer, 10)
        buffer.reset()
        for t in range(1000, 1005):
            buffer.add(np.full(2, t, "float32"), np.full(2, t + 1, "float32"), 0, 1.0, False)
        assert set(buffer.sample(200).observations[:, 0]) == {1000, 1001, 1002} and buffer.size() == 3


def test_a_program_that_does_not_close_it_leaves_no_folder():
    program = ("import replaybus, numpy as np; from replaybus.spaces import Box, Discrete; b = replaybus.ReplayBuffer(9, Box(0, 1, (2,)), Discrete(2))\n"
               "b.add(np.zeros(2), np.zeros(2), 0, 0.0, False); b.sample(2); print(b._folder)")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() and not os.path.exists(done.stdout.strip())


def test_newest_is_there_at_once():
    with small(size=1, prefetch=0) as buffer:
        for t in range(30):
            fill(buffer, 1)
            buffer.add(np.full(2, t, "float32"), np.zeros(2, "float32"), 0, t, False)
            assert (buffer.sample(3).rewards == t).all()


@pytest.mark.parametrize("prefetch", [0, 2])
def test_priorities(prefetch):
    with small(prioritized=True, alpha=0.5, beta=1.0, seed=1, prefetch=prefetch) as buffer:
        fill(buffer, 4)
        first = buffer.sample(64)
        keys = {float(r): key for r, key in zip(first.rewards[:, 0], first.keys)}
        assert len(keys) == 4
        for _ in range(2):
            buffer.update_priorities(np.array([keys[0.0], keys[1.0], keys[2.0], keys[3.0]]), np.array([[-16.0], [4], [4], [4]]))
        if prefetch:
            buffer._updater.flush(30)
            for _ in range(prefetch + 1):
                buffer.sample(4000)
        batch = buffer.sample(4000)
        share = (batch.rewards == 0).mean()
        assert abs(share - 0.4) < 0.04
        assert np.allclose(batch.weights, np.where(batch.rewards[:, 0] == 0, 0.5, 1.0), rtol=1e-3)
        assert (buffer.sample(9, beta=0.0).weights == 1).all()
    buffer = small(prioritized=True, prefetch=prefetch)
    fill(buffer, 4)
    with pytest.raises(replaybus.InvalidArgument, match="inf"):
        buffer.update_priorities(buffer.sample(1).keys, np.array([np.inf]))
        buffer._updater.flush(30)
    fill(buffer, 4)
    buffer.flush()
    assert buffer.client.info()["tables"][0]["size"] == 8
    with contextlib.suppress(replaybus.InvalidArgument):  # the updater says it again
        buffer.close()
    assert not os.path.exists(buffer._folder)


@pytest.mark.parametrize("infos, stored", [
    ([{"TimeLimit.truncated": True}, {}, {}], [0, 1, 0]),
    ({"TimeLimit.truncated": np.array([False, True, False]), "_TimeLimit.truncated": np.array([True, True, False])}, [1, 0, 0]),
    ({"final_info": np.array([{"TimeLimit.truncated": True}, {"x": 1}, None])}, [0, 1, 0]),
    ({"final_info": {"TimeLimit.truncated": np.array([True, True, False])}}, [0, 0, 0])])
def test_timeouts(infos, stored):
    with replaybus.ReplayBuffer(3, NUMBERS, Discrete(3), n_envs=3, seed=1) as buffer:
        zeros = np.zeros((3, 2), "float32")
        buffer.add(zeros, zeros, np.zeros(3, int), np.arange(3), np.array([True, True, False]), infos)
        batch = buffer.sample(100)
        assert {int(r): int(d) for r, d in zip(batch.rewards, batch.dones)} == dict(enumerate(stored))
        for unsaid in (None, {}, [{}, {}, {}], {"final_info": [None, None, None]}):
            with pytest.warns(RuntimeWarning, match="TimeLimit.truncated"):
                buffer.add(zeros, zeros, np.zeros(3, int), np.arange(3), np.array([True, True, False]), unsaid)
        assert set(buffer.sample(100).dones.ravel()) == {0, 1}
        with pytest.raises(replaybus.InvalidArgument, match="infos of 1"):
            buffer.add(zeros, zeros, np.zeros(3, int), np.arange(3), np.ones(3, bool), [{"TimeLimit.truncated": True}])
    with warnings.catch_warnings(), small() as buffer:
        warnings.simplefilter("error")
        buffer.add(zeros[0], zeros[0], 0, 1.0, True, [{}])


def test_frames_share_rows():
    """Half the memory, and the default for observations of this size."""
    used = {}
    for shape in ((4, 84, 84), (15, 16)):
        for shared in (True, False):
            with replaybus.ReplayBuffer(1000, Box(0, 255, shape, "uint8"), Discrete(2), optimize_memory_usage=shared, prefetch=0) as buffer:
                frames = np.random.default_rng(1).integers(0, 256, (101, *shape), "uint8")
                for a, b in zip(frames, frames[1:]):
                    buffer.add(a, b, 1, 1.0, False)
                batch = buffer.sample(20)
                for a, b in zip(batch.observations, batch.next_observations):
                    at = int(np.flatnonzero((frames == a).all(axis=tuple(range(1, frames.ndim))))[0])
                    assert (frames[at + 1] == b).all()
                used[shape, shared] = buffer.client.info()["tables"][0]["bytes"]
    assert used[(4, 84, 84), True] == used[(4, 84, 84), False] < 1.1 * 101 * 84 * 84 * 4
    assert used[(15, 16), True] < 0.75 * used[(15, 16), False]


@pytest.mark.parametrize("options", [{"prioritized": True}, {"n_step": 3}])
def test_saving(options, tmp_path):
    with small(seed=3, **options) as buffer:
        fill(buffer, 20)
        buffer.update_priorities(buffer.sample(8).keys, np.arange(8.0))
        buffer.save(tmp_path / "saved")
        want, size = buffer.sample(32), buffer.size()
        fill(buffer, 30)
        buffer.load(tmp_path / "saved")
        assert buffer.size() == size and buffer.pos == 20
        assert all((a == b).all() for a, b in zip(want, buffer.sample(32)))
        buffer.reset()
        assert len(buffer) == buffer.pos == 0
        fill(buffer, 40)
        assert buffer.sample(200).rewards.max() > 30
    with small(seed=4, **options) as other:
        other.load(tmp_path / "saved")
        assert other.size() == size and (other.sample(16).observations < 20).all()
        for file in [*(tmp_path / "saved").iterdir()]:
            if file.name != "buffer.json":
                shutil.rmtree(file) if file.is_dir() else file.unlink()
        with pytest.raises(replaybus.InvalidArgument, match=f"lacks files: it has 0 of {size} transitions"):
            other.load(tmp_path / "saved")
        for wrong, name in ((dict(gamma=0.5), "gamma"), (dict(n_step=2), "n_step"), (dict(prioritized=not options.get("prioritized")), "prioritized")):
            with small(**{**options, **wrong}) as different, pytest.raises(replaybus.InvalidArgument, match=f"the saved buffer has {name} "):
                different.load(tmp_path / "saved")
        with pytest.raises(replaybus.InvalidArgument, match="no folder that ReplayBuffer.save"):
            other.load(tmp_path)
        assert other.size() == size and len(other.sample(16).keys) == 16
        other.save(tmp_path / "again")
        other.load(tmp_path / "again")
    with replaybus.ReplayBuffer(9, NUMBERS, Discrete(3), **options) as buffer:  # smaller
        buffer.load(tmp_path / "again")
        assert buffer.size() == 9 == len(set(buffer.sample(500).keys))
    with replaybus.ReplayBuffer(9, Box(-9, 9, (3,)), Discrete(3), **options) as buffer:
        with pytest.raises(replaybus.InvalidArgument, match=r"spaces .*\[2\].*\[3\]"):
            buffer.load(tmp_path / "again")


@pytest.mark.parametrize("options", [{"prefetch": 0, "optimize_memory_usage": True}, {"n_step": 3}, {}])
def test_a_time_out_adds_nothing(options, monkeypatch):
    """A table takes two items, and each time-out is followed by the sample of one; then the call is repeated."""
    got, t = [], 0
    with replaybus.Server([replaybus.Table.queue("queue", 2)]) as server, server.client(timeout=60) as client:
        monkeypatch.setattr(client, "writer", functools.partial(client.writer, max_in_flight=1))
        buffer = replaybus.ReplayBuffer(0, NUMBERS, Discrete(3), n_envs=2, client=client, table="queue", handle_timeout_termination=False, **options)
        client.timeout = 0.1
        while len(got) < 10:
            try:
                if t == 5:
                    raise replaybus.DeadlineExceeded
                number = np.array([t, 10 + t])
                buffer.add(observe(NUMBERS, number), observe(NUMBERS, number + 1), number % 3, number, np.full(2, t == 4))
                t += 1
            except replaybus.DeadlineExceeded:
                with contextlib.suppress(replaybus.DeadlineExceeded):  # a busy machine may have been late
                    got.append(int(client.sample("queue", 1, timeout=1)["observations"][0, 0]))
        buffer.close()
    assert sorted(got) == [0, 1, 2, 3, 4, 10, 11, 12, 13, 14]


def test_counts(client):
    with small(size=30, n_envs=2) as buffer:
        rows = [np.zeros((20, 2, 2)), np.ones((20, 2, 2)), np.zeros((20, 2, 1), "int32"), [[0, 1]] * 20, np.zeros((20, 2))]
        buffer.extend(*(row[:14] for row in rows))
        assert (buffer.size(), buffer.pos, buffer.full, len(buffer)) == (28, 14, False, 28)
        buffer.extend(*(row[14:] for row in rows))
        assert (buffer.size(), buffer.pos, buffer.full) == (30, 5, True) and "30 of 30" in repr(buffer)
        buffer.flush()
        assert buffer.client.info()["tables"][0]["size"] == 30
        with pytest.raises(replaybus.InvalidArgument, match="20, 20, 20, 19, 20"):
            buffer.extend(*rows[:3], rows[3][1:], rows[4])
    assert "closed" in repr(buffer)
    with replaybus.ReplayBuffer(30, DICT, Discrete(3), seed=1, handle_timeout_termination=False) as buffer:
        numbers = np.arange(20)
        buffer.extend(observe(DICT, numbers), observe(DICT, numbers + 1), numbers % 3, numbers, numbers < 0)
        batch = buffer.sample(64)
        assert (number_of(DICT, batch.next_observations) == batch.rewards[:, 0] + 1).all() and len(set(batch.rewards[:, 0])) > 9
    with replaybus.ReplayBuffer(0, NUMBERS, Discrete(3), client=client, table="uniform", handle_timeout_termination=False) as shared:
        fill(shared, 10)
        assert shared.size() == 10 and shared.sample(5).observations.shape == (5, 2)
        with pytest.raises(replaybus.FailedPrecondition, match="checkpoint"):
            shared.save("nowhere")
    with pytest.raises(replaybus.InvalidArgument, match="no table 'none'"):
        replaybus.ReplayBuffer(0, NUMBERS, Discrete(3), client=client, table="none")


@pytest.mark.parametrize("prefetch", [0, 2])
def test_a_limiter_that_holds_transitions_back(caplog, prefetch):
    ratio = {"kind": "sample_to_insert_ratio", "samples_per_insert": 1, "min_size": 10, "error_buffer": 10}
    with served(replaybus.Table("replay", limiter=ratio)) as client:
        with pytest.raises(ZeroDivisionError), small(client=client, prefetch=prefetch) as buffer:
            fill(buffer, 50)
            for _ in range(5):
                assert len(buffer.sample(4).keys) == 4
            assert len(buffer) >= 20
            1 / 0
        with pytest.raises(replaybus.FailedPrecondition, match="buffer is closed"):
            buffer.sample(3)
        other = small(client=client, prefetch=prefetch)
        fill(other, 50)
        other.close(0.1)
    assert caplog.text.count("C0208") == 2


def test_mistakes():
    with pytest.raises(replaybus.InvalidArgument, match="Box, Discrete"):
        replaybus.ReplayBuffer(9, Space(), Discrete(3))
    with pytest.raises(replaybus.InvalidArgument, match="replaybus.torch"):
        replaybus.ReplayBuffer(9, NUMBERS, Discrete(3), "cuda")
    with replaybus.ReplayBuffer(9, Box(0, 255, (4, 3), "uint8"), Discrete(3)) as buffer:
        for kind in ("uint8", "int64"):
            with pytest.raises(ValueError, match="shape"):
                buffer.add(*[np.zeros((3, 4), kind)] * 2, 0, 0.0, False)
    with small() as buffer:
        with pytest.raises(replaybus.FailedPrecondition, match="empty"):
            buffer.sample(4)
        for wrong in (dict(obs=np.zeros(3)), dict(action=1.5), dict(reward="x")):
            with pytest.raises((ValueError, TypeError)):
                buffer.add(**{"obs": np.zeros(2), "next_obs": np.zeros(2), "action": 1, "reward": 0.0, "done": False, **wrong})
        fill(buffer, 3)
        assert buffer.size() == 3 and buffer.sample(4).rewards.max() <= 2
