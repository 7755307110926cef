"""The weights that a run keeps: those of its best evaluation, the last ones, and snapshots; and measuring them afterwards."""

import json
import os
import shutil
import signal
import subprocess

from launches import ENDLESS, PATIENCE, Place, check, equal, eventually, program, sets
from harness import contains, json_lines
import weights

# A learner that leaves a copy of each of its states, so that it can be told which one a file holds.
EACH = ("learners.snapshot_every=1", "learners.publish_every=1", "evaluator.every=100")


def read(path):
    return weights.read(path.read_bytes())


def number(path, name):
    return read(path)[name][1][0]


def evaluations(folder):
    return json_lines(folder / "evaluator-0.jsonl")


def check_best(folder):
    """best.weights is the best that was told of, or a better one that its owner could not tell of; its tensors are those of
    the learner at that step, bit by bit."""
    told = max(line["return"] for line in evaluations(folder))
    tensors = read(folder / "best.weights")  # once: the next evaluator may replace it
    value, steps = tensors["evaluation/return"][1][0], tensors["steps"][1][0]
    check(value >= told, "best.weights is worth", value, "but", told, "was told of")
    policy = [name for name in tensors if name != "steps" and not name.startswith("evaluation/")]
    check(any(name.endswith("weight") for name in policy), "no network in best.weights:", sorted(tensors))
    if steps > 0:
        path = folder / "snapshots" / ("%012d.weights" % steps)
        eventually(path.exists, PATIENCE, str(path))  # it is written after the parameters were published
        state = read(path)
        for name in policy:
            check(list(tensors[name][1]) == list(state[name][1]), name, "is not that of learner step", steps)
    return value, steps


def test_goal_is_kept():
    """A run that stops at stop.value leaves and reports the parameters that reached it, though the learner goes on."""
    with Place() as place:
        launcher = place.launch(*sets("stop.steps=0", "stop.value=11", *EACH))
        text = launcher.ends()
        value, steps = check_best(launcher.folder)
        report = launcher.read("report.json")
        equal((report["final_weights"], report["final_value"], report["phase"]), ("best.weights", value, "done"), "final")
        kept = report["best_weights"]
        equal((kept["return"], kept["learner_steps"], kept["episodes"]), (value, steps, 2), "best_weights")
        check(value >= 11, value)
        last = evaluations(launcher.folder)[-1]
        equal((last["return"], last["learner_steps"]), (value, steps), "the evaluation that reached the goal")
        check(number(launcher.folder / "learner.weights", "steps") >= steps, "learner.weights is older than the best")
        contains(text, "final return ", "(best.weights, mean of 2 episodes)")
        check("best.weights" in (launcher.folder / "report.html").read_text(), "the page does not name the file")


def test_killed_at_any_moment():
    """Each evaluator that is killed leaves a whole file, and the next one goes on from it."""
    with Place() as place:
        launcher = place.launch(*sets(*ENDLESS, "environment.delay=0s", "launch.failures=1000", *EACH))
        seen = 0
        for kill in range(1, 6):
            launcher.await_start("evaluator-0", kill)
            pid = launcher.pid("evaluator-0")
            launcher.await_alive(lambda: len(evaluations(launcher.folder)) > seen, "an evaluation")
            seen = len(evaluations(launcher.folder))
            os.kill(pid, signal.SIGKILL)
            check_best(launcher.folder)
        launcher.stop()
        value, steps = check_best(launcher.folder)
        report = launcher.read("report.json")
        equal((report["best_weights"]["return"], report["best_weights"]["learner_steps"]), (value, steps), "best_weights")

        # A goal that was reached, but not told of: its evaluator was killed between the two.
        (launcher.folder / "evaluator-0.jsonl").write_text("")
        kept = (launcher.folder / "best.weights").read_bytes()
        again = place.start("resume", str(launcher.folder), *sets("stop.value=%r" % value))
        again.given = launcher.given
        again.ends()
        report = again.read("report.json")
        equal((report["final_weights"], report["final_value"]), ("best.weights", value), "the goal of a resumed run")
        equal((again.folder / "best.weights").read_bytes(), kept, "best.weights, which nobody has evaluated again")


