"""The layer below the writers, selectors and checkpointers, by the names that Reverb's programs know."""
from __future__ import annotations

from ._inner import AutoTunedChunkerOptions, ColumnError, ConstantChunkerOptions
from ._inner import InnerWriter as TrajectoryWriter
from ._inner import Reference as WeakCellRef
from .checkpointers import CheckpointerInterface
from .checkpointers import CheckpointerInterface as Checkpointer
from .item_selectors import Fifo as FifoSelector
from .item_selectors import Heap as HeapSelector
from .item_selectors import Lifo as LifoSelector
from .item_selectors import Prioritized as PrioritizedSelector
from .item_selectors import Selector as ItemSelector
from .item_selectors import Uniform as UniformSelector
from .rate_limiters import RateLimiter
from .replay_sample import SampleInfo

__all__ = ["AutoTunedChunkerOptions", "Checkpointer", "CheckpointerInterface", "ColumnError", "ConstantChunkerOptions", "FifoSelector",
           "HeapSelector", "ItemSelector", "LifoSelector", "PrioritizedSelector", "RateLimiter", "Sampler",
           "TrajectoryWriter", "UniformSelector", "WeakCellRef"]


class Sampler:
    """Facts about samples. ``Client.sample`` and the datasets take them."""

    NUM_INFO_TENSORS = len(SampleInfo._fields)
