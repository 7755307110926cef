"""The examples in the docstrings, and the guide's, run as they stand."""
import doctest
import importlib
import importlib.util
import pathlib

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[3]
MODULES = ["replaybus", "replaybus.adapter.make", "replaybus.buffer", "replaybus.client", "replaybus.actor", "replaybus.envs", "replaybus.spaces", "replaybus.errors", "replaybus.nest", "replaybus.run", "replaybus.sampler", "replaybus.server",
           "replaybus.weights", "replaybus.writer", "replaybus.reverb", "replaybus.reverb._structure", "replaybus.reverb.errors",
           "replaybus.reverb.item_selectors", "replaybus.reverb.rate_limiters", "replaybus.reverb.server",
           "replaybus.reverb.structured_writer", "replaybus.reverb.trajectory_dataset"]


TORCH_MODULES = ["replaybus.torch", "replaybus.torch.batch", "replaybus.torch.buffer", "replaybus.torch.device", "replaybus.torch.policy"]


@pytest.mark.parametrize("name", MODULES + TORCH_MODULES)
def test_docstrings(name):
    if name in TORCH_MODULES:
        pytest.importorskip("torch", reason="torch is missing: ./dev install gets python3-torch")
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def python_blocks(path):
    """The blocks of a document; those that need torch only where it is."""
    blocks = [part.split("```")[0] for part in path.read_text().split("```python\n")[1:]]
    if importlib.util.find_spec("torch") is None:
        blocks = [block for block in blocks if "torch" not in block]
    return blocks


@pytest.mark.parametrize("path", ["README.md", "docs/GUIDE.md", "docs/FRESH.md"])
def test_documents(path):
    blocks = python_blocks(ROOT / path)
    assert blocks
    scope = {}
    try:
        for block in blocks:
            exec(compile(block, path, "exec"), scope)
    finally:
        if "server" in scope:
            scope["server"].stop()
