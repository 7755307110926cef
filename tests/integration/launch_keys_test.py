"""A run whose broker needs keys: the launcher makes them, every process has the key of its role, and no secret is anywhere else.

The broker listens on loopback with security.mode curve, which is what auto means for an endpoint that other machines can reach."""
import json
import os
import pathlib
import re
import stat
import subprocess
import sys
import tempfile
import time

LAUNCH, CTL = os.environ["RP_LAUNCH"], os.environ["RP_CTL"]
CONFIG = """
name: keys
environment: {name: CartPole-v1}
broker:
  security: {mode: curve%s}
  tables: [{name: replay, max_size: 10000, limiter: {kind: min_size, min_size: 200}}]
agent: {hidden: [8], batch: 16}
actors: {count: 2}
learners: {count: 2}
stop: {steps: %d}
"""


def launch(*words, cwd, status=0):
    result = subprocess.run([LAUNCH, *words], cwd=cwd, capture_output=True, text=True, timeout=100)
    if result.returncode != status:
        sys.exit(f"replay-launch {' '.join(words)}: status {result.returncode}\n{result.stdout}\n{result.stderr}")
    return result


def ctl(*words, key=None):
    env = {name: value for name, value in os.environ.items() if name != "REPLAY_KEY_FILE"}
    if key is not None:
        env["REPLAY_KEY_FILE"] = key
    return subprocess.run([CTL, *words], env=env, capture_output=True, text=True, timeout=20)


def write(folder, name, text):
    with open(os.path.join(folder, name), "w") as file:
        file.write(text)


def secrets_of(folder):
    found = []
    for name in os.listdir(folder):
        if name.endswith(".key"):
            path = os.path.join(folder, name)
            assert stat.S_IMODE(os.stat(path).st_mode) == 0o600, name
            with open(path) as file:
                found += re.findall(r"^secret (\S+)$", file.read(), re.M)
    return found


def expect_no_secret(folder, secrets):
    """No file of the run but the key files has a secret."""
    for root, _, names in os.walk(folder):
        for name in names:
            if not name.endswith(".key"):
                with open(os.path.join(root, name), "rb") as file:
                    data = file.read()
                assert not any(secret.encode() in data for secret in secrets), name


def children_of(pid):
    out = []
    for entry in os.listdir("/proc"):
        try:
            with open(f"/proc/{entry}/stat") as file:
                parent = int(file.read().rpartition(")")[2].split()[1])
            if parent == pid:
                with open(f"/proc/{entry}/cmdline", "rb") as words, open(f"/proc/{entry}/environ", "rb") as env:
                    out.append((words.read(), env.read()))
        except (OSError, ValueError):
            continue
    return out


def show(folder):
    """Prints the ends of a run's logs, and its status."""
    for path in sorted(pathlib.Path(folder).glob("logs/*.log")) + [pathlib.Path(folder, "status.json")]:
        if path.exists():
            print("----", path, "\n" + path.read_text(errors="replace")[-1500:])


def await_condition(check, what, folder=None):
    for _ in range(2000):
        value = check()
        if value:
            return value
        time.sleep(0.05)
    if folder:
        show(folder)
    sys.exit(f"never seen: {what}")


def test_keys_of_its_own(here):
    write(here, "run.yaml", CONFIG % ("", 0))
    process = subprocess.Popen([LAUNCH, "run.yaml", "--folder", "one", "--quiet"], cwd=here,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    keys, endpoints = os.path.join(here, "one", "keys"), os.path.join(here, "one", "endpoints")
    try:
        def acting():
            try:
                with open(os.path.join(here, "one", "status.json")) as file:
                    return json.load(file).get("steps", 0) > 1000
            except (OSError, ValueError):
                return False
        await_condition(acting, "steps of the actors", os.path.join(here, "one"))
        assert stat.S_IMODE(os.stat(keys).st_mode) == 0o700
        secrets = secrets_of(keys)
        assert len(secrets) == 4, os.listdir(keys)
        processes = await_condition(lambda: [p for p in children_of(process.pid) if b"replay-" in p[0]], "processes")
        named = {re.search(rb"REPLAY_KEY_FILE=\S*/(\w+)\.key", env).group(1).decode()
                 for _, env in processes if b"REPLAY_KEY_FILE=" in env}
        assert named == {"actor", "learner"}, named
        for words, env in processes:
            assert not any(secret.encode() in words + env for secret in secrets)
        # Nobody else gets in, and a role is not more than it is.
        assert ctl("--endpoints-file", endpoints, "info").returncode == 1
        assert ctl("--endpoints-file", endpoints, "info", key=os.path.join(keys, "admin.key")).returncode == 0
        refused = ctl("--endpoints-file", endpoints, "--json", "reset", "replay", key=os.path.join(keys, "actor.key"))
        assert json.loads(refused.stdout)["error"]["status"] == "PERMISSION_DENIED", refused
    finally:
        process.terminate()
        out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    expect_no_secret(os.path.join(here, "one"), secrets)
    # The same keys serve when the run is resumed.
    with open(os.path.join(here, "one", "status.json")) as file:
        steps = json.load(file)["steps"]
    launch("resume", "one", "--set", f"stop.steps={steps + 5000}", "--quiet", cwd=here)
    assert secrets_of(keys) == secrets


def test_keys_of_the_user(here):
    """The list is the user's: the run's keys are on it while it runs, and the user's own keys stay."""
    folder = os.path.join(here, "mine")
    made = ctl("key", "new", os.path.join(here, "me.key"), "--keys", folder, "--role", "observer")
    assert made.returncode == 0, made.stderr
    write(here, "run.yaml", CONFIG % (f", keys: {folder}", 3000))
    launch("run.yaml", "--folder", "two", "--quiet", cwd=here)
    listed = ctl("key", "list", folder).stdout.split()
    assert listed[0:2] == ["me", "observer"] and len(listed) == 3, listed
    assert not any(name.endswith(".key") for name in os.listdir(os.path.join(here, "two", "keys")))


def test_a_key_for_another_broker(here):
    """A run without keys does not use the key that the user's environment names."""
    key = os.path.join(here, "other.key")
    made = ctl("key", "new", key, "--keys", os.path.join(here, "other"), "--role", "admin")
    assert made.returncode == 0, made.stderr
    write(here, "run.yaml", (CONFIG % ("", 3000)).replace("mode: curve", "mode: auto"))
    os.environ["REPLAY_KEY_FILE"] = key
    try:
        launch("run.yaml", "--folder", "three", "--quiet", cwd=here)
    finally:
        del os.environ["REPLAY_KEY_FILE"]


def main():
    for test in (test_keys_of_its_own, test_keys_of_the_user, test_a_key_for_another_broker):
        with tempfile.TemporaryDirectory() as here:
            test(here)
            print(test.__name__, "passed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
