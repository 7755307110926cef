"""Sampling: iterators, arrays without a copy, updates."""
import asyncio
import contextlib
import gc
import random
from concurrent.futures import Future

import numpy as np
import pytest

import replaybus
from conftest import await_shards, fill, served, until


def asynchronous(sampler):
    async def read():
        return [batch async for batch in sampler]

    return asyncio.run(read())


def address(array):
    return array.__array_interface__["data"][0]


@pytest.mark.parametrize("options", [{}, {"in_flight": 0}, {"ack": True}])
@pytest.mark.parametrize("loop", [iter, asynchronous])
def test_iteration_ends_on_time_out(client, loop, options):
    fill(client, "queue", 10)
    with client.sampler("queue", 4, timeout=0.2, **options) as sampler:
        assert sum(len(batch) for batch in loop(sampler)) == 10
        with pytest.raises(replaybus.EndOfStream):
            sampler.next(1)
        assert list(sampler) == []


@pytest.mark.parametrize("in_flight", [0, 4])
def test_a_cancelled_await_loses_no_batch(client, in_flight):
    async def read(sampler):
        for n in range(9):
            fill(client, "queue", 1)
            with contextlib.suppress(asyncio.TimeoutError):
                got.append(await asyncio.wait_for(sampler.__anext__(), (0, 0.01, 0.11)[n % 3]))

    got = []
    with client.sampler("queue", 1, in_flight=in_flight, timeout=3) as sampler:
        asyncio.run(read(sampler))
        assert len(got + list(sampler)) == 9


@pytest.mark.parametrize("loop", [iter, asynchronous])
def test_several_cancelled_awaits_lose_no_batch(client, loop):
    """One may have seen the end before another got a batch."""
    fill(client, "queue", 1)
    with client.sampler("queue", 1, in_flight=0) as sampler:
        ended, asked = Future(), Future()
        asked.set_result(sampler.next(60))
        ended.set_exception(replaybus.EndOfStream("stopped"))
        sampler.stop()
        sampler._asked.extend((ended, asked))
        assert [len(batch) for batch in loop(sampler)] == [1]


@pytest.mark.parametrize("in_flight", [0, 4])
def test_a_whole_batch_without_replacement_waits_for_its_items(in_flight):
    with served(replaybus.Table("t", max_size=12)) as client:
        fill(client, "t", 10)
        with client.sampler("t", 12, whole=True, distinct=True, in_flight=in_flight) as sampler:
            with pytest.raises(replaybus.DeadlineExceeded):
                sampler.next(0.3)
            fill(client, "t", 2)
            assert len(set(sampler.next(60).key)) == 12
        with pytest.raises(replaybus.InvalidArgument):
            client.sample("t", 13, whole=True, distinct=True)


def test_arrays_share_memory(client):
    fill(client, size=100)
    with client.sampler("replay", 64) as sampler:
        batch = sampler.next(60)
    x = batch.data["x"]
    assert batch.data["x"] is x
    view = batch.fields()[0]
    assert address(view) == address(x) and address(x) % 64 == 0
    assert not x.flags.owndata and x.flags.c_contiguous and x.flags.writeable
    assert batch.key is batch.key and batch.key.base is x.base
    copy = x.copy()
    del batch, view, sampler
    gc.collect()
    fill(client, size=100)
    assert (x == copy).all(), "the array does not keep its memory"


def aligned(size):
    array = np.zeros(size + 64, "uint8")
    start = -address(array) % 64
    return array[start:start + size]


