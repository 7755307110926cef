"""Where a server keeps its checkpoints."""
import os
import shutil
import tempfile
from typing import Optional


class DefaultCheckpointer:
    """Checkpoints in the folder ``path``. A server that starts with the folder of another continues with its items.

    fallback_checkpoint_path: a folder whose checkpoints are copied if ``path`` has none. ``group`` has no meaning here.
    """

    def __init__(self, path: str, group: str = "", fallback_checkpoint_path: Optional[str] = None) -> None:
        self.path, self.group, self.fallback_checkpoint_path = path, group, fallback_checkpoint_path

    def prepare(self) -> None:
        """Makes the folder. If it has no checkpoints, copies those of the fallback folder."""
        os.makedirs(self.path, exist_ok=True)
        if self.fallback_checkpoint_path is not None and not os.listdir(self.path):
            shutil.copytree(self.fallback_checkpoint_path, self.path, dirs_exist_ok=True)


class TempDirCheckpointer(DefaultCheckpointer):
    """Checkpoints in a new temporary folder, which stays after the program."""

    def __init__(self) -> None:
        super().__init__(tempfile.mkdtemp(prefix="replaybus-checkpoint-"))


default_checkpointer = TempDirCheckpointer  # of a server that is given none
