"""What sampling returns."""
from typing import Any, NamedTuple, Sequence


class SampleInfo(NamedTuple):
    """An item's key, the probability of the pick, the table's size, the priority, and the number of samples so far."""

    key: Any
    probability: Any
    table_size: Any
    priority: Any
    times_sampled: Any = 1

    @classmethod
    def zeros(cls) -> "SampleInfo":
        """An info for data that nobody sampled."""
        return cls(0, 0.0, 0, 0.0, 0)


class ReplaySample(NamedTuple):
    """A timestep or a whole item: ``data`` is a list of arrays, or the structure of the table's signature."""

    info: SampleInfo
    data: Any


SampleType = Sequence[ReplaySample]
