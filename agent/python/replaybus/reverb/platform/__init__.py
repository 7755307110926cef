"""Modules that Reverb keeps apart for each platform."""
from . import checkpointers_lib, default
