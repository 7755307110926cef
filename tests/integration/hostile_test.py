"""What bad input gets: a clear error, nothing lost, nobody else disturbed.

Every test attacks one broker while a neighbour, an honest client in a thread of its own, goes on inserting and
sampling. At the end the broker must be alive with every one of the neighbour's items. What damaged requests and ingest headers of every
kind do to a broker: tests/fuzz/fuzz_roles.c.
"""

import contextlib
import os
import resource
import socket
import struct
import threading
import time

import zmq

import blocks
from actor import Actor
from generated import pb
from harness import Broker, check, contains, equal, eventually, resident, send_large
from learner import Learner
from service import Service

NOWHERE = (1 << 32) - 1  # the table of a rejection that concerns none
SANITIZED = bool(os.environ.get("RP_SANITIZE"))

OK, INVALID_ARGUMENT, NOT_FOUND, RESOURCE_EXHAUSTED = 0, 1, 2, 5
BAD_MESSAGE = 8

CONFIG = """
memory_limit: 64MiB
max_message_bytes: 4MiB
session: {expiry: 2s}
tables:
  - {name: calm, max_size: 500, sampler: {kind: uniform}, limiter: {kind: min_size, min_size: 1}}
  - {name: target, max_size: 1000, sampler: {kind: prioritized, exponent: 1.0}, limiter: {kind: none}}
"""

COLUMNS = [pb.Column(name="x", dtype="float32", shape=[4]), pb.Column(name="n", dtype="int32")]
WHOLE = [pb.Field(name="x", column=0), pb.Field(name="n", column=1)]


def rows(first, count):
    return [b"".join(struct.pack("<4f", t, t, t, t) for t in range(first, first + count)),
            struct.pack("<%di" % count, *range(first, first + count))]


class Neighbour(threading.Thread):
    """Writes a chunk with a few items, samples, checks the data, changes a priority, and again. Notes any trouble."""

    def __init__(self, endpoint, table="calm", items=2):
        super().__init__(daemon=True)
        self.endpoint, self.table, self.items, self.rounds, self.longest = endpoint, table, items, 0, 0.0
        self.trouble, self.stopping = [], threading.Event()

    def run(self):
        context = zmq.Context()
        try:
            actor = Actor(Service(self.endpoint, context=context), COLUMNS, "neighbour")
            learner = Learner(Service(self.endpoint, "REQ", context=context))
            layout = actor.layout(self.table, WHOLE)
            while not self.stopping.is_set():
                start = time.monotonic()
                self.round(actor, learner, layout)
                self.longest = max(self.longest, time.monotonic() - start)
                self.rounds += 1
                self.stopping.wait(0.002)
            self.rejections = actor.rejections
            actor.bye()
        except Exception as problem:
            self.trouble.append(repr(problem))

    def round(self, actor, learner, layout):
        first = actor.next_step
        chunk = actor.chunk(rows(first, 3), 3, [blocks.LZ4, blocks.RAW])
        for i in range(self.items):
            actor.item(layout, chunk, i % 3, 3 - i % 3)
        actor.oldest_chunk = chunk
        if not actor.send() or not actor.flush():
            raise RuntimeError("items were not taken within a minute")
        _, items, _ = learner.sample(self.table, 4, timeout_ms=60000)
        for item in items:
            if item.fields["n"] != list(range(item.step, item.step + item.length)):
                raise RuntimeError("step %d has data %s" % (item.step, item.fields["n"]))
        learner.service.update(self.table, [items[0].key], [2.0])

    @contextlib.contextmanager
    def undisturbed(self):
        """The neighbour gets on during the block and after it."""
        before = self.rounds
        yield
        eventually(lambda: self.trouble or self.rounds >= before + 3, 20, "the neighbour's work")
        equal(self.trouble, [])


