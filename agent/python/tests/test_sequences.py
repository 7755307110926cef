"""Sequences: the items of SequenceAdder against a model that only knows what an item is, and against the adder in C."""
import numpy as np
import pytest

import replaybus
from conftest import fetched
from replaybus import envs
from replaybus.sequences import FIRST, LAST, MID, PADDING, priorities, trained


def naive_items(episodes, length, period):
    """Items of (begin, [(time, step type)]) of episodes, a list of (steps, has ended)."""
    for episode, (steps, ended) in enumerate(episodes):
        rows = [(t, MID if t else FIRST) for t in range(steps)] + ([(steps, LAST)] if ended else [])
        for begin in range(0, len(rows), period):
            inside = rows[begin:begin + length]
            before = begin - period + length  # rows that the item before has reached
            if len(inside) == length or ended and (begin == 0 or before < len(rows)):
                yield episode, begin, inside + [(0, PADDING)] * (length - len(inside))


def play(rng, adder, n, steps, ends):
    """Random episodes of n environments. Returns the (steps, has ended) of each."""
    episodes = [[[0, False]] for _ in range(n)]
    made = 0
    for _ in range(steps):
        at = np.array([[i, len(of) - 1, of[-1][0]] for i, of in enumerate(episodes)], "float32")
        end, terminal = rng.random(n) < ends, rng.random(n) < 0.5
        made += adder.add({"observation": {"at": at}, "action": at[:, 2].astype("int32") + 1, "state": at + 100}, end & terminal, end & ~terminal,
                          {"at": at + [0, 0, 1]} if end.any() else None)
        for i, of in enumerate(episodes):
            of[-1] = [of[-1][0] + 1, bool(end[i])]
            if end[i]:
                of.append([0, False])
    return episodes, made


@pytest.mark.parametrize("seed", range(12))
def test_items_are_those_of_the_model(client, seed):
    rng = np.random.default_rng(seed)
    n, length = int(rng.integers(1, 5)), int(rng.integers(1, 12))
    burn_in = int(rng.integers(0, length))
    period = int(rng.integers(1, length - burn_in + 1))
    with client.sequence_adder(n, "uniform", length=length, period=period, burn_in=burn_in, start=["state"],
                               chunk_length=int(rng.integers(0, 6))) as adder:
        episodes, made = play(rng, adder, n, 60, rng.choice([0.02, 0.1, 0.5]))
    want = {(i, episode, begin): rows for i in range(n) for episode, begin, rows in naive_items(episodes[i], length, period)}
    assert made == len(want) == client.info()["tables"][1]["size"]
    got, taken = fetched(client, "uniform"), set()
    for k, at in enumerate(got["observation"]["at"]):
        i, episode, begin = at[0].astype(int)
        rows = want.pop((i, episode, begin))
        assert [kind for _, kind in rows] == got["step_type"][k].tolist()
        assert got["state"][k].tolist() == ((at[0] + 100).tolist() if rows[0][1] != LAST else [0, 0, 0])
        for row, (time, kind) in enumerate(rows):
            assert at[row].tolist() == ([i, episode, time] if kind != PADDING else [0, 0, 0])
            assert got["action"][k, row] == (time + 1 if kind in (FIRST, MID) else 0)
        taken |= {(i, episode, begin + row) for row in np.flatnonzero(trained(got["step_type"], burn_in)[k])}
    # Every step of an episode that has ended is trained on.
    assert taken >= {(i, episode, t) for i in range(n) for episode, (steps, ended) in enumerate(episodes[i]) if ended for t in range(steps)}


