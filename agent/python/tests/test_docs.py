"""The examples in the docstrings, and the guide's, run as they stand. What editors see: names to complete, and stubs
that name everything that the extensions have, and nothing else."""
import ast
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


def stub_names(body):
    """The names that a stub's module or class defines, with the names inside its classes."""
    names = {}
    for node in body:
        if isinstance(node, ast.ClassDef):
            names[node.name] = set(stub_names(node.body)) - {"__new__"}
        elif isinstance(node, ast.FunctionDef):
            names[node.name] = None
        elif isinstance(node, ast.AnnAssign):
            names[node.target.id] = None
    return names


def members(cls):
    """What a class of an extension defines itself. Of the special methods only __len__ needs a stub."""
    return {name for name in vars(cls) if not name.startswith("__") or name == "__len__"}


@pytest.mark.parametrize("name", ["_core", "_agent"])
def test_stub(name):
    try:
        module = importlib.import_module(f"replaybus.{name}")
    except ImportError:
        pytest.skip("this package has no environments")
    stub = stub_names(ast.parse((PACKAGE / f"{name}.pyi").read_text()).body)
    assert {one for one in vars(module) if not one.startswith("__")} == set(stub)
    for one, names in stub.items():
        if isinstance(getattr(module, one), type):
            assert members(getattr(module, one)) == names, one


def test_names_to_complete():
    names = dir(replaybus)
    assert {"Server", "Client", "Actor", "NotFound", "errors", "__version__"} <= set(names)
    assert not {"convert", "learn_numpy", "close_all", "annotations", "BY_STATUS"} & set(names)
    assert all(hasattr(replaybus, name) for name in names if name != "Actor")
