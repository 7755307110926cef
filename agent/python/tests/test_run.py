"""Programs of one's own: what they count, report, publish and save, and how they end."""
import json
import os
import signal
import subprocess
import sys
import threading
import time
from unittest import mock

import numpy as np
import pytest

import replaybus
import replaybus.run
from conftest import LAUNCH, insert_rows, needs_launch, until
from replaybus import weights

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


def start(client, tmp_path, **more):
    environment = {**os.environ, "REPLAY_ENDPOINT": client.endpoint, "REPLAY_TABLE": "uniform", "REPLAY_FOLDER": str(tmp_path), **more}
    return subprocess.Popen([sys.executable, "-c", LEARNER], env=environment, stdout=subprocess.PIPE, text=True)


def lines(path):
    """The whole lines: the last one may be half written."""
    return [json.loads(line) for line in path.read_text().split("\n")[:-1]] if path.exists() else []


def await_lines(path, condition):
    until(lambda: condition(lines(path)))


def end(process, number=signal.SIGTERM):
    process.send_signal(number)
    out, _ = process.communicate(timeout=50)
    assert process.returncode == 0
    return out.split()


@pytest.fixture
def clean(client):
    """A client at a broker whose counters are 0."""
    for name in ("learner_steps", "environment_steps", "learner_end"):
        client.counter(name).add(-client.counter(name).value)
    return client


def test_a_learner_counts_reports_publishes_and_saves(clean, tmp_path):
    insert_rows(clean, "uniform", reward=np.ones(200))
    clean.counter("environment_steps").add(1234)
    process = start(clean, tmp_path, REPLAY_SEED="8", REPLAY_COUNT="1")
    path = tmp_path / "learner-0.jsonl"
    await_lines(path, lambda rows: len(rows) > 1 and rows[-1]["learner_steps"] > 0)
    clean.counter("saves_asked").add(1)
    while not (tmp_path / "learner.weights").exists():  # long before it is saved by itself, or at the end
        assert process.poll() is None
        time.sleep(0.02)
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
    insert_rows(clean, "uniform", reward=np.ones(200))
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


def stall(server, seconds):
    """Makes the broker stand still for so long, from now on."""
    os.kill(server.process.pid, signal.SIGSTOP)
    threading.Timer(seconds, os.kill, (server.process.pid, signal.SIGCONT)).start()


def test_a_broker_that_stalls_loses_no_count(tmp_path):
    """It stands still for longer than a look at a counter may take: in a claim of steps, and at the end of a learner."""
    publisher = mock.Mock(spec=["put", "flush", "save"], flush=lambda timeout: stall(server, 1.5) if run.steps else None)
    with replaybus.Server([replaybus.Table("uniform")]) as server, server.client() as client:
        with replaybus.run.Actor(endpoint=server.endpoint, table="uniform") as actor:
            actor.client.connect()
            stall(server, 1.5)
            assert actor.claims(4)
        assert client.counter("environment_steps").value == 4
        with replaybus.run.Learner(endpoint=server.endpoint, table="uniform", folder=tmp_path) as run:
            run.publishes(publisher)
            run.step()
        assert (client.counter("learner_steps").value, client.counter("learner_end").value) == (1, 2)


def test_a_learner_that_waits_says_so_and_stops_at_once(clean, tmp_path):
    process = start(clean, tmp_path, REPLAY_INDEX="3")
    path = tmp_path / "learner-3.jsonl"
    await_lines(path, lambda rows: len(rows) > 1 and rows[-1]["wait_share"] > 0.9 and rows[-1]["idle_sample"] > 0.5)
    assert end(process, signal.SIGINT)[-1] == "0"
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


def test_a_full_disk_keeps_nobody_from_the_last_parameters(clean, tmp_path):
    def put(step):
        clean.params["policy"] = weights.encode({"steps": np.array([step], "uint64")})

    full = mock.Mock(spec=["put", "flush", "save"], put=put, save=mock.Mock(side_effect=OSError(28, "No space left on device")))
    with pytest.raises(OSError):
        with replaybus.run.Learner(endpoint=clean.endpoint, table="uniform", folder=tmp_path) as run:
            run.publishes(full, every=100)
            run.step()
            run.step()
    assert weights.decode(clean.params["policy"].data)["steps"][0] == 2 and clean.counter("learner_end").value == 3


@pytest.mark.parametrize("sooner", [0, 600], ids=["the learner is first", "actors are first"])
def test_a_restarted_broker_gets_counts_and_parameters_again(tmp_path, sooner):
    publisher, tables = mock.Mock(spec=["put", "flush", "save"]), [replaybus.Table("uniform")]
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
                    other.counter("environment_steps").add(sooner)
                    until(lambda: run.report() or other.counter("environment_steps").value >= sooner + 500)
                    run.report()
                    assert other.counter("environment_steps").value == sooner + 500
                    assert other.counter("learner_steps").value == 1
                assert publisher.put.call_args_list == [mock.call(0), mock.call(1)]
                run.stop()


