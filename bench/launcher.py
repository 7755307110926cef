"""Programs of a build, runs and plans of replay-launch, and the configurations whose plans are compared with runs."""
import collections
import json
import os
import shutil
import signal
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
LEAST_STEADY = 1.5  # seconds; a run with a shorter steady part says nothing

Compute = collections.namedtuple("Compute", "name what config settings learners")
COMMON = ["actors.count=auto", "learners.count=auto", "stop.value=.inf", "stop.steps=0", "evaluator.episodes=2",
          "report.every=500ms"]
COMPUTE = [
    Compute("compute-demo", "the demo", "cartpole-dqn.yaml", [], 2),
    # Its journal would measure the disk.
    Compute("compute-apex", "Ape-X DQN", "apex-dqn.yaml", ["broker.folder="], 4),
    Compute("compute-sac", "SAC with two layers of 256", "mountaincar-continuous-sac.yaml",
            ["agent.hidden=[256, 256]", "agent.batch=256", "broker.tables[0].limiter.samples_per_insert=64"], 4),
]


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


def sets(settings):
    return [word for item in settings for word in ("--set", item)]


def print_grid(lines, left=(0,)):
    """left: the columns that are aligned to the left."""
    widths, left = [max(map(len, column)) for column in zip(*lines)], {i % len(lines[0]) for i in left}
    for line in lines:
        cells = [cell.ljust(w) if i in left else cell.rjust(w) for i, (cell, w) in enumerate(zip(line, widths))]
        print("  ".join(cells).rstrip())


def compute_settings(scenario):
    return COMMON + scenario.settings + [f"plan.max_learners={scenario.learners}"]


def config_path(name):
    return os.path.join(ROOT, "configs", name)


class Launcher:
    """Runs replay-launch in a folder of the bench, with a cache of its own. What goes wrong raises Failed."""

    def __init__(self, out):
        see_to_programs(["replay-launch"])
        self.program, self.out = program("replay-launch"), out
        self.environment = dict(os.environ, OPENBLAS_NUM_THREADS="1", XDG_CACHE_HOME=os.path.join(out, "cache"))

    def __call__(self, folder, *words, limit=300):
        shutil.rmtree(folder, ignore_errors=True)
        os.makedirs(os.path.dirname(folder), exist_ok=True)
        process = subprocess.Popen([self.program, *words, "--folder", folder], cwd=self.out, env=self.environment,
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        try:
            output = process.communicate(timeout=limit)[0]
        except subprocess.TimeoutExpired:
            process.kill()  # its processes die with it
            process.communicate()
            raise Failed(f"{' '.join(words)} did not end within {limit:.0f} s; see {folder}") from None
        except KeyboardInterrupt:
            process.send_signal(signal.SIGTERM)
            process.communicate()
            raise
        if process.returncode != 0:
            raise Failed(f"{' '.join(words)} failed:\n{output.strip()}\nsee {folder}")

    def plan(self, config, folder, settings, limit=300):
        """Gives what plan.json says, and the seconds that it took."""
        began = time.monotonic()
        self(folder, "plan", config, "--json", *sets(settings), limit=limit)
        with open(os.path.join(folder, "plan.json")) as file:
            return json.load(file), time.monotonic() - began

    def run(self, config, folder, settings, limit):
        """Gives what report.json says."""
        self(folder, config, "--quiet", *sets(settings), limit=limit)
        with open(os.path.join(folder, "report.json")) as file:
            return json.load(file)

    def steady(self, config, folder, pair, settings, seconds):
        """What the report says about the steady part. A run whose steady part is too short is repeated, with more time."""
        for more in range(3):
            words = [*settings, f"actors.count={pair[0]}", f"learners.count={pair[1]}", f"stop.time={seconds + 2 * more}s"]
            report = self.run(config, folder, words, seconds + 60)
            steady = next((one for one in report["stretches"][:1] if one["settled"]), {"seconds": 0})
            if steady["seconds"] >= LEAST_STEADY:
                return steady["achieved"]
        raise Failed(f"the run in {folder} had a steady part of {steady['seconds']} s only: more seconds are needed")


def pairs_to_try(scenario, plan):
    """The planned pair, the pairs that were measured, and powers of four (of two up to eight actors) with powers of two."""
    chosen = plan["chosen"]["actors"], plan["chosen"]["learners"]
    told = [(run["actors"], run["learners"]) for run in plan["input"]["runs"] if run["shards"] == 1]
    most = min(plan["input"]["max_actors"], max(4, int(plan["input"]["hosts"][0]["cores"])))
    actors = [x for x in ((1, 2, 4) if most < 16 else (1, 4, 16, 64)) if x <= most]
    grid = [(x, y) for x in actors for y in (1, 2, 4) if y <= scenario.learners]
    return list(dict.fromkeys([chosen] + told + grid))
