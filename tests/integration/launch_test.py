"""Whole runs by replay-launch: to each kind of end, seen and stopped from other processes, and taken up again."""

import concurrent.futures
import html.parser
import json
import os
import signal
import time

from launches import ENDLESS, PATIENCE, Place, check, equal, sets
from harness import contains, json_lines

RESULT = " done after "
FILES = ("config.yaml", "launch.json", "learner.weights", "metrics.jsonl", "report.html",
         "report.json", "report.txt", "status.json", "actor-0.jsonl", "actor-1.jsonl", "evaluator-0.jsonl", "learner-0.jsonl",
         "logs/launch.log", "logs/broker.log", "logs/actor-0.log", "logs/actor-1.log", "logs/evaluator-0.log",
         "logs/learner-0.log")


class Page(html.parser.HTMLParser):
    """Whether what is opened is closed, in order."""
    VOID = {"meta", "br", "hr", "img", "link", "input", "col"}

    def __init__(self, text):
        super().__init__()
        self.open, self.tags = [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag not in self.VOID:
            equal(self.open.pop() if self.open else None, tag, "the tag that is closed")


def check_report(launcher):
    """The folder's report; its files can be read."""
    page = Page((launcher.folder / "report.html").read_text())
    check(not page.open, page.open, "are not closed")
    check({"html", "head", "title", "body", "style", "script"} <= set(page.tags), sorted(set(page.tags)))
    answers = json.loads((launcher.folder / "report.html").read_text().split('id="answers">')[1].split("</script>")[0])
    report = launcher.read("report.json")
    equal(answers["api/report"], report, "the report inside the page")
    check(answers["api/history"]["inserts_rate"] and answers["api/run"]["learning"]["learner_steps"], "the page has no curves")
    return report


def test_to_the_last_step():
    with Place() as place:
        launcher = place.launch()
        text = launcher.ends()
        contains(text, "starting steps 0/3,000", RESULT, "3,000 steps", "final return ", "report: runs/small-")
        check("\x1b" not in text and "\r" not in text, "a file is no terminal:", repr(text))
        folder = launcher.folder.resolve()
        check(folder.parent == (place.base / "runs").resolve() and folder.name.startswith("small-"), folder)
        for name in FILES:
            check((folder / name).stat().st_size > 0 or name.startswith("logs/"), name, "is empty")
        equal([path for path in folder.glob("**/*.tmp")], [], "files that were left half written")
        report = check_report(launcher)
        equal((report["steps"], report["phase"], report["legs"], report["restarts"]), (3000, "done", 1, 0), "report")
        check(report["learner_steps"] > 300 and report["final_value"] >= 8 and report["final_episodes"] == 2, report)
        check(report["best"] >= report["value"], "the last evaluation is one too:", report)
        for part in ("predicted", "achieved"):
            equal(set(report["stretches"][0][part]), {"inserts", "samples", "spi", "actor_idle", "learner_idle"}, part)
        equal([name for name, value in report["stretches"][0]["achieved"].items() if value is None], [], "figures that a short run lacks")
        equal([stretch["actors"] for stretch in report["stretches"]], [2], "stretches")
        check(launcher.read("launch.json")["done"], "launch.json does not say that it is done")
        check("C0101" not in launcher.log(), "the broker's end was not foreseen:", launcher.log())
        out, _ = place.call("check", str(folder / "config.yaml"))
        contains(out, "no mistakes", "actors: 2, learners: 1")


def test_json_and_quiet():
    with Place() as place:
        lines = place.launch("--json-lines", "--folder", "a", *sets("stop.steps=2000"))
        quiet = place.launch("--quiet", "--folder", "b", *sets("stop.steps=2000"))
        text = quiet.ends()
        check(text.startswith("small done after ") and "steps/s" not in text, text)
        contains(text, "final return ", "report: b/report.html")
        objects = [json.loads(line) for line in lines.ends().splitlines()]
        phases = [o["phase"] for o in objects if "phase" in o]
        known = ["starting", "filling", "running", "stopping", "measuring", "done"]
        equal(phases, sorted(phases, key=known.index), "phases")
        equal((phases[0], phases[-1]), ("starting", "done"), "first and last phase")
        check([o for o in objects if "stopping" in o.get("event", "")], "no event says why it stops:", objects)
        times = [o["elapsed_s"] for o in objects if "phase" in o]
        check(len(times) <= max(times) + 2 + len(known), len(times), "objects in", max(times), "s: one a second is enough")
        equal(objects[-1]["steps"], 2000, "steps")


def test_each_end():
    ends = {"stop.value=1": "an evaluation gave", "stop.learner_steps=60": "60 learner steps were made",
            "stop.time=10s": "stop.time of 10 s is reached"}
    with Place() as place:
        runs = [(end, reason, place.launch("--folder", end[5:8], *sets(*ENDLESS, "evaluator.every=200", end)))
                for end, reason in ends.items()]
        for end, reason, launcher in runs:
            contains(launcher.ends(), reason, RESULT)
            report = check_report(launcher)
            equal(report["phase"], "done", end)
            contains(report["reason"], reason)
            check(report["steps"] > 0, end, report)
            # There may be no time left for a measurement.
            check((report["final_value"] or 8) >= 8 and (report["final_value"] or "time" in end), end, report)
        check(runs[0][2].read("report.json")["best"] >= 1, "value")
        check(runs[1][2].read("report.json")["learner_steps"] >= 60, "learner steps")
        check(runs[2][2].read("report.json")["elapsed_s"] >= 7, "time")


def test_orders():
    """Pause, go, ratio, evaluate and checkpoint of a run that goes on, from the command line; what cannot be done is refused with a reason."""
    with Place() as place:
        run = place.running("--folder", "run", *sets(*ENDLESS, "learners.save_every=1h", "evaluator.every=1000000000", "launch.backoff=200ms",
                                                     "hosts=[{name: local, cores: 1.5}]"))
        state = run.folder / "learner.weights"
        equal(run.status()["cores"], 1.5, "processors that the run may use")

        def stands():
            """Awaits three states without a step between them; before them, actors take the steps that they have begun."""
            first = len(run.history())
            run.await_alive(lambda: len(run.history()) >= first + 4 and len(set(run.history()[-3:])) == 1, "an end of the steps")

        contains(place.call("ask", "run", "pause")[0], "paused: actors and learners wait")
        run.await_alive(lambda: run.status().get("cause") == "paused", "the pause in the status")
        contains(run.status()["waits"], "Table 'replay' is paused")
        contains(run.status()["advice"], "replay-launch ask go")
        stands()
        contains(place.call("ask", "run", "pause", status=2)[1], "paused already")
        # The pause belongs to the run: a broker that is started again is paused, too.
        os.kill(run.pid("broker"), signal.SIGKILL)
        run.await_start("broker", 2)
        run.await_alive(lambda: run.status().get("cause") == "paused", "the pause of the second broker")
        contains(place.call("ask", "run", "evaluate")[0], "over 2 episodes")
        run.await_alive(lambda: run.status().get("n_values", 0) >= 1, "an evaluation that was asked for, in a pause")
        check(not state.exists(), "the learner has saved before it was asked")
        contains(place.call("ask", "run", "checkpoint")[0], "no folder (broker.folder)", "the learner saves its state")
        run.await_alive(state.exists, "the learner's state")
        contains(place.call("ask", "go", "--run", "run")[0], "the run goes on")
        run.await_more_steps()
        contains(place.call("ask", "run", "go", status=2)[1], "not paused")
        contains(place.call("ask", "run", "ratio=2")[0], "ratio: 4 -> 2 samples per insert")
        run.await_alive(lambda: run.status().get("spi_target") == 2, "the new ratio")
        for wrong, why in (("ratio=0", "a number above 0"), ("ratio=1e9", "error_buffer"), ("fly", "pause, go, evaluate")):
            contains(place.call("ask", "run", wrong, status=2)[1], why)
        equal(run.status()["spi_target"], 2, "ratio after a refusal")
        place.call("ask", status=2)
        place.call("ask", "run", "pause")
        place.call("stop", "run")  # a paused run ends as any other
        run.ends(0, PATIENCE)
        contains(place.call("ask", "run", "pause", status=1)[1], "does not run now")


def test_resize_by_hand():
    """More and fewer actors while the run goes on; a resumed run has as many."""
    with Place() as place:
        run = place.running("--folder", "run", *sets(*ENDLESS))

        def acting(n):
            run.await_alive(lambda: (run.status().get("actors"), run.status().get("actors_wanted")) == (n, n), f"{n} actors")
            equal(len([p for p in run.status()["processes"] if p["name"].startswith("actor") and p["pid"] > 0]), n, "actors that run")

        contains(place.call("resize", "actors=4", "--run", "run")[0], "actors: 2 -> 4")
        acting(4)
        contains(place.call("resize", "actors=1", "--run", "run")[0], "actors: 4 -> 1")
        acting(1)
        for wrong in ("actors=0", "actors=x", "learners=2", "actors=auto"):
            place.call("resize", wrong, "--run", "run", status=2)
        with concurrent.futures.ThreadPoolExecutor() as pool:  # each of several at once gets the answer to its own request
            wanted = [2, 3, 4, 5]
            for n, (out, _) in zip(wanted, pool.map(lambda n: place.call("resize", f"actors={n}", "--run", "run"), wanted)):
                contains(out, f" -> {n}\n")
        place.call("resize", "actors=3", "--run", "run")
        acting(3)
        place.call("stop", "run")
        run.ends(0, PATIENCE)
        place.call("resize", "actors=3", "--run", "run", status=1)
        run = place.start("resume", "run")
        run.given = "run"
        acting(3)
        place.call("stop", "run")
        run.ends(0, PATIENCE)


def test_without_evaluator():
    """An environment of one's own is none that we could measure."""
    with Place() as place:
        run = place.launch(*sets("evaluator.episodes=0"))
        text = run.ends()
        check("final return" not in text, text)
        equal(run.read("report.json")["final_value"], None, "final value")
        check(not (run.folder / "logs/measure.log").exists(), "it was measured")
        place.call("eval", status=1)  # over no episodes


def test_mistakes():
    with Place() as place:
        viewer = place.start("open", "tcp://127.0.0.1:1")
        wrong = place.base / "wrong.yaml"
        wrong.write_text(place.config.read_text().replace("batch: 16", "bach: 16").replace("count: 2", "count: few")
                         .replace("kind: sample_to", "kind: sampl_to") + "surprise: 1\n")
        _, said = place.call("check", str(wrong), status=2)
        for part in (":4:", ":6:", ":16:", ":17:", "bach", "did you mean 'batch'", "few", "sampl_to", "surprise",
                     "4 mistakes in the configuration; nothing was started"):
            check(part in said, repr(part), "is not in", said)
        equal(place.call(str(wrong), status=2)[1], said, "a run says the same")
        _, said = place.call("check", str(place.config), *sets("actors.command=[a, '{sevice}']", "stop.stepps=3"), status=2)
        contains(said, "stepps")
        _, said = place.call("check", str(place.config), *sets("actors.command=[a, '{sevice}']"), status=2)
        contains(said, "no placeholder {sevice}")
        contains(place.call("check", "nothing.yaml", status=2)[1], "1 mistake in the configuration; nothing was started\n")
        for text, hint in (("", "section broker"), ("tables: [{nam: t}]\nport: 5\n", "replay-broker -c")):
            wrong.write_text(text)
            contains(place.call("check", str(wrong), status=2)[1], "broker.tables: is required", hint)
        contains(place.call("stat", status=2)[1], "did you mean 'status'")
        contains(place.call("chekc", str(place.config), status=2)[1], "'chekc'", "did you mean 'check'")
        contains(place.call("wonder", str(place.config), status=2)[1], "no verb 'wonder'")
        contains(place.call("wonder", status=2)[1], "'wonder' is neither a verb nor a file")
        contains(place.call("check", str(place.config), "--force", status=2)[1], "check has no --force")
        (place.base / "old").mkdir()
        (place.base / "old" / "launch.json").write_text("{}")
        contains(place.call("old", status=2)[1], "resume old")
        contains(place.call(status=2)[0], "Usage:")
        contains(place.call("status", status=1)[1], "there is no run in 'runs'")
        viewer.await_text("no broker answers")
        viewer.stop()
        contains(place.call("resume", "nowhere", status=1)[1], "there is no run in 'nowhere'")
        check(not (place.base / "runs").exists(), "mistakes have made a folder")


def test_from_another_process():
    with Place() as place:
        run = place.running(*sets(*ENDLESS))
        followed, tail = place.start("status", "--follow", "--json"), place.start("logs", "launch", "--follow", "--lines", "0")
        status = json.loads(place.call("status", "--json")[0])
        equal((status["phase"], status["actors"], status["learners"]), ("running", 2, 1), "status")
        equal([p["name"] for p in status["processes"]], ["broker", "learner-0", "actor-0", "actor-1", "evaluator-0"], "names")
        name = run.folder.resolve().name
        contains(place.call("status", name)[0], "small  running", "SPI", "actors 2/2", "learners 1/1", "memory")
        contains(place.call("status", "--run", "runs/" + name)[0], "small  running")
        equal(place.call("logs")[0].split(), ["actor-0", "actor-1", "broker", "evaluator-0", "launch", "learner-0"], "logs")
        contains(place.call("logs", "launch")[0], "A0401 a run begins", "started process=actor-1")
        equal(len(place.call("logs", "launch", "--lines", "2")[0].splitlines()), 2, "lines")
        contains(place.call("logs", "nobody", status=1)[1], "there is no log of 'nobody'")
        (run.folder / "logs/quiet.log").write_text("")
        contains(place.call("logs", "quiet")[1], "logs/quiet.log is empty: it has printed nothing")
        (run.folder / "logs/quiet.log").write_text("before\n" * 9)
        emptied = place.start("logs", "quiet", "--follow")
        emptied.await_text("before")
        (run.folder / "logs/quiet.log").write_text("after\n")
        emptied.await_text("after")
        (run.folder / "logs/quiet.log").unlink()
        place.call("logs", "../launch", status=1)
        # Two launchers on one folder; a folder that has a run in it.
        contains(place.call("resume", "runs/latest", status=1)[1], "another replay-launch works on")
        contains(place.call(str(place.config), "--folder", "runs/" + name, status=1)[1], "holds a run already", "resume")
        check(run.alive() and json.loads(place.call("status", "--json")[0])["phase"] == "running", "that has harmed the run")
        equal(place.call("stop")[0], "runs/%s: stopped\n" % name, "stop")
        contains(run.ends(0, PATIENCE), "small stopped after", "replay-launch stop")
        objects = [json.loads(line) for line in followed.ends().splitlines()]
        equal((objects[0]["phase"], objects[-1]["phase"]), ("running", "stopped"), "what --follow has seen")
        contains(tail.ends(), "A0401 a run begins", "ended process=broker")
        contains(place.call("stop")[0], "has ended already")
        contains(place.call("status")[0], "small  stopped")
        equal(run.read("report.json")["phase"], "stopped", "exit")


def test_interrupt_and_resume():
    with Place() as place:
        first = place.launch(*sets(*ENDLESS))
        first.await_alive(lambda: (first.read("launch.json") or {}).get("learner_steps", 0) > 100, "learner steps")
        asked = time.monotonic()
        text = first.stop()
        check(time.monotonic() - asked < PATIENCE / 2, "it took", time.monotonic() - asked, "s")
        contains(text, "stopping: Ctrl-C", "small stopped after")
        place.nobody_left()
        check((first.folder / "learner.weights").stat().st_size > 100, "no state was saved")
        one, before = first.read("report.json"), first.read("launch.json")
        equal((one["phase"], one["legs"]), ("stopped", 1), "report")

        # Taken up again, then lost: what was reached counts on.
        second = place.start("resume", "runs/latest")
        second.await_text("resumes after {:d} environment steps".format(before["steps"]))
        second.await_alive(lambda: (second.read("launch.json") or {}).get("steps", 0) > before["steps"] + 500, "more steps")
        status = second.await_phase("running")
        check(status["learner_steps"] >= before["learner_steps"] and status["elapsed_s"] > before["elapsed_s"], before, status)
        second.signal(signal.SIGKILL)
        second.ends(-signal.SIGKILL)
        place.nobody_left()
        contains(place.call("status")[0], "the launcher is gone", "resume")
        middle = second.read("launch.json")

        # An end that lies behind is no end.
        for end in ("stop.steps=%d" % (middle["steps"] - 1), "stop.learner_steps=1", "stop.time=10ms"):
            said = place.call("resume", "runs/latest", *sets(end), status=2)[1]
            contains(said, end.split("=")[0])
            check(str(middle["steps"]) in said or "steps=" not in end or "learner" in end, said)
        equal(second.read("launch.json")["legs"], middle["legs"], "legs after ends that were refused")

        # Now to an end.
        end = middle["steps"] + 1500
        third = place.start("resume", first.folder.resolve().name, *sets("stop.steps=%d" % end, "environment.delay=0s"))
        contains(third.ends(), RESULT)
        report = check_report(third)
        equal((report["steps"], report["legs"], report["phase"]), (end, 3, "done"), "report")
        check(report["learner_steps"] > middle["learner_steps"] > one["learner_steps"], report)
        check(report["elapsed_s"] > middle["elapsed_s"] > one["elapsed_s"], report)
        lines = json_lines(third.folder / "metrics.jsonl")
        slow = [line for line in lines if line["elapsed_s"] <= middle["elapsed_s"]]  # environment.delay: 1000/s an actor
        check(all(line["steps_rate"] <= 3000 for line in slow), "what was counted before is no speed", slow)
        steps = [line["steps"] for line in lines if line["phase"] in ("running", "done")]
        equal(steps, sorted(steps), "steps of all legs")
        contains(place.call("resume", "runs/latest", status=1)[1], "has met its stop condition: %d environment steps" % end,
                 "--set stop.steps")
