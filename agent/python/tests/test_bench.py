"""The benchmark runs, whatever its figures are."""
import json
import pathlib
import subprocess
import sys

import pytest

import replaybus

BENCH = pathlib.Path(__file__).resolve().parents[1] / "bench" / "bench.py"


def test_bench():
    if not (pathlib.Path(replaybus._core.__file__).resolve().parents[2] / "replay_python_bench.so").exists():
        pytest.skip("the C loops are only in a build tree")
    out = subprocess.run([sys.executable, str(BENCH), "--rounds", "1", "--json"], capture_output=True, text=True, timeout=60)
    assert out.returncode == 0, out.stderr
    figures = json.loads(out.stdout)
    assert len(figures) == 10 and all(value > 0 for value in figures.values())