@needs_launch
def test_under_the_launcher(tmp_path):
    (tmp_path / "learner.py").write_text(LEARNER)
    config = {
        "name": "own", "environment": {"name": "CartPole-v1"}, "agent": {"algorithm": "dqn", "hidden": [2]},
        "adder": {"kind": "transition", "table": "replay"}, "actors": {"count": 1, "epsilon": 0.1, "random_steps": 100},
        "learners": {"count": 1, "command": [sys.executable, "{here}/learner.py"]}, "evaluator": {"every": 1000, "episodes": 2},
        "stop": {"steps": 4000, "time": "240s"}, "report": {"every": "500ms"},
        "broker": {"tables": [{"name": "replay", "limiter": {"kind": "sample_to_insert_ratio", "samples_per_insert": 8,
                                                             "min_size": 100, "error_buffer": 800}}]}}
    (tmp_path / "run.yaml").write_text(json.dumps(config))
    out = subprocess.run([str(LAUNCH), str(tmp_path / "run.yaml")], cwd=tmp_path, capture_output=True, text=True, timeout=300)
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


ACTOR = """
import numpy as np, replaybus.run
with replaybus.run.Actor(every=0.05) as run, run.environments(4) as env, run.client.vector_writer(4) as writer:
    env.reset()
    while run.claims(4):
        tensors = run.parameters()
        if tensors is not None:
            print("parameters", run.learner_steps, tensors["policy/bias"].shape, flush=True)
            writer.set_policy(run.learner_steps)
        _, rewards, terminated, truncated, _ = env.step(np.zeros(4, int))
        run.took(rewards, terminated | truncated)
        writer.append({"reward": rewards}, item=replaybus.Last(1, run.table))
print("end", run.steps, run.episodes)
"""


def own_config(tmp_path, **more):
    path = tmp_path / "config.yaml"
    path.write_text(json.dumps({"environment": {"name": "CartPole-v1"}, "seed": 7, **more, "agent": {"options": {"clip": 0.3, "on": False}},
                                **{role: {"command": ["x"]} for role in ("actors", "learners")},
                                "evaluator": {"command": ["x"], "every": 100, "episodes": 5},
                                "broker": {"tables": [{"name": "replay"}]}}))
    return str(path)


def publish(client, step):
    client.params["policy"] = weights.encode({"policy/bias": np.zeros((2, 3), "float32"), "steps": np.array([step], "uint64")})


def start_own(program, client, tmp_path, *words, table="uniform", **more):
    environment = {**os.environ, "REPLAY_ENDPOINT": client.endpoint, "REPLAY_TABLE": table, "REPLAY_FOLDER": str(tmp_path),
                   "REPLAY_CONFIG": own_config(tmp_path, **more)}
    return subprocess.Popen([sys.executable, "-c", program, *words], env=environment, stdout=subprocess.PIPE, text=True)


def test_an_actor_takes_the_steps_of_the_run_and_no_more(clean, tmp_path):
    publish(clean, 3)
    out, _ = start_own(ACTOR, clean, tmp_path, stop={"steps": 1002}).communicate(timeout=60)
    steps, episodes = map(int, out.splitlines()[-1].split()[1:])
    assert out.splitlines()[0] == "parameters 3 (2, 3)" and steps == 1004 and episodes > 50  # whole rounds of four
    assert clean.counter("environment_steps").value == 1004
    assert clean.info("uniform")["tables"][0]["limiter"]["inserts"] == 1004
    rows = lines(tmp_path / "actor-0.jsonl")
    assert rows[-1]["actor_steps"] == 1004 and rows[-1]["learner_steps"] == 3
    assert any(row["return"] is not None and 5 < row["return"] == row["episode_length"] < 20 for row in rows)
    assert all(0 <= row["blocked_share"] <= 1.01 for row in rows)


def test_an_actor_that_waits_for_room_stops_at_once(clean, tmp_path):
    """After a second of patience, and without a wait for confirmations at the exit, which would take 20 s here."""
    publish(clean, 3)
    program = ACTOR.replace("run.client.vector_writer(4) as writer", "run.client").replace(
        "    env.reset()", "    env.reset(); writer = run.client.vector_writer(4, max_in_flight=50)")
    patient = "import replaybus.writer; replaybus.writer.close_all.__defaults__ = (20.0,)"
    for _ in range(5):  # one that is stopped a moment before it waits ends like any other
        process = start_own(patient + program, clean, tmp_path, table="queue")
        await_lines(tmp_path / "actor-0.jsonl", lambda rows: clean.info("queue")["tables"][0]["size"] == 1000)
        begun = time.monotonic()
        end(process)
        if time.monotonic() - begun < 15:
            break
        clean.reset("queue")
    else:
        raise AssertionError("it waited for confirmations at the exit, five times")
    clean.reset("queue")


