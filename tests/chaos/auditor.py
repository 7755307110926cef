"""Compares the ledger with what a broker holds, while nothing moves. A process of its own, which keeps the ledger."""

import learner
from client import Client
from ledger import Ledger
from scene import TABLES, Follower, check_fields, value_of

PAGE = 2000


class Auditor:
    def __init__(self, scene):
        self.scene, self.ledger, self.logs, self.client = scene, Ledger(), {}, None
        self.spilled = self.fetched = 0
        self.state = self.before = {}   # what a restart must bring back, at this audit and at the one before

    def follow(self):
        """Writers first: what others sampled was sent before."""
        paths = (self.scene.folder / "logs").glob("*.log")
        for path in sorted(paths, key=lambda p: (not p.name.startswith("writer"), p.name)):
            follower, state = self.logs.setdefault(path.name, (Follower(path), {}))
            for record in follower.read():
                self.ledger.read(path.stem, state, record)

    def connect(self):
        self.client = Client(self.scene.endpoints(0, direct=True)[0], "DEALER", self.scene.shared, patience=4.0)

    def ask(self, name, /, **fields):
        reply, frames = self.client.ask(name, **fields)
        if reply.status not in (0, 2):
            raise RuntimeError("%s %s: status %d: %s" % (name, fields, reply.status, reply.text))
        return reply, frames

    def items(self, table):
        found, cursor = [], 0
        while True:
            page = self.ask("list", table=table, cursor=cursor, limit=PAGE)[0].list
            # Ages are as of this page: they give the order of insertion within it.
            found += sorted(page.items, key=lambda i: -i.age_ns)
            cursor = page.cursor
            if cursor == 0:
                break
        # The books have no place for these; they must be the same after a restart, and so must the order of insertion.
        self.state[table] = [(i.key, i.session, i.chunks, i.bytes, i.episode) for i in found]
        return [(i.key, i.priority, i.times_sampled, i.step, i.length, i.policy) for i in found]

    def slot(self, name):
        reply, frames = self.ask("params_get", name=[name], have=[0], timeout_ms=0)
        if not reply.params.slots:
            return None
        seed = int.from_bytes(frames[0][:8], "little")
        whole = frames[0] == value_of(seed, len(frames[0]))
        return reply.params.slots[0].version, seed if whole else -1, len(frames[0])

    def sessions(self):
        found, cursor = {}, 0
        while True:
            info = self.ask("info", sessions=True, session_cursor=cursor)[0].info
            for s in info.sessions:
                found["session " + s.name] = (s.session, s.ordinal, s.rejected,
                                              {t.table: t.resolved for t in s.tables if t.resolved})
            cursor = info.session_cursor
            if cursor == 0:
                return found

    def snapshot(self):
        self.before, self.state = self.state, self.sessions()
        info = self.ask("info")[0].info
        self.spilled = max(self.spilled, info.disk.spilled_chunks)
        self.fetched += info.disk.fetched_chunks
        tables = {}
        for t in info.tables:
            # A chunk that was moved while some items of a checkpoint named its old place comes back as two.
            self.state["table " + t.name] = (t.limiter.cursor, t.limiter.min_diff, t.limiter.max_diff,
                                             "moved" if self.scene.spills else t.bytes)
            tables[t.name] = {"items": self.items(t.name), "size": t.size, "inserts": t.limiter.inserts,
                              "samples": t.limiter.samples, "deletes": t.limiter.deletes}
        names = [name.removeprefix("session ") for name in self.state if name.startswith("session ")]
        return {"tables": tables, "sessions": names, "counters": {c.name: c.value for c in info.counters},
                "slots": {s.name: self.slot(s.name) for s in info.slots}}

    def compare_bytes(self, snapshot, most):
        """Fetches the newest items of each table and compares every byte."""
        found = []
        for table in TABLES:
            keys = [row[0] for row in snapshot["tables"][table.name]["items"]][-most:]
            for i in range(0, len(keys), 500):
                reply, frames = self.ask("fetch", table=table.name, key=keys[i:i + 500])
                got = 0
                try:
                    for item in learner.decode(reply.sample, frames, raw=True):
                        check_fields(item)
                        got += 1
                except (ValueError, KeyError, IndexError) as error:
                    found.append("table %s: %s" % (table.name, error))
                    break
                if got != len(keys[i:i + 500]) and not reply.sample.partial:
                    found.append("table %s: %d of %d listed items could be fetched" % (table.name, got, len(keys)))
        return found

    def same(self):
        """What the last restart has changed although nothing had happened."""
        found = []
        for name in sorted(set(self.before) | set(self.state)):
            before, now = self.before.get(name), self.state.get(name)
            if isinstance(before, list) and isinstance(now, list) and before != now:
                at = next((i for i, (a, b) in enumerate(zip(before, now)) if a != b), min(len(before), len(now)))
                name += " (key, session, chunks, bytes, episode) by age, from item %d on," % at
                before, now = before[at:at + 2], now[at:at + 2]
            if before != now:
                found.append("%s was %s, is %s" % (name, before, now))
        return found

    def audit(self, bytes_of=2000, restarted=False):
        self.follow()
        self.connect()
        try:
            snapshot = self.snapshot()
            found = self.ledger.check(snapshot) + self.compare_bytes(snapshot, bytes_of)
            return found + self.same() if restarted else found
        finally:
            self.client.socket.close(0)

    def why(self):
        """What the broker says that it waits for."""
        self.connect()
        lines = ["%s %s %s: %s" % (w.who, w.kind, w.table, w.text) for w in self.ask("why")[0].why.waits]
        info = self.ask("info")[0].info
        for t in info.tables:
            lines.append("%s: size %d, %s %s" % (t.name, t.size, t.limiter.inserts_wait, t.limiter.samples_wait))
        return lines + [str(info.disk)]

    def reset(self, table):
        self.connect()
        self.ask("reset", table=table)
        self.ledger.reset(table)

    def serve(self, pipe):
        """Answers commands until the other end is closed."""
        while True:
            try:
                command, args = pipe.recv()
            except EOFError:
                return
            try:
                pipe.send(("ok", getattr(self, command)(*args)))
            except Exception as error:   # told to the conductor, which ends the run
                pipe.send(("error", "%s: %r" % (command, error)))

    def totals(self):
        self.follow()
        ledger = self.ledger
        return {"acknowledged": ledger.acknowledged, "operations": ledger.operations,
                "rejected": sum(b.rejected for b in ledger.books.values()),
                "samples": sum(b.samples for b in ledger.books.values()),
                "in doubt": sum(not i.accepted and not i.bad for b in ledger.books.values() for i in b.items.values()),
                "spilled": self.spilled, "read back": self.fetched,
                "sessions": len({uid for b in ledger.books.values() for uid in b.sent})}
