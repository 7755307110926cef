"""Names that need TensorFlow: they exist, so that programs can import them, and say what to use instead."""
from __future__ import annotations

from typing import Any

from .errors import needs_tensorflow


class TFClient:
    """Operations of a TensorFlow graph."""

    def __init__(self, *_: Any, **__: Any) -> None:
        raise needs_tensorflow("TFClient", "use Client, or iterate over TrajectoryDataset")


class PatternDataset:
    """Patterns over a TensorFlow dataset."""

    def __init__(self, *_: Any, **__: Any) -> None:
        raise needs_tensorflow("PatternDataset", "use replaybus.Writer.pattern, which makes items by rule")
