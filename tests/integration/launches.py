"""replay-launch in a folder of its own, with a cache of its own; and who is left of its processes."""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import uuid

from harness import everybody, json_lines, kill, proc
from runs import PATIENCE, SLOW, Program, check, equal, eventually, program  # some only for tests that import them here

CONFIG = """
name: small
environment: {name: CartPole-v1}
agent: {algorithm: dqn, hidden: [16], batch: 16}
adder: {table: replay, n_step: 3, buffer_items: 20}
actors: {count: 2, epsilon: 0.4}
learners: {count: 1, save_every: 200ms}
evaluator: {episodes: 2, every: 1000}
stop: {steps: 3000}
launch: {backoff: 50ms}
report: {every: 200ms}
broker:
  tables:
    - name: replay
      max_size: 10000
      limiter: {kind: sample_to_insert_ratio, samples_per_insert: 4, min_size: 200, error_buffer: 100}
"""
# With counts that are measured. Actors and learner sleep most of the time, so that this machine's speed hardly matters: about 230
# inserts/s by an actor, and 150 steps of 16 samples by the learner, which is 600 inserts/s.
AUTO = CONFIG.replace("count: 2", "count: auto").replace("count: 1", "count: auto, delay: 6ms") \
    .replace("{name: CartPole-v1}", "{name: CartPole-v1, delay: 4ms}")
# A run that goes on until it is stopped, and leaves the processors to others.
ENDLESS = ("stop.steps=0", "environment.delay=4ms")
# Actors and learners that are small scripts: nothing but a broker takes part.
FOREIGN = CONFIG.replace("actors: {count: 2, epsilon: 0.4}", "actors: {count: COUNT, command: [ACTOR, \"{index}\"]}") \
    .replace("learners: {count: 1, save_every: 200ms}", "learners: {count: 1, command: [sleep, \"1000\"]}") \
    .replace("evaluator: {episodes: 2, every: 1000}", "evaluator: {episodes: 0}").replace("3000", "0")
# Says so once it does not mind SIGTERM, and starts a child like that.
STUBBORN = """#!/bin/sh
trap '' TERM
( trap '' TERM; echo child; while :; do sleep 0.1; done ) &
echo stubborn
while :; do sleep 0.1; done
"""


def sets(*values):
    return [word for value in values for word in ("--set", value)]


class Launcher(Program):
    def __init__(self, place, name, words, **options):
        self.place = place
        super().__init__(name, place.base / (name + ".out"), [*place.prefix, program("launch"), *words],
                         **{"cwd": place.base, "env": place.environment, **options})
        self.given = words[words.index("--folder") + 1] if "--folder" in words else "runs/latest"

    @property
    def folder(self):
        return self.place.base / self.given

    def signal(self, number=signal.SIGINT):
        self.popen.send_signal(number)

    def stop(self, seconds=3 * PATIENCE):
        """Ctrl-C, and the end. Gives what it printed."""
        self.signal()
        return self.ends(0, seconds)

    def read(self, file):
        """JSON of the folder; None: there is none (yet)."""
        path = self.folder / file
        return json.loads(path.read_text()) if path.exists() else None

    def status(self):
        return self.read("status.json") or {}

    def steps(self):
        """Environment steps, as the status has them."""
        return self.status().get("steps") or 0

    def await_more_steps(self, more=1):
        goal = self.steps() + more
        self.await_alive(lambda: self.steps() >= goal, "%d steps" % goal)

    def hosts(self):
        """Their rows in the status, by name."""
        return {row["name"]: row for row in self.status().get("hosts") or []}

    def history(self, name="steps"):
        """A number of all lines of metrics.jsonl."""
        return [line[name] for line in json_lines(self.folder / "metrics.jsonl")]

    def endpoints(self):
        return dict(line.split(" ", 1) for line in (self.folder / "endpoints").read_text().splitlines())

    def log(self, name="launch"):
        path = self.folder / "logs" / (name + ".log")
        return path.read_text(errors="replace") if path.exists() else ""

    def await_alive(self, condition, what, seconds=PATIENCE):
        """Until it is true; the launcher must still be there."""
        value = eventually(lambda: condition() or not self.alive(), seconds, "%s: %s" % (self.name, what))
        check(self.alive() or condition(), self.name, "ended before", what, "\n" + self.text())
        return value

    def await_phase(self, *phases):
        self.await_alive(lambda: self.status().get("phase") in phases, "phase " + " or ".join(phases))
        return self.read("status.json")

    def await_text(self, text, times=1):
        self.await_alive(lambda: self.text().count(text) >= times, "'%s', %d times," % (text, times))

    def pid(self, process):
        """Of its newest start."""
        lines = [line for line in self.log().splitlines() if "started process=%s pid=" % process in line]
        return int(lines[-1].rsplit("=", 1)[1]) if lines else 0

    def starts(self, process):
        return self.log().count("started process=%s " % process)

    def await_start(self, process, times=1):
        self.await_alive(lambda: self.starts(process) >= times, "start %d of %s" % (times, process))
        return self.pid(process)


