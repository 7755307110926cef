"""The parent of shards: replay-broker --shards N. Shards that die come back at the same endpoints, also after their port was taken
for a while; nobody is left when the parent ends, is killed, or is told to end while it starts."""

import os
import pathlib
import signal
import socket
import subprocess
import tempfile
import time

from harness import BROKER, PORTS, Broker, children, eventually, state_of

SLOW = 3 if os.environ.get("RP_SANITIZE") else 1
TABLES = """
tables:
  - {name: t, max_size: 1000, sampler: {kind: uniform}, limiter: {kind: min_size, min_size: 1}}
"""


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


class Parent(Broker):
    """Does not wait until it is ready."""

    def __init__(self, shards, endpoints="endpoints", sockets=PORTS):
        self.shards, self.file = shards, endpoints
        super().__init__(sockets + TABLES)

    def start(self, *options):
        self.file = self.folder / self.file
        self.process = subprocess.Popen([BROKER, "-c", str(self.config), "--shards", str(self.shards), "--endpoints-file",
                                         str(self.file), *options], stdout=subprocess.DEVNULL, stderr=self.log)

    def ready(self):
        eventually(self.file.exists, what="the endpoints file")
        lines = dict(line.split() for line in self.file.read_text().splitlines())
        return [int(lines[("shard.%d." % i if i else "") + "service"].rsplit(":", 1)[1]) for i in range(len(lines) // 3)]

    def end(self, number=signal.SIGTERM):
        shards = children(self.process.pid)
        self.process.send_signal(number)
        status = self.process.wait(60 * SLOW)
        eventually(lambda: all(state_of(pid)[1] in "ZX" for pid in shards), what="the end of all shards")
        return status


def test_shards_come_back():
    with Parent(3) as parent, socket.socket() as taker:   # its port is taken while it is away
        ports = parent.ready()
        assert len(ports) == 3 and all(map(answers, ports))
        victim = next(pid for pid in children(parent.process.pid) if state_of(pid)[0] == "replay-shard-1")
        taker.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        parent.process.send_signal(signal.SIGSTOP)   # it would be faster otherwise
        os.kill(victim, signal.SIGKILL)
        eventually(lambda: takes(taker, ports[1]), what="the end of the shard and of its sockets")
        parent.process.send_signal(signal.SIGCONT)
        eventually(lambda: parent.text().count("B0701") >= 2, what="a restart that fails")
        assert parent.process.poll() is None and answers(ports[0]) and answers(ports[2])
        taker.close()
        eventually(lambda: answers(ports[1]), what="the shard's return")
        assert parent.ready() == ports
        os.kill(children(parent.process.pid)[0], signal.SIGSTOP)   # a shard that is stopped ends, too
        assert parent.end() == 0


def listens(path):
    with socket.socket(socket.AF_UNIX) as caller:
        return caller.connect_ex(path) == 0


def test_names_that_were_chosen_stay():
    """libzmq has chosen the names of these sockets."""
    with Parent(2, sockets="".join("%s: 'ipc://*'\n" % name for name in ("service", "ingest", "events"))) as parent:
        eventually(parent.file.exists, what="the endpoints file")
        paths = [line.split("ipc://")[1] for line in parent.file.read_text().splitlines() if line.startswith("shard.1.")]
        assert len(paths) == 3 and all(map(listens, paths))
        for number in (signal.SIGKILL, signal.SIGTERM):  # after the second, libzmq removes their folders
            parent.process.send_signal(signal.SIGSTOP)  # it would be faster otherwise
            os.kill(next(pid for pid in children(parent.process.pid) if state_of(pid)[0] == "replay-shard-1"), number)
            eventually(lambda: not listens(paths[0]), what="the end of the shard")
            parent.process.send_signal(signal.SIGCONT)
            eventually(lambda: all(map(listens, paths)), what="the shard's return to its sockets")
        assert parent.end() == 0
        parent.start("--again")
        eventually(lambda: all(map(listens, paths)), what="all names after a whole restart")
        assert parent.end() == 0


def test_nobody_survives_the_parent():
    with Parent(3) as parent:
        ports = parent.ready()
        assert parent.end(signal.SIGKILL) == -signal.SIGKILL
        assert not any(map(answers, ports))


def test_a_signal_during_the_start_ends_all():
    for pause in range(0, 90, 6):
        with Parent(4) as parent:
            time.sleep(pause / 1000 * SLOW)
            status = parent.end()
            assert status in (0, -signal.SIGTERM), status


def test_a_signal_that_ends_nothing():
    """SIGUSR1 asks for a checkpoint. While shards start, it is too early, and no reason to end."""
    with Parent(4) as parent:
        eventually(lambda: children(parent.process.pid), what="the first shard")   # from then on the parent takes signals

        def storm():
            for pid in [parent.process.pid] + children(parent.process.pid):
                os.kill(pid, signal.SIGUSR1)
            return parent.file.exists()
        eventually(storm, what="the endpoints file")
        assert len(parent.ready()) == 4
        assert parent.process.poll() is None and "B0701" not in parent.text()
        assert parent.end() == 0


def test_a_path_with_a_space():
    with tempfile.TemporaryDirectory() as folder:
        place = pathlib.Path(folder, "a b")
        place.mkdir()
        sockets = "".join("%s: ipc://%s/%s\n" % (name, place, name[0]) for name in ("service", "ingest", "events"))
        with Parent(2, sockets=sockets) as parent:
            eventually(parent.file.exists, what="the endpoints file")
            lines = dict(line.split(" ", 1) for line in parent.file.read_text().splitlines())
            assert lines["service"].endswith("/a b/s") and lines["shard.1.events"].endswith("/a b/e-1"), lines
            assert parent.end() == 0


def test_a_file_that_cannot_be_written():
    with Parent(2, "no/such/folder") as parent:
        assert parent.process.wait(60 * SLOW) == 1
        assert "no/such/folder" in parent.text()
