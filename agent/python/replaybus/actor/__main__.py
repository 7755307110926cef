"""python3 -m replaybus.actor: the actor program of a run whose environment is Python, and its evaluator (--evaluate).

The program is replay-actor with the same options, logs, reports and exit statuses. It calls the environment through
replaybus.adapter.
"""
from __future__ import annotations

import sys
import traceback
from typing import Mapping

from .._load_agent import _agent
from ..adapter import Environments, Refused, open_environments


def open_or_explain(python: str, gym: str, options: Mapping[str, str], n: int) -> Environments:
    """open_environments; every error becomes one sentence, after its traceback."""
    try:
        return open_environments(python, gym, options, n)
    except Refused:
        raise
    except BaseException as error:
        traceback.print_exc()
        raise Refused(f"environment '{python or gym}': it cannot be made: {type(error).__name__}: {error}") from None


def main() -> int:
    _agent.log_set(None, 1)  # to standard error; the program sets the level
    sys.stdout = sys.stderr  # what the environment prints is no result of the program
    return _agent.run_actor(["replaybus.actor", *sys.argv[1:]], open_or_explain)


if __name__ == "__main__":
    sys.exit(main())