class World:
    def __init__(self):
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        self.start()

    def start(self):
        self.broker = Broker(CONFIG)
        self.service_endpoint = self.broker.endpoints["service"]
        self.ingest_endpoint = self.broker.endpoints["ingest"]
        self.neighbour = Neighbour(self.service_endpoint)
        self.neighbour.start()

    def start_again(self):
        """After a failure: the next test is to find a broker and a neighbour in good health."""
        print("---- the end of the broker's log\n" + self.broker.text()[-2000:])
        self.neighbour.stopping.set()
        self.broker.remove()
        self.start()

    def service(self, kind="DEALER"):
        return Service(self.service_endpoint, kind)

    def actor(self, name, columns=COLUMNS):
        return Actor(self.service(), columns, name)

    def push(self):
        push = zmq.Context.instance().socket(zmq.PUSH)
        push.linger = 2000
        push.connect(self.ingest_endpoint)
        return push

    def info(self):
        service = self.service("REQ")
        info = service.info()
        service.close()
        return info

    def memory(self):
        return resident(self.broker.process.pid)


def all_sessions(world):
    service, cursor, found = world.service("REQ"), 0, []
    while True:
        info = service.ask("info", pb.Info(sessions=True, session_cursor=cursor))[0].info
        found += info.sessions
        cursor = info.session_cursor
        if cursor == 0:
            service.close()
            return found


def attack(function):
    """Runs the test beside the neighbour and looks at the broker afterwards."""
    def wrapped(world):
        try:
            with world.neighbour.undisturbed():
                function(world)
            check(world.broker.alive(), "the broker is gone")
        except Exception:
            world.start_again()
            raise
    return wrapped


def write_and_leave(world, name):
    """A session that starts now writes its items, and ends."""
    actor = world.actor(name)
    layout, chunk = actor.layout("target", WHOLE), actor.chunk(rows(actor.next_step, 2), 2)
    good = [actor.item(layout, chunk, 0, 2) for _ in range(2)]
    check(actor.send() and actor.flush(), "not resolved")
    equal([i.key for i in Learner(actor.service).fetch("target", good)], good, "items of " + name)
    actor.bye()


def set_fields(header, fields):
    for name, value in fields.items():
        if isinstance(value, list):
            getattr(header, name)[:] = value
        else:
            setattr(header, name, value)


@attack
def test_a_session_survives_its_own_bad_message(world):
    """A message that cannot be used has its items rejected, and the next one goes in."""
    actor = world.actor("clumsy")
    layout = actor.layout("target", WHOLE)
    actor.item(layout, actor.chunk(rows(0, 2), 2), 0, 2)
    check(actor.send() and actor.flush(), "not resolved")

    same = list
    for fields, payload in (({"block_size": [36, 8]}, same), ({}, lambda p: [p[0][:-1]]), ({}, lambda p: [*p, b"surplus"]), ({}, lambda p: []),
                            ({"block_codec": bytes([77, 0])}, same), ({"block_codec": bytes([blocks.LZ4, 0])}, same),
                            ({"block_size": [32, 8, 1, 1], "block_codec": bytes(4)}, same), ({"chunk_length": [0]}, same)):
        before = len(actor.rejections)
        actor.item(layout, actor.chunk(rows(actor.next_step, 2), 2), 0, 2)
        message = actor.build()
        set_fields(message.header, fields)
        message.payload = payload(message.payload)
        what = fields or "%d frames" % len(message.payload)
        actor.push_message(message)
        check(actor.flush(5), "a bad message blocks its session:", what)
        check(len(actor.rejections) == before + 1, what, "was taken")
        rejection = actor.rejections[-1]
        check(rejection.status in (BAD_MESSAGE, INVALID_ARGUMENT, NOT_FOUND), what, rejection)
        check(len(rejection.text) > 15, what, rejection.text)
    good = actor.item(layout, actor.chunk(rows(actor.next_step, 2), 2), 0, 2)
    check(actor.send() and actor.flush(), "not resolved")
    equal(len(Learner(actor.service).fetch("target", [good])), 1)
    actor.bye()


