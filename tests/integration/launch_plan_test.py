"""Counts that replay-launch chooses: measured, cached, told, run, and changed while it runs."""

import json
import os
import pathlib
import re
import shutil
import signal
import sys
import tempfile

from launches import AUTO, PATIENCE, Place, check, equal, eventually, sets
from harness import contains, run_tests

CACHE = pathlib.Path(tempfile.mkdtemp(prefix="replay-launch-cache-"))


def auto():
    return Place(AUTO + "plan: {measure: 200ms, max_actors: 8, max_learners: 1}\n", CACHE)


def measured():
    """The same, and the cache knows the curves."""
    place = auto()
    if not any(CACHE.glob("**/*.json")):
        place.call("plan", "run.yaml", "--folder", "first")
    return place


def check_plan(plan):
    chosen = plan["chosen"]
    # On a machine that other programs keep busy, whoever sleeps wakes late, and any count may come out best.
    quiet = not any(run["others"] for run in plan["input"]["runs"])
    least = 2 if quiet else 1
    check(least <= chosen["actors"] <= (7 if quiet else 8), chosen["actors"], "actors for one learner:", chosen)
    equal(chosen["learners"], 1, "learners")
    check(chosen["actors"] <= plan["most_actors"] == 8, plan["most_actors"], "actors at most")
    check(chosen["inserts"] > (100 if quiet else 0) and chosen["reason"] and chosen["runs"], chosen)
    check(abs(chosen["samples"] / chosen["inserts"] - 4) < 1.5, chosen)
    return chosen


def test_stopped_while_it_measures():
    """In order, and the run can be resumed: then it is measured first."""
    with auto() as place:
        run = place.launch()
        run.await_text("measuring: 1 actor")
        contains(place.call("status", status=1)[1], "has no status yet")
        contains(place.call("stop")[0], ": stopped")
        contains(run.ends(), "stopped while it was measuring")
        place.nobody_left()
        again = place.start("resume", "runs/latest")
        again.await_text("measuring: 1 actor")
        again.stop()


def test_measured_and_run():
    with auto() as place:
        run = place.launch(*sets("stop.steps=1000"))
        text = run.ends(0, 3 * PATIENCE)
        chosen = check_plan(run.read("plan.json"))
        contains(text, "measuring: 1 actor", " and 1 learner, without", "plan: %d actor" % chosen["actors"], "small done after")
        for name in ("profile.json", "plan.json", "profile.html"):
            check((run.folder / name).exists(), name, "is missing")
        report = run.read("report.json")
        equal((report["actors_wanted"], report["learners_wanted"], report["steps"]), (chosen["actors"], 1, 1000), "report")
        equal(report["stretches"][0]["predicted"]["inserts"], chosen["inserts"], "predicted inserts")
        contains(place.call("check", "runs/latest/config.yaml")[0], "actors: %d, learners: 1" % chosen["actors"])


def test_from_the_cache():
    with measured() as place:
        out, said = place.call("plan", "run.yaml", "--json")
        chosen = check_plan(json.loads(out))
        equal(said, "", "what is said while nothing is measured")
        check(not (place.base / "runs").exists(), "a plan from the cache needs no folder")
        contains(place.call("plan", "run.yaml")[0], "%d actor" % chosen["actors"], "From cached measurements")
        out, _ = place.call("profile", "run.yaml", "--folder", "curves")
        contains(out, "actors", "learners", "inserts", "Measurements and plan are in curves.")
        contains((place.base / "curves" / "profile.html").read_text(), '"api/report": {"plan": ')
        # What is of no matter for speed does not make the measurements void; what is does.
        run = place.launch(*sets("stop.steps=500", "seed=5", "name=other"))
        check("measuring: 1 actor" not in run.ends(), "it was measured again:", run.text())
        equal(run.read("launch.json")["actors"], chosen["actors"], "actors")
        # Numbers are respected, and compared with what is known.
        mine = place.launch("--folder", "mine", *sets("stop.steps=400", "actors.count=1", "learners.count=1"))
        check("measuring: 1 actor" not in mine.ends(), "it was measured again:", mine.text())
        equal((mine.read("launch.json")["actors"], mine.read("plan.json")["chosen"]["actors"]), (1, 1), "actors")


def starve(place, *words):
    """A run of which all actors but one stand still, so that the learner has too little to do."""
    run = place.running(*words, *sets("stop.steps=0", "launch.hang=0s", "report.every=150ms", "evaluator.episodes=0"))
    actors = run.read("launch.json")["actors"]
    for i in range(1, actors):
        os.kill(run.pid("actor-%d" % i), signal.SIGSTOP)
    return run, actors


def ended(*runs):
    for run in runs:
        run.signal()
        run.signal(signal.SIGTERM)  # those that stand still do not end by themselves
        run.ends(130)


def starved(place):
    """Such a run that the launcher resizes because of it. Where others take the cores, actors may have waited before they stood still:
    then there are fewer of them, and another run is tried."""
    for folder in ("a1", "a2", "a3"):
        run, actors = starve(place, "--folder", folder)
        if not 2 <= actors < run.read("plan.json")["most_actors"]:  # what was measured while others took the cores is measured again
            print("not tested: the plan leaves no room to resize")
            return None
        run.await_alive(lambda: "rs waited " in run.text(), "a reason to resize")
        if "actors waited " not in run.text():
            return run, actors
        ended(run)
    before = run.text().partition("actors waited ")[0].splitlines()
    check("disturbed" in run.text() or any("limited by others" in line for line in before[-5:]),
          "actors wait first where nothing disturbs them", run.text())
    print("not tested: others took the cores, and actors waited first")
    return None


def test_resize():
    """More actors, unless that is not wanted."""
    with measured() as place:
        found = starved(place)
        if not found:
            return
        run, actors = found
        other, kept = starve(place, "--folder", "b", "--no-resize")
        said = eventually(lambda: next((line for line in run.text().splitlines(True) if line.startswith("learners waited ")
                                        and line.endswith(" actors\n")), None), PATIENCE, "the whole reason")
        before, more = (int(word) for word in re.search(r"\(plan: .* for items: (\d+) -> (\d+) actors", said).groups())
        equal(before, actors, said)
        check(before < more <= run.read("plan.json")["most_actors"], said)
        run.await_start("actor-%d" % (more - 1))
        run.await_alive(lambda: run.read("launch.json")["actors"] >= more, "%d actors" % more)
        contains(run.log(), "A0410")
        # The other one began a little later, and has waited as long.
        acted = run.read("status.json")["elapsed_s"]
        other.await_alive(lambda: other.read("status.json")["elapsed_s"] > acted + 1, "time to act")
        check("A0410" not in other.log() and other.read("launch.json")["actors"] == kept, other.log())
        ended(run, other)
        counts = [stretch["actors"] for stretch in run.read("report.json")["stretches"]]
        check(counts[0] == actors and more in counts, counts, "actors, where", actors, "became", more)


status = run_tests()
shutil.rmtree(CACHE, ignore_errors=True)
sys.exit(status)
