"""Several brokers that are one: HELLO names them, a key names its owner. See PROTOCOL.md, "Shards".

Shards is a client of all of them, ShardedActor writes whole episodes to one of them at a time, ShardedLearner pays where there is
room and picks where there is mass.
"""

import random
import time

import learner
from actor import Actor
from generated import pb
from service import NoAnswer, ReplayError, Service

PERMITS, MASS, QUEUE = range(3)  # PermitReply.deal
DEADLINE_EXCEEDED, FAILED_PRECONDITION, CANCELLED, UNAVAILABLE = 4, 6, 11, 12
SILENT = 1.0    # seconds without an answer after which a shard is away
CHOOSE_MS = 50  # milliseconds that a permit waits at a shard before the choice is made again


class Shards:
    """A client of all shards, found through any of them. A broker without shards is its own only shard."""

    def __init__(self, endpoint, make=Service):
        """make: what gives the service of an endpoint."""
        first = make(endpoint)
        hello = first.ask("hello", pb.Hello())[0].hello
        first.close()
        host = endpoint.split("://")[1].rsplit(":", 1)[0]
        endpoints = [e.replace("tcp://*", "tcp://" + host, 1) for e in hello.shards] or [endpoint]
        self.settings, self.services = hello.settings, [make(e) for e in endpoints]
        for i in range(len(self.services)):
            self.check(i)

    def check(self, shard):
        """Whether the broker there is the shard that it should be. To be asked again after each reconnect."""
        hello = self.services[shard].ask("hello", pb.Hello())[0].hello
        is_it = hello.shard == shard and len(hello.shards) in (0, len(self.services)) and hello.settings == self.settings
        if not is_it:
            raise ValueError("%s is shard %d of %d with settings %x, and should be shard %d of %d with settings %x" % (
                self.services[shard].endpoint, hello.shard, len(hello.shards), hello.settings, shard, len(self.services),
                self.settings))

    @staticmethod
    def owner(key):
        return key >> 56

    def by_owner(self, keys, *arrays):
        """{shard: [keys, array...]}, each with the elements that belong to the shard."""
        out = {}
        for row in zip(keys, *arrays):
            parts = out.setdefault(self.owner(row[0]), [[] for _ in row])
            for part, value in zip(parts, row):
                part.append(value)
        return out

    def update(self, table, keys, priorities):
        """(applied, missing)"""
        changes = [self.services[s].update(table, *part) for s, part in self.by_owner(keys, priorities).items()]
        return sum(c.applied for c in changes), sum(c.missing for c in changes)

    def delete(self, table, keys):
        return sum(self.services[s].delete(table, part).applied for s, (part,) in self.by_owner(keys).items())

    def fetch(self, table, keys):
        """Items in the order of the keys; those that are not there are left out."""
        found = {}
        for s, (part,) in self.by_owner(keys).items():
            found.update((item.key, item) for item in learner.Learner(self.services[s]).fetch(table, part))
        return [found[key] for key in keys if key in found]

    def counter(self, name, add=0):
        """Counters live at shard 0, and so does reduce."""
        return self.services[0].counter(name, add)

    def put(self, name, data, away=()):
        """Shard 0 gives the version, all others get the block with it, but for those that are away: the next block is for them."""
        version = self._put(0, data, pb.ParamsPut(name=name))
        others = [s for s in range(1, len(self.services)) if s not in away]
        while True:
            newest = max([self._put(s, data, pb.ParamsPut(name=name, version=version)) for s in others], default=version)
            if newest == version:
                return version
            try:  # has shard 0 lost its count?
                version = self._put(0, data, pb.ParamsPut(name=name, version=version, above=newest))
            except ReplayError as error:
                if error.status != FAILED_PRECONDITION:
                    raise
                return version  # no: a later put was faster

    def _put(self, shard, data, body):
        return self.services[shard].ask("params_put", body, [data])[0].params.slots[0].version

    def get(self, names, **options):
        """Any shard has them: each client asks one of its own choice, so that all share the work."""
        return self.services[self.services[0].client % len(self.services)].get(names, **options)

    def tables(self, name):
        """What each shard says about a table: sizes, inserts, samples and the cursor are those of the sum."""
        return [service.table(name) for service in self.services]


