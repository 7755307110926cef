"""python3 -m replaybus.single: a whole run in one process with an environment in Python, the same every time for a file and a seed.

The program is replay-single with the same options and results. It calls the environment through replaybus.adapter.
"""
import argparse
import os
import sys

from ._load_agent import _agent
from .adapter import open_or_explain
from .statistics import ACTOR, FOLDER, HERE


def main() -> int:
    _agent.log_set(None, 1)  # to standard error; the program sets the level
    sys.stdout = sys.stderr  # what the environment prints is no result of the program
    reader = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    reader.add_argument("--folder", default="")
    os.environ.update({ACTOR: HERE, FOLDER: reader.parse_known_args()[0].folder})
    return _agent.run_single(["replaybus.single", *sys.argv[1:]], open_or_explain)


if __name__ == "__main__":
    sys.exit(main())
