"""replay-launch under attack: processes killed, stopped and ended at random and at the worst moments, and odd surroundings."""

import fcntl
import json
import os
import pty
import random
import shutil
import signal
import termios
import time

from launches import ENDLESS, PATIENCE, SLOW, STUBBORN, Place, check, equal, eventually, foreign, sets
import harness
from harness import contains, free_ports, kill, state_of

SEED = int(os.environ.get("RP_TEST_SEED", "0")) or int(time.time())
SECONDS = float(os.environ.get("RP_ATTACK_SECONDS", "12"))
# Many failures, quick restarts, and nobody hangs for long.
TOUGH = ("actors.count=3", "launch.failures=1000", "launch.backoff=20ms", "launch.hang=3s", "learners.save_every=500ms")
NAMES = ("actor-0", "actor-1", "actor-2", "learner-0", "broker", "evaluator-0", "guard")


def children(launcher):
    """{pid: (name, state)} of all, zombies too."""
    return {pid: state[:2] for pid in harness.children(launcher.popen.pid) if (state := state_of(pid))[2]}


def guard_of(launcher):
    pids = [pid for pid, (name, state) in children(launcher).items() if name == "replay-guard" and state != "Z"]
    return pids[0] if pids else 0


def await_turn(run):
    """Until the launcher has written its status again."""
    status = run.folder / "status.json"
    before = status.stat().st_mtime_ns
    run.await_alive(lambda: status.stat().st_mtime_ns > before, "the next turn of the launcher")


def attack(run, rng):
    """Until the time is over; whoever was stopped goes on after a while."""
    wake = []
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        check(run.alive(), "the launcher has ended\n" + run.text())
        how = rng.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM, signal.SIGSTOP])
        for name in rng.sample(NAMES, rng.choice([1, 1, 2, 3])):
            pid = guard_of(run) if name == "guard" else run.pid(name)
            if pid and not (name == "guard" and how == signal.SIGSTOP):
                kill(pid, how)
                wake += [(time.monotonic() + rng.uniform(0.1, 5), pid)] if how == signal.SIGSTOP else []
        time.sleep(rng.uniform(0.05, 1.2))
        for pid in [pid for at, pid in wake if at < time.monotonic()]:
            kill(pid, signal.SIGCONT)
        wake = [(at, pid) for at, pid in wake if at >= time.monotonic()]
    for _, pid in wake:
        kill(pid, signal.SIGCONT)


def test_attack():
    print("RP_TEST_SEED=%d" % SEED)
    with Place() as place:
        run = place.running(*sets(*ENDLESS, *TOUGH))
        files = len(os.listdir("/proc/%d/fd" % run.popen.pid))
        attack(run, random.Random(SEED))
        before = run.status()

        def goes_on():
            now = run.status()
            return (now["phase"] == "running" and now["steps"] > before["steps"] + 300 and now["actors"] == 3
                    and now["learner_steps"] > before["learner_steps"] + 100)
        run.await_alive(goes_on, "more steps of both sides", 40 * SLOW)
        steps = run.history()
        equal(steps, sorted(steps), "steps never fall")
        check(before["restarts"] > 3, "restarts:", before["restarts"])
        eventually(lambda: not [state for _, state in children(run).values() if state == "Z"], 5, "no zombies")
        wanted = ["replay-actor"] * 4 + ["replay-broker", "replay-guard", "replay-learner"]
        eventually(lambda: sorted(name for name, _ in children(run).values()) == wanted, 10 * SLOW, "all children, and no others")
        check(len(os.listdir("/proc/%d/fd" % run.popen.pid)) <= files + 2, "the launcher has more and more files open")
        run.stop()
        place.nobody_left()
        report = run.read("report.json")
        equal((report["phase"], report["steps"]), ("stopped", run.read("launch.json")["steps"]), "report")
        end = report["steps"] + 1000
        again = place.start("resume", "runs/latest", *sets("stop.steps=%d" % end, "environment.delay=0s"))
        again.ends()
        check(again.read("report.json")["learner_steps"] >= report["learner_steps"], "learner steps were lost")


def test_somebody_else_ends_them():
    """A process of ours that ends in order, but not because of us: its work is not done."""
    with Place() as place:
        run = place.running(*sets(*ENDLESS))
        for name in ("learner-0", "actor-1", "evaluator-0"):
            os.kill(run.pid(name), signal.SIGTERM)
            run.await_start(name, 2)
            contains(run.text(), name + " ended after ", "with exit status 0; it starts again")
        run.await_phase("running")
        run.stop()


