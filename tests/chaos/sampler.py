"""Those who sample, update priorities, delete, put parameters and count. Each is replaced after a kill -9 by a
successor that repeats what was under way, with the same client number and the same ids."""

import random
import time

import learner
from client import Client
from bodies import make
from scene import BY_NAME, RUN, SETTLE, STOP, Log, check_fields

DEADLINE_EXCEEDED, NOT_FOUND = 4, 2


class Actor:
    """The loop that all of them have in common."""

    def __init__(self, scene, index, name, kind, depth, incarnation):
        self.scene, self.shared, self.index, self.name, self.depth = scene, scene.shared, index, name, depth
        self.random = random.Random("%s-%s-%d" % (scene.seed, name, incarnation))
        self.log = Log(scene.folder / "logs" / (name + ".log"))
        self.log.write(["k", kind, depth])
        self.client = Client(scene.endpoints(index)[0], kind, self.shared, make, self.log)
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
                record = getattr(self, "on_" + name)(id, args, reply, frames)
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
            return self.client.begin("cancel", [waiting])
        if self.arena_of != self.shared.generation:
            self.arena_of = self.shared.generation
            return self.client.begin("hello", [])
        table = self.random.choice(list(self.plan))
        flags = "w" if BY_NAME[table].whole else self.random.choice(["", "", "f", "f", "w"])
        flags += "s" if self.arena and self.random.random() < 0.8 else ""
        self.client.begin("sample", [table, self.random.choice(self.plan[table]), flags,
                                     self.random.choice([0, 30, 200]) if phase == RUN else 20])

    def update(self, table):
        keys = list(self.wishes[table])[:200]
        self.client.begin("update", [table, keys, [self.wishes[table].pop(k) for k in keys]])

    def finish(self):
        for wishes in self.wishes.values():
            wishes.clear()

    def on_hello(self, id, args, reply, frames):
        """The memory of the broker that has just started. Samples of the one before it are asked for again."""
        try:
            self.arena = learner.Arena(reply.hello)
        except OSError:
            self.arena = None   # it was killed meanwhile
        return [reply.status]

    def on_sample(self, id, args, reply, frames):
        table, count, flags, _ = args
        if reply.status == DEADLINE_EXCEEDED:
            return [reply.status]
        if reply.status:
            self.complain("a sample of %s: status %d: %s" % (table, reply.status, reply.text))
            return [reply.status]
        rows, sampled = [], reply.sample
        try:
            sampled = learner.whole(reply.sample, self.arena)
            for item in learner.decode(sampled, frames, raw=True, arena=self.arena):
                uid, step = check_fields(item)
                rows.append([item.key, uid, step, item.length, item.times_sampled])
        except learner.Overtaken:
            args[2] = flags.replace("s", "")
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
        again = self.client.under_way[id][3] - 1 if "w" in flags else 0
        overtaken, self.overtaken = self.overtaken, 0
        return [0, count if "w" in flags else len(rows), rows, again * count, len(sampled.place), overtaken]

    def on_cancel(self, id, args, reply, frames):
        return [reply.status]

    def on_update(self, id, args, reply, frames):
        if reply.status or reply.change.refused:
            self.complain("an update of %s: status %d: %s" % (args[0], reply.status, reply.text))
        if BY_NAME[args[0]].keeps == "all" and not BY_NAME[args[0]].deletes and reply.change.missing:
            self.complain("%d of %d sampled items of %s are missing" % (reply.change.missing, len(args[1]), args[0]))
        return [reply.status]


class Clerk(Actor):
    """Parameters, counters, checkpoints, and deletes."""

    def __init__(self, scene, index, name, kind, depth, incarnation, deletes):
        super().__init__(scene, index, name, kind, depth, incarnation)
        self.deletes, self.cursor, self.found = deletes, 0, []
        self.gone = {key for record in self.log.old if record[0] == "q" and record[2] == "delete"
                     for key in record[3][1]}
        self.value = 0

    def next(self, phase):
        self.next_at = time.monotonic() + self.random.uniform(0.002, 0.03)
        what = self.random.random()
        if what < 0.4:
            self.client.begin("counter", ["count-%d" % self.random.randrange(2), self.random.randint(-3, 9)])
        elif what < 0.7:
            self.client.begin("params_put", ["slot-%d" % self.random.randrange(2), self.random.getrandbits(40),
                                             8 * self.random.choice([1, 100, 5000])])
        elif what < 0.71 and phase == RUN and self.scene.journal:
            self.client.begin("checkpoint", [2000, self.random.random() < 0.5])
        elif self.deletes and self.found:
            keys = self.random.sample(self.found, min(len(self.found), self.random.randint(1, 8)))
            self.found = []
            self.gone.update(keys)
            self.client.begin("delete", [self.deletes, keys])
        elif self.deletes:
            self.client.begin("list", [self.deletes, self.cursor, 40])

    def finish(self):
        self.found = []

    def on_counter(self, id, args, reply, frames):
        if reply.status:
            self.complain("counter: status %d: %s" % (reply.status, reply.text))
        return [reply.status, reply.counter.value]

    def on_params_put(self, id, args, reply, frames):
        if reply.status:
            self.complain("params_put: status %d: %s" % (reply.status, reply.text))
            return [reply.status]
        return [0, reply.params.slots[0].version]

    def on_checkpoint(self, id, args, reply, frames):
        return [reply.status, reply.checkpoint.number]   # a full disk, or one under way for too long, is an answer

    def on_list(self, id, args, reply, frames):
        self.cursor = reply.list.cursor
        self.found = [item.key for item in reply.list.items if item.key not in self.gone]
        return [reply.status]

    def on_delete(self, id, args, reply, frames):
        if reply.status:
            self.complain("delete: status %d: %s" % (reply.status, reply.text))
        return [reply.status]
