"""When a table lets items be inserted and sampled.

A limiter counts: cursor = inserts * samples_per_insert - samples. Samples wait while the table is smaller than
min_size_to_sample or the cursor would fall below min_diff; inserts wait while the cursor would rise above max_diff.

>>> SampleToInsertRatio(samples_per_insert=4, min_size_to_sample=10, error_buffer=20)
RateLimiter(samples_per_insert=4.0, min_size_to_sample=10, min_diff=20.0, max_diff=60.0)
"""
import math
import sys
from typing import Sequence, Union

_LARGEST = sys.float_info.max
_BOUND = 1e18  # the broker's limiter without a bound


class RateLimiter:
    """A limiter with explicit bounds on the cursor."""

    kind = "sample_to_insert_ratio"

    def __init__(self, samples_per_insert: float, min_size_to_sample: int, min_diff: float, max_diff: float) -> None:
        if not samples_per_insert > 0:
            raise ValueError(f"samples_per_insert must be greater than 0, not {samples_per_insert}")
        if min_size_to_sample < 1:
            raise ValueError(f"min_size_to_sample must be 1 or more, not {min_size_to_sample}")
        if math.isnan(min_diff) or math.isnan(max_diff) or min_diff > max_diff:
            raise ValueError(f"min_diff {min_diff} must not be greater than max_diff {max_diff}")
        self.samples_per_insert, self.min_size_to_sample = float(samples_per_insert), int(min_size_to_sample)
        self.min_diff, self.max_diff = float(min_diff), float(max_diff)

    def __repr__(self) -> str:
        return (f"RateLimiter(samples_per_insert={self.samples_per_insert}, min_size_to_sample={self.min_size_to_sample}, "
                f"min_diff={self.min_diff}, max_diff={self.max_diff})")

    @property
    def config(self) -> dict:
        """The limiter as docs/CONFIG.md describes it."""
        return {"kind": self.kind, "samples_per_insert": self.samples_per_insert, "min_size": self.min_size_to_sample,
                "min_diff": max(self.min_diff, -_BOUND), "max_diff": min(self.max_diff, _BOUND)}


class MinSize(RateLimiter):
    """Samples wait until the table has min_size_to_sample items; nothing else waits."""

    def __init__(self, min_size_to_sample: int) -> None:
        super().__init__(1.0, min_size_to_sample, -_LARGEST, _LARGEST)

    @property
    def config(self) -> dict:
        return {"kind": "min_size", "min_size": self.min_size_to_sample}


class SampleToInsertRatio(RateLimiter):
    """Keeps the number of samples per insert near a target.

    error_buffer: how far the cursor may be from samples_per_insert * min_size_to_sample; or a pair, min_diff and max_diff.
    """

    def __init__(self, samples_per_insert: float, min_size_to_sample: int,
                 error_buffer: Union[float, Sequence[float]]) -> None:
        centre = samples_per_insert * min_size_to_sample
        if isinstance(error_buffer, Sequence):
            min_diff, max_diff = error_buffer
        else:
            min_diff, max_diff = centre - error_buffer, centre + error_buffer
        super().__init__(samples_per_insert, min_size_to_sample, min_diff, max_diff)
        width = 2 * max(1.0, samples_per_insert)
        if max_diff - min_diff < width:
            raise ValueError(f"the error buffer from {min_diff} to {max_diff} is too small: it must be {width} wide, or "
                             "inserts and samples would wait for each other")
        if min_diff > centre:
            raise ValueError(f"min_diff {min_diff} is greater than samples_per_insert * min_size_to_sample = {centre}")


class Queue(RateLimiter):
    """Inserts wait while ``size`` items have not been sampled. Use it with Fifo, Fifo and max_times_sampled=1."""

    kind = "queue"

    def __init__(self, size: int) -> None:
        super().__init__(1.0, 1, 0.0, size)
        self.size = size

    @property
    def config(self) -> dict:
        return {"kind": self.kind}  # its size is the table's max_size


class Stack(Queue):
    """Inserts wait while ``size`` items have not been sampled. Use it with Lifo, Lifo and max_times_sampled=1."""

    kind = "stack"
