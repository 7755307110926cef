"""Runs pytest over the package on PYTHONPATH. Exit status 77: not possible here."""
import os
import sys

try:
    import numpy  # noqa: F401
    import pytest
except ImportError as error:
    print(f"skipped: {error}; ./dev install gets python3-numpy and python3-pytest")
    sys.exit(77)

sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", os.path.dirname(os.path.abspath(__file__)), *sys.argv[1:]]))
