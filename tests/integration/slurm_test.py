"""Runs on a real Slurm with four virtual nodes: one command reaches its goal although all its actors are preempted; a second run
beside it meets the time limit of its job and goes on, loses a node, and is cancelled without a trace."""

import json
import os
import pathlib
import pty
import signal
import subprocess
import threading
import time

from launches import PATIENCE, SLOW, Launcher, Place, check, equal, eventually, program, sets
from slurm import Cluster, skip_without_slurm

# The core jobs stay on the first node, which must not go down; actors stay off it.
SLURM = """
launch:
  engine: slurm
  backoff: 100ms
  slurm:
    core: {partition: main, nodelist: n1, cpus-per-task: 1, signal: B:USR1@45}
    actors: {partition: spare, exclude: n1, cpus-per-task: 1}
    count: %s
"""
GOAL = SLURM % "2-4" + (pathlib.Path(__file__).resolve().parents[2] / "configs" / "cartpole-dqn.yaml").read_text()
LIMIT = SLURM % "1" + """
name: limit
environment: {name: CartPole-v1, delay: 20ms}
agent: {algorithm: dqn, hidden: [8], batch: 8}
adder: {table: replay, buffer_items: 10}
actors: {count: 1}
learners: {count: 1, save_every: 500ms}
evaluator: {episodes: 0}
report: {every: 250ms}
broker:
  shards: 2
  tables: [{name: replay, max_size: 10000, limiter: {kind: sample_to_insert_ratio, samples_per_insert: 2, min_size: 20,
                                                      error_buffer: 40}}]
"""
BACK = 60  # seconds in which the plan is met again


class Terminal(Launcher):
    """A replay-launch whose standard streams are a terminal."""

    def __init__(self, place, name, words):
        self.place, self.name, self.output = place, name, b""
        self.given = words[words.index("--folder") + 1]
        self.master, slave = pty.openpty()
        self.popen = subprocess.Popen([program("launch"), *words], stdin=slave, stdout=slave, stderr=slave, cwd=place.base,
                                      env=place.environment)
        os.close(slave)
        threading.Thread(target=self.read_all, daemon=True).start()

    def read_all(self):
        try:
            while block := os.read(self.master, 65536):
                self.output += block
        except OSError:  # the other end is closed
            pass

    def text(self):
        return self.output.decode(errors="replace")

    def type(self, text):
        os.write(self.master, text)


class Run:
    """A run that replay-launch submits from here, as from a login node."""

    def __init__(self, kind, place, name, text, *words):
        self.place = place
        config = place.base / (name + ".yaml")
        config.write_text(text)
        self.login = kind(place, name, [str(config), "--folder", name, *words])
        place.launchers.append(self.login)
        self.job, self.array = self.record("core"), self.record("array")

    def record(self, key):
        return self.login.await_alive(lambda: (self.login.read("slurm.json") or {}).get(key), key + " of slurm.json")

    def status(self, key, default=0):
        return self.login.status().get(key, default)

    def actor_starts(self):
        return self.login.log().count("started process=actor-")

    def await_steps(self, steps, seconds=PATIENCE):
        self.login.await_alive(lambda: self.status("steps") >= steps, "%d steps" % steps, seconds)

    def await_actors(self, count, seconds=PATIENCE):
        """Gives the seconds that it took."""
        start = time.monotonic()
        self.login.await_alive(lambda: self.status("actors", -1) == count, "%d actors" % count, seconds)
        return time.monotonic() - start


def preempt_all(run, cluster):
    """Another job takes every processor of the actors; they are back once it has ended."""
    taker = cluster.preempt(5)
    run.await_actors(0)
    equal(cluster.running(run.array), [], "tasks that run while another job has their processors")
    eventually(lambda: not cluster.known(taker), PATIENCE, "the end of the other job")
    return run.await_actors(2, BACK * SLOW)


def lose_a_node(run, cluster):
    """A node goes down and comes back: its actor starts again, there or elsewhere."""
    def nodes():
        return [task[1] for task in cluster.tasks(run.array).values() if task[0] == "RUNNING"]

    eventually(nodes, PATIENCE, "a task that runs")  # Slurm may say so after its actor has come back
    node = nodes()[0]
    starts, losses, begin = run.actor_starts(), run.login.log().count(" A0431 "), time.monotonic()
    cluster.call("scontrol", "update", "nodename=" + node, "state=down", "reason=test")
    run.login.await_alive(lambda: run.login.log().count(" A0431 ") > losses, "the loss of a host")
    cluster.call("scontrol", "update", "nodename=" + node, "state=idle")
    run.login.await_alive(lambda: run.actor_starts() > starts, "another start of an actor", BACK * SLOW)
    run.await_actors(1, BACK * SLOW)
    return time.monotonic() - begin


