"""Groups: items with the same key that are sampled together and leave together."""
import collections
import threading

import numpy as np
import pytest

import replaybus
from conftest import facts, served, until


def table(size=4, deadline="60s", incomplete="drop", **more):
    given = {"sampler": "fifo", "limiter": "queue", "max_times_sampled": 1, "max_size": 64, **more}
    return replaybus.Table("rollouts", group={"size": size, "deadline": deadline, "incomplete": incomplete}, **given)


def write(writer, group, n=1, value=0, steps=1, priority=1.0):
    """Writes n members of a group, each an episode of its own, and returns their keys."""
    keys = []
    for i in range(n):
        writer.set_group(group)
        for _ in range(steps):
            writer.append({"x": np.float32(value + i)})
        keys.append(writer.item("rollouts", priority, slices=steps))
        writer.end_episode(wait=False)
    return keys


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


def test_a_group_has_the_mean_of_its_priorities():
    with served(table(2, sampler="max_heap", remover="min_heap", limiter="min_size", max_times_sampled=0)) as client, client.writer() as writer:
        low, high = write(writer, 1, 2, priority=2.0), write(writer, 2, 2, priority=3.0)
        writer.flush()
        assert runs(client.sample("rollouts", 2), 2) == [2]
        client.update("rollouts", [low[1]], [5.0])  # 3.5 is more than 3
        batch = client.sample("rollouts", 2)
        assert runs(batch, 2) == [1] and batch.priority.tolist() == [2, 5]
        client.update("rollouts", high, [9.0, 0.0])
        assert runs(client.sample("rollouts", 2), 2) == [2]
        client.delete("rollouts", [high[0]])
        assert runs(client.sample("rollouts", 2), 2) == [1] and facts(client)["size"] == 2


def test_the_oldest_member_says_how_old_a_group_is():
    with served(table(2, max_lag=1)) as client, client.writer() as writer:
        for version in (1, 2):
            client.params["policy"] = b"w"
            writer.set_policy(version)
            write(writer, 3, 1)  # one member of each version
            write(writer, 10 + version, 2)
            writer.flush()
        client.params["policy"] = b"w"
        until(lambda: facts(client)["stale"] == 4)
        assert runs(client.sample("rollouts", 2), 2) == [12]
        assert facts(client)["size"] == 0


def test_a_table_full_of_open_groups_goes_on():
    with served(table(4, max_size=8, limiter="min_size", max_times_sampled=0)) as client, client.writer() as writer:
        for group in range(1, 6):
            write(writer, group, 2)
        writer.flush()
        assert (facts(client)["dropped_groups"], facts(client)["size"]) == (1, 8)
        write(writer, 5, 2)
        writer.flush()
        assert runs(client.sample("rollouts", 4), 4) == [5]


def test_waiting_groups_do_not_keep_each_other_out():
    """A queue with room for two groups, three writers that write three: those whose group has begun are let in."""
    with served(table(4, max_size=8)) as client:
        writers = [client.writer(name=f"w{i}") for i in range(4)]
        threads = [threading.Thread(target=lambda w=w: [write(w, group) for group in (1, 2, 3, 4)] and w.flush()) for w in writers]
        for thread in threads:
            thread.start()
        got = [group for _ in range(4) for group in runs(client.sample("rollouts", 4), 4)]
        for thread in threads:
            thread.join()
        assert sorted(got) == [1, 2, 3, 4]
        for writer in writers:
            writer.close()


@pytest.mark.parametrize("size", [1, 4, 8])
def test_groups_survive_a_kill(tmp_path, size):
    """No member of a group is lost or comes twice, whenever the broker is killed."""
    tables = [table(size, max_size=10_000)]
    seen = collections.Counter()
    port = None
    with replaybus.Server(tables, journal=tmp_path, config={"checkpoint": {"every": "200ms"}}) as server:
        port = int(server.endpoint.rsplit(":", 1)[1])
        with server.client(timeout=20) as client, client.writer() as writer:
            for group in range(1, 41):
                write(writer, group, size - group % 2, value=group * 100)  # every second one lacks a member
            writer.flush()
            seen.update(client.sample("rollouts", 5 * size).data["x"].ravel().tolist())
            before = facts(client)
        server.process.kill()
    with replaybus.Server(tables, journal=tmp_path, port=port) as server, server.client(timeout=20) as client, client.writer() as writer:
        after = facts(client)
        assert [after[name] for name in ("size", "open_groups")] == [before[name] for name in ("size", "open_groups")]
        for group in range(1, 41, 2):
            write(writer, group, 1, value=group * 100 + size - 1)
        writer.flush()
        while facts(client)["size"]:
            batch = client.sample("rollouts", size)
            runs(batch, size)
            seen.update(batch.data["x"].ravel().tolist())
    assert seen == {float(group * 100 + i): 1 for group in range(1, 41) for i in range(size)}


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
    for wrong, match in ((dict(max_size=3), "max_size"),
                         (dict(limiter={"kind": "lag", "batch": 6}, max_lag=1), "multiple"),
                         (dict(limiter={"kind": "sample_to_insert_ratio", "samples_per_insert": 2, "error_buffer": 5}), "block each other"),
                         (dict(size=5000), "4096"), (dict(incomplete="keep"), "drop")):
        with pytest.raises(replaybus.Error, match=match):
            replaybus.Server([table(**wrong)])
    with pytest.raises(replaybus.Error, match="shards"):
        replaybus.Server([table(incomplete="deliver")], shards=2)
    with pytest.raises(replaybus.Error, match="insert_on_sample"):
        replaybus.Server([table(), replaybus.Table("copied", extensions=[{"kind": "insert_on_sample", "table": "rollouts"}])])
    with pytest.raises(replaybus.Error, match="dead_table"):
        replaybus.Server([table(), replaybus.Table.queue("jobs", 9, max_deliveries=2, dead_table="rollouts")])
    with pytest.raises(replaybus.Error, match="dead_table"):
        replaybus.Server([table(max_deliveries=2, dead_table="dead"), replaybus.Table("dead")])
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
