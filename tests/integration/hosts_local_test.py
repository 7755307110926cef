"""Runs over hosts that are this machine, each with a node agent and a folder of its own: where processes run, what comes back into the
run's folder, what a dead node agent, a dead launcher and a host that never answers change, and learners elsewhere."""

import json
import os
import re
import shutil
import signal
import stat

from launches import AUTO, CONFIG, ENDLESS, PATIENCE, Place, check, equal, eventually, sets
from harness import contains, ctl, kill, proc, state_of

# Ends at once, while actors and learners that take their last steps together need seconds.
BRIEF = ("stop.steps=0", "stop.learner_steps=200", "evaluator.episodes=0")


class Hosts(Place):
    """Hosts named left and right: a shell in place of ssh, with temporary files below a folder of their name."""

    def __init__(self, config=CONFIG, **roles):
        super().__init__(config)
        self.text = config
        self.say(*(self.host(name, **({"roles": list(roles.get(name, ["actor"]))} if config is CONFIG else {}))
                   for name in ("left", "right")))

    def host(self, name, **more):
        (self.base / name).mkdir(exist_ok=True)
        command = ["env", "-u", "XDG_RUNTIME_DIR", "TMPDIR=" + str(self.base / name), "sh", "-c"]
        return dict({"name": name, "command": command, "programs": os.environ["RP_BUILD_DIR"]}, **more)

    def say(self, *hosts):
        self.config.write_text(self.text + "hosts: " + json.dumps(hosts) + "\n")

    def processes(self, name):
        """(pid, words of its command line) of what runs on a host."""
        mine = ("TMPDIR=" + str(self.base / name)).encode()
        here = [pid for pid in self.left() if mine in proc(pid, "environ").split(b"\0")]
        return [(pid, proc(pid, "cmdline").split(b"\0")) for pid in here]

    def agents(self, name):
        """Node agents of a host, without the guards that they are the parents of: [pid]."""
        nodes = {pid for pid, words in self.processes(name) if words[1:2] == [b"node"]}
        return [pid for pid in nodes if state_of(pid)[2] not in nodes]

    def workers(self, name, program=b"replay-actor"):
        return [pid for pid, words in self.processes(name) if words[0].endswith(program)]

    def kill(self, name):
        """All that runs on a host, as if its power had failed."""
        for pid, _ in self.processes(name):
            kill(pid)

    def no_folders(self):
        eventually(lambda: not [f for name in ("left", "right") for f in (self.base / name).iterdir()], 10,
                   "the end of the folders of the hosts")


def starts_at(run, process, host):
    return run.log().count("started process=%s host=%s" % (process, host))


def test_a_run_over_two_hosts():
    with Hosts() as place:
        place.environment["SSH_CONNECTION"] = "192.0.2.1 1 192.0.2.2 22"   # of the user's login: not how hosts see this machine
        run = place.launch("--folder", "one", *sets("actors.count=4"))
        run.ends()
        status = run.read("status.json")
        equal((status["phase"], status["steps"], status["restarts"]), ("done", 3000, 0), "the end")
        equal([sum(starts_at(run, "actor-%d" % i, host) for i in range(4)) for host in ("left", "right")], [2, 2],
              "actors on the left and on the right")
        equal({p["host"] for p in status["processes"] if p["role"] == "actor"}, {"left", "right"}, "hosts of the actors")
        for i in range(4):
            check((run.folder / ("actor-%d.jsonl" % i)).stat().st_size > 0, "no report of actor", i)
        keys = run.folder / "keys"
        equal(stat.S_IMODE(keys.stat().st_mode), 0o700, "mode of the folder of keys")
        check("tcp://*:0" in (run.folder / "config.yaml").read_text(), "the broker was not reachable from other machines")
        place.nobody_left()
        place.no_folders()


