"""A broker inside the process, and the library's log."""
import gc
import logging
import multiprocessing
import os
import signal
import subprocess
import sys
import time

import pytest

import replaybus


def write(client, n):
    with client.writer() as writer:
        for t in range(n):
            writer.append({"x": float(t)})
            writer.item("t")


def test_server_in_a_thread():
    with replaybus.Server([replaybus.Table("t")], mode="thread") as server, server.client() as client:
        assert server.process is None and server.endpoint.startswith("tcp://127.0.0.1:")
        write(client, 100)
        with client.sampler("t", 50, max_samples=100) as sampler:
            assert sum(len(batch) for batch in sampler) == 100
    server.stop()
    with pytest.raises(replaybus.Unavailable):
        replaybus.Client(server.endpoint, timeout=0.1).info()


def test_server_in_a_thread_keeps_its_data(tmp_path):
    for expected in (0, 5):
        with replaybus.Server([replaybus.Table("t")], mode="thread", journal=tmp_path) as server, server.client() as client:
            assert client.info()["tables"][0]["size"] == expected
            write(client, 5)


def test_several_servers_and_garbage_collection():
    servers = [replaybus.Server([replaybus.Table("t")], mode="thread") for _ in range(3)]
    for i, server in enumerate(servers):
        with server.client() as client:
            write(client, i)
            assert client.info()["tables"][0]["size"] == i
    endpoint = servers[0].endpoint
    del servers, server
    gc.collect()
    with pytest.raises(replaybus.Unavailable):
        replaybus.Client(endpoint, timeout=0.1).info()


def test_mistakes_in_a_thread():
    with pytest.raises(replaybus.InvalidArgument, match="max_sise"):
        replaybus.Server([replaybus.Table("t", max_sise=3)], mode="thread")


def test_signals_stay_pythons():
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    with replaybus.Server([replaybus.Table("t")], mode="thread"):
        assert {number: signal.getsignal(number) for number in before} == before
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(1)


def test_fork_with_a_server_in_a_thread():
    with replaybus.Server([replaybus.Table("t")], mode="thread") as server, server.client() as client:
        write(client, 1)
        with multiprocessing.get_context("fork").Pool(1) as pool:
            assert pool.apply_async(_stop_in_child, (server.endpoint,)).get(20) == 1
        write(client, 1)


def _stop_in_child(endpoint):
    gc.collect()
    size = replaybus.Client(endpoint, timeout=10).info()["tables"][0]["size"]
    return size


def test_exit_with_a_server_in_a_thread():
    script = ("import replaybus; s = replaybus.Server([replaybus.Table('t')], mode='thread'); c = s.client()\n"
              "w = c.writer(); w.append(1.0); w.item('t'); sampler = c.sampler('t', 1); next(sampler)")
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=30)
    assert (out.returncode, out.stderr) == (0, "")


def test_log(caplog):
    caplog.set_level(logging.DEBUG, "replaybus")
    server = replaybus.Server([replaybus.Table("t")])
    client = server.client()
    client.info()
    server.stop()
    for _ in range(100):
        if caplog.records:
            break
        time.sleep(0.02)
    assert caplog.records[0].levelno == logging.WARNING and caplog.records[0].getMessage().startswith("C0101 ")
    client.close()


def test_log_level(caplog):
    with pytest.raises(ValueError):
        replaybus.log_level("loud")
    replaybus.log_level("off")
    try:
        server = replaybus.Server([replaybus.Table("t")])
        client = server.client()
        client.info()
        server.stop()
        time.sleep(0.2)
        client.close()
        assert not caplog.records
    finally:
        replaybus.log_level("warn")
