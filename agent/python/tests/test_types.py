"""What editors see: names to complete, and stubs that name everything that the extensions have, and nothing else."""
import ast
import importlib
import pathlib

import pytest

import replaybus


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
    stub = stub_names(ast.parse((pathlib.Path(replaybus.__file__).parent / f"{name}.pyi").read_text()).body)
    assert {one for one in vars(module) if not one.startswith("__")} == set(stub)
    for one, names in stub.items():
        if isinstance(getattr(module, one), type):
            assert members(getattr(module, one)) == names, one


def test_names_to_complete():
    names = dir(replaybus)
    assert {"Server", "Client", "Actor", "NotFound", "errors", "__version__"} <= set(names)
    assert not {"convert", "learn_numpy", "close_all", "annotations", "BY_STATUS"} & set(names)
    assert all(hasattr(replaybus, name) for name in names if name != "Actor")
