"""Environments in Python under replay-launch: what they may be, how they fail, and a run that learns."""

import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys

from harness import json_lines
from launches import CONFIG, PATIENCE, Place, check, equal, program, sets

ROOT = pathlib.Path(__file__).resolve().parents[2]
PYTHON = "/usr/bin/python3"
EXTENSION = pathlib.Path(program("launch")).resolve().parent / "lib" / "python" / "replaybus" / "_agent.abi3.so"
if not EXTENSION.exists():
    print("skipped: this build has no Python extension", EXTENSION)
    sys.exit(77)

# Smaller than the small run.
CONFIG = CONFIG.replace("{name: CartPole-v1}", "{name: 'python:counting:make', interpreter: /usr/bin/python3, options: {kind: counting}}") \
    .replace("count: 2", "count: 1").replace("every: 1000", "every: 500").replace("3000", "1000").replace("min_size: 200", "min_size: 100") \
    .replace("{backoff: 50ms}", "{backoff: 20ms, failures: 3}").replace("report: {every: 200ms}", "report: {every: 100ms}")


class PythonPlace(Place):
    """The module counting lies beside the run's file."""

    def __init__(self, config=CONFIG):
        super().__init__(config)
        (self.base / "counting.py").write_text((ROOT / "tests" / "python_envs" / "counting.py").read_text())
        self.environment["PYTHONDONTWRITEBYTECODE"] = "1"

    def begin(self, *overrides):
        return self.launch("--folder", "run", *sets(*overrides))

    def run(self, *overrides, status=0):
        """A whole run; gives the launcher."""
        launcher = self.begin(*overrides)
        launcher.ends(status, 3 * PATIENCE)
        return launcher


def all_at_once(cases, status=0):
    """Runs of several environments side by side: [(case, launcher)] of ended runs. cases: {case: overrides}."""
    with contextlib.ExitStack() as stack:
        runs = [(case, stack.enter_context(PythonPlace()).begin(*overrides)) for case, overrides in cases.items()]
        for _, launcher in runs:
            launcher.ends(status, 3 * PATIENCE)
        yield from runs


def option(**values):
    return ["environment.options.%s=%s" % item for item in values.items()]


def reports(launcher, process="actor-0"):
    return json_lines(launcher.folder / (process + ".jsonl"))


def episodes(launcher):
    """The mean return and length over all episodes of the first actor, from its reports."""
    return {round(report["return"], 6) for report in reports(launcher) if report["return"] is not None}


def test_a_run_has_the_numbers_of_its_environment():
    with PythonPlace() as place:
        launcher = place.run()
        equal(reports(launcher)[-1]["actor_steps"], 1000)
        equal(episodes(launcher), {10.0})
        for process in ("actor-0", "evaluator-0"):  # what infos tell is reported, too
            equal({report["info/episode/r"] for report in reports(launcher, process) if "info/episode/r" in report}, {10.0})
        equal(launcher.read("report.json")["final_value"], 10.0)
        config = (launcher.folder / "config.yaml").read_text()
        check('shape: "[2]"' in config and 'actions: "3"' in config, "the spec is not in", config)
        out, _ = place.call("eval", "run", "--json", "--episodes", "3")
        equal((json.loads(out)["return"], json.loads(out)["episodes"]), (10.0, 3))


def test_kinds_of_environments():
    """Truncation, both ends at once, the old interface, dicts, images, continuous actions, copies."""
    kinds = {"truncating": [], "both": [], "old": [], "mixed": [], "image": ["agent.filters=4"],
             "continuous": ["agent.algorithm=td3"], "counting": ["actors.environments=4"]}
    cases = {kind: [*option(kind=kind), *more, "stop.steps=400", "evaluator.episodes=0"] for kind, more in kinds.items()}
    for kind, launcher in all_at_once(cases):
        equal((kind, reports(launcher)[-1]["actor_steps"]), (kind, 400))
        equal((kind, episodes(launcher)), (kind, {10.0}))
        check(kind != "image" or 'scale: "0.00392156863"' in (launcher.folder / "config.yaml").read_text(), "no scale")


def test_environments_of_gymnasium():
    """gym:ID asks gymnasium.make: here a module of that name, with an environment that one can register nowhere else."""
    with PythonPlace() as place:
        place.write("gymnasium.py", "import counting\n\ndef make(id, kind):\n    assert id == 'Counting-v3', id\n"
                                    "    env = counting.make(kind)\n    env.spec = type('Spec', (), {'max_episode_steps': 77})\n"
                                    "    return env\n")
        launcher = place.run("environment.name=gym:Counting-v3", "stop.steps=300", "evaluator.episodes=0")
        equal(episodes(launcher), {10.0})
        check('max_steps: "77"' in (launcher.folder / "config.yaml").read_text(), "no time limit")


