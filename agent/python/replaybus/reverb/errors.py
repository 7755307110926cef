"""Exceptions that programs written for Reverb catch. Each one carries the broker's message.

>>> issubclass(DeadlineExceededError, ReverbError) and issubclass(DeadlineExceededError, TimeoutError)
True
"""
from typing import Any

from .. import errors as native


class ReverbError(RuntimeError):
    """The base of all errors of this module."""


class DeadlineExceededError(ReverbError, TimeoutError):
    """A time-out has passed; the message says what the call waited for."""


class InvalidArgumentError(ReverbError, ValueError):
    """A value is not allowed."""


class NotFoundError(ReverbError):
    """The broker has no such table."""


_CLASSES = {
    native.DeadlineExceeded: DeadlineExceededError,
    native.InvalidArgument: InvalidArgumentError,
    native.AlreadyExists: InvalidArgumentError,
    native.Unsupported: InvalidArgumentError,
    native.NotFound: NotFoundError,
}


class _Translated:
    """The block ``with translated:`` turns errors of replaybus into errors of this module."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: Any, _: Any) -> None:
        if kind is not None and issubclass(kind, native.Error):
            raise _CLASSES.get(kind, ReverbError)(str(error)) from error


translated = _Translated()


def needs_tensorflow(what: str, instead: str) -> NotImplementedError:
    """The error of everything that would need TensorFlow."""
    return NotImplementedError(f"{what} needs TensorFlow, which replaybus does not use: {instead}")
