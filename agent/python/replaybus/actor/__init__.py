"""Actors with the networks and adders of the C programs."""
from .._load_agent import _agent  # noqa: F401
