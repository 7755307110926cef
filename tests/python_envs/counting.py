"""Small environments for tests of Python environments: each counts its steps, so that every number is known in advance.

An episode has LENGTH steps with reward 1; its observations hold the number of steps. make(kind) makes one of them; the kinds that
fail do so in the episode and the step that their options name.
"""
import collections
import time

import numpy as np

LENGTH = 10


Box = collections.namedtuple("Box", "low high shape dtype", defaults=["float32"])
Discrete = collections.namedtuple("Discrete", "n start", defaults=[0])
Text = collections.namedtuple("Text", "")


class Dict:
    def __init__(self, **spaces):
        self.spaces = spaces


class Tuple:
    def __init__(self, *spaces):
        self.spaces = spaces


class Counting:
    """Terminates after LENGTH steps."""

    observation_space = Box(0, LENGTH, (2,))
    action_space = Discrete(3)

    def __init__(self):
        self.t = self.episode = 0

    def observe(self):
        return [float(self.t), float(LENGTH - self.t)]

    def reset(self, *, seed=None, options=None):
        self.t, self.episode = 0, self.episode + 1
        return self.observe(), {}

    def step(self, action):
        assert isinstance(action, int) and 0 <= action < 3, action
        self.t += 1
        return self.observe(), 1.0, self.t >= LENGTH, False, {"episode": {"r": 10.0, "l": LENGTH}} if self.t >= LENGTH else {}


class Truncating(Counting):
    """Truncates instead."""

    def step(self, action):
        observation, reward, done, _, info = super().step(action)
        return observation, reward, False, done, info


class Both(Counting):
    """Reports both at once: terminal counts."""

    def step(self, action):
        observation, reward, done, _, info = super().step(action)
        return observation, reward, done, done, info


class Old(Counting):
    """The interface of gym before 0.26."""

    def reset(self):
        return super().reset()[0]

    def step(self, action):
        observation, reward, done, _, info = super().step(action)
        return observation, reward, done, {"TimeLimit.truncated": done}


class Mixed(Counting):
    """A dict of a vector, a number, bytes and a tuple: 2 + 11 + 4 + 1 numbers."""

    observation_space = Dict(place=Box(-1, 1, (2,)), step=Discrete(LENGTH + 1), bytes=Box(0, 255, (2, 2), "uint8"),
                             rest=Tuple(Box(0, 1, ())))

    def observe(self):
        return {"place": np.zeros(2, np.float64), "step": self.t, "bytes": np.full((2, 2), 255, np.uint8), "rest": (0.5,)}


class Image(Counting):
    """Planes first, as torch likes them: they are stored as 8 x 6 x 3."""

    observation_space = Box(0, 255, (3, 8, 6), "uint8")

    def observe(self):
        return np.full((3, 8, 6), self.t, np.uint8)


class Continuous(Counting):
    """Two numbers from -2 to 6."""

    action_space = Box(np.array([-2.0, 0.0]), np.array([6.0, 1.0]), (2,))

    def step(self, action):
        assert action.shape == (2,) and -2 <= action[0] <= 6 and 0 <= action[1] <= 1, action
        return super().step(0)


class Failing(Counting):
    """Fails in one way at one step of one episode."""

    def __init__(self, how, episode=3, step=4):
        super().__init__()
        self.how, self.at = how, (episode, step)

    def step(self, action):
        observation, reward, done, truncated, info = super().step(action)
        if (self.episode, self.t) == self.at:
            if self.how == "raise":
                raise ValueError("the cart fell off the table")
            if self.how == "exit":
                raise SystemExit(0)
            observation = {"nan": [float("nan"), 0.0], "huge": [3e38, 3e38], "shape": [1.0], "text": ["a", "b"]}.get(self.how, observation)
            reward = {"reward": float("inf"), "none": None}.get(self.how, reward)
            if self.how == "three":
                return observation, reward, done
        return observation, reward, done, truncated, info


class Hanging(Counting):
    def reset(self, *, seed=None, options=None):
        time.sleep(3600)


class Unusable(Counting):
    observation_space = Text()


class Vector:
    """num_envs environments whose episodes have LENGTH, LENGTH - 1, ... steps; they reset themselves as `mode` says."""

    single_observation_space = Box(0, LENGTH, (2,))
    single_action_space = Discrete(3)

    def __init__(self, num_envs=3, mode="NEXT_STEP", hide=False):
        self.num_envs, self.mode = num_envs, mode
        self.metadata = {} if hide else {"autoreset_mode": mode}
        self.lengths = LENGTH - np.arange(num_envs)

    def observe(self):
        return np.stack([self.t, self.lengths - self.t], axis=1).astype(np.float32)

    def reset(self, *, seed=None, options=None):
        assert seed is None or isinstance(seed, int), seed  # gymnasium's own CartPole takes no list
        mask = np.ones(self.num_envs, bool) if options is None else options["reset_mask"]
        self.t = np.where(mask, 0, getattr(self, "t", 0))
        self.over = np.zeros(self.num_envs, bool)
        return self.observe(), {}

    def step(self, actions):
        actions = np.asarray(actions)
        assert actions.shape == (self.num_envs,) and ((actions >= 0) & (actions < 3)).all(), actions
        begins = self.over if self.mode == "NEXT_STEP" else np.zeros(self.num_envs, bool)
        self.t = np.where(begins, 0, self.t + 1)
        ends = self.t >= self.lengths
        if self.mode == "DISABLED":
            assert (self.t <= self.lengths).all(), self.t
        self.over = ends
        info, observations = {}, self.observe()
        if self.mode == "SAME_STEP" and ends.any():
            info["final_obs"] = observations
            self.t = np.where(ends, 0, self.t)
            observations = self.observe()
        return observations, (~begins).astype(np.float64), ends, np.zeros(self.num_envs, bool), info


KINDS = {"counting": Counting, "truncating": Truncating, "both": Both, "old": Old, "mixed": Mixed, "image": Image,
         "continuous": Continuous, "hanging": Hanging, "unusable": Unusable, "vector": Vector, "failing": Failing}


def make(kind="counting", **options):
    print("an environment of the kind", kind)  # must not be mistaken for a description
    return KINDS[kind](**options)
