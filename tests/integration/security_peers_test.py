"""Who has no key, or the wrong one: refused at once with a sentence, logged with a bound, and nothing of it reaches
the broker's core. Replayed handshakes do not disturb who is in."""

import contextlib
import os
import socket
import threading
import time

import zmq

from keyrings import SANITIZED, KeyBroker, KeyWorld, Stranger, status, write
from generated import pb
from harness import check, contains, ctl, equal, eventually, resident, send_large

REFUSED, NO_BROKER = 1, 3   # exit statuses of replay-ctl
TIMEOUT = 60  # seconds of replay-ctl, which must not pass where it is refused


class World(KeyWorld):
    def __init__(self):
        super().__init__()
        self.actor = self.broker.new("actor", "actor")
        self.idle = {name: socket.create_connection(("127.0.0.1", self.port(name)), 60) for name in self.broker.endpoints}

    def port(self, name="service"):
        return int(self.broker.endpoints[name].rsplit(":", 1)[1])

    def ctl(self, key_file, *words):
        """A client of the library: (exit status, sentence, seconds)."""
        environment = dict(os.environ, REPLAY_ENDPOINT=self.endpoint)
        environment.pop("REPLAY_KEY_FILE", None)
        if key_file:
            environment["REPLAY_KEY_FILE"] = str(key_file)
        start = time.monotonic()
        code, _, text = ctl("--timeout", "%ds" % TIMEOUT, *(words or ["info"]), env=environment)
        return code, text, time.monotonic() - start

    def messages(self):
        return self.watch.info().server.messages_in

    def untouched(self, act):
        """Nothing of what act does reaches the core, and the broker's log has a line about it. Not always about the first
        attempt: the log allows five lines a second, and a client without CURVE may hang up before the broker has read what the
        client is."""
        before, lines = self.messages(), len(self.broker.lines("B0606"))

        def told():
            act()
            time.sleep(0.2)
            return len(self.broker.lines("B0606")) > lines
        eventually(told, what="a line in the log")
        equal(self.messages(), before + 1, "messages that the core has read")


def is_prompt(seconds):
    check(seconds < TIMEOUT / 2, "the sentence took %.2f s" % seconds)


def test_a_good_key_comes_in(world):
    code, text, took = world.ctl(world.admin.path)
    equal(code, 0, text)
    is_prompt(took)


def test_a_strangers_key(world):
    path = world.broker.files / "stranger.key"
    world.broker.ctl("new", path, "--broker", world.broker.public.decode())

    def attempt():
        code, text, took = world.ctl(path)
        check(code in (REFUSED, NO_BROKER), code, text)
        contains(text, "replay-ctl key allow", "stranger", world.broker.ctl("show", path).split()[1])
        is_prompt(took)
    world.untouched(attempt)


def test_no_key(world):
    def attempt():
        code, text, took = world.ctl(None)
        check(code != 0, text)
        contains(text, "REPLAY_KEY_FILE")
        is_prompt(took)
    world.untouched(attempt)


def test_the_key_of_another_broker(world):
    path = world.broker.files / "wrong.key"
    other = zmq.curve_keypair()[0].decode()
    world.broker.ctl("new", path, "--broker=" + other)
    world.broker.ctl("allow", world.broker.keys, "wrong", world.broker.ctl("show", path).split()[1], "--role", "admin")

    def attempt():
        code, text, took = world.ctl(path)
        check(code != 0, text)
        contains(text, "key file of 'wrong'")
        is_prompt(took)
    world.untouched(attempt)
    world.broker.ctl("trust", path, world.broker.public.decode())
    equal(world.ctl(path)[0], 0)


def test_key_files_that_are_no_good(world):
    folder, secret = world.broker.files, world.admin.secret.decode()
    damaged = folder / "damaged.key"
    damaged.touch(0o600)
    damaged.write_text(world.admin.path.read_text().replace("secret ", "secret x"))
    fifo = folder / "fifo.key"
    os.mkfifo(fifo, 0o600)
    loop = folder / "loop.key"
    loop.symlink_to(loop)
    huge = folder / "huge.key"
    huge.touch(0o600)
    os.truncate(huge, 1 << 33)
    before = world.messages()
    for path in (damaged, fifo, loop, huge):
        code, text, took = world.ctl(path)
        check(code != 0, path)
        contains(text, str(path))
        check(secret not in text, "a secret was printed")
        is_prompt(took)
    equal(world.messages(), before + 1)


