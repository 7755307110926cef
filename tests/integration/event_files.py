"""TensorBoard's event files, read byte by byte."""

import struct

from harness import equal


def crc32c(data):
    """Castagnoli, bit by bit."""
    crc = 0xffffffff
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82f63b78 if crc & 1 else 0)
    return crc ^ 0xffffffff


def masked(data):
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xa282ead8) & 0xffffffff


def records(data):
    at = 0
    while at < len(data):
        length, crc = struct.unpack_from("<QI", data, at)
        equal(crc, masked(data[at:at + 8]))
        body = data[at + 12:at + 12 + length]
        equal(len(body), length)
        equal(struct.unpack_from("<I", data, at + 12 + length)[0], masked(body))
        yield body
        at += length + 16
