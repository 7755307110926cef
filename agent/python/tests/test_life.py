"""Threads, fork, Ctrl-C, garbage collection, closing in any order, and memory."""
import contextlib
import functools
import gc
import glob
import itertools
import multiprocessing
import operator
import os
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import replaybus
from conftest import beside, fill, in_child, run_threads, served, until
from replaybus import Last


@pytest.mark.parametrize("order", ["cwsu", "uswc", "wcus", "scuw", "cusw"])
def test_close_in_any_order(server, order):
    client = server.client()
    fill(client)
    objects = {"c": client, "w": client.writer({"x": 1.0}), "s": client.sampler("replay", 4), "u": client.updater("replay")}
    objects["s"].next(60)
    for name in order:
        objects[name].close()
        objects[name].close()
    for call in (client.info, lambda: objects["w"].append({"x": 1.0}), lambda: objects["s"].next(1), objects["u"].flush):
        with pytest.raises(replaybus.FailedPrecondition, match="closed"):
            call()


def test_use_after_the_client_is_closed(server):
    client = server.client()
    fill(client)
    sampler, writer = client.sampler("replay", 4), client.writer()
    client.close()
    writer.append({"x": 1.0})
    writer.item("uniform")
    writer.close(60)
    assert len(sampler.next(60)) == 4
    sampler.close()


def test_garbage_collection(client):
    fill(client)
    writer, sampler, updater = client.writer({"x": 1.0}), client.sampler("replay", 4), client.updater("replay")
    writer.append({"x": 1.0})
    writer.item("uniform")
    updater.add([1], 1.0)
    refs = [weakref.ref(thing) for thing in (writer, sampler, updater)]
    circle = [writer, sampler, updater]
    circle.append(circle)
    del writer, sampler, updater, circle
    gc.collect()
    assert [ref() for ref in refs] == [None] * 3
    assert client.info("uniform")["tables"][0]["size"] == 1  # the item of a dropped writer arrived


def test_what_uses_a_server_keeps_it_and_all_go_with_the_last_reference(tmp_path, caplog):
    gc.disable()
    try:
        client = replaybus.Server([replaybus.Table.queue("t", 5)]).client(timeout=60)
        client.params["a"] = b"1"
        for options in ({}, {"ack": True}):
            client.insert({"x": 1.0}, {"t": 1.0})
            client.sample("t", 1, **options)
        refs = [weakref.ref(client), weakref.ref(client._server)]
        users = [client.writer(), client.vector_writer(1), client.sequence_adder(1, "t", length=1, period=1), client.sampler("t"),
                 client.updater("t"), client.params.publisher("a"), client.params.subscriber("a"), client.reduce("a")]
        del client
        while users:
            assert refs[0]() is None and refs[1]().running
            users.pop()
        assert refs[1]() is None
        for items in (1, 6):  # more than there is room for
            vector = replaybus.Server([replaybus.Table.queue("t", 5)], journal=tmp_path / str(items)).client().vector_writer(1)
            for _ in range(items):
                vector.append({"x": np.zeros(1)}, item=Last(1, "t"))
            server = weakref.ref(vector._keeps)
            del vector  # its items arrive before the server goes
            assert server() is None and replaybus.open(tmp_path / str(items)).tables == {"t": min(items, 5)}
        assert [line.getMessage().count("after 2 s") for line in caplog.records] == [1]
    finally:
        gc.enable()


def run_script(text, endpoint="", timeout=120):
    return subprocess.run([sys.executable, "-c", textwrap.dedent(text), endpoint], capture_output=True, text=True,
                          timeout=timeout)


def test_interpreter_exit(server, client):
    out = run_script("""
        import sys, replaybus
        client = replaybus.Client(sys.argv[1], timeout=60)
        writer, sampler, updater = client.writer(), client.sampler("replay", 4), client.updater("replay")
        writer.append({"x": 1.0}); writer.item("uniform")
        own = replaybus.Server([replaybus.Table("t")])
        print(own.process.pid)
    """, server.endpoint)
    assert out.returncode == 0 and out.stderr == ""
    assert client.info("uniform")["tables"][0]["size"] == 1
    with pytest.raises(ProcessLookupError):
        os.kill(int(out.stdout), 0)


