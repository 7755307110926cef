"""Environments in Python for the C actors: any object with Gymnasium's interface. Needs numpy, and neither gymnasium nor the
extensions of this package."""
from __future__ import annotations

from typing import Mapping

from .make import factory
from .seats import Environments, Spec
from .spaces import Mismatch, Refused
from .vector import Vector

__all__ = ["Environments", "Mismatch", "Refused", "Spec", "Vector", "open_environments"]


def open_environments(python: str, gym: str, options: Mapping[str, str], n: int = 1) -> Environments:
    """Makes n environments, or the environments of one vector environment.

    python: "module:callable"; gym: an id for gymnasium.make; exactly one of them is not empty. options: texts of keyword
    arguments. Raises Refused with a sentence, or what the environment raises.
    """
    name = python or gym
    try:
        make = factory(python, gym, options)
        env = make()
        return Vector(name, env, n) if hasattr(env, "num_envs") else Environments(name, make, env, n)
    except Refused as error:
        raise Refused(f"environment '{name}': {error}") from None
