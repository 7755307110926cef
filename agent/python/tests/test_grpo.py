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
import types

import numpy as np
import pytest

import replaybus
from conftest import LAUNCH, needs_launch, until
from replaybus import weights
from test_agents import AGENTS, CONFIGS, ENVIRONMENT, sets

pytest.importorskip("torch", reason="torch is missing: ./dev install gets python3-torch")
from replaybus.torch.policy import _unpack  # noqa: E402

sys.path.append(str(AGENTS))
import grpo  # noqa: E402


def start(folder, *settings):
    short = ["launch.http=''", "report.every=500ms", "stop.time=280s", *settings]
    return subprocess.Popen([str(LAUNCH), str(CONFIGS / "grpo-small.yaml"), "--folder", str(folder), "--quiet", *sets(short)],
                            env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def ended(process, folder):
    said = process.communicate(timeout=290)[0]
    assert process.returncode == 0, said
    return json.loads((folder / "report.json").read_text())


@needs_launch
def test_it_learns(tmp_path):
    """Every group is fresh, and the share of right answers rises far above what the first right answers have taught. With keys: actors
    take work under leases, and the learner writes prompts."""
    folder = tmp_path / "run"
    report = ended(start(folder, "broker.security.mode=curve"), folder)
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


@needs_launch
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


PROMPTS, ANSWERS = 8, 4  # of an update; to a prompt
BOUND = 2 * PROMPTS  # one batch ahead


class Workers:
    """The queues, a learner's Groups at them, and what workers do there."""

    def __init__(self, room=100):
        group = {"size": ANSWERS, "deadline": "1s"}
        rollouts = replaybus.Table("rollouts", sampler="fifo", max_times_sampled=1, limiter="queue", max_size=800, max_lag=0, group=group)
        self.server = replaybus.Server([replaybus.Table.queue("prompts", room), replaybus.Table.queue("answers", 800), rollouts])
        self.client = self.server.client(timeout=60)
        self.publisher = self.client.params.publisher("policy")
        self.publisher.put(b"weights")
        run = types.SimpleNamespace(client=self.client, table="rollouts", config={"seed": 1})
        settings = types.SimpleNamespace(**{**grpo.SETTINGS, "prompts": PROMPTS, "answers": ANSWERS, "ahead": 1, "digits": 4})
        self.groups = grpo.Groups(run, settings, set(), self.publisher)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.client.close()
        self.server.stop()

    def size(self, table="prompts"):
        return self.client.info(table)["tables"][0]["size"]

    def nothing(self):
        """The learner asks for a batch, and there is none."""
        with pytest.raises((replaybus.DeadlineExceeded, replaybus.Unavailable)):
            self.groups.next(0.1)

    def take(self, n):
        """The numbers of n prompts, which leave their queue."""
        with self.client.sampler("prompts", n, in_flight=0, squeeze=True) as sampler:
            return sampler.next(60).data["number"].tolist()

    def mark(self, numbers, answers=ANSWERS):
        """Writes answers to these prompts into the last queue."""
        with self.client.writer() as writer:
            writer.set_policy(self.groups.version)
            for number in numbers:
                writer.set_group(number + 1)
                writer.append_block({"number": np.full(answers, number)}, replaybus.Last(1, "rollouts"), timeout=60)
            writer.flush(timeout=60)

    def full(self):
        """Waits for the prompts that are ahead: a busy machine may write none before the deadline. No more of them come."""
        until(lambda: self.size() >= BOUND or self.nothing())
        self.nothing()
        assert self.size() == BOUND


def test_prompts_under_way_are_bounded():
    with Workers() as workers:
        for _ in range(20):
            workers.full()
            workers.mark(workers.take(PROMPTS))
            assert len(workers.groups.next(60)) == PROMPTS * ANSWERS


@pytest.mark.parametrize("lost", ["incomplete", "stale", "queue"])
def test_prompts_that_are_lost_are_replaced(lost):
    """Otherwise the learner would wait for them, and nobody would have anything to do."""
    with Workers() as workers:
        workers.full()
        for _ in range(4):
            numbers = workers.take(BOUND)
            if lost != "queue":
                workers.mark(numbers, ANSWERS - (lost == "incomplete"))
                assert workers.size("rollouts") > 0 and workers.size() == 0
            if lost == "stale":
                workers.publisher.put(b"other weights")
            workers.full()
            assert workers.size("rollouts") == 0


def test_prompts_that_are_answered_twice_do_not_let_the_learner_run_ahead():
    """A worker died after it had written answers, and before it said so: others have answered again."""
    with Workers() as workers:
        workers.full()
        for _ in range(5):
            numbers = workers.take(PROMPTS)
            workers.mark(numbers)
            workers.mark(numbers)
            for _ in range(2):
                assert len(workers.groups.next(60)) == PROMPTS * ANSWERS
            workers.full()


def test_a_deadline_while_prompts_are_written():
    """The queue is full, or the broker is away: the learner does not wait for ever, and writes each prompt once."""
    with Workers(room=5) as workers:
        taken = []
        while len(taken) < 3 * BOUND:
            workers.nothing()
            until(lambda: workers.size() >= 3 or workers.nothing())  # a busy machine may write none before the deadline
            taken += workers.take(3)
        assert taken == list(range(len(taken)))
        workers.server.stop()
        workers.publisher.put(b"other weights")
        begun = time.monotonic()
        for _ in range(3):
            workers.nothing()
        assert time.monotonic() - begun < 30
