"""SIGTERM before a process can end in order, and after it has: Python itself would let the signal kill it then.

Begin before the imports that take time. PatientService takes the signal over when there is something to end."""

import os
import signal
import sys


def begin():
    """Nothing was begun yet: the end is at once, and all is well."""
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))


def end(status):
    """Everything is done: whoever asks for the end now is too late. Python leaves an ignored signal ignored."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    sys.exit(status)
