"""A run's folder that an earlier version has written: status, comparison, evaluation and resume work with it.

tests/golden/run was written by version 0.1.0 of commit c9b3bf6:
  replay-launch cartpole-dqn.yaml --set actors.count=1 --set learners.count=1 --set stop.steps=500 --set stop.value=.inf \
      --set agent.hidden=[8] --set report.tensorboard=false
Its config.yaml follows the keys: those that went before 0.1.0 was released went from it, too.
"""

import json
import os
import pathlib
import shutil
import time

from launches import Place, check, equal, sets
from harness import contains, ctl

GOLDEN = pathlib.Path(os.environ["RP_SOURCE_DIR"], "tests", "golden", "run")


def load(path):
    return json.loads(path.read_text())


def holds(new, old):
    """Whether a newer JSON value has all that an older one has, with the same values. Members may be new."""
    if isinstance(old, dict):
        return isinstance(new, dict) and all(name in new and holds(new[name], old[name]) for name in old)
    if isinstance(old, list):
        return isinstance(new, list) and len(new) == len(old) and all(map(holds, new, old))
    return new == old


def change_status(folder, **members):
    (folder / "status.json").write_text(json.dumps(dict(load(folder / "status.json"), **members)))


def golden(place, name):
    """A copy of the golden folder."""
    folder = place.base / name
    shutil.copytree(GOLDEN, folder)
    (folder / "logs").mkdir(exist_ok=True)
    return folder


def test_it_is_shown_and_resumed():
    with Place() as place:
        run = golden(place, "run")
        shown = json.loads(place.call("status", "run", "--json")[0])
        check(holds(shown, load(GOLDEN / "status.json")), shown)
        check(shown["hosts"] == [] and all(process["host"] == "" for process in shown["processes"]), shown)
        place.call("runs", "run", "--json")
        # What a finished run says if it is resumed as it is.
        for reason, key in (("stop.time of 5 s is reached", "stop.time="), ("500 environment steps were taken", "stop.steps="),
                            ("an evaluation gave 480, and stop.value is 475", "stop.value=.inf")):
            change_status(run, reason=reason)
            options = place.call("resume", "run", status=1)[1].rsplit("move it:", 1)[-1]
            check(key in options and options.count("stop.") == 1, options)
        place.call("eval", "run")
        place.call("resume", "run", "--quiet", *sets("stop.steps=900"))
        missing = set(load(GOLDEN / "report.json")) - set(load(run / "report.json"))
        equal(missing, set(), "members of the report that are gone")
        status = load(run / "status.json")
        equal((status["phase"], status["steps"]), ("done", 900), "the end")


def test_the_latest_run_is_one_that_lives():
    """runs/latest points to a run that has ended, while an older one goes on."""
    with Place() as place:
        older, newer = (golden(place, "runs/" + name) for name in ("older", "newer"))
        for folder in (older, newer):
            change_status(folder, name=folder.name)
            (folder / "endpoints").unlink()
        (place.base / "runs" / "latest").symlink_to("newer")

        def expect(launcher, endpoints):
            equal(json.loads(place.call("status", "--json")[0])["name"], launcher, "the run that is shown")
            contains(ctl("--run", "latest", "info", cwd=place.base)[2], "runs/" + endpoints)

        expect("newer", "latest has ended")
        change_status(older, phase="running", unix_s=time.time())
        expect("older", "older/endpoints")  # there is none: nothing runs here
        change_status(newer, phase="running", unix_s=time.time() - 1)
        expect("newer", "newer/endpoints")
        change_status(newer, phase="running", unix_s=time.time() - 3600)  # its launcher was killed
        expect("older", "older/endpoints")
        (newer / "status.json").unlink()  # it is being measured
        said = place.call("status", status=1)[1]
        check("newer" in said and "older" not in said, said)