def test_last_may_be_the_best():
    """Without an evaluation in the course of the run, the last parameters are measured at its end, and are the best."""
    with Place() as place:
        launcher = place.launch(*sets("stop.steps=0", "stop.learner_steps=50", "evaluator.every=0"))
        launcher.ends()
        report = launcher.read("report.json")
        equal(report["final_weights"], "learner.weights", "final_weights")
        equal(report["best_weights"]["return"], report["final_value"], "best_weights")
        equal(number(launcher.folder / "best.weights", "evaluation/return"), report["final_value"], "best.weights")
        equal(number(launcher.folder / "best.weights", "steps"), number(launcher.folder / "learner.weights", "steps"), "steps")


def test_eval():
    with Place() as place:
        launcher = place.launch("--folder", "one", *sets("stop.steps=2000", "learners.snapshot_every=100"))
        launcher.ends()
        folder = launcher.folder
        before = {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}

        def measure(*words):
            out, _ = place.call("eval", "one", "--json", *words)
            return json.loads(out)

        best, last = measure(), measure("--weights", "last", "--episodes", "3")
        equal(best, measure("--weights", "best"), "the best are meant, and each time they give the same")
        equal((best["episodes"], last["episodes"]), (2, 3), "episodes")
        equal(best["weights"], str((folder / "best.weights").resolve()), "weights")
        equal(last["weights"], str((folder / "learner.weights").resolve()), "weights")
        equal(best["learner_steps"], number(folder / "best.weights", "steps"), "learner_steps")
        check(best["lowest"] <= best["return"] <= best["highest"] and best["deviation"] >= 0, best)
        equal(measure("--weights", "snapshots/000000000100.weights")["learner_steps"], 100, "a file of the run")
        shutil.copy(folder / "snapshots" / "000000000200.weights", place.base / "mine.weights")
        equal(measure("--weights", "mine.weights")["learner_steps"], 200, "a file from elsewhere")
        check(measure("--seed", "9", "--episodes", "5") != measure("--episodes", "5"), "another seed, the same episodes")
        equal({path.name: path.stat().st_mtime_ns for path in folder.iterdir()}, before, "files of the run")

        # An episode step by step: a line for each, with what was seen and done.
        out, _ = place.call("eval", "one", "--show", "--episodes", "1")
        lines = [line.split() for line in out.splitlines()]
        steps = [line for line in lines if line and line[0].isdigit()]
        equal([int(line[0]) for line in steps], list(range(1, len(steps) + 1)), "steps")
        check(all(len(line) == 5 + 4 and line[4] in "01" for line in steps), steps[:3])
        equal(float(steps[-1][2]), float(len(steps)), "the return of CartPole is its length")
        contains(out, "mean return of 1 episodes: %d" % len(steps))

        # Mistakes
        _, err = place.call("eval", "one", "--weights", "none", status=1)
        contains(err, "none")
        (folder / "best.weights").unlink()
        _, err = place.call("eval", "one", "--weights", "best", status=1)
        contains(err, "best.weights")
        equal(measure()["weights"], str((folder / "learner.weights").resolve()), "without best.weights")
        place.call("eval", "two", status=1)
        place.call("eval", "one", "--episodes", "none", status=2)


