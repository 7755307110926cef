"""run.py [FILES] [OPTIONS]: runs pytest over the package on PYTHONPATH. Exit status 77: not possible here."""
import os
import signal
import sys

try:
    import numpy  # noqa: F401
    import pytest
except ImportError as error:
    print(f"skipped: {error}; ./dev install gets python3-numpy and python3-pytest")
    sys.exit(77)

here = os.path.dirname(os.path.abspath(__file__))
files = [os.path.join(here, name) for name in sys.argv[1:] if name.endswith(".py") and not name.startswith("-")]
options = [option for option in sys.argv[1:] if not option.endswith(".py") or option.startswith("-")]
# A shell that starts programs in the background lets them ignore Ctrl-C, which some tests send.
signal.signal(signal.SIGINT, signal.default_int_handler)
# A test that hangs shows where.
hangs = ["-o", "faulthandler_timeout=150"]
sys.exit(pytest.main(["-q", "-rs", "-p", "no:cacheprovider", *hangs, *(files or [here]), *options]))
