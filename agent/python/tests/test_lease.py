"""Leases: what a worker has taken and not acknowledged returns, whoever dies."""
import random
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

import replaybus
from conftest import facts, insert_rows, killed, until


def queue(**more):
    return replaybus.Table.queue("jobs", 1000, **more)


def fill(client, first, n):
    insert_rows(client, "jobs", x=np.arange(first, first + n, dtype=np.int64))


def numbers(batch):
    return batch["x"].reshape(-1).tolist()


@pytest.mark.parametrize("shards", [1, 2])
def test_acknowledged_released_touched(shards):
    with replaybus.Server([queue()], shards=shards) as server, server.client(timeout=30) as client:
        fill(client, 0, 20)
        seen = []
        with client.sampler("jobs", 8, ack=True, lease=0.5, flexible=True) as sampler:
            first = sampler.next(10)
            seen += numbers(first)
            assert first.ack() == (len(first), 0, 0) and first.ack() == (0, len(first), 0)
            second = sampler.next(10)
            assert second.touch(60) == (len(second), 0, 0)
            third = sampler.next(10)
            assert third.release() == (len(third), 0, 0)
            assert facts(client, "jobs")["leased"] == len(second) and facts(client, "jobs")["returned"] == len(third)
            while len(seen) < 20 - len(second):
                with sampler.next(10) as batch:
                    seen += numbers(batch)
            time.sleep(0.6)  # longer than the lease was before the touch
            assert second.ack() == (len(second), 0, 0)
            assert sorted(seen + numbers(second)) == list(range(20))
        assert facts(client, "jobs")["size"] == facts(client, "jobs")["leased"] == 0


def test_an_exception_releases_and_time_returns():
    with replaybus.Server([queue(max_deliveries=3, dead_table="dead"), replaybus.Table("dead", limiter="none")]) as server, \
            server.client(timeout=30) as client, client.sampler("jobs", 1, ack=True, lease=0.2) as sampler:
        fill(client, 7, 1)
        with pytest.raises(ZeroDivisionError), sampler.next(10) as batch:
            numbers(batch)[0] / 0
        assert numbers(sampler.next(10)) == [7]
        late = sampler.next(10)  # after 0.2 s
        assert late.times_sampled.tolist() == [3]
        until(lambda: facts(client, "jobs")["dead"] == 1)
        assert late.ack() == (0, 1, 0)
        assert client.fetch("dead", late.key)["x"].reshape(-1).tolist() == [7]


def test_a_batch_without_a_lease_says_so(client):
    client.insert({"x": 1.0}, {"queue": 1.0, "uniform": 1.0})
    with pytest.raises(replaybus.FailedPrecondition, match="ack=True"):
        client.sample("queue", 1).ack()
    with pytest.raises(replaybus.FailedPrecondition, match="max_times_sampled: 1"), client.sampler("uniform", 1, ack=True) as sampler:
        sampler.next(10)
    with pytest.raises(replaybus.InvalidArgument, match="a day"):
        client.sampler("queue", 1, ack=True, lease=100000.0)


def test_two_queues_in_one_batch():
    tables = [queue(), replaybus.Table.queue("more", 100)]
    with replaybus.Server(tables) as server, server.client(timeout=30) as client:
        fill(client, 0, 4)
        insert_rows(client, "more", x=np.arange(100, 104, dtype=np.int64))
        with replaybus.Sampler([(client, "jobs", 0.5), (client, "more", 0.5)], 4, ack=True) as sampler:
            while facts(client, "jobs")["size"] and facts(client, "more")["size"]:
                batch = sampler.next(10)
                assert batch.ack().applied == len(batch)


def test_tensors():
    torch = pytest.importorskip("torch")
    from replaybus import torch as rt
    with replaybus.Server([queue()]) as server, server.client(timeout=30) as client:
        fill(client, 0, 8)
        with rt.Sampler(client, "jobs", 4, ack=True, lease=60) as sampler:
            batch = sampler.next(10)
            assert batch.touch(30).applied == 4 and batch.release().applied == 4
            with sampler.next(10) as batch:
                assert torch.equal(batch["x"].flatten(), torch.arange(4))
            assert sampler.next(10).to("cpu").ack().applied == 4
        assert facts(client, "jobs")["size"] == 0


def test_the_items_of_a_client_that_dies_return():
    with replaybus.Server([queue()]) as server, server.client(timeout=30) as client:
        fill(client, 0, 3)
        program = ("import replaybus, time\n"
                   f"sampler = replaybus.Client({server.endpoint!r}).sampler('jobs', 3, ack=True, lease=3600)\n"
                   "batch = sampler.next(30)\nprint(len(batch), flush=True)\ntime.sleep(600)\n")
        with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as worker:
            assert worker.stdout.readline() == b"3\n"
            with client.sampler("jobs", 3, ack=True) as sampler:
                with pytest.raises(replaybus.DeadlineExceeded, match="under lease, of which client [0-9a-f]{16} has 3"):
                    sampler.next(0.5)
                worker.kill()
                batch = sampler.next(30)
                assert numbers(batch) == [0, 1, 2] and batch.times_sampled.tolist() == [2, 2, 2]


