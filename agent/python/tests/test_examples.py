"""The examples run to their end, and each says by its exit status that it has reached its goal."""
import json
import os
import pathlib
import re
import subprocess
import sys

import pytest

from conftest import LAUNCH

EXAMPLES = sorted((pathlib.Path(__file__).resolve().parents[1] / "examples").glob("*.py"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example(path, tmp_path):
    text = path.read_text()
    assert len(text.splitlines()) < 150
    if "import torch" in text:
        pytest.importorskip("torch", reason="torch is missing: ./dev install gets python3-torch")
    if "replay-launch" in text and not LAUNCH.exists():
        pytest.skip("replay-launch is only in a build tree")
    environment = {**os.environ, "RP_LAUNCH": str(LAUNCH)}
    out = subprocess.run([sys.executable, str(path)], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=400)
    print(out.stdout)
    assert (out.returncode, out.stderr) == (0, ""), out.stdout + out.stderr
    if path.stem == "torch_dqn":  # the goal is 10%, on a machine that does nothing else
        folder = tmp_path / "runs" / "latest"
        others = [json.loads(line)["others"] or 0 for line in (folder / "metrics.jsonl").read_text().splitlines()]
        waited = float(re.search(r"waited ([0-9.]+)% of the time", (folder / "logs" / "learner-0.log").read_text())[1])
        assert waited < 25 or sum(others) > 0.25 * len(others)  # cores that other programs took