def test_batches_in_buffers_of_the_user(client):
    """Each batch has a buffer alone, while it lives; without a free one it has memory of its own."""
    fill(client, size=100)
    buffers, held, pick, inside, most = [aligned(64 * 600) for _ in range(6)], [], random.Random(1), 0, 0
    with client.sampler("replay", 64, in_flight=2, memory=buffers) as sampler:
        for _ in range(200):
            batch = sampler.next(60)
            where = [i for i, buffer in enumerate(buffers) if np.shares_memory(batch.block(), buffer)]
            inside += len(where)
            assert np.shares_memory(batch.block(), batch.data["x"]) and np.shares_memory(batch.block(), batch.weight)
            assert where or most >= 2
            held.append((batch, batch.block().tobytes(), where))
            most = max(most, len(held))
            for other, before, _ in held:
                assert other.block().tobytes() == before
            while len(held) > pick.randrange(8):
                held.pop(pick.randrange(len(held)))
    assert inside > 10
    del batch, other
    gc.collect()
    assert all(other.block().tobytes() == before for other, before, _ in held)  # after the sampler's end


def test_buffers_that_cannot_be_used(client):
    fill(client)
    constant = aligned(1 << 16)
    constant.flags.writeable = False
    for buffer, error in ((aligned(1 << 16)[1:], ValueError), (constant, ValueError), (aligned(1 << 16)[::2], ValueError), (3, TypeError)):
        with pytest.raises((error, BufferError)):
            client.sampler("replay", memory=[aligned(64), buffer])
    with pytest.raises(ValueError, match="65535 bytes .* no multiple of 64"):
        client.sampler("replay", memory=[aligned(1 << 16)[1:]])
    buffer = aligned(1 << 16)
    with pytest.raises(ValueError, match="64 bytes .* overlaps another"):
        client.sampler("replay", memory=[buffer, aligned(64), buffer[1 << 15:][:64]])
    with client.sampler("replay", 64, memory=[aligned(64)]) as sampler:  # too small
        assert len(sampler.next(60)) == 64


def test_arrays_of_a_batch(client):
    fill(client)
    with client.sampler("replay", 50, beta=0.5, distinct=True) as sampler:
        batch = sampler.next(60)
        assert len(set(batch.key.tolist())) == 50
        for name, dtype in (("key", "uint64"), ("priority", "float64"), ("probability", "float64"), ("weight", "float32"),
                            ("times_sampled", "uint32"), ("age", "float64"), ("policy", "uint64"), ("step", "uint64")):
            array = getattr(batch, name)
            assert array.dtype == dtype and array.shape == (50,), name
        assert batch.weight.max() == 1 and (batch.age >= 0).all()
        assert batch.lengths["x"].tolist() == [1] * 50
        assert batch.info["n"] == 50 and not batch.info["partial"] and batch.info["table_size"] == 100
        assert sampler.stats()["items"] == 50


@pytest.mark.parametrize("name", ["\u00e9" * 127, "a" + "\u00e9" * 127])
def test_texts_end_with_a_whole_letter(name):
    with served(replaybus.Table(name, max_bytes=64)) as client, client.writer(keep_alive=40) as writer:
        for _ in range(40):
            writer.append({"x": np.float32(1)})
        writer.item(name)
        with pytest.raises(replaybus.ResourceExhausted):
            writer.item(name, slices=40)
            writer.flush()
        assert [len(str(rejection.error)) > 100 for rejection in writer.rejections()] == [True]
        info = client.sample(name, 2, distinct=True, timeout=0).info
        assert info["partial"] and len(info["text"]) > 100


@pytest.mark.parametrize("shards", [1, 2])
def test_items_of_different_fields(caplog, shards):
    with served(replaybus.Table("t"), shards=shards) as client:
        await_shards(client, shards)
        for size in (3, 4) * 5:  # a writer's items are at one shard
            fill(client, "t", size=size)
        with client.sampler("t", 32, max_samples=640) as sampler:
            assert sum(len(batch) for batch in sampler) == 640
            until(lambda: caplog.records)
        for batch in client.sample("t", 32), client.sampler("t", 32, tokens_per_batch=32, in_flight=0).next(60):
            assert len(batch) < 32 and "'x'" in batch.info["text"]
    assert "C0301" in caplog.messages[0] and "'x'" in caplog.messages[0] and "signature" in caplog.messages[0]
    assert len(caplog.messages) <= 3  # once for each sampler


