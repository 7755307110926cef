"""The benchmark runs, whatever its figures are."""
import json
import pathlib
import subprocess

import pytest

import replaybus

BENCH = pathlib.Path(replaybus._core.__file__).resolve().parents[3] / "replay-bench"


@pytest.mark.skipif(not BENCH.exists(), reason="replay-bench is only in a build tree")
def test_bench():
    out = subprocess.run([BENCH, "python", "--quick", "--json"], capture_output=True, text=True, timeout=100)
    assert out.returncode == 0, out.stderr
    found = json.loads(out.stdout)
    assert found["command"] == "python" and found["quick"] and found["repeats"] == 1
    assert sum("goal" in row or "missing" in row for row in found["rows"]) >= 6
    for row in found["rows"]:
        assert "missing" in row or row.get("value", row.get("ratio")) > 0, row
    wrong = subprocess.run([BENCH, "python", "--repeat", "0"], capture_output=True, text=True, timeout=30)
    assert wrong.returncode == 2 and "--repeat" in wrong.stderr
