"""Batches on a device before they are asked for, and priorities back, with a device that is late."""
import collections
import contextlib
import gc
import random
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is missing: ./dev install gets python3-torch")

import replaybus  # noqa: E402
import replaybus.torch as rt  # noqa: E402
from conftest import in_child, insert_rows, until  # noqa: E402
from replaybus.torch import device as devices  # noqa: E402

torch.set_num_threads(1)
WAIT = 60


def fill(client, table="uniform", n=200, rows=40):
    """Row k of step i is i."""
    insert_rows(client, table, x=np.arange(n, dtype="int16").repeat(rows).reshape(n, rows), n=np.arange(n, dtype="uint32"))


class Event:
    """Work of a device. It is done when somebody waits for it, or sometime later; those before it are done first."""

    def __init__(self, device, work):
        self.device, self.work = device, work
        device.queue.append(self)

    def query(self):
        while self.device.queue and self.device.random.random() < self.device.hurry:
            self.device.queue[0].synchronize()
        return self.work is None

    def synchronize(self):
        while self.work is not None:
            first = self.device.queue.popleft()
            first.work()
            first.work = None


class Late:
    """A device that reads the host's memory as late as it may."""

    def __init__(self, seed, hurry=0.3):
        self.queue, self.random, self.hurry, self.used = collections.deque(), random.Random(seed), hurry, []

    def copy(self, block):
        out, source = torch.full_like(block, 0xEE), weakref.ref(block)
        return devices.Copy(out, Event(self, lambda: out.copy_(source())))  # None: the memory was given back too early

    def use(self, copy):
        self.used.append(copy.done)

    def to_host(self, tensor):
        out = torch.full_like(tensor, -1)
        return out, Event(self, lambda: out.copy_(tensor))


def feed_of(arrays, device, ahead=2):
    return devices.Feed(lambda wait: rt.Batch(arrays.next(wait)), device, ahead)


@pytest.mark.parametrize("ahead", (1, 2, 5))
def test_memory_is_not_used_again_before_it_was_copied(client, ahead):
    fill(client)
    device = Late(ahead)
    with client.sampler("uniform", 16, max_samples=16 * 200) as arrays:
        feed, last = feed_of(arrays, device, ahead), -1
        for _ in range(200):
            batch = feed.next(WAIT)
            assert device.used[-1] is not last and len(feed._started) <= ahead and len(feed._held) <= ahead + 2
            last = device.used[-1]
            last.synchronize()  # the consumer's stream has waited for the copy
            number = batch.data["n"]
            assert number.dtype == torch.int64 and torch.equal(batch.data["x"].long(), number[..., None].expand(16, 1, 40))
            assert len(set(batch.key.tolist())) > 1 and batch.info["n"] == len(batch) == 16
        for _ in range(2):
            with pytest.raises(replaybus.EndOfStream):
                feed.next(WAIT)
    assert len(device.used) == 200


def test_a_feed_that_ends_waits_for_its_copies(client):
    fill(client)
    device = Late(7, hurry=0)
    with client.sampler("uniform", 16) as arrays:
        until(lambda: arrays.stats()["ready"] >= 3)
        feed = feed_of(arrays, device)
        feed.next(WAIT)
        started, held = list(feed._started), list(feed._held)
        assert len(started) == 2 and len(held) == 3
        del feed
        gc.collect()
    assert all(copy.done.work is None for _, copy in held) and device.used[-1] is started[-1][1].done


def test_a_feed_waits_and_passes_errors_on(client):
    with client.sampler("uniform", 4, max_samples=8) as arrays:
        feed = feed_of(arrays, Late(1))
        for wait in (0, 0.2):
            with pytest.raises(replaybus.DeadlineExceeded, match="uniform"):
                feed.next(wait)
        fill(client)
        assert len(feed.next(WAIT)) == len(feed.next(WAIT)) == 4
    batches = iter([rt.Batch(client.sampler("uniform", 4).next(WAIT)), OSError("the disk"), StopIteration()])

    def take(timeout):
        batch = next(batches)
        if isinstance(batch, Exception):
            raise batch
        return batch
    feed = devices.Feed(take, Late(1))
    assert len(feed.next()) == 4
    for error in (OSError, StopIteration):  # after what came before it
        with pytest.raises(error):
            feed.next()


def test_closing_ends_a_wait(client):
    sampler = rt.Sampler(client, "needs", 4, device="cpu")
    sampler._feed = feed_of(sampler._arrays, Late(1))
    closing = threading.Timer(0.2, sampler.close)
    closing.start()
    with pytest.raises(replaybus.Cancelled):
        sampler.next()
    closing.join()
    assert "closed" in repr(sampler)