def test_broker_dies_at_once():
    """It has written where it listens, and answers nobody."""
    with Place() as place:
        run = place.launch(*sets("stop.steps=1000"))
        pid = eventually(lambda: run.starts("broker") and run.pid("broker"), 10 * SLOW, "the broker")
        os.kill(pid, signal.SIGSTOP)
        names = ("service", "ingest", "events")
        (run.folder / "endpoints").write_text("".join("%s tcp://127.0.0.1:%d\n" % one for one in zip(names, free_ports(3))))
        time.sleep(6)  # longer than anybody should wait for an answer
        os.kill(pid, signal.SIGKILL)
        contains(run.ends(), "broker ended after", "small done after")


def test_broker_dies_at_the_end():
    """All steps were taken, and whoever is left waits for a broker that does not come back."""
    with Place() as place:
        run = place.launch(*sets("learners.delay=100ms", "stop.steps=300"))
        run.await_alive(lambda: run.status().get("phase") == "stopping", "the end")
        asked = time.monotonic()
        os.kill(run.pid("broker"), signal.SIGKILL)
        run.ends(0, 2 * PATIENCE)
        contains(run.text(), "broker failed while it ended: killed by SIGKILL")
        check(time.monotonic() - asked < PATIENCE / 2, "it took", time.monotonic() - asked, "s")


def test_learner_can_not_save():
    with foreign("#!/bin/sh\nsleep 1000\n") as place:
        learner = place.write("learner.sh", "#!/bin/sh\ntrap 'echo the disk is full; exit 4' TERM\necho ready\n"
                                            "while :; do sleep 0.1; done\n")
        run = place.launch(*sets("learners.command=[%s]" % learner))
        run.await_alive(lambda: "ready" in run.log("learner-0") and run.starts("actor-0"), "the learner")
        contains(run.stop(), "learner-0 failed while it ended: exit status 4. Its last lines:\n", "the disk is full\n")
        check("actor-0 failed while it ended" not in run.text(), "SIGTERM was ours:", run.text())


def test_guard_and_launcher_are_killed():
    """Another guard learns about the processes, and ends them when 'stop --force' kills a launcher that does not listen."""
    with foreign(STUBBORN) as place:
        run = place.launch()
        run.await_alive(lambda: "child" in run.log("actor-0"), "the actor's child")
        for _ in range(2):
            before = guard_of(run)
            os.kill(before, signal.SIGKILL)
            eventually(lambda: guard_of(run) not in (0, before), 5 * SLOW, "another guard")
        contains(run.text(), "the guard of the processes was killed; there is another one")
        run.signal(signal.SIGSTOP)
        contains(place.call("stop", "--force")[0], ": stopped")
        run.ends(-signal.SIGKILL)
        place.nobody_left(3 * SLOW)


def test_folder_goes_away():
    with Place() as place:
        run = place.running(*sets(*ENDLESS))
        # A process that starts later would make the folder again.
        run.await_alive(lambda: all((run.folder / (name + ".jsonl")).exists()
                                    for name in ("actor-0", "actor-1", "learner-0", "evaluator-0")), "the first reports")
        folder = run.folder.resolve()
        shutil.rmtree(folder.rename(folder.with_suffix(".gone")))  # at once: others write into it meanwhile
        run.await_text("launch.json' cannot be written: No such file or directory: the run goes on")
        text = run.stop()
        contains(text, "the report could not be written", "learner-0 failed while it ended: exit status 1")
        equal(text.count("the run goes on"), 1, "said once")


def test_without_terminal():
    """nohup: the end of the terminal is not that of the run. And none of the standard files is open."""
    with foreign("#!/bin/sh\nsleep 1000\n") as place:
        place.prefix = ["sh", "-c", 'exec nohup "$0" "$@" <&- >&- 2>&-']
        run = place.launch()
        run.await_start("actor-0")
        run.signal(signal.SIGHUP)
        run.signal(signal.SIGHUP)
        time.sleep(0.3 * SLOW)
        check(run.alive() and "A0408" not in run.log(), "SIGHUP has stopped it")
        run.signal(signal.SIGTERM)
        run.ends(0, PATIENCE)
        equal((run.folder / "launch.lock").read_text(), "", "what was printed is in a file of ours:")


