"""The benchmark runs, whatever its figures are."""
import json
import pathlib
import subprocess
import sys

import pytest

import replaybus

TREE = pathlib.Path(replaybus._core.__file__).resolve().parents[1]


@pytest.mark.skipif(not (TREE / "replaybus_bench").exists(), reason="the benchmark is only in a build tree")
def test_bench():
    out = subprocess.run([sys.executable, "-m", "replaybus_bench", "--quick", "--json"], capture_output=True, text=True, timeout=100)
    assert out.returncode == 0, out.stderr
    found = json.loads(out.stdout)
    assert found["command"] == "python" and found["quick"] and found["repeats"] == 1
    assert sum("goal" in row or "missing" in row for row in found["rows"]) >= 6
    for row in found["rows"]:
        assert "missing" in row or row.get("value", row.get("ratio")) > 0, row
    wrong = subprocess.run([sys.executable, "-m", "replaybus_bench", "--repeat", "0"], capture_output=True, text=True, timeout=30)
    assert wrong.returncode == 2 and "--repeat" in wrong.stderr
