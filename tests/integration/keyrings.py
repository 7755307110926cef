"""A broker with CURVE on loopback, keys made by replay-ctl, and clients that come in with them."""

import os
import pathlib
import resource
import subprocess
import tempfile

import zmq

from actor import Actor
from generated import pb
from harness import CTL, Broker, eventually
from service import Service

SANITIZED = bool(os.environ.get("RP_SANITIZE"))   # everything takes longer then
PERMISSION_DENIED = 19

TABLES = """
tables:
  - {name: t, max_size: 100000, sampler: {kind: uniform}, limiter: {kind: none}}
  - {name: q, max_size: 100000, sampler: {kind: fifo}, limiter: {kind: min_size, min_size: 100000}}
  - {name: full, max_size: 2, max_times_sampled: 1, sampler: {kind: fifo}, limiter: {kind: queue}}
"""
COLUMNS = [pb.Column(name="x", dtype="float32", shape=[4])]
FIELDS = [pb.Field(name="x", column=0)]
ROW = bytes(16)


class Key:
    """A key file as a client reads it."""

    def __init__(self, path):
        self.path, self.brokers = path, []
        for line in path.read_text().splitlines():
            word, _, value = line.partition(" ")
            if word == "broker":
                self.brokers.append(value.encode())
            elif word in ("name", "public", "secret"):
                setattr(self, word, value if word == "name" else value.encode())

    def secure(self, socket, broker=None):
        socket.curve_publickey, socket.curve_secretkey = self.public, self.secret
        socket.curve_serverkey = broker or self.brokers[0]


class Stranger(Key):
    """A key that is in no list."""

    def __init__(self, broker):
        self.name, self.brokers = "stranger", [broker]
        self.public, self.secret = zmq.curve_keypair()


class KeyContext:
    """A context whose sockets all come in with one key. silent: they leave what they get in the network's buffers."""

    def __init__(self, key, context=None, silent=False):
        self.key, self.context, self.silent = key, context or zmq.Context.instance(), silent

    def socket(self, kind):
        socket = self.context.socket(kind)
        self.key.secure(socket)
        if self.silent:
            socket.rcvhwm, socket.rcvbuf = 1, 4096
        return socket


class KeyBroker(Broker):
    """more: further top-level lines of the configuration. ports: of the three sockets, or endpoints."""

    def __init__(self, more="", tables=TABLES, ports=("0", "0", "0")):
        self.keys = pathlib.Path(tempfile.mkdtemp(prefix="replay-keys-"))
        self.files = pathlib.Path(tempfile.mkdtemp(prefix="replay-files-"))
        names = zip(("service", "ingest", "events"), ports)
        lines = ["%s: %s%s" % (name, "" if "://" in str(port) else "tcp://127.0.0.1:", port) for name, port in names]
        super().__init__("\n".join(lines) + "\nsecurity: {mode: curve, keys: %s%s}\n" % (
            self.keys, self.quota(more)) + more.partition("quota:")[0] + tables)
        self.public = self.ctl("show", self.keys).split()[-1].encode()

    @staticmethod
    def quota(more):
        _, found, limits = more.partition("quota:")
        return ", quota: " + limits.strip() if found else ""

    def ctl(self, *words, check=True):
        """Runs replay-ctl key, and gives what it prints."""
        done = subprocess.run([CTL, "key", *map(str, words)], capture_output=True, text=True, timeout=120)
        if check and done.returncode:
            raise RuntimeError("replay-ctl key %s: %s" % (words, done.stderr))
        return done.stdout if check else done

    def new(self, name, roles):
        path = self.files / (name + ".key")
        self.ctl("new", path, "--keys", self.keys, "--role", roles)
        return Key(path)

    def allow(self, key, roles, *limits):
        self.ctl("allow", self.keys, key.name, key.public.decode(), "--role", roles, *limits)

    def revoke(self, key):
        self.ctl("revoke", self.keys, key.name)

    def edit(self, key, roles, *limits):
        """Gives a key other roles and limits, as an editor does that replaces the file. Returns when the broker has read it."""
        path, before = self.keys / "clients", len(self.lines("B0604"))
        lines = [line for line in path.read_text().splitlines() if not line.startswith(key.name + " ")]
        lines.append(" ".join([key.name, roles, key.public.decode(), *limits]))
        new = self.keys / "clients.edited"
        new.touch(0o600)
        new.write_text("\n".join(lines) + "\n")
        new.rename(path)
        eventually(lambda: len(self.lines("B0604")) > before, 2, "the list to be read")

    def service(self, key, kind="DEALER"):
        return Service(self.endpoints["service"], kind, context=KeyContext(key))

    def actor(self, key, name="actor"):
        return Actor(self.service(key), COLUMNS, name)

    def lines(self, number):
        return [line for line in self.text().splitlines() if number in line]

    def remove(self):
        super().remove()
        for folder in (self.keys, self.files):
            subprocess.run(["rm", "-rf", str(folder)], check=True)


class KeyWorld:
    """What the tests of a file share: a broker with keys, and an admin's key and connection."""

    def __init__(self, *options, **named):
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        self.broker = KeyBroker(*options, **named)
        self.endpoint = self.broker.endpoints["service"]
        self.admin = self.broker.new("admin", "admin")
        self.watch = self.broker.service(self.admin)
        self.watch.info()   # it is in, whatever happens to the list


def status(service, name, body, payload=(), timeout=60.0):
    """The status of one request."""
    return service.ask(name, body, payload, timeout, check=False)[0].status


def send(actor, table="t", count=1, timeout=60.0, policy=0):
    """Sends items of one step."""
    if not any(layout.table == table for _, layout in actor.layouts):
        actor.layout(table, FIELDS)
    layout = next(l.id for _, l in actor.layouts if l.table == table)
    chunk = actor.chunk([ROW * count], count)
    for i in range(count):
        actor.item(layout, chunk, i, 1, policy=policy)
    actor.oldest_chunk = chunk
    return actor.send(timeout)


def write(actor, table="t", count=1, timeout=60.0, policy=0):
    """Writes items of one step and waits until they are in their table."""
    return send(actor, table, count, timeout, policy) and actor.flush(timeout)
