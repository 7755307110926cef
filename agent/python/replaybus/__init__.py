"""Experience replay for reinforcement learning: a broker, and writers and samplers for it.

>>> import numpy as np
>>> import replaybus
>>> server = replaybus.Server([replaybus.Table("replay", sampler="prioritized")])
>>> client = server.client()
>>> with client.writer(keep_alive=2) as writer:
...     for step in range(5):
...         writer.append({"observation": np.zeros(4, "float32"), "action": 1, "reward": 1.0})
...         if step > 0:
...             key = writer.item("replay", priority=1.0, slices=2)
>>> batch = client.sampler("replay", batch_size=8).next()
>>> batch.data["observation"].shape
(8, 2, 4)
>>> client.update("replay", batch.key, np.abs(batch.data["reward"]).sum(axis=1)).missing
0
>>> client.close(); server.stop()
"""
import atexit as _atexit
import sys as _sys
from types import ModuleType as _ModuleType
from typing import Any as _Any

try:
    import numpy as _numpy  # noqa: F401
except ModuleNotFoundError as _error:
    if _error.name != "numpy":
        raise
    raise ModuleNotFoundError(f"replaybus needs numpy, which {_sys.executable} does not have: apt install python3-numpy (for "
                              "Debian's /usr/bin/python3), or pip install numpy", name="numpy") from None

from . import _core, errors
from .buffer import ReplayBuffer, ReplayBufferSamples
from .client import CheckpointInfo, Client
from .errors import *  # noqa: F401,F403: every exception class
from .errors import Error
from .log import log_level, silence
from .params import Counter, Param, Params, Publisher, Reduce, Reduced, Subscriber
from .sampler import Batch, Change, Sampler, Updater
from .saved import Checkpoint, open  # noqa: A004
from .sequences import SequenceAdder
from .server import Server, Table, broker_program, stop_all
from .writer import Column, Field, Last, Rejection, Slice, VectorWriter, Writer, close_all, convert, learn_numpy

_core.setup(errors.BY_STATUS, convert)
learn_numpy()


@_atexit.register
def _finish() -> None:
    """Writers first, then the brokers of this program; between them the log, which need not report lost connections."""
    close_all()
    silence()
    stop_all()


def __getattr__(name: str) -> _Any:
    """Actor is loaded when it is first used: it needs the extension with OpenBLAS and MuJoCo."""
    if name != "Actor":
        raise AttributeError(f"module 'replaybus' has no attribute {name!r}")
    from .actor import Actor
    return Actor


def __dir__() -> list[str]:
    """What programs use, and the modules that they have imported; the rest is for the package itself."""
    modules = [name for name, value in globals().items() if isinstance(value, _ModuleType) and name[0] != "_"]
    return sorted({*__all__, *modules, "Actor", "__version__", "__doc__", "__file__", "__name__", "__path__"})


__version__ = _core.version()
__all__ = ["Batch", "Change", "Checkpoint", "CheckpointInfo", "Client", "Column", "Counter", "Error", "Field", "Last", "Param", "Params",
           "Publisher", "Reduce", "Reduced", "Rejection", "ReplayBuffer", "ReplayBufferSamples", "Sampler", "SequenceAdder", "Server", "Slice", "Subscriber", "Table", "Updater", "VectorWriter", "Writer", "broker_program", "log_level"]
__all__ += [cls.__name__ for cls in errors.BY_STATUS[1:]]
