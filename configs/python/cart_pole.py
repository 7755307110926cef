"""CartPole in plain Python: an environment with Gymnasium's interface, without gymnasium and without numpy in its step.

An environment needs observation_space, action_space, reset() and step(). The spaces may be gymnasium's, or any class with the
same name and attributes, as here.
"""
import math
import random


class Box:
    """The observations: a vector of numbers."""

    def __init__(self, low: float, high: float, shape: tuple, dtype: str = "float32") -> None:
        self.low, self.high, self.shape, self.dtype = low, high, shape, dtype


class Discrete:
    """The actions: whole numbers from 0 to n - 1."""

    def __init__(self, n: int) -> None:
        self.n = n


class CartPole:
    """A cart is pushed to the left or to the right, so that the pole on it stays upright for 500 steps."""

    observation_space = Box(-math.inf, math.inf, (4,))
    action_space = Discrete(2)

    def __init__(self, max_steps: int = 500) -> None:
        self.max_steps = max_steps
        self.random = random.Random()

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple:
        if seed is not None:
            self.random.seed(seed)
        self.steps = 0
        self.state = [self.random.uniform(-0.05, 0.05) for _ in range(4)]
        return self.state, {}

    def step(self, action: int) -> tuple:
        x, speed, angle, turn = self.state
        cos, sin = math.cos(angle), math.sin(angle)
        push = ((10.0 if action == 1 else -10.0) + 0.05 * turn * turn * sin) / 1.1
        turning = (9.8 * sin - cos * push) / (0.5 * (4.0 / 3.0 - 0.1 * cos * cos / 1.1))
        pushing = push - 0.05 * turning * cos / 1.1
        self.state = [x + 0.02 * speed, speed + 0.02 * pushing, angle + 0.02 * turn, turn + 0.02 * turning]
        self.steps += 1
        terminated = abs(self.state[0]) > 2.4 or abs(self.state[2]) > 0.2095
        return self.state, 1.0, terminated, self.steps >= self.max_steps, {}


def make(max_steps: int = 500) -> CartPole:
    """What environment.name names: python:cart_pole:make."""
    return CartPole(max_steps)
