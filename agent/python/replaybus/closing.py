"""Objects with ``close``, for ``with`` blocks."""
import contextlib
from typing import Any, TypeVar

from .errors import Error

T = TypeVar("T", bound="Closing")


class Closing:
    """Closes at the end of a ``with`` block."""

    def close(self, *arguments: Any) -> None:
        raise NotImplementedError

    def __enter__(self: T) -> T:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def __reduce__(self) -> Any:
        raise TypeError(f"{type(self).__name__}: it cannot be pickled; pickle its client, and make another one there")


class Flushing(Closing):
    """Its ``close(timeout)`` waits for the broker, and can be repeated after DeadlineExceeded. After an exception the block waits a second,
    gives up the rest (what was sent may still come in), and does not hide the exception."""

    def _give_up(self) -> None:
        raise NotImplementedError

    def __exit__(self, kind: Any = None, *_: Any) -> None:
        if kind is not None:
            self._end(1.0)
            return
        try:
            self.close()
        finally:
            self._give_up()  # what a close that did not end has left

    def _end(self, timeout: float) -> None:
        """Closes; what is not done in time is given up."""
        try:
            with contextlib.suppress(Error):
                self.close(timeout)
        finally:
            self._give_up()
