"""Log lines of the library go to Python's logger "replaybus".

>>> import logging, replaybus
>>> replaybus.log_level("error")  # debug, info, warn, error or off; warn at the start
>>> replaybus.log_level("warn")
"""
import logging
import re
from types import ModuleType

from . import _core

logger = logging.getLogger("replaybus")
LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warn": logging.WARNING, "error": logging.ERROR, "off": logging.CRITICAL}
_NAMES = list(LEVELS)
_extensions: list[ModuleType] = [_core]
_level = "warn"
_AWAY = re.compile(r"C010[16] .*? endpoint=(\S+)")  # a connection was lost, or no broker answers
stopped: set[str] = set()  # endpoints of brokers that this process has stopped: nothing else is to be expected of them


def _emit(level: int, line: str) -> None:
    """Hands on a line "2026-01-31T12:00:00.123Z info  C0001 connected ..." without its time and level."""
    text = line.split(None, 2)[-1]
    away = _AWAY.match(text)
    if not away or away[1] not in stopped:
        logger.log(LEVELS[_NAMES[level]], "%s", text)


def hand_on(lines: str) -> None:
    """Hands on what a broker in a process of its own has logged; endpoints that it has printed stand between the lines."""
    for line in lines.splitlines():
        level = (line.split(None, 2) + ["", ""])[1]
        if level in _NAMES[_NAMES.index(_level):]:
            _emit(_NAMES.index(level), line)


def log_level(level: str) -> None:
    """Sets from which level on the library's lines reach the logger: debug, info, warn, error or off."""
    if level not in LEVELS:
        raise ValueError(f"a level is one of {', '.join(LEVELS)}, not {level!r}")
    global _level
    _level = level
    for extension in _extensions:
        extension.log_set(_emit, _NAMES.index(level))


def add_extension(extension: ModuleType) -> None:
    """Includes the lines of a further extension, which has its own copy of the library."""
    extension.log_set(_emit, _NAMES.index(_level))
    _extensions.append(extension)


def silence() -> None:
    """Ends the log at the end of the program: the logger may be gone before the library's threads are."""
    for extension in _extensions:
        extension.log_set(None, _NAMES.index("off"))


log_level(_level)
