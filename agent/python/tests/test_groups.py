"""Groups: items with the same key that are sampled together and leave together."""
import collections

import numpy as np
import pytest

import replaybus
from conftest import facts, served, until


def table(size=4, deadline="60s", incomplete="drop", **more):
    given = {"sampler": "fifo", "limiter": "queue", "max_times_sampled": 1, "max_size": 64, **more}
    return replaybus.Table("rollouts", group={"size": size, "deadline": deadline, "incomplete": incomplete}, **given)


def write(writer, group, n=1, value=0, steps=1):
    """Writes n members of a group, each an episode of its own."""
    for i in range(n):
        writer.set_group(group)
        for _ in range(steps):
            writer.append({"x": np.float32(value + i)})
        writer.item("rollouts", slices=steps)
        writer.end_episode(wait=False)


def runs(batch, size):
    """The groups of a batch, whose members are adjacent."""
    groups = batch.group.reshape(-1, size)
    assert (groups == groups[:, :1]).all()
    return groups[:, 0].tolist()


def test_a_group_is_sampled_when_it_is_complete():
    with served(table()) as client, client.writer() as one, client.writer() as two:
        for writer, value in ((one, 0), (two, 10)):
            write(writer, 7, 1, value)
            write(writer, 2**64 - 1, 1, value)
            write(writer, 7, 1, value + 1)
            writer.flush()
        with pytest.raises(replaybus.InvalidArgument, match="groups of 4 needs multiples"):
            client.sample("rollouts", 6)
        batch = client.sample("rollouts", 4)
        assert runs(batch, 4) == [7] and batch.group.dtype == np.uint64
        assert sorted(batch.data["x"].ravel().tolist()) == [0, 1, 10, 11]
        assert (facts(client)["open_groups"], facts(client)["complete_groups"], facts(client)["size"]) == (1, 1, 2)
        with pytest.raises(replaybus.DeadlineExceeded, match="1 group waits for members: the oldest, key 18446744073709551615, has 2 of 4"):
            client.sample("rollouts", 4, timeout=0.2)


def test_who_has_no_group_is_told():
    tables = [table(), replaybus.Table("plain")]
    with replaybus.Server(tables) as server, server.client(timeout=20) as client, client.writer() as writer:
        writer.append({"x": np.float32(1)})
        with pytest.raises(replaybus.InvalidArgument, match="groups of 4 items: give the item the key"):
            writer.item("rollouts")
        with pytest.raises(replaybus.InvalidArgument, match="not 0"):
            writer.item("rollouts", group=0)
        writer.item("plain", group=3)  # a table without groups takes none
        writer.item("rollouts", group=3)
        with pytest.raises(replaybus.InvalidArgument):
            writer.item("rollouts")  # the group was that of one item
        writer.flush()
        assert client.sample("plain", 1).group is None
        with pytest.raises(replaybus.InvalidArgument, match="multiples"):
            client.sampler("rollouts", batch_size=6)
        assert facts(client)["size"] == 1


@pytest.mark.parametrize("incomplete", ["drop", "deliver"])
def test_groups_that_lack_members_end_at_their_deadline(incomplete):
    with served(table(4, "1500ms", incomplete, sampler="uniform", limiter="min_size", max_times_sampled=0)) as client, client.writer() as writer:
        write(writer, 5, 3)
        write(writer, 6, 4)
        writer.flush()
        until(lambda: any(wait["kind"] == "group" for wait in client.why()["waits"]))
        line = next(wait for wait in client.why()["waits"] if wait["kind"] == "group")
        assert "1 group waits for members: the oldest, key 5, has 3 of 4 for" in line["text"]
        assert (line["count"], line["got"]) == (4, 3) and incomplete[:4] in line["text"]
        name = "dropped_groups" if incomplete == "drop" else "short_groups"
        until(lambda: facts(client)[name] == 1)
        write(writer, 5, 1)  # too late: another group begins
        writer.flush()
        info = facts(client)
        assert (info["open_groups"], info["size"]) == ((1, 5) if incomplete == "drop" else (1, 8))
        counts = collections.Counter()
        for _ in range(20):
            batch = client.sample("rollouts", 8)
            counts.update(batch.group.tolist())
            assert not batch.info["partial"]
        if incomplete == "drop":
            assert counts == {6: 160}
        else:  # two groups in each batch, of 4 and of 3
            assert set(counts) == {5, 6} and counts[5] % 3 == 0 and counts[6] % 4 == 0
            assert counts[5] // 3 + counts[6] // 4 == 40