def test_a_feed_is_closed_while_another_thread_copies(client):
    """Nothing is left under way, whatever the thread was doing; its call ends with a batch or with Cancelled."""
    fill(client)

    class Slow(Late):
        def copy(self, block):
            copy = super().copy(block)
            if self.random.random() < 0.3:
                closing.release()
                closed.acquire(timeout=0.02)  # anywhere in the other thread's close
            return copy

    for seed in range(20):
        closing, closed, device = threading.Semaphore(0), threading.Semaphore(0), Slow(seed, hurry=0)
        with client.sampler("uniform", 16) as arrays:
            feed = feed_of(arrays, device, 4)

            def consume():
                while True:
                    feed.next(WAIT)

            with ThreadPoolExecutor(1) as pool:
                call = pool.submit(consume)
                assert closing.acquire(timeout=WAIT)
                feed.close()
                closed.release()
                assert type(call.exception(WAIT)) is replaybus.Cancelled
            assert not feed._started and not feed._held and all(event.work is None for event in device.used)


def test_a_batch_that_the_device_refuses_is_copied_later(client):
    fill(client)
    refused = []

    class Full(Late):
        def copy(self, block):
            if self.random.random() < 0.5:
                refused.append(block.data_ptr())
                raise RuntimeError("CUDA out of memory")
            return super().copy(block)

    with client.sampler("uniform", 16, max_samples=16 * 50) as arrays:
        feed, batches, errors = feed_of(arrays, Full(3)), 0, 0
        while True:
            try:
                assert len(feed.next(WAIT)) == 16
                batches += 1
            except RuntimeError as error:
                assert "out of memory" in str(error)
                errors += 1
            except replaybus.EndOfStream:
                break
    assert batches == 50 and errors == len(refused) > 0


def test_a_child_leaves_the_device_alone(client):
    fill(client)
    device = Late(3)
    with client.sampler("uniform", 16) as arrays:
        feed = feed_of(arrays, device)
        feed.next(WAIT)
        before = len(device.used)
        assert in_child(lambda: feed.close() or len(device.used)) == before
        assert feed.next(WAIT) is not None


class Runtime:
    """The functions of CUDA's runtime that pin memory."""

    def __init__(self, refuse=0):
        self.pinned, self.all, self.refuse, self.unknown = {}, [], refuse, []

    def cudaHostRegister(self, address, size, flags):
        assert not any(address < start + length and start < address + size for start, length in self.pinned.items())
        if self.refuse and len(self.all) >= 1:  # the first may be pinned
            return self.refuse
        self.pinned[address] = size
        self.all.append(address)
        return 0

    def cudaHostUnregister(self, address):
        if self.pinned.pop(address, None) is None:
            self.unknown.append(address)


def test_batches_come_in_pinned_memory(client, monkeypatch):
    fill(client, rows=2000)
    runtime = Runtime()
    monkeypatch.setattr(torch.cuda, "cudart", lambda: runtime)
    memory, device = devices.Pinned(), Late(2)
    arrays = replaybus.Sampler([(client, "uniform")], 64, memory=memory)
    feed, batches = feed_of(arrays, device), []
    for i in range(100):
        batch = feed.next(WAIT)
        block = feed._held[-1][0].block if feed._held else None
        if block is not None:
            memory.pin(block.data_ptr())
            assert block.data_ptr() % 4096 == 0 and runtime.pinned[block.data_ptr()] >= block.numel()
        if i % 10 == 0:
            batches.append(arrays.next(WAIT))  # outlives the sampler
    assert 0 < len(runtime.all) <= 30 and len(set(runtime.all)) == len(runtime.all)  # blocks are used again
    arrays.close()
    feed.close()
    del feed, memory, block, batch, arrays
    gc.collect()
    for batch in batches:
        assert (batch.data["x"] == batch.data["n"][..., None]).all()
    assert runtime.pinned
    del batches, batch
    gc.collect()
    assert not runtime.pinned and not runtime.unknown


class Stream:
    """A stream of a device that is this CPU: what it is given to do is done."""

    def __init__(self, device=None):
        self.recorded = []

    def wait_stream(self, other):
        assert other is not self

    def wait_event(self, event):
        assert event.query()

    def record_event(self, event):
        self.recorded.append(event)
        return event


