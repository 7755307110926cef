"""Fresh data: items that are too many versions behind are never sampled, and writers wait for the learner's next version."""
import contextlib
import threading

import numpy as np
import pytest

import replaybus
from conftest import await_shards, beside, facts, served, until

LAG = {"kind": "lag", "batch": 4}


def queue(max_lag, limiter=LAG, **more):
    return replaybus.Table("rollouts", sampler="fifo", max_times_sampled=1, max_lag=max_lag, limiter=limiter, **more)


def write(writer, version, n, timeout=60):
    """Writes n items of a version, whose data is the version."""
    writer.set_policy(version)
    writer.append_block({"x": np.full(n, version, np.float32)}, replaybus.Last(1, "rollouts"), timeout=timeout)


def settled(client, size, stale):
    """Waits until what is too old has left."""
    until(lambda: (facts(client)["size"], facts(client)["stale"]) == (size, stale))


@pytest.mark.parametrize("sampler", ["fifo", "uniform", "prioritized"])
def test_what_is_too_old_is_never_sampled(sampler):
    table = replaybus.Table("rollouts", sampler=sampler, max_lag=2, limiter="min_size", policy_slot="weights")
    with served(table) as client, client.writer() as writer:
        for version in range(1, 7):
            client.params["weights"] = b"w"
            client.params["policy"] = b"another slot"
            write(writer, version, 10)
            writer.flush()
            settled(client, 10 * min(version, 3), 10 * max(0, version - 3))
            assert (facts(client)["version"], facts(client)["max_lag"]) == (version, 2)
            batch = client.sample("rollouts", 64)
            assert set(batch.policy.tolist()) <= {version, version - 1, version - 2}
        write(writer, 3, 5)  # too old when they come
        write(writer, 1 << 60, 5)  # a version that does not exist counts as the newest
        writer.flush()
        settled(client, 35, 35)
        for _ in range(3):
            client.params["weights"] = b"w"
        settled(client, 0, 70)
        with pytest.raises(replaybus.DeadlineExceeded):
            client.sample("rollouts", 1, timeout=0.05)
        write(writer, 9, 1)
        writer.flush()
        client.limiter("rollouts", max_lag=0)
        assert facts(client)["max_lag"] == 0 and facts(client)["size"] == 1
        client.params["weights"] = b"w"
        settled(client, 0, 71)
        for wrong in (70000, -1, 0.5, float("nan"), float("inf"), -float("inf")):
            with pytest.raises(replaybus.InvalidArgument):
                client.limiter("rollouts", max_lag=wrong)
        assert facts(client)["max_lag"] == 0


@pytest.mark.parametrize("chunk_length", [1, 4, 12])
def test_an_item_is_as_old_as_its_oldest_step(chunk_length):
    """The version of each step is a column like any other."""
    table = replaybus.Table("rollouts", sampler="fifo", max_times_sampled=1, max_lag=2, limiter="min_size")
    with served(table) as client, client.writer(keep_alive=12, chunk_length=chunk_length) as writer:
        for _ in range(4):
            client.params["policy"] = b"w"

        def steps(version, n):
            writer.set_policy(version)
            for _ in range(n):
                writer.append({"x": np.float32(0), "policy": np.int64(version)})

        steps(2, 3)
        steps(3, 2)
        steps(4, 2)
        for length in (7, 4, 2):
            writer.item("rollouts", slices=length)
        writer.set_policy(9)  # no step was made with it yet
        writer.item("rollouts", slices=2)
        writer.end_episode()
        lengths, got = [7, 4, 2, 2], []
        for length in lengths:
            batch = client.sample("rollouts", 1)
            got.append(int(batch.policy[0]))
            assert batch.data["policy"][0].tolist() == [2, 2, 2, 3, 3, 4, 4][-length:] and batch.policy[0] == batch.data["policy"].min()
        assert got == [2, 3, 4, 4]
        for version in range(10, 60):  # more changes than are kept: those that are taken together count as the oldest of them
            steps(version, 1)
        for _ in range(59 - 4):
            client.params["policy"] = b"w"
        for length in (12, 2, 1):
            writer.item("rollouts", slices=length)
        writer.flush()
        settled(client, 2, 1)  # the long one has become too old with its first step
        assert client.sample("rollouts", 2).policy.tolist() == [58, 59]


