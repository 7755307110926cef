"""A broker inside the process, and the library's log."""
import ctypes
import gc
import logging
import multiprocessing
import os
import subprocess
import sys
import time

import pytest

import replaybus
from conftest import beside, fill, killed, until


def test_several_servers_and_garbage_collection():
    servers = [replaybus.Server([replaybus.Table("t")], mode="thread") for _ in range(3)]
    for i, server in enumerate(servers):
        with server.client() as client:
            fill(client, "t", i)
            assert client.info()["tables"][0]["size"] == i
    endpoint = servers[0].endpoint
    del servers, server
    gc.collect()
    with pytest.raises(replaybus.Unavailable):
        replaybus.Client(endpoint, timeout=0.1).info()


def test_fork_with_a_server_in_a_thread():
    with replaybus.Server([replaybus.Table("t")], mode="thread") as server, server.client() as client:
        fill(client, "t", 1)
        with multiprocessing.get_context("fork").Pool(1) as pool:
            assert pool.apply_async(_stop_in_child, (server.endpoint,)).get(20) == 1
        fill(client, "t", 1)


def _stop_in_child(endpoint):
    gc.collect()
    return replaybus.Client(endpoint, timeout=60).info()["tables"][0]["size"]


def test_exit_with_a_server_in_a_thread():
    script = ("import replaybus; s = replaybus.Server([replaybus.Table('t')], mode='thread'); c = s.client()\n"
              "w = c.writer(); w.append(1.0); w.item('t'); sampler = c.sampler('t', 1); next(sampler)")
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert (out.returncode, out.stderr) == (0, "")


def lose_connection(server, client):
    """Makes a line of the library's log."""
    client.info()
    killed(server)


@pytest.mark.parametrize("mode", ["process", "thread"])
def test_only_an_end_that_was_not_asked_for_is_logged(caplog, mode):
    with replaybus.Server([replaybus.Table("t")], mode=mode) as server, server.client() as client:
        core = client.connect()
        server.stop()
        until(lambda: not core.state()["connected"])
        port = int(server.endpoint.rpartition(":")[2])
        with replaybus.Server([replaybus.Table("t")], port=port) as server:
            assert not caplog.records
            lose_connection(server, client)
            until(lambda: caplog.records)
    assert caplog.messages[0].startswith("C0101 ")


def test_log_of_raw_bytes(tmp_path, caplog):
    """A line need not be UTF-8: here it has the bytes of a path."""
    raw = os.fsencode(tmp_path) + b"/raw\xff"
    os.symlink(tmp_path, raw)
    library = ctypes.CDLL(replaybus._core.__file__)
    library.rp_client_connect.restype = ctypes.c_void_p
    library.rp_client_connect.argtypes = [ctypes.c_char_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p]
    server = replaybus.Server([replaybus.Table("t")], config={"service": f"ipc://{tmp_path}/s"})
    client = ctypes.c_void_p(library.rp_client_connect(b"ipc://" + raw + b"/s", None, 10_000, None))
    assert client
    server.stop()
    until(lambda: caplog.records)
    library.rp_client_destroy(ctypes.byref(client))
    assert "raw\ufffd/s" in caplog.records[0].getMessage()


class Interrupt(logging.Handler):
    def emit(self, record):
        raise KeyboardInterrupt


def test_ctrl_c_in_a_log_handler(caplog):
    handler = Interrupt()
    logging.getLogger("replaybus").addHandler(handler)
    try:
        for _ in range(2):
            with replaybus.Server([replaybus.Table("t")]) as server, server.client() as client:
                with pytest.raises(KeyboardInterrupt):
                    lose_connection(server, client)
                    until(lambda: False)  # the interrupt ends the wait
    finally:
        logging.getLogger("replaybus").removeHandler(handler)
    caplog.clear()
    with replaybus.Server([replaybus.Table("t")]) as server, server.client() as client:
        lose_connection(server, client)
        until(lambda: caplog.records)
    assert caplog.records[0].levelno == logging.WARNING and caplog.records[0].getMessage().startswith("C0101 ")


def test_log_after_fork(caplog):
    """Lines that wait for the parent's main thread are not logged by a child."""
    server = replaybus.Server([replaybus.Table("t")])
    client, counts = server.client(), []

    def fork():
        lose_connection(server, client)
        time.sleep(0.3)
        before = len(caplog.records)
        child = os.fork()
        if child == 0:
            time.sleep(0.05)
            os._exit(len(caplog.records) - before)
        counts.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

    with beside(fork):
        time.sleep(1)  # holds back the lines
    until(lambda: caplog.records)
    client.close()
    assert counts == [0] and caplog.records


def test_log_level(caplog):
    with pytest.raises(ValueError):
        replaybus.log_level("loud")
    replaybus.log_level("off")
    try:
        with replaybus.Server([replaybus.Table("t")]) as server, server.client() as client:
            lose_connection(server, client)
            time.sleep(0.2)
        assert not caplog.records
    finally:
        replaybus.log_level("warn")
