"""A broker for the whole run, and a fresh client for each test. Temporary files of tests and of what they start go with the run."""
import contextlib
import multiprocessing
import os
import pathlib
import shutil
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import replaybus
from replaybus import reverb

BUILD = pathlib.Path(replaybus._core.__file__).resolve().parents[3]  # build/dev of build/dev/lib/python/replaybus
LAUNCH = BUILD / "replay-launch"
needs_launch = pytest.mark.skipif(not LAUNCH.exists(), reason="replay-launch is only in a build tree")
TABLES = [
    replaybus.Table("replay", sampler="prioritized", max_size=200_000),
    replaybus.Table("uniform", max_size=200_000),
    replaybus.Table.queue("queue", 1000),
    replaybus.Table("needs", limiter={"kind": "min_size", "min_size": 1_000_000}),
    replaybus.Table("ratio", limiter={"kind": "sample_to_insert_ratio", "samples_per_insert": 1, "min_size": 1,
                                      "min_diff": -10, "max_diff": 10}),
    replaybus.Table("strict", signature={"x": ["float32", 1]}),
]


os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())  # tmp_path: pytest keeps the newest
TEMPORARY = tempfile.tempdir = os.environ["TMPDIR"] = tempfile.mkdtemp(prefix="replay-pytest-")


def pytest_unconfigure():
    replaybus.stop_all()  # they would write there
    shutil.rmtree(TEMPORARY, ignore_errors=True)


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    with replaybus.Server(TABLES, checkpoint=tmp_path_factory.mktemp("checkpoints")) as server:
        yield server


@pytest.fixture
def client(server):
    with server.client(timeout=60) as client:
        for table in client.tables:
            client.reset(table)
        yield client


@contextlib.contextmanager
def served(*tables, **options):
    """A client of a broker of its own."""
    with replaybus.Server(list(tables), **options) as server, server.client(timeout=60) as client:
        yield client


@contextlib.contextmanager
def served_reverb(*tables, **options):
    with reverb.Server(list(tables), **options) as server:
        yield server.localhost_client()


def reverb_table(name="replay", sampler=None, **more):
    arguments = dict(sampler=sampler or reverb.selectors.Uniform(), remover=reverb.selectors.Fifo(), max_size=100,
                     rate_limiter=reverb.rate_limiters.MinSize(1))
    return reverb.Table(name, **{**arguments, **more})


def emptied(server):
    """A client of a server of Reverb's interface, whose tables are empty."""
    client = reverb.Client(f"localhost:{server.port}")
    for name in client.server_info():
        client.reset(name)
    return client


def until(condition, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def fill(client, table="replay", n=100, size=10):
    """Writes n items of one step, whose x is the number of the item."""
    with client.writer() as writer:
        for t in range(n):
            writer.append({"x": np.full(size, t, "float32")})
            writer.item(table)


def insert_rows(client, table, **columns):
    """Writes an item of each row."""
    with client.writer() as writer:
        writer.append_block(columns, replaybus.Last(1, table))


def fetched(client, table):
    return client.fetch(table, [item["key"] for item in client.items(table)]).data


def killed(server):
    """Kills a broker. Returns its port."""
    server.process.kill()
    server.process.wait()
    return int(server.endpoint.rpartition(":")[2])


def facts(client, table="rollouts"):
    return client.info(table)["tables"][0]


def await_shards(client, n):
    """Waits until no shard is late: writers and samplers would do without it."""
    until(lambda: client.state()["shards"] == client.state()["connected_shards"] == n)


def run_threads(n, work):
    """Runs work(i) in n threads. Returns what it raised."""
    with ThreadPoolExecutor(n) as pool:
        calls = [pool.submit(work, i) for i in range(n)]
        return [call.exception() for call in calls if call.exception()]


@contextlib.contextmanager
def beside(*works, end=lambda: None):
    """Calls each on a thread of its own during the block, which waits for them at its end. end: what tells them to stop."""
    threads = [threading.Thread(target=work, daemon=True) for work in works]
    for thread in threads:
        thread.start()
    try:
        yield threads
    finally:
        end()
        for thread in threads:
            thread.join(60)
    assert not any(thread.is_alive() for thread in threads)


def in_child(function):
    """Runs the function in a forked child and returns what it sent, or fails if the child hangs."""
    context = multiprocessing.get_context("fork")
    receive, send = context.Pipe(False)

    def work():
        try:
            send.send(function())
        except BaseException as error:
            send.send(error)

    child = context.Process(target=work)
    child.start()
    assert receive.poll(60), "the child hangs"
    out = receive.recv()
    child.join(60)
    assert child.exitcode == 0
    return out


def rss_bytes() -> int:
    return int(pathlib.Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
