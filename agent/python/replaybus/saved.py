"""A broker's files without a broker: what ``replaybus.open`` gives. ``replay-ctl checkpoint`` reads them and never writes there."""
import json
import os
import subprocess
from pathlib import Path
from typing import Any, Iterator, NamedTuple, Optional, Union

import numpy as np

from . import nest
from .errors import NotFound, Unavailable
from .server import program


class Item(NamedTuple):
    """An item: its fields in the structure in which they were written, and what the broker knew of it."""

    data: Any
    key: int
    priority: float
    times_sampled: int
    policy: int
    session: int
    step: int


class Checkpoint:
    """The newest state in a broker's folder with the journal after it, or checkpoint ``number``. The folder of several shards is read
    as one. A broker may be running on it: what is read is what it would start with. Nothing is written there.

    >>> import tempfile, numpy as np, replaybus
    >>> folder = tempfile.mkdtemp()
    >>> with replaybus.Server([replaybus.Table("replay")], checkpoint=folder) as server, server.client() as client:
    ...     with client.writer() as writer:
    ...         writer.append({"x": np.arange(3, dtype="int16")})
    ...         key = writer.item("replay")
    ...     made = client.checkpoint()
    >>> saved = replaybus.open(folder)
    >>> saved, [item.data["x"].tolist() for item in saved.items("replay")]
    (<replaybus.Checkpoint: replay 1>, [[[0, 1, 2]]])
    """

    def __init__(self, folder: Union[str, "os.PathLike[str]"], number: Optional[int] = None) -> None:
        path = Path(folder)
        if not path.is_dir():
            raise NotFound(f"there is no folder '{path}': name the folder of a broker's files (its key 'folder')")
        self.folder, self._number = path, number
        shards = (shard for shard in path.glob("shard-*/") if shard.name[6:].isdecimal())
        self._folders = sorted(shards, key=lambda shard: int(shard.name[6:])) or [path]
        self._state = [json.loads(self._run(folder, "show", "--json").read()) for folder in self._folders]
        if not any(state["checkpoint"] or state["journal_entries"] for state in self._state):
            raise NotFound(f"'{path}' holds no checkpoint and no journal: see replay-ctl checkpoint ls")

    @property
    def tables(self) -> dict[str, int]:
        """The number of items of each table."""
        sizes: dict[str, int] = {}
        for table in (table for state in self._state for table in state["tables"]):
            sizes[table["name"]] = sizes.get(table["name"], 0) + table["size"]
        return sizes

    @property
    def counters(self) -> dict[str, int]:
        """The values of the counters."""
        return {name: value for state in self._state for name, value in state["counters"].items()}

    def items(self, table: Optional[str] = None) -> Iterator[Item]:
        """The items of a table, the oldest of each shard first, read as they are asked for."""
        names = self.tables
        if table is None and len(names) == 1:
            table = next(iter(names))
        if table not in names:
            raise NotFound(f"there is no table {table!r} in '{self.folder}': there are {', '.join(map(repr, names)) or 'none'}")
        for folder in self._folders:
            for line in self._run(folder, "export", "--table", table):
                yield _item(json.loads(line))

    def _run(self, folder: Path, verb: str, *options: str) -> "_Output":
        number = [] if self._number is None else [str(self._number)]
        return _Output([program("replay-ctl"), "checkpoint", verb, str(folder), *number, *options])

    def __repr__(self) -> str:
        return f"<replaybus.Checkpoint: {', '.join(f'{name} {size}' for name, size in self.tables.items()) or 'no tables'}>"


def _item(record: dict) -> Item:
    fields = record["fields"]
    arrays = [_array(field) for field in fields.values()]
    return Item(nest.pack(nest.node_of_names(tuple(fields)), arrays),
                *(record[name] for name in ("key", "priority", "times_sampled", "policy", "session", "step")))


def _array(field: dict) -> np.ndarray:
    dtype, values = field["dtype"], field["values"]
    if dtype.startswith("complex"):
        values = [complex(*pair) for pair in values]
    if dtype == "bfloat16":  # the bits, as in batches
        return (np.array(values, np.float32).view(np.uint32) >> 16).astype(np.uint16).reshape(field["shape"])
    return np.array(values, dtype).reshape(field["shape"])


class _Output:
    """The output of a program, line by line. An exit status other than 0 is an exception with what it said."""

    def __init__(self, command: list[str]) -> None:
        self._command = command

    def read(self) -> str:
        return "".join(self)

    def __iter__(self) -> Iterator[str]:
        with subprocess.Popen(self._command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            ended, line = False, ""
            try:
                for line in process.stdout:
                    yield line
                ended = True
            finally:
                if not ended:
                    process.kill()
            problem = process.stderr.read().strip()
        if process.returncode and line.startswith('{"error"'):  # --json says it there
            error = json.loads(line)["error"]
            raise (NotFound if error["status"] == "NOT_FOUND" else Unavailable)(error["text"])
        if process.returncode:
            raise Unavailable(problem.removeprefix("replay-ctl: ") or f"{' '.join(self._command)} ended with status {process.returncode}")


open = Checkpoint  # noqa: A001
