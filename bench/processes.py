"""A run as separate processes on loopback: a broker, of one shard or of several, a learner, an evaluator and actors."""
import collections
import json
import os
import signal
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PROGRAMS = ["replay-broker", "replay-actor", "replay-learner", "replay-ctl"]
LOOK_S = 0.02  # between two looks at the processes

# config: path of the file. limit: seconds for the whole run. settings: KEY=VALUE for learner, evaluator and actors.
Plan = collections.namedtuple("Plan", "config folder seed actors shards settings limit")
# reports: of the evaluator. tables: what each shard says of the table at the end, as replay-ctl prints it.
Outcome = collections.namedtuple("Outcome", "reports tables seconds")


class Failed(Exception):
    pass


def program(name):
    return os.path.join(os.environ.get("RP_BUILD_DIR", os.path.join(ROOT, "build", "release")), name)


def see_to_programs(names):
    """Builds them if they are missing."""
    missing = [name for name in names if not os.path.exists(program(name))]
    if missing and "RP_BUILD_DIR" in os.environ:
        sys.exit(f"there is no {program(missing[0])}: build it there, or leave RP_BUILD_DIR out")
    if missing and subprocess.run([os.path.join(ROOT, "dev"), "build", "--preset", "release"]).returncode != 0:
        sys.exit("the release build failed")


def seeds_of(text):
    first, _, last = text.partition("-")
    return list(range(int(first), int(last or first) + 1))


def sets(prefix, settings):
    return [word for item in settings for word in ("--set", prefix + item)]


class Group:
    """The processes of one run. Those that are left end with the block."""

    def __init__(self, plan, stopping):
        self.plan, self.stopping = plan, stopping
        self.end = time.monotonic() + plan.limit
        self.processes = []

    def __enter__(self):
        self.log = open(os.path.join(self.plan.folder, "output.log"), "w")
        return self

    def __exit__(self, *_):
        for process in self.processes:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for process in self.processes:
            process.wait()
        self.log.close()

    def start(self, name, *words):
        process = subprocess.Popen([program(name), *words], stdout=self.log, stderr=self.log,
                                   env=dict(os.environ, OPENBLAS_NUM_THREADS="1"))
        self.processes.append(process)
        return process

    def wait(self, done):
        """Until done() is true. A process that fails, the end of the time and an interruption raise Failed."""
        while not done():
            if self.stopping():
                raise Failed("interrupted")
            if any(process.poll() not in (None, 0) for process in self.processes):
                raise Failed(f"a process failed; see {self.log.name}")
            if time.monotonic() > self.end:
                raise Failed(f"it did not end within {self.plan.limit:.0f} s (--limit); see {self.log.name}")
            time.sleep(LOOK_S)


def start_broker(group, plan):
    """Gives its service endpoint."""
    path = os.path.join(plan.folder, "endpoints")
    settings = [f"{name}=tcp://127.0.0.1:0" for name in ("service", "ingest", "events")]
    settings += [f"seed={plan.seed}", f"shards={plan.shards}"]
    group.start("replay-broker", "-c", plan.config, "--section", "broker", "--endpoints-file", path, *sets("broker.", settings))
    group.wait(lambda: os.path.exists(path))
    with open(path) as lines:
        endpoints = dict(line.split()[:2] for line in lines)
    count = sum(name == "service" or name.endswith(".service") for name in endpoints)
    if count != plan.shards:
        raise Failed(f"the broker has {count} shards, not {plan.shards}")
    return endpoints["service"]


def ask_tables(service, shards):
    """What each shard says of the first table."""
    told = subprocess.run([program("replay-ctl"), "--endpoint", service, "--json", "info"], capture_output=True, text=True)
    if told.returncode != 0:
        raise Failed("replay-ctl info: " + told.stderr.strip())
    info = json.loads(told.stdout)
    tables = [shard["tables"][0] for shard in info["shards"]["shard"]] if shards > 1 else info["tables"][:1]
    if len(tables) != shards:
        raise Failed(f"{len(tables)} of {shards} shards answer")
    return tables


def clear(folder):
    os.makedirs(folder, exist_ok=True)
    for entry in os.scandir(folder):
        if entry.is_file():
            os.remove(entry.path)


def run(plan, stopping=lambda: False):
    """Runs until all environment steps are taken and the last weights are evaluated."""
    clear(plan.folder)
    with Group(plan, stopping) as group:
        service = start_broker(group, plan)
        settings = [f"seed={plan.seed}", f"folder={plan.folder}", f"actors.count={plan.actors}",
                    f"broker.shards={plan.shards}", "learners.save_every=0s", *plan.settings]
        common = ["-c", plan.config, "--endpoint", service, *sets("", settings)]
        began = time.monotonic()
        others = [group.start("replay-actor", "--evaluate", *common), group.start("replay-learner", "--fresh", *common)]
        others += [group.start("replay-actor", "--index", str(i), *common) for i in range(plan.actors)]
        group.wait(lambda: all(process.poll() == 0 for process in others))
        seconds = time.monotonic() - began
        tables = ask_tables(service, plan.shards)
    with open(os.path.join(plan.folder, "evaluator-0.jsonl")) as lines:
        return Outcome([json.loads(line) for line in lines], tables, seconds)
