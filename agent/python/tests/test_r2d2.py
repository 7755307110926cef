"""R2D2: its returns against a naive loop, its stored states against the values that acted, that nothing
is learned through a burn-in, that it learns to remember, and the demonstrations of R2D3."""
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


def play(r2d2, client, network, delay, steps, **rule):
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
            (inputs, state), *_ = r2d2.step(env, adder, network, inputs, state, after, actions)
    batch = client.fetch("uniform", [item["key"] for item in client.items("uniform")])
    starts = list(zip(np.unique(batch.session, return_inverse=True)[1].tolist(), batch.step.tolist()))
    return {name: torch.from_numpy(np.array(value)) for name, value in batch.data.items()}, starts, torch.stack(seen, 1)


def test_a_stored_state_gives_the_values_that_acted(r2d2, client):
    with envs.make_vec("Memory", N) as env:
        network = r2d2.Recurrent(env, CONFIG)
    data, starts, seen = play(r2d2, client, network, 20, 21, length=8, period=3, burn_in=4)
    with torch.no_grad():
        values, _ = network(data["observation"], data["state"])
    assert sorted(starts) == [(i, begin) for i in range(N) for begin in range(0, 18, 3)]  # of 21 steps and the last row
    for k, (i, begin) in enumerate(starts):
        assert torch.allclose(values[k][data["step_type"][k] < LAST], seen[i, begin:begin + 8], atol=1e-5)


def test_a_burn_in_makes_the_state_and_is_not_learned_through(r2d2, client):
    with envs.make_vec("Memory", N) as env:
        network = r2d2.Recurrent(env, CONFIG)
    data, *_ = play(r2d2, client, network, 20, 21, length=8, period=3, burn_in=4)
    data["state"].requires_grad_()
    data["observation"].requires_grad_()
    with torch.no_grad():
        whole, _ = network(data["observation"], data["state"])
    assert torch.allclose(r2d2.values_of(network, data, 4), whole, atol=1e-5)
    loss, *_ = r2d2.loss_of(network, copy.deepcopy(network), data, torch.ones(len(whole)), settings(r2d2), {**CONFIG, "adder.burn_in": 4})
    loss.backward()
    begins = data["step_type"][:, 0] == FIRST
    assert not data["state"].grad[~begins].any() and not data["observation"].grad[~begins, :4].any()
    assert data["observation"].grad[~begins, 4].any() and data["state"].grad[begins].any()


def test_demonstrations_are_written_once_beside_replay(r2d2, client, monkeypatch):
    monkeypatch.setattr(r2d2, "DEMONSTRATIONS", "uniform")
    run = types.SimpleNamespace(client=client, table="replay", index=0,
                                environments=lambda n: envs.make_vec("DeepSea", n, size=4, randomize=1),
                                config={**CONFIG, "adder.length": 5, "adder.period": 4, "adder.buffer_items": 32})
    with run.environments(1) as env:
        network = r2d2.Recurrent(env, run.config)
    for _ in range(2):
        r2d2.fill_once(run, r2d2.DEMONSTRATIONS, lambda: r2d2.demonstrations(run, network, 3))
    data = client.fetch("uniform", [item["key"] for item in client.items("uniform")]).data
    assert data["step_type"].tolist() == [[FIRST, MID, MID, MID, LAST]] * 3 and not data["state"].any()
    assert data["reward"].sum(1) == pytest.approx(0.99) and data["action"].dtype == "int32"
    assert r2d2.sources(run, 0.25)[1][1:] == ("demonstrations", 0.25) and len(r2d2.sources(run, 0)) == 1


def test_it_learns_to_remember(r2d2, client):
    with envs.make_vec("Memory", N) as env:
        network = r2d2.Recurrent(env, CONFIG)
    data, *_ = play(r2d2, client, network, 4, 200, length=7, period=6)
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
