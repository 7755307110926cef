"""Runs of the configurations of configs/learning/ and configs/agents/, each found in a folder or made, several at a time."""
import collections
import concurrent.futures
import functools
import glob
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time

import launcher

AGENTS = os.path.join(launcher.ROOT, "agent", "python", "agents")
EPISODES = 20     # of an evaluation
EVALUATIONS = 20  # in a run, for its curve

# A run to be: bar is a row of bench/learning; side: what it is compared by, such as the number of shards or a setting; None: nothing.
Case = collections.namedtuple("Case", "bar seed side")


def config_path(bar, folder="learning"):
    return os.path.join(launcher.ROOT, "configs", folder, bar.config + ".yaml")


def evaluations(bar):
    return [f"evaluator.episodes={EPISODES}", f"evaluator.every={bar.budget // EVALUATIONS}"]


@functools.lru_cache(maxsize=None)
def file_hash(path):
    with open(path, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()


def agent_files(config):
    """The agents that a configuration names, and what they import from their folder."""
    found, names = [], [config]
    while names:
        path = names.pop(0)
        with open(path) as file:
            named = re.findall(r"agents/(\w+)\.py" if path == config else r"(?m)^(?:from|import) (\w+)", file.read())
        named = [os.path.join(AGENTS, name + ".py") for name in dict.fromkeys(named)]
        new = [name for name in named if name not in found and os.path.exists(name)]
        found, names = found + new, names + new
    return sorted(found)


def reports(folder, role):
    """What the processes of a role have reported in a run, in the order of time."""
    lines = []
    for path in glob.glob(os.path.join(glob.escape(folder), role + "-*.jsonl")):
        with open(path) as file:
            lines += map(json.loads, file)
    return sorted(lines, key=lambda line: line["time"])


def rate(lines, count):
    """How much a count of reports grows in a second, from the first to the last one; None: there are no two."""
    seconds = lines[-1]["time"] - lines[0]["time"] if lines else 0
    counts = [line[count] for line in lines]
    return (max(counts) - min(counts)) / seconds if seconds > 0 else None


def averaged(lines, share):
    """The mean of a share over time, or None. A report covers the time since the same process's last one; the first counts for nothing."""
    before, total, seconds = {}, 0.0, 0.0
    for line in lines:
        passed = line["time"] - before.get(line["process"], line["time"])
        before[line["process"]] = line["time"]
        total, seconds = total + line[share] * passed, seconds + passed
    return total / seconds if seconds > 0 else None


def read_run(path, key=None):
    """The lines of a finished run, its head first, or None; only a run with that key, unless it is None."""
    try:
        with open(path) as file:
            lines = [json.loads(line) for line in file]
    except (OSError, ValueError):
        return None
    if len(lines) > 1 and lines[-1].get("result") and not lines[-1].get("stopped") and key in (None, lines[0].get("key")):
        return lines
    return None


class Single:
    """Whole runs in replay-single: the same every time for a seed."""
    programs, environment, limit = ["replay-single"], {}, None  # limit: seconds for a run

    def __init__(self):
        self.lock, self.processes, self.stopping = threading.Lock(), set(), False

    def config(self, case):
        return config_path(case.bar)

    def files(self, case):
        """What a run depends on, beside its options and its seed."""
        return [self.config(case), *map(launcher.program, self.programs)]

    def name(self, case):
        return f"{case.bar.config}-seed-{case.seed}"

    def head(self, case):
        return {}

    def options(self, case):
        return launcher.sets(evaluations(case.bar))

    def make(self, case, path, file):
        """Writes the lines of the run into the file; raises Failed."""
        with self.lock:
            if self.stopping:
                raise launcher.Failed("interrupted")
            process = subprocess.Popen(self.words(case, path), stdout=file, stderr=subprocess.PIPE, text=True,
                                       env=dict(os.environ, OPENBLAS_NUM_THREADS="1", **self.environment))
            self.processes.add(process)
        try:
            errors = process.communicate(timeout=self.limit)[1]
        except subprocess.TimeoutExpired:
            process.terminate()
            process.communicate()
            raise launcher.Failed(f"it did not end within {self.limit:.0f} s (--limit); see {path}") from None
        finally:
            with self.lock:
                self.processes.discard(process)
        if self.stopping or process.returncode != 0:
            raise launcher.Failed("interrupted" if self.stopping else errors.strip() or f"exit status {process.returncode}")

    def words(self, case, path):
        return [launcher.program("replay-single"), "-c", self.config(case), "--seed", str(case.seed), "--json", *self.options(case)]

    def stop(self):
        with self.lock:
            self.stopping = True
            for process in self.processes:
                process.terminate()


class Launched(Single):
    """Whole runs of replay-launch with the agents of agent/python/agents, in the Python that runs this program."""
    programs = ["replay-launch", "replay-broker"]
    environment = {"PATH": os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", "")])}

    def __init__(self, settings):
        super().__init__()
        self.settings = settings

    def config(self, case):
        return config_path(case.bar, "agents")

    def files(self, case):
        return super().files(case) + agent_files(self.config(case))

    def name(self, case):
        return "-".join(filter(None, [super().name(case), *case.bar.setting.split(), case.side]))

    def options(self, case):
        settings = [case.side] if case.side else self.settings
        return launcher.sets(["launch.http=''", *evaluations(case.bar), *case.bar.setting.split(), *settings])

    def words(self, case, path):
        return [launcher.program("replay-launch"), self.config(case), "--folder", path, "--seed", str(case.seed), "--quiet",
                *self.options(case)]

    def figures(self, path, learners):
        """More for a run's result, from its folder and the reports of its learners."""
        return {}

    def make(self, case, path, file):
        shutil.rmtree(path, ignore_errors=True)
        with open(os.devnull, "w") as printed:
            super().make(case, path, printed)
        with open(os.path.join(path, "report.json")) as written:
            report = json.load(written)
        if report["phase"] != "done" or report["final_value"] is None:
            raise launcher.Failed(f"{report['reason']}; see {path}")
        acts = bool(report["steps"])  # without actors, learner steps count
        for line in reports(path, "evaluator"):
            file.write(json.dumps(line if acts else {**line, "environment_steps": line["learner_steps"]}) + "\n")
        learners = reports(path, "learner")
        result = {"result": True, "seed": case.seed, "return": report["final_value"], "fingerprint": None,
                  "environment_steps": report["steps"] if acts else report["learner_steps"], "learner_steps": report["learner_steps"],
                  "seconds": report["elapsed_s"], "restarts": report["restarts"], "wait_share": averaged(learners, "wait_share"),
                  "updates_per_second": rate(learners, "learner_steps"),
                  "steps_per_second": rate(reports(path, "actor"), "environment_steps"), **self.figures(path, learners)}
        file.write(json.dumps(result) + "\n")


class Sharded(Launched):
    """Runs with so many actors, and a broker of so many shards."""
    programs = ["replay-launch", "replay-broker", "replay-actor", "replay-learner", "replay-ctl"]

    def __init__(self, actors, limit):
        super().__init__([f"actors.count={actors}", "learners.count=1", "broker.folder=broker", "broker.journal=off"])
        self.actors, self.limit = actors, limit

    def config(self, case):
        return config_path(case.bar)

    def name(self, case):
        return f"{case.bar.config}-shards-{case.side}-seed-{case.seed}"

    def head(self, case):
        return {"shards": case.side, "actors": self.actors}

    def options(self, case):
        return super().options(case._replace(side=None)) + launcher.sets([f"broker.shards={case.side}"])

    def figures(self, path, learners):
        """What each shard has counted, from its last checkpoint."""
        kept = os.path.join(path, "broker")
        told = [subprocess.run([launcher.program("replay-ctl"), "checkpoint", "show", folder, "--json"], capture_output=True, text=True)
                for folder in sorted(glob.glob(os.path.join(glob.escape(kept), "shard-*"))) or [kept]]
        if any(one.returncode for one in told):
            raise launcher.Failed(f"a shard has left no checkpoint; see {path}")
        tables = [json.loads(one.stdout)["tables"][0] for one in told]
        return {"shards": len(tables), "actors": self.actors,
                **{name: [table[name] for table in tables] for name in ("inserts", "samples")}}


class Runs:
    """Finds runs in the folder, and makes those that are not there."""

    def __init__(self, maker, out, fresh):
        self.maker, self.out, self.fresh = maker, out, fresh

    def key(self, case):
        """Names the outcome, with the seed: a run depends on nothing else."""
        words = [*map(file_hash, self.maker.files(case)), *self.maker.options(case)]
        return hashlib.sha256(" ".join(words).encode()).hexdigest()

    def path(self, case):
        return os.path.join(self.out, self.maker.name(case))

    def kept(self, cases):
        """{case: lines} of those in the folder, also of programs that have changed since."""
        found = {case: read_run(self.path(case) + ".jsonl") for case in cases}
        return {case: lines for case, lines in found.items() if lines}

    def run(self, case):
        """Gives (the lines of the run, or None; found or not; what went wrong)."""
        folder, key = self.path(case), self.key(case)
        path = folder + ".jsonl"
        lines = None if self.fresh else read_run(path, key)
        if lines:
            return lines, True, None
        try:
            with open(path + ".part", "w") as file:
                head = {"key": key, "config": case.bar.config, "seed": case.seed}
                file.write(json.dumps({**head, **self.maker.head(case)}) + "\n")
                file.flush()
                self.maker.make(case, folder, file)
        except launcher.Failed as problem:
            return None, False, str(problem)
        os.replace(path + ".part", path)
        lines = read_run(path, key)
        return lines, False, None if lines else "it was stopped, or ended without a result"


def curve_of(lines):
    """[(environment steps, return)] of the evaluations; the final one, of the result, is the last."""
    points = {line["environment_steps"]: line["return"] for line in lines if line.get("return") is not None}
    return sorted(points.items())


def number(value):
    if value is None:
        return "-"
    return f"{value:.2f}" if abs(value) < 20 else f"{value:.1f}"


def run_all(runs, cases, jobs):
    """Gives {case: lines}. Long runs start first, so that no core is idle at the end for long."""
    launcher.see_to_programs(runs.maker.programs)
    results, began = {}, time.monotonic()
    pool = concurrent.futures.ThreadPoolExecutor(jobs)
    futures = {pool.submit(runs.run, case): case for case in sorted(cases, key=lambda case: -case.bar.budget)}
    try:
        for n, future in enumerate(concurrent.futures.as_completed(futures), 1):
            case = futures[future]
            lines, found, problem = future.result()
            head = f"[{n}/{len(cases)} {time.monotonic() - began:6.0f} s] {runs.maker.name(case)}: "
            if lines is None:
                print(head + f"FAILED: {problem}", flush=True)
                continue
            results[case] = lines
            last = lines[-1]
            bar = "" if case.bar.value is None else f" (bar {number(case.bar.value)})"
            print(head + f"return {number(last['return'])}{bar}, {last['environment_steps']:,} steps, "
                  f"{last['seconds']:.1f} s" + (", found" if found else ""), flush=True)
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        runs.maker.stop()
        pool.shutdown(cancel_futures=True)
        sys.exit("interrupted; what is finished will be found the next time")
    pool.shutdown()
    return results
