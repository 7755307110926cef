"""Environments in Python for the C actors: any object with Gymnasium's interface. Needs numpy, and neither gymnasium nor the
extensions of this package."""
import traceback
from typing import Mapping

from .make import factory
from .subenvs import Environments, Spec
from .spaces import Mismatch, Refused
from .vector import Vector

__all__ = ["Environments", "Mismatch", "Refused", "Spec", "Vector", "open_environments", "open_or_explain"]


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


def open_or_explain(python: str, gym: str, options: Mapping[str, str], n: int = 1) -> Environments:
    """open_environments for programs: every error becomes one sentence, after its traceback."""
    try:
        return open_environments(python, gym, options, n)
    except Refused:
        raise
    except BaseException as error:
        traceback.print_exc()
        raise Refused(f"environment '{python or gym}': it cannot be made: {type(error).__name__}: {error}") from None
