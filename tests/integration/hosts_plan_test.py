"""Counts for hosts: measured over hosts that are this machine, shown for each host, cached, and what a host that dies meanwhile
changes."""

import json
import os
import pathlib
import signal
import sys

sys.dont_write_bytecode = True

from launches import CONFIG, Place, check, equal, sets  # noqa: E402
from harness import Runner, contains  # noqa: E402

test = Runner()
# Actors and learner sleep most of the time, so that this machine's speed hardly matters.
AUTO = CONFIG.replace("count: 2", "count: auto").replace("count: 1", "count: auto, delay: 6ms") \
    .replace("{name: CartPole-v1}", "{name: CartPole-v1, delay: 4ms}") \
    + "plan: {measure: 600ms, max_actors: 2, max_learners: 1}\n"


class Hosts(Place):
    """A shell in place of ssh; temporary files of each host are below a folder of its name."""

    def __init__(self, *names):
        super().__init__()
        self.say(*names)

    def say(self, *names):
        hosts = []
        for name in names:
            (self.base / name).mkdir(exist_ok=True)
            command = ["env", "-u", "XDG_RUNTIME_DIR", "TMPDIR=" + str(self.base / name), "sh", "-c"]
            hosts.append({"name": name, "command": command, "programs": os.environ["RP_BUILD_DIR"]})
        self.config.write_text(AUTO + "hosts: " + json.dumps(hosts) + "\n")

    def kill(self, name):
        """All that runs on a host, as if its power had failed."""
        mine = ("TMPDIR=" + str(self.base / name)).encode()
        for pid in self.left():
            try:
                if mine in pathlib.Path("/proc/%d/environ" % pid).read_bytes().split(b"\0"):
                    os.kill(pid, signal.SIGKILL)
            except OSError:
                pass

    def plan(self, folder):
        return json.loads((self.base / folder / "plan.json").read_text())


def counts(plan, role):
    return {host["name"]: host[role] for host in plan["hosts"]}


def check_sums(plan):
    for role in ("actors", "learners"):
        equal(sum(counts(plan, role).values()), plan["chosen"][role], role + " of all hosts")


@test
def test_a_plan_over_two_hosts_and_its_cache():
    with Hosts("left", "right") as place:
        text, progress = place.call("plan", "run.yaml", "--folder", "first")
        plan = place.plan("first")
        check_sums(plan)
        home, left, right = plan["hosts"]
        equal((home["actors"], home["learners"]), (0, 1), "processes of home: %s" % plan["hosts"])
        check(left["actors"] - right["actors"] in (0, 1), "equal hosts have", plan["hosts"])
        contains(progress, "1 actor on left")
        check(" on right" not in progress, "a host of the same kind was measured:", progress)
        contains(text, "where", "left", "right")
        known = plan["input"]
        equal([host["kind"] for host in known["hosts"]], [0, 1, 1], "kinds")
        equal([(host["actor"]["rate"] or 0) > 0 for host in known["hosts"]], [False, True, False], "measured hosts")
        cpu = known["hosts"][1]["actor"]["cpu"]
        check(0 < cpu < 4, "cores of an actor on left:", cpu)
        check(all(run["actor_idle"] is not None for run in known["runs"]), "no report came back:", known["runs"])
        place.nobody_left()
        text, progress = place.call("plan", "run.yaml", "--folder", "second")
        check("%" not in progress, "it was measured again:", progress)
        again = place.plan("second")
        equal((again["hosts"], again["chosen"]), (plan["hosts"], plan["chosen"]), "the plan from the cache")
        place.nobody_left()
        place.say("other")  # of the same kind: an actor there is known, and one run shows what it does alone
        text, progress = place.call("plan", "run.yaml", "--folder", "third", *sets("actors.count=1", "learners.count=1"))
        check("1 actor on" not in progress, "an actor was measured again:", progress)
        contains(progress, "1 actor and 1 learner together")
        third = place.plan("third")
        equal(third["input"]["hosts"][1]["actor"], known["hosts"][1]["actor"], "an actor on the other host")
        equal([run["runs"] for run in third["input"]["runs"]], [1], "runs")
        place.nobody_left()


@test
def test_a_host_that_dies_while_it_is_measured():
    with Hosts("left", "right") as place:
        run = place.start("plan", "run.yaml", "--folder", "first", *sets("actors.count=2", "learners.count=1"))
        run.await_text("1 actor on left")
        place.kill("left")
        text = run.ends()
        plan = run.read("plan.json")
        check_sums(plan)
        check(counts(plan, "actors")["right"] > 0, plan["hosts"])
        contains(text, "left was lost", "1 actor on right")
        place.nobody_left()


sys.exit(test.main())
