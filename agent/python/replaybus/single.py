"""python3 -m replaybus.single: a whole run in one process with an environment in Python, the same every time for a file and a seed.

The program is replay-single with the same options and results. It calls the environment through replaybus.adapter.
"""
import os
import sys

from ._load_agent import _agent
from .adapter import open_or_explain
from .statistics import ACTOR, HERE


def main() -> int:
    _agent.log_set(None, 1)  # to standard error; the program sets the level
    sys.stdout = sys.stderr  # what the environment prints is no result of the program
    os.environ[ACTOR] = HERE
    return _agent.run_single(["replaybus.single", *sys.argv[1:]], open_or_explain)


if __name__ == "__main__":
    sys.exit(main())
