"""python3 -m replaybus.actor: the actor program of a run whose environment is Python, and its evaluator (--evaluate).

The program is replay-actor with the same options, logs, reports and exit statuses. It calls the environment through
replaybus.adapter.
"""
import argparse
import os
import sys

from .._load_agent import _agent
from ..adapter import open_or_explain
from ..statistics import ACTOR, FOLDER


def _announce(arguments: list[str]) -> None:
    """Tells the environment which actor of which broker it belongs to: shared statistics need it."""
    reader = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for name in ("-e --endpoint", "--endpoints-file", "--index", "--folder", "--weights"):
        reader.add_argument(*name.split())
    reader.add_argument("--evaluate", action="store_true")
    known, _ = reader.parse_known_args(arguments)
    if known.weights:
        home = os.path.dirname(os.path.abspath(known.weights))
        os.environ.update({ACTOR: " ", FOLDER: os.path.dirname(home) if os.path.basename(home) == "snapshots" else home})
        return
    if known.folder:
        os.environ[FOLDER] = known.folder
    endpoint = known.endpoint or os.environ.get("REPLAY_ENDPOINT")
    if endpoint is None and known.endpoints_file and os.path.exists(known.endpoints_file):
        with open(known.endpoints_file) as file:
            endpoint = next((line.split()[1] for line in file if line.split()[0].split(".")[-1] == "service"), None)
    if endpoint:
        os.environ[ACTOR] = f"{endpoint} {'' if known.evaluate else known.index or 0}".strip()


def main() -> int:
    _agent.log_set(None, 1)  # to standard error; the program sets the level
    sys.stdout = sys.stderr  # what the environment prints is no result of the program
    _announce(sys.argv[1:])
    return _agent.run_actor(["replaybus.actor", *sys.argv[1:]], open_or_explain)


if __name__ == "__main__":
    sys.exit(main())
