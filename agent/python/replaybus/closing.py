"""Objects with ``close``, for ``with`` blocks, and how objects look in notebooks."""
from __future__ import annotations

import contextlib
import html as _html
from typing import Any, Iterable, Sequence, TypeVar

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


def html(rows: Iterable[Sequence[Any]]) -> str:
    """A small table for notebooks; the first row has the names of the columns."""
    lines = ["".join(f"<{cell}>{_html.escape(str(value))}</{cell}>" for value in row) for cell, row in zip(_cells(), rows)]
    return f"<table>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>"


def _cells() -> Iterable[str]:
    yield "th"
    while True:
        yield "td"


class Flushing(Closing):
    """Its ``close(timeout)`` waits for the broker. After an exception it waits a second, and does not hide the exception."""

    def __exit__(self, kind: Any = None, *_: Any) -> None:
        if kind is None:
            self.close()
            return
        with contextlib.suppress(Error):
            self.close(1.0)
