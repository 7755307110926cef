"""The built-in environments, written in C, with Gymnasium's interface.

>>> from replaybus import envs
>>> "CartPole-v1" in envs.names()
True
"""
from __future__ import annotations

from ._load_agent import _agent


def names() -> list[str]:
    """The names of the built-in environments."""
    return [name for name, _ in _agent.environments()]
