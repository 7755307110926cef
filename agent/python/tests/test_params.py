"""Publishers and subscribers, sums over members, and blocks of named tensors."""
import contextlib
import os
import signal
import sys
import threading
import time

import numpy as np
import pytest

import replaybus
from conftest import beside, served
from replaybus import _core, weights


def test_a_large_put_lets_other_threads_run(client):
    data, stamps, stop = np.ones(1 << 28, "uint8"), [], threading.Event()

    def run() -> None:
        while not stop.wait(0.001):
            stamps.append(time.monotonic())

    def copies() -> float:
        start = time.monotonic()
        data.copy()
        return time.monotonic() - start

    least = min(copies() for _ in range(3))
    publisher = client.params.publisher("large")
    with beside(run, end=stop.set):
        for _ in range(5):
            start = time.monotonic()
            publisher.put(data)
            if any(0.3 * least < stamp - start < 0.7 * least for stamp in stamps):
                break
        else:
            pytest.fail("no other thread ran while a block was copied")
    with contextlib.suppress(replaybus.Error):  # it may not fit, and nobody wants it
        publisher.close(0)


def test_calls_to_a_lost_broker_wait_no_longer_than_asked():
    with replaybus.Server([replaybus.Table("replay")]) as server, server.client(timeout=1) as client:
        publisher = client.params.publisher("weights")
        client.insert(1.0, {"replay": 1.0})
        server.stop()
        for call in (lambda: client.insert(1.0, {"replay": 1.0}, timeout=0.2), lambda: client.params.get("weights", timeout=0.2),
                     lambda: client.checkpoint(timeout=0.2)):
            start = time.monotonic()
            with pytest.raises((replaybus.DeadlineExceeded, replaybus.Unavailable)):
                call()
            assert 0.2 <= time.monotonic() - start < 1.2
        publisher.put(b"weights")
        for wait in (publisher.flush, publisher.close, publisher.close):
            with pytest.raises(replaybus.DeadlineExceeded, match="'weights' was not stored within 1000 ms"):
                wait()
        publisher.put(b"newer")  # it is still open


def test_publisher_and_subscriber(client):
    with client.params.subscriber("weights") as subscriber, client.params.publisher("weights") as publisher:
        subscriber.take()
        for i in range(100):
            publisher.put(np.full(10, i, "float32"))
        version = publisher.flush(10)
        seen, end = None, time.monotonic() + 60
        while (seen is None or seen.version != version) and time.monotonic() < end:
            seen = subscriber.take(1) or seen
        assert seen.version == version and np.frombuffer(seen.data, "float32").tolist() == [99] * 10
        assert subscriber.take() is None and subscriber.take(0.15) is None
        assert subscriber._flush(0) == (0, 0, 0)  # it holds nothing back
        with pytest.raises(TypeError):
            publisher.put(3)
        publisher.put(np.zeros(2, "datetime64[s]"))  # of a type that has no letter in a buffer's format
        publisher.flush(10)
    for call in (lambda: publisher.put(b""), publisher.flush, subscriber.take):
        with pytest.raises(replaybus.FailedPrecondition, match="closed"):
            call()
    with pytest.raises(replaybus.Error):
        client.params.publisher("")


def test_a_value_above_the_limit_is_named():
    with served(replaybus.Table("t"), config={"memory_limit": "64MB"}) as client:
        with pytest.raises(replaybus.ResourceExhausted, match="^a put of 'p': parameters may take 16"):
            client.params["p"] = bytes(50_000_000)


def test_reduce_alone(client):
    with client.reduce("one") as member:
        values = np.arange(3, dtype="float32")
        assert member.add(values, timeout=60).contributors == 1 and values.tolist() == [0, 1, 2]
        for wrong in (np.zeros(3), np.zeros((4, 4), "float32")[:, 0]):
            with pytest.raises((ValueError, BufferError)):
                member.add(wrong)
    with client.reduce("two") as first, client.reduce("two"):
        with pytest.raises(replaybus.DeadlineExceeded):
            first.add(values, timeout=0.15)
    with pytest.raises(replaybus.FailedPrecondition, match="closed"):
        member.add(values)


def test_a_late_broker_is_no_empty_slot():
    with replaybus.Server([replaybus.Table("t")]) as server, server.client() as client:
        client.params["late"] = b"here"
        os.kill(server.process.pid, signal.SIGSTOP)
        threading.Timer(2.5, os.kill, (server.process.pid, signal.SIGCONT)).start()  # longer than a look at the slot may take
        assert client.params["late"].data == b"here" and "late" in client.params and "never" not in client.params