def test_versions_of_long_sequences(client):
    """A version is set before each step, and changes more often than a writer remembers. An item is never younger than its oldest step."""
    ends, length = range(128, 2000, 40), 128
    for every, slack in ((50, 0), (5, 2), (1, 8)):
        with client.writer(keep_alive=200) as writer:
            for t in range(2000):
                writer.set_policy(t // every + 1)
                writer.append({"x": np.int32(t)})
                if t + 1 in ends:
                    writer.item("replay", slices=length)
                    writer.item("replay", slices={"x": writer.columns["x"][-90:-80]})
            writer.flush(60)
        keys = sorted(item["key"] for item in client.items("replay"))[-2 * len(ends):]
        batch = client.fetch("replay", keys[0::2]), client.fetch("replay", keys[1::2])
        for items, first in zip(batch, (length, 90)):
            oldest = np.array([(end - first) // every + 1 for end in ends])
            assert (items.policy.astype(int) <= oldest).all() and (items.policy.astype(int) >= oldest - slack).all()


def test_writers_wait_for_the_next_version():
    with served(queue(1)) as client, client.writer() as writer:
        client.params["policy"] = b"w"
        write(writer, 1, 8)
        until(lambda: facts(client)["size"] == 8)
        write(writer, 1, 1)
        with pytest.raises(replaybus.DeadlineExceeded):
            writer.flush(timeout=0.3)
        assert facts(client)["size"] == 8
        waits = [wait["text"] for wait in client.why()["waits"] if wait["kind"] == "insert"]
        assert waits and "version 2" in waits[0]
        client.sample("rollouts", 4)  # a sample does not make room: its learner has not learned from it yet
        with pytest.raises(replaybus.DeadlineExceeded):
            writer.flush(timeout=0.3)
        client.params["policy"] = b"w"
        writer.flush(timeout=60)
        assert facts(client)["size"] == 5
        client.limiter("rollouts", max_lag=2)
        write(writer, 2, 4 + 3)
        writer.flush(timeout=60)
        assert facts(client)["size"] == 12 and facts(client)["limiter"]["max_diff"] == 12


def test_a_whole_batch_waits_for_all_its_items():
    """The limiter lag allows samples at any time, but each item is given once."""
    with served(queue(1)) as client, client.writer() as writer:
        client.params["policy"] = b"w"
        write(writer, 1, 3)
        writer.flush()
        with pytest.raises(replaybus.DeadlineExceeded, match="needs 1 more insert"):
            client.sample("rollouts", 4, timeout=0.2, whole=True)
        write(writer, 1, 1)
        assert len(client.sample("rollouts", 4, whole=True)) == 4


def test_versions_reach_all_shards():
    table = replaybus.Table("rollouts", max_lag=1, limiter="min_size")
    with served(table, shards=2) as client, client.writer() as writer:
        await_shards(client, 2)
        for version in range(1, 5):
            client.params["policy"] = b"w"
            for _ in range(6):  # episodes go to the shards in turn
                write(writer, version, 2)
                writer.end_episode()
            writer.flush()
        until(lambda: [facts(client)[name] for name in ("stale", "size", "version", "max_lag")] == [24, 24, 4, 1])
        client.limiter("rollouts", max_lag=0)
        settled(client, 12, 36)


@pytest.mark.parametrize("sampler", ["uniform", "prioritized"])
def test_shards_give_nothing_that_is_too_old(sampler):
    """A sampler over shards has been promised its samples before they are picked. None of them is stale, whatever has happened meanwhile."""
    table = replaybus.Table("rollouts", sampler=sampler, max_lag=0, limiter="min_size")
    with served(table, shards=2) as client, client.writer() as writer:
        await_shards(client, 2)
        for version in range(1, 6):
            client.params["policy"] = b"w"
            for _ in range(4):  # episodes go to the shards in turn
                write(writer, version, 5_000)
                writer.end_episode()
            writer.flush()
            for _ in range(20):
                assert set(client.sample("rollouts", 16).policy.tolist()) == {version}
        settled(client, 20_000, 80_000)


def act(server, episode, end):
    """Writes items of the newest version that it knows until the end. episode: items, or None for one that never ends."""
    with server.client(timeout=60) as client:
        writer, written = client.writer(), 0
        while not end.is_set():
            writer.set_policy(facts(client)["version"])
            try:
                writer.append({"x": np.float32(0)}, timeout=0.1)
                writer.item("rollouts", timeout=0.1)
            except replaybus.DeadlineExceeded:
                continue
            written += 1
            if episode and written % episode == 0:
                writer.end_episode(wait=False)
        with contextlib.suppress(replaybus.Error):
            writer.close(0.1)  # its last items wait for a version


@pytest.mark.parametrize("shards, max_lag, batch, actors, episode", [(2, 0, 8, 1, None), (3, 2, 8, 1, None), (4, 0, 10, 3, 7), (4, 2, 10, 3, 7)])
def test_writers_wait_over_shards(shards, max_lag, batch, actors, episode):
    """Nothing is too old, nobody is too far ahead, and the run goes on, however unevenly the writers spread: alone, one that never ends its
    episode gets the room of all shards."""
    table = queue(max_lag, {"kind": "lag", "batch": batch}, max_size=100)
    with replaybus.Server([table], shards=shards) as server, server.client(timeout=60) as client:
        await_shards(client, shards)
        client.params["policy"] = b"w"
        end = threading.Event()
        with beside(*[lambda: act(server, episode, end)] * actors, end=end.set):
            for step in range(30):
                samples = client.sample("rollouts", batch, whole=True)
                assert len(samples) == batch and samples.policy.min() >= step + 1 - max_lag
                inserts, stale = facts(client)["total_inserts"], facts(client)["stale"]  # in this order: the second is no older
                assert inserts - stale <= (step + max_lag + 1) * batch
                client.params["policy"] = b"w"
        assert facts(client)["limiter"]["max_diff"] == (max_lag + 1) * batch


def test_why_writers_wait_over_shards():
    with served(queue(1, {"kind": "lag", "batch": 6}, max_size=60), shards=2) as client:
        await_shards(client, 2)
        client.params["policy"] = b"w"
        with client.writer() as writer:
            write(writer, 1, 6)
            until(lambda: facts(client)["size"] == 6)  # the shard has its part of two batches: three items of each
            write(writer, 1, 1)
            with pytest.raises(replaybus.DeadlineExceeded):
                writer.flush(timeout=0.3)
            waits = [wait["text"] for wait in client.why()["waits"] if wait["kind"] == "insert"]
            assert waits and all(part in waits[0] for part in ("version 2", "2 batches of 3", "part of 6", "max_lag is 1"))
            assert len(client.sample("rollouts", 7, whole=True)) == 7  # whoever waits for more brings room of the other shard
            for _ in range(5):
                write(writer, 1, 1)
                assert len(client.sample("rollouts", 1)) == 1
            write(writer, 1, 1)
            with pytest.raises(replaybus.DeadlineExceeded):
                client.sample("rollouts", 1, timeout=0.5)  # both shards together have no more
            client.limiter("rollouts", max_lag=2)
            assert len(client.sample("rollouts", 1)) == 1


def test_groups_wait_over_shards():
    """A group lives at one shard, which may have to hold a whole batch of them."""
    table = queue(0, {"kind": "lag", "batch": 8}, max_size=80, group={"size": 4, "deadline": "60s", "incomplete": "drop"})
    with served(table, shards=2) as client, client.writer() as writer:
        await_shards(client, 2)
        for version in range(1, 11):
            client.params["policy"] = b"w"
            writer.set_policy(version)
            for member in range(8):  # both groups have the same key, and so the same shard
                writer.set_group(17)
                writer.append({"x": np.float32(member)})
                writer.item("rollouts")
                writer.end_episode(wait=False)
            batch = client.sample("rollouts", 8, whole=True)
            assert batch.policy.tolist() == [version] * 8
            assert facts(client)["total_inserts"] == 8 * version


def test_another_limiter_starts_with_nothing_ahead(tmp_path):
    """Items that were sampled under another limiter may all be too old: nobody will publish a version because of them."""
    plain = replaybus.Table("rollouts", sampler="fifo", max_lag=5, limiter="min_size")
    with served(plain, journal=tmp_path) as client, client.writer() as writer:
        client.params["policy"] = b"w"
        write(writer, 1, 20)
        writer.flush()
        client.sample("rollouts", 20)
        client.params["policy"] = b"w"
    for limiter in (LAG, {"kind": "lag", "batch": 2}):  # and with other settings nothing more is ahead than these allow
        with served(queue(0, limiter), journal=tmp_path) as client, client.writer() as writer:
            settled(client, 0, facts(client)["stale"] + facts(client)["size"])
            client.params["policy"] = b"w"
            version = facts(client)["version"]
            write(writer, version, 2)
            writer.flush(timeout=60)
            assert client.sample("rollouts", 2).policy.tolist() == [version] * 2
            if limiter == LAG:  # four items are ahead at the end
                write(writer, version, 2)
                writer.flush(timeout=60)
                client.sample("rollouts", 2)


def test_what_cannot_work():
    least = {"kind": "lag", "batch": 4, "min_size": 2}
    for table, shards, match in (
            (queue(1, {"kind": "lag", "batch": 9}, max_size=8), 1, "less than batch"), (queue(1), 5, "shards"),
            (queue(1, least), 2, "shards"), (replaybus.Table("rollouts", max_lag=1, limiter=least), 2, "shards"),
            (queue(1, group={"size": 2, "deadline": "60s"}), 3, "shards"),
            (queue(None), 1, "max_lag"), (queue(1, "lag"), 1, "batch")):
        with pytest.raises(replaybus.Error, match=match):
            replaybus.Server([table], shards=shards)
    with served(replaybus.Table("rollouts", max_lag=1, limiter=LAG), shards=2) as client:
        await_shards(client, 2)
        with pytest.raises(replaybus.InvalidArgument):
            client.sample("rollouts", 4, distinct=True)
    with replaybus.Server([replaybus.Table("plain")]) as server, server.client() as client:
        with pytest.raises(replaybus.FailedPrecondition, match="max_lag"):
            client.limiter("plain", max_lag=1)
