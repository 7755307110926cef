"""The worked examples of PROTOCOL.md, encoded by protobuf and not by hand.

    examples.py            print them
    examples.py --write    put them into proto/PROTOCOL.md, between its <!-- example NAME --> and <!-- end --> marks

foreign_test.py checks that the document has exactly this text, and that the bytes decode to the same messages.
"""

import re
import struct
import sys

import blocks
from generated import SOURCE, pb
from google.protobuf.descriptor import FieldDescriptor as F

DOCUMENT = SOURCE / "proto" / "PROTOCOL.md"
CLIENT = 0x1122334455667788
SESSION = bytes(range(0xA0, 0xB0))
KEY_BASE = 3 << 36

COLUMNS = [pb.Column(name="observation", dtype="float32", shape=[2]),
           pb.Column(name="action", dtype="int32"),
           pb.Column(name="reward", dtype="float32")]
# One 3-step transition: s0, a0, (r0, r1, r2), s3.
FIELDS = [pb.Field(name="observation", column=0, start=0, count=1, squeeze=True),
          pb.Field(name="action", column=1, start=0, count=1, squeeze=True),
          pb.Field(name="rewards", column=2, start=0, count=3),
          pb.Field(name="next_observation", column=0, start=-1, count=1, squeeze=True)]
OBSERVATIONS = [0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5]
ACTIONS = [0, 1, 0, 1, 0]
REWARDS = [0.0, 1.0, 2.0, 3.0, 4.0]


def chunk():
    """Five steps: 40 + 20 + 20 bytes."""
    values = [OBSERVATIONS, ACTIONS, REWARDS]
    return b"".join(blocks.pack(c, v) for c, v in zip(COLUMNS, values))


def messages():
    """name -> list of frames; a frame is a message or bytes."""
    hi, lo = struct.unpack("<QQ", SESSION)
    credit = pb.Credit(epoch=1, allowed_bytes=1 << 20, table=[0], resolved=[0], allowed=[100], rejected=[0])
    return {
        "hello": [pb.Request(version=1, id=1, client=CLIENT,
                             hello=pb.Hello(name="actor-3", notices=True, oldest_number=1, columns=COLUMNS))],
        "hello-reply": [pb.Reply(version=1, id=1, hello=pb.HelloReply(
            session=SESSION, ordinal=3, key_base=KEY_BASE, epoch=1, heartbeat_ms=1000, expiry_ms=10000,
            ingest="tcp://*:7001", events="tcp://*:7002", tables=[pb.TableSpec(name="replay", id=0, max_size=1000000)],
            credit=credit, max_message_bytes=1 << 26, instance=0x0123456789ABCDEF, release="1.0.0", max_batch=4096, max_keys=2048,
            key_count=1 << 36))],
        "ingest": [pb.Ingest(
            version=1, session_hi=hi, session_lo=lo, epoch=1, number=1, oldest_chunk=1,
            layouts=[pb.Layout(id=0, table="replay", fields=FIELDS)],
            chunk_number=[1], chunk_step=[0], chunk_length=[5], block_size=[40, 20, 20], block_codec=b"\0", packed=1,
            run_layout=[0], run_items=[2], run_first=[1], item_key=[KEY_BASE, KEY_BASE + 1], item_priority=[1.0],
            item_chunk=[1, 1], item_offset=[0, 1], item_length=[4]), chunk()],
        "credit": [pb.Reply(version=1, credit=pb.Credit(
            epoch=1, received=1, allowed_bytes=(1 << 20) + 400, table=[0], resolved=[2], allowed=[102], rejected=[0],
            returned_bytes=400))],
        "sample-reply": [pb.Reply(version=1, id=5, sample=pb.SampleReply(
            key=[KEY_BASE + 1, KEY_BASE], priority=[1.0, 1.0], probability=[0.5], times_sampled=[1],
            age_ns=[2000000, 2000000], policy=[0], step=[1, 0], session=[3], layout=[0], offset=[1, 0], length=[4],
            chunks=[1], chunk=[0, 0], chunk_length=[5], chunk_blocks=[3], block_column=b"\0\1\2", block_codec=b"\0",
            block_size=[40, 20, 20], packed=1, table_size=2,
            layouts=[pb.Layout(id=0, table="replay", fields=FIELDS, columns=COLUMNS)])), chunk()],
        "permit-reply": [pb.Reply(version=1, id=7, permit=pb.PermitReply(
            granted=192, mass=12500.5, size=10000, min_size=250, buffer=512.0))],
    }


def _hex(data):
    """Groups of eight bytes."""
    return data.hex(" ", -8)


def _value(field, value):
    if field.type in (F.TYPE_STRING,):
        return '"%s"' % value
    if field.type == F.TYPE_BYTES:
        return _hex(value)
    if field.type in (F.TYPE_FIXED64, F.TYPE_FIXED32) and value > 0xFFFFFFF:
        return "0x%x" % value
    if field.type == F.TYPE_BOOL:
        return "true" if value else "false"
    return str(value)


