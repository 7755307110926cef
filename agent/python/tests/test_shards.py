"""A broker with shards, and samplers over several sources."""
import numpy as np
import pytest

import replaybus
from conftest import TABLES, await_shards
from replaybus.spaces import Box, Discrete

N = 3


@pytest.fixture(scope="module", params=["thread", "process"])
def shards(request):
    tables = [table for table in TABLES if table["name"] in ("replay", "uniform", "queue")]
    with replaybus.Server(tables, mode=request.param, shards=np.int64(N)) as server:
        yield server


@pytest.fixture
def client(shards):
    with shards.client(timeout=60) as client:
        await_shards(client, N)
        for table in client.tables:
            client.reset(table)
        yield client


def fill(client, table, episodes, priority=lambda i: 1.0):
    """Writes an item for each episode; its x is the episode's number. Returns the keys."""
    with client.writer({"x": 0.0}) as writer:
        keys = []
        for i in range(episodes):
            writer.append({"x": float(i)})
            keys.append(writer.item(table, priority(i)))
            writer.end_episode(wait=False)
        writer.flush(timeout=60)
    return np.array(keys, np.uint64)


def test_one_table_over_shards(client):
    keys = fill(client, "replay", 60, priority=lambda i: 1.0 + i % 3)
    owners = keys >> np.uint64(56)
    assert set(owners.tolist()) == set(range(N))  # episodes go to all shards
    assert len(set(keys.tolist())) == 60
    info = client.info("replay")
    assert info["tables"][0]["size"] == 60 and len(info["shards"]["shard"]) == N
    with client.sampler("replay", 64, max_samples=64 * 8) as sampler:
        for batch in sampler:
            assert (batch.shard == batch.key >> np.uint64(56)).all() and batch.source is None and batch.info["table_size"] == 60
            assert (keys[batch.data["x"][:, 0].astype(int)] == batch.key).all()
            assert np.allclose(batch.probability, batch.priority / (20 * (1 + 2 + 3)))
    assert client.update("replay", keys, np.where(np.arange(60) == 7, 1.0, 0.0)) == (60, 0, 0)
    with client.sampler("replay", 16, max_samples=160) as sampler:
        batches = list(sampler)  # shards' masses are asked for first, so that the first batch has the new priorities
    assert {key for batch in batches for key in batch.key} == {keys[7]}
    fetched = client.fetch("replay", keys[[3, 50, 11]])
    assert dict(zip(fetched.key.tolist(), fetched.data["x"][:, 0])) == {int(keys[i]): i for i in (3, 50, 11)}
    assert client.delete("replay", keys[:30]).applied == 30
    assert sorted(item["key"] for item in client.items("replay")) == sorted(keys[30:].tolist())
    client.delete("replay", keys[owners == owners[30]])
    assert set(client.fetch("replay", keys).key.tolist()) == set(keys[30:][owners[30:] != owners[30]].tolist())  # a shard has none


@pytest.mark.parametrize("in_flight", [0, 4])
def test_items_of_a_queue_come_from_all_shards_in_turn(client, in_flight):
    fill(client, "queue", 300)
    with client.sampler("queue", 4, in_flight=in_flight) as sampler:
        first = np.concatenate([sampler.next(60).shard for _ in range(45)])
    assert min(np.bincount(first, minlength=N)) > 20


@pytest.mark.parametrize("options", [{}, {"optimize_memory_usage": True}])
def test_single_inserts_and_buffers_use_all_shards(client, options):
    with replaybus.ReplayBuffer(0, Box(-9, 9, (2,)), Discrete(3), client=client, table="uniform", n_envs=2, **options) as buffer:
        for t in range(40):
            client.insert({"x": float(t)}, {"replay": 1.0, "queue": 1.0})
            buffer.add(np.zeros((2, 2)), np.ones((2, 2)), [0, 1], [0.0, 1.0], np.array([t % 4 == 3] * 2), truncated=np.zeros(2))
        buffer.flush()
        for table, size in (("replay", 40), ("queue", 40), ("uniform", 80)):
            keys = [item["key"] for item in client.items(table)]
            assert len(keys) == size and {key >> 56 for key in keys} == set(range(N))


def test_any_endpoint_and_a_list(shards, client):
    keys = fill(client, "uniform", 30)
    assert len(shards.endpoints) == N and shards.endpoint == shards.endpoints[0]
    await_shards(client, N)
    for endpoint in (shards.endpoints[2], ",".join(shards.endpoints[:2])):
        with replaybus.Client(endpoint, timeout=60) as other:
            assert other.counter("steps").add(1) == client.counter("steps").add(0)  # there is one
            await_shards(other, N)
            batch = other.sampler("uniform", 100).next(60)
            assert set(batch.key.tolist()) <= set(keys.tolist()) and np.allclose(batch.probability, 1 / 30)


def test_sources_with_shares(client, server):
    """Demonstrations at one broker without shards beside replay over shards."""
    with server.client(timeout=60) as demos:
        demos.reset("uniform")
        mine, theirs = fill(client, "uniform", 20), fill(demos, "uniform", 10)
        sources = [(client, "uniform"), (demos, "uniform", 0.25)]
        with replaybus.Sampler(sources, 100, beta=1.0, max_samples=2000) as sampler:
            assert sampler.tables == ["uniform", "uniform"]
            for batch in sampler:
                first = batch.source == 0
                assert set(batch.key[first]) <= set(mine.tolist()) and set(batch.key[~first]) <= set(theirs.tolist())
                assert np.allclose(batch.probability, np.where(first, 0.75 / 20, 0.25 / 10))
                assert (batch.shard[~first] == 0).all()
        for wrong, error in (([(client, "uniform", 0.5), (demos, "uniform", 0.6)], replaybus.InvalidArgument), ([(client,)], TypeError),
                             ([(client, "uniform", -0.5), (demos, "uniform")], replaybus.InvalidArgument),
                             ([(client, "uniform"), (demos, "nowhere")], replaybus.NotFound)):
            with pytest.raises(error):
                replaybus.Sampler(wrong)


def test_torch_takes_sources(client):
    rt = pytest.importorskip("replaybus.torch", reason="torch is not installed")
    fill(client, "uniform", 20)
    with rt.Sampler([(client, "uniform", 0.5), (client, "uniform")], batch_size=16) as sampler:
        batch = sampler.next(60)
        assert len(batch.source) == 16 and batch.to("cpu").shard.tolist() == (batch.key >> 56).tolist()
    with pytest.raises(TypeError):
        rt.Sampler(client)


@pytest.mark.parametrize("shards", [0, 256, "auto", 2.0])
def test_numbers_that_are_none(shards):
    with pytest.raises(replaybus.InvalidArgument, match="1 to 255"):
        replaybus.Server([replaybus.Table("t")], shards=shards)
