"""Files of steps: npz, CSV, JSON lines, and HDF5 in the layout of Minari. Every format is read as rows and written by episodes.

npz and HDF5 have a group ``episode_N`` for each episode, with ``observations`` (one more than steps), ``actions``, ``rewards``,
``terminations``, ``truncations``; or the same arrays over all episodes, at the top. CSV and JSON lines have a row for each step and
one with the last observation alone. Files are read in blocks and never as a whole.
"""
import contextlib
import csv
import importlib
import io
import json
import os
import re
import struct
import zipfile
import zlib
from typing import Any, Callable, Iterable, Iterator, NamedTuple, Optional

import numpy as np

from .. import nest
from ..errors import Error, InvalidArgument, Unavailable

# Fields of a row, the name in files, and other names under which they are read.
FIELDS = {"observation": ("observations", "obs", "state", "states"), "action": ("actions", "act"), "reward": ("rewards", "rew"),
          "terminated": ("terminations", "terminals", "terminal", "dones", "done"),
          "truncated": ("truncations", "timeouts", "timeout"),
          "next_observation": ("next_observations", "next_obs", "next_state", "next_states"), "discount": ("discounts",),
          "episode": ("episodes", "episode_id")}
NAMES = {alias: field for field, aliases in FIELDS.items() for alias in (field, *aliases)}
BLOCK_BYTES = 1 << 20


class Row(NamedTuple):
    """A step: an observation, the action in it, and what came of that. Without an action: the last observation of an episode."""

    place: str
    observation: Any
    action: Any = None
    reward: Any = 0.0
    terminated: Any = False
    truncated: Any = False
    next_observation: Any = None
    discount: Any = None
    episode: Any = None


class Place(NamedTuple):
    """A file, and what reports how much of it is read: report(part of 1)."""

    path: str
    report: Callable[[float], None]

    def wrong(self, where: str, what: str) -> InvalidArgument:
        return InvalidArgument(f"{self.path}{', ' if where else ''}{where}: {what}")


class _Member:
    """An array of an npz file, read from its start."""

    def __init__(self, archive: zipfile.ZipFile, name: str) -> None:
        self._file = archive.open(name)
        version = np.lib.format.read_magic(self._file)
        header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        self.shape, fortran, self.dtype = header(self._file)
        if fortran and len(self.shape) > 1 or self.dtype.hasobject:
            raise ValueError("the array is stored by columns, or holds objects: save it with np.ascontiguousarray and a dtype of numbers")

    def read(self, start: int, n: int) -> np.ndarray:
        size = self.dtype.itemsize * int(np.prod(self.shape[1:])) * n
        data = self._file.read(size)
        if len(data) < size:
            raise EOFError(f"the array ends {size - len(data)} bytes early")
        return np.frombuffer(data, self.dtype).reshape(n, *self.shape[1:])


class _Dataset:
    """An array of an HDF5 file."""

    def __init__(self, data: Any) -> None:
        self._data, self.shape, self.dtype = data, data.shape, data.dtype

    def read(self, start: int, n: int) -> np.ndarray:
        return self._data[start:start + n]


def _npz_tree(archive: zipfile.ZipFile) -> dict:
    tree: dict = {}
    for name in archive.namelist():
        *groups, leaf = name.removesuffix(".npy").split("/")
        at = tree
        for group in groups:
            at = at.setdefault(group, {})
        at[leaf] = lambda name=name: _Member(archive, name)
    return tree


def _hdf5_tree(group: Any) -> dict:
    return {name: _hdf5_tree(value) if hasattr(value, "keys") else (lambda value=value: _Dataset(value)) for name, value in group.items()}


def _open(tree: Any, where: str) -> Any:
    """The arrays below a name, in the same structure; the first dimension of each counts rows."""
    if isinstance(tree, dict):
        return {name: _open(part, f"{where}/{name}") for name, part in tree.items()}
    column = tree()
    if not column.shape:
        raise ValueError(f"array '{where}' is one number: it must have a row for each step")
    return column


