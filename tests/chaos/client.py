"""A client that is answered, whatever happens: it sends a request again with its id until there is an answer, and it
knows after its own kill -9 what was under way. See PROTOCOL.md, sections 2 and 16."""

import random
import time

import zmq

import keys
from service import AGAIN, Service

PATIENCE = 0.35      # seconds before a request is sent again over a new connection


class Client(Service):
    """make(name, args) gives the body and the payload of a request; args are plain values, so that they can be logged."""

    def __init__(self, endpoint, kind, shared, make, log=None, patience=PATIENCE):
        self.shared, self.make, self.log, self.patience = shared, make, log, patience
        self.random, self.under_way = random.Random(), {}
        super().__init__(endpoint, kind)
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

    def prepare(self):
        keys.secure(self.socket)
        self.socket.setsockopt(zmq.RECONNECT_IVL, 20)
        self.generation = self.shared.generation

    def settled(self):
        """The answers to all requests up to this id were read and are in the log."""
        return min(self.under_way, default=self.next_id + 1) - 1

    def transmit(self, id):
        name, args = self.under_way[id][:2]
        frames = self.frames(name, *self.make(name, args), id, min(self.settled(), id - 1))
        try:
            self.socket.send_multipart(frames, zmq.NOBLOCK)
        except zmq.Again:
            pass   # it is sent again soon
        self.under_way[id][2] = time.monotonic()
        self.under_way[id][3] += 1

    def begin(self, name, args):
        self.next_id += 1
        self.under_way[self.next_id] = [name, args, 0.0, 0]
        if self.log:
            self.log.write(["q", self.next_id, name, args])
        self.transmit(self.next_id)
        return self.next_id

    def again(self):
        """A new connection, and everything under way once more, in order."""
        self.reopen()
        for id in sorted(self.under_way):
            self.transmit(id)

    def poll(self, timeout):
        """[(id, name, args, Reply, frames)] of what was answered. done() must follow for each."""
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

    def ask(self, name, args, patience=20.0):
        """One request, answered: (Reply, frames)."""
        id, end = self.begin(name, args), time.monotonic() + patience
        while time.monotonic() < end:
            for got, _, _, reply, frames in self.poll(0.05):
                self.done(got)
                if got == id:
                    return reply, frames
        raise TimeoutError("no answer to %s %s within %g s" % (name, args, patience))