def test_hosts_by_hand():
    """A host that the file does not name is taken in; one that leaves gives its actors to the others. A host that comes back, too."""
    with Hosts() as place:
        (place.base / "far7").mkdir()
        shell = 'TMPDIR=%s/$NAME exec sh -c "$1"' % place.base
        host = place.host("left")
        host["command"] = host["command"][:-2] + ["sh", "-c", shell.replace("$NAME", "left"), "sh"]
        place.say(host)
        run = place.running("--folder", "one", *sets("actors.count=2", *ENDLESS))

        def at(**hosts):
            run.await_alive(lambda: {h: n for h in ("left", "far7") if (n := sum(
                p["host"] == h and p["pid"] > 0 for p in run.status()["processes"] if p["role"] == "actor"))} == hosts, hosts)

        at(left=2)
        place.call("resize", "hosts=+far7", "--run", "one")
        at(left=1, far7=1)
        for same in ("far7", "far[7]", "far[7-8]", "x" * 64):
            place.call("resize", "hosts=+" + same, "--run", "one", status=2)
        place.call("resize", "hosts=-left", "--run", "one")
        at(far7=2)
        place.call("resize", "hosts=-left", "--run", "one", status=2)
        place.call("resize", "hosts=+left", "--run", "one")
        at(left=1, far7=1)
        place.call("resize", "hosts=left", "--run", "one", status=2)
        equal(run.status()["restarts"], 0, "restarts of processes that failed")
        equal(run.hosts()["left"]["losses"], 0, "losses of a host that was released")
        place.call("stop", "one")
        run.ends(0, PATIENCE)


def test_check_tries_twice():
    """A server that is asked by many at once may refuse a connection; one that refuses two cannot work."""
    with Hosts() as place:
        refuse = "test -e $TMPDIR/%s && exec sh -c \"$1\"; touch $TMPDIR/once; echo refused >&2; exit 255"
        hosts = [place.host(name) for name in ("left", "right")]
        for host, mark in zip(hosts, ("once", "never")):
            host["command"] += [refuse % mark, "sh"]
        place.say(*hosts)
        out, err = place.call("check", str(place.config), status=1)
        found = {line.split()[0]: line for line in out.splitlines() if line.startswith("  ")}
        check("cannot work" not in found["left"] and "cannot work" in found["right"], out)
        check("1 of 2 hosts" in err, err)


def test_check_waits_for_the_bundle():
    """Packing the programs for hosts takes longer than a connection may."""
    with Hosts() as place:
        tools = place.base / "tools"
        tools.mkdir()
        (tools / "gzip").write_text("#!/bin/sh\nsleep 12\nexec %s \"$@\"\n" % shutil.which("gzip"))
        (tools / "gzip").chmod(0o755)
        place.environment["PATH"] = "%s:%s" % (tools, place.environment["PATH"])
        # A host that does not have our programs at their path here.
        agent = "exec env HOME=$TMPDIR sh -c \"$(echo \"$1\" | sed s,%s,/nowhere,g)\"" % os.environ["RP_BUILD_DIR"]
        host = place.host("left", programs="")
        host["command"] = host["command"][:-2] + ["sh", "-c", agent, "sh"]
        place.say(host)
        out, _ = place.call("check", str(place.config))
        check("(sent)" in out and "cannot work" not in out, out)


def test_programs_of_the_user():
    """Their placeholders name what is on the host, what they print is in the run's logs, and files of their name come home and go along
    with a resume, as statistics do."""
    with Hosts() as place:
        (place.base / "words.txt").write_text("sent along\n")
        script = ("cat {here}/words.txt; test -w {folder} && echo folder of {index}; echo {service}; test -r {config} || echo no config; "
                  "echo seen >>{folder}/actor-{index}.obs.npy; exec %s/replay-actor -c {config} --endpoint {service} --index {index} --set actors.count={count} "
                  "--folder {folder}" % os.environ["RP_BUILD_DIR"])
        run = place.launch("--folder", "one", *sets("actors.command=" + json.dumps(["sh", "-c", script]),
                                                    "launch.send=[words.txt]", "broker.advertise=localhost",
                                                    *BRIEF))
        run.ends()
        for i in range(2):
            lines = run.log("actor-%d" % i).splitlines()
            equal(lines[:2], ["sent along", "folder of %d" % i], "output of actor %d" % i)
            check(lines[2].startswith("tcp://localhost:"), "not the advertised address", lines[2])
        equal((run.read("status.json")["phase"], run.read("status.json")["restarts"]), ("done", 0), "the end")
        place.start("resume", "one", *sets("stop.learner_steps=300")).ends()
        equal([(run.folder / ("actor-%d.obs.npy" % i)).read_text() for i in range(2)], ["seen\n" * 2] * 2, "files of both legs")
        check(" A0438 " not in run.log(), "a file was not taken")


