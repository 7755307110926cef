"""The service socket: requests and replies, over REQ or DEALER. See PROTOCOL.md, "Sockets and envelope"."""

import random
import time

import zmq

from generated import pb

VERSION = 1
AGAIN = (5, 11, 12)   # RESOURCE_EXHAUSTED, CANCELLED (the broker shuts down), UNAVAILABLE: worth the same request again


class ReplayError(Exception):
    """A reply with a status other than 0."""

    def __init__(self, reply):
        super().__init__("status %d: %s" % (reply.status, reply.text))
        self.status, self.text, self.reply = reply.status, reply.text, reply


class NoAnswer(Exception):
    """Nothing came in time. The request may be sent again with the same id."""


class Service:
    """kind: "REQ", "RELAXED" (REQ with REQ_RELAXED and REQ_CORRELATE), "DEALER", or "DELIMITED" (a DEALER that sends
    an empty frame first, as REQ does)."""

    def __init__(self, endpoint, kind="DEALER", context=None):
        self.endpoint, self.kind = endpoint, kind
        self.context = context or zmq.Context.instance()
        self.client = random.getrandbits(64) or 1
        self.next_id = 0
        self.notices = []   # Credit messages that came by themselves
        self.early = {}     # replies read while another was waited for
        self.sampling = set()   # ids of samples whose replies were not read
        self.socket = None
        self.open()

    def open(self):
        self.socket = self.context.socket(zmq.DEALER if self.kind in ("DEALER", "DELIMITED") else zmq.REQ)
        self.socket.linger = 0
        if self.kind == "RELAXED":
            self.socket.setsockopt(zmq.REQ_RELAXED, 1)
            self.socket.setsockopt(zmq.REQ_CORRELATE, 1)
        self.prepare()
        self.socket.connect(self.endpoint)

    def prepare(self):
        """Sets what the socket needs before it connects."""

    def close(self):
        self.socket.close()

    def reopen(self):
        """A new connection for the same client: (client, id) still names the same requests."""
        self.close()
        self.early.clear()
        self.open()

    def send(self, name, body, payload=(), id=None):
        """Sends a request and gives its id; `name` is the member of Request.body, and the body a message, or a dict of its fields."""
        if id is None:
            self.next_id += 1
            id = self.next_id
        if name == "sample":
            self.sampling.add(id)
        self.socket.send_multipart(self.frames(name, body, payload, id, self.settled()))
        return id

    def frames(self, name, body, payload, id, settled):
        request = pb.Request(version=VERSION, id=id, client=self.client, settled=settled, **{name: body})
        return [b""] * (self.kind == "DELIMITED") + [request.SerializeToString(), *payload]

    def settled(self):
        """Up to this id all replies to samples were read, or are not wanted."""
        return min(self.sampling) - 1 if self.sampling else self.next_id

    def give_up(self, id):
        """The reply is not wanted any more, and the request will not be sent again."""
        self.sampling.discard(id)

    def receive(self, timeout):
        """The next message, whatever it answers: (Reply, payload frames), or None."""
        if not self.socket.poll(max(0, int(timeout * 1000))):
            return None
        frames = self.socket.recv_multipart()
        if self.kind == "DELIMITED":
            assert frames.pop(0) == b"", "a delimiter was sent, so one must come back"
        return pb.Reply.FromString(frames[0]), frames[1:]

    def take_notices(self, timeout=0):
        """Reads what is there; replies are kept for wait()."""
        while True:
            got = self.receive(timeout)
            if got is None:
                break
            self._sort(got)
            timeout = 0
        notices, self.notices = self.notices, []
        return notices

    def _sort(self, got):
        reply = got[0]
        if reply.id == 0 and reply.status == 0:
            self.notices.append(reply.credit)
        else:
            self.early[reply.id] = got

    def wait(self, id, timeout=60.0, check=True):
        """The reply to request `id`: (Reply, payload frames). With check, a status other than 0 is raised."""
        end = time.monotonic() + timeout
        while id not in self.early:
            got = self.receive(end - time.monotonic())
            if got is None:
                raise NoAnswer("no answer to request %d within %.1f s" % (id, timeout))
            self._sort(got)
        reply, frames = self.early.pop(id)
        if reply.status not in AGAIN:
            self.sampling.discard(id)
        if check and reply.status != 0:
            raise ReplayError(reply)
        return reply, frames

    def ask(self, name, body, payload=(), timeout=60.0, check=True):
        return self.wait(self.send(name, body, payload), timeout, check)

    # The requests that need no more than one line each.

    def info(self, table="", sessions=False):
        return self.ask("info", pb.Info(table=table, sessions=sessions))[0].info

    def table(self, name):
        return self.info(name).tables[0]

    def update(self, table, keys, priorities):
        return self.ask("update", pb.Update(table=table, key=keys, priority=priorities))[0].change

    def delete(self, table, keys):
        return self.ask("delete", pb.Delete(table=table, key=keys))[0].change

    def reset(self, table):
        return self.ask("reset", pb.Reset(table=table))[0].change

    def counter(self, name, add=0):
        return self.ask("counter", pb.Counter(name=name, add=add))[0].counter.value

    def put(self, name, data):
        return self.ask("params_put", pb.ParamsPut(name=name), [data])[0].params.slots[0].version

    def get(self, names, have=None, timeout_ms=0):
        """[(SlotInfo, bytes)] of every slot that is newer than what we have."""
        body = pb.ParamsGet(name=names, have=have or [0] * len(names))
        if timeout_ms is not None:
            body.timeout_ms = timeout_ms
        reply, frames = self.ask("params_get", body, timeout=60.0 + (timeout_ms or 0) / 1000)
        return list(zip(reply.params.slots, frames))