@attack
def test_a_message_that_can_not_be_placed(world):
    """An unreadable header, an unknown layout, numbers that jump: told as a rejection of no table, with a sentence."""
    for fields, status, word in (({"run_items": [7]}, BAD_MESSAGE, "run_items"), ({"packed": 5}, BAD_MESSAGE, "packed"),
                                 ({"version": 3}, BAD_MESSAGE, "version"), ({"run_layout": [9]}, INVALID_ARGUMENT, "layout 9"),
                                 ({"run_first": [5]}, INVALID_ARGUMENT, "5"),
                                 ({"run_first": [(1 << 64) - 1]}, INVALID_ARGUMENT, str((1 << 64) - 1))):
        actor = world.actor("misplaced")
        actor.item(actor.layout("target", WHOLE), actor.chunk(rows(0, 1), 1), 0, 1)
        message = actor.build()
        set_fields(message.header, fields)
        actor.push_message(message)
        check(actor.wait_until(lambda: actor.rejections, 5), fields, "is not answered")
        rejection = actor.rejections[0]
        equal((rejection.status, actor.credit.received), (status, 1), rejection.text)
        contains(rejection.text, word)
        check("run_first" in fields or rejection.table == NOWHERE, rejection)
        actor.close()


@attack
def test_strangers_on_the_ports(world):
    """Not even ZeroMQ: noise, another protocol, a half handshake, a peer that goes away between two frames."""
    def connect(endpoint):
        host, port = endpoint.split("://")[1].rsplit(":", 1)
        return socket.create_connection((host, int(port)), timeout=60)

    greeting = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)

    def ready(kind):
        body = b"\x05READY" + b"\x0bSocket-Type" + struct.pack(">I", len(kind)) + kind
        return b"\x04" + bytes([len(body)]) + body

    for endpoint, kind in ((world.service_endpoint, b"DEALER"), (world.ingest_endpoint, b"PUSH"),
                           (world.broker.endpoints["events"], b"SUB")):
        for data in (b"GET / HTTP/1.1\r\n\r\n", os.urandom(500), greeting[:30], greeting, greeting + ready(kind)[:9],
                     greeting + ready(b"PUB"),
                     greeting + ready(kind) + b"\x01\x05hello",                 # one frame of two, then gone
                     greeting + ready(kind) + b"\x03" + struct.pack(">Q", 1 << 20) + b"part",
                     greeting + ready(kind) + b"\x02" + struct.pack(">Q", 1 << 60) + b"x",  # a frame of 2^60 bytes
                     greeting + ready(kind) + b"\x02" + struct.pack(">Q", 1 << 63) + b"x"):
            with connect(endpoint) as s:
                with contextlib.suppress(OSError):
                    s.sendall(data)
    too_long = world.push()
    too_long.send(bytes(5 << 20))
    too_long.linger = 100
    too_long.close()
    for length in (1, 9, 60, 100, 255):  # routing ids that the peer chose itself
        s = zmq.Context.instance().socket(zmq.DEALER)
        s.linger = 0
        s.setsockopt(zmq.ROUTING_ID, b"r" * length)
        s.connect(world.service_endpoint)
        s.send(pb.Request(version=1, id=1, client=1, why=pb.Why()).SerializeToString())
        got = s.poll(60000 if length <= 60 else 300)
        check(got or length > 60, "no answer to a peer with a routing id of", length, "bytes")
        s.close()


@attack
def test_messages_without_end(world):
    """Parts are collected before the broker sees them: what a connection may have unfinished is bounded without keys, too."""
    before = world.memory()
    for kind, endpoint in (("PUSH", world.ingest_endpoint), ("DEALER", world.service_endpoint)):
        cut, client = world.broker.text().count("B0008"), send_large(kind, endpoint, 300)
        try:
            eventually(lambda: world.broker.text().count("B0008") > cut, 20, "the connection is cut")
        finally:
            client.kill()
            client.wait()
    # One and a half times the 32 MiB in flight, a message, and what the allocator makes of it.
    check(world.memory() < before + ((53 + 150 * SANITIZED + 40) << 20), "memory", world.memory() - before)


