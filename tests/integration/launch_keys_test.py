"""A run whose broker needs keys: the launcher makes them, every process has the key of its role, and no secret is anywhere else.

The broker listens on loopback with security.mode curve, which is what auto means for an endpoint that other machines can reach."""

import json
import os
import re
import signal
import stat

import harness
from launches import Place, check, equal, sets

CONFIG = """
name: keys
environment: {name: CartPole-v1}
broker:
  security: {mode: curve%s}
  tables: [{name: replay, max_size: 10000, limiter: {kind: min_size, min_size: 200}}]
agent: {hidden: [8], batch: 16}
actors: {count: 2}
learners: {count: 2, delay: 2ms}
stop: {steps: %d}
"""


def ctl(*words, key=None, status=0):
    env = {name: value for name, value in os.environ.items() if name != "REPLAY_KEY_FILE"}
    env.update({"REPLAY_KEY_FILE": str(key)} if key else {})
    got, text, error = harness.ctl(*words, env=env)
    equal(got, status, error)
    return text


def secrets_of(folder):
    found = []
    for path in sorted(folder.glob("*.key")):
        equal(stat.S_IMODE(path.stat().st_mode), 0o600, path.name)
        found += re.findall(r"^secret (\S+)$", path.read_text(), re.M)
    return found


def test_keys_of_its_own():
    with Place(CONFIG % ("", 0)) as place:
        run = place.launch("--folder", "one", "--quiet")
        run.await_alive(lambda: run.status().get("steps", 0) > 1000, "steps of the actors")
        keys = run.folder / "keys"
        equal(stat.S_IMODE(keys.stat().st_mode), 0o700, "mode of the folder of keys")
        secrets = secrets_of(keys)
        equal(len(secrets), 4, "secrets")
        processes = [(harness.proc(pid, "cmdline"), harness.proc(pid, "environ")) for pid in place.left()]
        processes = [process for process in processes if b"replay-" in process[0]]
        named = {name for _, env in processes for name in re.findall(rb"REPLAY_KEY_FILE=\S*/(\w+)\.key", env)}
        equal(named, {b"actor", b"learner"}, "keys that processes are given")
        for words, env in processes:
            check(not any(secret.encode() in words + env for secret in secrets), "a secret in", words)
        # Nobody else gets in, and a role is not more than it is.
        broker = ("--endpoints-file", run.folder / "endpoints")
        ctl(*broker, "info", status=1)
        ctl(*broker, "info", key=keys / "admin.key")
        refused = ctl(*broker, "--json", "reset", "replay", key=keys / "actor.key", status=1)
        equal(json.loads(refused)["error"]["status"], "PERMISSION_DENIED", "a reset by an actor")
        run.signal(signal.SIGTERM)
        run.ends()
        for path in run.folder.rglob("*"):
            if path.is_file() and path.suffix != ".key":
                check(not any(secret.encode() in path.read_bytes() for secret in secrets), path, "has a secret")
        # The same keys serve when the run is resumed.
        steps = run.read("status.json")["steps"]
        place.call("resume", "one", "--quiet", *sets("stop.steps=%d" % (steps + 5000)))
        equal(secrets_of(keys), secrets, "secrets of the resumed run")


def test_keys_of_the_user():
    """The list is the user's: the run's keys are on it while it runs, and the user's own keys stay."""
    with Place() as place:
        mine = place.base / "mine"
        ctl("key", "new", place.base / "me.key", "--keys", mine, "--role", "observer")
        place.config.write_text(CONFIG % (", keys: %s" % mine, 3000))
        place.call("run.yaml", "--folder", "two", "--quiet")
        listed = ctl("key", "list", mine).split()
        equal((listed[:2], len(listed)), (["me", "observer"], 3), "keys on the list")
        equal(list((place.base / "two" / "keys").glob("*.key")), [], "keys of the run")


def test_a_key_for_another_broker():
    """A run without keys does not use the key that the user's environment names."""
    with Place((CONFIG % ("", 3000)).replace("mode: curve", "mode: auto")) as place:
        key = place.base / "other.key"
        ctl("key", "new", key, "--keys", place.base / "other", "--role", "admin")
        place.environment["REPLAY_KEY_FILE"] = str(key)
        place.call("run.yaml", "--folder", "three", "--quiet")
