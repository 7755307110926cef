"""The writer's side: a session, numbered ingest messages, credits, exactly-once resend. See PROTOCOL.md, "Session".

One Actor is one stream of steps. It keeps every message that it may have to send again. A Stream composes the messages; it neither
sends nor waits.
"""

import struct
import time

import zmq

import blocks
from generated import pb
from service import VERSION


class Message:
    """An ingest message that was sent or waits to be sent."""

    def __init__(self, header, payload):
        self.header, self.payload = header, payload
        self.number, self.sent = header.number, False
        self.items = {}   # table id -> number of its last item
        self.chunks = []
        self.first_chunks = {}  # table id -> [(item number, its first chunk)]

    def frames(self, epoch, reads=False):
        """reads: the broker reads chunks with a place from the writer's memory."""
        self.header.epoch = epoch
        return [self.header.SerializeToString(), *([] if reads and self.header.place else self.payload)]

    def size(self):
        return sum(len(f) for f in self.frames(self.header.epoch or 1))


class Stream:
    """A session's layouts, chunks and items, and the messages that they become."""

    def __init__(self, columns):
        self.columns = columns
        self.begin()

    def begin(self):
        """A new session, with all numbers at their beginning."""
        self.session, self.epoch, self.tables = b"", 0, {}   # name -> TableSpec
        self.stored = []            # messages that may be needed again, without a gap
        self.last_number = 0
        self.sent_bytes = 0
        self.next_chunk, self.next_step, self.oldest_chunk = 1, 0, 1
        self.lengths = {}           # chunk number -> steps
        self.items_sent = {}        # table id -> items numbered so far
        self.layouts = []           # (table id, Layout)
        self.confirmed = 0          # rejections read
        self.rejections = []
        self.new_layouts, self.new_chunks, self.new_items = [], [], []

    def hello_body(self, **more):
        """What opens the session or, if there is one, takes it up again."""
        oldest = self.stored[0].number if self.stored else self.last_number + 1
        return pb.Hello(session=self.session, columns=self.columns, oldest_number=oldest, **more)

    def new_rejections(self, credit):
        """Those that were not read before."""
        for i, rejection in enumerate(credit.rejections):
            if credit.first_rejection + i == self.confirmed:
                self.confirmed += 1
                yield rejection

    def layout(self, table, fields):
        """fields: [pb.Field]. Gives the number by which items name it."""
        layout = pb.Layout(id=len(self.layouts), table=table, fields=fields)
        self.layouts.append((self.tables[table].id if table in self.tables else 0, layout))
        self.new_layouts.append(layout)
        return layout.id

    def chunk(self, rows, length, codecs=None, episode=0):
        """rows: for each column the bytes of `length` steps. Gives the chunk's number."""
        codecs = codecs or [blocks.RAW] * len(self.columns)
        data = [blocks.encode(c, codec, r) for c, codec, r in zip(self.columns, codecs, rows)]
        number = self.next_chunk
        self.next_chunk += 1
        self.lengths[number] = length
        self.new_chunks.append((number, self.next_step, length, episode, data, codecs))
        self.next_step += length
        return number

    def item(self, layout, chunk, offset, length, priority=1.0, policy=0, key=None):
        if key is None:
            key, self.next_key = self.next_key, self.next_key + 1
        self.new_items.append((layout, policy, key, priority, chunk, offset, length))
        return key

    def compose(self, n_items, packed=True):
        """An ingest message with the first n new items and the chunks up to the last that they need (all of them with
        all items). Changes nothing yet."""
        items, all_ = self.new_items[:n_items], n_items >= len(self.new_items)
        last = max((self._last_chunk(*item[4:]) for item in items), default=0)
        chunks = self.new_chunks if all_ else [c for c in self.new_chunks if c[0] <= last]
        hi, lo = struct.unpack("<QQ", self.session)
        h = pb.Ingest(version=VERSION, session_hi=hi, session_lo=lo, epoch=self.epoch, number=self.last_number + 1,
                      oldest_chunk=self.oldest_chunk, layouts=self.new_layouts)
        payload, codecs = [], b""
        for number, step, length, episode, data, chunk_codecs in chunks:
            h.chunk_number.append(number)
            h.chunk_step.append(step)
            h.chunk_length.append(length)
            h.chunk_episode.append(episode)
            h.block_size.extend(len(d) for d in data)
            codecs += bytes(chunk_codecs)
            payload.append(b"".join(data))
        h.block_codec = codecs
        if packed and payload:
            h.packed, payload = len(payload), [b"".join(payload)]
        message = Message(h, payload)
        message.chunks = list(h.chunk_number)
        self._add_items(message, items)
        if not all_:  # what the rest needs must stay
            h.oldest_chunk = min([self.oldest_chunk] + [i[4] for i in self.new_items[n_items:]])
        return message

    def _last_chunk(self, chunk, offset, length):
        left = offset + length
        while left > self.lengths.get(chunk, left):
            left -= self.lengths[chunk]
            chunk += 1
        return chunk

    def _add_items(self, message, items):
        h, runs = message.header, []
        for layout, policy, key, priority, chunk, offset, length in items:
            table = self.layouts[layout][0]
            number = message.items.get(table, self.items_sent.get(table, 0)) + 1
            message.items[table] = number
            message.first_chunks.setdefault(table, []).append((number, chunk))
            if runs and runs[-1][0:2] == [layout, policy]:
                runs[-1][3] += 1
            else:
                runs.append([layout, policy, number, 1])
            h.item_key.append(key)
            h.item_priority.append(priority)
            h.item_chunk.append(chunk)
            h.item_offset.append(offset)
            h.item_length.append(length)
        for layout, policy, first, count in runs:
            h.run_layout.append(layout)
            h.run_policy.append(policy)
            h.run_first.append(first)
            h.run_items.append(count)

    def commit(self, message):
        """The message takes its place in the stream: from now on it is kept until nobody can need it."""
        self.last_number = message.number
        self.items_sent.update(message.items)
        self.new_layouts = []
        self.new_chunks = self.new_chunks[len(message.chunks):]
        self.new_items = self.new_items[len(message.header.item_key):]
        self.stored.append(message)

    def build(self, packed=True):
        """Everything that is new as one message, whatever the credit. Tests use it to send by hand."""
        message = self.compose(len(self.new_items), packed)
        self.commit(message)
        return message


