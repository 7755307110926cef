"""A learner of one's own: what it counts, reports, publishes and saves, and how it ends."""
import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

import replaybus
import replaybus.run
from replaybus import weights

LAUNCH = pathlib.Path(replaybus._core.__file__).resolve().parents[3] / "replay-launch"

# A learner that learns nothing: it publishes a policy that balances the pole for a while.
LEARNER = """
import numpy as np, replaybus.run
from replaybus import weights

class Fixed:
    def __init__(self, client):
        self.slot = client.params.publisher(weights.SLOT)
    def tensors(self, step):
        return {"q/layer0/weight": np.array([[0, 0], [0, 0], [-1, 1], [-1, 1]], "float32"), "q/layer0/bias": np.zeros(2, "float32"),
                "q/layer1/weight": np.eye(2, dtype="float32"), "q/layer1/bias": np.zeros(2, "float32"), "steps": np.array([step], "uint64")}
    def put(self, step):
        self.slot.put(weights.encode(self.tensors(step)))
    def flush(self, timeout=None):
        return self.slot.flush(timeout)
    def save(self, path, step):
        weights.save(path, self.tensors(step))
    def load(self, path):
        return int(weights.load(path)["steps"][0])

with replaybus.run.Learner(save_every=0.1) as run:
    run.publishes(Fixed(run.client), every=5)
    for batch in run.batches(run.client.sampler(run.table, 32)):
        run.step(loss=float(batch.data["reward"].mean()), q=float("nan"))
print(run.name, run.table, run.count, run.seed, run.steps)
"""


def fill(client, n=200):
    with client.writer() as writer:
        writer.append_block({"reward": np.ones(n)}, item=replaybus.Last(1, "uniform"))


def start(client, tmp_path, **more):
    environment = {**os.environ, "REPLAY_ENDPOINT": client.endpoint, "REPLAY_TABLE": "uniform", "REPLAY_FOLDER": str(tmp_path), **more}
    return subprocess.Popen([sys.executable, "-c", LEARNER], env=environment, stdout=subprocess.PIPE, text=True)


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def await_lines(path, condition):
    deadline = time.monotonic() + 30
    while not condition(lines(path)):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def end(process, number=signal.SIGTERM):
    process.send_signal(number)
    out, _ = process.communicate(timeout=20)
    assert process.returncode == 0
    return out.split()


@pytest.fixture
def clean(client):
    """A client at a broker whose counters are 0."""
    for name in ("learner_steps", "environment_steps", "learner_end"):
        client.counter(name).add(-client.counter(name).value)
    return client


def test_a_learner_counts_reports_publishes_and_saves(clean, tmp_path):
    fill(clean)
    clean.counter("environment_steps").add(1234)
    process = start(clean, tmp_path, REPLAY_SEED="8", REPLAY_COUNT="1")
    path = tmp_path / "learner-0.jsonl"
    await_lines(path, lambda rows: len(rows) > 1 and rows[-1]["learner_steps"] > 0)
    name, table, count, seed, steps = end(process)
    assert (name, table, count, seed) == ("learner-0", "uniform", "1", "8")
    rows = lines(path)
    assert rows[-1]["learner_steps"] == int(steps) and rows[-1]["environment_steps"] == 1234 and rows[-1]["process"] == "learner-0"
    assert rows[-1]["loss"] == 1 and rows[-1]["q"] is None
    assert any(row["updates_per_second"] > 0 and row["samples_per_second"] > 0 for row in rows)
    for row in rows:
        causes = sum(value for key, value in row.items() if key.startswith("idle_"))
        assert row["wait_share"] == pytest.approx(causes, abs=1e-6) and 0 <= row["wait_share"] <= 1.001
    assert clean.counter("learner_steps").value == int(steps)
    assert clean.counter("learner_end").value == int(steps) + 1
    assert weights.load(tmp_path / "learner.weights")["steps"].tolist() == [int(steps)]
    assert weights.decode(clean.params["policy"].data)["steps"].tolist() == [int(steps)]


def test_a_learner_that_was_killed_continues(clean, tmp_path):
    fill(clean)
    process, path = start(clean, tmp_path), tmp_path / "learner-0.jsonl"
    await_lines(path, lambda rows: len(rows) > 2 and (tmp_path / "learner.weights").exists())
    process.kill()
    process.communicate()
    saved = int(weights.load(tmp_path / "learner.weights")["steps"][0])
    process, before = start(clean, tmp_path), len(lines(path))
    await_lines(path, lambda rows: len(rows) > before)
    steps = int(end(process)[-1])
    assert steps > saved > 0 and all(row["learner_steps"] >= saved for row in lines(path)[before:])
    assert clean.counter("learner_steps").value >= steps