def test_wrong_options(client):
    for options, error in (({"table": "reply"}, replaybus.NotFound), ({"batch_size": 0}, replaybus.InvalidArgument),
                           ({"timeout": -1}, ValueError), ({"in_flight": 100_000}, replaybus.InvalidArgument)):
        with pytest.raises(error):
            client.sampler(**{"table": "replay", **options})


def test_updater(client):
    fill(client)
    with client.sampler("replay", 64) as sampler, client.updater("replay", batch=16) as updater:
        batch = sampler.next(60)
        updater.add(batch.key, 3.0)
        updater.add(batch.key.view("int64"), np.full(64, 2.0, "float32"))
        change = updater.flush(10)
        assert change.applied == 128 and change.missing == 0
        updater.add([1, 2, 3], [1, 1, 1], timeout=60)
        assert updater.flush(10).missing == 3
        with pytest.raises(ValueError):
            updater.add([1, 2, 3], [1, 2])
        for wrong in (-1.0, np.nan, np.inf):
            with pytest.raises(replaybus.InvalidArgument, match="must be finite and not negative"):
                updater.add(batch.key[:2], [5.0, wrong])
        assert updater.flush(10).refused == 0
        assert set(client.fetch("replay", batch.key[:5]).priority.tolist()) == {2.0}
        for priority in (3.0, 4.0):
            updater.add(batch.key[:5], priority)  # fewer than a batch
            until(lambda: set(client.fetch("replay", batch.key[:5]).priority.tolist()) == {priority})
    with pytest.raises(replaybus.NotFound):
        client.updater("reply").add([1], 1.0)


def test_update_needs_a_priority_per_key(client):
    fill(client)
    core, keys = client.connect(), np.arange(1000, dtype=np.uint64)
    for values in (np.ones(1), np.ones(1001), None):
        with pytest.raises(ValueError, match="1000 keys"):
            core.request("update", 10, "replay", 0, 0, None, keys, values)


def test_update_and_delete(client):
    fill(client, n=10)
    keys = [item["key"] for item in client.items("replay")]
    assert len(keys) == 10
    assert client.update("replay", keys[:5] + [1], 7) == (5, 1, 0)
    assert client.delete("replay", keys[:3]) == (3, 0, 0)
    assert sorted(client.fetch("replay", keys).priority.tolist()) == [1] * 5 + [7] * 2
    assert client.update("replay", [], []) == (0, 0, 0)
    for none in ([], [1, 2]):
        assert len(client.fetch("replay", none)) == 0 and client.fetch("replay", none).data == {}
    with pytest.raises(replaybus.NotFound, match="no table 'nowhere'"):
        client.fetch("nowhere", [1])
    with pytest.raises(replaybus.InvalidArgument, match="at most 2048 keys, not 5000: split them"):
        client.fetch("replay", range(5000))
    for size, why in ((0, "is 0: it must be 1 or more"), (-3, "is -3: it must be 1 or more"), (10000, "is 10000, .*: take several")):
        with pytest.raises(replaybus.InvalidArgument, match=f"batch_size {why}"):
            client.sample("replay", size)
    with pytest.raises(replaybus.InvalidArgument):
        client.update("replay", keys, float("nan"))
    for wrong in ([1.5], ["key"], [None]):
        with pytest.raises(TypeError):
            client.delete("replay", wrong)


def test_an_error_in_a_with_block_is_not_hidden(client):
    fill(client)
    with client.sampler("replay", 4) as sampler:
        keys = sampler.next(60).key
    for open_one in (lambda: client.updater("replay"), lambda: client.params.publisher("hidden")):
        with pytest.raises(ZeroDivisionError), open_one() as one:
            if hasattr(one, "add"):
                one.add(keys, np.ones(4))
            1 / 0
    with client.updater("replay") as updater, pytest.raises(ValueError, match="3 priorities for 4 keys"):
        updater.add(keys, np.ones(3))
