"""What replay-launch does when its processes fail, hang, do not end or cannot be started; and when it is killed itself."""

import os
import pathlib
import signal
import time

from launches import CONFIG, ENDLESS, PATIENCE, SLOW, STUBBORN, Place, check, counted, equal, foreign, sets
from harness import contains

FOREIGN_FOLDER = pathlib.Path(__file__).resolve().parents[1] / "foreign"


def killed(launcher, process):
    """Kills it and awaits the next start."""
    before = launcher.starts(process)
    os.kill(launcher.pid(process), signal.SIGKILL)
    launcher.await_start(process, before + 1)


def test_each_may_die():
    """Actor, learner and evaluator, one after the other, in a run that still comes to its end."""
    with Place() as place:
        run = place.running(*sets("stop.steps=6000", "environment.delay=500us"))
        for process in ("actor-0", "evaluator-0", "learner-0"):
            killed(run, process)
        text = run.ends()
        for process in ("actor-0", "evaluator-0", "learner-0"):
            contains(text, process + " ended after ")
        contains(text, "killed by SIGKILL (Killed) by a user, or by the kernel", "; it starts again in 0.1 s", "small done after", "6,000 steps")
        report = run.read("report.json")
        equal((report["restarts"], report["steps"], report["phase"]), (3, 6000, "done"), "report")
        check(len([e for e in report["events"] if "killed by SIGKILL" in e["event"]]) > 0, report["events"])
        # The learner has gone on from what it saved.
        check(report["learner_steps"] > 1000, report["learner_steps"], "learner steps")


def test_broker_dies():
    """Without a journal the tables are lost with the broker, and nothing else: the learner pauses until min_size is met again."""
    with Place() as place:
        run = place.launch(*sets("stop.steps=6000", "environment.delay=500us"))
        run.await_alive(lambda: run.steps() > 1500, "steps")
        before, service, learner = run.read("status.json"), run.read("launch.json")["service"], run.pid("learner-0")
        # For a while nobody tells the new broker how far the run is.
        os.kill(learner, signal.SIGSTOP)
        killed(run, "broker")
        seen = len(run.history())
        run.await_alive(lambda: len(run.history()) >= seen + 2, "a look at it")
        os.kill(learner, signal.SIGCONT)
        text = run.ends()
        check(run.pid("learner-0") == learner and "learner-0 ended after" not in text, "another learner:", text)
        check(not (run.folder / "broker").exists(), "a journal that nobody asked for")
        contains(text, "broker ended after ", "Its last lines:\n", "B0001 broker started", "small done after", "6,000 steps")
        report = run.read("report.json")
        equal((report["steps"], report["phase"], run.read("launch.json")["service"]), (6000, "done", service), "report")
        check(report["learner_steps"] > before["learner_steps"], report, before)
        steps = run.history()
        equal(steps, sorted(steps), "steps; those before the broker's end count")


def test_broker_forgets_the_steps():
    """Where no learner of ours tells a new broker how far the run is, the launcher does."""
    with foreign("#!/bin/sh\nsleep 1000\n") as place:
        run = place.launch(*sets("stop.steps=1000"))
        run.await_start("actor-0")
        run.await_phase("filling")
        counted(run, 700)
        run.await_alive(lambda: run.read("status.json")["steps"] == 700, "700 steps")
        killed(run, "broker")
        run.await_alive(lambda: counted(run) == 700, "the steps at the new broker")
        run.stop()
        again = place.start("resume", "runs/latest")
        again.await_start("actor-0", 2)
        again.await_alive(lambda: counted(again) == 700, "the steps after a resume")
        counted(again, 300)
        contains(again.ends(), "1000 environment steps were taken")
        equal(again.read("report.json")["steps"], 1000, "steps")


def test_damaged_state():
    """A learner that cannot load its state says what can be done; stop.time makes no success of it. What is not written is not named."""
    with Place() as place:
        run = place.running(*sets(*ENDLESS, "learners.snapshot_every=100"))
        run.await_alive(lambda: (run.folder / "snapshots").exists() and (run.folder / "learner.weights").exists(), "what is saved")
        (run.folder / "report.html").mkdir()
        text = run.stop()
        check("the report could not be written" in text and "report: " not in text, text)
        (run.folder / "learner.weights").write_bytes(b"")
        end = run.read("launch.json")["elapsed_s"] + 6 * SLOW
        again = place.start("resume", "runs/latest", *sets("stop.time=%gs" % end, "launch.failures=100"))
        contains(again.ends(1), "/snapshots over it, or remove it", "replay-launch: learner-0 failed ")


