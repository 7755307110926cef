"""Calls of the C interface that are mistakes: each is refused, and none crashes or hangs."""

import ctypes
import os
import pathlib
import sys
import tempfile
import threading

from harness import check, contains, equal

OK, INVALID_ARGUMENT, CANCELLED, NO_MEMORY, FLOAT32, PAUSE, GO = 0, 1, 11, 16, 6, 32, 64


class Error(ctypes.Structure):
    _fields_ = [("status", ctypes.c_int32), ("text", ctypes.c_char * 508)]


class Column(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("dtype", ctypes.c_int32), ("codec", ctypes.c_int32), ("rank", ctypes.c_uint32),
                ("shape", ctypes.c_uint32 * 8)]


class Slice(ctypes.Structure):
    _fields_ = [("field", ctypes.c_char_p), ("column", ctypes.c_uint32), ("count", ctypes.c_uint32), ("start", ctypes.c_int64),
                ("stride", ctypes.c_uint32), ("squeeze", ctypes.c_uint32)]


class Change(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_uint32), ("set", ctypes.c_uint32), ("numbers", ctypes.c_double * 6)]


if os.environ.get("RP_SANITIZE"):
    print("skipped: the library needs the sanitizer's in this process")
    sys.exit(77)
LIBRARY = ctypes.CDLL(str(pathlib.Path(os.environ["RP_LIBDIR"]) / "libreplayserver.so"))
MS = ctypes.c_int64(5000)
err = Error()


def call(name, *arguments, gives=ctypes.c_int32):
    function = getattr(LIBRARY, name)
    function.restype = gives
    return function(*arguments)


def object_of(name, *arguments):
    """What a call makes, as the handle whose address destroys it."""
    made = ctypes.c_void_p(call(name, *arguments, ctypes.byref(err), gives=ctypes.c_void_p))
    check(made, name, err.text.decode())
    return made


def client_of(server):
    return object_of("rp_client_connect", ctypes.c_char_p(call("rp_server_endpoint", server, gives=ctypes.c_char_p)), None, MS)


def writer_of(client):
    return object_of("rp_writer_new", client, ctypes.byref(Column(b"x", FLOAT32)), 1, None, MS)


def mistaken(name, *arguments):
    equal(call(name, *arguments, ctypes.byref(err)), INVALID_ARGUMENT, name)
    check(err.text, name)


def test_what_is_not_there():
    call("rp_server_stop", None)
    with tempfile.TemporaryDirectory() as folder:
        ports = "service: tcp://127.0.0.1:0\ningest: tcp://127.0.0.1:0\nevents: tcp://127.0.0.1:0\n"
        server = object_of("rp_server_start", (ports + "folder: %s/f\ntables: [{name: t}]\n" % folder).encode(), None)
        equal((err.status, err.text), (OK, b""), "a fresh folder is no mistake")
        client, info, addition = client_of(server), ctypes.c_void_p(), ctypes.c_void_p()
        mistaken("rp_counter_end", ctypes.byref(addition), MS, None)
        equal(call("rp_admin_info", client, None, 0, MS, ctypes.byref(info), None), OK)
        equal(call("rp_info_u64", info, None, gives=ctypes.c_uint64), 0)
        equal(call("rp_info_find", info, b"tables", None, gives=ctypes.c_void_p), None)
        call("rp_info_free", ctypes.byref(info))
        mistaken("rp_admin_set_limiter", client, b"t", ctypes.byref(Change(ctypes.sizeof(Change), PAUSE | GO)), MS, None)
        publisher = object_of("rp_publisher_new", client, b"p")
        mistaken("rp_publisher_put", publisher, None, ctypes.c_uint64(5))
        mistaken("rp_params_put", client, b"p", None, ctypes.c_uint64(5), MS, None)
        equal(call("rp_publisher_put", publisher, b"x", ctypes.c_uint64(1 << 62), None), NO_MEMORY)
        equal(call("rp_publisher_destroy", ctypes.byref(publisher), MS, None), OK)
        writer = writer_of(client)
        mistaken("rp_writer_end_episode", writer, 12345, MS)
        mistaken("rp_writer_check_item", writer, b"t", ctypes.byref(Slice(b"\xff\xfe", 0, 1, -1)), 1)
        equal(call("rp_writer_destroy", ctypes.byref(writer), MS, None), OK)
        call("rp_client_destroy", ctypes.byref(client))
        call("rp_server_stop", ctypes.byref(server))


def test_a_client_that_goes_first():
    """Its end does not wait for its objects, and neither theirs nor a call waits for a connection that is gone; the log says what is wrong."""
    lines, ended = [], []
    logger = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int32, ctypes.c_char_p)(lambda _, level, line: lines.append(line.decode()))
    call("rp_log_set", logger, None, 2)
    server = object_of("rp_server_start", None, None)
    client = client_of(server)
    writer, reduce = writer_of(client), object_of("rp_reduce_join", client, b"g", MS)
    on_demand = ctypes.byref((ctypes.c_uint32 * 4)(16, 0, 0, 1))
    samplers = [object_of("rp_sampler_new", client, b"replay", options) for options in (None, on_demand)]
    addition = object_of("rp_counter_begin", client, b"c", ctypes.c_int64(1))

    def wait(sampler):
        ended.append(call("rp_sampler_next", sampler, ctypes.byref(ctypes.c_void_p()), ctypes.c_int64(-1), None))

    waiting = [threading.Thread(target=wait, args=[sampler]) for sampler in samplers]
    for thread in waiting:
        thread.start()
    call("rp_client_destroy", ctypes.byref(client))
    contains("\n".join(lines), "C0107", "alive=5")
    for sampler, thread in zip(samplers, waiting):
        wait(sampler)
        thread.join(60)
    equal(ended, [CANCELLED] * 4, "waits before the end, and after it")
    equal(call("rp_reduce_leave", ctypes.byref(reduce), MS, ctypes.byref(err)), CANCELLED)
    call("rp_counter_forget", ctypes.byref(addition))
    for sampler in samplers:
        call("rp_sampler_destroy", ctypes.byref(sampler))
    call("rp_writer_destroy", ctypes.byref(writer), MS, ctypes.byref(err))
    call("rp_server_stop", ctypes.byref(server))
    call("rp_log_set", None, None, 4)
