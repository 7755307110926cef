"""What the agents in torch share: transitions over n steps, and distributions over atoms; and the update of PPO."""
import pathlib
import sys
import types

import numpy as np
import pytest

import replaybus

torch = pytest.importorskip("torch", reason="torch is missing: ./dev install gets python3-torch")
sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "agents"))
import ppo  # noqa: E402
from common import Atoms, Transitions  # noqa: E402


def transitions(episode, n, discount):
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
            adder = Transitions(writer, replaybus.Last(1, "replay"), n, discount)
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
        found = client.fetch("replay", [item["key"] for item in client.items("replay")]).data
    wanted = sorted(row for episode in episodes for row in transitions(episode, n, discount))
    rows = sorted(zip(*(found[name].reshape(-1).tolist() for name in ("observation", "reward", "discount", "next_observation"))))
    assert len(rows) == len(wanted) == 60 * environments
    assert np.allclose(rows, wanted, atol=2e-4)


def test_atoms_keep_the_mean():
    atoms, rng = Atoms(-2.0, 6.0, 9), torch.Generator().manual_seed(1)
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