def test_the_calls_of_cuda(client, monkeypatch):
    """The sampler and the updater of a CUDA device, with torch's functions for it played by the CPU."""
    fill(client, "replay")
    runtime, consumer, empty = Runtime(), Stream(), torch.empty
    for name, value in (("cudart", lambda: runtime), ("Stream", Stream), ("current_stream", lambda device: consumer),
                        ("stream", lambda stream: contextlib.nullcontext()), ("Event", lambda blocking: devices.DONE)):
        monkeypatch.setattr(torch.cuda, name, value)
    monkeypatch.setattr(torch, "empty", lambda *shape, device=None, pin_memory=False, **options: empty(*shape, **options))
    with rt.Sampler(client, "replay", 16, device="cuda:0") as sampler, rt.Updater(client, "replay") as updater:
        for _ in range(20):
            batch = sampler.next(WAIT)
            assert torch.equal(batch.data["x"][:, 0, 0].long(), batch.data["n"][:, 0]) and runtime.pinned
            updater.add(batch.key, batch.data["n"][:, 0] + 1)
        assert updater.flush(WAIT).applied == 320 and "waiting" in repr(sampler)
    rows = client.fetch("replay", batch.key)
    assert (rows.priority == rows.data["n"][:, 0] + 1).all()
    assert not sampler._feed._held and not sampler._feed._started
    del sampler
    gc.collect()
    assert not runtime.pinned


def test_memory_that_cannot_be_pinned_is_used_as_it_is(client, monkeypatch):
    """CUDA's error is taken at once: otherwise the next work of the consumer would raise it."""
    fill(client)
    runtime, taken, ones = Runtime(refuse=2), [], torch.ones

    def launch(n, device=None, **options):
        if device is None:
            return ones(n, **options)
        taken.append(device)
        raise RuntimeError("CUDA error: out of memory")
    monkeypatch.setattr(torch.cuda, "cudart", lambda: runtime)
    monkeypatch.setattr(torch, "ones", launch)
    memory, batches = devices.Pinned("cuda:1"), []
    arrays = replaybus.Sampler([(client, "uniform")], 16, memory=memory)
    with pytest.warns(RuntimeWarning, match="error 2.*ulimit -l"):
        while not taken and len(batches) < 20:
            batches.append(rt.Batch(arrays.next(WAIT)))
            memory.pin(batches[-1].block.data_ptr())
    assert set(taken) == {"cuda:1"}
    arrays.close()
    del arrays, batches, memory
    gc.collect()
    assert len(runtime.all) == 1 and not runtime.pinned and not runtime.unknown


def test_prefetch(client):
    fill(client)
    dataset = rt.Dataset(client, "uniform", 16, max_samples=160)
    assert [len(batch) for batch in rt.prefetch(dataset, "cpu", ahead=3)] == [16] * 10
    for batch in rt.prefetch(dataset, "cpu"):
        break  # an early end

    def fails():
        yield from dataset
        raise OSError("the disk")
    with pytest.raises(OSError, match="the disk"):
        list(rt.prefetch(fails(), "cpu"))


def test_wait_share(client):
    with rt.Sampler(client, "uniform", 4) as sampler:
        with pytest.raises(replaybus.DeadlineExceeded):
            sampler.next(1)
        assert 0.05 < sampler.stats()["wait_share"] <= 1 and "% of the time" in repr(sampler)
        fill(client)
        for _ in range(20):
            sampler.next(WAIT)
        assert 0 < sampler.stats()["wait_share"] < 1


def priorities_of(client, keys):
    rows = client.fetch("replay", keys)
    return dict(zip(rows.key.tolist(), rows.priority.tolist()))


def test_priorities_are_sent_in_order_without_waiting(client, monkeypatch):
    fill(client, "replay")
    device, pick = Late(5), random.Random(5)
    monkeypatch.setattr("replaybus.torch.updater.to_host", device.to_host)
    keys = client.sampler("replay", 100, distinct=True).next(WAIT).key
    wanted = {}
    with rt.Updater(client, "replay", pending=4) as updater:
        for i in range(100):
            some = torch.from_numpy(np.array(pick.sample(keys.tolist(), 7), "uint64").view("int64"))
            values = torch.arange(7.0) + 10 * i
            wanted.update(zip(some.numpy().view("uint64").tolist(), values.tolist()))
            updater.add(some, values)
            assert len(updater._pending) <= 4
        change = updater.flush(WAIT)
        assert change.applied == 700 and change.missing == 0 and not device.queue
    assert priorities_of(client, list(wanted)) == wanted


def test_an_update_that_fails_is_told_and_the_others_are_sent(client, monkeypatch):
    fill(client, "replay")
    device = Late(6)
    monkeypatch.setattr("replaybus.torch.updater.to_host", device.to_host)
    keys = client.sampler("replay", 8, distinct=True).next(WAIT).key
    updater = rt.Updater(client, "replay")
    with pytest.raises(ValueError, match="3 priorities for 8 keys"):
        updater.add(keys, torch.ones(3))
    updater.add(keys, torch.full((8,), float("nan")))
    errors = []
    for value in (1.0, 2.0):
        try:
            updater.add(keys, torch.full((8,), value))
            updater.flush(WAIT)
        except replaybus.InvalidArgument as error:
            errors.append(error)
    assert len(errors) == 1
    updater.close(WAIT)
    assert set(priorities_of(client, keys).values()) == {2.0}
    with pytest.raises(replaybus.Error):
        updater.add(keys, torch.ones(8))
        updater.flush(WAIT)


