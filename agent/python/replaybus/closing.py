"""Objects with ``close``, for ``with`` blocks."""
from __future__ import annotations

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
    """Its ``close(timeout)`` waits for the broker. After an exception it waits a second, and does not hide the exception."""

    def __exit__(self, kind: Any = None, *_: Any) -> None:
        if kind is None:
            self.close()
            return
        with contextlib.suppress(Error):
            self.close(1.0)
