"""The client in plain Python against three real shards. Proves that PROTOCOL.md, "Shards", is enough."""

import os
import random
import signal

import blocks
from generated import pb
from harness import Broker, check, children, equal, eventually, state_of
from service import Service
from shards import MASS, PERMITS, QUEUE, SILENT, ShardedActor, ShardedLearner, Shards

N = 3
RATIO, MIN_SIZE, BUFFER = 2, 9, 60

TABLES = """
memory_limit: 384MiB
session: {expiry: 6s}
tables:
  - name: replay
    max_size: 30000
    sampler: {kind: prioritized, exponent: 1.0}
    limiter: {kind: min_size, min_size: 6}
  - name: ratio
    max_size: 30000
    sampler: {kind: uniform}
    limiter: {kind: sample_to_insert_ratio, samples_per_insert: %d, min_size: %d, error_buffer: %d}
  - name: queue
    max_size: 300
    max_times_sampled: 1
    sampler: {kind: fifo}
    limiter: {kind: queue}
  - name: once
    max_size: 300
    max_times_sampled: 1
    sampler: {kind: uniform}
    limiter: {kind: min_size, min_size: 1}
""" % (RATIO, MIN_SIZE, BUFFER)

COLUMNS = [pb.Column(name="x", dtype="int32")]
FIELDS = [pb.Field(name="x", column=0)]


class World:
    """One replay-broker with three shards, each a process of its own."""

    def __init__(self):
        self.broker = Broker("shards: %d\n" % N + TABLES)
        ends = self.broker.endpoints
        self.endpoints = [ends["service"]] + [ends["shard.%d.service" % i] for i in range(1, N)]


def write(actor, layout, episodes, length=4, first=0, lane=None):
    """Episodes with an item for each step, whose x counts up. {key: x}"""
    keys = {}
    for episode in range(episodes):
        lane = lane or actor.next_lane()
        steps = range(first + episode * length, first + (episode + 1) * length)
        chunk = lane.chunk([blocks.pack(COLUMNS[0], list(steps))], length, episode=episode)
        for i, x in enumerate(steps):
            keys[lane.item(layout, chunk, i, 1)] = x
        check(lane.send(), "the credit is enough for these tests")
        lane = None
    return keys


def begin(world, table, shard=0):
    """(Shards, actor, learner) of an empty table, found through a shard."""
    shards = Shards(world.endpoints[shard])
    for service in shards.services:
        service.reset(table)
    return shards, ShardedActor(shards, COLUMNS), ShardedLearner(shards, table)


def chi_square(counts, wanted):
    return sum((counts.get(k, 0) - w) ** 2 / w for k, w in wanted.items())


def test_any_shard_names_all(world):
    for i, endpoint in enumerate(world.endpoints):
        hello = Service(endpoint).ask("hello", pb.Hello())[0].hello
        equal((hello.shard, list(hello.shards)), (i, world.endpoints))
        check(hello.settings != 0, "a hash of the settings")
        equal([s.endpoint for s in Shards(endpoint).services], world.endpoints)
    wrong = Shards(world.endpoints[0])
    wrong.services.reverse()
    try:
        wrong.check(0)
        raise AssertionError("shard 2 was taken for shard 0")
    except ValueError:
        pass