def test_files_of_the_run():
    """A plug-in beside the run's file, and weights with which actors act, are found on a host that has neither."""
    with Hosts() as place:
        shutil.copy(os.path.join(os.environ["RP_PLUGIN_DIR"], "env_example.so"), place.base / "own.so")
        plugin = ("environment={name: Corridor, plugin: own.so}", "launch.send=[own.so]", "actors.count=2")
        run = place.launch("--folder", "one", *sets(*plugin, *BRIEF))
        run.ends()
        again = place.launch("--folder", "two", *sets(
            *plugin, "stop.steps=600", "learners.count=0", "evaluator.episodes=0", "actors.weights=one/learner.weights",
            "broker.tables[0].limiter={kind: min_size, min_size: 1}"))
        again.ends()
        equal(again.read("status.json")["steps"], 600, "steps with saved weights")
        for one in (run, again):
            equal((one.read("status.json")["phase"], one.read("status.json")["restarts"]), ("done", 0), "the end")
            equal([starts_at(one, "actor-%d" % i, host) for i, host in ((0, "left"), (1, "right"))], [1, 1], "starts")


def test_a_killed_agent_and_a_killed_launcher():
    with Hosts() as place:
        run = place.running("--folder", "one", *sets("actors.count=2", *ENDLESS))
        agent, = place.agents("left")
        worker, = place.workers("left")
        # A host without learners has no learner's key.
        keys = {path.name for path in (place.base / "left").glob("*/keys/*")}
        equal(keys, {"actor.key"}, "keys on the left")
        os.kill(agent, signal.SIGKILL)
        eventually(lambda: worker not in place.left(), 5, "the end of the actor of a killed node agent")
        run.await_alive(lambda: place.workers("left"), "the actor's second start on the left")
        run.await_alive(lambda: run.hosts()["left"]["actors"] == 1, "the actor in the status")
        status = run.read("status.json")
        equal((status["restarts"], run.hosts()["left"]["times"]), (0, 2), "restarts, and connections to the left")
        check(" A0431 " in run.log() and " A0432 " in run.log(), "the log knows nothing of the loss")
        run.await_more_steps()
        run.signal(signal.SIGKILL)


def test_a_revoked_host():
    """Each host has a key of its own: without it the host is out of the run, which goes on elsewhere."""
    with Hosts() as place:
        run = place.running("--folder", "one", *sets("actors.count=2", *ENDLESS))
        run.await_alive(lambda: place.workers("left") and place.workers("right"), "an actor on each host")
        for words in (["revoke", "one/keys", "right.learner"], ["revoke", "one/keys", "left.actor"]):
            equal(ctl("key", *words, cwd=place.base)[0], 0 if words[2] == "left.actor" else 1, words)
        run.await_alive(lambda: len(place.workers("right")) == 2 and not place.workers("left"), "both actors on the right")
        check(" A0444 " in run.log(), "the log does not say why")
        run.await_alive(lambda: "left" not in {host["name"] for host in run.read("status.json")["hosts"]}, "the hosts that are left")
        run.await_more_steps(100)
        run.stop(PATIENCE)
        # A resumed run does not let the host in again.
        again = place.start("resume", "one")
        again.await_alive(lambda: len(place.workers("right")) == 2, "both actors on the right again")
        check(not place.workers("left"), "the revoked host is back")
        again.stop(PATIENCE)


def test_hosts_that_come_and_go():
    """A run begins without a host that does not answer and takes it in later; without any host it waits."""
    with Hosts() as place:
        away, there = place.base / "away", place.base / "there"
        away.touch()
        hosts = [place.host(name) for name in ("left", "right")]
        for host, flag in zip(hosts, (away, there)):
            host["command"] = ["sh", "-c", "test ! -e %s || { echo no route to it >&2; exit 1; }; exec %s \"$1\"" % (
                flag, " ".join(host["command"])), "sh"]
        place.say(*hosts)
        run = place.launch("--folder", "one", *sets("actors.count=2", *ENDLESS))
        run.await_phase("running")
        equal([run.hosts()[name]["actors"] for name in ("left", "right")], [0, 2], "actors at the beginning")
        check(" A0433 " in run.log() and "no route to it" in run.log(), "no word about the host", run.log())
        away.unlink()
        run.await_alive(lambda: [run.hosts()[name]["actors"] for name in ("left", "right")] == [1, 1],
                        "an actor on each host")
        equal(run.read("status.json")["restarts"], 0, "restarts")
        run.await_alive(lambda: run.read("status.json")["learners"] == 1, "the learner")
        away.touch()
        there.touch()
        for name in ("left", "right"):
            for agent in place.agents(name):
                os.kill(agent, signal.SIGKILL)
        run.await_alive(lambda: run.read("status.json")["actors"] == 0, "the end of all actors")
        states = {p["state"] for p in run.read("status.json")["processes"] if p["role"] == "actor"}
        equal(states, {"waits for left", "waits for right"}, "what the actors do")
        there.unlink()
        run.await_more_steps(100)
        run.stop(PATIENCE)


