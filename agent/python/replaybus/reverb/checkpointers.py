"""Where a server keeps its checkpoints."""
from __future__ import annotations

import tempfile
from typing import Optional


class DefaultCheckpointer:
    """Checkpoints in the folder ``path``. A server that starts with the folder of another continues with its items."""

    def __init__(self, path: str, group: str = "", fallback_checkpoint_path: Optional[str] = None) -> None:
        if fallback_checkpoint_path is not None:
            raise ValueError("fallback_checkpoint_path is not supported: the broker falls back to the older checkpoints of "
                             "its own folder")
        self.path, self.group = path, group


class TempDirCheckpointer(DefaultCheckpointer):
    """Checkpoints in a new temporary folder, which stays after the program."""

    def __init__(self) -> None:
        super().__init__(tempfile.mkdtemp(prefix="replaybus-checkpoint-"))


def default_checkpointer() -> DefaultCheckpointer:
    """The checkpointer of a server that is given none."""
    return TempDirCheckpointer()