@pytest.mark.parametrize("shards", [1, 2])
@pytest.mark.parametrize("limits", [(), (1, 1), (4, 3)])
def test_acknowledgements_leave_at_once(shards, limits):
    with replaybus.Server([queue()], shards=shards) as server, server.client(timeout=30) as client, \
            client.sampler("jobs", 16, ack=True, lease=3600, flexible=True) as sampler, client.updater("jobs", *limits, ack=True) as acks:
        fill(client, 0, 200)
        seen, first = [], None
        while len(seen) < 200:
            batch = sampler.next(10)
            first = first or batch
            seen += numbers(batch)
            acks.add(batch.key, timeout=10)
        assert sorted(seen) == list(range(200))
        until(lambda: facts(client, "jobs")["size"] == 0)  # without a flush
        acks.add(first.key)
        assert first.ack() == (0, len(first), 0)  # after the acknowledgement before it
        assert acks.flush(10) == (200, len(first), 0)
        assert facts(client, "jobs")["limiter"]["samples"] == 200
        with pytest.raises(replaybus.InvalidArgument, match="priorities are missing"), client.updater("jobs") as updater:
            updater.add(first.key)


def test_acknowledgements_outlive_the_broker_and_errors_are_told_once(tmp_path):
    server = replaybus.Server([queue()], journal=tmp_path)
    with server.client(timeout=60) as client, client.sampler("jobs", 4, ack=True, lease=3600) as sampler:
        acks = client.updater("jobs", ack=True)
        fill(client, 0, 8)
        batches = [sampler.next(30), sampler.next(30)]
        port = killed(server)
        acks.add(batches[0].key)
        with pytest.raises(replaybus.DeadlineExceeded, match="acknowledgements of table 'jobs' are without an answer"):
            acks.flush(0.1)
        server = replaybus.Server([queue()], journal=tmp_path, port=port)
        assert acks.flush(60) == (4, 0, 0) and facts(client, "jobs")["size"] == facts(client, "jobs")["leased"] == 4
        killed(server)
        acks.add(batches[1].key)
        server = replaybus.Server([replaybus.Table("others")], port=port)  # there is no such table any more
        with pytest.raises(replaybus.NotFound, match="jobs"):
            acks.close(60)
        server.close()


WORKER = """
import os, random, sys, time, replaybus
endpoint, ledger, seed = sys.argv[1:]
chance, out = random.Random(int(seed)), os.open(ledger, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
def note(what, keys):
    os.write(out, (what + " " + " ".join(map(str, keys)) + "\\n").encode())
client = replaybus.Client(endpoint, timeout=60)
acks, open_, total = client.updater("jobs", ack=True), [], replaybus.Change(0, 0, 0)
with client.sampler("jobs", 4, ack=True, lease=1.0, flexible=True) as sampler:
    while True:
        try:
            batch = sampler.next(1.0)
        except replaybus.DeadlineExceeded:
            continue
        except replaybus.Error:
            continue
        time.sleep(1.2 if chance.random() < 0.03 else chance.random() * 0.02)
        keys = batch.key.tolist()
        if chance.random() < 0.1:
            batch.release()
            continue
        if int(seed) % 2:
            note("tries", keys)
            change = batch.ack()
            assert change.applied in (0, len(keys)), change
            note("done" if change.applied else "late", keys)
            continue
        open_ += keys
        note("tries", open_)
        acks.add(batch.key)
        if chance.random() < 0.3:
            before, total = total, acks.flush(60)
            assert sum(total) - sum(before) == len(open_), (total, before, open_)
            note("done" if total.missing == before.missing else "some", open_)
            open_ = []
"""


class Ledger:
    """What workers say that they have acknowledged, and what they were about to when they died."""

    def __init__(self, folder):
        self.folder, self.workers = folder, 0

    def start(self, endpoint):
        self.workers += 1
        path = self.folder / f"ledger-{self.workers}"
        path.touch()
        return subprocess.Popen([sys.executable, "-c", WORKER, endpoint, str(path), str(self.workers)])

    def read(self):
        done, open_ = [], set()
        for path in self.folder.glob("ledger-*"):
            tries = set()
            for line in path.read_text().splitlines():
                what, *keys = line.split()
                tries = set(map(int, keys)) if what == "tries" else set()
                done += map(int, keys) if what == "done" else []
                open_ |= set(map(int, keys)) if what == "some" else set()
            open_ |= tries  # its death came between the request and the note of its answer
        return done, open_


def test_every_item_is_acknowledged_once_or_is_there(tmp_path):
    chance, ledger, items = random.Random(29), Ledger(tmp_path), 600
    server = replaybus.Server([queue()], journal=tmp_path / "journal")
    workers = [ledger.start(server.endpoint) for _ in range(4)]
    keys = []
    try:
        with server.client(timeout=120) as client:
            with client.writer() as writer:
                for n in range(items):
                    writer.append({"x": n})
                    keys.append(writer.item("jobs", 1.0, timeout=120))
                    if n % 40 == 20:
                        worker = chance.randrange(len(workers))
                        workers[worker].kill()
                        assert workers[worker].wait() == -signal.SIGKILL  # none of its own checks had ended it
                        workers[worker] = ledger.start(server.endpoint)
                    if n % 200 == 100:
                        server = replaybus.Server([queue()], journal=tmp_path / "journal", port=killed(server))
                writer.flush(timeout=120)
            until(lambda: facts(client, "jobs")["size"] == 0, 120)
            for worker in workers:
                worker.kill()
                assert worker.wait() == -signal.SIGKILL
            done, tries = ledger.read()
            assert len(done) == len(set(done))
            assert set(done) <= set(keys) and set(keys) - set(done) <= tries
            assert facts(client, "jobs")["limiter"]["samples"] == facts(client, "jobs")["limiter"]["inserts"] == items
            assert facts(client, "jobs")["total_samples"] > items  # some came back
    finally:
        for worker in workers:
            worker.kill()
        server.close()
