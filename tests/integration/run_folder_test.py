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
        before = load(GOLDEN, "report.json")
        launch("eval", run, cwd=here)
        launch("resume", run, "--set", "stop.steps=900", "--quiet", cwd=here)
        after = load(run, "report.json")
        assert set(before) <= set(after), set(before) - set(after)
        status = load(run, "status.json")
        print(f"steps {load(GOLDEN, 'status.json')['steps']} before, {status['steps']} after the run was resumed")
        assert status["phase"] == "done" and status["steps"] == 900
    return 0


if __name__ == "__main__":
    sys.exit(main())
