"""What `replay-launch check` finds on other machines: real sshd instances with addresses, homes and process ids of their own
(machines.py). The machines do not have our programs: they are sent there."""

import pathlib

import machines
from harness import contains, run_tests
from launches import check, equal, program, sets
from machines import place_in, stored


def rows(text):
    """What `check` says of each host."""
    return {line.split()[0]: line for line in text.splitlines() if line.startswith("  ")}


def test_check_sends_programs_once(lab):
    names = ("cpu1", "cpu2")
    near = lab.add("near")  # has our programs under the same path
    with place_in(lab, 'hosts: [{name: "cpu[1-2]"}, {name: near}]') as place:
        first, _ = place.call("check", str(place.config))
        equal(set(rows(first)), {*names, "near"}, "hosts")
        check("sent" not in rows(first)["near"] and not near.cache().exists(), first)
        before = {name: stored(lab[name]) for name in names}
        for name in names:
            equal(len(before[name]), 1, "folders of programs on " + name)
            contains(rows(first)[name], "sent", "10.231.0.1:")
        lab.nothing_left()
        again, _ = place.call("check", str(place.config))
        check("sent" not in again, again)
        equal({name: stored(lab[name]) for name in names}, before, "programs")
        lab.nothing_left()
        equal([path.name for path in place.base.iterdir()], ["run.yaml"], "files at home")
        _, err = place.call("check", str(place.config), *sets("launch.send=[gone.py]"), status=1)
        contains(err, "gone.py")


def test_programs_that_were_sent_run(lab):
    """The machine lacks a library, too: it came along."""
    with place_in(lab, 'hosts: [{name: cpu1, roles: [actor, learner]}]') as place:
        libraries = lab.at_home("ssh", "cpu1", "ldd /root/.cache/replay/programs/*/replay-learner").stdout
        check("not found" in libraries or not folder_of_a_library(), libraries)
        launcher = place.launch(*sets("stop.steps=500"))
        launcher.ends()
        for name in ("actor-0", "actor-1", "learner-0"):
            contains(launcher.log(), "started process=%s host=cpu1\n" % name)
        equal(launcher.read("report.json")["restarts"], 0, "failures")
        lab.nothing_left()


BROKEN = """
hosts:
  - {name: cpu1}
  - {name: locked}
  - {name: nowhere.invalid}
  - {name: "off"}
  - {name: stranger}
  - {name: cpu2, programs: /nowhere}
  - {name: full}
  - {name: odd, command: [sh, -c, "exit 3", sh]}
"""
SENTENCES = {"locked": "ssh-copy-id locked", "nowhere.invalid": "resolve", "off": "Connection refused", "stranger": "ssh stranger",
             "cpu2": "/nowhere/replay-launch", "full": "make room on full", "odd": "exit status 3"}


def test_check_says_what_cannot_work(lab):
    lab.add("locked").allow(False)
    lab.add("off").stop()
    lab.know("stranger", lab["cpu1"], known=False)
    lab.add("full", lab.hide)
    done = lab.at_home("ssh", "full", "mkdir .cache && mount -t tmpfs -o size=1m none .cache")
    equal(done.returncode, 0, done.stderr)
    loud = lab["cpu1"].base / "root" / ".bashrc"
    loud.write_text("seq 1 100000\nprintf 'no line'\n")
    with place_in(lab, BROKEN) as place:
        out, err = place.call("check", str(place.config), status=1)
    found = rows(out)
    for name, sentence in SENTENCES.items():
        contains(found[name], "cannot work", sentence)
    check("cannot work" not in found["cpu1"], found["cpu1"])
    contains(err, "7 of 8 hosts")
    loud.unlink()
    lab.nothing_left()


def folder_of_a_library():
    """A folder with nothing but a library that our programs need; None: there is none such here."""
    for line in machines.run("ldd", program("learner")).splitlines():
        path = pathlib.Path(line.split("=>")[-1].split("(")[0].strip()).resolve()
        if "openblas" in str(path.parent):
            return path.parent
    return None


def main():
    machines.skip_unless_possible()
    hidden = [pathlib.Path(program("launch")).resolve().parent, folder_of_a_library()]
    with machines.Lab(("cpu1", "cpu2"), hide=[path for path in hidden if path]) as lab:
        return run_tests(lab)
