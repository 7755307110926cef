"""Exceptions: one class per status of the broker, each with the broker's own sentence.

>>> import replaybus
>>> issubclass(replaybus.DeadlineExceeded, TimeoutError)
True
>>> replaybus.NotFound("there is no table 'reply'").status
2
"""
from . import _core


class Error(Exception):
    """What went wrong: ``status`` is the code, ``name`` its name, ``text`` the sentence."""

    status: int = 18
    name: str = "INTERNAL"

    def __init__(self, text: str = "") -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return self.text

    def __reduce__(self):
        return type(self), (self.text,)


class InvalidArgument(Error, ValueError):
    """A value is not allowed."""


class NotFound(Error, KeyError):
    """There is no such table, item, slot or group."""


class AlreadyExists(Error, ValueError):
    """The key is in the table already."""


class DeadlineExceeded(Error, TimeoutError):
    """The time allowed has passed; the text says what was waited for."""


class ResourceExhausted(Error):
    """A limit on bytes, items or requests is reached."""


class FailedPrecondition(Error):
    """The call is not possible in the present state, for example on a closed object or after fork."""


class Unsupported(Error, ValueError):
    """Unknown protocol version, message or option."""


class BadMessage(Error):
    """A frame could not be decoded."""


class SessionUnknown(Error):
    """The broker does not know this session."""


class InDoubt(Error):
    """It is not known whether these items were inserted."""


class Cancelled(Error):
    """The call was given up by the caller, or by a broker that shuts down."""


class Unavailable(Error, ConnectionError):
    """No broker answers."""


class DataLoss(Error):
    """Stored or received data is damaged."""


class CreditExceeded(Error):
    """More was sent than the broker had allowed."""


class EndOfStream(Error):
    """There is nothing more to come. Iterators turn it into StopIteration."""


class NoMemory(Error, MemoryError):
    """Memory is used up."""


class InputOutput(Error, OSError):
    """A file or socket operation failed."""


class Internal(Error):
    """A defect of the program."""


class PermissionDenied(Error, PermissionError):
    """The key does not allow this, or there is none."""


_NAMES = {"IO": "InputOutput"}


def _by_status() -> tuple[type[Error], ...]:
    """The classes in the order of the codes, with status and name filled in."""
    classes: list[type[Error]] = []
    for code, name, _ in _core.statuses():
        title = _NAMES.get(name, name.title().replace("_", ""))
        cls = Error if name == "OK" else globals()[title]
        if cls is not Error:
            cls.status, cls.name = code, name
        classes.append(cls)
    return tuple(classes)


BY_STATUS = _by_status()