def test_new_keys_leave_other_files_alone(world):
    """A file that has the name already stays as it is, whatever is wrong; a key that cannot be put on the list leaves no file."""
    kept = world.broker.files / "my notes.txt"
    kept.write_text("important")
    for words in ((), ("--keys", world.broker.keys, "--role", "actor")):
        check(world.broker.ctl("new", kept, *words, check=False).returncode != 0)
        equal(kept.read_text(), "important")
    empty = world.broker.files / "empty folder"
    empty.mkdir()
    check(world.broker.ctl("new", str(empty) + "/", check=False).returncode != 0)
    check(empty.is_dir(), "the folder was removed")
    other = empty / world.admin.path.name
    check(world.broker.ctl("new", other, "--keys", world.broker.keys, "--role", "actor", check=False).returncode != 0)
    check(not other.exists(), "a key that nobody lets in")


def zmq_attempt(world, prepare, name="service", kind=zmq.DEALER):
    """A client of libzmq with a mechanism of its own: what it sends must not arrive, and nothing comes back."""
    with zmq.Context() as context:
        client = context.socket(kind)
        client.linger = 0
        prepare(client)
        client.connect(world.broker.endpoints[name])
        request = pb.Request(version=1, id=1, client=1)
        request.info.CopyFrom(pb.Info())
        client.send(request.SerializeToString())
        got = client.poll(400) if kind == zmq.DEALER else 0
        client.close()
        equal(got, 0, "an answer")


def test_other_mechanisms(world):
    def plain(client):
        client.plain_username, client.plain_password = b"admin", b"admin"
    world.untouched(lambda: zmq_attempt(world, lambda client: None))
    world.untouched(lambda: zmq_attempt(world, plain))


def test_strangers_at_ingest_and_events(world):
    """All three sockets ask for a key."""
    stranger = Stranger(world.broker.public)
    before = world.messages()
    zmq_attempt(world, lambda client: None, "ingest", zmq.PUSH)
    zmq_attempt(world, stranger.secure, "ingest", zmq.PUSH)
    time.sleep(0.2)
    equal(world.messages(), before + 1)
    with zmq.Context() as context:
        sockets = []
        for prepare in (lambda client: None, stranger.secure, world.actor.secure):
            listener = context.socket(zmq.SUB)
            prepare(listener)
            listener.subscribe(b"")
            listener.connect(world.broker.endpoints["events"])
            sockets.append(listener)

        def publish():
            status(world.watch, "params_put", pb.ParamsPut(name="p"), [b"w"])
            return sockets[2].poll(50)
        eventually(publish, 5, "an event for who has a key")
        equal([sockets[0].poll(100), sockets[1].poll(100)], [0, 0])
        for listener in sockets:
            listener.close()


class Recorder:
    """Forwards one port to another and keeps what the client sent on each connection. most: forwards only so many bytes of that, and
    keeps the connection open, so that the broker waits for the end of a message."""

    def __init__(self, target, most=1 << 62):
        self.target, self.most, self.sent, self.held = target, most, [], threading.Semaphore(0)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            server = socket.create_connection(("127.0.0.1", self.target))
            taken = []
            self.sent.append(taken)
            for source, sink, keep in ((client, server, taken), (server, client, None)):
                threading.Thread(target=self.forward, args=(source, sink, keep), daemon=True).start()

    def forward(self, source, sink, keep):
        left = 1 << 62 if keep is None else self.most
        with contextlib.suppress(OSError):
            while left > 0 and (data := source.recv(min(left, 65536))):
                left -= len(data)
                if keep is not None:
                    keep.append(data)
                sink.sendall(data)
            if left <= 0:
                self.held.release()
                sink.recv(1, socket.MSG_PEEK | socket.MSG_WAITALL)   # until the broker ends it
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


