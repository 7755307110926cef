"""Names of Reverb's extension module by which programs know the same things."""
from .checkpointers import DefaultCheckpointer as Checkpointer
from .item_selectors import Fifo as FifoSelector
from .item_selectors import Heap as HeapSelector
from .item_selectors import Lifo as LifoSelector
from .item_selectors import Prioritized as PrioritizedSelector
from .item_selectors import Selector as ItemSelector
from .item_selectors import Uniform as UniformSelector
from .rate_limiters import RateLimiter
from .trajectory_writer import Reference as WeakCellRef
from .trajectory_writer import TrajectoryWriter

__all__ = ["Checkpointer", "FifoSelector", "HeapSelector", "ItemSelector", "LifoSelector", "PrioritizedSelector", "RateLimiter",
           "TrajectoryWriter", "UniformSelector", "WeakCellRef"]
