"""The parent of shards: replay-broker --shards N. Shards that die come back at the same endpoints, also after their port was taken
for a while; nobody is left when the parent ends, is killed, or is told to end while it starts."""

import os
import pathlib
import signal
import socket
import subprocess
import tempfile
import time

BROKER = os.environ["RP_BROKER"]
SLOW = 3 if os.environ.get("RP_SANITIZE") else 1
CONFIG = """service: tcp://127.0.0.1:0
ingest: tcp://127.0.0.1:0
events: tcp://127.0.0.1:0
tables:
  - {name: t, max_size: 1000, sampler: {kind: uniform}, limiter: {kind: min_size, min_size: 1}}
"""


def wait_for(what, condition, seconds=20):
    end = time.monotonic() + seconds * SLOW
    while not condition():
        if time.monotonic() > end:
            raise AssertionError("%s did not happen within %g s" % (what, seconds * SLOW))
        time.sleep(0.01)


def is_alive(pid):
    try:
        return pathlib.Path("/proc/%d/stat" % pid).read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


def answers(port):
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
        return True
    except OSError:
        return False


def takes(listener, port):
    try:
        listener.bind(("127.0.0.1", port))
        listener.listen()
        return True
    except OSError:
        return False


class Parent:
    def __init__(self, folder, shards, endpoints="endpoints", config=CONFIG):
        self.file, self.log = folder / endpoints, open(folder / "log", "w")
        self.file.unlink(missing_ok=True)
        (folder / "broker.yaml").write_text(config)
        self.process = subprocess.Popen([BROKER, "-c", str(folder / "broker.yaml"), "--shards", str(shards), "--endpoints-file",
                                         str(self.file)], stdout=subprocess.DEVNULL, stderr=self.log)

    def children(self):
        path = pathlib.Path("/proc/%d/task/%d/children" % (self.process.pid, self.process.pid))
        try:
            return [int(word) for word in path.read_text().split()]
        except OSError:
            return []

    def ready(self):
        wait_for("the endpoints file", self.file.exists)
        lines = dict(line.split() for line in self.file.read_text().splitlines())
        return [int(lines[("shard.%d." % i if i else "") + "service"].rsplit(":", 1)[1]) for i in range(len(lines) // 3)]

    def __enter__(self):
        return self

    def __exit__(self, *ignored):
        """Nobody is left, also if the test has failed: shards end with their parent."""
        if self.process.poll() is None:
            self.kill()
        self.log.close()

    def end(self, number=signal.SIGTERM):
        children = self.children()
        self.process.send_signal(number)
        status = self.process.wait(20 * SLOW)
        wait_for("the end of all shards", lambda: not any(map(is_alive, children)))
        return status


def name_of(pid):
    try:
        return pathlib.Path("/proc/%d/comm" % pid).read_text().strip()
    except OSError:
        return ""


def shards_come_back(folder):
    with Parent(folder, 3) as parent, socket.socket() as taker:   # its port is taken while it is away
        ports = parent.ready()
        assert len(ports) == 3 and all(map(answers, ports))
        victim = next(pid for pid in parent.children() if name_of(pid) == "replay-shard-1")
        taker.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        parent.process.send_signal(signal.SIGSTOP)   # it would be faster otherwise
        os.kill(victim, signal.SIGKILL)
        wait_for("the end of the shard and of its sockets", lambda: takes(taker, ports[1]))
        parent.process.send_signal(signal.SIGCONT)
        wait_for("a restart that fails", lambda: (folder / "log").read_text().count("B0701") >= 2)
        assert parent.process.poll() is None and answers(ports[0]) and answers(ports[2])
        taker.close()
        wait_for("the shard's return", lambda: answers(ports[1]))
        assert parent.ready() == ports
        os.kill(parent.children()[0], signal.SIGSTOP)   # a shard that is stopped ends, too
        assert parent.end() == 0


def nobody_survives_the_parent(folder):
    with Parent(folder, 3) as parent:
        ports = parent.ready()
        assert parent.end(signal.SIGKILL) == -signal.SIGKILL
        assert not any(map(answers, ports))


def a_signal_during_the_start_ends_all(folder):
    for pause in range(0, 90, 6):
        with Parent(folder, 4) as parent:
            time.sleep(pause / 1000 * SLOW)
            status = parent.end()
            assert status in (0, -signal.SIGTERM), status


def a_signal_that_ends_nothing(folder):
    """SIGUSR1 asks for a checkpoint. While shards start, it is too early, and no reason to end."""
    with Parent(folder, 4) as parent:
        wait_for("the first shard", parent.children)   # from then on the parent takes signals

        def storm():
            for pid in [parent.process.pid] + parent.children():
                os.kill(pid, signal.SIGUSR1)
            return parent.file.exists()
        wait_for("the endpoints file", storm)
        assert len(parent.ready()) == 4
        assert parent.process.poll() is None and "B0701" not in (folder / "log").read_text()
        assert parent.end() == 0


def a_path_with_a_space(folder):
    (folder / "a b").mkdir()
    names = ("service", "ingest", "events")
    config = "".join("%s: ipc://%s/a b/%s\n" % (name, folder, name[0]) for name in names) + CONFIG[CONFIG.index("tables:"):]
    with Parent(folder, 2, config=config) as parent:
        wait_for("the endpoints file", parent.file.exists)
        lines = dict(line.split(" ", 1) for line in parent.file.read_text().splitlines())
        assert lines["service"].endswith("/a b/s") and lines["shard.1.events"].endswith("/a b/e-1"), lines
        assert parent.end() == 0


def a_file_that_cannot_be_written(folder):
    with Parent(folder, 2, "no/such/folder") as parent:
        assert parent.process.wait(20 * SLOW) == 1
        assert "no/such/folder" in (folder / "log").read_text()


def main():
    for test in (shards_come_back, nobody_survives_the_parent, a_signal_during_the_start_ends_all, a_signal_that_ends_nothing,
                 a_path_with_a_space, a_file_that_cannot_be_written):
        with tempfile.TemporaryDirectory() as folder:
            begin = time.monotonic()
            test(pathlib.Path(folder))
            print("%s: %.1f s" % (test.__name__, time.monotonic() - begin), flush=True)