def test_runs():
    """A list of all runs, some of them side by side, and an end for the old ones, but not for one that goes on."""
    with Place() as place:
        contains(place.call("runs")[0], "no runs")
        first = place.launch("--seed", "3", *sets("stop.steps=600", "broker.folder=broker"))
        first.ends()
        done = first.folder.resolve().name
        second = place.launch(*sets(*ENDLESS, "agent.target=0.5"))
        second.await_alive(lambda: second.folder.resolve().name != done, "a folder of its own")
        second.await_phase("running")
        runs = json.loads(place.call("runs", "--json")[0])
        equal({run["name"]: (run["result"], run["seed"], run["actors"]) for run in runs},
              {done: ("done", "3", 2), second.folder.resolve().name: ("running", "1", 2)}, "runs")
        report = json.loads((place.base / "runs" / done / "report.json").read_text())
        equal([run["final_value"] for run in runs if run["name"] == done], [report["final_value"]], "final_value")
        check(all(run["bytes"] > 1000 for run in runs), runs)
        contains(place.call("runs")[0], done, "running", "seed")

        out, _ = place.call("runs", done, "runs/latest", "--html", "mine.html")
        contains(out, done, "agent.target", "seed", "mine.html")
        contains((place.base / "mine.html").read_text(), '"name": "%s"' % done, '"environment_steps": [')
        place.call("runs", done, "nothing", status=1)
        place.call("runs", "--prune", "few", status=2)
        place.call("runs", done, "--prune", "1", status=2)

        # The tables of a run that is done can go alone: it is resumed with empty ones.
        folder = place.base / "runs" / done
        tables = list(folder.glob("broker/*.replay"))
        kept = {path for path in folder.rglob("*") if path not in tables}
        place.call("runs", "--tables", status=2)
        place.call("runs", "--prune", "2", "--tables")
        contains(place.call("runs", "--prune", "0", "--tables", "--dry-run")[0], done)
        check(tables and all(path.exists() for path in tables), "a dry run has removed tables")
        contains(place.call("runs", "--prune", "0", "--tables")[0], done)
        check(not any(path.exists() for path in tables) and all(path.exists() for path in kept), "not the tables alone went")
        equal([run["tables_bytes"] for run in json.loads(place.call("runs", "--json")[0]) if run["name"] == done], [0], "tables")
        again = place.start("resume", str(folder), *sets("stop.steps=900"))
        again.ends()
        equal(json.loads((folder / "report.json").read_text())["phase"], "done", "a run that was resumed without its tables")

        contains(place.call("runs", "--prune", "0", "--dry-run")[0], done)
        check(folder.exists(), "a dry run has removed a run")
        contains(place.call("runs", "--prune", "0")[0], done)
        check(not (place.base / "runs" / done).exists() and second.folder.exists(), "the wrong run was removed")
        second.stop()
        place.call("runs", "--prune", "1")
        equal([run["result"] for run in json.loads(place.call("runs", "--json")[0])], ["stopped"], "runs that are left")


def test_in_one_process():
    """replay-single keeps the same files, the same each time; what an earlier run left is not taken for its own."""
    with Place() as place:
        def run(name, *more):
            words = [program("single"), "-c", str(place.config), "--json", "--quiet", "--folder", str(place.base / name),
                     *sets("stop.steps=800", "evaluator.every=200", *more)]
            done = subprocess.run(words, capture_output=True, text=True, timeout=3 * PATIENCE)
            check(done.returncode == 0, done.stdout, done.stderr)
            return place.base / name, json.loads(done.stdout.splitlines()[-1])

        one, _ = run("one", "learners.snapshot_every=1")
        best = max(line["return"] for line in json_lines(one / "single.jsonl") if line.get("return") is not None)
        value, steps = number(one / "best.weights", "evaluation/return"), number(one / "best.weights", "steps")
        equal(value, best, "return of best.weights")
        tensors, state = read(one / "best.weights"), read(one / "snapshots" / ("%012d.weights" % steps))
        equal([name for name in tensors if name in state and name != "steps" and tensors[name] != state[name]], [],
              "tensors that differ from those of learner step %d" % steps)
        two, _ = run("two")
        equal((one / "best.weights").read_bytes(), (two / "best.weights").read_bytes(), "best.weights of the same run")
        again, result = run("one", "seed=5", "evaluator.every=0")
        equal(number(again / "best.weights", "evaluation/return"), result["return"], "best.weights of another run")