def test_vector_environments():
    """Whatever way they reset themselves: episodes have their length, and no step is counted twice."""
    modes = [("NEXT_STEP", 0), ("NEXT_STEP", 1), ("SAME_STEP", 0), ("SAME_STEP", 1), ("DISABLED", 0)]
    cases = {mode: [*option(kind="vector", num_envs=3, mode=mode[0], hide=mode[1]), "stop.steps=810", "evaluator.every=0",
                    "report.every=1h"] for mode in modes}
    for mode, launcher in all_at_once(cases):
        last = reports(launcher)[-1]
        equal((mode, last["actor_steps"]), (mode, 810))
        # Three environments with episodes of 10, 9 and 8 steps: about 30 of each in 270 steps.
        check(abs(last["episodes"] - 90) <= 3, mode, "has", last["episodes"], "episodes")
        check(8.7 < last["return"] < 9.2 and last["return"] == last["episode_length"], mode, "returns", last["return"])
        equal((mode, launcher.read("report.json")["final_value"]), (mode, 10.0))


def test_a_vector_has_its_own_number():
    with PythonPlace() as place:
        launcher = place.run(*option(kind="vector"), "actors.environments=2", "evaluator.episodes=0", status=1)
        check("leave actors.environments out" in launcher.text(), launcher.text())
    with PythonPlace() as place:
        launcher = place.run(*option(kind="vector"), "environment.max_steps=5", "evaluator.episodes=0", status=1)
        check("environment.max_steps" in launcher.text(), launcher.text())


def test_a_time_limit_of_the_file():
    with PythonPlace() as place:
        launcher = place.run("environment.max_steps=7", "stop.steps=210", "evaluator.episodes=0", "actors.environments=2")
        equal(episodes(launcher), {7.0})


def test_environments_that_fail():
    """The actor ends with a traceback and a sentence, and three failures in a row end the run."""
    words = {"raise": "step() raised ValueError: the cart fell off the table", "exit": "raised SystemExit: 0",
             "nan": "number 0 is nan", "reward": "inf as the reward"}
    cases = {how: [*option(kind="failing", how=how), "evaluator.episodes=0"] for how in words}
    for how, launcher in all_at_once(cases, status=1):
        equal((how, launcher.starts("actor-0")), (how, 3))
        log = launcher.log("actor-0")
        check(words[how] in log, how, "is not explained:", log)
        check("environment 'counting:make': step()" in log and "at step 4 of episode 3" in log, how, log)
        check("counting.py" in log or how not in ("raise", "exit"), "no traceback", log)
        check(words[how] in launcher.text(), how, "is not in what the launcher says:", launcher.text())


def test_a_number_that_is_too_large():
    with PythonPlace() as place:
        launcher = place.run(*option(kind="failing", how="huge"), "evaluator.episodes=0")
        check(" A0212 " in launcher.log("learner-0"), "steps whose loss is not finite:", launcher.log("learner-0"))


def test_mistakes_are_found_before_anything_starts():
    cases = [(option(kind="hanging") + ["launch.hang=500ms"], "did not describe itself within 0.5 s"),
             (option(kind="unusable"), "observation_space has a Text"),
             (option(kind="failing", how="raise", episode=1, step=1), "raised ValueError: the cart fell off the table"),
             (option(kind="failing", how="shape", episode=1, step=1), "shape (1,)"),
             (option(kind="failing", how="text", episode=1, step=1), "no number"),
             (option(kind="failing", how="none", episode=1, step=1), "TypeError"),
             (option(kind="failing", how="three", episode=1, step=1), "returned 3 values"),
             (option(kind="failing", how="nan", episode=1, step=1), "not finite"),
             (["environment.options={}", "environment.name=python:counting:maek"], "did you mean 'make'?"),
             (["environment.name=python:countin:make"], "there is no module 'countin'"),
             (option(colour="red"), "colour"),
             (["environment.name=gym:NoSuch-v0"], "gymnasium"),
             (["environment.interpreter=no-such-python"], "there is no program 'no-such-python'"),
             (["environment.interpreter=/bin/false"], "exit status 1"),
             (option(kind="continuous"), "dqn needs discrete actions"),
             (["agent.filters=3"], "rank 1, not 3")]
    with PythonPlace() as place:
        lonely = place.write("lonely", '#!/bin/sh\nexec /usr/bin/python3 -I "$@"\n')  # without PYTHONPATH
        cases.append((["environment.interpreter=" + lonely], "has no package replaybus"))
        place.write("needy.py", "import numpy.not_there\n")
        cases.append((["environment.options={}", "environment.name=python:needy:make"], "environment.interpreter"))
        for overrides, words in cases:
            _, err = place.call("check", "run.yaml", *sets(*overrides), status=2)
            check(words in err, overrides, "gave", err)
            check("run.yaml:" in err or "--set" in err or "environment" in err, "no place in", err)
            check("Traceback" not in err or "environment.interpreter" not in err, "a traceback before what to do:", err)


