"""Replies that are lost: a sample that is asked for again with its id gets the same selection, and a queue loses nothing
between broker and learner. A client in plain Python against the real broker; see PROTOCOL.md, "Sample and fetch".

RP_TEST_SEED repeats a run. Arguments name the tests to run.
"""

import os
import random
import tempfile
import time

import blocks
import learner as learning
from actor import Actor
from generated import pb
from harness import Broker, check, contains, equal, eventually, test
from learner import Learner
from service import Service

OK, INVALID_ARGUMENT, FAILED_PRECONDITION, CANCELLED, UNAVAILABLE = 0, 1, 6, 11, 12
DISCONNECTS = 200

CONFIG = """
memory_limit: 256MiB
tables:
  - {name: uniform, max_size: 1000, sampler: {kind: uniform}, limiter: {kind: none}}
  - name: prioritized
    max_size: 1000
    sampler: {kind: prioritized, exponent: 0.6}
    limiter: {kind: none}
  - {name: queue, max_size: 64, max_times_sampled: 1, sampler: {kind: fifo}, limiter: {kind: queue}}
"""

COLUMNS = [pb.Column(name="x", dtype="int64")]
FIELDS = [pb.Field(name="x", column=0, count=1, squeeze=True)]


class World:
    def __init__(self):
        self.broker = Broker(CONFIG)
        self.watcher = self.service()
        self.layouts = {}

    def service(self):
        return Service(self.broker.endpoints["service"])

    def samples(self, table):
        return self.watcher.table(table).limiter.samples

    def write(self, actor, table, numbers):
        if (actor, table) not in self.layouts:
            self.layouts[actor, table] = actor.layout(table, FIELDS)
        for number in numbers:
            chunk = actor.chunk([blocks.pack(COLUMNS[0], [number])], 1)
            actor.item(self.layouts[actor, table], chunk, 0, 1, priority=number % 5 + 1)


def selection(reply):
    sampled = reply.sample
    return [list(a) for a in (sampled.key, sampled.priority, sampled.probability, sampled.times_sampled)]


def lose(world, service, table, body, count):
    """A sample whose reply is never read; gives its id once the broker has answered it."""
    before = world.samples(table)
    id = service.send("sample", body)
    eventually(lambda: world.samples(table) == before + count, what="the sample")
    service.reopen()
    return id


@test
def a_lost_reply_is_given_again(world):
    for table in ("uniform", "prioritized", "queue"):
        actor, service = Actor(world.service(), COLUMNS, "writer"), world.service()
        world.write(actor, table, range(40))
        check(actor.send() and actor.flush(), "not resolved")
        body = pb.Sample(table=table, count=10)
        id = lose(world, service, table, body, 10)
        counted = world.samples(table)
        answers = []
        for _ in range(3):  # and the retry's reply is lost, too
            service.send("sample", body, id=id)
            reply, frames = service.wait(id)
            service.sampling.add(id)
            answers.append((selection(reply), [i.fields["x"] for i in learning.decode(reply.sample, frames)]))
            check(not reply.sample.partial and reply.text == "", reply.text)
            if table == "prioritized":  # what happens meanwhile does not change it
                service.update(table, list(reply.sample.key), [0.5] * 10)
            service.reopen()
        equal(answers[1], answers[0], table)
        equal(answers[2], answers[0], table)
        equal(len(answers[0][0][0]), 10)
        equal(world.samples(table), counted, table)
        others, _ = service.ask("sample", body)
        equal(world.samples(table), counted + 10, table)
        if table == "queue":
            equal([x for x, in answers[0][1]], list(range(10)))
            check(not set(others.sample.key) & set(answers[0][0][0]), "an item of a queue was given twice")
        service.send("sample", pb.Sample(table=table, count=11), id=id)
        equal(service.wait(id, check=False)[0].status, INVALID_ARGUMENT)
        # What is settled is forgotten; a copy that comes late takes nothing.
        service.sampling.clear()
        service.info()
        reply, _ = service.wait(service.send("sample", body, id=id), check=False)
        equal(reply.status, FAILED_PRECONDITION, reply.text)
        contains(reply.text, str(id))
        equal(world.samples(table), counted + 10, table)
        service.sampling.clear()
        equal(len(service.ask("sample", body)[0].sample.key), 10)
        actor.bye()
        world.watcher.reset(table)


