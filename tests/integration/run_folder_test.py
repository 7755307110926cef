"""A run's folder that an earlier version has written: status, comparison, evaluation and resume work with it.

tests/golden/run was written by version 0.1.0 of commit c9b3bf6:
  replay-launch cartpole-dqn.yaml --set actors.count=1 --set learners.count=1 --set stop.steps=500 --set stop.value=.inf \
      --set agent.hidden=[8] --set report.tensorboard=false
"""
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time

LAUNCH = os.environ["RP_LAUNCH"]
GOLDEN = os.path.join(os.environ["RP_SOURCE_DIR"], "tests", "golden", "run")


def launch(*words, cwd):
    result = subprocess.run([LAUNCH, *words], cwd=cwd, capture_output=True, text=True, timeout=90)
    if result.returncode != 0:
        sys.exit(f"replay-launch {' '.join(words)}: status {result.returncode}\n{result.stdout}\n{result.stderr}")
    return result.stdout


def load(*path):
    with open(os.path.join(*path)) as file:
        return json.load(file)


def holds(new, old):
    """Whether a newer JSON value has all that an older one has, with the same values. Members may be new."""
    if isinstance(old, dict):
        return isinstance(new, dict) and all(name in new and holds(new[name], old[name]) for name in old)
    if isinstance(old, list):
        return isinstance(new, list) and len(new) == len(old) and all(map(holds, new, old))
    return new == old


def change_status(folder, **members):
    status = dict(load(folder, "status.json"), **members)
    with open(os.path.join(folder, "status.json"), "w") as file:
        json.dump(status, file)


def the_reason_names_its_key(here, run):
    """What a finished run says if it is resumed as it is."""
    for reason, key in (("stop.time of 5 s is reached", "stop.time="), ("500 environment steps were taken", "stop.steps="),
                        ("an evaluation gave 480, and stop.value is 475", "stop.value=.inf")):
        change_status(run, reason=reason)
        result = subprocess.run([LAUNCH, "resume", run], cwd=here, capture_output=True, text=True, timeout=90)
        options = result.stderr.rsplit("move it:", 1)[-1]
        assert result.returncode == 1 and key in options and options.count("stop.") == 1, result.stderr


def the_latest_run_is_one_that_lives(here, run):
    """runs/latest points to a run that has ended, while an older one goes on."""
    runs = os.path.join(here, "runs")
    for name in ("older", "newer"):
        shutil.copytree(run, os.path.join(runs, name))
        change_status(os.path.join(runs, name), name=name)
        os.unlink(os.path.join(runs, name, "endpoints"))
    os.symlink("newer", os.path.join(runs, "latest"))

    def expect(launcher, ctl):
        shown = json.loads(launch("status", "--json", cwd=here))["name"]
        words = [os.environ["RP_CTL"], "--run", "latest", "info"]
        said = subprocess.run(words, cwd=here, capture_output=True, text=True, timeout=90).stderr
        assert shown == launcher and "runs/" + ctl in said, (shown, said)

    expect("newer", "latest has ended")
    change_status(os.path.join(runs, "older"), phase="running", unix_s=time.time())
    expect("older", "older/endpoints")  # there is none: nothing runs here
    change_status(os.path.join(runs, "newer"), phase="running", unix_s=time.time() - 1)
    expect("newer", "newer/endpoints")
    change_status(os.path.join(runs, "newer"), phase="running", unix_s=time.time() - 3600)  # its launcher was killed
    expect("older", "older/endpoints")
    os.unlink(os.path.join(runs, "newer", "status.json"))  # it is being measured
    said = subprocess.run([LAUNCH, "status"], cwd=here, capture_output=True, text=True, timeout=90).stderr
    assert "newer" in said and "older" not in said, said


def main():
    with tempfile.TemporaryDirectory() as here:
        run = os.path.join(here, "run")
        shutil.copytree(GOLDEN, run)
        os.mkdir(os.path.join(run, "logs"))
        shown = json.loads(launch("status", run, "--json", cwd=here))
        assert holds(shown, load(GOLDEN, "status.json")), shown
        assert shown["hosts"] == [] and all(process["host"] == "" for process in shown["processes"])
        listed = json.loads(launch("runs", run, "--json", cwd=here))
        print(json.dumps(listed)[:400])
        the_latest_run_is_one_that_lives(here, run)
        the_reason_names_its_key(here, run)
        before = load(GOLDEN, "report.json")
        launch("eval", run, cwd=here)
        launch("resume", run, "--set", "stop.steps=900", "--quiet", cwd=here)
        after = load(run, "report.json")
        assert set(before) <= set(after), set(before) - set(after)
        status = load(run, "status.json")
        print(f"steps {load(GOLDEN, 'status.json')['steps']} before, {status['steps']} after the run was resumed")
        assert status["phase"] == "done" and status["steps"] == 900
    return 0
