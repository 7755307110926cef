"""python3 -m replaybus.actor: the actor program of a run whose environment is Python, and its evaluator (--evaluate).

The program is replay-actor with the same options, logs, reports and exit statuses. It calls the environment through
replaybus.adapter.
"""
from __future__ import annotations

import sys

from .._load_agent import _agent
from ..adapter import open_or_explain


def main() -> int:
    _agent.log_set(None, 1)  # to standard error; the program sets the level
    sys.stdout = sys.stderr  # what the environment prints is no result of the program
    return _agent.run_actor(["replaybus.actor", *sys.argv[1:]], open_or_explain)


if __name__ == "__main__":
    sys.exit(main())
