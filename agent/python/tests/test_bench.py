"""The benchmark runs, whatever its figures are."""
import json
import pathlib
import subprocess
import sys

import pytest

import replaybus

def bench(*arguments):
    out = subprocess.run([sys.executable, "-m", "replaybus_bench", *arguments, "--json"], capture_output=True, text=True, timeout=240)
    assert out.returncode == 0, out.stderr
    return json.loads(out.stdout)


TREE = pathlib.Path(replaybus._core.__file__).resolve().parents[1]


pytestmark = pytest.mark.skipif(not (TREE / "replaybus_bench").exists(), reason="the benchmark is only in a build tree")


def test_bench():
    found = bench("--quick")
    assert found["command"] == "python" and found["quick"] and found["repeats"] == 1
    assert sum("goal" in row or "missing" in row for row in found["rows"]) >= 6
    for row in found["rows"]:
        assert "missing" in row or row.get("value", row.get("ratio")) > 0, row
    wrong = subprocess.run([sys.executable, "-m", "replaybus_bench", "--repeat", "0"], capture_output=True, text=True, timeout=120)
    assert wrong.returncode == 2 and "--repeat" in wrong.stderr


def test_feeding():
    pytest.importorskip("torch", reason="torch is missing: ./dev install gets python3-torch")
    found = {row["what"]: row for row in bench("--feed", "--quick", "--device", "cpu", "--chunks", "3")["rows"]}
    assert len([what for what in found if what.startswith("chunks of 3: ")]) == 6 and found["the learner alone"]["value"] > 0
    waits = found["chunks of 3: the learner waits"]
    assert 0 <= waits["value"] <= 1 and waits["goal"] == 0.05 and found["interpreter's work for a batch"]["value"] > 0


def test_buffers():
    found = bench("--buffer", "--quick")["rows"]
    assert len(found) == 16 and sum("goal" in row for row in found) == 5 and all(row.get("value", row.get("ratio")) > 0 for row in found)
