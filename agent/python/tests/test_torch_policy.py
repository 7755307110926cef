"""Weights of torch modules in C networks: replay-actor prints the values and actions of an episode, torch computes the same."""
import json
import subprocess

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is missing: ./dev install gets python3-torch")
from torch import nn  # noqa: E402

import replaybus  # noqa: E402
import replaybus.torch as rt  # noqa: E402
from conftest import BUILD  # noqa: E402

ACTOR = BUILD / "replay-actor"
needs_actor = pytest.mark.skipif(not ACTOR.exists(), reason="replay-actor is only in a build tree")


class Dueling(nn.Module):
    def __init__(self, inputs, actions):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(inputs, 16), nn.ReLU())
        self.value, self.advantage = nn.Linear(16, 1), nn.Linear(16, actions)

    def forward(self, x):
        x = self.body(x)
        advantage = self.advantage(x)
        return self.value(x) + advantage - advantage.mean(-1, keepdim=True)


def mlp(inputs, outputs, activation=nn.ReLU):
    return nn.Sequential(nn.Linear(inputs, 16), activation(), nn.Linear(16, 24), activation(), nn.Linear(24, outputs))


def episode(tmp_path, environment, agent, tensors):
    """What replay-actor shows of an episode without a terminal: values, and actions with observations."""
    config, weights = tmp_path / "run.yaml", tmp_path / "net.weights"
    config.write_text(json.dumps({"environment": {"name": environment}, "agent": agent,
                                  "adder": {"kind": "transition", "table": "replay"},
                                  "broker": {"tables": [{"name": "replay"}]}}))
    replaybus.weights.save(weights, {**tensors, "steps": np.array([3], "uint64")})
    out = subprocess.run([str(ACTOR), "-c", str(config), "--weights", str(weights), "--show", "--episodes", "1"],
                         capture_output=True, text=True, timeout=120)
    assert out.returncode == 0, out.stderr
    lines = out.stdout.splitlines()
    rows = np.array([line.split() for line in lines if line[:6].strip().isdigit()], float)
    assert len(rows) >= 8
    return rows[:, 3], rows[:, 4:]


@needs_actor
@pytest.mark.parametrize("agent, make", [
    ({"hidden": [16, 24], "activation": "tanh"}, lambda: mlp(4, 2, nn.Tanh)), ({"hidden": [16], "options": {"dueling": True}}, lambda: Dueling(4, 2)),
    ({"hidden": [16, 24]}, lambda: mlp(4, 2))], ids=["tanh", "dueling", "relu"])
def test_dqn(tmp_path, agent, make):
    torch.manual_seed(1)
    q = make()
    values, rest = episode(tmp_path, "CartPole-v1", {"algorithm": "dqn", **agent}, rt.policy("dqn", q=q))
    with torch.no_grad():
        expected = q(torch.tensor(rest[:, 1:], dtype=torch.float32))
    assert np.allclose(values, expected.max(1).values, rtol=2e-3, atol=2e-3)  # it prints four digits
    apart = (expected[:, 0] - expected[:, 1]).abs().numpy() > 1e-2
    assert apart.any() and np.array_equal(rest[apart, 0], expected.argmax(1).numpy()[apart])


@needs_actor
def test_sac(tmp_path):
    torch.manual_seed(2)
    policy, q1 = mlp(3, 2), mlp(4, 1)
    agent = {"algorithm": "sac", "hidden": [16, 24]}
    values, rest = episode(tmp_path, "Pendulum-v1", agent, rt.policy("sac", policy=policy, q1=q1))
    observation = torch.tensor(rest[:, 1:], dtype=torch.float32)
    with torch.no_grad():
        action = torch.tanh(policy(observation)[:, :1])
        value = q1(torch.cat([observation, action], 1))[:, 0]
    assert np.allclose(rest[:, :1], action, atol=2e-3) and np.allclose(values, value, rtol=2e-3, atol=2e-3)


@needs_actor
def test_convolution(tmp_path):
    torch.manual_seed(3)
    q = nn.Sequential(nn.Conv2d(1, 6, 3), nn.ReLU(), nn.Flatten(), nn.Linear(6 * 8 * 3, 16), nn.ReLU(), nn.Linear(16, 3))
    agent = {"algorithm": "dqn", "hidden": [16], "filters": 6}
    values, rest = episode(tmp_path, "Catch", agent, rt.policy("dqn", q=q))
    board = torch.tensor(rest[:, 1:], dtype=torch.float32).reshape(-1, 1, 10, 5)
    with torch.no_grad():
        assert np.allclose(values, q(board).max(1).values, rtol=2e-3, atol=2e-3)
        assert q(board).max(1).values.std() > 1e-2


