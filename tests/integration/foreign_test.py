"""An actor and a learner in plain Python against the real broker: only pyzmq, protobuf and the standard library.

Proves that PROTOCOL.md is enough to attach a client in another language, and that its examples and tables are true.
"""

import re

import zmq

import blocks
import examples
import learner as learning
from actor import Actor
from generated import SOURCE, pb
from harness import Broker, check, contains, equal, eventually
from learner import Learner
from service import Service

INVALID_ARGUMENT, FAILED_PRECONDITION, SESSION_UNKNOWN = 1, 6, 9

CONFIG = """
memory_limit: 256MiB
session: {expiry: 6s}
tables:
  - name: replay
    max_size: 10000
    sampler: {kind: prioritized, exponent: 1.0}
    limiter: {kind: min_size, min_size: 1}
  - name: fifo
    max_size: 10000
    sampler: {kind: fifo}
    limiter: {kind: none}
  - name: queue
    max_size: 8
    max_times_sampled: 1
    sampler: {kind: fifo}
    limiter: {kind: queue}
  - name: typed
    max_size: 1000
    limiter: {kind: min_size, min_size: 1}
    signature:
      observation: [float32, 3]
      rewards: [float32, 0]
"""

JOURNALED = """
memory_limit: 64MiB
folder: FOLDER/journal
journal: never
session: {expiry: 10s}
tables:
  - {name: open, max_size: 1000, sampler: {kind: fifo}, limiter: {kind: none}}
  - {name: held, max_size: 4, max_times_sampled: 1, sampler: {kind: fifo}, limiter: {kind: queue}}
"""

COLUMNS = [pb.Column(name="observation", dtype="float32", shape=[3]),
           pb.Column(name="action", dtype="int32"),
           pb.Column(name="reward", dtype="float32"),
           pb.Column(name="pixels", dtype="uint8", shape=[8, 8])]


