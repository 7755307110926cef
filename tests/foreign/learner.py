"""Sampling: from a SampleReply and its payload frames to items with their fields. See PROTOCOL.md, "Sample"."""

import fcntl
import mmap
import os
import stat
import struct

import blocks
from generated import pb
from service import ReplayError

NOT_FOUND = 2


def spread(array, n, default=0):
    """An "[n] or 1" array as n elements. An empty one stands for the default."""
    if len(array) == n:
        return list(array)
    if len(array) == 1:
        return list(array) * n
    if len(array) == 0:
        return [default] * n
    raise ValueError("an array of %d elements where %d or 1 are expected" % (len(array), n))


class Item:
    """key, priority, probability, times_sampled, age_ns, policy, step, session, length; fields: name -> list of
    numbers, steps one after another (or the bytes, with raw=True)."""


class Overtaken(Exception):
    """Data in shared memory was replaced before it was read: ask again with the same id, without `shared`."""


class Arena:
    """The memory of a broker on this host; of a HelloReply. OSError: there is none, or it is not for us."""

    def __init__(self, hello):
        arena = hello.arena
        descriptor = os.open("/proc/%d/fd/%d" % (arena.pid, arena.fd), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode) or status.st_size != arena.size or not (
                    fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK):
                raise OSError("this is not the broker's memory")
            self.memory = mmap.mmap(descriptor, arena.size, mmap.MAP_SHARED, mmap.PROT_READ)
        finally:
            os.close(descriptor)
        if self.number(0) != arena.nonce:
            raise OSError("this is the memory of another broker")

    def number(self, at):
        return struct.unpack_from("<Q", self.memory, at)[0]

    def read(self, place, stamp, size, offset=0):
        """A copy of the data of a chunk."""
        data = self.memory[place + offset:place + offset + size]
        if self.number(place - 64) != stamp:
            raise Overtaken
        return data


def _split_chunks(sampled, frames, n_chunks, arena):
    """For each chunk a dict: column index -> (codec, bytes)."""
    counts = spread(sampled.chunk_blocks, n_chunks)
    n_blocks = sum(counts)
    codecs = spread(sampled.block_codec, n_blocks)
    sizes = spread(sampled.block_size, n_blocks)
    if len(sampled.block_column) == n_blocks:
        columns = list(sampled.block_column)
    else:
        columns = list(sampled.block_column) * n_chunks
    frames, packed, frame, at, b, chunks = list(frames), sampled.packed, b"", 0, 0, []
    if packed and sampled.packed_at:
        if arena is None:
            raise Overtaken
        frame = arena.read(*sampled.packed_at)
    elif packed:
        frame = frames.pop(0)
    first_shared = n_chunks - len(sampled.place)
    for c in range(n_chunks):
        if c >= packed:
            if at != len(frame):
                raise ValueError("a payload frame has %d bytes too many" % (len(frame) - at))
            shared = c - first_shared
            if shared >= 0 and arena is None:   # a successor of the one who asked
                raise Overtaken
            frame, at = frames.pop(0) if shared < 0 else arena.read(
                sampled.place[shared], sampled.stamp[shared], sum(sizes[b:b + counts[c]])), 0
        chunk = {}
        for _ in range(counts[c]):
            chunk[columns[b]] = (codecs[b], frame[at:at + sizes[b]])
            at += sizes[b]
            b += 1
        chunks.append(chunk)
    if frames or at != len(frame):
        raise ValueError("payload is left over")
    return chunks


def take(rows, row, field, length):
    """The steps that a field takes from an item's rows of one column."""
    start = field.start if field.start >= 0 else length + field.start
    stride = field.stride or 1
    count = field.count or -(-(length - start) // stride)
    return b"".join(rows[(start + i * stride) * row:(start + i * stride + 1) * row] for i in range(count))


def whole(sampled, arena):
    """The SampleReply itself, which may be in shared memory."""
    if not sampled.head_at:
        return sampled
    if arena is None:
        raise Overtaken
    place, stamp, offset, size = sampled.head_at
    return pb.SampleReply.FromString(arena.read(place, stamp, size, offset))


def decode(sampled, frames, raw=False, arena=None):
    """All items of a SampleReply."""
    n = len(sampled.key)
    spans = spread(sampled.chunks, n)
    refs = list(sampled.chunk) or list(range(sum(spans)))
    if not refs:
        return []
    n_chunks = max(refs) + 1
    chunks = _split_chunks(sampled, frames, n_chunks, arena)
    lengths = spread(sampled.chunk_length, n_chunks)
    decoded, items, ref = {}, [], 0
    arrays = {name: spread(getattr(sampled, name), n) for name in (
        "key", "priority", "probability", "times_sampled", "age_ns", "policy", "step", "session", "layout", "offset",
        "length")}

    def rows_of(c, index, column):
        if (c, index) not in decoded:
            codec, data = chunks[c][index]
            decoded[c, index] = blocks.decode(column, codec, data, lengths[c])
        return decoded[c, index]

    for i in range(n):
        item = Item()
        for name, values in arrays.items():
            setattr(item, name, values[i])
        layout = sampled.layouts[item.layout]
        span, item.fields = refs[ref:ref + spans[i]], {}
        ref += spans[i]
        for field in layout.fields:
            column = layout.columns[field.column]
            row = blocks.row_bytes(column)
            rows = b"".join(rows_of(c, field.column, column) for c in span)
            rows = rows[item.offset * row:(item.offset + item.length) * row]
            data = take(rows, row, field, item.length)
            item.fields[field.name] = data if raw else blocks.unpack(column, data)
        items.append(item)
    return items


class Learner:
    def __init__(self, service):
        self.service = service

    def ask(self, table, count, timeout_ms=30000, distinct=False, flexible=False):
        """Sends a sample request and gives its id: several may be under way on a DEALER."""
        body = pb.Sample(table=table, count=count, distinct=distinct, flexible=flexible)
        if timeout_ms is not None:
            body.timeout_ms = timeout_ms
        return self.service.send("sample", body)

    def wait(self, id, timeout=60.0, raw=False):
        """(SampleReply, items, text)"""
        reply, frames = self.service.wait(id, timeout)
        return reply.sample, decode(reply.sample, frames, raw), reply.text

    def sample(self, table, count, **options):
        return self.wait(self.ask(table, count, **options))

    def fetch(self, table, keys):
        """Items by key; those that are not there are left out."""
        reply, frames = self.service.ask("fetch", pb.Fetch(table=table, key=keys), check=False)
        if reply.status == NOT_FOUND and keys:
            return []
        if reply.status != 0:
            raise ReplayError(reply)
        return decode(reply.sample, frames)