def test_a_replayed_handshake(world):
    """The bytes of a good client's connections, played back: no message is taken twice."""
    service, ingest = Recorder(world.port()), Recorder(world.port("ingest"))
    actor = world.broker.actor(world.actor)
    equal(status(actor.service, "counter", pb.Counter(name="replayed", add=1)), 0)
    actor.close()
    through = world.broker.service(world.actor)
    through.close()
    through.endpoint = "tcp://127.0.0.1:%d" % service.port
    through.open()
    equal(status(through, "counter", pb.Counter(name="replayed", add=1)), 0)
    actor = world.broker.actor(world.actor)
    actor.connect_ingest("tcp://127.0.0.1:%d" % ingest.port)
    check(write(actor))
    size, before = world.watch.table("t").size, world.messages()
    for target, recorder in (("service", service), ("ingest", ingest)):
        recorded = b"".join(recorder.sent[0])
        check(len(recorded) > 500, "something was recorded")
        for pieces in ([recorded], recorder.sent[0]):
            with socket.create_connection(("127.0.0.1", world.port(target)), 60) as again:
                again.settimeout(0.3)
                with contextlib.suppress(OSError):
                    for piece in pieces:
                        again.sendall(piece)
                        again.recv(65536)
                    while again.recv(65536):
                        pass
    equal(world.messages(), before + 1)
    equal(world.watch.counter("replayed"), 2)
    equal(world.watch.table("t").size, size)
    check(write(actor), "the recorded client goes on")


def send_as(key, kind, endpoint, mebibytes):
    return send_large(kind, endpoint, mebibytes, *(k.decode() for k in (key.public, key.secret, key.brokers[0])))


def test_messages_without_end(world):
    """The broker's memory is bounded while it waits for the last part of a message, whoever sends it, and over all connections."""
    broker = KeyBroker("memory_limit: 64MiB\nmax_message_bytes: 16MiB\n")   # 8 MiB are for data in flight
    clients = []
    bound, slack = 12 + 16 + 1 + 2 * 16 + 8 << 20, (256 if SANITIZED else 24) << 20
    try:
        most = lambda: resident(broker.process.pid, "VmHWM")
        start = most()
        for role, name, kind in (("observer", "service", "DEALER"), ("observer", "ingest", "PUSH"),
                                 ("actor", "ingest", "PUSH"), ("learner", "events", "SUB")):
            key, lines = broker.new("%s-%s" % (role, name), role), broker.text().count("connection ")
            clients.append(send_as(key, kind, broker.endpoints[name], 200))
            eventually(lambda: broker.text().count("connection ") > lines, 20, "a connection that is cut or refused")
            clients[-1].kill()
        check(broker.lines("may not write"), "refused in the handshake")
        check(most() < start + (32 << 20) + slack, "resident", most() - start)
        # Each of them holds less than it may, all of them more.
        port, key = int(broker.endpoints["ingest"].rsplit(":", 1)[1]), broker.new("many", "actor")
        holders, lines = [Recorder(port, 24 << 20) for _ in range(4)], len(broker.lines("B0008"))
        for holder in holders:
            clients.append(send_as(key, "PUSH", "tcp://127.0.0.1:%d" % holder.port, 40))
            check(holder.held.acquire(timeout=60), "24 MiB")
        eventually(lambda: len(broker.lines("B0008")) > lines, 10, "the oldest connection is cut")
        check(most() < start + bound + slack, "resident", most() - start)
        actor = broker.actor(key)
        check(write(actor, count=10), "others go on")
        actor.bye()
    finally:
        for client in clients:
            client.kill()
            client.wait()
        broker.remove()


def test_who_says_nothing_is_cut_off(world):
    """Connections that were opened before all other tests."""
    for name, connection in world.idle.items():
        connection.settimeout(60)
        with contextlib.suppress(ConnectionError):
            while connection.recv(4096):
                pass
        connection.close()


def test_secrets_stay_secret(world):
    """In no log, no environment and no command line."""
    pid = world.broker.process.pid
    secrets = [world.admin.secret, world.actor.secret]
    own = (world.broker.keys / "broker.key").read_text().partition("secret ")[2].split()[0].encode()
    for place in ("environ", "cmdline"):
        with open("/proc/%d/%s" % (pid, place), "rb") as file:
            data = file.read()
        check(not any(secret in data for secret in secrets + [own]), place)
    check(not any(secret.decode() in world.broker.text() for secret in secrets + [own]), "the log")
    for verb in ("list", "show"):
        check(own.decode() not in world.broker.ctl(verb, world.broker.keys), verb)