def test_the_adder_in_c_makes_the_same_items(client):
    config = {"environment": {"name": "CartPole-v1"}, "agent": {"algorithm": "impala"}, "stop": {"steps": 10_000},
              "adder": {"kind": "sequence", "table": "uniform", "length": 7, "period": 4}, "broker": {"tables": [replaybus.Table("uniform")]}}
    with envs.make("CartPole-v1") as env, client.sequence_adder(1, "replay", length=7, period=4) as adder:
        with replaybus.Actor(client.endpoint, config, env=env, wait=False) as actor:
            observation, _ = env.reset(seed=1)
            actor.observe_first(observation)
            for _ in range(200):
                action = actor.act(observation)
                following, reward, terminated, truncated, _ = env.step(action)
                actor.observe(reward, terminated, truncated, following)
                adder.add({"observation": observation[None], "action": np.array([action], "int32"), "reward": np.array([reward], "float32")},
                          [terminated], [truncated], following[None])
                observation = following
                if terminated or truncated:
                    observation, _ = env.reset()
                    actor.observe_first(observation)
    ours, theirs = fetched(client, "replay"), fetched(client, "uniform")
    assert len(ours["reward"]) > 40 and {LAST, PADDING} <= set(ours["step_type"].flat)
    for name, values in ours.items():
        assert values.dtype == theirs[name].dtype and np.array_equal(values, theirs[name]), name


def test_overlapping_items_share_their_rows():
    """Ten items hold each step, and the broker once: all its memory is at most 1.1 times the bytes of the steps."""
    n, steps, rng = 4, 400, np.random.default_rng(1)
    with replaybus.Server([replaybus.Table("replay")], mode="thread") as server, server.client(timeout=60) as client:
        with client.sequence_adder(n, "replay", length=80, period=8, burn_in=20, start=["state"]) as adder:
            for _ in range(steps):
                step = {"observation": rng.integers(0, 256, (n, 48, 48), "uint8"), "action": rng.integers(0, 9, n),
                        "reward": rng.random(n, "float32")}
                items = adder.add({**step, "state": rng.random((n, 2, 64), "float32")})
        info = client.info()
    row = 48 * 48 + 8 + 4 + 4 + 1  # observation, action, reward, discount, step type: without the state, which items' starts alone keep
    assert items == n and info["tables"][0]["size"] == n * (1 + (steps - 80) // 8)
    assert n * steps * row < info["server"]["memory_bytes"] <= 1.1 * n * steps * row


def test_what_is_no_sequence_is_refused(client):
    for length, period, burn_in, why in ((0, 1, 0, "length is 0"), (4, 0, 0, "period is 0"), (4, 1, 4, "burn_in is 4; it may be 0 to 3"),
                                         (5, 10, 0, "period is 10; it may be at most length - burn_in, 5")):
        with pytest.raises(replaybus.InvalidArgument, match=why):
            client.sequence_adder(1, "replay", length=length, period=period, burn_in=burn_in)
    with client.sequence_adder(2, "replay", length=2, period=1, start=["state"]) as adder:
        with pytest.raises(replaybus.InvalidArgument, match="needs observation, state, and this one has observation$"):
            adder.add({"observation": np.zeros(2)})
        rows = {"observation": np.zeros(2), "state": np.zeros(2)}
        with pytest.raises(replaybus.InvalidArgument, match="give the last observations"):
            adder.add(rows, [True, False])
        assert adder.add(rows, [True, False], last=np.ones(2)) == 1


def test_priorities_of_sequences():
    errors, mask = np.array([[1.0, -3.0, 8.0], [5.0, 5.0, 5.0]]), np.array([[1, 1, 0], [0, 0, 0]], bool)
    assert priorities(errors, mask).tolist() == pytest.approx([0.9 * 3 + 0.1 * 2, 0])
    torch = pytest.importorskip("torch")
    assert priorities(torch.tensor(errors), torch.tensor(mask)).tolist() == pytest.approx([2.9, 0])
    types = np.array([[FIRST, MID, MID], [MID, MID, LAST], [MID, LAST, PADDING]], "uint8")
    assert trained(types, 1).tolist() == trained(torch.tensor(types), 1).tolist() == [[True] * 3, [False, True, False], [False] * 3]
