"""The small form of GRPO: it learns, and no prompt is lost or learned twice while its workers are killed."""
import contextlib
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

import replaybus
from replaybus import weights
from test_agents import CONFIGS, LAUNCH, sets

pytest.importorskip("torch", reason="torch is missing: ./dev install gets python3-torch")
from replaybus.torch.policy import _unpack  # noqa: E402

pytestmark = pytest.mark.skipif(not LAUNCH.exists(), reason="replay-launch is only in a build tree")


def start(folder, *settings):
    path = os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])  # the run's python3 is this one
    short = ["launch.http=''", "report.every=500ms", "stop.time=280s", *settings]
    return subprocess.Popen([str(LAUNCH), str(CONFIGS / "grpo-small.yaml"), "--folder", str(folder), "--quiet", *sets(short)],
                            env={**os.environ, "PATH": path}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def ended(process, folder):
    said = process.communicate(timeout=290)[0]
    assert process.returncode == 0, said
    return json.loads((folder / "report.json").read_text())


def test_it_learns(tmp_path):
    """Every group is fresh, and the share of right answers rises far above what the first right answers have taught."""
    folder = tmp_path / "run"
    report = ended(start(folder), folder)
    first = json.loads((folder / "evaluator-0.jsonl").read_text().splitlines()[0])
    assert report["learner_steps"] == 120 and report["final_value"] > max(0.6, first["return"]), (first, report["final_value"])
    learned = [json.loads(line) for line in (folder / "learner-0.jsonl").read_text().splitlines()]
    assert all(line["policy_staleness"] <= 2 for line in learned if line.get("policy_staleness") is not None)


def status(folder):
    try:
        return json.loads((folder / "status.json").read_text())
    except (OSError, ValueError):  # not there yet
        return {"learner_steps": 0, "processes": [], "phase": ""}


def kill(pid, folder):
    """Kills a process of the run. False: it has ended already, and its number may be another's."""
    with contextlib.suppress(OSError):
        if os.fsencode(folder) in pathlib.Path(f"/proc/{pid}/environ").read_bytes():
            os.kill(pid, signal.SIGKILL)
            return True
    return False


def test_no_prompt_is_lost_when_workers_die(tmp_path):
    """Each prompt is in the learner's ledger, or still in a queue: what a worker had when it was killed, others have done."""
    folder, rng, killed = tmp_path / "run", random.Random(1), 0
    process = start(folder, "broker.folder=broker", "launch.failures=1000", "launch.backoff=10ms", "stop.learner_steps=60",
                    "agent.options.ahead=2", "broker.tables[2].max_lag=1000", "broker.tables[2].limiter={kind: queue}")  # nothing is too old
    while process.poll() is None:
        time.sleep(0.05)
        now = status(folder)
        workers = [worker["pid"] for worker in now["processes"] if worker["role"] == "actor" and worker["pid"] > 0]
        if now["learner_steps"] > 6 * killed and workers and now["phase"] == "running":
            killed += kill(rng.choice(workers), folder)
    assert ended(process, folder)["learner_steps"] == 60 and killed >= 5
    learned = _unpack(weights.load(folder / "learner.weights")["kept/ledger"])["numbers"].tolist()
    saved = replaybus.open(folder / "broker")
    waiting = {int(number) for table in saved.tables for item in saved.items(table) for number in np.ravel(item.data["number"])}
    assert len(learned) == len(set(learned)) > 800 and sorted(waiting | set(learned)) == list(range(max(waiting | set(learned)) + 1))
