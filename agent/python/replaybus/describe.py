"""python3 -m replaybus.describe: prints what the C programs need to know about an environment in Python, as the lines of
environment.spec in a run's file. replay-launch runs it once for each run.

It makes the environment, resets it and takes some random steps, so that mistakes show before anything starts.
"""
import argparse
import importlib.util
import os
import random
import sys

import numpy as np

from .adapter import Environments, Mismatch, Refused, open_or_explain

STEPS = 3


def try_out(envs: Environments) -> None:
    """Resets the first environment and takes random steps in it. Raises what the environment raises."""
    spec, n = envs.spec, len(envs.subenvs)
    observations = np.zeros((n, *spec.observation.shape), spec.observation.dtype)
    size = 1 if spec.action.actions else len(spec.action.low)
    actions = np.zeros((n, size), np.int32 if spec.action.actions else np.float32)
    envs.bind(observations, actions)
    subenv, method, step = envs.subenvs[0], "reset", 0
    try:
        for other in envs.subenvs:
            other.seed(1)
        subenv.reset()
        for step in range(STEPS):
            method = "step"
            if spec.action.actions:
                actions[:] = random.randrange(spec.action.actions)
            else:
                actions[:] = [random.uniform(low, high) for low, high in zip(spec.action.low, spec.action.high)]
            if envs.together:
                envs.run()
            reward, terminal, truncated = subenv.step(int(actions[0, 0]) if spec.action.actions else None)
            if not (np.isfinite(float(reward)) and np.isfinite(observations[0]).all()):
                raise Mismatch("returned numbers that are not finite")
            if terminal or truncated:
                break
    except Exception as error:
        raise Refused(envs.explain(error, method, step, 0)) from None


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python3 -m replaybus.describe", description="Prints the spec of an environment.")
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--python", default="", metavar="MODULE:CALLABLE", help="what makes the environment")
    which.add_argument("--gym", default="", metavar="ID", help="an environment of gymnasium.make or gym.make")
    parser.add_argument("--option", action="append", default=[], metavar="NAME=VALUE", help="a keyword argument; may be repeated")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    arguments = parse(argv)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the environment prints is no answer
    options = dict(option.partition("=")[::2] for option in arguments.option)
    try:
        if importlib.util.find_spec("replaybus._agent") is None:
            raise Refused("this package replaybus was built without actors: install OpenBLAS and MuJoCo (Debian: libopenblas-dev "
                          "libmujoco-dev), and the package anew")
        envs = open_or_explain(arguments.python, arguments.gym, options)
        try_out(envs)
        envs.close()
    except Refused as error:
        print(error, file=sys.stderr)
        return 1
    print(*envs.spec.lines(), sep="\n", file=answers)
    answers.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
