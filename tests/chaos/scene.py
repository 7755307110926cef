"""What everybody in a chaos run knows: the tables, what a step holds, the shared flags, and the logs of the clients."""

import ctypes
import json
import multiprocessing.sharedctypes
import os
import struct

# The phases of a run. DRAIN: writers wait until all they sent is resolved, samplers go on (inserts may wait for them).
# SETTLE: everybody else finishes what is under way. Then nothing moves, and the books can be compared.
RUN, DRAIN, SETTLE, STOP = range(4)

MASK64 = (1 << 64) - 1


class Table:
    """keeps: all; newest (fifo remover, one writer); top (the largest priorities); times (items leave when sampled so
    often). whole: samplers ask for all or nothing, so that an answer counts as many samples as were asked for even if
    items have left the table before a retry. deletes: a client deletes items of it."""

    def __init__(self, name, keeps, text, max_size=1000000, times=0, whole=False, deletes=False, layout="rows"):
        self.name, self.keeps, self.text, self.max_size, self.times = name, keeps, text, max_size, times
        self.whole, self.deletes, self.layout = whole, deletes, layout


TABLES = [
    Table("replay", "all", "sampler: {kind: prioritized, exponent: 0.6}, limiter: "
          "{kind: sample_to_insert_ratio, samples_per_insert: 1.0, min_size: 20, error_buffer: 400}"),
    Table("recent", "newest", "sampler: {kind: uniform}, remover: {kind: fifo}, limiter: {kind: min_size, min_size: 5}",
          max_size=300, whole=True, layout="ends"),
    Table("queue", "times", "sampler: {kind: fifo}, limiter: {kind: queue}", times=1, max_size=200),
    Table("best", "top", "sampler: {kind: max_heap}, remover: {kind: min_heap}, limiter: {kind: min_size, min_size: 1}",
          max_size=250, whole=True),
    Table("signed", "all", "sampler: {kind: min_heap}, limiter: {kind: min_size, min_size: 1}, signature: "
          "{tag: [uint32, 0, 2], data: [uint64, 0, 4]}",
          whole=True, deletes=True),
    Table("thrice", "times", "sampler: {kind: uniform}, limiter: {kind: min_size, min_size: 30}", times=3),
]
BY_NAME = {table.name: table for table in TABLES}

# name, column, start, count, stride, squeeze
LAYOUTS = {
    "rows": [("tag", 0, 0, 0, 1, False), ("data", 1, 0, 0, 1, False)],
    "ends": [("tag", 0, 0, 0, 1, False), ("first", 1, 0, 1, 1, True), ("last", 1, -1, 1, 1, True),
             ("odd", 1, 0, 0, 2, False)],
    "wrong": [("tag", 0, 0, 0, 1, False), ("date", 1, 0, 0, 1, False)],   # not what the signature of `signed` says
}
COLUMNS = [("tag", "uint32", [2]), ("data", "uint64", [4])]


def tag_row(uid, step):
    return struct.pack("<II", uid, step)


def data_row(uid, step):
    x = (uid << 32 | step) * 0x9E3779B97F4A7C15 & MASK64
    return struct.pack("<4Q", x, x ^ MASK64, x * 5 & MASK64, x >> 7)


def field_bytes(name, uid, step, length):
    """What the field of an item must hold that begins at this step of this writer."""
    if name == "tag":
        return b"".join(tag_row(uid, step + i) for i in range(length))
    rows = {"data": range(length), "first": (0,), "last": (length - 1,), "odd": range(0, length, 2)}[name]
    return b"".join(data_row(uid, step + i) for i in rows)


def check_fields(item):
    """(uid, step) of a sampled item whose bytes are all right, or raises."""
    tag = item.fields["tag"]
    uid, step = struct.unpack_from("<II", tag)
    if step != item.step:
        raise ValueError("item %d says step %d, its data are of step %d" % (item.key, item.step, step))
    for name, data in item.fields.items():
        if data != field_bytes(name, uid, step, item.length):
            raise ValueError("item %d: field %s holds other bytes than writer %#x wrote from step %d on"
                             % (item.key, name, uid, step))
    return uid, step


def value_of(seed, size):
    """The bytes of a parameter slot."""
    return struct.pack("<Q", seed) * (size // 8)


class Shared:
    """Numbers in memory that all processes of a run see."""

    def __init__(self):
        self.cell = multiprocessing.sharedctypes.RawArray(ctypes.c_int64, 4)
        self.idle = multiprocessing.sharedctypes.RawArray(ctypes.c_int64, 64)
        self.retire = multiprocessing.sharedctypes.RawArray(ctypes.c_int64, 64)
        self.cut = multiprocessing.sharedctypes.RawArray(ctypes.c_int64, 64)
        self.done = multiprocessing.sharedctypes.RawArray(ctypes.c_int64, 64)

    # The phase, and how often it has changed: who is idle names both, so that it cannot be taken for idle in another.
    state = property(lambda self: self.cell[0])
    phase = property(lambda self: self.cell[0] & 3, lambda self, value: self.set_phase(value))

    def set_phase(self, phase):
        self.cell[0] = (self.cell[0] >> 2) + 1 << 2 | phase

    # Counts starts of the broker: what a monitor of the connection would tell a client, that it was lost.
    generation = property(lambda self: self.cell[1], lambda self, value: self.cell.__setitem__(1, value))
    # Writers send without a pause when it changes.
    burst = property(lambda self: self.cell[2], lambda self, value: self.cell.__setitem__(2, value))


class Log:
    """Lines of JSON, whole or not there: what a client knows survives its own kill -9. A line is written before what it
    tells of is sent, and after what it tells of was received."""

    def __init__(self, path):
        self.descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        data = b""
        while part := os.read(self.descriptor, 1 << 20):
            data += part
        whole = data.rfind(b"\n") + 1
        os.ftruncate(self.descriptor, whole)
        self.old = [json.loads(line) for line in data[:whole].splitlines()]

    def write(self, *records):
        os.write(self.descriptor, b"".join(json.dumps(r, separators=(",", ":")).encode() + b"\n" for r in records))


class Follower:
    """Reads what was added to a log since it was last asked."""

    def __init__(self, path):
        self.path, self.offset = path, 0

    def read(self):
        with open(self.path, "rb") as file:
            file.seek(self.offset)
            data = file.read()
        whole = data.rfind(b"\n") + 1
        self.offset += whole
        return [json.loads(line) for line in data[:whole].splitlines()]
