"""Those who sample, update priorities, delete, put parameters and count. Each is replaced after a kill -9 by a
successor that repeats what was under way, with the same client number and the same ids."""

import random
import time

import learner
from client import Client
from scene import BY_NAME, RUN, SETTLE, STOP, Log, check_fields

DEADLINE_EXCEEDED = 4
MAY_FAIL = ("hello", "cancel", "list", "checkpoint")   # a full disk, or a checkpoint under way for too long, is an answer


class Actor:
    """The loop that all of them have in common."""

    def __init__(self, scene, index, name, kind, depth, incarnation):
        self.scene, self.shared, self.index, self.name, self.depth = scene, scene.shared, index, name, depth
        self.random = random.Random("%s-%s-%d" % (scene.seed, name, incarnation))
        self.log = Log(scene.folder / "logs" / (name + ".log"))
        self.log.write(["k", kind, depth])
        self.client = Client(scene.endpoints(index)[0], kind, self.shared, self.log)
        self.next_at = 0.0

    def complain(self, text):
        self.scene.complain("%s: %s" % (self.name, text))

    def run(self):
        while self.shared.phase != STOP:
            state = self.shared.state
            phase = state & 3
            if self.shared.cut[self.index]:
                self.shared.cut[self.index] = 0
                self.client.cut()
            for id, name, args, reply, frames in self.client.poll(0.01):
                record = self.answered(id, name, args, reply, frames)
                if record is None:
                    self.client.transmit(id)
                    continue
                self.client.done(id, *record)
                self.shared.done[self.index] += 1
            if phase < SETTLE:
                if len(self.client.under_way) < self.depth and time.monotonic() >= self.next_at:
                    self.next(phase)
            elif not self.client.under_way:
                self.finish()
                self.shared.idle[self.index] = state

    def answered(self, id, name, args, reply, frames):
        """What the log says of an answer; None: the request is to be sent again."""
        if reply.status:
            if name not in MAY_FAIL and (name, reply.status) != ("sample", DEADLINE_EXCEEDED):
                self.complain("%s %s: status %d: %s" % (name, args.get("table", ""), reply.status, reply.text))
            return [reply.status]
        more = getattr(self, "on_" + name, lambda *_: [])(id, args, reply, frames)
        return None if more is None else [0, *more]

    def finish(self):
        """Nothing is under way. Tables may be reset while all are idle."""


