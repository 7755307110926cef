"""The examples in the docstrings, and the guide's, run as they stand."""
import doctest
import importlib
import importlib.util
import pathlib

import pytest

import replaybus

ROOT = pathlib.Path(__file__).resolve().parents[3]
PACKAGE = pathlib.Path(replaybus.__file__).parent
MODULES = [path.relative_to(PACKAGE.parent) for path in sorted(PACKAGE.rglob("*.py")) if ">>>" in path.read_text()]


def test_modules_have_examples():
    assert len(MODULES) > 20


@pytest.mark.parametrize("path", MODULES, ids=str)
def test_docstrings(path):
    if "torch" in path.parts:
        pytest.importorskip("torch", reason="torch is missing: ./dev install gets python3-torch")
    assert doctest.testmod(importlib.import_module(".".join(path.with_suffix("").parts).removesuffix(".__init__"))).failed == 0


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
