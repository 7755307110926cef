"""A hostile learner against two real shards with journals: huge and endless permits, storms of retries, kill -9 between charge and answer.
The limiter has charged what clients were told, once, and its cursor stays within its bounds."""

import random
import time

import blocks
from actor import Actor
from generated import pb
from harness import Broker, check, children, equal, kill, run_tests, state_of
from service import Service

INVALID_ARGUMENT, NOT_FOUND, DEADLINE_EXCEEDED, CANCELLED = 1, 2, 4, 11
MOST = 1 << 24
TABLES = """
shards: 2
folder: FOLDER/journal
tables:
  - {name: wide, sampler: {kind: uniform}, limiter: {kind: sample_to_insert_ratio, samples_per_insert: 2, min_size: 4, error_buffer: 200000}}
"""
COLUMNS, FIELDS = [pb.Column(name="x", dtype="int32")], [pb.Field(name="x", column=0)]


class World:
    def __init__(self):
        self.broker = Broker(TABLES)
        ends = self.broker.endpoints
        self.endpoints = [ends["service"], ends["shard.1.service"]]
        self.services = [Service(e) for e in self.endpoints]
        self.actors = [Actor(Service(e), COLUMNS) for e in self.endpoints]
        self.layout = [a.layout("wide", FIELDS) for a in self.actors][0]

    def insert(self, shard, n):
        actor = self.actors[shard]
        for i in range(n):
            actor.item(self.layout, actor.chunk([blocks.pack(COLUMNS[0], [i])], 1), 0, 1)
        check(actor.send() and actor.wait_until(lambda: actor.unresolved() == 0, 30), "items are in the table")

    def limiter(self, shard, table):
        return self.services[shard].ask("info", pb.Info(table=table), timeout=30)[0].info.tables[0].limiter

    def kill(self, shard):
        """kill -9 of a shard, which its parent starts again."""
        kill(next(pid for pid in children(self.broker.process.pid) if state_of(pid)[0] == "replay-shard-%d" % shard))

    def stop(self):
        status = self.broker.stop()
        self.broker.remove()
        return status


def in_bounds(limiter):
    check(limiter.min_diff <= limiter.cursor <= limiter.max_diff, "the cursor is outside of its bounds:", limiter)


def permit(service, table, count, id=None, **options):
    return service.send("permit", pb.Permit(table=table, count=count, **options), id=id)


def test_numbers_at_their_limits(world):
    service = Service(world.endpoints[0])
    before = world.limiter(0, "wide").samples
    world.insert(0, 4)
    room = service.ask("permit", pb.Permit(table="wide"))[0].permit.room
    for count in (MOST + 1, (1 << 32) - 1):
        equal(service.wait(permit(service, "wide", count, timeout_ms=0), check=False)[0].status, INVALID_ARGUMENT)
    equal(service.wait(permit(service, "w" * 60000, 1), check=False)[0].status, NOT_FOUND)
    equal(service.ask("permit", pb.Permit(table="wide", count=MOST, flexible=True, timeout_ms=(1 << 64) - 1))[0].permit.granted, room)
    endless = permit(service, "wide", MOST, timeout_ms=(1 << 63) - 1)
    equal(service.wait(permit(service, "wide", 1, timeout_ms=0), check=False)[0].status, DEADLINE_EXCEEDED)
    equal(service.ask("cancel", pb.Cancel(id=[endless]))[0].change.applied, 1)
    equal(service.wait(endless, check=False)[0].status, CANCELLED)
    equal(world.limiter(0, "wide").samples, before + room)


def test_a_kill_between_charge_and_answer(world):
    """Many clients, each with two connections that send the same permits, while the shard is killed again and again."""
    rng, table, shard = random.Random(3), "wide", 1
    world.insert(shard, 4)
    before, granted, instances = world.limiter(shard, table).samples, {}, set()
    pairs = [[Service(world.endpoints[shard]) for _ in range(2)] for _ in range(4)]
    for pair in pairs:
        pair[1].client = pair[0].client
    asked = {}   # (client, id) -> (pair, count), until it is answered

    def read(seconds):
        end = time.monotonic() + seconds
        while asked and time.monotonic() < end:
            for service in [s for pair in pairs for s in pair]:
                while (got := service.receive(0.001)):
                    reply, name = got[0], (service.client, got[0].id)
                    if reply.status != 0:   # not granted: asked for again below
                        check(reply.status == CANCELLED, reply)
                        continue
                    equal(granted.setdefault(name, reply.permit.granted), reply.permit.granted, "a retry gets the same answer")
                    asked.pop(name, None)

    for round in range(4):
        for pair in pairs:
            for _ in range(60):
                count, first = rng.randrange(1, 9), rng.choice(pair)
                id = pair[0].next_id = pair[1].next_id = pair[0].next_id + 1
                asked[first.client, id] = pair, count
                for service in pair if rng.random() < 0.3 else [first]:
                    permit(service, table, count, id=id, timeout_ms=0)
        if round < 3:
            read(rng.random() * 0.004)
            world.kill(shard)
        end = time.monotonic() + 60
        while asked and time.monotonic() < end:
            read(0.3)
            for service in [s for pair in pairs for s in pair] if asked else []:
                service.reopen()
            for (_, id), (pair, count) in asked.items():
                permit(rng.choice(pair), table, count, id=id, timeout_ms=0)
        equal(len(asked), 0, "all permits were answered")
        world.services[shard].reopen()
        instances.add(world.services[shard].ask("hello", pb.Hello(), timeout=30)[0].hello.instance)
        limiter = world.limiter(shard, table)
        in_bounds(limiter)
        equal(limiter.samples - before, sum(granted.values()), "what was charged is what clients were told")
    equal(len(instances), 3)


def main():
    world = World()
    status = run_tests(world)
    if world.stop():
        print("FAIL  the broker did not end in order")
        status = 1
    return status
