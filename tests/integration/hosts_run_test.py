"""Runs over several machines: real sshd instances with addresses, homes and process ids of their own (machines.py). Our programs
are installed there."""

import concurrent.futures
import json
import pathlib
import re
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
ACTING = "hosts: [{name: cpu1, cores: 2, roles: [actor], programs: %s}]\n" % PROGRAMS
PORTS = (7600, 7601, 7602)
RATE = 500_000  # bytes/s: actors make far more, and the learner could use them
LOAD = (ENDLESS[0], "adder.buffer_items=2000", "learners.delay=50ms",
        'broker.tables=[{name: replay, max_size: 10000, limiter: {kind: sample_to_insert_ratio, samples_per_insert: 0.02, '
        'min_size: 200, error_buffer: 100}}]')
FETCH = """
import sys, urllib.request
request = urllib.request.Request(sys.argv[1], headers={"Authorization": "Bearer " + sys.argv[2]})
print(urllib.request.urlopen(request).read().decode())
"""


def processes_of(launcher):
    """Where each process runs that does."""
    rows = launcher.status().get("processes") or []
    return {row["name"]: row["host"] for row in rows if row.get("pid")}


def await_spread(launcher):
    """Until everybody runs, each where its role belongs, and actors take steps."""
    wanted = {"broker": "home", "evaluator-0": "home", "learner-0": "cpu3", "actor-0": "cpu1", "actor-1": "cpu2"}
    launcher.await_alive(lambda: processes_of(launcher) == wanted, "processes on their hosts", 2 * PATIENCE)
    launcher.await_more_steps(200)


def before_the_broker(lab, name, **how):
    """(the forwarder, settings of a broker whose clients elsewhere connect through it)"""
    forwarder = machines.Forwarder(lab, name, {port: (lab.home.address, port) for port in PORTS}, **how)
    return forwarder, ["broker.advertise=" + forwarder.address,
                       *("broker.%s=tcp://0.0.0.0:%d" % way for way in zip(("service", "ingest", "events"), PORTS))]


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
    to_broker, broker = before_the_broker(lab, "wan1", delay_ms=20)
    to_hosts = machines.Forwarder(lab, "wan2", {2201 + i: (lab[name].address, 22) for i, name in enumerate(NAMES)}, 20)
    for i, name in enumerate(NAMES):
        lab.know("far%d" % (i + 1), lab[name], to_hosts.address, 2201 + i)
    with place_in(lab, FAR) as place:
        launcher = place.launch(*sets("stop.steps=3000", "environment.delay=4ms", *broker))  # goes on for seconds after the last cut
        for forwarder in (to_broker, to_hosts, to_broker):
            launcher.await_more_steps(200)
            check(forwarder.cut() > 0, "no connection was broken")
        launcher.ends(seconds=3 * PATIENCE)
        lab.nothing_left()
        report = launcher.read("report.json")
        check(report["phase"] == "done" and report["steps"] >= 3000, report)
        equal(report["restarts"], 0, "failures of processes")


def await_status(launcher, what, holds):
    """Gives the status for which it holds."""
    seen = [{}]

    def look():
        seen.append(launcher.status())
        return holds(seen[-1])
    try:
        launcher.await_alive(look, what, 2 * PATIENCE)
    except AssertionError as error:
        known = {key: seen[-1].get(key) for key in ("cause", "waits", "actor_idle", "inserts_rate", "hosts")}
        raise AssertionError("%s; the last status: %s" % (error, known)) from None
    print("      %s: %s %s" % (seen[-1]["cause"], seen[-1]["waits"], seen[-1]["advice"]))
    return seen[-1]


def network_rate(status):
    """Bytes/s, by the sentence; 0 if it tells none."""
    rate, unit = (re.findall(r"which gets ([0-9.]+) (B|KiB|MiB)/s", status["waits"]) or [("0", "B")])[0]
    return float(rate) * {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20}[unit]


def all_name(place, launcher, cause, words):
    """Numbers change from second to second, so each is asked until it says so. Gives what the page has."""
    url, token = (launcher.folder / "page").read_text().strip().split("?token=")
    at_home = lambda *command: machines.run(*place.prefix, *command, cwd=place.base, env=place.environment)  # noqa: E731

    def page_names():
        state = json.loads(at_home("/usr/bin/python3", "-c", FETCH, url + "api/state", token))
        return state if state["verdict"]["cause"] == cause and words in state["verdict"]["text"] else None
    said = lambda *command: words in " ".join(at_home(*command).split())  # noqa: E731: lines are wrapped
    eventually(lambda: said(program("ctl"), "--run", "latest", "why"), PATIENCE, "replay-ctl why: " + words)
    eventually(lambda: said(program("ctl"), "--run", "latest", "top", "--count", "1"), PATIENCE, "replay-ctl top: " + words)
    eventually(lambda: said(program("launch"), "status"), PATIENCE, "replay-launch status: " + words)
    return eventually(page_names, PATIENCE, "the page: " + words)


def test_all_name_the_network_and_a_lost_host(lab):
    """What holds a run back, brought about for real, is named alike by status.json, `replay-launch status`, `replay-ctl why` and `top`,
    and the page."""
    way, broker = before_the_broker(lab, "wan3", rate=RATE)
    with place_in(lab, ACTING) as place:
        launcher = place.launch(*sets(*LOAD, *broker))
        status = await_status(launcher, "the network that both actors wait for", lambda status: status.get("cause") == "network"
                              and 0.6 * RATE < network_rate(status) < 1.1 * RATE)
        equal((status["blocked"], status["bad"]), ("actors", False), "whose arrow stands still")
        page = all_name(place, launcher, "network", "The network is the bottleneck")
        equal(page["verdict"]["blocked"], "actors", "the arrow on the page")
        waits = [wait for wait in page["waits"] if wait["kind"] == "network"]
        check(waits and all(wait["who"] in ("actor-0", "actor-1") and 0 < wait["rate"] < RATE for wait in waits), page["waits"])

        way.lift()
        await_status(launcher, "another cause", lambda status: status.get("cause") not in (None, "", "network"))

        lab["cpu1"].stop()
        status = await_status(launcher, "the lost host", lambda status: status.get("cause") == "hosts")
        equal((status["actors"], status["bad"]), (0, True), "actors")
        all_name(place, launcher, "hosts", "2 of 3 actors and learners wait for hosts: cpu1")
        launcher.signal()
        launcher.ends(seconds=2 * PATIENCE)


def go_down_and_come_back(lab):
    """One host after the other loses its power. Meanwhile the cable of another one is pulled, and neither side hears of the other's
    end: each gives the other up after its lease."""
    with place_in(lab, NEAR) as place:
        launcher = place.launch(*sets(*ENDLESS))
        await_spread(launcher)
        lab["cpu1"].cut_off()
        for name, member in (("cpu2", "actor-1"), ("cpu3", "learner-0")):
            lab[name].stop()
            launcher.await_alive(lambda: not launcher.hosts()[name]["ready"], "the loss of " + name)
            check(member not in processes_of(launcher), member, "runs on a lost host")
            lab[name].start()
            launcher.await_alive(lambda: launcher.hosts()[name]["times"] == 2, "the return of " + name)
            launcher.await_start(member, 2)
            launcher.await_more_steps(200)
        eventually(lambda: not lab["cpu1"].left(), 2 * PATIENCE, "the end of all processes on cpu1")
        launcher.await_alive(lambda: not launcher.hosts()["cpu1"]["ready"], "the loss of cpu1")
        lab["cpu1"].join()
        await_spread(launcher)
        equal({name: host["times"] for name, host in launcher.hosts().items() if name != "home"},
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