@pytest.mark.parametrize("limiter", ["queue", "min_size", {"kind": "sample_to_insert_ratio", "samples_per_insert": 1, "min_size": 16, "error_buffer": 200}])
def test_a_group_stays_at_one_shard(limiter):
    queue = limiter == "queue"
    given = {} if queue else {"sampler": "uniform", "max_times_sampled": 0}
    with served(table(4, limiter=limiter, max_size=4096, **given), shards=2) as client, client.writer() as one, client.writer() as two:
        for group in range(1, 33):
            write(one, group, 2)
            write(two, group, 2, value=2)
        one.flush()
        two.flush()
        assert facts(client)["complete_groups"] == 32 and facts(client)["open_groups"] == 0
        sampler, groups = client.sampler("rollouts", batch_size=8, max_samples=128 if queue else 64), []
        for batch in sampler:
            shards = batch.shard.reshape(-1, 4)
            assert (shards == shards[:, :1]).all()
            assert (np.sort(batch.data["x"].reshape(-1, 4)) == np.arange(4)).all()
            groups += runs(batch, 4)
        assert len(set(batch.shard.tolist())) >= 1 and len(groups) == (32 if queue else 16)
        if queue:
            assert sorted(groups) == list(range(1, 33))
        one.append({"x": np.float32(0)})
        with pytest.raises(replaybus.FailedPrecondition, match="set the group before the first step"):
            for group in range(100, 200):
                one.item("rollouts", group=group)


def test_batches_by_tokens_have_whole_groups():
    with served(table(3, max_size=600)) as client, client.writer(keep_alive=9) as writer:
        for group in range(1, 31):
            for member in range(3):
                write(writer, group, 1, value=group, steps=1 + (group * member) % 9)
        writer.flush()
        seen = []
        for batch in client.sampler("rollouts", batch_size=12, tokens_per_batch=40, max_samples=90):
            seen += runs(batch, 3)
        assert seen == list(range(1, 31))


def test_what_cannot_work():
    copied = replaybus.Table("copied", extensions=[{"kind": "insert_on_sample", "table": "rollouts"}])
    ratio = {"kind": "sample_to_insert_ratio", "samples_per_insert": 2, "error_buffer": 5}
    for tables, shards, match in (
            ([table(max_size=3)], 1, "max_size"), ([table(size=5000)], 1, "4096"),
            ([table(limiter={"kind": "lag", "batch": 6}, max_lag=1)], 1, "multiple"),
            ([table(limiter=ratio)], 1, "block each other"), ([table(incomplete="keep")], 1, "drop"),
            ([table(incomplete="deliver")], 2, "shards"), ([table(), copied], 1, "insert_on_sample"),
            ([table(), replaybus.Table.queue("jobs", 9, max_deliveries=2, dead_table="rollouts")], 1, "dead_table"),
            ([table(max_deliveries=2, dead_table="dead"), replaybus.Table("dead")], 1, "dead_table")):
        with pytest.raises(replaybus.Error, match=match):
            replaybus.Server(tables, shards=shards)
    with served(table()) as client, client.writer() as writer:
        write(writer, 7, 4)
        with client.sampler("rollouts", 4, ack=True) as sampler, pytest.raises(replaybus.FailedPrecondition, match="groups"):
            sampler.next(20)
        assert len(client.sample("rollouts", 4)) == 4
        with client.sampler("rollouts", 68, whole=True, in_flight=0) as sampler, pytest.raises(replaybus.InvalidArgument, match="max_size"):
            sampler.next(20)  # it would wait for ever


def test_another_size_is_refused_while_there_are_items(tmp_path):
    with served(table(4), journal=tmp_path) as client, client.writer() as writer:
        write(writer, 1, 3)
        writer.flush()
    with pytest.raises(replaybus.Error, match="groups of 4"):
        replaybus.Server([table(2)], journal=tmp_path)
    plain = replaybus.Table("rollouts", sampler="fifo", limiter="queue", max_times_sampled=1, max_size=64)
    with served(plain, journal=tmp_path) as client:
        assert len(client.sample("rollouts", 3)) == 3  # without groups, they are items like any others
