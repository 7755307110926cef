"""Named tensors in one block of bytes: what learners publish in a parameter slot. See proto/PROTOCOL.md, 21."""

import math
import struct

DTYPES = {1: "?", 2: "b", 3: "h", 4: "i", 5: "q", 6: "B", 7: "H", 8: "I", 9: "Q", 10: "e", 12: "f", 13: "d"}
UINT64, FLOAT32 = 9, 12


def _crc_table():
    table = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
        table.append(value)
    return table


TABLE = _crc_table()


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ TABLE[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


def _align(at, to):
    return -(-at // to) * to


def read(block):
    """name -> (shape, flat list of numbers). ValueError: it is not such a block."""
    try:
        magic, version, count, table_bytes, size, zero = struct.unpack_from("<4sIIIQQ", block)
        if magic != b"RPWT" or version != 1 or size != len(block) or zero != 0:
            raise ValueError("not a block of weights of version 1")
        if crc32c(block[:-4]) != struct.unpack_from("<I", block, size - 4)[0]:
            raise ValueError("the checksum of a block of weights does not match")
        tensors, at = {}, 32
        for _ in range(count):
            name_bytes, dtype, rank, data = struct.unpack_from("<BBB5xQ", block, at)
            shape = struct.unpack_from("<%dQ" % rank, block, at + 16)
            begin = at + 16 + 8 * rank
            name = block[begin:begin + name_bytes].decode("ascii")
            at = _align(begin + name_bytes, 8)
            if dtype not in DTYPES:
                raise ValueError("tensor '%s' has the element type %d" % (name, dtype))
            values = struct.unpack_from("<%d%s" % (math.prod(shape), DTYPES[dtype]), block, data)
            tensors[name] = (list(shape), list(values))
        if at != 32 + table_bytes:
            raise ValueError("the table of a block of weights has %d bytes too many" % (32 + table_bytes - at))
        return tensors
    except (struct.error, UnicodeDecodeError) as error:
        raise ValueError("a block of weights that is cut or damaged: %s" % error) from None


def write(tensors):
    """The block of [(name, element type, shape, flat list of numbers)]."""
    table_bytes = sum(_align(16 + 8 * len(shape) + len(name), 8) for name, _, shape, _ in tensors)
    table, data, at = b"", b"", 32 + table_bytes
    for name, dtype, shape, values in tensors:
        start = _align(at, 64)
        packed = struct.pack("<%d%s" % (len(values), DTYPES[dtype]), *values)
        data += bytes(start - at) + packed
        at = start + len(packed)
        entry = struct.pack("<BBB5xQ%dQ" % len(shape), len(name), dtype, len(shape), start, *shape) + name.encode()
        table += entry + bytes(_align(len(entry), 8) - len(entry))
    data += bytes(_align(at, 4) - at)
    block = struct.pack("<4sIIIQQ", b"RPWT", 1, len(tensors), table_bytes, 36 + table_bytes + len(data), 0)
    block += table + data
    return block + struct.pack("<I", crc32c(block))
