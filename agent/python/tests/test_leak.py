"""No reference and no memory leaks: a million appends, a hundred thousand batches, and many of everything else."""
import gc
import sys

import numpy as np
import pytest

import replaybus
from conftest import insert_rows, rss_bytes
from replaybus import Last


def steady(run, n, warm_up=None, blocks=500, megabytes=16):
    """Runs n times. Neither Python's blocks nor the resident memory may grow by more than a little, however large n is."""
    run(warm_up or max(n // 10, 1))
    gc.collect()
    before, rss = sys.getallocatedblocks(), rss_bytes()
    run(n)
    gc.collect()
    assert sys.getallocatedblocks() - before < blocks
    assert rss_bytes() - rss < megabytes << 20


def fill(client):
    insert_rows(client, "uniform", x=np.zeros((100, 10), "float32"), y=np.arange(100))


def test_a_million_appends(client):
    observation, action = np.zeros(4, "float32"), np.int32(1)
    step = {"obs": {"x": observation}, "action": action, "reward": 1000.0}
    with client.writer(step, keep_alive=64, chunk_length=64) as writer:
        def run(n):
            append, item = writer.append, writer.item
            for _ in range(n):
                append(step)
                item("uniform", 1.0, 2)
            writer.flush(timeout=60)

        writer.append(step)
        counts = [sys.getrefcount(value) for value in (step, observation, action, "uniform")]
        steady(run, 1_000_000, 100_000, megabytes=12)
        assert [sys.getrefcount(value) for value in (step, observation, action, "uniform")] == counts


@pytest.mark.parametrize("n,rows", [(50, "block"), (5, "vector")])
def test_a_million_rows(client, n, rows):
    steps = {"obs": np.zeros((n, 4), "float32"), "action": np.ones(n, "int32")}
    done, item = np.arange(n) % 5 == 4, Last(2, "uniform", np.ones(n))
    writer = client.writer(keep_alive=64) if rows == "block" else client.vector_writer(n, keep_alive=64)

    def run(calls):
        for i in range(calls):
            if rows == "block":
                writer.append_block(steps, item)
            else:
                writer.append(steps, done, item)
            if i % 400 == 399:
                writer.flush(timeout=60)

    run(1)
    counts = [sys.getrefcount(value) for value in (steps, steps["obs"], done, item, item.priority)]
    steady(run, 1_000_000 // n, 50_000 // n)
    assert [sys.getrefcount(value) for value in (steps, steps["obs"], done, item, item.priority)] == counts
    writer.close()


def test_a_hundred_thousand_batches(client):
    fill(client)
    with client.sampler("uniform", 2, in_flight=32) as sampler:
        def run(n):
            for _ in range(n):
                batch = next(sampler)
                batch.data, batch.key, batch.priority, batch.weight, batch.lengths, batch.info, batch.age

        steady(run, 100_000, 10_000)


def test_everything_else(client):
    """Objects that come and go, requests, updates, selections and patterns."""
    fill(client)
    with client.updater("uniform") as updater, client.writer({"x": 0.0, "y": 0}, keep_alive=8) as writer:
        def run(n):
            for i in range(n):
                with client.sampler("uniform", 4) as sampler:
                    batch = sampler.next(60)
                updater.add(batch.key, np.ones(len(batch)))
                writer.append({"x": [1.0][0], "y": [2][0]})
                columns = writer.columns
                writer.item("replay", 1.0, {"a": columns["x"][-1:], "b": columns["y"][-1]})
                writer.flush(timeout=60)
                writer.rejections(), writer.info(), client.info("uniform"), client.fetch("uniform", batch.key[:1])
                client.counter("leak").add(1)
                client.params["leak"] = b"1" * 1000
                client.params["leak"]
                with client.writer({"z": 0.0}) as other:
                    other.append({"z": 1.0})

        steady(run, 150, 50)


def test_memory_of_batches(client):
    fill(client)
    buffer = np.zeros(1 << 16, "uint8")
    buffer = buffer[-buffer.__array_interface__["data"][0] % 64:][:1 << 15]
    count = sys.getrefcount(buffer)

    def run(n):
        for _ in range(n):
            with client.sampler("uniform", 64, memory=[buffer]) as sampler:
                held = [sampler.next(60) for _ in range(3)]
            with pytest.raises(ValueError):
                client.sampler("uniform", memory=[buffer, buffer])
            assert held.pop().block().nbytes

    steady(run, 300, 50)
    assert sys.getrefcount(buffer) == count


def test_failures(client):
    with client.writer({"x": np.zeros(100), "y": 0}) as writer:
        value = np.zeros(100)
        count = sys.getrefcount(value)

        def run(n):
            for _ in range(n):
                for wrong in ({"x": value, "y": "no"}, {"x": value}, {"x": value[::-1], "y": []}, [value, value]):
                    with pytest.raises((ValueError, TypeError)):
                        writer.append(wrong)
                with pytest.raises(replaybus.Error):
                    writer.item("nowhere")
                with pytest.raises((ValueError, TypeError)):
                    writer.append_block({"x": value, "y": [1]})

        steady(run, 1000)
        assert sys.getrefcount(value) == count


def test_tensors(client):
    pytest.importorskip("torch", reason="torch is not installed")
    from replaybus.torch import Sampler

    fill(client)
    sampler = Sampler(client, "uniform", 2, in_flight=32)

    def run(n):
        for _ in range(n):
            batch = next(sampler)
            batch.data, batch.key, batch.weight

    steady(run, 10_000)
    sampler.close()


def test_environments():
    envs = pytest.importorskip("replaybus.envs", reason="the extension _agent is not built here")
    env, vector, actions = envs.make("CartPole-v1"), envs.make_vec("CartPole-v1", 8), np.zeros(8, np.int64)

    def run(n):
        env.reset(seed=1), vector.reset(seed=1)
        for i in range(n):
            if True in env.step(i & 1)[2:4]:
                env.reset()
            vector.step(actions)
            envs.make("CartPole-v1") if i % 100 == 0 else None

    steady(run, 30_000)
