"""Parts of the offline agents and of DQfD, each against a simple model; and the data that they learn from."""
import importlib
import importlib.machinery
import importlib.util
import pathlib
import sys
import types

import numpy as np
import pytest

import replaybus
from replaybus import data, envs, sequences

torch = pytest.importorskip("torch", reason="torch is missing: ./dev install gets python3-torch")
AGENTS = pathlib.Path(__file__).resolve().parents[1] / "agents"
CONFIG = {"agent.hidden": [16], "agent.activation": "relu", "environment.name": "Pendulum-v1"}


@pytest.fixture
def agent(monkeypatch):
    monkeypatch.syspath_prepend(str(AGENTS))
    before = set(sys.modules)
    yield importlib.import_module
    for name in set(sys.modules) - before:
        if getattr(sys.modules[name], "__file__", None) and pathlib.Path(sys.modules[name].__file__).parent == AGENTS:
            del sys.modules[name]


def test_two_critics_are_two_networks(agent):
    offline = agent("offline")
    with envs.make_vec("Pendulum-v1", 1) as env:
        policy = offline.Policy(env, CONFIG)
    critics = offline.Critics(policy, CONFIG)
    observations, actions = torch.randn(5, 3), torch.rand(5, 1)
    x = torch.cat([observations, actions], 1)
    for i in range(2):
        hidden = (x @ critics.weights[0][i] + critics.biases[0][i]).relu()
        torch.testing.assert_close(critics(observations, actions)[i], (hidden @ critics.weights[1][i] + critics.biases[1][i])[:, 0])
    assert (critics(observations, actions)[0] != critics(observations, actions)[1]).all()


def test_discrete_actions_are_refused(agent):
    with envs.make_vec("CartPole-v1", 1) as env, pytest.raises(ValueError, match="CartPole-v1 has discrete actions"):
        agent("offline").Policy(env, {**CONFIG, "environment.name": "CartPole-v1"})


def test_cql_knows_the_probability_of_what_it_draws(agent):
    cql, offline = agent("cql"), agent("offline")
    with envs.make_vec("Pendulum-v1", 1) as env:
        policy = offline.Policy(env, CONFIG, heads=2)
    observations = torch.randn(7, 3)
    action, log_probability = cql.draw(policy, observations)
    mean, log_deviation = policy.net(observations).chunk(2, -1)
    law = torch.distributions.TransformedDistribution(torch.distributions.Normal(mean, log_deviation.exp()),
                                                      torch.distributions.TanhTransform())
    torch.testing.assert_close(log_probability, law.log_prob(action)[:, 0], atol=1e-3, rtol=1e-3)
    actions, log_probabilities = cql.others(policy, observations, torch.randn(7, 3), 4)
    assert actions.shape == (3 * 4 * 7, 1) and log_probabilities.shape == (12, 7) and actions.abs().max() <= 1


def naive_return(row, n, reward, discount, types, value):
    """The sum of up to n rewards from a row on, and the value of where that leads, as long as the episode and the sequence go on."""
    total, factor = 0.0, 1.0
    for _ in range(n):
        if types[row] >= sequences.LAST or row == len(reward) - 1:
            break
        total += factor * reward[row]
        factor *= discount[row]
        row += 1
    return total + factor * value[row]


@pytest.mark.parametrize("terminal", [True, False])
def test_dqfd_returns_end_with_the_episode_and_the_sequence(agent, terminal):
    rng = np.random.default_rng(3)
    types = np.array([[0, 1, 1, 1, 1, 1], [1, 1, 1, 2, 3, 3]], "uint8")
    reward, value = rng.normal(size=(2, 2, 6)).astype("float32")
    discount = np.full((2, 6), 0.9, "float32")
    discount[1, 2] *= not terminal
    one, many = agent("dqfd").returns(*map(torch.from_numpy, (reward, discount, types, value)), 3)
    for i, row in np.argwhere(types < sequences.LAST):
        expected = [naive_return(row, n, reward[i], discount[i], types[i], value[i]) for n in (1, 3)]
        np.testing.assert_allclose([one[i, row], many[i, row]], expected, rtol=1e-5)


