"""TensorBoard's event files, read byte by byte."""

import struct

from harness import equal
from weights import crc32c


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
