"""A writer: one session, many items in flight over shared chunks, and a log of what it sent and what was acknowledged.
It lives through everything but its own kill -9; the next one then opens a new session. See PROTOCOL.md, 7 to 10."""

import collections
import fcntl
import mmap
import os
import random
import struct
import time

import zmq

import blocks
import keys
from actor import Stream
from client import Connection
from generated import pb
from scene import BY_NAME, COLUMNS, DRAIN, LAYOUTS, RUN, STOP, TABLES, Log, data_row, tag_row

FAILED_PRECONDITION, SESSION_UNKNOWN = 6, 9
BEAT = 0.12       # seconds between heartbeats
SILENCE = 0.45    # without any answer: connect again
CODECS = (blocks.LZ4, blocks.SHUFFLE_LZ4, blocks.DELTA_LZ4, blocks.DELTA_SHUFFLE_LZ4)


class Memory:
    """Chunks that the broker reads from this process: a ring, of which less than half may be in use."""
    SIZE = 16 << 20

    def __init__(self):
        self.fd = os.memfd_create("chaos", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        self.nonce, self.at = random.SystemRandom().getrandbits(64), 4096
        os.ftruncate(self.fd, self.SIZE)
        self.map = mmap.mmap(self.fd, self.SIZE)
        self.map[:8] = struct.pack("<Q", self.nonce)
        fcntl.fcntl(self.fd, 1033, 2)   # F_ADD_SEALS, F_SEAL_SHRINK

    def name(self):
        return pb.Arena(pid=os.getpid(), fd=self.fd, size=self.SIZE, nonce=self.nonce)

    def put(self, payload):
        """Where each part lies now."""
        places = []
        for part in payload:
            self.at = 4096 if self.at + len(part) > self.SIZE else self.at
            self.map[self.at:self.at + len(part)] = part
            places.append(self.at)
            self.at += len(part)
        return places


class Writer(Stream):
    def __init__(self, scene, index, uid, options):
        super().__init__([pb.Column(name=n, dtype=d, shape=s) for n, d, s in COLUMNS])
        self.scene, self.shared, self.index, self.uid = scene, scene.shared, index, uid
        self.random = random.Random("%s-writer-%d" % (scene.seed, uid))
        self.log = Log(scene.folder / "logs" / ("writer-%08x.log" % uid))
        self.endpoint, self.ingest = scene.endpoints(index)
        self.rate, self.budget = options["rate"], options["items"]
        self.names = [t.name for t in TABLES if t.keeps != "newest" or index == 0]
        self.service, self.push, self.next_id = Connection(self.endpoint, "DEALER", self.shared, "writers"), None, 0
        self.is_open, self.hello_id, self.hello_at, self.sent_to = False, 0, 0.0, 0
        self.received, self.allowed_bytes, self.resolved, self.allowed, self.rejected = 0, 0, {}, {}, {}
        self.window = []                        # (chunk, first step, length) that items may begin in
        self.kinds = {}                         # (table, kind of layout) -> its number
        self.memory, self.reads = Memory(), False
        self.good = collections.deque(maxlen=50)   # keys in `replay` that are resolved, with their number
        self.heard = self.beat_at = self.moved_at = time.monotonic()
        self.next_at = time.monotonic()
        self.burst_seen, self.burst = self.shared.burst, 0
        self.bye_id, self.bye_at, self.is_gone = 0, 0.0, False

    def complain(self, text):
        self.scene.complain("writer %#x: %s" % (self.uid, text))

    def connect(self):
        if self.push is not None:
            self.push.close(0)
        self.service.reopen()
        self.push = self.service.context.socket(zmq.PUSH)
        keys.secure(self.push, "writers")
        self.push.linger = 0
        self.push.setsockopt(zmq.RECONNECT_IVL, 20)
        self.push.connect(self.ingest)
        self.is_open, self.heard = False, time.monotonic()

    def hello(self, retry):
        """Opens the session, or takes it up again. An unanswered HELLO is repeated with its id."""
        self.connect()
        if not retry or not self.hello_id:
            self.next_id += 1
            self.hello_id = self.next_id
            self.asked = self.hello_body(name="chaos-%x" % self.uid, notices=True, memory=self.memory.name())
        self.service.offer(self.hello_id, "hello", self.asked)
        self.hello_at = time.monotonic()

    def opened(self, reply):
        if reply.status == SESSION_UNKNOWN and self.bye_id:
            self.is_open, self.is_gone, self.hello_id = True, True, 0
            return
        if reply.status == SESSION_UNKNOWN:
            self.complain("the session is unknown: %s" % reply.text)
            os._exit(1)
        if reply.status:
            self.hello_id = 0   # try again with another id
            return
        hello = reply.hello
        if hello.lost_messages:
            self.complain("%d messages were accepted and are lost" % hello.lost_messages)
        if not self.session:
            self.tables = {t.name: t for t in hello.tables}
            self.names_by_id = {t.id: t.name for t in hello.tables}
            self.next_key = hello.key_base
            self.log.write(["s", self.uid, hello.ordinal, hello.key_base, [self.index]])
        self.session, self.epoch, self.is_open, self.hello_id = hello.session, hello.epoch, True, 0
        self.allowed_bytes, self.received = 0, hello.credit.received
        self.reads = hello.reads
        self.allowed = {}
        self.moved_at = self.heard
        self.credit(hello.credit)
        self.sent_to = self.received

    def heartbeat(self):
        self.next_id += 1
        self.beat_at = time.monotonic()
        self.service.offer(self.next_id, "heartbeat", pb.Heartbeat(
            session=self.session, epoch=self.epoch, sent=self.sent_to, confirmed_rejections=self.confirmed))

    def credit(self, credit):
        """Takes it, unless it is of another epoch or older than what is known."""
        if credit.epoch != self.epoch:
            return
        records = [["j", self.names_by_id.get(rejection.table, "?"), rejection.item, rejection.key, rejection.status,
                    rejection.text] for rejection in self.new_rejections(credit)]
        changed = {}
        for t, resolved, allowed, rejected in zip(credit.table, credit.resolved, credit.allowed, credit.rejected):
            self.allowed[t] = max(allowed, self.allowed.get(t, 0))
            before = self.resolved.get(t, 0)
            if resolved > before:
                self.resolved[t], self.rejected[t] = resolved, rejected
                changed[self.names_by_id[t]] = [resolved, rejected]
            elif resolved == before and rejected != self.rejected.get(t, 0):
                self.complain("table %s: item %d is resolved with %d rejected, it were %d before"
                              % (self.names_by_id[t], resolved, rejected, self.rejected.get(t, 0)))
            if resolved > self.items_sent.get(t, 0):
                self.complain("table %s: %d items are resolved, %d were sent"
                              % (self.names_by_id[t], resolved, self.items_sent.get(t, 0)))
        if changed:
            records.append(["r", changed])
        if records:
            self.log.write(*records)
        if credit.received > self.received:
            self.moved_at = time.monotonic()
        self.received = max(self.received, credit.received)
        self.allowed_bytes = max(self.allowed_bytes, credit.allowed_bytes)
        self.forget()
        if credit.gap:
            self.hello(retry=False)

    def check_fallen(self, credit):
        """What was acknowledged stays acknowledged, over restarts too."""
        for t, resolved in zip(credit.table, credit.resolved):
            if resolved < self.resolved.get(t, 0):
                self.complain("table %s: %d items were acknowledged, after a reconnect only %d are"
                              % (self.names_by_id.get(t, t), self.resolved[t], resolved))

    def is_resolved(self, message):
        return message.number <= self.received and all(self.resolved.get(t, 0) >= n for t, n in message.items.items())

    def forget(self):
        """Items begin in a chunk of their own message or in the last one of the message before. Dropped from the front
        only, and the newest messages stay: items to come may need their chunks."""
        while len(self.stored) > 2 and self.is_resolved(self.stored[0]) and self.is_resolved(self.stored[1]):
            self.stored.pop(0)

    def read(self, timeout):
        while got := self.service.receive(timeout):
            timeout, reply = 0, got[0]
            self.heard = time.monotonic()
            if reply.id and reply.id == self.bye_id:
                self.ended(reply)
            elif reply.id and reply.id == self.hello_id:
                if reply.status == 0 and self.session:
                    self.check_fallen(reply.hello.credit)
                self.opened(reply)
            elif reply.HasField("credit") and reply.status == 0 and self.is_open:
                self.credit(reply.credit)
            elif reply.status == SESSION_UNKNOWN and self.is_open and not self.bye_id:
                self.hello(retry=False)   # which tells whether it is true
                return

    def keep_alive(self):
        now = time.monotonic()
        if self.push is None or self.service.generation != self.shared.generation or self.shared.cut[self.index]:
            self.shared.cut[self.index] = 0
            self.hello(retry=not self.is_open)
        elif not self.is_open:
            if now - self.hello_at > 0.3:
                self.hello(retry=True)
        elif self.is_gone:   # only the answer to BYE is missing
            if now - self.heard > SILENCE:
                self.connect()
                self.is_open = True
        elif now - self.heard > SILENCE or (self.received < self.sent_to and now - self.moved_at > 4 * BEAT):
            self.hello(retry=False)
        elif now - self.beat_at > BEAT:
            self.heartbeat()

    def bye(self):
        """Ends the session. It is answered when all is in; until then everything goes on, and BYE is repeated."""
        if not self.bye_id:
            self.next_id += 1
            self.bye_id = self.next_id
        if time.monotonic() - self.bye_at > 0.3:
            self.bye_at = time.monotonic()
            self.service.offer(self.bye_id, "bye", pb.Bye(session=self.session, last_number=self.last_number))

    def ended(self, reply):
        if reply.status in (5, 11, 12):
            return
        if reply.status == FAILED_PRECONDITION and not self.is_gone:   # a tombstone: take it up again first
            self.bye_at = 0.0
            self.hello(retry=False)
            return
        if reply.status:
            self.complain("bye: status %d: %s" % (reply.status, reply.text))
            os._exit(1)
        self.epoch = reply.credit.epoch
        self.credit(reply.credit)
        self.log.write(["b"])
        for t, number in self.items_sent.items():
            if self.resolved.get(t, 0) != number:
                self.complain("table %s: after bye %d of %d items are resolved"
                              % (self.names_by_id[t], self.resolved.get(t, 0), number))
        os._exit(0)

    def new_steps(self, small):
        """New chunks. Now and then one is so large that it goes as a frame of its own."""
        for _ in range(1 if small else self.random.randint(1, 3)):
            kind = self.random.random()   # from 103 steps on, samplers may read the chunk in shared memory
            length = 900 if kind < 0.02 else self.random.randint(90, 200) if kind < 0.1 else self.random.randint(2, 6)
            codecs = None
            if length < 80 and self.random.random() < 0.03:
                codecs = [self.random.choice(CODECS), self.random.choice(CODECS)]
            steps = range(self.next_step, self.next_step + length)
            rows = [b"".join(row(self.uid, s) for s in steps) for row in (tag_row, data_row)]
            self.window.append((self.chunk(rows, length, codecs, steps[0] // 50), steps[0], length))

    def place(self):
        """Where an item may lie: (chunk, offset, step, length)."""
        chunk, first, size = self.random.choice(self.window)
        offset = self.random.randrange(size)
        left = self.window[-1][1] + self.window[-1][2] - first - offset
        return chunk, offset, first + offset, self.random.randint(1, min(4, left))

    def layout_of(self, table, kind):
        if (table, kind) not in self.kinds:
            self.kinds[table, kind] = self.layout(table, [pb.Field(name=n, column=c, start=s, count=k, stride=d, squeeze=q)
                                                          for n, c, s, k, d, q in LAYOUTS[kind]])
        return self.kinds[table, kind]

    def spoil(self, name, key, priority, chunk):
        """An item that must be rejected: (what, key, priority, chunk, layout)."""
        kind = BY_NAME[name].layout
        more = {"signed": ["layout", "layout"], "replay": ["key"]}
        what = self.random.choice(["priority", "chunk"] + more.get(name, []))
        if what == "priority":
            priority = self.random.choice([-1.0, float("inf"), float("nan")])
        elif what == "chunk":
            chunk = self.next_chunk + 1000000
        elif what == "layout":
            kind = "wrong"
        elif self.good:
            key = self.random.choice(self.good)
        else:
            priority, what = -1.0, "priority"
        return what, key, priority, chunk, kind

    def new_message(self, n_items):
        """The message, and its line of the log."""
        del self.window[:-1]
        self.oldest_chunk, number = self.window[0][0] if self.window else 1, self.last_number + 1
        self.new_steps(n_items == 1)
        record = []
        for name in self.random.sample(self.names, min(n_items, self.random.randint(1, len(self.names)))):
            before, items = self.items_sent.get(self.tables[name].id, 0), []
            for _ in range(max(1, n_items // 2) if n_items > 1 else 1):
                chunk, offset, step, length = self.place()
                key, priority = self.next_key, self.random.random() + 1e-6
                self.next_key += 1
                kind, bad = BY_NAME[name].layout, ""
                if self.random.random() < 0.004:
                    bad, key, priority, chunk, kind = self.spoil(name, key, priority, chunk)
                self.item(self.layout_of(name, kind), chunk, offset, length, priority, number, key)
                items.append([before + len(items) + 1, key, priority if priority == priority else -1, step, length, bad])
                if name == "replay" and not bad:
                    self.good.append(key)
            record.append([name, items])
        large = max(sum(map(len, chunk[4])) for chunk in self.new_chunks) >= 20000
        message = self.build(packed=not large)
        del message.header.run_policy[1:]   # one for all
        if large and sum(len(p) for m in self.stored for p in m.payload if m.header.place) < Memory.SIZE // 4:
            message.header.place.extend(self.memory.put(message.payload))
        return message, ["m", number, record, bool(self.reads and message.header.place)]

    def room(self, n_items):
        """Whether credit covers a message of this size for any choice of tables; without any, one item may go alone."""
        ahead = max(1, n_items // 2)
        if self.sent_bytes + 60000 + 200 * n_items * len(self.names) <= self.allowed_bytes:
            ids = [self.tables[name].id for name in self.names]
            if all(self.items_sent.get(t, 0) + ahead <= self.allowed.get(t, 0) for t in ids):
                return n_items
        quiet = all(self.items_sent.get(t, 0) == self.resolved.get(t, 0) for t in self.names_by_id)
        return 1 if quiet and time.monotonic() - self.next_at > 0.2 else 0

    def produce(self):
        if self.shared.burst != self.burst_seen:
            self.burst_seen, self.burst = self.shared.burst, 12
        if self.burst == 0 and time.monotonic() < self.next_at or self.budget <= 0 or len(self.stored) > 400:
            return False
        n = self.room(self.random.choice((2, 6, 12, 30)))
        if not n:
            return False
        message, record = self.new_message(n)
        self.log.write(record)
        self.sent_bytes += message.size()
        items = len(message.header.item_key)
        self.shared.done[self.index] += items
        self.budget -= items
        self.burst = max(0, self.burst - 1)
        now = time.monotonic()
        self.next_at = max(self.next_at, now - 0.3) + items / self.rate
        return True

    def transmit(self):
        skip = self.sent_to + 1 - (self.stored[0].number if self.stored else self.sent_to + 1)
        if skip < 0:
            self.complain("message %d is wanted, the oldest kept is %d" % (self.sent_to + 1, self.stored[0].number))
            os._exit(1)
        for message in self.stored[skip:]:
            try:
                self.push.send_multipart(message.frames(self.epoch, self.reads), zmq.NOBLOCK)
            except zmq.Again:
                return
            if self.received >= self.sent_to:
                self.moved_at = time.monotonic()
            self.sent_to = message.number

    def is_flushed(self):
        return (self.is_open and all(self.is_resolved(m) for m in self.stored) and
                self.confirmed >= sum(self.rejected.values()))

    def run(self):
        while self.shared.phase != STOP:
            state = self.shared.state
            self.keep_alive()
            sent = False
            if self.is_open:
                if self.bye_id or self.shared.retire[self.index]:
                    self.shared.retire[self.index] = 0
                    self.bye()
                elif state & 3 == RUN:
                    sent = self.produce()
                self.transmit()
            if state & 3 >= DRAIN and not self.bye_id and self.shared.idle[self.index] != state and self.is_flushed():
                self.heartbeat()   # confirms the rejections
                self.good.clear()  # tables may be reset now
                self.shared.idle[self.index] = state
            self.read(0 if sent else 0.01)