def test_hangup():
    """The log is rotated, then the terminal goes away: the run goes on, and its log under its name."""
    with foreign("#!/bin/sh\nsleep 1000\n") as place:
        master, terminal = pty.openpty()
        place.environment["TERM"] = "xterm"
        run = place.start("run.yaml", stdin=terminal, stdout=terminal, stderr=terminal, start_new_session=True,
                          preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0))
        os.close(terminal)
        run.await_start("actor-0")
        log = run.folder / "logs/launch.log"
        log.rename(log.with_suffix(".1"))
        run.signal(signal.SIGHUP)
        run.await_alive(lambda: "L0002" in run.log(), "the log under its name")
        os.close(master)  # sends SIGHUP, too
        run.await_alive(lambda: run.log().count("L0002") > 1, "the end of the terminal")
        await_turn(run)
        check(run.alive() and "A0408" not in run.log(), "SIGHUP has stopped it")
        run.signal(signal.SIGTERM)
        run.ends(0, PATIENCE)


def test_resume_from_elsewhere():
    """Relative paths are those of where the run was begun."""
    with foreign("#!/bin/sh\necho here is $1\nsleep 1000\n") as place:
        run = place.launch(*sets("actors.command=[./actor.sh, '{here}']"))
        run.await_alive(lambda: "here is" in run.log("actor-0"), "the actor")
        run.stop()
        elsewhere = place.base / "else where"
        elsewhere.mkdir()
        again = place.start("resume", "../runs/latest", cwd=elsewhere)
        again.await_alive(lambda: run.log("actor-0").count("here is %s\n" % place.base) == 2, "the actor once more")
        contains(place.call("stop")[0], "stopped")
        again.ends(0, PATIENCE)
        equal(list(elsewhere.iterdir()), [], "files elsewhere")


def test_damaged_state():
    with Place() as place:
        run = place.launch(*sets("stop.steps=500"))
        run.ends()
        state = run.read("launch.json")
        file = run.folder / "launch.json"
        for text in ("", "{", "[1]", "null", "\0\1"):
            file.write_text(text)
            contains(place.call("resume", "runs/latest", status=1)[1], "launch.json' cannot be read", "damaged")
            place.call("stop", "runs/latest")
        # Numbers that nobody can have written, and the count of a run that is to be resized.
        state.update(actors=4000000000, auto_actors=True, steps=2 ** 64 - 1, pid=-1, elapsed_s=-5, done=False)
        file.write_text(json.dumps(state))
        again = place.start("resume", "runs/latest")
        again.ends()
        equal(again.starts("actor-0") <= 2 and not again.starts("actor-2"), True, "actors")
        (run.folder / "config.yaml").write_text("actors: [\n")
        contains(place.call("resume", "runs/latest", *sets("stop.steps=600"), status=2)[1], "config.yaml:", "not valid YAML")


def test_many():
    """Hundreds of actors, with odd characters in their arguments, that all die with one Ctrl-C."""
    odd = "a b\t'\"$HOME `x` \\ {{}"
    with foreign("#!/bin/sh\nprintf '%s\\n' \"$1\"\nexec sleep 1000\n", 250) as place:
        text = place.config.read_text().replace("\"{index}\"", json.dumps(odd))
        place.config.write_text(text)
        run = place.launch()
        run.await_alive(lambda: (run.status().get("actors") or 0) == 250, "all actors", 40 * SLOW)
        eventually(lambda: run.log("actor-249"), 5 * SLOW, "the last actor")
        equal(run.log("actor-249"), odd.replace("{{", "{") + "\n", "its argument")
        asked = time.monotonic()
        run.stop()
        check(time.monotonic() - asked < PATIENCE / 2, "it took", time.monotonic() - asked, "s")


def test_interrupted_at_the_end():
    """Whoever cannot wait for the last measurement gets the report without it."""
    with Place() as place:
        run = place.launch(*sets("stop.learner_steps=50", "evaluator.episodes=1000000", "evaluator.every=0"))
        run.await_phase("measuring")
        contains(run.stop(), "the last parameters were not measured: the run was asked to end", "small done after")
        equal((run.read("report.json")["phase"], run.read("report.json")["final_value"]), ("done", None), "report")