class Place:
    """A working directory. Whatever was started in it is known by a mark in its environment, and killed at the end."""

    def __init__(self, config=CONFIG, cache=None):
        self.base = pathlib.Path(tempfile.mkdtemp(prefix="replay-launch-"))
        self.config, self.launchers = self.base / "run.yaml", []
        self.prefix = []  # words before every command, such as those that enter another machine; it keeps its process id
        self.config.write_text(config)
        self.mark = "RP_TEST_MARK=" + uuid.uuid4().hex
        self.environment = dict(os.environ, XDG_CACHE_HOME=str(cache or self.base / "cache"), LC_ALL="C.UTF-8",
                                REPLAY_PAGE="127.0.0.1:0")  # a page for each run: other tests use the common address
        self.environment.update([self.mark.split("=")])

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        """A place whose launchers have all ended has no process left."""
        try:
            if not kind and all(not launcher.alive() for launcher in self.launchers):
                self.nobody_left()
        finally:
            self.clean_up(kind)

    def clean_up(self, failed):
        for pid in self.left():
            kill(pid)
        for launcher in self.launchers:
            launcher.popen.wait()
        if failed:
            for launcher in self.launchers:
                print("---- %s\n%s" % (launcher.name, launcher.text()[-4000:]))
            for log in sorted(self.base.glob("**/logs/*.log")):
                if not log.parent.parent.is_symlink():
                    print("---- %s\n%s" % (log.relative_to(self.base), log.read_text(errors="replace")[-1500:]))
        shutil.rmtree(self.base, ignore_errors=True)

    def write(self, name, text):
        """An executable file."""
        path = self.base / name
        path.write_text(text)
        path.chmod(0o755)
        return str(path)

    def launch(self, *words, config=None):
        """A run in the background."""
        return self.start(str(config or self.config), *words)

    def running(self, *words):
        """The same, once actors act and learners learn."""
        launcher = self.launch(*words)
        launcher.await_phase("running")
        return launcher

    def start(self, *words, **options):
        launcher = Launcher(self, "launcher-%d" % len(self.launchers), list(words), **options)
        self.launchers.append(launcher)
        return launcher

    def call(self, *words, status=0):
        """A verb, to its end; gives (stdout, stderr)."""
        done = subprocess.run([*self.prefix, program("launch"), *words], capture_output=True, text=True, cwd=self.base,
                              env=self.environment, timeout=3 * PATIENCE)
        check(done.returncode == status, words, "ended with status", done.returncode, "and not", status, "\n" + done.stdout,
              done.stderr)
        return done.stdout, done.stderr

    def left(self):
        """Processes that were started from here, at any depth, guards included."""
        return [pid for pid in everybody() if self.mark.encode() in proc(pid, "environ").split(b"\0")]

    def nobody_left(self, seconds=PATIENCE):
        eventually(lambda: not self.left(), seconds, "the end of all processes")


def foreign(actor, count=1):
    """A place whose actors are this script."""
    place = Place()
    path = place.write("actor.sh", actor)
    place.config.write_text(FOREIGN.replace("ACTOR", path).replace("COUNT", str(count)))
    return place


def counted(launcher, add=0):
    """Environment steps that were claimed, as the broker has them. What is added counts as taken, too."""
    from service import Service  # for the tests that speak the protocol only
    service = Service(launcher.endpoints()["service"])
    try:
        service.counter("environment_steps_taken", add)
        return service.counter("environment_steps", add)
    finally:
        service.close()