def values(column, step):
    """What the tests write at a step, as a flat list."""
    return {"observation": [step, step + 0.25, step + 0.5], "action": [step % 5], "reward": [step * 0.5],
            "pixels": [(step + i // 8) % 256 for i in range(64)]}[column]


def rows(first, count):
    """For each column, `count` steps as bytes."""
    return [b"".join(blocks.pack(c, values(c.name, first + t)) for t in range(count)) for c in COLUMNS]


def steps_of(column, steps):
    return [v for t in steps for v in values(column, t)]


TRANSITION = [pb.Field(name="observation", column=0, count=1, squeeze=True),
              pb.Field(name="action", column=1, count=1, squeeze=True),
              pb.Field(name="rewards", column=2, start=0, count=3),
              pb.Field(name="next_observation", column=0, start=-1, count=1, squeeze=True)]
WHOLE = [pb.Field(name=c.name, column=i) for i, c in enumerate(COLUMNS)]


class World:
    """One broker for all tests; each test cleans the tables that it uses."""

    def __init__(self):
        self.broker = Broker(CONFIG)
        self.endpoint = self.broker.endpoints["service"]

    def service(self, kind="DEALER"):
        return Service(self.endpoint, kind)

    def actor(self, name, kind="DEALER", columns=COLUMNS):
        return Actor(self.service(kind), columns, name)

    def learner(self, kind="DEALER"):
        return Learner(self.service(kind))

    def clean(self, *tables):
        """A service whose tables are empty, with limiters at their beginning."""
        service = self.service()
        for table in tables:
            service.reset(table)
            eventually(lambda: service.table(table).size == 0)
        return service


def write_steps(actor, count, chunk_length, codecs=None):
    """Appends `count` steps in chunks; gives [(chunk, offset)] of every step."""
    places = []
    while len(places) < count:
        first, n = actor.next_step, min(chunk_length, count - len(places))
        chunk = actor.chunk(rows(first, n), n, codecs)
        places += [(chunk, i) for i in range(n)]
    return places


def test_the_documents_examples_are_what_protobuf_writes(world):
    written, expected = examples.in_document(), examples.all_examples()
    equal(sorted(written), sorted(expected), "examples in PROTOCOL.md")
    for name, text in expected.items():
        equal(written[name], text, "example %s; run tests/foreign/examples.py --write" % name)
    for name, frames in examples.messages().items():
        bytes_ = examples.hex_of(written[name])
        for got, wanted in zip(bytes_, frames, strict=True):
            equal(got if isinstance(wanted, bytes) else type(wanted).FromString(got), wanted, name)


def test_the_documents_sample_reply_decodes_to_what_it_says(world):
    header, payload = examples.hex_of(examples.in_document()["sample-reply"])
    items = learning.decode(pb.Reply.FromString(header).sample, [payload])
    equal(items[0].fields, {"observation": [1.0, 1.5], "action": [1], "rewards": [1.0, 2.0, 3.0],
                            "next_observation": [4.0, 4.5]})
    equal([hex(i.key) for i in items], ["0x3000000001", "0x3000000000"])


def test_the_documents_lists_are_those_of_the_headers(world):
    document = examples.DOCUMENT.read_text()
    errors = re.findall(r'X\((\w+), (\d+), "([^"]+)"\)', (SOURCE / "include/replay/error.h").read_text())
    check(len(errors) > 15, "RP_STATUS_LIST was not found")
    table = document[document.index("## 16 Errors"):document.index("## 17")]
    rows_ = re.findall(r"^\| (\d+) \| ([A-Z_]+) \| (.+) \|$", table, re.M)
    equal([(name, code, text) for code, name, text in rows_], errors, "error list")
    types = (SOURCE / "include/replay/types.h").read_text()
    dtypes = dict(re.findall(r'X\(\w+, \d+, "(\w+)", (\d+), [01]\)', types))
    equal(dtypes, {name: str(size) for name, (size, _) in blocks.DTYPES.items()}, "dtypes")
    codecs = re.findall(r"RP_CODEC_(\w+) = (\d+)", types)
    for name, code in codecs:
        check(name == "AUTO" or "| %s | %s |" % (code, name.lower()) in document, "codec", name, "is not described")


def test_the_document_names_every_field(world):
    """Each field is explained once: by a comment in replay.proto, or in the document."""
    document = examples.DOCUMENT.read_text()
    words = set(re.findall(r"\w+", document))
    proto = (SOURCE / "proto/replay.proto").read_text()
    for name in ("Request", "Reply", "Column", "Hello", "HelloReply", "TableSpec", "Heartbeat", "Credit", "Rejection",
                 "Bye", "Sample", "Permit", "PermitReply", "Field", "Layout", "SampleReply", "Update", "Delete",
                 "Cancel", "ChangeReply",
                 "Fetch", "List", "Reset", "SetLimiter", "Info", "ParamsPut", "ParamsGet", "SlotInfo", "Counter",
                 "Reduce", "ReduceReply", "Ingest", "Checkpoint", "CheckpointReply", "DiskInfo"):
        check(name in words or name in ("Request", "Reply"), name, "is not in PROTOCOL.md")
        body = re.search(r"^message %s \{.*?^\}" % name, proto, re.M | re.S).group()
        commented = set(re.findall(r"(\w+) = \d+;.*?//", body))
        for field in pb.DESCRIPTOR.message_types_by_name[name].fields:
            camel = "".join(part.capitalize() for part in field.name.split("_"))
            check(field.name in commented or field.name in words or camel in words,
                  "%s.%s is explained nowhere" % (name, field.name))


def test_hello_without_columns_only_looks(world):
    service = world.service("REQ")
    before = service.info().server.session_count
    reply = service.ask("hello", pb.Hello(name="visitor"))[0].hello
    equal(reply.session, b"")
    equal([t.name for t in reply.tables], ["replay", "fifo", "queue", "typed"])
    equal([(c.name, c.dtype, list(c.shape)) for c in reply.tables[3].signature],
          [("observation", "float32", [3]), ("rewards", "float32", [0])])
    check(reply.ingest.startswith("tcp://") and reply.events.startswith("tcp://"), reply.ingest, reply.events)
    check(reply.max_message_bytes > 0 and reply.max_batch > 0 and reply.release, "limits are missing")
    equal(service.info().server.session_count, before)


def test_raw_items_come_back_as_written(world):
    world.clean("fifo")
    actor, learner = world.actor("raw"), world.learner("REQ")
    layout = actor.layout("fifo", WHOLE)
    places = write_steps(actor, 6, chunk_length=1)
    keys = [actor.item(layout, chunk, offset, 1, priority=i + 1) for i, (chunk, offset) in enumerate(places)]
    check(actor.send() and actor.flush(), "not resolved")
    for i, key in enumerate(keys):
        sampled, items, _ = learner.sample("fifo", 1)
        item = items[0]
        equal((items[0].key, item.times_sampled, item.length, item.step), (keys[0], i + 1, 1, 0))
        equal(sampled.table_size, 6)
    items = learner.fetch("fifo", keys)
    for i, item in enumerate(items):
        equal((item.key, item.priority, item.session), (keys[i], i + 1.0, actor.hello_reply.ordinal))
        for column in COLUMNS:
            equal(item.fields[column.name], values(column.name, i), column.name)
    equal(actor.bye().status, 0)


def test_every_codec_comes_back_as_written(world):
    world.clean("fifo")
    actor, learner = world.actor("codecs"), world.learner()
    layout, keys = actor.layout("fifo", WHOLE), []
    for codec in (blocks.RAW, blocks.LZ4, blocks.SHUFFLE_LZ4, blocks.DELTA_LZ4, blocks.DELTA_SHUFFLE_LZ4):
        first = actor.next_step
        chunk = actor.chunk(rows(first, 7), 7, [codec] * len(COLUMNS))
        keys.append((actor.item(layout, chunk, 0, 7), first))
        mixed = actor.chunk(rows(first + 7, 7), 7, [codec, blocks.RAW, blocks.LZ4, codec])
        keys.append((actor.item(layout, mixed, 0, 7), first + 7))
        check(actor.send(packed=codec % 2 == 0), "no credit")
    check(actor.flush(), "not resolved")
    equal(actor.rejections, [])
    items = learner.fetch("fifo", [k for k, _ in keys])
    for item, (key, first) in zip(items, keys, strict=True):
        equal(item.key, key)
        for column in COLUMNS:
            equal(item.fields[column.name], steps_of(column.name, range(first, first + 7)), column.name)
    actor.bye()


def test_n_step_slices_run_over_chunks(world):
    world.clean("fifo", "replay")
    actor, learner = world.actor("n-step"), world.learner("REQ")
    transition, again = actor.layout("fifo", TRANSITION), actor.layout("replay", TRANSITION)
    places = write_steps(actor, 12, chunk_length=5, codecs=[blocks.SHUFFLE_LZ4, 0, 0, blocks.DELTA_LZ4])
    keys = []
    for i, (chunk, offset) in enumerate(places[:-3]):
        keys.append(actor.item(transition, chunk, offset, 4))
    check(actor.send() and actor.flush(), "not resolved")
    for i, (chunk, offset) in enumerate(places[:-3]):  # the same chunks in a second table, in a later message
        actor.item(again, chunk, offset, 4)
    check(actor.send() and actor.flush(), "not resolved")
    equal(actor.rejections, [])
    items = learner.fetch("fifo", keys)
    for t, item in enumerate(items):
        equal(item.step, t)
        equal(item.fields, {"observation": values("observation", t), "action": values("action", t),
                            "rewards": steps_of("reward", range(t, t + 3)),
                            "next_observation": values("observation", t + 3)}, "item %d" % t)
    sampled, items, _ = learner.sample("replay", 64)
    equal(len(items), 64)
    for item in items:
        equal(item.fields["next_observation"], values("observation", item.step + 3))
    check(3 not in sampled.block_column, "a reply carries only the columns that its fields need")
    check(len(sampled.chunk_length) <= 3 and max(sampled.chunk) <= 2, "each chunk comes once")
    actor.bye()


def test_an_actor_stops_without_credit_and_goes_on_with_it(world):
    service = world.clean("queue")
    actor, learner = world.actor("held back"), world.learner()
    layout, table = actor.layout("queue", TRANSITION), actor.tables["queue"].id
    held, sent = False, 0
    for t in range(600):
        chunk = actor.chunk(rows(actor.next_step, 4), 4)
        actor.item(layout, chunk, 0, 4)
        actor.oldest_chunk = chunk
        if not actor.send(timeout=0.3):
            held = True
            break
        sent += 1
    check(held, "a queue of 8 took 600 items and nobody read")
    equal(service.table("queue").size, 8)
    check(sent > 8, "sent", sent)
    credit = actor.heartbeat(explain=True)
    equal(actor.resolved(table), 8)
    equal(actor.items_sent[table], actor.allowed(table), "it waits though it has credit")
    contains(" ".join(credit.waiting), "queue")
    got = []
    while len(got) < sent + 1:  # the learner reads, and the actor's item goes out by itself
        _, items, _ = learner.sample("queue", 1)
        got += [item.step for item in items]
        actor.send(timeout=0)
    equal(got, [4 * i for i in range(sent + 1)])
    check(actor.flush(), "not resolved")
    equal(len(actor.stored), 1, "messages that it keeps: the one whose chunk may be needed")
    equal(actor.rejections, [])
    equal(actor.bye().status, 0)


def test_a_req_actor_polls_with_heartbeats(world):
    world.clean("replay")
    actor = world.actor("req", kind="REQ")
    equal(actor.notices, False)
    layout = actor.layout("replay", TRANSITION)
    for _ in range(200):  # more than a window
        actor.item(layout, actor.chunk(rows(actor.next_step, 4), 4), 0, 4)
        check(actor.send(), "no credit")
    check(actor.flush(), "not resolved")
    equal(world.service().table("replay").size, 200)
    equal(actor.bye().status, 0)


def insert_some(actor, layout, count):
    for _ in range(count):
        actor.item(layout, actor.chunk(rows(actor.next_step, 2), 2), 0, 2)
        check(actor.send(), "no credit")


def test_a_lost_message_is_found_and_sent_again(world):
    service = world.clean("fifo")
    actor = world.actor("gap")
    layout = actor.layout("fifo", WHOLE)
    insert_some(actor, layout, 3)
    real, dropped = actor.push.send_multipart, []
    actor.push.send_multipart = dropped.append  # the network loses the next one
    insert_some(actor, layout, 1)
    actor.push.send_multipart = real
    insert_some(actor, layout, 3)
    equal(len(dropped), 1)
    check(actor.flush(), "not resolved")
    equal(actor.epoch, 2)
    equal(sorted(i.step for i in service.ask("list", pb.List(table="fifo", limit=100))[0].list.items),
          [0, 2, 4, 6, 8, 10, 12])
    equal(service.table("fifo").limiter.inserts, 7)
    insert_some(actor, layout, 2)
    check(actor.flush(), "not resolved")
    equal(service.table("fifo").limiter.inserts, 9)
    equal(actor.rejections, [])
    actor.bye()


def test_the_ids_of_sessions_are_not_shown(world):
    """Whoever knows an id can take the session over, so INFO shows only how it begins."""
    actor = world.actor("secret")
    shown = [s.session for s in actor.service.info(sessions=True).sessions if s.name == "secret"]
    equal(shown, [actor.session[:4]])
    for id in (shown[0], shown[0] + bytes(12)):
        hello = pb.Hello(session=id, name="thief", columns=COLUMNS, oldest_number=1)
        reply, _ = actor.service.ask("hello", hello, check=False)
        check(reply.status in (INVALID_ARGUMENT, SESSION_UNKNOWN), reply)
    equal(actor.bye().status, 0)


def test_a_restart_with_a_journal_asks_for_hello_and_nothing_is_in_doubt(world):
    """Killed and started again: the heartbeat answers a gap, as after a lost message, and never that the session is
    unknown. A client that does what section 10 says about a gap goes on exactly once."""
    with Broker(JOURNALED) as broker:
        actor = Actor(Service(broker.endpoints["service"]), COLUMNS, "survivor")
        layout = actor.layout("held", WHOLE)
        for i in range(6):
            actor.item(layout, actor.chunk(rows(i, 1), 1), 0, 1)
        check(actor.send(), "no credit")
        check(actor.wait_until(lambda: actor.resolved(actor.tables["held"].id) == 4, 5), "four go in")
        broker.kill()
        broker.start()
        actor.service.endpoint = broker.endpoints["service"]
        actor.service.reopen()
        for _ in range(2):
            body = pb.Heartbeat(session=actor.session, epoch=actor.epoch, sent=actor.last_number)
            reply, _ = actor.service.ask("heartbeat", body)
            equal((reply.status, reply.credit.gap, reply.credit.epoch), (0, True, actor.epoch))
            equal(len(reply.credit.table), 0)
        reply, _ = actor.service.ask("bye", pb.Bye(session=actor.session, last_number=1), check=False)
        equal(reply.status, FAILED_PRECONDITION)
        actor.heartbeat()
        check(actor.credit.gap, "the actor heard it")
        equal(actor.resolved(actor.tables["held"].id), 4)  # it keeps what it was told before
        reply = actor.resume(reconnect=False)
        equal((reply.resumed, reply.lost_messages), (True, 0))
        learner = Learner(Service(broker.endpoints["service"]))
        got = [item.step for _ in range(6) for item in learner.sample("held", 1)[1]]
        equal(got, list(range(6)))
        check(actor.flush(), "not resolved")
        equal(actor.rejections, [])
        equal(actor.bye().status, 0)


def test_events_are_hints(world):
    service = world.service()
    hello = service.ask("hello", pb.Hello())[0].hello
    subscriber = zmq.Context.instance().socket(zmq.SUB)
    subscriber.linger = 0
    subscriber.subscribe(b"")
    subscriber.connect(hello.events)
    seen = []

    def heard(wanted, cause):
        cause()
        while subscriber.poll(100):
            seen.append(subscriber.recv_multipart())
        return [e for e in seen if len(e) == 1 and e[0].decode().startswith(wanted)]

    eventually(lambda: heard("params announced ", lambda: service.put("announced", b"x")))
    version = service.get(["announced"])[0][0].version
    eventually(lambda: int(heard("params announced ", lambda: None)[-1][0].split()[2]) == version, what="the event of the newest version")
    service.reset("fifo")
    eventually(lambda: heard("table fifo reset", lambda: None), what="an event of the reset")
    subscriber.close()


def test_the_broker_is_alive_and_stops_in_order(world):
    check(world.broker.alive(), world.broker.text())
    service = world.service()
    eventually(lambda: service.info().server.waiter_count == 0, what="no waiter is left")
    equal(world.broker.stop(), 0)
