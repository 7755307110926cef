"""PatternDataset needs TensorFlow: the name exists, so that programs can import it, and says what to use instead."""
from __future__ import annotations

from typing import Any

from .errors import needs_tensorflow


class PatternDataset:
    """Patterns over a TensorFlow dataset."""

    def __init__(self, *_: Any, **__: Any) -> None:
        raise needs_tensorflow("PatternDataset", "use Client.structured_writer, which makes items by the same patterns")