@attack
def test_odd_envelopes(world):
    service = world.service()
    request = pb.Request(version=1, id=3, client=1, why=pb.Why()).SerializeToString()
    for envelope in ([], [b""], [b"abcd", b""], [b"a", b"bc", b""]):
        service.socket.send_multipart(envelope + [request])
        check(service.socket.poll(60000), "no answer to envelope", envelope)
        frames = service.socket.recv_multipart()
        equal(frames[:-1], envelope)
        equal(pb.Reply.FromString(frames[-1]).id, 3)
    for frames in ([b""], [b"", b""], [b"abcd", b""], [b"a"] * 200 + [b"", request], [b""] * 200 + [request],
                   [request] + [b"x"] * 3000, [b"abcd"] * 3):
        service.socket.send_multipart(frames)
    # Answers come in the order of the requests: after that to the last one there are no others.
    service.socket.send(pb.Request(version=1, id=4, client=1, why=pb.Why()).SerializeToString())
    frames = []
    while len(frames) != 1 or pb.Reply.FromString(frames[0]).id != 4:
        check(service.socket.poll(60000), "no answer after odd envelopes")
        frames = service.socket.recv_multipart()
    service.info()


@attack
def test_odd_chunk_numbers(world):
    """Numbers that fall or repeat must not confuse the session's chunks."""
    for numbers in ([2, 1], [3, 3], [0, 1], [(1 << 64) - 1, 0], [1 << 63, (1 << 63) + 1]):
        actor = world.actor("disorder")
        layout = actor.layout("target", WHOLE)
        for _ in numbers:
            actor.chunk(rows(actor.next_step, 1), 1)
        actor.item(layout, 1, 0, 1)
        message = actor.build()
        message.header.chunk_number[:] = numbers
        actor.push_message(message)
        check(actor.flush(5), "not resolved", numbers)
        actor.item(layout, numbers[-1], 0, 1)
        check(actor.send() and actor.flush(5), "not resolved", numbers)
        actor.bye()


@attack
def test_items_over_many_chunks(world):
    """A reply has at most 2^20 chunks, whatever is asked for: a sample is cut short, and a fetch refused."""
    actor, service = world.actor("long"), world.service()
    layout, chunks = actor.layout("target", WHOLE), [actor.chunk(rows(t, 1), 1) for t in range(1024)]
    service.reset("target")
    key = actor.item(layout, chunks[0], 0, 1024)
    check(actor.send() and actor.flush(), "not resolved")
    sample, _ = service.ask("sample", pb.Sample(table="target", count=2048, timeout_ms=1000))
    equal((sample.sample.partial, len(sample.sample.key)), (True, 1024))
    for count, status in ((1024, OK), (1025, INVALID_ARGUMENT)):
        equal(service.ask("fetch", pb.Fetch(table="target", key=[key] * count), check=False)[0].status, status, count)
    service.reset("target")
    actor.bye()


@attack
def test_layouts_without_end(world):
    """A layout of a few bytes is kept with the columns of its stream, as replies have it: what all of them take is bounded."""
    before = world.memory()
    for k in range(20):
        actor = world.actor("wide", [pb.Column(name="%d %d %s" % (k, i, "n" * 200), dtype="uint8") for i in range(255)])
        for i in range(100):
            actor.layout("target", [pb.Field(name="f%d" % i, column=0)])
        actor.push_message(actor.build())
        check(actor.wait_until(lambda: actor.credit.received == actor.last_number, 5), "not received")
        actor.close()
    check(world.memory() < before + ((64 + 150 * SANITIZED) << 20), "memory", world.memory() - before)
    write_and_leave(world, "after")