class Sampler(Actor):
    """plan: {table: [counts]}; updates: {table: (modulus, rest)} of the keys whose priorities are this one's to set."""

    def __init__(self, scene, index, name, kind, depth, incarnation, plan, updates, pause=0.004):
        super().__init__(scene, index, name, kind, depth, incarnation)
        self.plan, self.updates, self.pause = plan, updates, pause
        self.wishes = {table: {} for table in updates}
        self.arena, self.arena_of, self.overtaken = None, -1, 0
        # Where items leave when they are sampled, a cancelled request has nothing, or brings what it has.
        self.cancels = depth > 1 and all(BY_NAME[table].times for table in plan)

    def next(self, phase):
        """An update if there is none under way (the order of two would not be sure), or else a sample."""
        self.next_at = time.monotonic() + self.pause * self.random.uniform(0.2, 1.8)
        if not any(entry[0] == "update" for entry in self.client.under_way.values()):
            for table, wishes in self.wishes.items():
                if len(wishes) > 20:
                    return self.update(table)
        waiting = [id for id, entry in self.client.under_way.items() if entry[0] == "sample"]
        if self.cancels and waiting and self.random.random() < 0.05:
            return self.client.begin("cancel", id=waiting)
        if self.arena_of != self.shared.generation:
            self.arena_of = self.shared.generation
            return self.client.begin("hello")
        table = self.random.choice(list(self.plan))
        how = "whole" if BY_NAME[table].whole else self.random.choice(["", "", "flexible", "flexible", "whole"])
        more = {"shared": 3} if self.arena and self.random.random() < 0.8 else {}
        more.update({how: True} if how else {})
        self.client.begin("sample", table=table, count=self.random.choice(self.plan[table]),
                          timeout_ms=self.random.choice([0, 30, 200]) if phase == RUN else 20, **more)

    def update(self, table):
        keys = list(self.wishes[table])[:200]
        self.client.begin("update", table=table, key=keys, priority=[self.wishes[table].pop(k) for k in keys])

    def finish(self):
        for wishes in self.wishes.values():
            wishes.clear()

    def on_hello(self, id, args, reply, frames):
        """The memory of the broker that has just started. Samples of the one before it are asked for again."""
        try:
            self.arena = learner.Arena(reply.hello)
        except OSError:
            self.arena = None   # it was killed meanwhile
        return []

    def on_sample(self, id, args, reply, frames):
        table, count, whole = args["table"], args["count"], args.get("whole")
        rows, sampled = [], reply.sample
        try:
            sampled = learner.whole(reply.sample, self.arena)
            for item in learner.decode(sampled, frames, raw=True, arena=self.arena):
                uid, step = check_fields(item)
                rows.append([item.key, uid, step, item.length, item.times_sampled])
        except learner.Overtaken:
            args.pop("shared", None)
            self.overtaken += 1
            return None
        except (ValueError, KeyError, IndexError) as error:
            self.complain("a sample of %s: %r" % (table, error))
        if len(rows) > count:
            self.complain("%d items of %s came where %d were asked for" % (len(rows), table, count))
        if table in self.updates:
            modulus, rest = self.updates[table]
            for row in rows:
                if row[0] % modulus == rest:
                    self.wishes[table][row[0]] = self.random.random() + 1e-6
        # Asked again when all its items had left the table, a sample is a new one, and counted once more.
        again = self.client.under_way[id][3] - 1 if whole else 0
        overtaken, self.overtaken = self.overtaken, 0
        return [count if whole else len(rows), rows, again * count, len(sampled.place), overtaken]

    def on_update(self, id, args, reply, frames):
        table = BY_NAME[args["table"]]
        if reply.change.refused:
            self.complain("%d updates of %s were refused" % (reply.change.refused, table.name))
        if table.keeps == "all" and not table.deletes and reply.change.missing:
            self.complain("%d of %d sampled items of %s are missing" % (reply.change.missing, len(args["key"]), table.name))
        return []


class Clerk(Actor):
    """Parameters, counters, checkpoints, and deletes."""

    def __init__(self, scene, index, name, kind, depth, incarnation, deletes):
        super().__init__(scene, index, name, kind, depth, incarnation)
        self.deletes, self.cursor, self.found = deletes, 0, []
        self.gone = {key for record in self.log.old if record[0] == "q" and record[2] == "delete"
                     for key in record[3]["key"]}

    def next(self, phase):
        self.next_at = time.monotonic() + self.random.uniform(0.002, 0.03)
        what = self.random.random()
        if what < 0.4:
            self.client.begin("counter", name="count-%d" % self.random.randrange(2), add=self.random.randint(-3, 9))
        elif what < 0.7:
            self.client.begin("params_put", name="slot-%d" % self.random.randrange(2),
                              value=[self.random.getrandbits(40), 8 * self.random.choice([1, 100, 5000])])
        elif what < 0.71 and phase == RUN:
            self.client.begin("checkpoint", timeout_ms=2000, start_only=self.random.random() < 0.5)
        elif self.deletes and self.found:
            keys = self.random.sample(self.found, min(len(self.found), self.random.randint(1, 8)))
            self.found = []
            self.gone.update(keys)
            self.client.begin("delete", table=self.deletes, key=keys)
        elif self.deletes:
            self.client.begin("list", table=self.deletes, cursor=self.cursor, limit=40)

    def finish(self):
        self.found = []

    def on_counter(self, id, args, reply, frames):
        return [reply.counter.value]

    def on_params_put(self, id, args, reply, frames):
        return [reply.params.slots[0].version]

    def on_checkpoint(self, id, args, reply, frames):
        return [reply.checkpoint.number]

    def on_list(self, id, args, reply, frames):
        self.cursor = reply.list.cursor
        self.found = [item.key for item in reply.list.items if item.key not in self.gone]
        return []
