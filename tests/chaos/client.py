"""A client that is answered, whatever happens: it sends a request again with its id until there is an answer, and it
knows after its own kill -9 what was under way. See PROTOCOL.md, sections 2 and 16."""

import random
import time

import zmq

import keys
from generated import pb

AGAIN = (5, 11, 12)  # RESOURCE_EXHAUSTED, CANCELLED by a broker that stops, UNAVAILABLE
PATIENCE = 0.35      # seconds before a request is sent again over a new connection


class Client:
    """kind: REQ, RELAXED, DEALER or DELIMITED. make(name, args) gives the body and the payload of a request; args are
    plain values, so that they can be logged."""

    def __init__(self, endpoint, kind, shared, make, log=None, patience=PATIENCE):
        self.endpoint, self.kind, self.shared, self.make, self.log = endpoint, kind, shared, make, log
        self.patience = patience
        self.random = random.Random()
        self.context = zmq.Context.instance()
        self.number, self.next_id, self.under_way, self.socket = 0, 0, {}, None
        self.recover()
        self.open()

    def recover(self):
        for record in self.log.old if self.log else ():
            if record[0] == "c":
                self.number = record[1]
            elif record[0] == "q":
                self.next_id = max(self.next_id, record[1])
                self.under_way[record[1]] = [record[2], record[3], 0.0, 1]
            elif record[0] == "a":
                self.under_way.pop(record[1], None)
        if not self.number:
            self.number = random.SystemRandom().getrandbits(63) + 1
            if self.log:
                self.log.write(["c", self.number])

    def open(self):
        if self.socket is not None:
            self.socket.close(0)
        self.socket = self.context.socket(zmq.DEALER if self.kind in ("DEALER", "DELIMITED") else zmq.REQ)
        self.socket.linger = 0
        keys.secure(self.socket)
        self.socket.setsockopt(zmq.RECONNECT_IVL, 20)
        if self.kind == "RELAXED":
            self.socket.setsockopt(zmq.REQ_RELAXED, 1)
            self.socket.setsockopt(zmq.REQ_CORRELATE, 1)
        self.socket.connect(self.endpoint)
        self.generation = self.shared.generation

    def settled(self):
        """The answers to all requests up to this id were read and are in the log."""
        return min(self.under_way, default=self.next_id + 1) - 1

    def transmit(self, id):
        name, args = self.under_way[id][:2]
        body, payload = self.make(name, args)
        request = pb.Request(version=1, id=id, client=self.number, settled=min(self.settled(), id - 1))
        getattr(request, name).CopyFrom(body)
        frames = [request.SerializeToString(), *payload]
        if self.kind == "DELIMITED":
            frames.insert(0, b"")
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
        self.open()
        for id in sorted(self.under_way):
            self.transmit(id)

    def poll(self, timeout):
        """[(id, name, args, Reply, frames)] of what was answered. done() must follow for each."""
        answers, seen, wait = [], set(), timeout
        while self.socket.poll(int(wait * 1000)):
            frames = self.socket.recv_multipart()
            if self.kind == "DELIMITED":
                frames.pop(0)
            reply = pb.Reply.FromString(frames[0])
            known = self.under_way.get(reply.id)
            if known is not None and reply.id not in seen:
                if reply.status in AGAIN:
                    known[2] = min(known[2], time.monotonic() - self.patience + 0.05)
                else:
                    seen.add(reply.id)
                    answers.append((reply.id, known[0], known[1], reply, frames[1:]))
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
