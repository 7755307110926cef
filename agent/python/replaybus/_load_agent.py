"""Loads the extension _agent: environments, networks and adders, with OpenBLAS and MuJoCo.

Only replaybus.envs and replaybus.actor use it, so that "import replaybus" loads neither of these libraries.
"""
from . import errors, log

try:
    from . import _agent
except ImportError as error:
    raise ImportError("replaybus.envs and replaybus.Actor need the extension replaybus._agent: install OpenBLAS and MuJoCo (Debian: "
                      f"libopenblas-dev libmujoco-dev) and the package anew ({error})") from error

_agent.setup(errors.BY_STATUS, None)
log.add_extension(_agent)
