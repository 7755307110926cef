"""Runs whose broker keeps a journal: whoever is killed or stopped, in any order, the run comes to its end, and nothing that was
accepted is lost on the way."""

import json
import os
import random
import signal
import subprocess
import time

from launches import CONFIG, ENDLESS, PATIENCE, SLOW, Place, check, equal, program, sets
from harness import contains, ctl, kill

# The small run, slower, with an item for each step and a journal.
CONFIG = CONFIG.replace("{name: CartPole-v1}", "{name: CartPole-v1, delay: 1ms}").replace("steps: 3000", "steps: 6000") \
    .replace("{backoff: 50ms}", "{backoff: 20ms, failures: 100, hang: 2s}").replace("error_buffer: 100", "error_buffer: 400").replace("n_step: 3", "n_step: 1") \
    .replace("broker:", "broker:\n  folder: broker\n  journal: 50ms")
PROCESSES = ("broker", "actor-0", "actor-1", "learner-0", "evaluator-0")


class Ledger:
    """What the broker has said, over all its lives: none of it may ever fall."""

    def __init__(self, run):
        self.run, self.best, self.brokers = run, {}, set()

    def ask(self):
        service = (self.run.read("launch.json") or {}).get("service")
        if not service:
            return None
        status, info, _ = ctl("-e", service, "--json", "--timeout", "%dms" % (500 * SLOW), "info")
        return json.loads(info) if status == 0 else None

    def answer(self):
        return self.run.await_alive(self.ask, "an answer of the broker")

    def look(self):
        """False: nobody answers."""
        info = self.ask()
        if not info or not info.get("tables"):
            return False
        table = info["tables"][0]
        seen = {"inserts": table["limiter"].get("inserts", 0), "samples": table["limiter"].get("samples", 0),
                "size": table.get("size", 0), "policy": max([s["version"] for s in info.get("slots", ())], default=0)}
        seen.update({c["name"]: c["value"] for c in info.get("counters", ()) if c["name"] == "learner_steps"})
        for name, value in seen.items():
            check(value >= self.best.get(name, 0), name, "fell from", self.best.get(name), "to", value, "at", info["server"])
            self.best[name] = value
        check(seen["size"] == seen["inserts"], "of", seen["inserts"], "items that were inserted there are", seen["size"])
        self.brokers.add(info["server"]["instance"])
        return True


def hurt(run, process, how):
    """False: there is no such process now."""
    pid = run.pid(process)
    if how == "kill":
        return bool(pid) and kill(pid)
    if not pid or not kill(pid, signal.SIGSTOP):
        return False
    time.sleep(0.2)
    return kill(pid, signal.SIGCONT)


def resumed(place, *words):
    run = place.start("resume", "run", *words)
    run.given = "run"
    run.await_alive(lambda: "the tables are those of the journal" in run.text(), "the resumed run's first words")
    return run


def hurt_one(place, run, chance):
    """Gives the run, which may be another one, and what was done."""
    process, how = chance.choice(PROCESSES + ("broker", "launcher")), chance.choice(("kill", "kill", "stop"))
    if process != "launcher":
        return run, "%s %s" % (how, process) if hurt(run, process, how) else None
    if how == "stop":
        run.signal(signal.SIGSTOP)
        time.sleep(0.2)
        run.signal(signal.SIGCONT)
        return run, "stop launcher"
    run.signal(signal.SIGKILL)
    if run.popen.wait() != -signal.SIGKILL:
        return run, None  # it has ended before
    place.nobody_left()
    return resumed(place), "kill launcher"


def test_kill_anything():
    seed = int(os.environ.get("RP_TEST_SEED", 0)) or random.randrange(1, 1 << 32)
    print("RP_TEST_SEED=%d" % seed)
    chance, faults = random.Random(seed), []
    with Place(CONFIG) as place:
        run = place.running("--folder", "run")
        ledger = Ledger(run)
        while run.alive() and len(faults) < 12:
            time.sleep(chance.uniform(0.05, 0.25))
            run, fault = hurt_one(place, run, chance)
            ledger.run = run
            faults += [fault] if fault else []
            ledger.look()
        print("faults:", ", ".join(faults))
        while run.alive():
            ledger.look()
            time.sleep(0.05)
        text = run.ends(seconds=3 * PATIENCE)
        contains(text, "6000 environment steps were taken")
        report = run.read("report.json")
        equal((report["steps"], report["phase"]), (6000, "done"), "report")
        steps = run.history()
        equal(steps, sorted(steps), "steps")
        # A step makes an item, unless its actor died before it was sent; none is there twice.
        check(0 < ledger.best["inserts"] <= 6000, ledger.best)
        print("in the end:", ledger.best, "brokers:", len(ledger.brokers))


