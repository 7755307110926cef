"""The checkpointers, by another of Reverb's names."""
from ...checkpointers import DefaultCheckpointer, default_checkpointer

__all__ = ["DefaultCheckpointer", "default_checkpointer"]
