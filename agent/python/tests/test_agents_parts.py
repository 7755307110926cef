"""Parts of the agents in torch, each against a simple model; and the data that offline agents learn from."""
import copy
import pathlib
import sys
import types

import numpy as np
import pytest

import replaybus
from conftest import fetched
from replaybus import data, envs
from replaybus.sequences import FIRST, LAST, MID, PADDING

torch = pytest.importorskip("torch", reason="torch is missing: ./dev install gets python3-torch")
AGENTS = pathlib.Path(__file__).resolve().parents[1] / "agents"
sys.path.append(str(AGENTS))
import common  # noqa: E402
import continuous  # noqa: E402
import cql  # noqa: E402
import dqfd  # noqa: E402
import mixed_data  # noqa: E402
import offline  # noqa: E402
import ppo  # noqa: E402
import r2d2  # noqa: E402

CONTINUOUS = {"agent.hidden": [16], "agent.activation": "relu", "environment.name": "Pendulum-v1"}
CONFIG = {"agent.hidden": [16], "agent.discount": 0.9, "adder.length": 7, "adder.burn_in": 0}
N, SETTINGS = 6, types.SimpleNamespace(**r2d2.SETTINGS)
torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(1)


def naive_transitions(episode, n, discount):
    """A naive model: (first, rewards, discount, last) of each transition of (step number, reward) pairs and an end."""
    steps, last, terminal = episode
    for t in range(len(steps)):
        taken = steps[t:t + n]
        whole = t + n < len(steps)
        total = sum(discount**i * reward for i, (_, reward) in enumerate(taken))
        left = 0.0 if terminal and not whole else discount**(len(taken) - 1)
        yield steps[t][0], total, left, steps[t + n][0] if whole else last


@pytest.mark.parametrize("n", [1, 3, 5])
def test_transitions_are_those_of_a_naive_model(n):
    rng, discount, environments = np.random.default_rng(n), 0.9, 3
    episodes, running, counter = [], [[] for _ in range(environments)], iter(range(1, 10**6))
    with replaybus.Server([replaybus.Table("replay")]) as server, server.client() as client:
        with client.writer(max_in_flight=4) as writer:
            adder = continuous.Transitions(writer, replaybus.Last(1, "replay"), n, discount)
            now = np.array([[next(counter)] for _ in range(environments)], "float32")
            for t in range(60):
                rewards, following = rng.normal(size=environments), np.array([[next(counter)] for _ in range(environments)], "float32")
                terminated, truncated = rng.random((2, environments)) < 0.15
                ended = terminated | truncated | (t == 59)
                adder.add(now, now, rewards, following, terminated, ended)
                for i in range(environments):
                    running[i].append((now[i, 0], rewards[i]))
                    if ended[i]:
                        episodes.append((running[i], following[i, 0], terminated[i]))
                        running[i] = []
                now = np.where(ended[:, None], [[next(counter)] for _ in range(environments)], following).astype("float32")
        found = fetched(client, "replay")
    wanted = sorted(row for episode in episodes for row in naive_transitions(episode, n, discount))
    rows = sorted(zip(*(found[name].reshape(-1).tolist() for name in ("observation", "reward", "discount", "next_observation"))))
    assert len(rows) == len(wanted) == 60 * environments
    assert np.allclose(rows, wanted, atol=2e-4)


def test_atoms_keep_the_mean():
    atoms, rng = common.Atoms(-2.0, 6.0, 9), torch.Generator().manual_seed(1)
    share = torch.rand(32, 9, generator=rng).softmax(1)
    reward, discount = torch.rand(32, generator=rng) * 0.4, torch.full((32,), 0.9)
    out = atoms.project(reward, discount, share)
    assert torch.allclose(out.sum(1), torch.ones(32), atol=1e-5) and (out >= 0).all()
    assert torch.allclose(out @ atoms.values, reward + discount * (share @ atoms.values), atol=1e-4)
    beyond = atoms.project(torch.full((32,), 100.0), discount, share)  # all of it goes to the highest atom
    assert torch.allclose(beyond[:, -1], torch.ones(32), atol=1e-5)


class Spaces:
    """An environment of two observations and two actions, as far as a policy looks at it."""
    single_observation_space, single_action_space = types.SimpleNamespace(shape=(2,)), types.SimpleNamespace(n=2)


@pytest.mark.parametrize("count", [1, 2, 5])
def test_ppo_learns_from_a_minibatch_of_any_size(count):
    """The last minibatch of an epoch may be one row, whose advantages have no deviation: it is taken as it is."""
    torch.manual_seed(1)
    policy = ppo.Policy(Spaces, {"agent.hidden": [8], "agent.activation": "tanh"})
    before = {name: value.clone() for name, value in policy.state_dict().items()}
    adam, settings = torch.optim.Adam(policy.parameters(), 1e-2), types.SimpleNamespace(value=0.5, entropy=0.0)
    rows = dict(observation=torch.randn(count, 2), action=torch.ones(count, dtype=torch.int64), advantage=torch.arange(1.0, count + 1),
                target=torch.zeros(count))
    with torch.no_grad():
        rows["log_probability"] = policy.distribution(rows["observation"]).log_prob(rows["action"])
    losses = ppo.update(policy, adam, rows, 0.2, settings, 0.5)
    # Ratios are 1 before the first update, so the loss is the advantage's mean: 1 of one row, 0 of normalised ones.
    assert float(losses["policy_loss"]) == pytest.approx(-1.0 if count == 1 else 0.0, abs=1e-5)
    assert all(torch.isfinite(value).all() for value in policy.state_dict().values())
    assert not torch.equal(policy.policy[-1].bias, before["policy.2.bias"])