def test_gives_up():
    with foreign("#!/bin/sh\necho 'no such licence'\necho try $$ >&2\nexit 7\n") as place:
        run = place.launch(*sets("launch.failures=3"))
        text = run.ends(1)
        contains(text, "actor-0 ended after ", "with exit status 7; it starts again in 0.1 s.",
                 "Its last lines:\nno such licence\n")
        first = run.log("actor-0").splitlines()[1]
        contains(text, "actor-0 failed 3 times in a row with exit status 7; the first time after ",
                 "  | no such licence\n  | %s\n" % first)
        contains(text, "replay-launch: actor-0 failed 3 times", "small failed after ")
        check(text.index("small failed after ") < text.index("replay-launch: actor-0 failed"), "the cause is the last word", text)
        equal(run.starts("actor-0"), 3, "starts")
        report = run.read("report.json")
        equal(report["phase"], "failed", "exit")
        contains(report["reason"], "actor-0 failed 3 times in a row with exit status 7", first)
        check(all(not event["event"].endswith(":") for event in report["events"]), "an event without its cause", report)
        check(not run.read("launch.json")["done"], "a run that failed can be resumed")


def whole_lines(text, what):
    """How many lines say this and nothing else. The line of a status, which an end that takes long has, may name it, too."""
    return sum(line.strip(" |") == what for line in text.splitlines())


def test_cause_once():
    """What a process said before it failed is shown when it fails, and as the last word; not again in between."""
    for failures, times in ((4, 2), (1, 1)):
        with foreign("#!/bin/sh\necho 'no such licence'\nexit 7\n") as place:
            text = place.launch(*sets("launch.failures=%d" % failures)).ends(1)
            equal(whole_lines(text, "no such licence"), times, "times that the cause is printed")
            check(failures == 1 or text.count("replay-launch: actor-0 failed 4 times in a row") == 1, "times that the end is explained", text)


def test_no_such_command():
    """Found before anything starts; and where it goes away later."""
    with foreign("") as place:
        run = place.launch(*sets("actors.command=[./nothing-here]", "learners.command=[%s/run.yaml]" % place.base))
        contains(run.ends(2), "actors.command: there is no program './nothing-here', or it is not executable",
                 "learners.command: there is no program ", "2 mistakes in the configuration; nothing was started")
        run = place.launch(*sets("actors.command=[sh, '{here}/gone.sh', '{index}']"))
        contains(run.ends(2), "actors.command: there is no file '%s/gone.sh'" % place.base, "1 mistake")
        check(not (place.base / "runs").exists(), "a folder was made")
    with foreign("#!/bin/sh\nrm -- \"$0\"\nexit 7\n") as place:
        text = place.launch(*sets("launch.failures=2")).ends(1)
        contains(text, "could not start ", ": No such file or directory; check the path",
                 "actor-0 could not be started 2 times in a row")


def test_bad_broker():
    """A broker that cannot listen: the run ends, and says why."""
    with foreign("#!/bin/sh\nsleep 1000\n") as place:
        run = place.launch(*sets("launch.failures=2", "broker.service=tcp://192.0.2.1:7777"))
        contains(run.ends(1), "broker failed 2 times in a row", "192.0.2.1")


def test_hang():
    with foreign("#!/bin/sh\ntrap 'exit 0' TERM\necho here\nwhile :; do sleep 0.1; done\n", 2) as place:
        run = place.launch(*sets("launch.hang=5s", "learners.command=['sh', '-c', 'while sleep 0.1; do :; done']"))
        run.await_start("actor-1")
        stopped = run.pid("actor-1")
        os.kill(stopped, signal.SIGSTOP)
        run.await_text("actor-1 hangs: it used no processor time for 5 s and is stopped; it is killed (launch.hang)")
        check(run.await_start("actor-1", 2) != stopped, "the same process")
        contains(run.text(), "actor-1 ended after ", "killed by SIGKILL (Killed) by replay-launch")
        equal((run.starts("actor-0"), run.starts("learner-0"), run.starts("broker")), (1, 1, 1), "starts of the others")
        run.stop()


def test_last_measurement_hangs():
    """It may take long, but it must work: nothing else ends it."""
    with Place() as place:
        script = "#!/bin/sh\ntrap 'exit 0' TERM\n[ $# = 0 ] || exec sleep 1000\nwhile :; do sleep 0.1; done\n"
        run = place.launch(*sets("evaluator.command=['%s']" % place.write("evaluator", script), "launch.hang=4s", "stop.steps=0",
                                 "stop.learner_steps=50"))
        run.await_phase("measuring")
        contains(run.ends(), "the last parameters could not be measured", "small done after")


