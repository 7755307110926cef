"""What the agents in torch share: transitions over n steps, and distributions over atoms."""
import pathlib
import sys

import numpy as np
import pytest

import replaybus

torch = pytest.importorskip("torch", reason="torch is missing: ./dev install gets python3-torch")
sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "agents"))
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