@pytest.mark.parametrize("shards, end", [(1, "SIGTERM"), (2, "SIGKILL")])
def test_a_broker_ends_in_order_with_a_program_that_is_killed(tmp_path, shards, end):
    left = set(glob.glob(f"{tempfile.gettempdir()}/replaybus-*"))
    out = run_script(f"""
        import os, signal, sys, threading, replaybus
        def start():
            global server
            server = replaybus.Server([replaybus.Table("t")], checkpoint=sys.argv[1], shards={shards})
        thread = threading.Thread(target=start)
        thread.start(), thread.join()
        server.client().insert(1.0, {{"t": 1.0}})  # it does not end with the thread that has started it
        print(server.process.pid, flush=True)
        os.kill(os.getpid(), signal.{end})
    """, str(tmp_path))
    assert out.returncode == -signal.Signals[end]
    until(lambda: not os.path.exists(f"/proc/{int(out.stdout)}/exe"))
    assert set(glob.glob(f"{tempfile.gettempdir()}/replaybus-*")) == left
    with served(replaybus.Table("t"), checkpoint=tmp_path, shards=shards) as client:
        assert client.info("t")["tables"][0]["size"] == 1


@pytest.fixture
def quick_switches():
    """Threads take turns a thousand times as often as usual."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(5e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.parametrize("close", [False, True])
def test_many_threads_on_the_same_objects(client, quick_switches, close):
    """Eight threads use one of each. With close, one of them closes everything in the middle: the others get an error, no more."""
    fill(client, n=200)
    writer, vector = client.writer(keep_alive=4), client.vector_writer(3, keep_alive=4)
    sampler, updater, publisher = client.sampler("replay", 8), client.updater("replay"), client.params.publisher("threads")
    rows, done, items = {"x": np.zeros((3, 2))}, np.array([True, False, True]), [0] * 8

    def use(i, t):
        writer.append({"x": np.full(3, t)})
        if t % 2:
            writer.item("uniform", 1.0, 1)
            items[i] += 1
        items[i] += vector.append(rows, done if t % 7 == 0 else None, Last(1, "uniform"))
        batch = sampler.next(60)
        updater.add(batch.key, batch.priority)
        assert batch.data["x"].shape == (8, 1, 10) and len(batch.weight) == 8
        if t % 10 == i:
            writer.flush(timeout=60), updater.flush(60), publisher.put(b"1"), client.info(), sampler.stats(), writer.info()

    def work(i):
        for t in itertools.count() if close else range(100):
            if close and i == 0 and t == 50:
                writer.close(), sampler.close(), updater.close(), vector.close(), publisher.close(), client.close()
                return
            use(i, t)

    failures = run_threads(8, work)
    if close:
        assert len(failures) == 7
        assert all(isinstance(error, (replaybus.FailedPrecondition, replaybus.Cancelled)) for error in failures), failures
        return
    assert not failures
    vector.flush(timeout=60), writer.flush(timeout=60)
    assert client.info("uniform")["tables"][0]["size"] == sum(items) == 8 * (50 + 300)
    [one.close() for one in (writer, vector, sampler, updater, publisher)]


def test_batches_and_arrays_cross_threads(client, quick_switches):
    """Arrays are made, used and dropped by other threads than the one that took the batch."""
    fill(client, n=200)
    with client.sampler("replay", 16) as sampler:
        batches = [sampler.next(60) for _ in range(200)]

    def work(i):
        while batches:
            try:
                batch = batches.pop()
            except IndexError:
                return
            assert batch.data["x"].sum() == batch.data["x"][:, 0, 0].sum() * 10
            assert (batch.key > 0).all() and batch.lengths["x"].tolist() == [1] * 16

    assert not run_threads(6, work)


def blocked_writer(client):
    """A writer whose table takes no more items."""
    writer = client.writer({"x": 0.0}, max_in_flight=5)
    writer.append({"x": 0.0})
    while client.info("ratio")["tables"][0]["waiting_inserts"] < 5:
        with contextlib.suppress(replaybus.DeadlineExceeded):
            writer.item("ratio", timeout=0.1)
    return writer


@pytest.mark.parametrize("wait", ["sampler", "flush", "item", "block", "param", "connect"])
def test_waits_free_the_gil(client, wait):
    writer = blocked_writer(client) if wait in ("flush", "item", "block") else None
    call = {"sampler": lambda: client.sampler("needs", 4).next(0.3), "flush": lambda: writer.flush(timeout=0.3),
            "item": lambda: [writer.item("ratio", timeout=0.3) for _ in range(50)],
            "block": lambda: writer.append_block({"x": np.zeros(50)}, Last(1, "ratio"), timeout=0.3),
            "param": lambda: client.params.get("never", timeout=0.3),
            "connect": lambda: replaybus.Client("tcp://127.0.0.1:1", timeout=0.3).info()}[wait]
    caught = []

    def ticks_during_the_wait():
        thread = threading.Thread(target=lambda: caught.append(pytest.raises((TimeoutError, replaybus.Unavailable), call)))
        thread.start()
        ticks, end = 0, time.monotonic() + 0.2
        while time.monotonic() < end:
            ticks += 1
        thread.join()
        return ticks

    # A busy machine may leave this process no time now and then, but not each time.
    assert any(ticks_during_the_wait() > 5_000 for _ in range(6)) and caught
    client.reset("ratio")


def test_close_ends_a_wait_of_another_thread(client):
    sampler = client.sampler("needs", 4)
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(next, sampler)
        time.sleep(0.2)
        sampler.close()
        assert isinstance(call.exception(60), replaybus.Cancelled)


WAITS = {
    "sampler": "sampler = client.sampler('needs', 4); go(); next(sampler)",
    "params": "client.tables; go(); client.params.get('never written')",
    "item": "w = client.writer({'x': 0.0}, max_in_flight=5); w.append({'x': 1.0}); go(); [w.item('ratio') for _ in range(200)]",
    "flush": "w = client.writer({'x': 0.0}); w.append({'x': 1.0}); [w.item('ratio') for _ in range(100)]; go(); w.flush()",
    "block": "w = client.writer({'x': 0.0}, max_in_flight=5); go();"
             "w.append_block({'x': np.zeros(200)}, replaybus.Last(1, 'ratio'))",
    "connect": "client = replaybus.Client('tcp://127.0.0.1:1'); go(); client.info()",
    "vector": "w = client.vector_writer(3, {'x': 0.0}, max_in_flight=5); go();"
              "[w.append({'x': np.zeros(3)}, item=replaybus.Last(1, 'ratio')) for _ in range(200)]",
    "subscriber": "s = client.params.subscriber('never written'); go(); s.take(None)",
    "reduce": "m = client.reduce('ctrl-c'), client.reduce('ctrl-c'); go(); m[0].add(np.ones(3, 'float32'))",
    "actor": "a = replaybus.Actor(sys.argv[1], CONFIG); a.observe_first(np.zeros(4)); go(); a.act(np.zeros(4))",
    "close": "w = client.writer({'x': 0.0}); w.append({'x': 1.0}); [w.item('ratio') for _ in range(100)]; go(); w.close()",
}


def seconds_to_interrupt(server, wait):
    script = f"""