def test_dqfd_ranks_the_expert_above_others_only_in_demonstrations(agent):
    dqfd = agent("dqfd")
    settings = types.SimpleNamespace(**dqfd.SETTINGS)
    q = torch.nn.Linear(2, 3)
    items = {"observation": torch.randn(2, 4, 2), "action": torch.ones(2, 4), "reward": torch.zeros(2, 4), "discount": torch.ones(2, 4),
             "step_type": torch.ones(2, 4)}
    plain, error, mask = dqfd.losses(q, q, items, torch.zeros(2, dtype=torch.bool), settings, 0.9)
    taught, _, _ = dqfd.losses(q, q, items, torch.tensor([False, True]), settings, 0.9)
    values = q(items["observation"][1])
    wanted = (values + torch.tensor([settings.margin, 0, settings.margin])).max(1).values - values[:, 1]
    torch.testing.assert_close(taught - plain, settings.margin_weight * torch.stack([torch.zeros(4), wanted]))
    assert mask.tolist() == [[True, True, True, False]] * 2 and error.shape == (2, 4)


def test_recorded_episodes_become_the_items_of_actors(agent, tmp_path):
    mixed = agent("mixed_data")
    parts = [mixed.record(None, 3, 1), mixed.record(None, 2, 1000)]
    mixed.save(tmp_path, parts)
    items = list(replaybus.open(tmp_path / "table").items("replay"))
    assert len(items) == 1000 and items[0].data.keys() == {"observation", "action", "reward", "discount", "next_observation"}
    by_step = {tuple(item.data["observation"]): item.data for item in items}
    for i in (0, 199, 200, 999):  # also the ends of episodes, which go on behind a time limit
        part, j = (parts[0], i) if i < 600 else (parts[1], i - 600)
        found = by_step[tuple(part["observations"][j])]
        assert found["reward"].shape == () and found["discount"] == 1 and found["reward"] == np.float32(part["rewards"][j])
        np.testing.assert_array_equal(found["next_observation"], part["next_observations"][j])
        assert abs(float(found["action"][0])) <= 1


def test_a_table_is_filled_once_also_after_a_kill(agent, tmp_path):
    """A learner that dies between its last insert and the end of the filling leaves items, which the next one replaces."""
    common, calls = agent("common"), []
    np.savez(tmp_path / "steps.npz", observations=np.arange(30, dtype="float32"), actions=np.arange(30), rewards=np.ones(30),
             terminals=np.arange(1, 31) % 10 == 0)
    with replaybus.Server([replaybus.Table("replay")]) as server, server.client() as client:
        def fill():
            calls.append(data.load(client, tmp_path / "steps.npz", "replay").items)
            if len(calls) < 3:
                raise KeyboardInterrupt

        learner = types.SimpleNamespace(client=client, index=0)
        common.fill_once(types.SimpleNamespace(client=client, index=1), "replay", fill)  # the first learner fills
        assert calls == []
        for _ in range(2):
            with pytest.raises(KeyboardInterrupt):
                common.fill_once(learner, "replay", fill)
        for _ in range(2):
            common.fill_once(learner, "replay", fill)
        assert calls == [30] * 3
        keys = [item["key"] for item in client.items("replay")]
        assert sorted(client.fetch("replay", keys).data["observation"].ravel()) == list(range(30))


@pytest.mark.parametrize("value, cloned, verdict", [(-200, -800, "met"), (-200, -400, "below 1.5 x BC"), (-400, -800, "MISSED"),
                                                    (-200, None, "no runs of BC")])
def test_an_offline_agent_is_compared_with_the_expert_and_with_cloning(monkeypatch, value, cloned, verdict):
    bench = AGENTS.parents[2] / "bench"
    monkeypatch.syspath_prepend(str(bench))
    loader = importlib.machinery.SourceFileLoader("learning", str(bench / "learning"))
    learning = importlib.util.module_from_spec(importlib.util.spec_from_loader("learning", loader))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    loader.exec_module(learning)

    def lines(mean):
        return {} if mean is None else {
            seed: [{"return": mean + 10 * seed, "environment_steps": 10_000, "seed": seed, "key": "k", "fingerprint": None, "seconds": 1.0}]
            for seed in (-1, 1)}

    row = learning.judge(learning.OFFLINE[0]._replace(value=-270), [-1, 1], lines(value))
    learning.compare_with_cloning(row, [-1, 1], lines(cloned), {"random": -1200.0, "expert": -200.0})
    assert row["of_expert"] == pytest.approx((value + 1200) / 1000) and learning.verdict(row) == verdict
    assert row["times_cloned"] == (None if cloned is None else pytest.approx((value + 1200) / (cloned + 1200)))
