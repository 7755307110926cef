"""Each thing that can hold a run back, brought about for real, and the cause that the page, the view and status.json name."""

import contextlib
import json
import os
import pathlib
import subprocess
import sys
import threading

from browser import fetch
from launches import CONFIG, ENDLESS, PATIENCE, Place, check, equal, eventually, program, sets

PACKAGE = pathlib.Path(program("launch")).resolve().parent / "lib" / "python"
if not (PACKAGE / "replaybus" / "__init__.py").exists():
    print("skipped: this build has no Python package")
    sys.exit(77)
sys.path.insert(0, str(PACKAGE))
os.environ.setdefault("REPLAY_BROKER", program("broker"))
import numpy as np
import replaybus


class Watched:
    """A broker by itself, and the page that explains it."""

    def __init__(self, place, tables, **config):
        self.server = replaybus.Server(tables, config=config or None)
        self.client = self.server.client()
        self.viewer = place.start("open", self.server.endpoint)
        eventually(lambda: "http://" in self.viewer.text(), PATIENCE, "the address of the page")
        self.base = self.viewer.text().split("?")[0]
        self.threads = []

    def verdict(self):
        status, text = fetch(self.base + "api/state")
        equal(status, 200, text)
        return json.loads(text)["verdict"]

    def await_cause(self, cause, blocked):
        def named():
            verdict = self.verdict()
            return verdict["cause"] == cause and verdict
        verdict = eventually(named, 2 * PATIENCE, lambda: "the cause %s instead of %s" % (cause, self.verdict()))
        equal(verdict["blocked"], blocked, verdict)
        print("      %s: %s %s" % (cause, verdict["text"], verdict["advice"]))

    def later(self, work):
        """Runs in a thread what waits until the broker ends."""
        def guarded():
            with contextlib.suppress(replaybus.Error):
                work()
        self.threads.append(threading.Thread(target=guarded, daemon=True))
        self.threads[-1].start()

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        self.viewer.signal()
        self.viewer.ends()
        self.client.close()  # ends what still waits
        self.server.stop()
        for thread in self.threads:
            thread.join(0.2)  # a daemon: what still waits ends with the test


RATIO = {"kind": "sample_to_insert_ratio", "samples_per_insert": 2, "min_size": 1, "error_buffer": 8}


def insert(client, table, count, size=4):
    with client.writer({"x": replaybus.Field("float32", (size,))}) as writer:
        for _ in range(count):
            writer.append({"x": np.random.rand(size)})
            writer.item(table, slices=1)


def test_learners_wait_for_inserts():
    with Place() as place, Watched(place, [replaybus.Table("t", limiter=RATIO)]) as broker:
        insert(broker.client, "t", 2)
        broker.later(lambda: [next(iter(broker.client.sampler("t", batch_size=4, timeout=PATIENCE))) for _ in range(100)])
        broker.await_cause("actors", "learners")


def test_actors_wait_for_samples():
    with Place() as place, Watched(place, [replaybus.Table("t", limiter=RATIO)]) as broker:
        broker.later(lambda: insert(broker.client, "t", 100))
        broker.await_cause("learners", "actors")


def test_both_wait_at_one_table():
    """One sample that is not a whole batch leaves the cursor where neither an insert nor a whole batch fits."""
    with Place() as place, Watched(place, [replaybus.Table("t", limiter=RATIO)]) as broker:
        broker.later(lambda: insert(broker.client, "t", 100))
        next(iter(broker.client.sampler("t", batch_size=1, max_samples=1, timeout=PATIENCE)))
        broker.later(lambda: next(iter(broker.client.sampler("t", batch_size=16, whole=True, timeout=PATIENCE))))
        broker.await_cause("learners", "actors")
        eventually(lambda: "error_buffer" in broker.verdict()["advice"], PATIENCE, "what to change")


def test_the_table_fills():
    """Samples wait for min_size; when nobody inserts any more, that does not get better by itself."""
    with Place() as place, Watched(place, [replaybus.Table("t", limiter={"kind": "min_size", "min_size": 100})]) as broker:
        writer = broker.client.writer({"x": 0.0})
        writer.append({"x": 1.0})
        writer.item("t", slices=1)
        writer.flush()
        broker.later(lambda: next(iter(broker.client.sampler("t", batch_size=2, timeout=PATIENCE))))
        broker.await_cause("filling", "learners")
        writer.close()
        broker.await_cause("size", "learners")


def test_min_size_above_what_the_table_can_have():
    """Items leave after one sample, so the table never has as many as a second sampler waits for."""
    table = replaybus.Table("t", max_size=50, limiter={"kind": "min_size", "min_size": 50})
    with Place() as place, Watched(place, [table], memory_limit="2MiB") as broker:
        broker.later(lambda: insert(broker.client, "t", 400, size=16384))  # 64 KiB each: memory ends before 50 items
        broker.later(lambda: next(iter(broker.client.sampler("t", batch_size=2, timeout=PATIENCE))))
        broker.await_cause("size", "learners")


def test_memory():
    """A queue's items are not evicted: its writer waits for memory."""
    with Place() as place, Watched(place, [replaybus.Table.queue("q", 1000)], memory_limit="2MiB") as broker:
        broker.later(lambda: insert(broker.client, "q", 200, size=16384))
        broker.await_cause("memory", "actors")


def test_nobody_publishes_parameters():
    with Place() as place, Watched(place, [replaybus.Table("t")]) as broker:
        broker.later(lambda: broker.client.params.get("policy", have=0, timeout=PATIENCE))
        broker.await_cause("parameters", "actors")


def test_a_dead_learner_in_reduce():
    with Place() as place, Watched(place, [replaybus.Table("t")]) as broker:
        first, second = broker.server.client(name="learner-0"), broker.server.client(name="learner-1")
        alive, dead = first.reduce("learners"), second.reduce("learners")
        vector = np.ones(4, "float32")
        broker.later(lambda: alive.add(vector, timeout=PATIENCE) if hasattr(alive, "add") else alive(vector))
        broker.await_cause("reduce", "learners")
        del dead


def test_a_killed_broker():
    with Place() as place, Watched(place, [replaybus.Table("t")]) as broker:
        broker.await_cause("idle", "")
        broker.server.stop()
        broker.await_cause("broker", "")


def test_a_run_says_the_same():
    """Under the launcher the causes reach status.json; a program that takes all processors is named."""
    with Place(CONFIG) as place:
        launcher = place.running(*sets(*ENDLESS, "environment.delay=0s", "learners.delay=20ms"))
        cause = lambda: (launcher.read("status.json") or {}).get("cause")  # noqa: E731
        launcher.await_alive(lambda: cause() in ("learners", "others"), "actors that wait")
        hogs = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2 * (os.cpu_count() or 2))]
        try:
            launcher.await_alive(lambda: cause() == "others", "the other programs", 3 * PATIENCE)
            check(launcher.read("status.json")["others"] > 0.25, "others")
        finally:
            for hog in hogs:
                hog.kill()
                hog.wait()
        launcher.signal()
        launcher.ends(seconds=3 * PATIENCE)
