"""R2D2: its returns against a naive loop, its stored states against the values that acted, and that it learns to remember."""
import copy
import importlib
import pathlib
import sys
import types

import numpy as np
import pytest

from replaybus import envs
from replaybus.sequences import FIRST, LAST, MID, PADDING

torch = pytest.importorskip("torch", reason="torch is missing: ./dev install gets python3-torch")
CONFIG = {"agent.hidden": [16], "agent.discount": 0.9, "adder.length": 7, "adder.burn_in": 0}
N = 6


@pytest.fixture(scope="module")
def r2d2():
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "agents"))
    torch.set_num_threads(1)
    torch.manual_seed(1)
    return importlib.import_module("r2d2")


def settings(r2d2, **changes):
    return types.SimpleNamespace(**{**r2d2.SETTINGS, **changes})


def test_rescaling_has_an_inverse(r2d2):
    x = torch.tensor([-300.0, -1.0, 0.0, 0.01, 20.0, 1e4], dtype=torch.float64)
    assert torch.allclose(r2d2.unsquash(r2d2.squash(x, True), True), x, rtol=1e-6)
    assert r2d2.squash(x, False) is x


@pytest.mark.parametrize("n_step", [1, 3, 20])
def test_returns_are_those_of_a_naive_loop(r2d2, n_step):
    types_ = np.array([[FIRST, MID, MID, MID, MID], [MID, MID, LAST, PADDING, PADDING], [MID, MID, MID, MID, LAST]], "uint8")
    rng = np.random.default_rng(1)
    steps, values = types_ < LAST, rng.normal(size=types_.shape)
    reward, discount = rng.normal(size=types_.shape) * steps, steps * 1.0
    discount[1, 1] = 0  # terminal; the third sequence ends by a time limit
    data = {name: torch.tensor(value) for name, value in dict(step_type=types_, reward=reward, discount=discount).items()}
    got = r2d2.targets(data, torch.tensor(values), settings(r2d2, n_step=n_step), 0.9)
    for i, t in zip(*np.nonzero(steps[:, :-1])):
        total, factor, at = 0.0, 1.0, t
        while at < t + n_step and at < 4 and steps[i, at]:
            total += factor * reward[i, at]
            factor *= 0.9 * discount[i, at]
            at += 1
        assert got[i, t].item() == pytest.approx(total + factor * values[i, at])


def play(client, network, delay, steps, **rule):
    """Random steps of Memory, as the actor takes them. Returns the items, the environment and the step that each begins with, and the
    values of all actions by environment and step."""
    env, rng, seen = envs.make_vec("Memory", N, length=delay), np.random.default_rng(1), []
    with env, client.sequence_adder(N, "uniform", start=["state"], **rule) as adder:
        inputs, state = network.input(env.reset(seed=1)[0]), network.start(N)
        for _ in range(steps):
            with torch.no_grad():
                values, after = network(torch.from_numpy(inputs)[:, None], state)
            seen.append(values[:, 0])
            actions = rng.integers(0, 2, N)
            observations, rewards, terminated, truncated, info = env.step(actions)
            last = network.input(info["final_obs"], actions, rewards) if "final_obs" in info else None
            adder.add({"observation": inputs, "action": actions, "reward": rewards.astype("float32"), "state": state.numpy()}, terminated,
                      truncated, last)
            inputs, state = network.input(observations, actions, rewards), after
            inputs[terminated, 2:] = 0
            state[torch.from_numpy(terminated)] = 0
    batch = client.fetch("uniform", [item["key"] for item in client.items("uniform")])
    starts = list(zip(np.unique(batch.session, return_inverse=True)[1].tolist(), batch.step.tolist()))
    return {name: torch.from_numpy(np.array(value)) for name, value in batch.data.items()}, starts, torch.stack(seen, 1)


def test_a_stored_state_gives_the_values_that_acted(r2d2, client):
    with envs.make_vec("Memory", N) as env:
        network = r2d2.Recurrent(env, CONFIG)
    data, starts, seen = play(client, network, 20, 21, length=8, period=3, burn_in=4)
    with torch.no_grad():
        values, _ = network(data["observation"], data["state"])
    assert sorted(starts) == [(i, begin) for i in range(N) for begin in range(0, 18, 3)]  # of 21 steps and the last row
    for k, (i, begin) in enumerate(starts):
        assert torch.allclose(values[k][data["step_type"][k] < LAST], seen[i, begin:begin + 8], atol=1e-5)


def test_it_learns_to_remember(r2d2, client):
    with envs.make_vec("Memory", N) as env:
        network = r2d2.Recurrent(env, CONFIG)
    data, *_ = play(client, network, 4, 200, length=7, period=6)
    target, adam, rng = copy.deepcopy(network), torch.optim.Adam(network.parameters(), 5e-3), np.random.default_rng(1)
    network.scale(data["observation"][data["step_type"] < LAST], 1)
    for step in range(250):
        rows = torch.from_numpy(rng.integers(0, len(data["reward"]), 32))
        loss, errors, mask = r2d2.loss_of(network, target, {name: value[rows] for name, value in data.items()}, torch.ones(32),
                                          settings(r2d2), CONFIG)
        adam.zero_grad()
        loss.backward()
        adam.step()
        if step % 20 == 0:
            target.load_state_dict(network.state_dict())
    assert not errors[~mask].any() and not mask[:, 5:].any()  # neither LAST nor padding
    with torch.no_grad():
        answers = network(data["observation"], data["state"])[0][:, 4].argmax(1)
    assert (answers == (data["observation"][:, 0, 1] > 0)).float().mean() > 0.95