class Actor(Stream):
    def __init__(self, service, columns, name="foreign", notices=None):
        """service: a Service of its own. Notices can be had over DEALER only; a REQ polls with heartbeats."""
        self.service, self.name, self.push = service, name, None
        self.notices = service.kind in ("DEALER", "DELIMITED") if notices is None else notices
        super().__init__(columns)
        self.hello()

    def hello(self):
        """Opens the session or, if there is one, takes it up again."""
        reply = self.service.ask("hello", self.hello_body(name=self.name, notices=self.notices))[0].hello
        self.session, self.epoch, self.hello_reply = reply.session, reply.epoch, reply
        self.released = 0   # credit given up: counted within an epoch
        self.key_base = reply.key_base if self.last_number == 0 else self.key_base
        self.next_key = self.key_base if self.last_number == 0 else self.next_key
        self.tables = {t.name: t for t in reply.tables}
        self.credit = reply.credit
        self.take_credit(reply.credit)
        self.connect_ingest(reply.ingest)
        return reply

    def connect_ingest(self, endpoint):
        if self.push is not None:
            self.push.close()
        if endpoint.startswith("tcp://*"):
            host = self.service.endpoint.split("://")[1].rsplit(":", 1)[0]
            endpoint = endpoint.replace("*", host, 1)
        self.push = self.service.context.socket(zmq.PUSH)
        self.push.linger = 1000
        self.push.connect(endpoint)

    def resume(self, reconnect=True):
        """After a broken connection or a gap: HELLO, then everything above `received` again, in order."""
        if reconnect:
            self.service.reopen()
        self.push.linger = 0   # what this socket still holds carries an old epoch
        reply = self.hello()
        again = [message for message in self.stored if message.sent and message.number > reply.credit.received]
        if reply.lost_messages:   # the broker has counted fewer bytes than were sent
            self.sent_bytes = reply.credit.returned_bytes + sum(message.size() for message in again)
        for message in again:
            self.push.send_multipart(message.frames(self.epoch))
        return reply

    def start_over(self):
        """After SESSION_UNKNOWN: a new session. Gives the keys that may or may not be in their tables: the application
        decides what to do about them; they are never sent again silently."""
        doubt = [key for message in self.stored if message.sent for key in self._unresolved_keys(message)]
        self.begin()
        self.hello()
        return doubt

    def _unresolved_keys(self, message):
        at, h = 0, message.header
        for layout, first, count in zip(h.run_layout, h.run_first, h.run_items):
            for i in range(count):
                if first + i > self.resolved(self.layouts[layout][0]):
                    yield h.item_key[at + i]
            at += count

    def heartbeat(self, explain=False, timeout=60.0):
        sent = max((m.number for m in self.stored if m.sent), default=self.credit.received)
        body = pb.Heartbeat(session=self.session, epoch=self.epoch, sent=sent,
                            confirmed_rejections=self.confirmed, explain=explain, released_bytes=self.released)
        credit = self.service.ask("heartbeat", body, timeout=timeout)[0].credit
        self.take_credit(credit)
        if self.released != body.released_bytes:   # others need it: say so at once
            return self.heartbeat(explain, timeout)
        return credit if credit.table else self.credit

    def bye(self, timeout_ms=5000):
        body = pb.Bye(session=self.session, last_number=self.last_number, timeout_ms=timeout_ms)
        reply, _ = self.service.ask("bye", body, timeout=timeout_ms / 1000 + 60)
        self.close()
        return reply

    def close(self):
        self.push.close()

    def take_credit(self, credit):
        """All numbers are running totals: the newest message of an epoch is the truth."""
        if credit.epoch != self.epoch:
            return
        self.rejections.extend(self.new_rejections(credit))
        if not credit.table:   # says nothing about numbers: the broker waits for its disk, or wants HELLO first
            self.credit.gap = credit.gap
            return
        self.credit = credit
        unused = credit.allowed_bytes - self.sent_bytes - self.released
        if 0 < credit.keep_bytes < unused:
            self.released += unused - credit.keep_bytes
        self.forget()

    def resolved(self, table):
        return dict(zip(self.credit.table, self.credit.resolved)).get(table, 0)

    def allowed(self, table):
        return dict(zip(self.credit.table, self.credit.allowed)).get(table, 0)

    def unresolved(self):
        return sum(sent - self.resolved(table) for table, sent in self.items_sent.items())

    def forget(self):
        """Drops messages from the front as long as nobody can need them again: all items resolved, no chunk inside
        the keep-alive window or referred to by an unresolved item. Only from the front, so that a resend has no gap."""
        needed = self.oldest_chunk
        for message in self.stored:
            for table, items in message.first_chunks.items():
                needed = min([needed] + [chunk for number, chunk in items if number > self.resolved(table)])
        while self.stored:
            m = self.stored[0]
            if any(self.resolved(t) < n for t, n in m.items.items()) or any(c >= needed for c in m.chunks):
                break
            if not m.sent or m.number > self.credit.received:
                break
            self.stored.pop(0)

    def may_send(self, message):
        """The rule of credits, with its one exception: a single item when nothing of its table is outstanding."""
        if self.sent_bytes + self.released + message.size() <= self.credit.allowed_bytes:
            if all(last <= self.allowed(t) for t, last in message.items.items()):
                return True
        return len(message.header.item_key) == 1 and all(last == self.resolved(t) + 1
                                                         for t, last in message.items.items())

    def poll_credit(self, wait=0.05):
        """Takes notices if we get them, else asks."""
        if self.notices:
            for credit in self.service.take_notices(wait):
                self.take_credit(credit)
        else:
            time.sleep(wait / 5)
            self.heartbeat()
        if self.credit.gap:
            self.resume(reconnect=False)

    def wait_until(self, condition, timeout):
        """False after the timeout. Heartbeats keep the session alive and repeat what a lost notice would have said."""
        end, beat = time.monotonic() + timeout, time.monotonic()
        while not condition():
            left = end - time.monotonic()
            if time.monotonic() - beat > self.hello_reply.heartbeat_ms / 1000:
                self.heartbeat()
                beat = time.monotonic()
            self.poll_credit(min(0.05, max(0.0, left)))
            if left <= 0:
                return bool(condition())
        return True

    def push_message(self, message):
        self.sent_bytes += message.size()
        message.sent = True
        self.push.send_multipart(message.frames(self.epoch))

    def sendable(self, packed):
        """What may be sent now: everything, or else a single item, which needs no credit if none is outstanding. A
        broker short of memory may grant nothing at all: then items go one by one."""
        for n in (len(self.new_items), 1):
            message = self.compose(n, packed)
            if self.may_send(message):
                return message
        return None

    def send(self, timeout=60.0, packed=True):
        """Sends what is new, as credit allows. False: not all of it within the timeout; call again to go on."""
        end = time.monotonic() + timeout
        while self.new_items or self.new_chunks or self.new_layouts:
            if not self.wait_until(lambda: self.sendable(packed), end - time.monotonic()):
                return False
            message = self.sendable(packed)
            self.commit(message)
            self.push_message(message)
        return True

    def flush(self, timeout=60.0):
        """Waits until every item is in its table or rejected."""
        return self.wait_until(lambda: self.unresolved() == 0, timeout)