@pytest.mark.parametrize("step", [4, 10], ids=["earlier", "same"])
def test_an_actor_goes_on_with_a_learner_that_went_back(step, clean):
    """A learner that was killed publishes what it had saved, and waits for items of the actors that wait for it."""
    publish(clean, 10)
    with replaybus.run.Actor(endpoint=clean.endpoint, table="uniform") as run:
        assert run.parameters() is not None and run.learner_steps == 10
        publish(clean, step)
        timer = threading.Timer(60, run.stop)
        timer.start()
        before, tensors = run.version, run.parameters(wait=True)  # Stopped ends the block if it waits for more
        timer.cancel()
    assert not run.stopped and int(tensors["steps"][0]) == run.learner_steps == step and run.version == before + 1


def test_actors_of_a_run_have_their_own_seeds(clean, monkeypatch, tmp_path):
    monkeypatch.setenv("REPLAY_CONFIG", own_config(tmp_path))
    seeds = [seed for index in range(3) for role in (replaybus.run.Actor, replaybus.run.Learner)
             for seed in role(endpoint=clean.endpoint, index=index).seeds(4)]
    assert len(set(seeds)) == 24


BLOCKED = """
import replaybus.run
with replaybus.run.Actor() as run, run.client.writer(max_in_flight=1) as writer:
    while run.claims(1):
        writer.append({"x": 1.0})
        writer.item(run.table)
"""


@pytest.mark.parametrize("program", [ACTOR, BLOCKED], ids=["parameters", "room"])
def test_an_actor_that_waits_stops(program, tmp_path):
    """It waits for parameters that nobody publishes, or within a call, where it cannot look at a flag."""
    with replaybus.Server([replaybus.Table.queue("uniform", 1)]) as server, server.client() as client:
        process = start_own(program, client, tmp_path)
        until(lambda: client.counter("environment_steps").value)
        end(process)
        assert client.counter("environment_steps").value < 64  # it gave back what it had claimed and not taken


def test_options(clean, monkeypatch, tmp_path):
    monkeypatch.setenv("REPLAY_CONFIG", own_config(tmp_path))
    run = replaybus.run.Learner(endpoint=clean.endpoint)
    options = run.options(clip=0.2, on=True, horizon=32)
    assert (options.clip, options.on, options.horizon) == (0.3, False, 32)
    for defaults, why in (({"clip": 0.2, "horizon": 32}, "on: there is no such option; there are clip, horizon"),
                          ({"clip": True, "on": True}, "clip is '0.3': write true or false"),
                          ({"clip": 3, "on": True}, "clip is '0.3': write a value like 3")):
        with pytest.raises(replaybus.InvalidArgument, match="agent.options." + why):
            run.options(**defaults)
    assert run.config["environment.name"] == "CartPole-v1" and run.config["evaluator.every"] == 100 and run.config["seed"] == 7


EVALUATOR = """
import replaybus.run
with replaybus.run.Evaluator() as run:
    for tensors in run.parameters():
        print(run.result([float(run.learner_steps)] * run.episodes), flush=True)
"""


def test_an_evaluator_keeps_the_best_and_awaits_the_last(clean, tmp_path):
    publish(clean, 10)
    process, path = start_own(EVALUATOR, clean, tmp_path, stop={"steps": 300}), tmp_path / "evaluator-0.jsonl"
    clean.counter("environment_steps").add(120)
    await_lines(path, lambda rows: len(rows) == 1)
    publish(clean, 5)
    clean.counter("environment_steps").add(100)
    await_lines(path, lambda rows: len(rows) == 2)
    clean.counter("evaluations_asked").add(1)
    await_lines(path, lambda rows: len(rows) == 3)
    best = weights.load(tmp_path / "best.weights")
    assert (best["evaluation/return"][0], best["evaluation/environment_steps"][0], best["evaluation/episodes"][0], best["steps"][0]) == (10, 120, 5, 10)
    clean.counter("environment_steps").add(100)  # all of them: the learner is still at work
    publish(clean, 20)
    publish(clean, 30)
    clean.counter("learner_end").add(31)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 0 and out.split() == ["10.0", "5.0", "5.0", "30.0"]
    last = lines(path)[-1]
    assert (last["return"], last["learner_steps"], last["environment_steps"], last["episodes"]) == (30, 30, 320, 5)


def test_an_evaluator_measures_a_file(clean, tmp_path):
    weights.save(tmp_path / "w", {"steps": np.array([42], "uint64")})
    out, _ = start_own(EVALUATOR, clean, tmp_path, "--weights", str(tmp_path / "w"), "--episodes", "3").communicate(timeout=60)
    assert out.splitlines()[0] == "mean return of 3 episodes: 42" and not (tmp_path / "best.weights").exists()
    out, _ = start_own(EVALUATOR, clean, tmp_path, "--weights", str(tmp_path / "w"), "--json").communicate(timeout=60)
    assert json.loads(out.splitlines()[0])["return"] == 42