def _each(columns: Any, n: int) -> Iterator[Any]:
    """The rows of arrays, in their structure."""
    node = nest.node_of(columns)
    leaves = nest.flatten(node, columns)
    row_bytes = sum(leaf.dtype.itemsize * int(np.prod(leaf.shape[1:])) for leaf in leaves)
    at_once = max(1, BLOCK_BYTES // max(row_bytes, 1))
    for start in range(0, n, at_once):
        blocks = [leaf.read(start, min(at_once, n - start)) for leaf in leaves]
        for values in zip(*blocks):
            yield nest.pack(node, values)


def _group_rows(tree: dict, name: str, number: Optional[int]) -> Iterator[Row]:
    """The rows of an episode, or of a file that has no groups (number None)."""
    columns = {NAMES[key]: _open(part, f"{name}/{key}".lstrip("/")) for key, part in tree.items() if key in NAMES}
    for field in ("observation", "action"):
        if field not in columns:
            raise ValueError(f"there is no array '{FIELDS[field][0]}' among {', '.join(map(repr, tree)) or 'none'}")
    lengths = {field: {leaf.shape[0] for leaf in nest.flatten(nest.node_of(part), part)} for field, part in columns.items()}
    steps = min(lengths["action"])
    for field, found in lengths.items():
        if found - {steps} and not (field == "observation" and found == {steps + 1}):
            raise ValueError(f"'{FIELDS[field][0]}' has {max(found)} rows, and 'actions' has {steps}: they must be as many")
    last = lengths["observation"] == {steps + 1}
    if number is None and last and steps:
        number = 0
    each = {field: _each(part, steps + (last and field == "observation")) for field, part in columns.items()}
    for t in range(steps):
        values = {field: next(rows) for field, rows in each.items()}
        if number is not None:
            values["episode"] = number
        yield Row(f"{name}{', ' if name else ''}step {t}", **values)
    if last:
        yield Row(f"{name}{', ' if name else ''}step {steps}", next(each["observation"]), episode=number)


def _tree_rows(tree: dict, place: Place) -> Iterator[Row]:
    groups = sorted((int(name[8:]), name) for name in tree if re.fullmatch(r"episode_\d+", name))
    where = ""
    try:
        for done, (number, where) in enumerate(groups):
            yield from _group_rows(tree[where], where, number)
            place.report((done + 1) / len(groups))
        if not groups:
            yield from _group_rows(tree, "", None)
    except (ValueError, EOFError, OSError, KeyError, zipfile.BadZipFile, zlib.error, struct.error) as error:
        raise place.wrong(where, f"{error}{_CUT if not isinstance(error, ValueError) else ''}") from None


_CUT = "; the file is damaged or was cut off: copy or make it again"


def read_npz(place: Place) -> Iterator[Row]:
    try:
        archive = zipfile.ZipFile(place.path)
    except zipfile.BadZipFile as error:
        raise place.wrong("", f"not an npz file ({error}){_CUT}") from None
    with archive:
        yield from _tree_rows(_npz_tree(archive), place)


def _h5py() -> Any:
    try:
        return importlib.import_module("h5py")
    except ImportError as error:
        raise Unavailable(f"HDF5 files need h5py ({error}): apt install python3-h5py, or pip install h5py") from None


def read_hdf5(place: Place) -> Iterator[Row]:
    h5py = _h5py()
    try:
        file = h5py.File(place.path, "r")
    except OSError as error:
        raise place.wrong("", f"not an HDF5 file ({error}){_CUT}") from None
    with file:
        yield from _tree_rows(_hdf5_tree(file), place)


_CELL = re.compile(r"([^\[/]+)((?:/[^\[/]+)*)(?:\[(\d+(?:,\d+)*)\])?\Z")


def _lines(place: Place) -> Iterator[str]:
    """The lines of a text file."""
    size = max(os.path.getsize(place.path), 1)
    with open(place.path, encoding="utf-8-sig", newline="") as file:
        try:
            for line in iter(file.readline, ""):
                yield line
                place.report(min(1.0, file.buffer.tell() / size))
        except UnicodeDecodeError as error:
            raise place.wrong("", f"the file is not text in UTF-8 ({error}): convert it") from None


def _csv_plan(place: Place, header: list[str]) -> dict[str, Any]:
    """Which cells make up each field: {field: nest of arrays with the cells' numbers}."""
    found: dict[str, dict[str, dict]] = {}
    for i, cell in enumerate(header):
        match = _CELL.match(cell.strip())
        if match and match[1] in NAMES:
            index = tuple(map(int, match[3].split(","))) if match[3] else ()
            found.setdefault(NAMES[match[1]], {}).setdefault(match[2][1:], {})[index] = i
    plan = {}
    for field, parts in found.items():
        for part, cells in parts.items():
            shape = tuple(max(axis) + 1 for axis in zip(*cells)) if () not in cells else ()
            if len({len(index) for index in cells}) > 1 or len(cells) != int(np.prod(shape)):
                raise place.wrong("line 1", f"the columns of '{field}' do not make up an array: name them {field}[0], {field}[1] and so on")
            parts[part] = np.array([cells[index] for index in np.ndindex(*shape)]).reshape(shape)
        plan[field] = nest.pack(nest.node_of_names(tuple(parts)), parts.values()) if "" not in parts else parts[""]
    if "observation" not in plan or "action" not in plan:
        raise place.wrong("line 1", f"there is no column 'observation' or 'action' among {', '.join(header)[:200]}: name the columns "
                          "observation[0], observation[1], action, reward, terminated, truncated")
    return plan


def _number(text: str) -> Any:
    try:
        return int(text)
    except ValueError:
        return {"true": True, "false": False}[text.lower()] if text.lower() in ("true", "false") else float(text)


def _cells(plan: Any, cells: list[str], field: str) -> Any:
    """A field of a line; None if its cells are empty."""
    node = nest.node_of(plan)
    parts = []
    for where in nest.flatten(node, plan):
        texts = [cells[i] for i in where.flat]
        if not any(texts):
            return None
        parts.append(np.array([text if field == "episode" else _number(text) for text in texts]).reshape(where.shape))
    return nest.pack(node, parts)


def _parsed(place: Place, lines: Any) -> Iterator[list[str]]:
    try:
        yield from lines
    except csv.Error as error:
        raise place.wrong(f"line {lines.line_num}", f"{error}") from None


def read_csv(place: Place) -> Iterator[Row]:
    lines = csv.reader(_lines(place))
    parsed = _parsed(place, lines)
    header = next(parsed, [])
    plan = _csv_plan(place, header)
    for cells in parsed:
        if not cells:
            continue
        where = f"line {lines.line_num}"
        if len(cells) != len(header):
            raise place.wrong(where, f"{len(cells)} cells, and the first line names {len(header)}{_CUT}")
        try:
            values = {field: _cells(part, cells, field) for field, part in plan.items()}
        except ValueError as error:
            raise place.wrong(where, f"{error}: cells hold numbers") from None
        yield _row(place, where, values)


def _row(place: Place, where: str, values: dict) -> Row:
    if values.get("observation") is None:
        raise place.wrong(where, f"there is no 'observation' among {', '.join(values)[:200] or 'no values'}")
    return Row(where, **{field: value for field, value in values.items() if value is not None})


def _json_value(value: Any) -> Any:
    return {key: _json_value(part) for key, part in value.items()} if isinstance(value, dict) else np.asarray(value)


def read_jsonl(place: Place) -> Iterator[Row]:
    for number, line in enumerate(_lines(place), 1):
        if not line.strip():
            continue
        where = f"line {number}"
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise place.wrong(where, f"not JSON ({error}){_CUT}") from None
        if not isinstance(record, dict):
            raise place.wrong(where, "a line is an object such as {\"observation\": [0.1], \"action\": 1, \"reward\": 1}")
        try:
            values = {NAMES[key]: _json_value(value) for key, value in record.items() if key in NAMES and value is not None}
        except ValueError as error:
            raise place.wrong(where, f"{error}") from None
        yield _row(place, where, values)


def _paths(tree: Any, before: str = "") -> Iterator[tuple[str, Any]]:
    if not isinstance(tree, dict):
        yield before, tree
        return
    for name, part in tree.items():
        yield from _paths(part, f"{before}/{name}" if before else name)


def _members(episode: dict) -> Iterator[tuple[str, Any]]:
    """The arrays of an episode by their names in npz and HDF5."""
    return _paths({FIELDS[field][0]: part for field, part in episode.items()})


def write_npz(path: str, episodes: Iterable[dict]) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as file:
        for number, episode in enumerate(episodes):
            for name, array in _members(episode):
                with file.open(f"episode_{number}/{name}.npy", "w", force_zip64=True) as member:
                    np.lib.format.write_array(member, np.ascontiguousarray(array), allow_pickle=False)


class _Hdf5File(io.FileIO):
    """Keeps the first error instead of raising it: after a write that failed, such as to a full disk, HDF5 may crash the process."""

    error: Optional[OSError] = None

    def write(self, data: Any) -> int:
        left = memoryview(data)
        try:
            while left and not self.error:
                left = left[super().write(left):]
        except OSError as error:
            self.error = error
        return len(data)

    def truncate(self, size: Optional[int] = None) -> int:
        try:
            return super().truncate(size)
        except OSError as error:
            self.error = self.error or error
            return size or 0


def write_hdf5(path: str, episodes: Iterable[dict]) -> None:
    h5py = _h5py()
    with _Hdf5File(path, "w+") as out:
        with h5py.File(out, "w") as file:
            steps = 0
            for number, episode in enumerate(episodes):
                group = file.create_group(f"episode_{number}")
                group.attrs.update(id=number, total_steps=len(episode["reward"]))
                steps += len(episode["reward"])
                for name, array in _members(episode):
                    group.create_dataset(name, data=array)
                if out.error:
                    break
            file.attrs.update(total_episodes=len(file), total_steps=steps)
        if out.error:
            raise out.error


def _steps(episode: dict) -> Iterator[dict]:
    """The rows of an episode: {field: value}. The last may be an observation alone."""
    leaves = nest.flatten(nest.node_of(episode["observation"]), episode["observation"])
    for t in range(len(leaves[0])):
        step = {field: part for field, part in episode.items() if t < len(episode["reward"]) or field == "observation"}
        yield nest.mapped(lambda leaf: leaf[t], step)


def write_jsonl(path: str, episodes: Iterable[dict]) -> None:
    with open(path, "w", encoding="utf-8") as file:
        for number, episode in enumerate(episodes):
            for step in _steps(episode):
                file.write(json.dumps({"episode": number, **step}, default=lambda value: value.tolist()) + "\n")


def write_csv(path: str, episodes: Iterable[dict]) -> None:
    with open(path, "w", encoding="utf-8", newline="") as file:
        rows, header = csv.writer(file), []
        for number, episode in enumerate(episodes):
            for step in _steps(episode):
                cells = {"episode": number}
                for name, value in _paths(step):
                    array = np.asarray(value)
                    cells.update({name + (f"[{','.join(map(str, index))}]" if index else ""): array[index].item()
                                  for index in np.ndindex(*array.shape)})
                if not header:
                    header = list(cells)
                    rows.writerow(header)
                rows.writerow([cells.get(name, "") for name in header])


class Format(NamedTuple):
    """How files of a kind are read and written. text: numbers have no element type of their own."""

    endings: tuple[str, ...]
    read: Callable[[Place], Iterator[Row]]
    write: Callable[[str, Iterable[dict]], None]
    text: bool


FORMATS = {"npz": Format((".npz",), read_npz, write_npz, False), "hdf5": Format((".h5", ".hdf5"), read_hdf5, write_hdf5, False),
           "csv": Format((".csv",), read_csv, write_csv, True),
           "jsonl": Format((".jsonl", ".ndjson", ".json"), read_jsonl, write_jsonl, True)}


def format_of(path: str, name: Optional[str] = None) -> Format:
    """The format with this name, or of the path's ending."""
    for known, kind in FORMATS.items():
        if known == name or name is None and path.lower().endswith(kind.endings):
            return kind
    raise InvalidArgument(f"{name or path}: not a known format; name one of {', '.join(FORMATS)}, or use an ending such as .npz or .h5")


def write_file(path: str, kind: Format, episodes: Iterable[dict]) -> None:
    """Writes a file, which has its name when it is complete. episodes: {field: arrays of steps}."""
    part = path + ".part"
    try:
        kind.write(part, episodes)
        os.replace(part, path)
    except Error:  # such as a broker that does not answer, which is an OSError, too
        raise
    except OSError as error:
        raise Unavailable(f"cannot write {path}: {error}") from None
    finally:
        with contextlib.suppress(OSError):
            os.unlink(part)
