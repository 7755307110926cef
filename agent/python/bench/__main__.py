"""``./dev bench python``: the goals of the package, each round with the C library in turn."""
import argparse
import importlib.util
import sys
from typing import Callable

import replaybus

from . import acting, buffers, feeding, learning, loops
from .report import Row, show

SMALL_BATCHES, FRAME_BATCHES, LEARNER_RUNS = 100, 6, 3
PAIRS = 4  # how often sampling alternates in a round: wall time needs closer neighbours than CPU time
NO_TORCH = "torch is not installed (apt-get install python3-torch)"


def _torch() -> bool:
    return importlib.util.find_spec("torch") is not None


def _cases(client: replaybus.Client, c: loops.CLoops) -> dict[str, Callable[[], float]]:
    """What each round runs, in this order."""
    block, vector = client.writer(**loops.OPTIONS), client.vector_writer(loops.ENVIRONMENTS, **loops.OPTIONS)
    cases: dict[str, Callable[[], float]] = {
        "c_write": c.write,
        "block": loops.many_loop(block.append_block, block.flush, 64),
        "vector": loops.many_loop(vector.append, vector.flush, loops.ENVIRONMENTS),
        "flat": loops.write_loop(client, loops.flat),
        "nested": loops.write_loop(client, loops.nested),
        "numbers": loops.write_loop(client, loops.numbers),
        "c_small": lambda: c.sample("small", SMALL_BATCHES),
        "small": lambda: loops.sample(client, "small", SMALL_BATCHES),
    }
    if _torch():
        cases["c_frames"] = lambda: c.sample("frames", FRAME_BATCHES)
        cases["frames"] = lambda: loops.sample_tensors(client, "frames", FRAME_BATCHES)
    return cases


def _measure(rounds: int) -> dict[str, list[float]]:
    tables = [replaybus.Table(name, max_size=size) for name, size in loops.TABLES.items()]
    with replaybus.Server(tables) as server, server.client() as client:
        loops.fill(client)
        cases = _cases(client, loops.CLoops(server.endpoint))
        figures: dict[str, list[float]] = {name: [] for name in cases}
        sampling = [name for name in cases if name.removeprefix("c_") in ("small", "frames")]
        for _ in range(rounds):
            for name in [name for name in cases if name not in sampling] + PAIRS * sampling:
                figures[name].append(cases[name]())
    return figures


def _ratio(figures: dict[str, list[float]], ours: str, theirs: str) -> list[float]:
    return [a / b for a, b in zip(figures[ours], figures[theirs])]


def _frame_rows(figures: dict[str, list[float]]) -> list[Row]:
    what = "frames 84x84x4 into a torch tensor / in C"
    if "frames" not in figures:
        return [Row(what, "ratio", missing=NO_TORCH)]
    size = 84 * 84 * 4 / 1e9
    return [
        Row("frames 84x84x4 in C, batches of 256", "GB/s", [rate * size for rate in figures["c_frames"]]),
        Row("frames 84x84x4 into a torch tensor", "GB/s", [rate * size for rate in figures["frames"]]),
        Row(what, "ratio", _ratio(figures, "frames", "c_frames"), 0.8),
    ]


def _learner_row(runs: int) -> Row:
    row = Row("torch_dqn: learner waiting for data", "of time", goal=0.1, at_most=True)
    if not _torch():
        row.missing = NO_TORCH
    elif not learning.LAUNCH.exists():
        row.missing = "replay-launch is not built"
    elif runs == 0:
        row.missing = "a quick run leaves it out"
    row.values = [] if row.missing else [learning.torch_dqn() for _ in range(runs)]
    return row


def _rows(figures: dict[str, list[float]]) -> list[Row]:
    millions = {name: [rate / 1e6 for rate in figures[name]] for name in ("c_small", "small")}
    return [
        Row("append + item in C, three small columns", "ns CPU", figures["c_write"]),
        Row("append + item, three small columns", "ns CPU", figures["flat"], 450, True),
        Row("append + item, nested dict", "ns CPU", figures["nested"], 600, True),
        Row("append + item, Python numbers", "ns CPU", figures["numbers"]),
        Row("append_block(64) / in C", "ratio", _ratio(figures, "block", "c_write"), 1.2, True),
        Row("64 environments in one call / in C", "ratio", _ratio(figures, "vector", "c_write"), 1.7, True),
        Row("sampling 256 x 400 B in C", "M/s", millions["c_small"]),
        Row("sampling 256 x 400 B into numpy", "M/s", millions["small"]),
        Row("sampling 256 x 400 B into numpy / in C", "ratio", _ratio(figures, "small", "c_small"), 0.9),
        *_frame_rows(figures),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(prog="./dev bench python", description="The Python package next to the C library, in one run.")
    parser.add_argument("--repeat", type=int, default=15, metavar="N", help="rounds (default 15); medians are shown")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--quick", action="store_true", help="a smoke run of a few seconds; its figures mean little")
    parser.add_argument("--check", action="store_true", help="exit status 1 if a goal is missed")
    parser.add_argument("--buffer", action="store_true", help="measure the replay buffer next to arrays of numpy, and nothing else")
    feeding.add_arguments(parser)
    arguments = parser.parse_args()
    if arguments.repeat < 1:
        parser.error("--repeat: at least 1 round is needed")
    if arguments.feed and not _torch():
        parser.error(f"--feed: {NO_TORCH}")
    rounds = 1 if arguments.quick else arguments.repeat
    replaybus.log_level("off")
    if arguments.feed:
        rows, rounds = feeding.rows(arguments), 1
    elif arguments.buffer:
        rows = buffers.rows(rounds, arguments.quick)
    else:
        rows = _rows(_measure(rounds)) + acting.rows(acting.measure(rounds))
        rows.append(_learner_row(0 if arguments.quick else min(rounds, LEARNER_RUNS)))
    show(rows, rounds, arguments.quick, arguments.json)
    return 1 if arguments.check and any(row.met is False for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
