"""The checkpointers of this platform."""
from . import checkpointers