def test_a_learner_that_waits_says_so_and_stops_at_once(clean, tmp_path):
    process = start(clean, tmp_path, REPLAY_INDEX="3")
    path = tmp_path / "learner-3.jsonl"
    await_lines(path, lambda rows: len(rows) > 1 and rows[-1]["wait_share"] > 0.9)
    begun = time.monotonic()
    assert end(process, signal.SIGINT)[-1] == "0"
    assert time.monotonic() - begun < 20
    assert lines(path)[-1]["idle_sample"] > 0.5
    assert clean.counter("learner_steps").value == 0  # only the first learner counts
    assert not (tmp_path / "learner.weights").exists()


def test_without_an_address():
    with pytest.raises(replaybus.InvalidArgument, match="REPLAY_ENDPOINT"):
        replaybus.run.Learner()


def test_an_exception_is_not_the_end_of_a_run(clean):
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(ZeroDivisionError):
        with replaybus.run.Learner(endpoint=clean.endpoint, table="uniform"):
            assert signal.getsignal(signal.SIGTERM) != before
            raise ZeroDivisionError
    assert signal.getsignal(signal.SIGTERM) == before and clean.counter("learner_end").value == 0


def test_a_restarted_broker_gets_counts_and_parameters_again(tmp_path):
    class Counting:
        steps = []

        def put(self, step):
            self.steps.append(step)

        def flush(self, timeout=None):
            return 1

        def save(self, path, step):
            pass

    publisher, tables = Counting(), [replaybus.Table("uniform")]
    server = replaybus.Server(tables)
    port = int(server.endpoint.rpartition(":")[2])
    with server.client() as client:
        client.counter("environment_steps").add(500)
        with replaybus.run.Learner(endpoint=server.endpoint, table="uniform", folder=tmp_path) as run:
            run.publishes(publisher, every=100)
            run.step()
            run.report()
            server.stop()
            with replaybus.Server(tables, port=port) as again:
                with again.client() as other:
                    deadline = time.monotonic() + 20
                    while other.counter("environment_steps").value < 500:
                        assert time.monotonic() < deadline
                        run.report()
                    assert other.counter("learner_steps").value == 1
                assert publisher.steps == [0, 1]
                run.stop()


@pytest.mark.skipif(not LAUNCH.exists(), reason="replay-launch is only in a build tree")
def test_under_the_launcher(tmp_path):
    (tmp_path / "learner.py").write_text(LEARNER)
    config = {
        "name": "own", "environment": {"name": "CartPole-v1"}, "agent": {"algorithm": "dqn", "hidden": [2]},
        "adder": {"kind": "transition", "table": "replay"}, "actors": {"count": 1, "epsilon": 0.1, "random_steps": 100},
        "learners": {"count": 1, "command": [sys.executable, "{here}/learner.py"]}, "evaluator": {"every": 1000, "episodes": 2},
        "stop": {"steps": 4000, "time": "60s"}, "report": {"every": "500ms"},
        "broker": {"tables": [{"name": "replay", "limiter": {"kind": "sample_to_insert_ratio", "samples_per_insert": 8,
                                                             "min_size": 100, "error_buffer": 800}}]}}
    (tmp_path / "run.yaml").write_text(json.dumps(config))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    out = subprocess.run([str(LAUNCH), str(tmp_path / "run.yaml")], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=90)
    assert out.returncode == 0, out.stdout + out.stderr
    report = json.loads((tmp_path / "runs" / "latest" / "report.json").read_text())
    assert report["steps"] == 4000 and report["learner_steps"] > 500
    folder = tmp_path / "runs" / "latest"
    last = lines(folder / "learner-0.jsonl")[-1]
    assert last["learner_steps"] == report["learner_steps"] and last["environment_steps"] == 4000
    assert weights.load(folder / "learner.weights")["steps"].tolist() == [report["learner_steps"]]
    rows = lines(folder / "metrics.jsonl")
    assert any(row.get("learner_idle") is not None for row in rows)
    assert report["final_weights"] == "learner.weights" and report["final_value"] > 100  # measured at the end
