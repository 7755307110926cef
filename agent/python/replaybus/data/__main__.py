"""python3 -m replaybus.data import|export: files of steps into a table of a broker, and a table or a checkpoint into a file."""
import argparse
import contextlib
import os
import sys
import threading
import time

import replaybus
from replaybus import data
from replaybus.data.files import FORMATS


class Bar:
    """A progress bar on a terminal."""

    def __init__(self, name: str) -> None:
        self._name, self._next = name, 0.0

    def __call__(self, part: float) -> None:
        now = time.monotonic()
        if sys.stderr.isatty() and (now > self._next or part >= 1):
            self._next = now + 0.1
            done = int(part * 30)
            print(f"\r{self._name[-40:]} [{'#' * done}{'.' * (30 - done)}] {part:4.0%}", end="\n" if part >= 1 else "", file=sys.stderr)


def tell_wait(client: replaybus.Client) -> None:
    """Says once what the broker holds the client's items back for."""
    with contextlib.suppress(replaybus.Error):  # the client is closed, or the import fails for the same reason
        while True:
            time.sleep(3)
            for wait in client.why()["waits"]:
                if wait["who"] == client.name and wait["waited_ns"] > 1e9:
                    print("\n" * sys.stderr.isatty() + f"replaybus.data: the import waits: {wait['text']}", file=sys.stderr)
                    return


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="python3 -m replaybus.data", description=__doc__)
    verbs = top.add_subparsers(dest="verb", required=True)
    into = verbs.add_parser("import", help="read files into a table", description=data.load.__doc__)
    into.add_argument("files", nargs="+", metavar="FILE")
    into.add_argument("--broker", default=os.environ.get("REPLAY_BROKER", "tcp://127.0.0.1:7600"), metavar="ENDPOINT")
    into.add_argument("--n-step", type=int, default=1, metavar="N", help="transitions over N steps")
    into.add_argument("--discount", type=float, default=0.99, metavar="G", help="for N above 1 (default 0.99)")
    into.add_argument("--length", type=int, default=0, metavar="N", help="sequences of N steps instead of transitions")
    into.add_argument("--period", type=int, default=0, metavar="N", help="a sequence every N steps (default: their length)")
    into.add_argument("--whole", type=int, default=0, metavar="N", help="whole episodes of at most N steps")
    into.add_argument("--dtype", action="append", default=[], metavar="FIELD=TYPE", help="element type in an empty table: observation=uint8")
    out = verbs.add_parser("export", help="write a table to a file", description=data.save.__doc__)
    out.add_argument("source", help="the endpoint of a broker, or the folder of its files")
    out.add_argument("file", metavar="FILE")
    for verb in (into, out):
        verb.add_argument("--table", default="replay", metavar="NAME", help="default: replay")
        verb.add_argument("--format", choices=FORMATS, help="default: by the file's ending")
    return top


def run(options: argparse.Namespace) -> None:
    if options.verb == "export":
        source = replaybus.Client(options.source, timeout=30) if "://" in options.source else replaybus.open(options.source)
        made = data.save(source, options.file, options.table, format=options.format, report=Bar(options.file))
        print(f"{options.file}: {made.steps} steps in {made.episodes} episodes, from {made.items} items of table '{options.table}'")
        return
    dtypes = dict(text.split("=", 1) if "=" in text else (text, "?") for text in options.dtype)
    with replaybus.Client(options.broker, name=f"import-{os.getpid()}", timeout=30) as client:
        threading.Thread(target=tell_wait, args=(client,), daemon=True).start()
        for path in options.files:
            made = data.load(client, path, options.table, n_step=options.n_step, discount=options.discount, length=options.length,
                             period=options.period, whole=options.whole, dtypes=dtypes, format=options.format, report=Bar(path))
            print(f"{path}: {made.items} items in table '{options.table}', from {made.steps} steps in {made.episodes} episodes"
                  + (f"; {made.dropped} steps at cut ends are left out" if made.dropped else ""))


def main() -> int:
    try:
        run(parser().parse_args())
    except (replaybus.Error, OSError) as error:
        print(f"replaybus.data: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
