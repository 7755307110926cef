"""A run whose broker has shards: it learns while shards and their parent are killed, keeps its tables, and refuses what shards cannot
do."""

import os
import pathlib
import signal
import subprocess

from launches import PATIENCE, Place, check, equal, eventually, program, sets
from harness import children, contains, kill

CONFIG = (pathlib.Path(__file__).resolve().parent.parent.parent / "configs" / "shards.yaml").read_text()
SHARDS = 4


def kill_shard(run):
    """The parent starts another one in its place."""
    parent = run.pid("broker")
    before = children(parent)
    equal(len(before), SHARDS, "shards")
    os.kill(before[2], signal.SIGKILL)
    run.await_alive(lambda: len(children(parent)) == SHARDS and before[2] not in children(parent), "another shard")
    equal(run.starts("broker"), 1, "starts of the parent")
    run.await_text("a shard of the broker (process %d) has ended" % before[2])


def stop_shard(run):
    """Nobody but the launcher notices, and kills it."""
    parent = run.pid("broker")
    stopped = children(parent)[-1]
    os.kill(stopped, signal.SIGSTOP)
    run.await_alive(lambda: len(children(parent)) == SHARDS and stopped not in children(parent), "another shard")
    run.await_text("a shard of the broker (process %d) hangs" % stopped)


def kill_parent(run):
    """The launcher starts another one, and all shards listen where they did."""
    before = run.endpoints()
    os.kill(run.pid("broker"), signal.SIGKILL)
    run.await_start("broker", 2)
    run.await_alive(lambda: len(children(run.pid("broker"))) == SHARDS, "the shards of another parent")
    run.await_more_steps(200)
    equal(run.endpoints(), before, "endpoints")


def order(place, what):
    """Asks again as long as a shard is away, as the refusal says."""
    def done():
        out = subprocess.run([program("launch"), "ask", "run", what], capture_output=True, text=True, cwd=place.base, env=place.environment)
        check(out.returncode == 0 or "set it again when all answer" in out.stderr, what, "ended with status", out.returncode, out.stderr)
        return out.returncode == 0

    eventually(done, PATIENCE, what)


def pause_without_a_shard(run, place):
    """An order to pause that one shard does not get is refused, and can be repeated."""
    shard = children(run.pid("broker"))[0]
    os.kill(shard, signal.SIGSTOP)
    try:
        contains(place.call("ask", "run", "pause", status=2)[1], "set it again when all answer")
        run.await_alive(lambda: run.status().get("cause") == "paused", "the pause of the others in the status")
    finally:
        kill(shard, signal.SIGCONT)  # the launcher may have killed it: it hangs
    order(place, "pause")


def test_goal_with_faults():
    """With keys and a journal. Faults come first, so that the goal, which may be reached early, ends no run in the middle of one."""
    with Place(CONFIG) as place:
        run = place.launch("--folder", "run", *sets("stop.value=.inf", "broker.folder=broker", "launch.backoff=50ms",
                                                    "launch.hang=8s", "broker.security.mode=curve", "plan.cores=8",
                                                    "stop.steps=0"))
        run.await_alive(lambda: run.steps() > 1500, "steps")
        kill_shard(run)
        stop_shard(run)
        run.await_more_steps(500)
        pause_without_a_shard(run, place)
        paused = run.log("broker").count("paused=1")
        check(paused >= SHARDS, paused, "shards pause")
        kill_shard(run)
        run.await_alive(lambda: run.log("broker").count("paused=1") > paused, "the pause of the new shard")
        order(place, "go")
        run.await_more_steps(500)
        kill_parent(run)
        status = run.read("status.json")
        broker = next(p for p in status["processes"] if p["name"] == "broker")
        check(broker["memory"] > 4 * SHARDS << 20, "the memory of all shards:", broker)
        equal((status["shards"], broker["restarts"]), (SHARDS, 1), "shards, restarts")
        run.stop(PATIENCE)
        place.nobody_left()
        equal(sorted(p.name for p in (run.folder / "broker").iterdir()), ["shard-%d" % i for i in range(SHARDS)], "folders")
        _, said = place.call("resume", "run", *sets("stop.value=475", "broker.shards=2"), status=1)
        contains(said, "those of 4 shards")
        again = place.start("resume", "run", *sets("stop.value=475"))
        contains(again.ends(seconds=3 * PATIENCE), "the tables are those of the journal")
        report = run.read("report.json")
        equal((report["phase"], report["shards"]), ("done", SHARDS), "exit, shards")
        check(report["final_value"] >= 475, "the return is", report["final_value"])


def test_refused():
    with Place(CONFIG) as place:
        for sets_, sentence in (
                (["broker.shards=[tcp://a:7600, tcp://b:7600]"], "a list of brokers, which somebody starts"),
                (["broker.shards=256"], "between 1 and 255"),
                (["broker.shards=200"], "below one batch of 64"),
                (["broker.tables[0].sampler.kind=lifo"], "cannot be used over shards"),
                (["broker.tables[0].limiter={kind: stack}"], "a stack over shards has no meaning")):
            _, said = place.call("check", str(place.config), *sets(*sets_), status=2)
            contains(said, sentence)
        single = subprocess.run([program("single"), "-c", str(place.config)], capture_output=True, text=True)
        check(single.returncode != 0, single)
        contains(single.stderr, "has one broker")
