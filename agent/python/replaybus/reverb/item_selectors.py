"""How a table picks items to sample and to remove.

>>> Prioritized(priority_exponent=0.6)
Prioritized(priority_exponent=0.6)
>>> Fifo().config
{'kind': 'fifo'}
"""
import math


class Selector:
    """A selector of the broker. ``config`` is its entry in the broker's configuration."""

    kind = ""
    is_deterministic = True

    @property
    def config(self) -> dict:
        """The selector as docs/CONFIG.md describes it."""
        return {"kind": self.kind}

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Selector) and self.config == other.config

    def __hash__(self) -> int:
        return hash(repr(self))


class Fifo(Selector):
    """Picks the oldest item."""

    kind = "fifo"


class Lifo(Selector):
    """Picks the newest item."""

    kind = "lifo"


class Uniform(Selector):
    """Picks every item with the same probability."""

    kind = "uniform"
    is_deterministic = False


class Heap(Selector):
    """Picks by priority."""


class MinHeap(Heap):
    """Picks the item with the lowest priority; among equals, the item that was changed longest ago."""

    kind = "min_heap"


class MaxHeap(Heap):
    """Picks the item with the highest priority; among equals, the item that was changed longest ago."""

    kind = "max_heap"


class Prioritized(Selector):
    """Picks an item with a probability proportional to priority ** priority_exponent."""

    kind = "prioritized"
    is_deterministic = False

    def __init__(self, priority_exponent: float) -> None:
        if not math.isfinite(priority_exponent) or priority_exponent < 0:
            raise ValueError(f"priority_exponent must be 0 or more, not {priority_exponent}")
        self.priority_exponent = float(priority_exponent)

    @property
    def config(self) -> dict:
        return {"kind": self.kind, "exponent": self.priority_exponent}

    def __repr__(self) -> str:
        return f"Prioritized(priority_exponent={self.priority_exponent})"
