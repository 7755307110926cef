"""What holds a run over several machines back, brought about for real, and named alike by everybody: status.json, `replay-launch
status`, `replay-ctl why` and the page."""

import json
import pathlib
import re
import subprocess
import sys

import machines
from harness import run_tests
from launches import ENDLESS, PATIENCE, check, equal, eventually, program, sets
from machines import place_in

PROGRAMS = pathlib.Path(program("launch")).resolve().parent
HOSTS = """
hosts:
  - {name: cpu1, cores: 2, roles: [actor], programs: %s}
""" % PROGRAMS
RATE = 500_000  # bytes/s: actors make far more, and the learner could use them
LOAD = (ENDLESS[0], "adder.buffer_items=2000", "learners.delay=50ms",
        'broker.tables=[{name: replay, max_size: 10000, limiter: {kind: sample_to_insert_ratio, samples_per_insert: 0.02, '
        'min_size: 200, error_buffer: 100}}]')
PORTS = (7600, 7601, 7602)
FETCH = """
import sys, urllib.request
request = urllib.request.Request(sys.argv[1], headers={"Authorization": "Bearer " + sys.argv[2]})
print(urllib.request.urlopen(request).read().decode())
"""


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


def at_home(place, *words):
    done = subprocess.run([*place.prefix, *words], capture_output=True, text=True, cwd=place.base, env=place.environment,
                          timeout=PATIENCE)
    check(done.returncode == 0, words, done.stdout, done.stderr)
    return done.stdout


def page_state(place, launcher):
    url, token = (launcher.folder / "page").read_text().strip().split("?token=")
    return json.loads(at_home(place, "/usr/bin/python3", "-c", FETCH, url + "api/state", token))


def all_name(place, launcher, cause, words):
    """Numbers change from second to second, so each is asked until it says so. Gives what the page has."""
    def page_names():
        state = page_state(place, launcher)
        return state if state["verdict"]["cause"] == cause and words in state["verdict"]["text"] else None
    said = lambda *command: words in " ".join(at_home(place, *command).split())  # noqa: E731: lines are wrapped
    eventually(lambda: said(program("ctl"), "--run", "latest", "why"), PATIENCE, "replay-ctl why: " + words)
    eventually(lambda: said(program("ctl"), "--run", "latest", "top", "--count", "1"), PATIENCE, "replay-ctl top: " + words)
    eventually(lambda: said(program("launch"), "status"), PATIENCE, "replay-launch status: " + words)
    return eventually(page_names, PATIENCE, "the page: " + words)


def test_the_network_and_a_lost_host(lab):
    way = machines.Forwarder(lab, "wan", {port: (lab.home.address, port) for port in PORTS}, rate=RATE)
    broker = ["broker.%s=tcp://0.0.0.0:%d" % pair for pair in zip(("service", "ingest", "events"), PORTS)]
    with place_in(lab, HOSTS) as place:
        launcher = place.launch(*sets(*LOAD, *broker, "broker.advertise=" + way.address))
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


machines.skip_unless_possible()
with machines.Lab(["cpu1"]) as lab:
    sys.exit(run_tests(lab))