def test_picks_follow_the_mass_and_updates_go_to_the_owner(world):
    shards, actor, learner = begin(world, "replay", 2)
    equal(learner.deal, MASS)

    def told_by(service):   # it waits at none of the shards, and each tells of it for a second
        equal(learner.sample(4, timeout=0.05), [], "fewer than min_size items")
        waits = [w for w in service.ask("why", pb.Why())[0].why.waits if w.all_shards]
        return [(w.kind, w.table, w.count, "min_size is 6" in w.text) for w in waits] == [("sample", "replay", 4, True)]

    for service in shards.services:
        eventually(lambda: told_by(service), what="a sampler that waits for all shards")
    layout = actor.layout("replay", FIELDS)
    keys = write(actor, layout, 21)
    for lane in actor.lanes:
        keys.update(write(actor, layout, 1, lane=lane))
    check(actor.flush(), "all items are confirmed")
    actor.bye()  # its items stay; sampling may take longer than a session that is silent lasts
    sizes = [t.size for t in shards.tables("replay")]
    equal(sum(sizes), 96)
    check(all(size > 0 and size % 4 == 0 for size in sizes), "whole episodes at every shard, not", sizes)
    # Masses of about 3 : 1 : 1, and different priorities within a shard.
    priority = {key: (3.0 if key >> 56 == 0 else 1.0) * (1 + x % 3) for key, x in keys.items()}
    equal(shards.update("replay", list(priority) + [5], list(priority.values()) + [1.0]), (96, 1))
    learner.look()
    total, counts, n = sum(priority.values()), {}, 6000
    for _ in range(20):
        items = learner.sample(n // 20)
        equal(len(items), n // 20)
        for item in items:
            equal(item.fields["x"], [keys[item.key]])
            equal(item.shard, item.key >> 56)
            check(abs(item.probability - priority[item.key] / total) < 1e-9, item.probability, "of", item.key)
            counts[item.key] = counts.get(item.key, 0) + 1
    equal(learner.size(), 96)
    x2 = chi_square(counts, {key: n * p / total for key, p in priority.items()})
    check(x2 < 95 + 6 * (2 * 95) ** 0.5, "chi-square", x2, "with 95 degrees of freedom")
    some = random.sample(list(keys), 10)
    equal([item.key for item in shards.fetch("replay", some + [7])], some)
    equal(shards.delete("replay", some), 10)
    equal(shards.fetch("replay", some), [])


def check_ratio(shards, inserts, samples):
    tables = shards.tables("ratio")
    equal(sum(t.limiter.inserts for t in tables), inserts)
    equal(sum(t.limiter.samples for t in tables), samples)
    for t in tables:
        check(t.limiter.min_diff <= t.limiter.cursor <= t.limiter.max_diff, "the cursor of a shard is", t.limiter.cursor)
    cursor = sum(t.limiter.cursor for t in tables)
    equal(cursor, inserts * RATIO - samples)
    check(abs(cursor - MIN_SIZE * RATIO) <= BUFFER, "the sum of the cursors is", cursor)


def test_permits_keep_the_ratio_over_all(world):
    shards, actor, learner = begin(world, "ratio")
    equal((learner.deal, learner.states[0].min_size, learner.states[0].buffer), (PERMITS, MIN_SIZE // N, 2 * BUFFER / N))
    layout, samples, written = actor.layout("ratio", FIELDS), 0, 0
    for _ in range(12):
        written += len(write(actor, layout, 3))
        check(actor.flush(), "all items are confirmed")
        learner.look()
        while sum(state.room for state in learner.states):
            want = sum(state.room for state in learner.states)
            items = learner.sample(min(16, want))
            equal(len(items), min(16, want))
            samples += len(items)
        check_ratio(shards, written, samples + learner.stock)
    actor.bye()


def test_a_queue_gives_each_item_once(world):
    _, actor, learner = begin(world, "queue")
    equal(learner.deal, QUEUE)
    keys = write(actor, actor.layout("queue", FIELDS), 20)
    actor.flush()
    got = [item for _ in range(8) for item in learner.sample(10)]
    equal(sorted((item.key, item.fields["x"][0]) for item in got), sorted(keys.items()))
    equal(learner.sample(1, timeout=0.1), [])
    actor.bye()


def test_parameters_are_everywhere_and_counters_at_shard_0(world):
    shards = Shards(world.endpoints[1])
    versions = [shards.put("policy", b"%d" % i) for i in range(3)]
    check(versions == sorted(set(versions)), "versions go up:", versions)
    for service in shards.services:
        (slot, data), = service.get(["policy"])
        equal((slot.version, data), (versions[-1], b"2"))
    equal(shards.get(["policy"])[0][1], b"2")
    shards.services[1].ask("params_put", pb.ParamsPut(name="policy", version=versions[-1] + 9), [b"of a shard 0 that was"])
    equal(shards.put("policy", b"3"), versions[-1] + 10)
    value = shards.counter("steps", 5)
    equal((Shards(world.endpoints[2]).counter("steps"), shards.services[1].counter("steps")), (value, 0))


def test_a_silent_shard_loses_no_item_that_leaves_its_table(world):
    shards = Shards(world.endpoints[0])
    actor = ShardedActor(shards, COLUMNS)
    keys = write(actor, actor.layout("once", FIELDS), 40)
    check(actor.flush(), "all items are there")
    learner = ShardedLearner(shards, "once", silent=SILENT)
    check(learner.states[1].removes and not ShardedLearner(shards, "replay").states[1].removes, "tables say whether samples remove items")
    items = learner.sample(10)
    pid = next(pid for pid in children(world.broker.process.pid) if state_of(pid)[0] == "replay-shard-1")
    os.kill(pid, signal.SIGSTOP)
    while 1 not in learner.away:
        items += learner.sample(10)
    os.kill(pid, signal.SIGCONT)
    for _ in range(60):
        items += learner.sample(min(10, len(keys) - len(items)), timeout=1) if len(items) < len(keys) else []
    equal(sorted((item.key, item.fields["x"][0]) for item in items), sorted(keys.items()))
    actor.bye()
