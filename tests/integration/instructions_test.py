"""Instructions per operation in the broker and in the library, against what tests/instructions records: they do not depend on load.

callgrind counts tests/instructions/work.c twice, with N and with 2 N operations; the difference has neither start nor end. A count above
MOST of the record fails, and the functions that grew are named. ``./dev instructions --record`` writes the record of this
architecture and compiler; where there is none, the counts are only shown.
"""

import collections
import concurrent.futures
import os
import pathlib
import platform
import re
import shutil
import subprocess
import sys
import tempfile

SOURCE = pathlib.Path(os.environ.get("RP_SOURCE_DIR", pathlib.Path(__file__).resolve().parents[2]))
WORK = pathlib.Path(os.environ.get("RP_BUILD_DIR", SOURCE / "build" / "dev")) / "tests" / "work"
MOST = 1.05
# Operations of the shorter run. Those of the queue insert a batch, and take it out by nothing, a sample, or a lease with its acknowledgement.
KINDS = {"insert": 2000, "sample": 200, "sample-shared": 200, "update": 400, "queue-fill": 100, "queue": 100, "queue-lease": 100}
MOST_LEASE = 1.10  # instructions of the broker for a batch under lease, of those for a plain one
BROKER = "broker_part"  # the function of work.c that gives the broker its turns
NAMED = 25  # functions of a kind in the record
SKIPPED = 77
# The C library chooses functions by the processor: here it has those that every x86-64 can run.
SAME_EVERYWHERE = {"GLIBC_TUNABLES": "glibc.cpu.hwcaps=-AVX2,-AVX,-FMA,-FMA4,-ERMS,-FSRM,-AVX_Fast_Unaligned_Load,-SSE4_2,-SSSE3"}


def read_profile(path):
    """Returns a Counter of a callgrind file: own instructions by function, and those of all that BROKER calls."""
    counts, names, function, called = collections.Counter(), {}, None, None
    skip = False  # the next line is what a call took
    for line in path.read_text(errors="replace").splitlines():
        if match := re.match(r"(c?fn)=\((\d+)\)(?: (.*))?$", line):
            name = names.setdefault(match[2], match[3])
            if match[1] == "fn":
                function = name
            else:
                called = name
        elif line.startswith("calls="):
            skip = True
        elif re.match(r"[+*\d-]", line):
            cost = int(line.split()[1])
            if not skip:
                counts[function] += cost
            elif called == BROKER:
                counts["broker"] += cost
            skip = False
    counts["all"] = sum(counts.values()) - counts["broker"]
    return counts


def profile(folder, kind, n):
    out = folder / f"{kind}-{n}"
    subprocess.run(["valgrind", "-q", "--tool=callgrind", f"--callgrind-out-file={out}", WORK, kind, str(n)], check=True,
                   env={**os.environ, **SAME_EVERYWHERE})
    return read_profile(out)


def count(kinds):
    """Returns {kind: {name: instructions per operation}}: functions, and the whole of broker and library."""
    with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        runs = {kind: [pool.submit(profile, pathlib.Path(folder), kind, n * i) for i in (1, 2)] for kind, n in kinds.items()}
        out = {}
        for kind, n in kinds.items():
            short, long = (run.result() for run in runs[kind])
            per = {name: (long[name] - short[name]) / n for name in long}
            per["library"] = per.pop("all") - per["broker"]
            out[kind] = per
        return out


def read_record(path):
    record = collections.defaultdict(dict)
    for line in path.read_text().splitlines() if path.exists() else []:
        kind, name, value = line.split()
        record[kind][name] = float(value)
    return record


def write_record(path, counts):
    lines = []
    for kind, per in counts.items():
        whole = [(name, per[name]) for name in ("broker", "library")]
        functions = sorted((item for item in per.items() if item[0] not in dict(whole)), key=lambda item: -item[1])
        lines += [f"{kind} {name} {value:.1f}" for name, value in whole + functions[:NAMED]]
    path.write_text("\n".join(lines) + "\n")


def show_growth(now, then):
    """Names the functions that take more than in the record. One that is not in it took at most as much as the last that is."""
    least = min(then.values())
    grown = {name: value - then.get(name, least) for name, value in now.items() if name not in ("broker", "library")}
    for name, more in sorted(grown.items(), key=lambda item: -item[1])[:10]:
        if more >= 1:
            print(f"    {more:+9.1f}  {name}: {now[name]:.1f}, was " + (f"{then[name]:.1f}" if name in then else f"below {least:.1f}"))


def compare(counts, record):
    """Prints the counts, and returns whether all are within their bounds."""
    good = True
    for kind, per in counts.items():
        for side in ("broker", "library"):
            then = record[kind].get(side)
            ratio = f", {per[side] / then:.3f} of the {then:.0f} recorded" if then else ""
            over = bool(then) and per[side] > MOST * then
            print(f"{kind:13s} {side:8s} {per[side]:9.0f} instructions{ratio}" + (f": above {MOST}" if over else ""))
            if over:
                good = False
                show_growth(per, record[kind])
    return good


def main():
    if os.environ.get("RP_SANITIZE") or not shutil.which("valgrind"):
        print("skipped: instructions are counted by valgrind, in programs that are not instrumented")
        return SKIPPED
    compiler = subprocess.run([WORK, "compiler", "1"], check=True, capture_output=True, text=True).stdout.strip()
    path = SOURCE / "tests" / "instructions" / f"{platform.machine()}-{compiler}.txt"
    counts = count(KINDS)
    if "--record" in sys.argv:
        write_record(path, counts)
    record = read_record(path)
    if not record:
        print(f"no record for this architecture and compiler ({path.name}): ./dev instructions --record makes one")
    fill, plain, lease = (counts[kind]["broker"] for kind in ("queue-fill", "queue", "queue-lease"))
    ratio = (lease - fill) / (plain - fill)
    print(f"a lease costs {ratio:.3f} of a plain sample of a queue, at most {MOST_LEASE}")
    if compare(counts, record) and ratio <= MOST_LEASE:
        return 0
    print("Instructions have grown. If that has to be, ./dev instructions --record, and say why in the commit.")
    return 1