def test_a_learner_elsewhere():
    with Hosts(left=["learner"], right=["actor"]) as place:
        run = place.running("--folder", "one", *sets("actors.count=1", *ENDLESS))
        run.await_alive(lambda: (run.folder / "learner.weights").exists(), "the learner's state in the run's folder")
        equal(len(place.workers("left", b"replay-learner")), 1, "learners on the left")
        run.stop(PATIENCE)
        equal(run.read("status.json")["phase"], "stopped", "phase")
        check(" A0407 " not in run.log(), "a process had to be killed", run.log())
        before = run.read("status.json")["learner_steps"]
        check(before > 0, "nothing was learned")
        place.no_folders()
        again = place.start("resume", "one", *sets("environment.delay=0s", "stop.learner_steps=%d" % (before + 200)))
        again.ends()
        text = run.log("learner-0")
        saved = [int(step) for step in re.findall(r" A0205 .* step=(\d+)", text)]
        check(saved and saved[-1] >= before, "the learner did not go on from", before, "\n" + text)
        check(run.read("status.json")["learner_steps"] >= before + 200, "too few learner steps")
        equal(starts_at(run, "learner-0", "left"), 2, "starts of the learner on the left")


PLANNED = AUTO + "plan: {measure: 600ms, max_actors: 2, max_learners: 1}\n"


def read_plan(place, folder):
    return json.loads((place.base / folder / "plan.json").read_text())


def counts(plan, role):
    return {host["name"]: host[role] for host in plan["hosts"]}


def check_sums(plan):
    for role in ("actors", "learners"):
        equal(sum(counts(plan, role).values()), plan["chosen"][role], role + " of all hosts")


def test_a_plan_over_two_hosts_and_its_cache():
    with Hosts(PLANNED) as place:
        text, progress = place.call("plan", "run.yaml", "--folder", "first")
        plan = read_plan(place, "first")
        check_sums(plan)
        home, left, right = plan["hosts"]
        equal((home["actors"], home["learners"]), (0, 1), "processes of home: %s" % plan["hosts"])
        check(left["actors"] - right["actors"] in (0, 1), "equal hosts have", plan["hosts"])
        contains(progress, "1 actor on left")
        check(" on right" not in progress, "a host of the same kind was measured:", progress)
        contains(text, "where", "left", "right")
        known = plan["input"]
        kinds = [host["kind"] for host in known["hosts"]]
        check(kinds[0] != kinds[1] == kinds[2], "kinds", kinds)
        equal([(host["actor"]["rate"] or 0) > 0 for host in known["hosts"]], [False, True, False], "measured hosts")
        cpu = known["hosts"][1]["actor"]["cpu"]
        check(0 < cpu < 4, "cores of an actor on left:", cpu)
        check(all(run["actor_idle"] is not None for run in known["runs"]), "no report came back:", known["runs"])
        place.nobody_left()
        text, progress = place.call("plan", "run.yaml", "--folder", "second")
        check("measuring" not in progress, "it was measured again:", progress)
        again = read_plan(place, "second")
        equal((again["hosts"], again["chosen"]), (plan["hosts"], plan["chosen"]), "the plan from the cache")
        place.nobody_left()
        place.say(place.host("other"))  # another number of hosts
        text, progress = place.call("plan", "run.yaml", "--folder", "third", *sets("actors.count=1", "learners.count=1"))
        contains(progress, "1 actor on other", "1 actor and 1 learner together")


def test_a_host_that_dies_while_it_is_measured():
    with Hosts(PLANNED) as place:
        run = place.start("plan", "run.yaml", "--folder", "first", *sets("actors.count=2", "learners.count=1"))
        run.await_text("1 actor on left")
        place.kill("left")
        text = run.ends()
        plan = run.read("plan.json")
        check_sums(plan)
        check(counts(plan, "actors")["right"] > 0, plan["hosts"])
        contains(text, "left was lost", "1 actor on right")
