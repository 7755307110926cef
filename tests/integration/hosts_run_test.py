"""Runs over several machines: real sshd instances with addresses, homes and process ids of their own (machines.py). Our programs
are installed there."""

import concurrent.futures
import pathlib
import signal

import machines
from harness import contains, run_tests
from launches import ENDLESS, PATIENCE, check, equal, eventually, program, sets
from machines import place_in

# Nothing is packed and compared at every connection: hosts_test.py does that.
HOSTS = """
hosts:
  - {name: "%(name)s[1-2]", cores: 2, programs: %(programs)s}
  - {name: %(name)s3, cores: 2, roles: [learner], programs: %(programs)s}
"""
PROGRAMS = pathlib.Path(program("launch")).resolve().parent
NAMES = ("cpu1", "cpu2", "cpu3")
NEAR, FAR = (HOSTS % {"name": name, "programs": PROGRAMS} for name in ("cpu", "far"))


def hosts_of(launcher):
    return {row["name"]: row for row in launcher.status().get("hosts") or []}


def host_of(launcher, name):
    return hosts_of(launcher).get(name) or {"ready": False, "losses": 0, "times": 0}


def processes_of(launcher):
    """Where each process runs that does."""
    rows = launcher.status().get("processes") or []
    return {row["name"]: row["host"] for row in rows if row.get("pid")}


def await_steps(launcher, more=200):
    """Until actors have taken more steps than now."""
    goal = launcher.steps() + more
    launcher.await_alive(lambda: launcher.steps() >= goal, "%d steps" % goal)


def await_spread(launcher):
    """Until everybody runs, each where its role belongs, and actors take steps."""
    wanted = {"broker": "home", "evaluator-0": "home", "learner-0": "cpu3", "actor-0": "cpu1", "actor-1": "cpu2"}
    launcher.await_alive(lambda: processes_of(launcher) == wanted, "processes on their hosts", 2 * PATIENCE)
    await_steps(launcher)


def test_killed_launcher_leaves_nothing(lab):
    """A host that does not let the launcher in is left out, with a sentence."""
    lab.add("locked").allow(False)
    with place_in(lab, NEAR + "  - {name: locked}\n") as place:
        launcher = place.launch(*sets(*ENDLESS))
        await_spread(launcher)
        launcher.await_text("locked is left out")
        contains(launcher.text(), "Permission denied", "ssh-copy-id locked")
        for name, what in (("cpu1", "replay-actor"), ("cpu3", "replay-learner")):
            contains(" ".join(lab[name].commands().values()), what, "replay-launch node")
        launcher.signal(signal.SIGKILL)
        lab.nothing_left(PATIENCE)
        place.nobody_left(PATIENCE)


def test_latency_and_broken_connections(lab):
    """All connections take 20 ms in each direction, and break: those of processes to the broker, and those of ssh."""
    ports = (7600, 7601, 7602)
    to_broker = machines.Forwarder(lab, "wan1", {port: (lab.home.address, port) for port in ports}, 20)
    to_hosts = machines.Forwarder(lab, "wan2", {2201 + i: (lab[name].address, 22) for i, name in enumerate(NAMES)}, 20)
    for i, name in enumerate(NAMES):
        lab.know("far%d" % (i + 1), lab[name], to_hosts.address, 2201 + i)
    broker = ["broker.advertise=" + to_broker.address]
    broker += ["broker.%s=tcp://0.0.0.0:%d" % way for way in zip(("service", "ingest", "events"), ports)]
    with place_in(lab, FAR) as place:
        launcher = place.launch(*sets("stop.steps=3000", "environment.delay=4ms", *broker))  # goes on for seconds after the last cut
        for forwarder in (to_broker, to_hosts, to_broker):
            await_steps(launcher)
            check(forwarder.cut() > 0, "no connection was broken")
        launcher.ends(seconds=3 * PATIENCE)
        lab.nothing_left()
        report = launcher.read("report.json")
        check(report["phase"] == "done" and report["steps"] >= 3000, report)
        equal(report["restarts"], 0, "failures of processes")


def go_down_and_come_back(lab):
    """One host after the other loses its power. Meanwhile the cable of another one is pulled, and neither side hears of the other's
    end: each gives the other up after its lease."""
    with place_in(lab, NEAR) as place:
        launcher = place.launch(*sets(*ENDLESS))
        await_spread(launcher)
        lab["cpu1"].cut_off()
        for name, member in (("cpu2", "actor-1"), ("cpu3", "learner-0")):
            lab[name].stop()
            launcher.await_alive(lambda: not host_of(launcher, name)["ready"], "the loss of " + name)
            check(member not in processes_of(launcher), member, "runs on a lost host")
            lab[name].start()
            launcher.await_alive(lambda: host_of(launcher, name)["times"] == 2, "the return of " + name)
            launcher.await_start(member, 2)
            await_steps(launcher)
        eventually(lambda: not lab["cpu1"].left(), 2 * PATIENCE, "the end of all processes on cpu1")
        launcher.await_alive(lambda: not host_of(launcher, "cpu1")["ready"], "the loss of cpu1")
        lab["cpu1"].join()
        await_spread(launcher)
        equal({name: host["times"] for name, host in hosts_of(launcher).items() if name != "home"},
              {"cpu1": 2, "cpu2": 2, "cpu3": 2}, "how often hosts were taken in")
        launcher.stop(PATIENCE)
        lab.nothing_left()


def test_hosts_go_down_and_come_back(lab):
    lab.beside.result()


def main():
    machines.skip_unless_possible()
    with machines.Lab(NAMES) as lab, machines.Lab(NAMES) as other, concurrent.futures.ThreadPoolExecutor() as pool:
        # Beside the others, on machines of its own: this test waits most of the time.
        lab.beside = pool.submit(go_down_and_come_back, other)
        return run_tests(lab)