@pytest.mark.parametrize("n_step", [1, 3, 20])
def test_returns_are_those_of_a_naive_loop(n_step):
    kinds = np.array([[FIRST, MID, MID, MID, MID], [MID, MID, LAST, PADDING, PADDING], [MID, MID, MID, MID, LAST]], "uint8")
    rng = np.random.default_rng(1)
    steps, values = kinds < LAST, rng.normal(size=kinds.shape)
    reward, discount = rng.normal(size=kinds.shape) * steps, steps * 1.0
    discount[1, 1] = 0  # terminal; the third sequence ends by a time limit
    items = {name: torch.tensor(value) for name, value in dict(step_type=kinds, reward=reward, discount=discount).items()}
    got = common.returns(items, torch.tensor(values), 0.9, n_step)
    for i, t in zip(*np.nonzero(steps[:, :-1])):
        total, factor, at = 0.0, 1.0, t
        while at < t + n_step and at < 4 and steps[i, at]:
            total += factor * reward[i, at]
            factor *= 0.9 * discount[i, at]
            at += 1
        assert got[i, t].item() == pytest.approx(total + factor * values[i, at])


def test_two_critics_are_two_networks():
    with envs.make_vec("Pendulum-v1", 1) as env:
        policy = offline.Policy(env, CONTINUOUS)
    critics = offline.Critics(policy, CONTINUOUS)
    observations, actions = torch.randn(5, 3), torch.rand(5, 1)
    x = torch.cat([observations, actions], 1)
    for i in range(2):
        hidden = (x @ critics.weights[0][i] + critics.biases[0][i]).relu()
        torch.testing.assert_close(critics(observations, actions)[i], (hidden @ critics.weights[1][i] + critics.biases[1][i])[:, 0])
    assert (critics(observations, actions)[0] != critics(observations, actions)[1]).all()


@pytest.mark.parametrize("key, targets", [(0, [0.5, 0.75, 0.875, 0.9375]), (0.25, [0.25, 0.4375, 0.578125, 0.68359375]),
                                          (1, [1] * 4), (2, [1, 1, 3, 3])])
def test_targets_follow_as_the_key_says(key, targets):
    target, module = torch.nn.Linear(1, 1, bias=False), torch.nn.Linear(1, 1, bias=False)
    target.weight.data.fill_(0), module.weight.data.fill_(1)
    for steps, wanted in enumerate(targets):
        common.track(types.SimpleNamespace(config={"agent.target": key}, steps=steps), [target], [module], 0.5)
        assert float(target.weight.detach()) == wanted
        module.weight.data += key == 2
    if key >= 1:
        with pytest.raises(ValueError, match="multiple of policy_delay, 3"):
            common.track(types.SimpleNamespace(config={"agent.target": key}, steps=0), [target], [module], 0.5, delay=3)


def test_discrete_actions_are_refused():
    with envs.make_vec("CartPole-v1", 1) as env, pytest.raises(ValueError, match="CartPole-v1 has discrete actions"):
        offline.Policy(env, {**CONTINUOUS, "environment.name": "CartPole-v1"})


def test_cql_knows_the_probability_of_what_it_draws():
    with envs.make_vec("Pendulum-v1", 1) as env:
        policy = offline.Policy(env, CONTINUOUS, heads=2)
    observations = torch.randn(7, 3)
    action, log_probability = cql.draw(policy, observations)
    mean, log_deviation = policy.net(observations).chunk(2, -1)
    law = torch.distributions.TransformedDistribution(torch.distributions.Normal(mean, log_deviation.exp()),
                                                      torch.distributions.TanhTransform())
    torch.testing.assert_close(log_probability, law.log_prob(action)[:, 0], atol=1e-3, rtol=1e-3)
    actions, log_probabilities = cql.others(policy, observations, torch.randn(7, 3), 4)
    assert actions.shape == (3 * 4 * 7, 1) and log_probabilities.shape == (12, 7) and actions.abs().max() <= 1


def test_dqfd_ranks_the_expert_above_others_only_in_demonstrations():
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


def test_recorded_episodes_become_the_items_of_actors(tmp_path):
    parts = [mixed_data.record(None, 3, 1), mixed_data.record(None, 2, 1000)]
    mixed_data.save(tmp_path, parts)
    items = list(replaybus.open(tmp_path / "table").items("replay"))
    assert len(items) == 1000 and items[0].data.keys() == {"observation", "action", "reward", "discount", "next_observation"}
    by_step = {tuple(item.data["observation"]): item.data for item in items}
    for i in (0, 199, 200, 999):  # also the ends of episodes, which go on behind a time limit
        part, j = (parts[0], i) if i < 600 else (parts[1], i - 600)
        found = by_step[tuple(part["observations"][j])]
        assert found["reward"].shape == () and found["discount"] == 1 and found["reward"] == np.float32(part["rewards"][j])
        np.testing.assert_array_equal(found["next_observation"], part["next_observations"][j])
        assert abs(float(found["action"][0])) <= 1


