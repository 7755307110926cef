"""Each agent runs for a few seconds under replay-launch with tiny settings: it acts, learns, evaluates, stops and resumes."""
import json
import os
import pathlib
import re
import subprocess
import sys

import numpy as np
import pytest

import replaybus
from conftest import LAUNCH
from replaybus import data, weights

ROOT = pathlib.Path(__file__).resolve().parents[3]
AGENTS, CONFIGS = ROOT / "agent" / "python" / "agents", ROOT / "configs" / "agents"
# The run's python3 is this one.
ENVIRONMENT = {**os.environ, "PATH": os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])}
SHARED = {"common", "continuous", "offline", "mixed_data"}  # no agents
FILE = ["stop.learner_steps=200", "agent.options.data=mixed/steps.npz"]
# Settings that make a run short: of one file of each agent. The others are only checked.
TINY = {
    "mcts-catch": ["stop.steps=800", "agent.options={simulations: 4, batch: 32}", "broker.tables[0].limiter.min_size=100"],
    "cql": FILE,
    "dqfd": ["stop.steps=1600", "stop.value=.inf", "environment.options.size=5", "adder.length=6", "adder.period=5",
             "agent.options={demonstrations: 5, pretrain: 10}"],
    "grpo-small": ["stop.learner_steps=10", "agent.options.warm_up=2"],
    "iql": FILE,
    "d4pg-pendulum": ["stop.steps=600", "actors.random_steps=100", "broker.tables[0].limiter.min_size=100"],
    "mpo-swingup": ["stop.steps=600", "actors.random_steps=100", "broker.tables[0].limiter.min_size=100"],
    "rainbow": ["stop.steps=600", "actors.count=1", "actors.environments=4", "agent.batch=16", "broker.memory_limit=1GiB",
                "broker.tables[0].limiter={kind: sample_to_insert_ratio, samples_per_insert: 4, min_size: 100, error_buffer: 600}",
                "environment.max_steps=50"],
    "ppo-cartpole": ["stop.steps=1024", "agent.options={horizon: 16, batch: 64, epochs: 2}"],
    "td3-bc": ["stop.learner_steps=200", "agent.options.data=''", "broker.folder=./mixed/table"],
    "r2d3": ["stop.steps=1600", "stop.value=.inf", "environment.options.size=5", "adder.length=6", "adder.period=2", "adder.burn_in=2",
             "agent.options={demonstrations: 5, ratio: 0.25, batch: 8}"],
    "r2d2-memory": ["stop.steps=1024", "agent.options={batch: 8}", "broker.tables[0].limiter={kind: sample_to_insert_ratio, "
                    "samples_per_insert: 4, min_size: 8, error_buffer: 64}"],
}

pytest.importorskip("torch", reason="torch is missing: ./dev install gets python3-torch")
pytestmark = pytest.mark.skipif(not LAUNCH.exists(), reason="replay-launch is only in a build tree")


def launch(tmp_path, *words):
    return subprocess.run([str(LAUNCH), *words], cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True, timeout=300)


def sets(settings):
    return [word for item in settings for word in ("--set", item)]


def test_every_agent_is_tried():
    """An agent is one file that begins by saying what it is, and has a run's file."""
    for path in AGENTS.glob("*.py"):
        text = path.read_text()
        assert len(text.splitlines()) <= 250, f"{path.name} is longer than 250 lines"
        if path.stem not in SHARED:
            assert any(config.startswith(path.stem.replace("_", "-")) for config in TINY), f"{path.name} has no row in TINY"
            said = re.match(r'#!/usr/bin/python3\n"""(.*?)"""', text, re.S)
            assert said and "What it asks of replay" in said[1] and "What it reaches" in said[1] and "python3 agent/python/agents/" in said[1]


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.yaml")), ids=lambda path: path.stem)
def test_its_file_is_right(path, tmp_path):
    out = launch(tmp_path, "check", str(path))
    assert out.returncode == 0, out.stdout + out.stderr


@pytest.fixture
def mixed(tmp_path):
    """Recorded steps for the offline agents, as a file and as a checkpoint."""
    rng, folder = np.random.default_rng(1), tmp_path / "mixed"
    folder.mkdir()
    np.savez(folder / "steps.npz", observations=rng.normal(size=(1200, 3)).astype("float32"), rewards=rng.normal(size=1200),
             actions=rng.uniform(-1, 1, (1200, 1)).astype("float32"), terminals=np.arange(1, 1201) % 50 == 0)
    with replaybus.Server([replaybus.Table("replay")], checkpoint=str(folder / "table")) as server, server.client() as client:
        data.load(client, folder / "steps.npz", "replay")
        client.checkpoint()


@pytest.mark.parametrize("name", TINY)
def test_agent(name, tmp_path, mixed):
    short = ["evaluator.episodes=2", "evaluator.every=500", "launch.http=''", "report.every=500ms", "stop.time=240s", *TINY[name]]
    out = launch(tmp_path, str(CONFIGS / f"{name}.yaml"), "--quiet", *sets(short))
    assert out.returncode == 0, out.stdout + out.stderr
    folder = tmp_path / "runs" / "latest"
    report = json.loads((folder / "report.json").read_text())
    assert report["learner_steps"] > 0 and report["final_value"] is not None and report["final_weights"] == "learner.weights"
    assert not re.search("restart|Traceback", out.stdout + out.stderr), out.stdout + out.stderr
    before = weights.load(folder / "learner.weights")
    assert int(before["steps"][0]) == report["learner_steps"] and any(tensor.startswith("kept/") for tensor in before)
    measured = launch(tmp_path, "eval", "--episodes", "3", "--json")
    assert json.loads(measured.stdout)["episodes"] == 3, measured.stdout + measured.stderr
    if name == "ppo-cartpole":
        # A learner saves by the clock. What it publishes after a restart are parameters after whole updates, for which actors wait.
        assert report["learner_steps"] == 32  # eight updates of four steps
        weights.save(folder / "learner.weights", {**before, "steps": np.array([33], "uint64")})
    key = next(key for key in ("stop.steps", "stop.learner_steps") if any(item.startswith(key) for item in short))
    limit = int(next(item for item in short if item.startswith(key)).partition("=")[2])
    made = report[key.partition(".")[2]]  # at least the limit: learners go on until the launcher has seen that they are there
    out = launch(tmp_path, "resume", "latest", "--quiet", "--set", f"{key}={made + limit}")
    assert out.returncode == 0, out.stdout + out.stderr
    after = json.loads((folder / "report.json").read_text())
    assert after["learner_steps"] > report["learner_steps"] and after["legs"] == 2
    assert name != "ppo-cartpole" or after["learner_steps"] == 64
