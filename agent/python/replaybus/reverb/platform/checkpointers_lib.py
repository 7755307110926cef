"""The checkpointers, by another of Reverb's names."""
from ..checkpointers import DefaultCheckpointer as CheckpointerBase
from ..checkpointers import TempDirCheckpointer

__all__ = ["CheckpointerBase", "TempDirCheckpointer"]