class Refused:
    """An updater whose first call tells the error of an earlier request."""

    def __init__(self, updater):
        self.add, self.close, self.real = self.fail, updater.close, updater

    def fail(self, *_):
        self.add = self.real.add
        raise replaybus.InvalidArgument("an earlier request")


def test_close_sends_what_is_left_after_an_error(client, monkeypatch):
    """The error is that of an earlier request: it takes nothing away from later ones."""
    fill(client, "replay")
    device = Late(8, hurry=0)
    monkeypatch.setattr("replaybus.torch.updater.to_host", device.to_host)
    keys = client.sampler("replay", 30, distinct=True).next(WAIT).key
    updater = rt.Updater(client, "replay")
    for i in (10, 20):
        updater.add(keys[i:i + 10], torch.full((10,), float(i)))
    updater._updater = Refused(updater._updater)
    with pytest.raises(replaybus.InvalidArgument):
        updater.close(WAIT)
    found = priorities_of(client, keys[10:])
    assert [found[int(key)] for key in keys[10:]] == [10.0] * 10 + [20.0] * 10


def test_an_error_after_a_copy_gives_no_batch_twice():
    """The device tells of an earlier failure when the feed looks whether a copy is done."""
    class Event:
        failures = 1

        def query(self):
            Event.failures -= 1
            if Event.failures == 0:
                raise RuntimeError("an earlier kernel")
            return False

        def synchronize(self):
            pass

    class Failing:
        def copy(self, block):
            return devices.Copy(block, Event())

        def use(self, copy):
            pass

    class Numbered:
        def __init__(self, number):
            self.number, self.block = number, torch.zeros(1)

        def on(self, block):
            return self

    numbers = iter(range(100))
    feed = devices.Feed(lambda timeout: Numbered(next(numbers)), Failing())
    given, errors = [], 0
    while len(given) < 5:
        try:
            given.append(feed.next().number)
        except RuntimeError:
            errors += 1
    assert given == list(range(5)) and errors == 1


needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device")
LARGE = dict(n=2000, rows=28_000)


def all_right(batches, n):
    """Whether every number of n batches is right on the device while other kernels keep it busy. Nothing here waits for the device."""
    busy, right = torch.randn(2048, 2048, device="cuda"), []
    for _, batch in zip(range(n), batches):
        busy = busy @ busy
        busy = busy / busy.norm()
        assert batch.data["x"].is_cuda and batch.weight.is_cuda and not batch.key.is_cuda
        right.append((batch.data["x"] == batch.data["n"][..., None]).all())
    return len(right) == n and bool(torch.stack(right).all())


@needs_cuda
@pytest.mark.parametrize("options", [{}, {"prefetch": 1}, {"prefetch": 4}])
def test_batches_on_a_busy_device(client, options):
    fill(client, **LARGE)
    with rt.Sampler(client, "uniform", 256, device="cuda", **options) as sampler:
        assert all_right(sampler, 200)


@needs_cuda
def test_batches_of_a_loader_and_of_other_streams(client):
    fill(client, **LARGE)
    gc.collect()  # what CUDA made in this process must not be freed in the workers, which are forked
    dataset = rt.Dataset(client, "uniform", 256, max_samples=100 * 256)
    assert all_right(rt.prefetch(torch.utils.data.DataLoader(dataset, batch_size=None, num_workers=2, pin_memory=True), "cuda"), 100)
    with torch.cuda.stream(torch.cuda.Stream()), rt.Sampler(client, "uniform", 256, device="cuda") as sampler:
        assert all_right(sampler, 50)
        with torch.cuda.stream(torch.cuda.Stream()):  # what was copied for one stream is used by another
            assert all_right(sampler, 50)


@needs_cuda
def test_priorities_come_back_while_their_tensor_is_written_again(client):
    fill(client, "replay")
    priorities = torch.zeros(64, device="cuda")
    with rt.Sampler(client, "replay", 64, device="cuda") as sampler, rt.Updater(client, "replay") as updater:
        for _, batch in zip(range(200), sampler):
            torch.randn(2048, 2048, device="cuda").matmul(torch.randn(2048, 2048, device="cuda"))
            priorities.copy_(batch.data["n"][:, 0] + 1)
            updater.add(batch.key, priorities)
        assert updater.flush(WAIT).missing == 0
    rows = client.fetch("replay", batch.key)
    assert (rows.priority == rows.data["n"][:, 0] + 1).all()