def test_a_table_is_filled_once_also_after_a_kill(tmp_path):
    """A learner that dies between its last insert and the end of the filling leaves items, which the next one replaces."""
    calls = []
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
        assert sorted(fetched(client, "replay")["observation"].ravel()) == list(range(30))


@pytest.fixture
def network():
    with envs.make_vec("Memory", N) as env:
        return r2d2.Recurrent(env, CONFIG)


def test_rescaling_has_an_inverse():
    x = torch.tensor([-300.0, -1.0, 0.0, 0.01, 20.0, 1e4], dtype=torch.float64)
    assert torch.allclose(r2d2.unsquash(r2d2.squash(x, True), True), x, rtol=1e-6)
    assert r2d2.squash(x, False) is x


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
            (inputs, state), *_ = r2d2.step(env, adder, network, inputs, state, after, actions)
    batch = client.fetch("uniform", [item["key"] for item in client.items("uniform")])
    starts = list(zip(np.unique(batch.session, return_inverse=True)[1].tolist(), batch.step.tolist()))
    return {name: torch.from_numpy(np.array(value)) for name, value in batch.data.items()}, starts, torch.stack(seen, 1)


def test_a_stored_state_gives_the_values_that_acted(client, network):
    data, starts, seen = play(client, network, 20, 21, length=8, period=3, burn_in=4)
    with torch.no_grad():
        values, _ = network(data["observation"], data["state"])
    assert sorted(starts) == [(i, begin) for i in range(N) for begin in range(0, 18, 3)]  # of 21 steps and the last row
    for k, (i, begin) in enumerate(starts):
        assert torch.allclose(values[k][data["step_type"][k] < LAST], seen[i, begin:begin + 8], atol=1e-5)


def test_a_burn_in_makes_the_state_and_is_not_learned_through(client, network):
    data, *_ = play(client, network, 20, 21, length=8, period=3, burn_in=4)
    data["state"].requires_grad_()
    data["observation"].requires_grad_()
    with torch.no_grad():
        whole, _ = network(data["observation"], data["state"])
    assert torch.allclose(r2d2.values_of(network, data, 4), whole, atol=1e-5)
    loss, *_ = r2d2.loss_of(network, copy.deepcopy(network), data, torch.ones(len(whole)), SETTINGS, {**CONFIG, "adder.burn_in": 4})
    loss.backward()
    begins = data["step_type"][:, 0] == FIRST
    assert not data["state"].grad[~begins].any() and not data["observation"].grad[~begins, :4].any()
    assert data["observation"].grad[~begins, 4].any() and data["state"].grad[begins].any()


def test_demonstrations_are_written_once_beside_replay(client, monkeypatch):
    monkeypatch.setattr(r2d2, "DEMONSTRATIONS", "uniform")
    run = types.SimpleNamespace(client=client, table="replay", index=0,
                                environments=lambda n: envs.make_vec("DeepSea", n, size=4, randomize=1),
                                config={**CONFIG, "adder.length": 5, "adder.period": 4, "adder.buffer_items": 32})
    with run.environments(1) as env:
        network = r2d2.Recurrent(env, run.config)
    for _ in range(2):
        r2d2.fill_once(run, r2d2.DEMONSTRATIONS, lambda: r2d2.demonstrations(run, network, 3))
    data = fetched(client, "uniform")
    assert data["step_type"].tolist() == [[FIRST, MID, MID, MID, LAST]] * 3 and not data["state"].any()
    assert data["reward"].sum(1) == pytest.approx(0.99) and data["action"].dtype == "int32"
    assert r2d2.sources(run, 0.25)[1][1:] == ("demonstrations", 0.25) and len(r2d2.sources(run, 0)) == 1


def test_it_learns_to_remember(client, network):
    data, *_ = play(client, network, 4, 200, length=7, period=6)
    target, adam, rng = copy.deepcopy(network), torch.optim.Adam(network.parameters(), 5e-3), np.random.default_rng(1)
    network.scale(data["observation"][data["step_type"] < LAST], 1)
    for step in range(250):
        rows = torch.from_numpy(rng.integers(0, len(data["reward"]), 32))
        loss, errors, mask = r2d2.loss_of(network, target, {name: value[rows] for name, value in data.items()}, torch.ones(32),
                                          SETTINGS, CONFIG)
        r2d2.descend(adam, loss)
        if step % 20 == 0:
            target.load_state_dict(network.state_dict())
    assert not errors[~mask].any() and not mask[:, 5:].any()  # neither LAST nor padding
    with torch.no_grad():
        answers = network(data["observation"], data["state"])[0][:, 4].argmax(1)
    assert (answers == (data["observation"][:, 0, 1] > 0)).float().mean() > 0.95