@pytest.mark.parametrize("shared", ["0", "1"])
def test_large_values(client, monkeypatch, shared):
    monkeypatch.setenv("REPLAY_SHM", shared)
    tensors = {"w": np.arange(3_000_000, dtype="float32"), "bias": np.full(7, 1.5, "float32"), "steps": np.array([3], "uint64")}
    block = weights.encode(tensors)
    with replaybus.Client(client.endpoint) as other:
        name = f"large {shared}"
        assert other.params.put(name, block) == 1
        param = other.params[name]
        assert isinstance(param.data, memoryview) and param.data.readonly and param.data == block
        assert (weights.decode(param.data)["w"] == tensors["w"]).all()
        other.params[name] = b"small"
        assert other.params[name].data == b"small"
        assert param.data == block  # the old version stays as long as somebody has it
    del other
    assert param.data[-4:] == block[-4:]


@pytest.mark.parametrize("offered", [True, False])
@pytest.mark.parametrize("size", [10, 3_000_000])
def test_bf16(client, offered, size):
    tensors = {"w": np.linspace(-3, 3, size, dtype="float32"), "steps": np.array([3], "uint64")}
    tensors["w"][0] = np.nan
    name = f"half {offered} {size}"
    with client.params.subscriber(name, bf16=True) as half, client.params.subscriber(name) as full, \
            client.params.publisher(name, bf16=offered) as publisher:
        publisher.put(weights.encode(tensors))
        assert publisher.flush(10) == 1
        assert (weights.decode(full.take(10).data)["w"][1:] == tensors["w"][1:]).all()
        param = half.take(10)
        got = weights.decode(param.data)
        assert param.version == 1 and got["w"].dtype == np.uint16 and got["steps"].tolist() == [3]
        assert len(param.data) < 2 * size + 300
        back = (got["w"].astype("uint32") << 16).view("float32")
        assert np.isnan(back[0]) and np.abs(back[1:] - tensors["w"][1:]).max() <= 3 / 256
        if offered:
            with pytest.raises(replaybus.DataLoss, match="not weights"):
                publisher.put(b"something else than weights, which has no second form")


def test_a_value_of_more_than_half_of_the_room_is_replaced():
    with replaybus.Server([replaybus.Table("t")], config={"memory_limit": "64MiB"}) as server, server.client(timeout=60) as client:
        for n in range(3):
            client.params["policy"] = bytes([n]) * (10 << 20)  # of 16 MiB for all values
        assert client.params["policy"].data[:1] == b"\2"
        with pytest.raises(replaybus.Error, match="memory_limit"):
            client.params["policy"] = bytes(17 << 20)


# The example of proto/PROTOCOL.md, 21, which tests/unit/net/test_weights.c compares with the C encoder.
EXAMPLE = bytes.fromhex("52505754 01000000 01000000 20000000 4c00000000000000 0000000000000000 010c010000000000"
                        "4000000000000000 0200000000000000 6200000000000000 0000803f 000000c0 b80bbce5")


def test_the_documented_block():
    assert weights.encode({"b": np.array([1, -2], "float32")}) == EXAMPLE
    assert weights.decode(EXAMPLE)["b"].tolist() == [1, -2]


def test_all_types_and_shapes():
    tensors = {f"{dtype}/{len(shape)}": np.ones(shape, dtype) * 3 for shape in ((), (2,), (2, 3, 4), (0, 5))
               for dtype in ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32",
                             "float64", "complex64", "complex128")}
    tensors |= {"bool": np.array([True, False]), "transposed": np.arange(6, dtype="float32").reshape(2, 3).T}
    back = weights.decode(weights.encode(tensors))
    assert list(back) == list(tensors)
    for name, array in tensors.items():
        assert back[name].dtype == array.dtype and back[name].shape == array.shape
        assert np.array_equal(back[name], array)


@pytest.mark.parametrize("at", [0, 4, 8, 16, 34, 40, 64, 75])
def test_a_damaged_block_is_rejected(at):
    block = bytearray(EXAMPLE)
    block[at] ^= 0xFF
    with pytest.raises((replaybus.DataLoss, replaybus.Unsupported)):
        weights.decode(block)


def test_names_and_values_that_are_not_allowed():
    for name in ("", "a b", "x" * 128, "ä"):
        with pytest.raises(ValueError, match="1 to 127 visible ASCII"):
            weights.encode({name: np.zeros(1)})
    with pytest.raises(ValueError, match="tensor 'o'"):
        weights.encode({"o": np.array(["text"])})
    with pytest.raises(ValueError, match="at most 1024"):
        weights.encode({str(i): 0.0 for i in range(1025)})


def test_files(tmp_path):
    weights.save(tmp_path / "a.weights", {"x": np.arange(3)})
    assert weights.load(tmp_path / "a.weights")["x"].tolist() == [0, 1, 2]
    assert [path.name for path in tmp_path.iterdir()] == ["a.weights"]


@pytest.mark.skipif(sys.version_info < (3, 12), reason="only from 3.12 on does reading a buffer run Python")
def test_a_buffer_that_changes_its_dict():
    class Grows:
        def __buffer__(self, flags):
            tensors.update((f"more{i}", np.ones(4)) for i in range(1000))
            return memoryview(b"1234")

    tensors = {"first": Grows()}
    assert list(weights.decode(_core.weights_encode(tensors))) == ["first"]
