"""Runs of the configurations of configs/learning/ and configs/agents/, each found in a folder or made, several at a time."""
import collections
import concurrent.futures
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time

import processes

EPISODES = 20     # of an evaluation
EVALUATIONS = 20  # in a run, for its curve

# A run to be: bar is a row of bench/learning; side: what it is compared by, such as the number of shards; None: nothing.
Case = collections.namedtuple("Case", "bar seed side")


def config_path(bar, folder="learning"):
    return os.path.join(processes.ROOT, "configs", folder, bar.config + ".yaml")


def evaluations(bar):
    return [f"evaluator.episodes={EPISODES}", f"evaluator.every={bar.budget // EVALUATIONS}"]


def file_hash(path):
    with open(path, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()


def read_run(path, key):
    """The lines of a finished run with that key, or None."""
    try:
        with open(path) as file:
            lines = [json.loads(line) for line in file]
    except (OSError, ValueError):
        return None
    if len(lines) > 1 and lines[0].get("key") == key and lines[-1].get("result") and not lines[-1].get("stopped"):
        return lines[1:]
    return None


class Single:
    """Whole runs in replay-single: the same every time for a seed."""

    def __init__(self):
        processes.see_to_programs(["replay-single"])
        self.build = file_hash(processes.program("replay-single"))
        self.prepare({})

    def prepare(self, environment):
        self.lock, self.environment = threading.Lock(), environment
        self.processes, self.stopping = set(), False

    def config(self, case):
        return config_path(case.bar)

    def name(self, case):
        return f"{case.bar.config}-seed-{case.seed}"

    def head(self, case):
        return {}

    def options(self, case):
        return ["--seed", str(case.seed), "--json", *processes.sets("", evaluations(case.bar))]

    def make(self, case, path, file):
        """Writes the lines of the run into the file; raises Failed."""
        with self.lock:
            if self.stopping:
                raise processes.Failed("interrupted")
            process = subprocess.Popen(self.words(case, path), stdout=file, stderr=subprocess.PIPE, text=True,
                                       env=dict(os.environ, OPENBLAS_NUM_THREADS="1", **self.environment))
            self.processes.add(process)
        errors = process.communicate()[1]
        with self.lock:
            self.processes.discard(process)
        if self.stopping or process.returncode != 0:
            raise processes.Failed("interrupted" if self.stopping else errors.strip() or f"exit status {process.returncode}")

    def words(self, case, path):
        return [processes.program("replay-single"), "-c", self.config(case), *self.options(case)]

    def stop(self):
        with self.lock:
            self.stopping = True
            for process in self.processes:
                process.terminate()


class Launched(Single):
    """Whole runs of replay-launch with the agents of agent/python/agents, in the Python that runs this program."""

    def __init__(self, settings):
        processes.see_to_programs(["replay-launch", "replay-broker"])
        agents = os.path.join(processes.ROOT, "agent", "python", "agents")
        files = [processes.program("replay-launch"), *sorted(entry.path for entry in os.scandir(agents) if entry.name.endswith(".py"))]
        self.build = " ".join(file_hash(path) for path in files)
        self.settings = settings
        self.prepare({"PATH": os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", "")])})

    def config(self, case):
        return config_path(case.bar, "agents")

    def options(self, case):
        settings = ["launch.http=''", *evaluations(case.bar), *self.settings]
        return ["--seed", str(case.seed), "--quiet", *processes.sets("", settings)]

    def words(self, case, path):
        return [processes.program("replay-launch"), self.config(case), "--folder", path, *self.options(case)]

    def make(self, case, path, file):
        shutil.rmtree(path, ignore_errors=True)
        with open(os.devnull, "w") as printed:
            super().make(case, path, printed)
        with open(os.path.join(path, "report.json")) as written:
            report = json.load(written)
        if report["phase"] != "done" or report["final_value"] is None:
            raise processes.Failed(f"{report['reason']}; see {path}")
        with open(os.path.join(path, "evaluator-0.jsonl")) as lines:
            file.writelines(lines)
        result = {"result": True, "seed": case.seed, "return": report["final_value"], "fingerprint": None,
                  "environment_steps": report["steps"] or report["learner_steps"], "learner_steps": report["learner_steps"],
                  "seconds": report["elapsed_s"], "restarts": report["restarts"]}
        file.write(json.dumps(result) + "\n")


class Sharded:
    """Runs as separate processes, with a broker of so many shards."""

    def config(self, case):
        return config_path(case.bar)

    def __init__(self, actors, limit):
        processes.see_to_programs(processes.PROGRAMS)
        self.build = " ".join(file_hash(processes.program(name)) for name in processes.PROGRAMS)
        self.actors, self.limit, self.stopping = actors, limit, False

    def name(self, case):
        return f"{case.bar.config}-shards-{case.side}-seed-{case.seed}"

    def head(self, case):
        return {"shards": case.side, "actors": self.actors}

    def options(self, case):
        return ["--seed", str(case.seed), f"shards={case.side}", f"actors={self.actors}", *evaluations(case.bar)]

    def make(self, case, path, file):
        plan = processes.Plan(config_path(case.bar), path, case.seed, self.actors, case.side, evaluations(case.bar),
                              self.limit)
        outcome = processes.run(plan, lambda: self.stopping)
        for report in outcome.reports:
            file.write(json.dumps(report) + "\n")
        limiters = [table["limiter"] for table in outcome.tables]
        inserts = [limiter["inserts"] for limiter in limiters]
        last = outcome.reports[-1]
        result = {"result": True, "seed": case.seed, "shards": len(outcome.tables), "actors": self.actors,
                  "return": last["return"], "environment_steps": last["environment_steps"],
                  "learner_steps": last["learner_steps"], "inserts": inserts,
                  "samples": [limiter["samples"] for limiter in limiters], "seconds": outcome.seconds}
        file.write(json.dumps(result) + "\n")

    def stop(self):
        self.stopping = True


class Runs:
    """Finds runs in the folder, and makes those that are not there."""

    def __init__(self, maker, out, fresh):
        self.maker, self.out, self.fresh = maker, out, fresh

    def key(self, case):
        """Names the outcome: a run depends on nothing else."""
        words = [file_hash(self.maker.config(case)), *self.maker.options(case), self.maker.build]
        return hashlib.sha256(" ".join(words).encode()).hexdigest()

    def run(self, case):
        """Gives (the lines of the run, or None; found or not; what went wrong)."""
        folder = os.path.join(self.out, self.maker.name(case))
        path, key = folder + ".jsonl", self.key(case)
        lines = None if self.fresh else read_run(path, key)
        if lines:
            return lines, True, None
        try:
            with open(path + ".part", "w") as file:
                head = {"key": key, "config": case.bar.config, "seed": case.seed, "build": self.maker.build}
                file.write(json.dumps({**head, **self.maker.head(case)}) + "\n")
                file.flush()
                self.maker.make(case, folder, file)
        except processes.Failed as problem:
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