@test
def a_queue_loses_nothing_when_connections_break(world):
    seed = int(os.environ.get("RP_TEST_SEED", random.getrandbits(32)))
    print("RP_TEST_SEED=%d" % seed, flush=True)
    rng = random.Random(seed)
    actor, service = Actor(world.service(), COLUMNS, "writer"), world.service()
    written, given, asked, disconnects = 0, [], {}, 0
    end = time.monotonic() + 200
    while disconnects < DISCONNECTS or asked:
        check(time.monotonic() < end, "too slow:", disconnects, "disconnects")
        last = disconnects >= DISCONNECTS
        if len(asked) < 4 and not last:
            body = pb.Sample(table="queue", count=rng.randint(1, 6))
            asked[service.send("sample", body)] = body
        if len(actor.new_items) < 20:
            n = rng.randint(1, 8)
            world.write(actor, "queue", range(written, written + n))
            written += n
        actor.send(timeout=0)
        while True:
            got = service.receive(0.002 if last else rng.choice((0, 0, 0.001)))
            if got is None:
                break
            reply, frames = got
            if reply.id not in asked:
                continue
            equal(reply.status, OK, reply.text)
            given += [i.fields["x"][0] for i in learning.decode(reply.sample, frames)]
            del asked[reply.id]
            service.give_up(reply.id)
        if not last and rng.random() < 0.3:
            if rng.random() < 0.5:
                time.sleep(rng.random() * 0.004)
            service.reopen()
            disconnects += 1
            for id, body in asked.items():
                service.send("sample", body, id=id)
    equal(len(given), len(set(given)), "items given twice")
    limiter = world.watcher.table("queue").limiter
    equal(limiter.samples, len(given), "what the limiter counts")
    # Whatever was not given is still there, in order.
    check(actor.send(timeout=1) or actor.new_items, "no credit")
    rest, learner = [], Learner(world.service())
    while len(rest) < written - len(given):
        actor.send(timeout=0.01)
        rest += [i.fields["x"][0] for i in learner.sample("queue", 16, timeout_ms=2000, flexible=True)[1]]
    equal(sorted(given + rest), list(range(written)), "every item once")
    equal(rest, sorted(rest), "the order of the rest")
    equal(world.watcher.table("queue").orphaned_picks, 0)
    print("%d disconnects, %d items" % (disconnects, written), flush=True)
    actor.bye()


@test
def a_restarted_broker_gives_the_same_again(world):
    """With a journal: after kill -9, and after an orderly end."""
    with tempfile.TemporaryDirectory(prefix="replay-kept-") as folder:
        with Broker(CONFIG + "folder: %s\njournal: never\n" % folder) as broker:
            for kill in (True, False):
                service = Service(broker.endpoints["service"])
                watcher = Service(broker.endpoints["service"])
                actor = Actor(Service(broker.endpoints["service"]), COLUMNS, "writer")
                lost = {}
                for table in ("uniform", "queue"):
                    world.write(actor, table, range(20))
                check(actor.send() and actor.flush(), "not resolved")
                for table in ("uniform", "queue"):
                    body = pb.Sample(table=table, count=8)
                    first = service.ask("sample", body)[0]
                    service.sampling.add(first.id)
                    lost[table] = body, first.id, selection(first)
                size = watcher.table("queue").size
                waiting = service.send("sample", pb.Sample(table="queue", count=size + 3))
                eventually(lambda: watcher.table("queue").size == 0, what="picks")
                counted = watcher.table("queue").limiter.samples
                # The picks that wait are confirmed to nobody: only what is written survives the kill.
                eventually(lambda: watcher.info().disk.backlog_bytes == 0, what="the journal")
                if kill:
                    broker.kill()
                else:
                    equal(broker.stop(), 0)
                broker.start()
                for each in (service, watcher, actor.service):
                    each.endpoint = broker.endpoints["service"]
                    each.reopen()
                for table, (body, id, first) in lost.items():
                    service.send("sample", body, id=id)
                    reply, frames = service.wait(id)
                    equal(selection(reply), first, table)
                    equal(len(learning.decode(reply.sample, frames)), 8)
                equal(watcher.table("queue").limiter.samples, counted)
                service.send("sample", pb.Sample(table="queue", count=size + 3), id=waiting)
                service.info()
                late = Actor(Service(broker.endpoints["service"]), COLUMNS, "late")
                world.write(late, "queue", range(100, 103))
                check(late.send() and late.flush(), "not resolved")
                reply, frames = service.wait(waiting)
                equal([i.fields["x"][0] for i in learning.decode(reply.sample, frames)],
                      list(range(8, 20)) + [100, 101, 102])
                late.bye()
