"""A client that is answered, whatever happens: it sends a request again with its id until there is an answer, and it
knows after its own kill -9 what was under way. See PROTOCOL.md, sections 2 and 16."""

import contextlib
import random
import time

import zmq

import keys
from scene import value_of
from service import AGAIN, Service

PATIENCE = 0.35      # seconds before a request is sent again over a new connection


class Connection(Service):
    """Never waits for room to send: what finds none is lost."""

    def __init__(self, endpoint, kind, shared, key):
        self.shared, self.key = shared, key
        super().__init__(endpoint, kind)

    def prepare(self):
        keys.secure(self.socket, self.key)
        self.socket.setsockopt(zmq.RECONNECT_IVL, 20)
        self.generation = self.shared.generation

    def offer(self, id, name, body, payload=(), settled=0):
        with contextlib.suppress(zmq.Again):
            self.socket.send_multipart(self.frames(name, body, payload, id, settled), zmq.NOBLOCK)


class Client(Connection):
    """The fields of a request are plain values, so that a log can hold them and a successor can repeat them. `value` is no field: the
    seed and the size of a payload."""

    def __init__(self, endpoint, kind, shared, log=None, patience=PATIENCE):
        self.log, self.patience = log, patience
        self.random, self.under_way = random.Random(), {}
        super().__init__(endpoint, kind, shared, "others")
        self.recover()

    def recover(self):
        known = False
        for record in self.log.old if self.log else ():
            if record[0] == "c":
                self.client, known = record[1], True
            elif record[0] == "q":
                self.next_id = max(self.next_id, record[1])
                self.under_way[record[1]] = [record[2], record[3], 0.0, 1]
            elif record[0] == "a":
                self.under_way.pop(record[1], None)
        if self.log and not known:
            self.log.write(["c", self.client])

    def settled(self):
        """The answers to all requests up to this id were read and are in the log."""
        return min(self.under_way, default=self.next_id + 1) - 1

    def transmit(self, id):
        name, fields = self.under_way[id][0], dict(self.under_way[id][1])
        payload = [value_of(*fields.pop("value"))] if "value" in fields else []
        self.offer(id, name, fields, payload, min(self.settled(), id - 1))   # it is sent again soon
        self.under_way[id][2] = time.monotonic()
        self.under_way[id][3] += 1

    def begin(self, name, /, **fields):
        self.next_id += 1
        self.under_way[self.next_id] = [name, fields, 0.0, 0]
        if self.log:
            self.log.write(["q", self.next_id, name, fields])
        self.transmit(self.next_id)
        return self.next_id

    def again(self):
        """A new connection, and everything under way once more, in order."""
        self.reopen()
        for id in sorted(self.under_way):
            self.transmit(id)

    def poll(self, timeout):
        """[(id, name, fields, Reply, frames)] of what was answered. done() must follow for each."""
        answers, seen, wait = [], set(), timeout
        while self.socket.poll(int(wait * 1000)):
            reply, frames = self.receive(0)
            known = self.under_way.get(reply.id)
            if known is not None and reply.id not in seen:
                if reply.status in AGAIN:
                    known[2] = min(known[2], time.monotonic() - self.patience + 0.05)
                else:
                    seen.add(reply.id)
                    answers.append((reply.id, known[0], known[1], reply, frames))
            wait = 0
            if len(answers) >= 64 or self.kind in ("REQ", "RELAXED"):
                break
        if not answers and self.under_way:
            oldest = min(entry[2] for entry in self.under_way.values())
            late = time.monotonic() - oldest > self.patience * self.random.uniform(0.8, 1.5)
            if late or self.generation != self.shared.generation:
                self.again()
        return answers

    def done(self, id, *record):
        """The answer was read: from now on it is in the log, and the broker may forget it."""
        if self.log:
            self.log.write(["a", id, *record])
        self.under_way.pop(id, None)

    def cut(self):
        """Drops the connection with whatever is in it, unread."""
        self.again()

    def ask(self, name, /, patience=20.0, **fields):
        """One request, answered: (Reply, frames)."""
        id, end = self.begin(name, **fields), time.monotonic() + patience
        while time.monotonic() < end:
            for got, _, _, reply, frames in self.poll(0.05):
                self.done(got)
                if got == id:
                    return reply, frames
        raise TimeoutError("no answer to %s %s within %g s" % (name, fields, patience))
