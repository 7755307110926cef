"""Starts a real broker for a test, and counts what passes."""

import atexit
import contextlib
import json
import os
import pathlib
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback

BROKER = os.environ.get("RP_BROKER", "replay-broker")
CTL = os.environ.get("RP_CTL", "replay-ctl")
# The least number of seconds that anything is waited for: other programs may keep the machine busy.
LEAST = 60


PORTS = "service: tcp://127.0.0.1:0\ningest: tcp://127.0.0.1:0\nevents: tcp://127.0.0.1:0\n"


def free_ports(n):
    """Ports that nobody has. They are below the range from which the system takes ports for others, so nobody takes one while its owner is
    away."""
    ports = []
    while len(ports) < n:
        port = random.randrange(20000, 32000)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        if port not in ports:
            ports.append(port)
    return ports


class Broker:
    """A broker process with its own folder, FOLDER in the configuration, on free ports unless that names endpoints. Ends with its
    `with` block."""

    def __init__(self, config):
        config = config if "ingest:" in config else PORTS + config
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="replay-foreign-"))
        self.config = self.folder / "broker.yaml"
        self.config.write_text(config.replace("FOLDER", str(self.folder)))
        self.log, self.where = open(self.folder / "log", "wb"), self.folder / "endpoints"
        self.process, self.endpoints = None, {}
        self.start()

    def launch(self, before=(), program=BROKER, **options):
        """before: words before the command."""
        self.where.unlink(missing_ok=True)
        self.process = subprocess.Popen([*before, program, "-c", str(self.config), "--endpoints-file", str(self.where)],
                                        stdout=self.log, stderr=self.log, **options)
        atexit.register(self.process.kill)  # a test that fails leaves no broker behind; one that has ended is left alone

    def ready(self):
        """Waits until it has bound its sockets."""
        end = time.monotonic() + LEAST
        while not self.where.exists():
            if self.process.poll() is not None or time.monotonic() > end:
                raise RuntimeError("the broker did not start, status %s:\n%s" % (self.process.returncode, self.text()[-4000:]))
            time.sleep(0.002)
        self.endpoints = dict(line.split(None, 1) for line in self.where.read_text().splitlines() if line.strip())

    def start(self):
        self.launch()
        self.ready()

    def alive(self):
        return self.process.poll() is None

    def signal(self, number):
        if self.alive():
            self.process.send_signal(number)

    def text(self):
        self.log.flush()
        return pathlib.Path(self.log.name).read_text(errors="replace")

    def stop(self, patience=120):  # a sanitizer looks for leaks at the end
        """The exit status of a SIGTERM, or -SIGKILL if it does not end by itself."""
        self.signal(signal.SIGTERM)
        try:
            return self.process.wait(patience)
        except subprocess.TimeoutExpired:
            return self.kill()

    def kill(self):
        self.process.kill()
        return self.process.wait()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.remove()

    def remove(self):
        self.stop()
        self.log.close()
        shutil.rmtree(self.folder, ignore_errors=True)


def ctl(*words, **options):
    """Runs replay-ctl to its end. Gives its exit status, what it prints, and its errors."""
    done = subprocess.run([CTL, *map(str, words)], capture_output=True, text=True, timeout=120, **options)
    return done.returncode, done.stdout, done.stderr


def run_tests(*args):
    """Calls the functions test_* of the file that is run, in the order in which they stand; one failure does not stop the others."""
    name, *wanted = sys.argv
    passed, failed, module = 0, 0, sys.modules[pathlib.Path(name).stem]
    for name, test in list(vars(module).items()):
        if not name.startswith("test_") or test.__module__ != module.__name__ or wanted and name not in wanted:
            continue  # tests of a file that was imported are its own
        start = time.monotonic()
        try:
            test(*args)
            passed += 1
            print("ok    %-44s %6.2f s" % (name, time.monotonic() - start), flush=True)
        except Exception:
            failed += 1
            print("FAIL  %s" % name)
            traceback.print_exc(file=sys.stdout)
            sys.stdout.flush()
    print("%d passed, %d failed" % (passed, failed), flush=True)
    return 1 if failed or not passed else 0


def check(condition, *what):
    if not condition:
        raise AssertionError(" ".join(str(w) for w in what))


def equal(got, wanted, what=""):
    if got != wanted:
        raise AssertionError("%s: got %r, wanted %r" % (what, got, wanted))


def contains(text, *parts):
    for part in parts:
        check(part in text, "%r is not in %r" % (part, text))


def eventually(condition, timeout=10.0, what="condition"):
    """Waits for something that another process does, for LEAST seconds or longer. what: a text or its function."""
    timeout = max(timeout, LEAST)
    end = time.monotonic() + timeout
    while not (value := condition()):
        if time.monotonic() >= end:
            raise AssertionError("%s did not come true within %s s" % (what() if callable(what) else what, timeout))
        time.sleep(0.01)
    return value


def json_lines(path):
    """The whole lines of a file: the last one may be half written. []: there is no file yet."""
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text[:text.rfind("\n") + 1].splitlines()]


def children(pid):
    """Processes that a process has started and not waited for: [pid]."""
    found = []
    with contextlib.suppress(FileNotFoundError):  # the process is gone; below, one of its threads
        for thread in os.listdir("/proc/%d/task" % pid):
            with contextlib.suppress(OSError):
                found += map(int, pathlib.Path("/proc/%d/task/%s/children" % (pid, thread)).read_text().split())
    return found


def everybody():
    """All processes: [pid]."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def proc(pid, file):
    """What a file of /proc says of a process; b"": it is gone, or it is not ours."""
    with contextlib.suppress(OSError):
        return pathlib.Path("/proc/%d/%s" % (pid, file)).read_bytes()
    return b""


def state_of(pid):
    """(name, state, parent); Z is the state of a process that has ended, also of one that is gone."""
    text = proc(pid, "stat").decode() or "() Z 0"
    rest = text[text.rindex(")") + 1:].split()
    return text[text.index("(") + 1:text.rindex(")")], rest[0], int(rest[1])


def resident(pid, which="VmRSS"):
    """Bytes of memory that a process has; VmHWM: the most so far."""
    lines = pathlib.Path("/proc/%d/status" % pid).read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(which))


def kill(pid, number=signal.SIGKILL):
    """Whether there was such a process."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
        return True
    return False


LARGE = """
import sys, time, zmq
kind, endpoint, mebibytes, *keys = sys.argv[1:]
client = zmq.Context.instance().socket(getattr(zmq, kind))
if keys:
    client.curve_publickey, client.curve_secretkey, client.curve_serverkey = [key.encode() for key in keys]
client.linger = client.sndhwm = 0
client.connect(endpoint)
for i in range(int(mebibytes)):
    if kind == "SUB":
        client.subscribe(b"%08d" % i + bytes(1 << 14))
    else:
        client.send(bytes(1 << 20), zmq.SNDMORE)
if kind != "SUB":
    client.send(b"")
time.sleep(60)
"""


def send_large(kind, endpoint, mebibytes, *keys):
    """Sends one message of so many parts, or subscribes to many things, in a process of its own, which the caller kills: libzmq
    may abort a client whose connection ends within a message. It begins to send when it has the last part."""
    return subprocess.Popen([sys.executable, "-c", LARGE, kind, endpoint, str(mebibytes), *keys], stderr=subprocess.DEVNULL)