@attack
def test_sessions_opened_and_dropped(world):
    """10,000 sessions, 2,000 at once, each with a connection of its own, none of which says goodbye."""
    at_once, rounds = 2000, 5
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    connections = min(at_once, max(50, (limit - 500) // 3))
    hello = pb.Hello(name="mayfly", columns=COLUMNS, notices=True)
    start, opened = time.monotonic(), 0
    for wave in range(rounds):
        context = zmq.Context(2)
        context.max_sockets = at_once + 100
        sockets = []
        for i in range(connections):
            s = context.socket(zmq.DEALER)
            s.linger = 0
            s.connect(world.service_endpoint)
            sockets.append(s)
        for i in range(at_once):
            request = pb.Request(version=1, id=i + 1, client=wave * at_once + i + 1, hello=hello)
            sockets[i % connections].send(request.SerializeToString())
        for i in range(at_once):
            check(sockets[i % connections].poll(60000), "no answer to HELLO", i, "of", at_once)
            reply = pb.Reply.FromString(sockets[i % connections].recv())
            check(reply.status in (OK, RESOURCE_EXHAUSTED), reply.text)
            opened += reply.status == OK
        if wave == 0:
            print("      %d sessions at once over %d connections" % (world.info().server.session_count, connections))
        context.destroy(linger=0)
    print("      %d sessions in %.1f s" % (opened, time.monotonic() - start))
    equal(opened, at_once * rounds)
    eventually(lambda: world.info().server.session_count <= 3, 60, "they expire")
    eventually(lambda: len(all_sessions(world)) < 20, 60, "their tombstones go")
    check(any(s.name == "neighbour" for s in all_sessions(world)), "the neighbour's session is gone")


@attack
def test_names_without_end(world):
    """Slots, counters and groups under ever new or overlong names; and every id of a long cancel counts."""
    service = world.service()
    equal(service.ask("cancel", pb.Cancel(id=range(1, 10001)))[0].change.missing, 10000)
    long = "n" * 300
    for name, body, payload in (("params_put", pb.ParamsPut(name=long), [b"x"]),
                                ("counter", pb.Counter(name=long, add=1), []),
                                ("counter", pb.Counter(name="", add=1), []),
                                ("reduce", pb.Reduce(group=long, member=1, op=pb.Reduce.JOIN), [])):
        reply, _ = service.ask(name, body, payload, check=False)
        equal(reply.status, INVALID_ARGUMENT, name + ": " + reply.text)
        check(len(reply.text) > 10, reply.text)
    service.ask("reduce", pb.Reduce(group="odd", member=1, op=pb.Reduce.JOIN))
    for payload in ([b"123"], [], [b"1234", b"1234"], [b""]):
        body = pb.Reduce(group="odd", member=1, op=pb.Reduce.ADD, round=1, timeout_ms=10)
        reply, _ = service.ask("reduce", body, payload, check=False)
        equal(reply.status, INVALID_ARGUMENT, reply.text)
        contains(reply.text, "float32")


@attack
def test_numbers_at_the_end_of_their_range(world):
    """Chunk and step numbers up to 2^64 - 1, through expiry and back."""
    last = (1 << 64) - 1
    actor = world.actor("the end")
    layout = actor.layout("target", WHOLE)
    actor.oldest_chunk = last
    actor.push_message(actor.build())
    actor.next_chunk, actor.next_step = last, last
    actor.item(layout, actor.chunk(rows(0, 1), 1), 0, 1)  # may be taken or refused
    over = actor.item(layout, last, 0, 2)                 # runs over the end
    actor.push_message(actor.build())
    check(actor.flush(5), "not resolved")
    check(over in [r.key for r in actor.rejections], actor.rejections)
    eventually(lambda: actor.session not in {s.session for s in all_sessions(world) if not s.expired}, 15, "expiry")
    actor.resume()
    actor.oldest_chunk = 0
    for chunk in (5, 0, last, last - 1):
        actor.item(layout, chunk, 0, 1)
    actor.push_message(actor.build())
    check(actor.wait_until(lambda: actor.credit.received == actor.last_number, 5), "not received")
    actor.close()


@attack
def test_names_that_are_not_text(world):
    """Strings that are not UTF-8 must not come back to others: their decoders would refuse the whole reply."""
    service, odd = world.service(), b"\xff\xfe\x80Z"

    def send(name, body, payload=(), old=b"ZZZZ"):
        request = pb.Request(version=1, id=7, client=4711)
        getattr(request, name).CopyFrom(body)
        service.socket.send_multipart([request.SerializeToString().replace(old, odd), *payload])
        frames = service.socket.recv_multipart()
        with contextlib.suppress(Exception):  # our own answer may quote what we sent
            return pb.Reply.FromString(frames[0])

    service.socket.rcvtimeo = 5000
    write_and_leave(world, "before")
    send("hello", pb.Hello(name="ZZZZ", columns=COLUMNS))
    send("hello", pb.Hello(name="x", columns=[pb.Column(name="ZZZZ", dtype="int8")]))
    send("params_put", pb.ParamsPut(name="ZZZZ"), [b"x"])
    send("counter", pb.Counter(name="ZZZZ", add=1))
    send("reduce", pb.Reduce(group="ZZZZ", member=1, op=pb.Reduce.JOIN))
    send("sample", pb.Sample(table="ZZZZ", count=1))
    world.actor("\u00e9" * 40)  # a name that is cut off must not be cut inside a letter
    actor = world.actor("layout")
    layout = actor.layout("target", [pb.Field(name="ZZZZ", column=0)])
    actor.item(layout, actor.chunk(rows(0, 1), 1), 0, 1, priority=1e12)
    message = actor.build()
    header = message.header.SerializeToString()
    actor.push.send_multipart([header.replace(b"ZZZZ", odd), *message.payload])
    actor.flush(3)
    honest, watching = world.service(), world.service()
    honest.info(sessions=True)
    honest.ask("why", pb.Why())
    watching.socket.send(pb.Request(version=1, id=1, client=1, trace=pb.Trace(duration_ms=5000)).SerializeToString())
    trace = eventually(lambda: honest.ask("hello", pb.Hello())[0].tracing.trace, 5, "a trace")
    send("trace_spans", pb.TraceSpans(trace=trace, name="ZZZZ", text=["ZZZZ"], last=True))
    check(watching.socket.poll(60000), "no trace")
    equal(pb.Reply.FromString(watching.socket.recv_multipart()[0]).trace.processes[1].text, ["???Z"])
    for _ in range(3):
        honest.ask("sample", pb.Sample(table="target", count=20, timeout_ms=1000))
    honest.reset("target")


def test_nothing_was_lost_and_nobody_was_disturbed(world):
    neighbour, service = world.neighbour, world.service()
    neighbour.stopping.set()
    neighbour.join(60)
    check(not neighbour.is_alive(), "the neighbour hangs")
    equal(neighbour.trouble, [])
    equal(neighbour.rejections, [])
    info = service.table("calm")
    print("      the neighbour inserted %d items in %d rounds, the longest took %.2f s" %
          (info.limiter.inserts, neighbour.rounds, neighbour.longest))
    equal(info.limiter.inserts, 2 * neighbour.rounds)
    equal(info.limiter.samples, 4 * neighbour.rounds)
    equal(info.size, min(500, 2 * neighbour.rounds))
    equal(info.rejected, 0)
    check(SANITIZED or neighbour.longest < 20, "a round took", neighbour.longest, "s")


def test_all_memory_comes_back(world):
    service = world.service()
    for table in ("calm", "target"):
        service.reset(table)
    eventually(lambda: service.info().server.session_count == 0, 20, "no session is left")
    eventually(lambda: service.info().server.chunk_count == 0, 10, "no chunk is left")
    server = service.info().server
    equal((server.chunk_bytes, server.granted_bytes, server.waiter_count), (0, 0, 0))


def test_the_broker_is_alive_and_its_log_is_bounded(world):
    check(world.broker.alive(), world.broker.text()[-3000:])
    equal(world.broker.stop(), 0, "exit status")
    log = world.broker.text()
    check(len(log) < 4 << 20, "the log has", len(log), "bytes")
    for word in ("ERROR: AddressSanitizer", "runtime error", "LeakSanitizer", "Assertion"):
        check(word not in log, log[-3000:])