def _line(head, data, text, depth):
    """Hex on the left: tag and length, then at most 16 bytes of the value to a line; its meaning on the right."""
    lines, pad = [], "  " * depth
    for at in range(0, max(len(data), 1), 16):
        left = pad + " ".join([part.hex() for part in head if part and at == 0] + [_hex(data[at:at + 16])]).rstrip()
        lines.append("%-56s %s" % (left, text) if at == 0 and text else left)
    return lines


def _varint(data, at):
    value = shift = 0
    while True:
        value |= (data[at] & 127) << shift
        shift += 7
        at += 1
        if data[at - 1] < 128:
            return value, at


def annotate(message, depth=0):
    """The encoded message, one field to a line."""
    data, at, lines = message.SerializeToString(), 0, []
    seen = {}
    while at < len(data):
        start = at
        tag, at = _varint(data, at)
        value_at = tag_end = at
        field = message.DESCRIPTOR.fields_by_number[tag >> 3]
        repeated = field.label == F.LABEL_REPEATED
        if tag & 7 == 2:
            size, at = _varint(data, at)
            value_at = at
            if field.type == F.TYPE_MESSAGE:
                index = seen.get(field.name, 0)
                seen[field.name] = index + 1
                value = getattr(message, field.name)
                lines += _line([data[start:tag_end], data[tag_end:at]], b"", field.name + ("[%d]" % index if repeated else ""), depth)
                lines += annotate(value[index] if repeated else value, depth + 1)
                at += size
                continue
            at += size
        elif tag & 7 == 0:
            _, at = _varint(data, at)
        else:
            at += 8 if tag & 7 == 1 else 4
        value = getattr(message, field.name)
        if repeated:
            value = "[%s]" % ", ".join(_value(field, v) for v in value)
        else:
            value = _value(field, value)
        head = [data[start:tag_end], data[tag_end:value_at]]
        lines += _line(head, data[value_at:at], "%s = %s" % (field.name, value), depth)
    return lines


def render(frames):
    lines = ["```text"]
    for i, frame in enumerate(frames):
        size = len(frame) if isinstance(frame, bytes) else frame.ByteSize()
        kind = "payload" if isinstance(frame, bytes) else frame.DESCRIPTOR.name
        lines.append("frame %d: %s, %d bytes" % (i, kind, size))
        lines += _line([], frame, "", 0) if isinstance(frame, bytes) else annotate(frame)
    return "\n".join(lines + ["```"])


def render_blocks():
    """Four steps of an int16 column of shape [4], through every codec."""
    column = pb.Column(name="x", dtype="int16", shape=[4])
    values = [1, 2, 3, 4] + [2, 3, 4, 5] + [3, 4, 5, 6] + [4, 5, 6, 7]
    raw = blocks.pack(column, values)
    rows = [("values", "%s" % values), ("raw (0)", _hex(raw)),
            ("shuffled", _hex(blocks.shuffle(raw, 2))), ("delta", _hex(blocks.delta(column, raw))),
            ("delta, shuffled", _hex(blocks.shuffle(blocks.delta(column, raw), 2)))]
    for name, codec in (("lz4 (1)", blocks.LZ4), ("shuffle_lz4 (2)", blocks.SHUFFLE_LZ4),
                        ("delta_lz4 (3)", blocks.DELTA_LZ4), ("delta_shuffle_lz4 (4)", blocks.DELTA_SHUFFLE_LZ4)):
        rows.append((name, _hex(blocks.encode(column, codec, raw))))
    return "\n".join(["```text"] + ["%-22s %s" % row for row in rows] + ["```"])


def all_examples():
    out = {name: render(frames) for name, frames in messages().items()}
    out["blocks"] = render_blocks()
    return out


def in_document():
    """name -> text between the marks."""
    found = re.findall(r"<!-- example (\S+) -->\n(.*?)\n<!-- end -->", DOCUMENT.read_text(), re.S)
    return dict(found)


def hex_of(text):
    """The frames of a rendered example, read back from its text."""
    frames = []
    for line in text.splitlines():
        if line.startswith("frame "):
            frames.append(b"")
        elif frames and not line.startswith("```"):
            bytes_ = re.match(r"\s*((?:(?:[0-9a-f]{2})+ )*(?:[0-9a-f]{2})+)(?:\s|$)", line)
            frames[-1] += bytes.fromhex(bytes_.group(1))
    return frames


def write():
    text = DOCUMENT.read_text()
    for name, example in all_examples().items():
        mark = re.compile(r"(<!-- example %s -->\n).*?(\n<!-- end -->)" % re.escape(name), re.S)
        text, n = mark.subn(lambda m, e=example: m.group(1) + e + m.group(2), text)
        if n != 1:
            sys.exit("PROTOCOL.md has %d places for example %s" % (n, name))
    DOCUMENT.write_text(text)


if __name__ == "__main__":
    if sys.argv[1:] == ["--write"]:
        write()
    else:
        for title, example in all_examples().items():
            print("%s\n%s\n" % (title, example))