import sys, time, numpy as np, replaybus, replaybus.writer
replaybus.writer.EXIT_SECONDS = 0.0
def go():
    print("go", flush=True)
CONFIG = {{"environment": {{"name": "CartPole-v1"}}, "agent": {{"algorithm": "dqn"}}, "adder": {{"table": "replay"}},
           "broker": {{"tables": [replaybus.Table("replay")]}}}}
client = replaybus.Client(sys.argv[1])
try:
    {WAITS[wait]}
except KeyboardInterrupt as interrupt:
    print(time.monotonic(), *getattr(interrupt, "__notes__", ()), flush=True)
"""
    process = subprocess.Popen([sys.executable, "-c", script, server.endpoint], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "go\n"
    time.sleep(0.5)
    start = time.monotonic()
    process.send_signal(signal.SIGINT)
    line = process.stdout.readline()
    assert line and process.wait(60) == 0 and (wait != "block" or line.endswith(" of 200 steps were appended\n"))
    return float(line.split()[0]) - start


@pytest.mark.parametrize("wait", WAITS)
def test_ctrl_c(server, client, wait):
    if wait == "actor":
        pytest.importorskip("replaybus.envs", reason="the extension _agent is not built here")
    # A busy machine may make it late now and then, but not each time.
    assert any(seconds_to_interrupt(server, wait) < 0.2 for _ in range(6))


def test_the_first_call_waits_no_longer_than_asked():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    client = replaybus.Client(f"tcp://127.0.0.1:{port}")
    for timeout in (0, 0.2, 0):  # it goes on connecting after each
        start = time.monotonic()
        with pytest.raises(replaybus.DeadlineExceeded, match=f"no broker answers at tcp://127.0.0.1:{port} within {timeout:g} s"):
            client.info(timeout=timeout)
        assert timeout <= time.monotonic() - start < timeout + 60
    with replaybus.Server([replaybus.Table("late")], port=port):
        def connected():
            with contextlib.suppress(replaybus.DeadlineExceeded):
                return client.connect(0)

        until(connected)
        assert client.tables == ["late"]
        client.close()


@pytest.mark.parametrize("open_it", [
    lambda client: client.writer(timeout=0.1),
    lambda client: client.vector_writer(2, timeout=0.1),
    lambda client: client.updater("t", timeout=0.1),
    lambda client: client.sampler("t", timeout=0.1),
    lambda client: client.params.publisher("p", timeout=0.1),
    lambda client: client.params.subscriber("p", timeout=0.1),
])
def test_a_calls_own_deadline_covers_the_connection(open_it):
    with replaybus.Client("tcp://127.0.0.1:1") as client:
        with pytest.raises(replaybus.DeadlineExceeded):
            open_it(client)


def test_log_lines_arrive_during_a_wait(caplog):
    server = replaybus.Server([replaybus.Table("t")])
    with server.client() as connected, replaybus.Client("tcp://127.0.0.1:1") as lost:
        connected.info()
        stop = threading.Timer(0.1, server.process.kill)
        stop.start()
        with ThreadPoolExecutor(1) as pool, pytest.raises(replaybus.Cancelled):
            pool.submit(lambda: (until(lambda: caplog.records), lost.close()))
            lost.info()
        stop.join()
    assert "C0101" in caplog.text


def test_close_ends_connecting():
    client = replaybus.Client("tcp://127.0.0.1:1")
    with ThreadPoolExecutor(3) as pool:
        calls = [pool.submit(client.info) for _ in range(3)]
        time.sleep(0.2)
        client.close()
        assert [type(call.exception(60)) for call in calls] == [replaybus.Cancelled] * 3


def test_a_late_flush_says_how_long_and_what_for(client):
    writer = client.writer({"x": 0.0})
    writer.append({"x": 1.0})
    for _ in range(30):
        writer.item("ratio")
    with pytest.raises(replaybus.DeadlineExceeded, match="unconfirmed after 0.35 s.*'ratio'"):
        writer.flush(timeout=0.35)
    with pytest.raises(replaybus.DeadlineExceeded, match="after 0.2 s"):
        writer.close(0.2)
    writer._give_up()


def test_close_says_what_it_waits_for_and_can_be_repeated_after_its_timeout(caplog):
    with served(replaybus.Table.queue("queue", 3)) as client:
        with client.writer({"x": 0.0}) as writer, client.vector_writer(2, {"x": 0.0}) as vector:
            for _ in range(30):
                writer.append({"x": 1.0})
                writer.item("queue")
                vector.append({"x": np.zeros(2)}, item=Last(1, "queue"))
            for stream in (writer, vector, writer):
                with pytest.raises(replaybus.DeadlineExceeded, match="'queue'"):
                    stream.close(0.05)
            assert not writer.closed and not any(one.closed for one in vector._writers)
            writer.item("queue")
            with ThreadPoolExecutor(1) as pool, client.sampler("queue", 1, max_samples=91) as sampler:
                call = pool.submit(writer.close)
                until(lambda: "C0209" in caplog.text)
                assert "items are unconfirmed after 5 s: table 'queue' holds back" in caplog.text
                assert sum(map(len, sampler)) == 91
                call.result(60), vector.close(60)
                assert writer.closed and "C0208" not in caplog.text
        with pytest.raises(KeyError), client.writer({"x": 0.0}) as writer:
            writer.append({"x": 1.0})
            for _ in range(30):
                writer.item("queue")
            raise KeyError
        assert writer.closed
        until(lambda: "27 items are unconfirmed" in caplog.text)


@pytest.mark.parametrize("timeout", [float("inf"), 1e300, 1e10, 9.3e9])
def test_long_deadlines(client, timeout):
    fill(client)
    assert len(client.sampler("replay", 4, timeout=timeout).next(timeout)) == 4
    with client.writer({"x": 0.0}) as writer:
        writer.append({"x": 1.0}, timeout=timeout)
        writer.item("uniform", timeout=timeout)
        writer.flush(timeout=timeout)
    assert client.counter("long").add(1, timeout=timeout)
    client.params.put("long", b"x", timeout=timeout)
    assert client.params.get("long", timeout=timeout).data == b"x"
    assert client.update("replay", [1], [1.0], timeout=timeout) is not None
    client.reduce("long", timeout=timeout).close()
    assert client.info(timeout=timeout)["tables"]


@pytest.mark.parametrize("timeout", [float("nan"), -1, -1e300, -0.001, float("-inf")])
def test_deadlines_that_are_none(client, timeout):
    writer, sampler = client.writer({"x": 0.0}), client.sampler("replay", 4)
    for call in (lambda: writer.append({"x": 1.0}, timeout=timeout), lambda: writer.flush(timeout=timeout),
                 lambda: sampler.next(timeout), lambda: client.info(timeout=timeout), lambda: writer.close(timeout),
                 lambda: client.counter("none").add(1, timeout=timeout)):
        with pytest.raises(ValueError, match="timeout"):
            call()
    assert writer.info()["steps"] == 0


def seconds_to_close_a_blocked_vector(client):
    vector = client.vector_writer(4, {"x": 0.0})
    for _ in range(20):
        vector.append({"x": np.zeros(4)}, item=Last(1, "ratio"))
    with pytest.raises(replaybus.DeadlineExceeded, match="stream . of 4, 0.1 s for all"):
        vector.flush(timeout=0.1)
    start = time.monotonic()
    with pytest.raises(replaybus.DeadlineExceeded, match="stream . of 4, 0.3 s for all"):
        vector.close(0.3)
    took = time.monotonic() - start
    assert took >= 0.3 and not any(writer.closed for writer in vector._writers)
    with pytest.raises(ValueError, match="timeout"):
        vector.flush(timeout=float("nan"))
    vector._give_up()
    return took


def test_the_streams_of_a_vector_share_a_deadline(client):
    # A busy machine may make it late now and then, but not each time.
    assert any(seconds_to_close_a_blocked_vector(client) < 0.9 for _ in range(3))  # and not 4 times 0.3 s


def test_close_of_any_writer_ends_a_call_of_all(client):
    vector = client.vector_writer(3, {"x": 0.0}, max_in_flight=5)

    def write():
        while True:
            vector.append({"x": np.zeros(3)}, item=Last(1, "ratio"))

    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(write)
        time.sleep(0.5)  # by then it waits for room
        with pytest.raises(replaybus.DeadlineExceeded):
            vector._writers[2].close(0)
        assert isinstance(call.exception(60), replaybus.Cancelled)
    vector._give_up()


REENTRIES = {
    "sampler": ("sampler = client.sampler('needs', 4)", "sampler", "next(sampler)"),
    "writer": ("w = client.writer({'x': 0.0}); w.append({'x': 1.0}); [w.item('ratio') for _ in range(100)]", "w", "w.flush()"),
    "block": ("w = client.vector_writer(2, {'x': 0.0}, max_in_flight=5)", "w",
              "[w.append({'x': np.zeros(2)}, item=replaybus.Last(1, 'ratio')) for _ in range(200)]"),
    "subscriber": ("s = client.params.subscriber('never written')", "s", "s.take(None)"),
    "member": ("m = client.reduce('pair'), client.reduce('pair')", "m[0]", "m[0].add(np.ones(3, 'float32'))"),
}


@pytest.mark.parametrize("wait", REENTRIES)
@pytest.mark.parametrize("number", ["SIGALRM", "SIGTERM"])
def test_close_in_a_signal_handler(server, client, wait, number):
    make, name, call = REENTRIES[wait]
    out = run_script(f"""
        import os, signal, sys, threading, time, numpy as np, replaybus
        def handle(*_):
            print(time.monotonic() - start > 0.2, flush=True)
            {name}.close()
            {name}.close()
        client = replaybus.Client(sys.argv[1], timeout=60)
        {make}
        signal.signal(signal.{number}, handle)
        start = time.monotonic()
        if signal.{number} == signal.SIGALRM:
            signal.setitimer(signal.ITIMER_REAL, 0.3)
        else:
            threading.Timer(0.3, os.kill, (os.getpid(), signal.{number})).start()
        try:
            {call}
        except replaybus.Cancelled as error:
            print("cancelled", "signal handler" in str(error), time.monotonic() - start < 60)
        try:
            {call}
        except replaybus.FailedPrecondition as error:
            print("refused", "closed" in str(error))
        signal.setitimer(signal.ITIMER_REAL, 0)
    """, server.endpoint)
    assert out.stdout.split("\n") == ["True", "cancelled True True", "refused True", ""]
    assert {line[:5] for line in out.stderr.splitlines()} == ({"C0208"} if wait in ("writer", "block") else set())


def test_use_in_a_signal_handler():
    out = run_script("""
        import signal, replaybus
        def handle(*_):
            for call in (writer.flush, writer.info, lambda: writer.append({"x": 1.0}), lambda: writer.item("uniform")):
                try:
                    call()
                except replaybus.FailedPrecondition as error:
                    print("same thread" in str(error))
            with client.sampler("queue", 1) as sampler:
                [sampler.next(60) for _ in range(12)]
        server = replaybus.Server([replaybus.Table.queue("queue", 10), replaybus.Table("uniform")], mode="thread")
        client = server.client()
        writer = client.writer({"x": 0.0})
        writer.append({"x": 1.0})
        for _ in range(20):
            writer.item("queue")
        signal.signal(signal.SIGALRM, handle)
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        writer.flush(timeout=60)
        print(writer.info()["accepted"])
        writer.close()
    """)
    assert (out.stdout.split(), out.stderr) == (["True"] * 4 + ["20"], "")


@pytest.mark.parametrize("in_flight", [0, 4])
def test_a_batch_that_comes_with_a_signal_stays_for_the_next_call(in_flight):
    def interrupt(*_):
        raise InterruptedError

    def send():
        assert inside.wait(60)
        inside.clear()
        until(lambda: any(wait["kind"] == "sample" for wait in client.why()["waits"]))
        signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)
        client.insert({"x": 1.0}, {"queue": 1.0})

    inside, before = threading.Event(), signal.signal(signal.SIGUSR1, interrupt)
    with replaybus.Server([replaybus.Table.queue("queue", 10)]) as server, server.client() as client, \
            client.sampler("queue", 1, in_flight=in_flight) as sampler:
        for _ in range(5):
            with beside(send), pytest.raises(InterruptedError):
                inside.set()  # with items in flight the sampler waits at the broker before it is called
                sampler.next(60)
            assert len(sampler.next(10)) == 1
    signal.signal(signal.SIGUSR1, before)


def test_items_arrive_after_close_in_a_signal_handler(server, client):
    out = run_script("""
        import signal, sys, replaybus
        client = replaybus.Client(sys.argv[1], timeout=60)
        writer = client.writer({"x": 0.0}, max_in_flight=20)
        writer.append({"x": 1.0})
        for _ in range(10):
            writer.item("uniform")
        def handle(*_):
            writer.close()
        signal.signal(signal.SIGALRM, handle)
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        try:
            while True:
                writer.item("ratio")
        except replaybus.Cancelled:
            print("cancelled")
    """, server.endpoint)
    assert out.stdout == "cancelled\n" and out.stderr.startswith("C0208") and out.stderr.count("\n") == 1
    assert client.info("uniform")["tables"][0]["size"] == 10


@pytest.mark.parametrize("rows", [False, True])
def test_close_in_a_conversion(server, client, rows):
    out = run_script(f"""
        import sys, numpy as np, replaybus
        class Value:
            def __len__(self):
                return 3
            def __array__(self, *_, **__):
                try:
                    writer.flush()
                except replaybus.FailedPrecondition as error:
                    print("same thread" in str(error))
                writer.close()
                return np.zeros({3 if rows else ()})
        client = replaybus.Client(sys.argv[1], timeout=60)
        writer = client.writer({{"x": 0.0}})
        try:
            writer.{"append_block" if rows else "append"}({{"x": Value()}})
        except replaybus.Cancelled:
            print("cancelled", writer.closed, writer.is_open)
    """, server.endpoint)
    assert out.stdout == "True\ncancelled True False\n" and out.stderr == ""


def test_fork(client):
    fill(client)
    writer, sampler, updater = client.writer({"x": 1.0}), client.sampler("replay", 4), client.updater("replay")
    batch = sampler.next(60)
    for call in (lambda: writer.append({"x": 1.0}), writer.flush, lambda: sampler.next(1), updater.flush,
                 lambda: updater.add([1], 1.0)):
        error = in_child(call)
        assert isinstance(error, replaybus.FailedPrecondition) and "fork" in str(error)
    assert in_child(lambda: client.counter("fork").add(3)) == 3  # a fresh connection
    assert in_child(lambda: len(next(client.sampler("replay", 5)))) == 5
    assert in_child(lambda: float(batch.data["x"].sum())) == float(batch.data["x"].sum())

    def drop():
        nonlocal writer, sampler, updater, batch
        writer.close(), sampler.close(), updater.close()
        writer = sampler = updater = batch = None
        gc.collect()
        return "dropped"

    assert in_child(drop) == "dropped"
    writer.append({"x": 2.0})
    writer.item("uniform")
    writer.close(60)
    assert client.info("uniform")["tables"][0]["size"] == 1
    sampler.close(), updater.close()


def test_fork_while_threads_wait(client):
    writer, sampler, updater = client.writer({"x": 1.0}), client.sampler("needs", 4), client.updater("replay")
    writer.append({"x": 1.0})
    for _ in range(40):
        writer.item("ratio")
    stop = threading.Event()

    def wait(call):
        while not stop.is_set():
            with contextlib.suppress(replaybus.DeadlineExceeded):
                call(0.1)

    calls = (lambda s: writer.flush(timeout=s), sampler.next, lambda s: client.params.get("never written", timeout=s))

    def use():
        for call in (lambda: writer.flush(), lambda: sampler.next(1), lambda: updater.add([1], 1.0)):
            with pytest.raises(replaybus.FailedPrecondition, match="fork"):
                call()
        writer.close(), sampler.close(), updater.close()
        return client.counter("child").add(1)

    with beside(*(functools.partial(wait, call) for call in calls), end=stop.set):
        assert [in_child(use) for _ in range(5)] == [1, 2, 3, 4, 5]
    sampler.close(), updater.close()
    with pytest.raises(replaybus.DeadlineExceeded):
        writer.close(0)
    writer._give_up()


def test_pool(server, client):
    with multiprocessing.get_context("fork").Pool(2) as pool:
        assert pool.map(operator.attrgetter("tables"), [client] * 4, chunksize=1) == [client.tables] * 4