def test_other_programs_say_what_to_do():
    with PythonPlace() as place:
        for name, words in (("actor", "replaybus.actor"), ("learner", "replaybus.describe"), ("single", "replaybus.single")):
            done = subprocess.run([program(name), "-c", str(place.config), "--set", "broker.service=ipc://%s/s" % place.base,
                                   *(["--timeout", "1s"] if name != "single" else []), *sets("folder=''")],
                                  capture_output=True, text=True, timeout=PATIENCE, cwd=place.base)
            check(done.returncode == 1 and words in done.stderr, name, done.returncode, done.stderr)


def test_one_process_is_repeatable():
    """python3 -m replaybus.single: the same bits for the same seed."""
    with PythonPlace() as place:
        environment = dict(place.environment, PYTHONPATH="%s:%s" % (EXTENSION.parent.parent, ROOT / "configs" / "python"))
        results = []
        for seed in (1, 1, 2):
            done = subprocess.run([PYTHON, "-m", "replaybus.single", "-c", str(place.config), "--quiet", "--json", "--seed", str(seed),
                                   *sets("environment.name=python:cart_pole:make", "environment.options={}", "evaluator.every=0")],
                                  capture_output=True, text=True, timeout=3 * PATIENCE, cwd=place.base, env=environment)
            equal((done.returncode, done.stderr), (0, ""))
            results.append(json.loads(done.stdout.splitlines()[-1]))
        equal(results[0]["fingerprint"], results[1]["fingerprint"])
        check(results[0]["fingerprint"] != results[2]["fingerprint"], "the seed changes nothing")
        equal((results[0]["environment_steps"], results[0]["environment"]), (1000, "cart_pole:make"))


def test_a_run_is_stopped_and_resumed():
    """A killed actor is started again. Ctrl-C ends the run in order; resume asks the environment nothing and goes on."""
    with PythonPlace() as place:
        noted = place.base / "python"  # notes what it is called with
        noted.write_text('#!/bin/sh\necho "$@" >>"%s"\nexec "%s" "$@"\n' % (place.base / "called", PYTHON))
        noted.chmod(0o755)
        launcher = place.launch("--folder", "run", *sets("stop.steps=0", "environment.delay=1ms", "actors.count=2"))
        launcher.await_alive(lambda: launcher.status().get("learner_steps", 0) > 20, "learner steps")
        actor = launcher.pid("actor-1")
        check(b"replaybus.actor" in pathlib.Path("/proc/%d/cmdline" % actor).read_bytes(), "actor-1 is not Python")
        os.kill(actor, signal.SIGKILL)
        launcher.await_start("actor-1", 2)
        launcher.stop()
        before = launcher.read("status.json")["steps"]
        place.nobody_left()
        again = place.start("resume", "run", *sets("stop.steps=%d" % (before + 200), "environment.interpreter=%s" % noted))
        again.given = "run"
        again.ends(0, 3 * PATIENCE)
        equal(again.read("status.json")["steps"], before + 200)
        called = (place.base / "called").read_text()
        check("replaybus.actor" in called and "replaybus.describe" not in called, called)


def test_counts_are_measured():
    """profile and plan run Python actors like ours."""
    with PythonPlace() as place:
        out, _ = place.call("plan", "run.yaml", "--json", *sets("actors.count=auto", "plan.measure=100ms", "plan.max_actors=1",
                                                                "evaluator.episodes=0"))
        plan = json.loads(out)
        check(plan, "no plan")


def test_cart_pole_learns():
    """configs/python/cart_pole.yaml, as it stands, to its bar."""
    with PythonPlace((ROOT / "configs" / "python" / "cart_pole.yaml").read_text()) as place:
        (place.base / "cart_pole.py").write_text((ROOT / "configs" / "python" / "cart_pole.py").read_text())
        launcher = place.run("environment.interpreter=" + PYTHON, "stop.value=195")
        value = launcher.read("report.json")["final_value"]
        best = launcher.read("report.json")["best"]
        check(max(value, best) >= 195, "final", value, "best", best)