class ShardedActor:
    """A session at each shard. An episode belongs to one of them: chunks and items of an episode are never split."""

    def __init__(self, shards, columns):
        self.lanes = [Actor(Service(service.endpoint), columns) for service in shards.services]

    def layout(self, table, fields):
        """The same number at all shards, because all are told of the same layouts in the same order."""
        return [lane.layout(table, fields) for lane in self.lanes][0]

    def next_lane(self):
        """Where the next episode goes: the better of two, by items that are not confirmed yet."""
        two = random.sample(self.lanes, min(2, len(self.lanes)))
        return min(two, key=lambda lane: lane.unresolved() + len(lane.new_items))

    def flush(self, timeout=60.0):
        """Whether all items are confirmed."""
        return all([lane.send(timeout) and lane.flush(timeout) for lane in self.lanes])

    def bye(self):
        for lane in self.lanes:
            lane.bye()


class ShardedLearner:
    def __init__(self, shards, table, rng=None, silent=30.0):
        """silent: seconds without an answer after which a shard is away. SILENT is right unless the machine is very busy."""
        self.shards, self.table, self.rng, self.silent = shards, table, rng or random.Random(), silent
        self.states = [pb.PermitReply() for _ in shards.services]
        self.away = {}      # shards that do not answer -> (name, body, id, when) of the request that looks for them
        self.stock = 0      # permits that were got and not used: they stay valid, also if their shard is away
        self.rows = []      # items that came beyond what was wanted, or late, and that exist nowhere else
        self.look()

    def ask_all(self, name, bodies):
        """Sends to several shards at once: {shard: (Reply, frames)}. A shard that is silent is away from now on."""
        ids = {s: self.shards.services[s].send(name, body) for s, body in bodies.items()}
        end, replies = time.monotonic() + self.silent, {}
        for s, id in ids.items():
            try:
                reply, frames = self.shards.services[s].wait(id, max(0.0, end - time.monotonic()), check=False)
            except NoAnswer:
                self.leave(s, name, bodies[s], id)
                continue
            if reply.status in (CANCELLED, UNAVAILABLE):
                self.leave(s, name, bodies[s], id)
            elif reply.status in (0, DEADLINE_EXCEEDED):
                replies[s] = reply, frames
            else:
                raise ReplayError(reply)
        return replies

    def leave(self, shard, name, body, id):
        """A shard is away: what it was asked for is drawn again elsewhere. But a permit may have been charged, and items may have
        left their table: such a request is sent again, with its id, until it is answered. Otherwise a question finds the shard again."""
        self.states[shard].mass = self.states[shard].room = 0
        given_up = name == "sample" and body.paid and not self.states[shard].removes
        if given_up:
            self.shards.services[shard].give_up(id)
        if given_up or name == "permit" and not body.count:
            name, body, id = "permit", pb.Permit(table=self.table), None
        self.away[shard] = name, body, id, 0.0

    def look_for_lost(self):
        """Takes what shards that were away have answered by now, without waiting for them."""
        for s, (name, body, id, asked) in list(self.away.items()):
            service = self.shards.services[s]
            try:
                reply, frames = service.wait(id, 0, check=False) if id else (None, None)
            except NoAnswer:
                reply = None
            if reply and reply.status in (0, DEADLINE_EXCEEDED):
                del self.away[s]
                self.shards.check(s)
                self.accept(s, reply, frames)
            elif time.monotonic() - asked > self.silent or reply:
                service.reopen()
                self.away[s] = name, body, service.send(name, body, id=id), time.monotonic()

    def accept(self, shard, reply, frames):
        """Takes a reply to a permit, or to a sample whose items exist nowhere else."""
        if reply.HasField("permit"):
            self.stock += reply.permit.granted
            self.states[shard] = reply.permit   # also with DEADLINE_EXCEEDED: then nothing is granted
        for item in learner.decode(reply.sample, frames) if reply.HasField("sample") else []:
            item.shard = shard
            self.rows.append(item)

    def look(self, wanted=0):
        """Asks all living shards for their state. wanted: items that are waited for because all shards together have too few."""
        self.look_for_lost()
        living = [self.states[s] for s in self.living()]
        sums = dict(wanted=wanted, size=sum(s.size for s in living), min_size=sum(s.min_size for s in living)) if wanted else {}
        for s, got in self.ask_all("permit", {s: pb.Permit(table=self.table, **sums) for s in self.living()}).items():
            self.accept(s, *got)

    def living(self):
        return [s for s in range(len(self.states)) if s not in self.away]

    @property
    def deal(self):
        return next((self.states[s].deal for s in self.living()), PERMITS)

    def get_permits(self, count):
        """One round: from shards with room what they have; if nobody has room, a permit waits at each for a moment."""
        asks, left, living = {}, count, self.living()
        for s in sorted(living, key=lambda s: -self.states[s].room):
            n = min(left, self.states[s].room)
            if n:
                asks[s], left = pb.Permit(table=self.table, count=n, flexible=True, timeout_ms=0), left - n
        if not asks:
            share = -(-count // max(1, len(living)))
            asks = {s: pb.Permit(table=self.table, count=share, flexible=True, timeout_ms=CHOOSE_MS) for s in living}
        for s, got in self.ask_all("permit", asks).items():
            self.accept(s, *got)

    def has_items(self):
        living = [self.states[s] for s in self.living()]
        enough = self.deal != MASS or sum(s.size for s in living) >= sum(s.min_size for s in living)
        return enough and sum(s.mass for s in living) > 0

    def pick(self, count):
        """Paid picks by mass. Draws again, over the shards that are left, what a shard does not give."""
        items, self.rows = self.rows[:count], self.rows[count:]
        while len(items) < count and self.has_items():
            total = sum(state.mass for state in self.states)
            shares = [state.mass / total for state in self.states]
            drawn = self.rng.choices(range(len(shares)), shares, k=count - len(items))
            asks = {s: pb.Sample(table=self.table, count=drawn.count(s), paid=True) for s in set(drawn)}
            for s, (reply, frames) in self.ask_all("sample", asks).items():
                self.states[s].mass, self.states[s].room = reply.sample.mass, reply.sample.room
                self.states[s].size = reply.sample.table_size
                for item in learner.decode(reply.sample, frames):
                    item.probability *= shares[s]   # the share that was used for the draw
                    item.shard = s
                    items.append(item)
        self.rng.shuffle(items)
        return items

    def take(self, count):
        """From queues: plain flexible samples, at shards that have items or else at all, for a moment."""
        self.look()
        where = [s for s in self.living() if self.states[s].size] or self.living()
        share = -(-count // max(1, len(where)))
        asks = {s: pb.Sample(table=self.table, count=share, flexible=True, timeout_ms=CHOOSE_MS) for s in where}
        for s, got in self.ask_all("sample", asks).items():
            self.accept(s, *got)

    def sample_queue(self, count):
        if len(self.rows) < count:
            self.take(count - len(self.rows))
        items, self.rows = self.rows[:count], self.rows[count:]
        return items

    def sample_paid(self, count):
        if not self.has_items() and not self.rows:
            self.look(count)
            time.sleep(0.01)
            return []
        if self.deal == MASS:
            return self.pick(count)
        if self.stock < count:
            self.get_permits(count - self.stock)
        items = self.pick(min(count, self.stock))
        self.stock -= len(items)
        return items

    def sample(self, count, timeout=60.0):
        """Up to `count` items: fewer only after the timeout. Permits that were not used are kept for the next call."""
        end, items = time.monotonic() + timeout, []
        while len(items) < count and time.monotonic() < end:
            self.look_for_lost()
            take = self.sample_queue if self.deal == QUEUE else self.sample_paid
            items += take(count - len(items))
        return items

    def size(self):
        """N of the importance weights: (N * probability)^-beta."""
        return sum(state.size for state in self.states)
