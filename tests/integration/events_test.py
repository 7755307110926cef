"""The logs of a run, read by readers that share nothing with their writer: TensorBoard's event file byte by byte, JSON
lines and CSV by Python's own modules. The sample is what `unit_run_log --write` writes."""

import json
import math
import os
import pathlib
import struct
import subprocess
import tempfile

from event_files import records
from harness import check, equal, run_tests
from weights import crc32c

REPORTS = 100


def varint(data, at):
    value = shift = 0
    while True:
        byte = data[at]
        value, shift, at = value | (byte & 0x7f) << shift, shift + 7, at + 1
        if byte < 0x80:
            return value, at


def fields(data):
    """(number, value) of a protobuf message: int of a varint, bytes of everything else."""
    at = 0
    while at < len(data):
        key, at = varint(data, at)
        kind = key & 7
        if kind == 0:
            value, at = varint(data, at)
        else:
            size, at = varint(data, at) if kind == 2 else ({1: 8, 5: 4}[kind], at)
            value, at = data[at:at + size], at + size
            check(len(value) == size, "a field reaches beyond its message")
        yield key >> 3, value


def single(value):
    """As a float32 holds it."""
    return struct.unpack("<f", struct.pack("<f", value))[0]


def same(a, b):
    return a == b or (math.isnan(a) and math.isnan(b))


def expected(i):
    scalars = {"loss": 1 / (i + 1), "q/mean": -0.25 * i}
    if i in (7, 8):
        scalars["loss"] = math.nan if i == 7 else math.inf
    if i == 9:
        scalars["q/mean"] = -math.inf
    if i >= REPORTS // 2:
        scalars["return"] = float(i * i)
    return scalars


def test_the_checksum_is_castagnolis(folder):
    equal(crc32c(b"123456789"), 0xe3069283)


def test_events(folder):
    files, rest = sorted((folder / "tb" / "learner-0").iterdir()), []
    equal(len(files), 2)  # one for each start
    check(files[0].name.startswith("events.out.tfevents.1700000000.") and files[0].name.endswith(".learner-0"))
    for file in files:
        head, *more = records(file.read_bytes())
        equal(dict(fields(head))[3], b"brain.Event:2")
        rest += more
    equal(len(rest), REPORTS)
    for i, body in enumerate(rest):
        event = dict(fields(body))
        equal(struct.unpack("<d", event[1])[0], 1.7e9 + 0.5 * i)
        equal(event.get(2, 0), 250 * i)
        values = [dict(fields(value)) for number, value in fields(event[5]) if number == 1]
        got = {value[1].decode(): struct.unpack("<f", value[2])[0] for value in values}
        wanted = {name: single(value) for name, value in expected(i).items()}
        check(got.keys() == wanted.keys() and all(same(got[name], wanted[name]) for name in got), (i, got, wanted))


def test_json_lines(folder):
    def refuse(word):
        raise ValueError("%s is no JSON" % word)

    lines = (folder / "learner-0.jsonl").read_text().splitlines()
    equal(len(lines), REPORTS)
    for i, line in enumerate(lines):
        scalars = {k: v if math.isfinite(v) else None for k, v in expected(i).items()}
        equal(json.loads(line, parse_constant=refuse),
              {"time": 1.7e9 + 0.5 * i, "process": "learner-0", "environment_steps": 250 * i, "learner_steps": 25 * i,
               **scalars})


def main():
    with tempfile.TemporaryDirectory(prefix="rp_events_") as folder:
        subprocess.run([os.environ["RP_BUILD_DIR"] + "/tests/unit_run_log", "--write", folder], check=True)
        return run_tests(pathlib.Path(folder))