@pytest.mark.parametrize("make", [lambda: mlp(4, 2), lambda: Dueling(4, 2), lambda: nn.Sequential(
    nn.Conv2d(2, 6, 3), nn.ReLU(), nn.Flatten(), nn.Linear(6 * 8 * 3, 16), nn.ReLU(), nn.Linear(16, 3))])
def test_there_and_back(make):
    first, second = make(), make()
    rt.load(second, replaybus.weights.decode(replaybus.weights.encode(rt.tensors_of(first, "q"))), "q")
    for a, b in zip(first.parameters(), second.parameters()):
        assert torch.equal(a, b)


def test_a_layer_that_c_networks_lack():
    for module, text in ((nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4)), "'1.weight' belongs to neither"),
                         (nn.Conv2d(1, 2, 3, stride=2), "stride 1"), (nn.Sequential(nn.Conv2d(1, 2, 3), nn.Conv2d(2, 2, 3)), "first layer")):
        with pytest.raises(replaybus.InvalidArgument, match=text):
            rt.tensors_of(module, "q")
    with pytest.raises(replaybus.InvalidArgument, match="an actor of sac needs the networks policy, q1, not q"):
        rt.policy("sac", q=nn.Linear(1, 1))
    with pytest.raises(replaybus.InvalidArgument, match="no algorithm 'ppo'"):
        rt.policy("ppo")
    with pytest.raises(replaybus.InvalidArgument, match=r"'q/layer0/weight' is \[4, 2\] in the weights and \[4, 3\] in the module"):
        rt.load(nn.Linear(4, 3), rt.tensors_of(nn.Linear(4, 2), "q"), "q")


def test_publisher(client, tmp_path):
    q = mlp(4, 2)
    with rt.Publisher(client, "dqn", q=q) as publisher:
        publisher.put(7)
        version = publisher.flush(10)
    param = client.params["policy"]
    tensors = replaybus.weights.decode(param.data)
    assert param.version == version and tensors["steps"].tolist() == [7]
    assert np.array_equal(tensors["q/layer2/weight"], q[4].weight.detach().numpy().T)
    publisher.save(tmp_path / "q.weights", 9)
    other = mlp(4, 2)
    assert rt.Publisher(client, "dqn", q=other).load(tmp_path / "q.weights") == 9
    assert all(torch.equal(a, b) for a, b in zip(q.parameters(), other.parameters()))


class Any(nn.Module):
    """A network that C programs do not have."""

    def __init__(self):
        super().__init__()
        self.cell, self.norm, self.out = nn.LSTMCell(3, 5), nn.BatchNorm1d(5), nn.Linear(5, 2)

    def forward(self, x):
        return self.out(self.norm(self.cell(x)[0]))


def train(network, adam, steps):
    torch.manual_seed(0)
    for _ in range(steps):
        adam.zero_grad()
        network(torch.randn(8, 3).to(next(network.parameters()).dtype)).square().mean().backward()
        adam.step()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_states_of_any_network_with_their_optimiser(client, tmp_path, dtype):
    """A learner that continues from a file takes the same steps as one that was not interrupted."""
    network = Any().to(dtype)
    adam = torch.optim.Adam(network.parameters(), 0.1)
    publisher = rt.States(client, policy=network).keep(adam=adam)
    train(network, adam, 3)
    publisher.save(tmp_path / "learner.weights", 3)
    publisher.put(3)
    publisher.flush(10)
    acting = Any().to(dtype)
    rt.load_states(replaybus.weights.decode(client.params["policy"].data), policy=acting)
    assert not any(name.startswith("kept/") for name in replaybus.weights.decode(client.params["policy"].data))
    assert all(torch.equal(a, b) for a, b in zip(network.state_dict().values(), acting.state_dict().values()))
    again = Any().to(dtype)
    other = torch.optim.Adam(again.parameters(), 0.5)
    assert rt.States(client, policy=again).keep(adam=other).load(tmp_path / "learner.weights") == 3
    train(network, adam, 2)
    train(again, other, 2)
    assert all(torch.equal(a, b) for a, b in zip(network.state_dict().values(), again.state_dict().values()))
    with pytest.raises(replaybus.InvalidArgument, match="'policy/weight' is not in the weights"):
        rt.load_states(replaybus.weights.load(tmp_path / "learner.weights"), policy=nn.Linear(1, 1))