def test_another_ratio_while_it_runs():
    """It is the target from then on, also for a broker that was killed. Steps never go back, not even at the end."""
    with Place(CONFIG) as place:
        run = place.running("--folder", "run", *sets(*ENDLESS))
        ledger = Ledger(run)
        status, _, error = ctl("-e", run.read("launch.json")["service"], "limiter", "replay", "samples_per_insert=1")
        equal(status, 0, error)
        run.await_alive(lambda: run.read("status.json")["spi_target"] == 1, "the new target")
        instance = ledger.answer()["server"]["instance"]
        hurt(run, "broker", "kill")
        run.await_alive(lambda: (ledger.ask() or {"server": {"instance": instance}})["server"]["instance"] != instance,
                        "another broker")
        equal(ledger.answer()["tables"][0]["limiter"]["samples_per_insert"], 1, "samples per insert")
        run.await_more_steps(500)
        run.stop()
        steps = run.history()
        equal(steps, sorted(steps), "steps")
        report = run.read("report.json")
        equal((report["spi_target"], report["steps"]), (1, steps[-1]), "report")


def test_resume_finds_the_table():
    with Place(CONFIG) as place:
        run = place.launch("--folder", "run", *sets(*ENDLESS))
        ledger = Ledger(run)
        run.await_alive(lambda: ledger.look() and ledger.best["inserts"] > 700, "some items")
        run.stop()
        steps = run.steps() + 2000
        ledger.run = again = resumed(place, *sets("stop.steps=%d" % steps))
        again.await_alive(ledger.look, "the broker's answer")
        again.ends(seconds=2 * PATIENCE)
        check(list((again.folder / "broker").glob("*")), "no files of the broker in the run's folder")
        equal(again.read("report.json")["steps"], steps, "steps")


class SmallDisk:
    """A file system of its own for the run's journal, in a name space of the launcher; it can be made larger."""

    def __init__(self, place, size):
        self.path = place.base / "disk"
        self.path.mkdir()
        mount = "mount -t tmpfs -o size=%s tmpfs %s" % (size, self.path)
        self.possible = subprocess.run(["unshare", "-rm", "sh", "-c", mount], capture_output=True).returncode == 0
        self.launch = place.write("launch.sh", "#!/bin/sh\nexec unshare -rm sh -c '%s && exec %s \"$@\"' sh \"$@\"\n"
                                  % (mount, program("launch")))

    def grow(self, pid, size):
        subprocess.run(["nsenter", "-t", str(pid), "-U", "-m", "--preserve-credentials", "mount", "-o",
                        "remount,size=" + size, str(self.path)], check=True)


def test_full_disk():
    with Place(CONFIG) as place:
        disk = SmallDisk(place, "256k")
        if not disk.possible:
            print("skipped: there are no name spaces here")
            return
        before = os.environ["RP_LAUNCH"]
        try:
            os.environ["RP_LAUNCH"] = disk.launch
            run = place.launch("--folder", "run", *sets("stop.steps=4000", "launch.hang=60s",
                                                        "broker.folder=%s/journal" % disk.path))
        finally:
            os.environ["RP_LAUNCH"] = before
        ledger = Ledger(run)
        run.await_alive(lambda: "error B0501" in run.log("broker") or "warn  B0505" in run.log("broker"), "a loud line")
        run.await_alive(lambda: run.status().get("cause") == "disk", "the reason")
        stands = run.history()[-1]
        time.sleep(1.0)
        check(run.history()[-1] < stands + 100 and stands < 4000, "goes on:", run.history()[-1], "after", stands)
        disk.grow(run.pid("broker"), "64m")
        while run.alive():
            ledger.look()
            time.sleep(0.05)
        run.ends(seconds=2 * PATIENCE)
        report = run.read("report.json")
        equal((report["steps"], report["restarts"]), (4000, 0), "steps, and who had to be started again")
