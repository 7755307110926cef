"""The examples run to their end, and each says by its exit status that it has reached its goal."""
import pathlib
import subprocess
import sys

import pytest

EXAMPLES = sorted((pathlib.Path(__file__).resolve().parents[1] / "examples").glob("*.py"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example(path):
    assert len(path.read_text().splitlines()) < 150
    out = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, timeout=60)
    assert (out.returncode, out.stderr) == (0, ""), out.stdout + out.stderr
