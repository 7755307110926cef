"""LZ4 block format in plain Python: slow, short, and enough for a client that has no lz4 library.

A block is a row of sequences: a token (high four bits: literals, low four bits: match length - 4), more length bytes
while they are 255, the literals, a two-byte little-endian offset back, more match length bytes. The last sequence ends
after its literals. Encoders must end with at least 5 literals and start no match in the last 12 bytes.
"""

MIN_MATCH = 4
LAST_LITERALS = 5
MATCH_MARGIN = 12
MAX_OFFSET = 65535


def _length(n):
    """The bytes that follow a token whose four bits are full (15)."""
    n -= 15
    return b"\xff" * (n // 255) + bytes([n % 255])


def _sequence(literals, offset=0, match=0):
    n, m = len(literals), match - MIN_MATCH if match else 0
    out = bytes([min(n, 15) << 4 | min(m, 15)])
    if n >= 15:
        out += _length(n)
    out += literals
    if match:
        out += offset.to_bytes(2, "little")
        if m >= 15:
            out += _length(m)
    return out


def compress(data):
    """Greedy, with one remembered place for each four bytes."""
    data = bytes(data)
    out, seen, anchor, at = [], {}, 0, 0
    while at <= len(data) - MATCH_MARGIN - 1:
        word = data[at:at + MIN_MATCH]
        found = seen.get(word, -1)
        seen[word] = at
        if found < 0 or at - found > MAX_OFFSET:
            at += 1
            continue
        end = at + MIN_MATCH
        while end < len(data) - LAST_LITERALS and data[end] == data[found + end - at]:
            end += 1
        out.append(_sequence(data[anchor:at], at - found, end - at))
        anchor = at = end
    out.append(_sequence(data[anchor:]))
    return b"".join(out)


def decompress(data, size):
    """Gives exactly `size` bytes or raises ValueError."""
    data, out, at = bytes(data), bytearray(), 0

    def more(n, at):
        while True:
            if at >= len(data):
                raise ValueError("lz4: the block ends inside a length")
            n += data[at]
            at += 1
            if data[at - 1] != 255:
                return n, at

    while True:
        if at >= len(data):
            raise ValueError("lz4: the block ends without a last sequence")
        token = data[at]
        at += 1
        n = token >> 4
        if n == 15:
            n, at = more(n, at)
        if at + n > len(data) or len(out) + n > size:
            raise ValueError("lz4: literals run past the end")
        out += data[at:at + n]
        at += n
        if at == len(data):
            break
        if at + 2 > len(data):
            raise ValueError("lz4: the block ends inside an offset")
        offset = int.from_bytes(data[at:at + 2], "little")
        at += 2
        m = token & 15
        if m == 15:
            m, at = more(m, at)
        m += MIN_MATCH
        if offset == 0 or offset > len(out) or len(out) + m > size:
            raise ValueError("lz4: a match points outside the block")
        start = len(out) - offset
        if offset >= m:
            out += out[start:start + m]
        else:  # the match overlaps what it writes: it repeats the last `offset` bytes
            out += (out[start:] * (m // offset + 1))[:m]
    if len(out) != size:
        raise ValueError("lz4: %d bytes instead of %d" % (len(out), size))
    return bytes(out)
