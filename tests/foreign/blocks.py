"""Columns and their blocks: pack and unpack steps, raw or through lz4. See PROTOCOL.md, "Blocks and codecs"."""

import math
import struct

import lz4block

RAW, LZ4, SHUFFLE_LZ4, DELTA_LZ4, DELTA_SHUFFLE_LZ4, ABSENT = 0, 1, 2, 3, 4, 254

# Name: bytes and struct letter. bfloat16 and the complex types have none: use their bytes.
DTYPES = {
    "bool": (1, "?"), "int8": (1, "b"), "int16": (2, "h"), "int32": (4, "i"), "int64": (8, "q"),
    "uint8": (1, "B"), "uint16": (2, "H"), "uint32": (4, "I"), "uint64": (8, "Q"),
    "float16": (2, "e"), "bfloat16": (2, None), "float32": (4, "f"), "float64": (8, "d"),
    "complex64": (8, None), "complex128": (16, None),
}


def row_bytes(column):
    return DTYPES[column.dtype][0] * math.prod(column.shape)


def pack(column, values):
    """A flat list of numbers as the little-endian bytes of one or several steps."""
    return struct.pack("<%d%s" % (len(values), DTYPES[column.dtype][1]), *values)


def unpack(column, data):
    size, letter = DTYPES[column.dtype]
    return list(struct.unpack("<%d%s" % (len(data) // size, letter), data))


def shuffle(data, width):
    """All first bytes of the elements, then all second ones, and so on."""
    return b"".join(data[i::width] for i in range(width))


def unshuffle(data, width):
    out, n = bytearray(len(data)), len(data) // width
    for i in range(width):
        out[i::width] = data[i * n:(i + 1) * n]
    return bytes(out)


def _elements(data, width):
    return [int.from_bytes(data[i:i + width], "little") for i in range(0, len(data), width)]


def _bytes(elements, width):
    return b"".join(e.to_bytes(width, "little") for e in elements)


def is_integer(column):
    return column.dtype.startswith(("int", "uint"))


def delta(column, data):
    """Each step against the one before: the difference modulo 2^bits of integers, the exclusive or of anything else."""
    width, row = DTYPES[column.dtype][0], row_bytes(column)
    if not is_integer(column):
        return data[:row] + bytes(a ^ b for a, b in zip(data[row:], data))
    e, n, mask = _elements(data, width), row // width, (1 << 8 * width) - 1
    return _bytes(e[:n] + [(e[i] - e[i - n]) & mask for i in range(n, len(e))], width)


def undelta(column, data):
    width, row = DTYPES[column.dtype][0], row_bytes(column)
    if not is_integer(column):
        out = bytearray(data)
        for i in range(row, len(out)):
            out[i] ^= out[i - row]
        return bytes(out)
    e, n, mask = _elements(data, width), row // width, (1 << 8 * width) - 1
    for i in range(n, len(e)):
        e[i] = (e[i] + e[i - n]) & mask
    return _bytes(e, width)


def encode(column, codec, data):
    width = DTYPES[column.dtype][0]
    if codec == RAW:
        return data
    if codec == ABSENT:
        return b""
    if codec in (DELTA_LZ4, DELTA_SHUFFLE_LZ4):
        data = delta(column, data)
    if codec in (SHUFFLE_LZ4, DELTA_SHUFFLE_LZ4):
        data = shuffle(data, width)
    return lz4block.compress(data)


def decode(column, codec, data, rows):
    width, row = DTYPES[column.dtype][0], row_bytes(column)
    if codec == RAW:
        if len(data) != rows * row:
            raise ValueError("a raw block of %d bytes, %d steps of %d expected" % (len(data), rows, row))
        return bytes(data)
    if codec not in (LZ4, SHUFFLE_LZ4, DELTA_LZ4, DELTA_SHUFFLE_LZ4):
        raise ValueError("codec %d" % codec)
    data = lz4block.decompress(data, rows * row)
    if codec in (SHUFFLE_LZ4, DELTA_SHUFFLE_LZ4):
        data = unshuffle(data, width)
    if codec in (DELTA_LZ4, DELTA_SHUFFLE_LZ4):
        data = undelta(column, data)
    return data