def meet_time_limit(run, cluster):
    """The job is queued again before its limit, and goes on with steps and tables of the first leg."""
    run.login.await_alive(lambda: (run.login.read("launch.json") or {}).get("legs", 0) >= 2, "a second leg", 90 * SLOW)
    cluster.call("scontrol", "update", "jobid=%d" % run.job, "timelimit=30")
    run.login.await_phase("running")  # a slow machine may be at a later leg, or between two
    run.await_actors(1)
    run.array = run.record("array")
    check("restored checkpoint" in run.login.log("broker"), "the second leg did not begin with the tables of the first")


def leave(run, cluster):
    """Ctrl-C in the terminal asks; the run goes on without it."""
    run.login.signal(signal.SIGINT)
    run.login.await_text("[c] ")
    before = len(run.login.output)
    run.login.type(b"c\n")
    run.login.await_alive(lambda: len(run.login.output) > before + 100, "another view")
    run.login.signal(signal.SIGINT)
    run.login.await_text("[c] ", 2)
    run.login.type(b"g\n")
    run.login.ends(0, PATIENCE)
    check(cluster.known(run.job), "the run has ended with its terminal")


def cancel(run, cluster):
    run.place.call("stop", "--run", run.login.given, "--force")
    check(not cluster.known(run.job) and not cluster.known(run.array), "jobs are left")
    run.place.nobody_left(PATIENCE)
    equal(list((run.place.base / "tmp").iterdir()), [], "folders of node agents")


def check_ledger(run):
    """Every session's items are in the table without a gap and once: what the broker accepted, also from actors that were
    killed, is there, and nothing is there twice."""
    folder, items = run.login.folder / "checkpoint", run.place.base / "items.jsonl"
    ctl = [program("ctl"), "checkpoint"]
    table = json.loads(subprocess.check_output(ctl + ["show", str(folder), "--json"]))["tables"][0]
    subprocess.check_output(ctl + ["export", str(folder), "--table", "replay", "--save", str(items)])
    sessions, total = {}, 0
    with open(items) as lines:
        for line in lines:
            item = json.loads(line)
            sessions.setdefault(item["session"], []).append(item["key"])
            total += 1
    equal(total, table["size"], "items in the table")
    equal(total, table["inserts"], "inserts, of which none was removed")
    for session, keys in sessions.items():
        keys.sort()
        equal(keys, list(range(keys[0], keys[0] + len(keys))), "keys of session %d" % session)
    check(len(sessions) >= 4, "only", len(sessions), "sessions: no actor was started again")
    return total


def check_before(place):
    """What can be said before anything is submitted."""
    config = place.base / "check.yaml"
    config.write_text(LIMIT)
    place.call("check", str(config))
    place.call("check", str(config), *sets("launch.slurm.core.partition=none"), status=2)
    place.call("check", str(config), *sets("launch.slurm.actors.cpus-per-task=64"), status=2)
    for which in ("core", "actors"):
        script, _ = place.call("script", str(config), which)
        subprocess.run(["sh", "-n"], input=script, text=True, check=True)


def main():
    skip_without_slurm()
    start = time.monotonic()
    figures = {}
    with Cluster(nodes=4, cpus=4) as cluster, Place() as place:
        # Slurm hands the environment of the login node on; there, ssh has set the address of the user's own machine.
        place.environment.update(SLURM_CONF=str(cluster.conf), PATH=cluster.environment["PATH"],
                                 SSH_CONNECTION="192.0.2.1 50000 192.0.2.2 22", TMPDIR=str(place.base / "tmp"))
        (place.base / "tmp").mkdir()
        check_before(place)
        limit = Run(Terminal, place, "limit", LIMIT, *sets("launch.slurm.core.time=1"))
        goal = Run(Launcher, place, "goal", GOAL, *sets("environment.delay=1ms", "actors.count=2", "learners.count=1", "evaluator.every=6000",
                                                        "evaluator.episodes=10", "broker.tables[0].max_size=200000"))
        goal.await_steps(1000)
        figures["back after preemption"] = preempt_all(goal, cluster)
        out = goal.login.ends(0, 60 * SLOW)
        check("report: " in out, "no report:\n" + out)
        equal(goal.login.read("status.json")["phase"], "done", "phase")
        check(goal.login.read("report.json")["final_value"] >= 475, "the goal was not reached:\n" + out)
        eventually(lambda: not cluster.known(goal.array), PATIENCE, "the end of the array")
        figures["items"] = check_ledger(goal)
        figures["goal reached"] = time.monotonic() - start
        meet_time_limit(limit, cluster)
        figures["back after a node"] = lose_a_node(limit, cluster)
        leave(limit, cluster)
        cancel(limit, cluster)
    figures["all"] = time.monotonic() - start
    print(", ".join("%s: %.4g" % item for item in figures.items()))
    return 0
