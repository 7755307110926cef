"""Sampling: from a SampleReply and its payload frames to items with their fields. See PROTOCOL.md, "Sample"."""

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


def _split_chunks(sampled, frames, n_chunks):
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
    if packed:
        frame = frames.pop(0)
    for c in range(n_chunks):
        if c >= packed:
            if at != len(frame):
                raise ValueError("a payload frame has %d bytes too many" % (len(frame) - at))
            frame, at = frames.pop(0), 0
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


def decode(sampled, frames, raw=False):
    """All items of a SampleReply."""
    n = len(sampled.key)
    spans = spread(sampled.chunks, n)
    refs = list(sampled.chunk) or list(range(sum(spans)))
    if not refs:
        return []
    n_chunks = max(refs) + 1
    chunks = _split_chunks(sampled, frames, n_chunks)
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
