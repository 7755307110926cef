"""A run of real processes in a folder of its own: broker, learners, actors and evaluator from one file."""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile

from harness import check, ctl, equal, eventually, json_lines, proc

SLOW = 4 if os.environ.get("RP_SANITIZE") else 1  # how much longer everything takes
PATIENCE = 60 * SLOW


def program(name):
    return os.environ.get("RP_" + name.upper(), "replay-" + name)


class Program:
    """A process whose output is in a file, so it is no terminal."""

    def __init__(self, name, out, command, **options):
        self.name, self.out = name, out
        with open(out, "ab") as file:
            self.popen = subprocess.Popen(command, **{"stdout": file, "stderr": file, **options})

    def alive(self):
        return self.popen.poll() is None

    def text(self):
        return self.out.read_text(errors="replace")

    def ends(self, status=0, seconds=3 * PATIENCE, what="to end"):
        """Ends by itself, or because it was asked to. Gives what it printed."""
        try:
            got = self.popen.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError("%s had %g s %s:\n%s" % (self.name, seconds, what, self.text())) from None
        check(got == status, self.name, "ended with status", got, "and not", status, "\n" + self.text())
        return self.text()


class Process(Program):
    """A program of a Run."""

    def __init__(self, run, name, command):
        super().__init__(name, run.folder / (name + ".log"), command)
        run.processes.append(self)

    def kill(self):
        self.popen.kill()
        self.popen.wait()

    def ask(self):
        eventually(lambda: self.stopped_by_handler() or not self.alive(), PATIENCE, "the handler of " + self.name)
        self.popen.send_signal(signal.SIGTERM)

    def stop(self):
        self.ask()
        self.ends(what="to end after SIGTERM")

    def stopped_by_handler(self):
        """Whether SIGTERM would find the handler: it is set once the configuration was read."""
        lines = proc(self.popen.pid, "status").splitlines()
        caught = next((line.split()[1] for line in lines if line.startswith(b"SigCgt:")), b"0")
        return bool(int(caught, 16) >> (signal.SIGTERM - 1) & 1)


RATIO = "sample_to_insert_ratio, samples_per_insert: 4, min_size: 200, error_buffer: 100"

BROKER = """broker:
  service: ipc://BASE/service
  ingest: ipc://BASE/ingest
  events: ipc://BASE/events
%s  tables:
    - name: replay
      max_size: 10000
      sampler: {kind: prioritized, exponent: 0.6}
      limiter: {kind: %s}
"""


def configuration(broker="", limiter=RATIO, **sections):
    """The file of a run of CartPole, whose folder is BASE: with these sections instead of its own, and more lines for the broker."""
    sections = {"folder": "BASE/run", "environment": "{name: CartPole-v1}",
                "agent": "{algorithm: dqn, hidden: [16], batch: 16}",
                "adder": "{table: replay, n_step: 3, buffer_items: 20}",
                "actors": "{count: 2, epsilon: 0.4}", "learners": "{save_every: 100ms}", "report": "{every: 50ms}", **sections}
    return "".join("%s: %s\n" % section for section in sections.items()) + BROKER % (broker, limiter)


class Run:
    def __init__(self, config):
        self.base = pathlib.Path(tempfile.mkdtemp(prefix="replay-run-"))
        self.folder, self.processes, self.endpoint = self.base / "run", [], "ipc://%s/service" % self.base
        self.folder.mkdir()
        self.config = self.base / "run.yaml"
        self.config.write_text(config.replace("BASE", str(self.base)))

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        for process in self.processes:
            if process.alive():
                process.kill()
        if kind:
            for log in sorted(self.folder.glob("*.log")):
                print("---- %s\n%s" % (log.name, log.read_text(errors="replace")[-2000:]))
        shutil.rmtree(self.base, ignore_errors=True)

    def start(self, name, kind, *more):
        return Process(self, name, [program(kind), "-c", str(self.config), *more])

    def broker(self):
        process = self.start("broker", "broker", "--section", "broker", "--log-level", "warn")
        eventually(lambda: self.info() or not process.alive(), PATIENCE, "the broker's start")
        check(process.alive(), process.text())
        return process

    def stop(self, *processes, seconds=PATIENCE, what="to end"):
        """Asks all of them to end before it waits for any."""
        for process in processes:
            process.ask()
        for process in processes:
            process.ends(0, seconds, what)

    def learner(self, index=0, *more):
        return self.start("learner-%d" % index, "learner", "--index", str(index), *more)

    def actor(self, index=0, *more):
        return self.start("actor-%d" % index, "actor", "--index", str(index), *more)

    def evaluator(self, *more):
        return self.start("evaluator-0", "actor", "--evaluate", *more)

    def ctl(self, command):
        """What the broker tells, or None."""
        status, text, _ = ctl("-e", self.endpoint, "--json", "--timeout", "30s", command)
        return json.loads(text) if status == 0 else None

    def info(self):
        return self.ctl("info")

    def longest_wait(self, kind):
        """Seconds that somebody has waited in the broker; 0: nobody waits."""
        waits = (self.ctl("why") or {}).get("waits", ())
        return max((wait["waited_ns"] / 1e9 for wait in waits if wait["kind"] == kind), default=0)

    def counter(self, name):
        return next((c["value"] for c in (self.info() or {}).get("counters", ()) if c["name"] == name), 0)

    def policy(self):
        """Version of the published parameters; 0: none."""
        return next((s["version"] for s in (self.info() or {}).get("slots", ()) if s["name"] == "policy"), 0)

    def table(self):
        return self.info()["tables"][0]

    def reports(self, process):
        """The whole lines of a process' log."""
        return json_lines(self.folder / (process + ".jsonl"))

    def last(self, process, name, default=0):
        reports = self.reports(process)
        return reports[-1].get(name, default) if reports else default

    def await_more(self, process, name, more=1):
        """Until a scalar of new reports is larger by so much than it is now."""
        before = self.last(process, name)
        return eventually(lambda: self.last(process, name) >= before + more and self.last(process, name), PATIENCE,
                          "%s of %s, which was %s," % (name, process, before))