def test_grace():
    with foreign(STUBBORN) as place:
        run = place.launch(*sets("launch.grace=500ms"))
        run.await_alive(lambda: "stubborn" in run.log("actor-0") and "child" in run.log("actor-0"), "the actor")
        asked = time.monotonic()
        contains(run.stop(), "actor-0 did not end within 0.5 s of SIGTERM (launch.grace); it is killed",
                 "small stopped after")
        check(0.5 <= time.monotonic() - asked < PATIENCE / 2, "it took", time.monotonic() - asked, "s")


def test_second_interrupt():
    with foreign(STUBBORN, 2) as place:
        run = place.launch(*sets("launch.grace=60s"))
        run.await_alive(lambda: all("stubborn" in run.log("actor-%d" % i) for i in range(2)), "the actors")
        run.signal()
        run.await_text("stopping: Ctrl-C")
        asked = time.monotonic()
        run.signal()
        contains(run.ends(130, PATIENCE), "asked twice: all processes are killed")
        check(time.monotonic() - asked < PATIENCE / 2, "it took", time.monotonic() - asked, "s")
        place.nobody_left(2 * SLOW)

        run = place.launch("--folder", "second", *sets("launch.grace=60s"))
        run.await_alive(lambda: all("stubborn" in run.log("actor-%d" % i) for i in range(2)), "the actors")
        contains(place.call("stop", "second", "--force")[0], "stopped")
        run.ends(130, PATIENCE)
        place.nobody_left(2 * SLOW)


def test_actors_may_end():
    with foreign("#!/bin/sh\necho all done\nexit 0\n", 2) as place:
        run = place.launch()
        text = run.ends(1)
        contains(text, "stopping:", "replay-launch: the actors have ended with status 0, but none has inserted anything")
        equal(text.count("none has inserted anything"), 1, "times that the cause is printed")
        equal((run.starts("actor-0"), run.starts("actor-1")), (1, 1), "starts")
        equal(run.read("report.json")["phase"], "failed", "exit")


def test_time_bounds_the_end():
    """stop.time holds for whatever does not end by itself: an actor that does not mind SIGTERM, a learner that still has
    much to learn, and the measurement of the last parameters. Each would take a minute or more."""
    with foreign(STUBBORN) as place:
        launcher = place.launch(*sets("stop.time=3s", "launch.grace=60s"))
        launcher.await_text("stopping:")
        contains(launcher.ends(), "stop.time (3 s) has passed")
        check(launcher.read("report.json")["elapsed_s"] < 3 + PATIENCE, "wall time")
    slow = ("stop.steps=400", "stop.time=8s", "learners.delay=2s", "evaluator.every=0")  # time for a slow start
    for values in (slow, ("stop.steps=0", "stop.time=8s", "evaluator.episodes=1000000", "evaluator.every=0")):
        with Place(CONFIG.replace("error_buffer: 100", "error_buffer: 5000")) as place:
            launcher = place.launch(*sets(*values))
            launcher.ends()
            report = launcher.read("report.json")
            equal(report["phase"], "done", "the end")
            check(report["elapsed_s"] < 8 + PATIENCE, report["elapsed_s"], "s")
            check((launcher.folder / "learner.weights").exists(), "the learner's state is not saved")


GIVES_BACK = """#!/usr/bin/python3
import signal, sys, time
sys.path.insert(0, FOREIGN)
sys.dont_write_bytecode = True
from service import Service
service = Service(ENDPOINT)


def end(*_):
    service.counter("environment_steps", -7)
    sys.exit(0)


signal.signal(signal.SIGTERM, end)
service.counter("environment_steps", 3000)
while True:
    time.sleep(0.02)
"""


def test_steps_given_back():
    """An actor that is asked to end gives back steps when all were taken: learner and evaluator end all the same."""
    with Place() as place:
        path = place.write("actor.py", GIVES_BACK.replace("FOREIGN", repr(str(FOREIGN_FOLDER))).replace(
            "ENDPOINT", "__import__('os').environ['REPLAY_ENDPOINT']"))
        place.config.write_text(CONFIG.replace("count: 2, epsilon: 0.4", "count: 1, command: [%s]" % path))
        launcher = place.launch()
        launcher.ends(seconds=PATIENCE)  # launch.hang is a minute
        report = launcher.read("report.json")
        equal((report["phase"], report["steps"], report["reason"][:4]), ("done", 3000, "3000"), "the end")
        for name in ("learner-0", "evaluator-0", "actor-0"):
            contains(launcher.log(), 'process=%s how="exit status 0"' % name)
