"""bench/figures: each figure of the papers becomes a CSV, an SVG and one line of conclusion. No number is judged here, but that there is one."""

import csv
import os
import pathlib
import subprocess
import sys
import tempfile
import xml.etree.ElementTree

from harness import run_tests
from launches import check, equal

SCRIPT = pathlib.Path(os.environ["RP_SOURCE_DIR"]) / "bench" / "figures"
RATES = {  # a column that says which points there are, one with figures, and the least number of rows
    "reverb-5": ("clients", "items_per_s", 4), "reverb-6": ("clients", "gb_per_s", 4), "reverb-7": ("shards", "items_per_s", 2),
    "parallel-8": ("leaves", "pick_ns", 4), "parallel-9": ("fan_out", "update_ns", 13), "parallel-10": ("clients", "seconds_per_million", 8),
    "host-64": ("bytes", "items_per_s", 6),
}
RUNS = {
    "apex-breakout": ("actors", "steps_per_s", 2), "apex-swingup": ("actors", "batches_per_s", 2), "parallel-12": ("actors", "achieved_per_s", 1),
    "acme-6": ("actors", "return", 2), "acme-7": ("samples_per_insert", "return", 20),
}


def figures(folder, *words, status=0):
    done = subprocess.run([sys.executable, "-B", str(SCRIPT), "--quick", "--out", folder, *words], capture_output=True, text=True, check=False)
    equal(done.returncode, status, done.stdout + done.stderr)
    return done.stdout + done.stderr


def check_figure(folder, name, points, value, least):
    with open(folder / f"{name}.csv", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row[points]]  # a line that only guides the eye has no point
    check(len(rows) >= least, name, rows)
    check(len({row[points] for row in rows}) > 1 or name.startswith("parallel"), name, "one point only", rows)
    numbers = [float(row[value]) for row in rows]
    check(value == "return" or all(number > 0 for number in numbers), name, numbers)
    root = xml.etree.ElementTree.parse(folder / f"{name}.svg").getroot()
    check(len(root.findall("{*}polyline")) + len(root.findall("{*}circle")) >= 2, name, "lines are missing")


def check_all(wanted):
    with tempfile.TemporaryDirectory() as base:
        figures(base, *wanted)
        folder = pathlib.Path(base)
        said = dict(line.split(": ", 1) for line in (folder / "conclusions.txt").read_text().splitlines())
        equal(set(said), set(wanted), "a line for each")
        for name, what in wanted.items():
            check_figure(folder, name, *what)


def test_rates():
    """What replay-bench measures, and what follows from it."""
    check_all(RATES)


def test_runs():
    """What runs of the launcher, of processes and of replay-single give."""
    check_all(RUNS)


def test_refusals():
    """A name that is none; a figure that is computed from others, without them."""
    with tempfile.TemporaryDirectory() as base:
        check("reverb-5" in figures(base, "reverb-55", status=2))
        figures(base, "host-64", status=1)
        check("FAILED" in (pathlib.Path(base) / "conclusions.txt").read_text())


def main():
    if os.environ.get("RP_SANITIZE"):
        return 77  # it takes too long with instrumentation, and shows nothing new
    return run_tests()
