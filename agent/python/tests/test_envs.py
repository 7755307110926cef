"""The environments of the extension _agent."""
import subprocess
import sys

import pytest

envs = pytest.importorskip("replaybus.envs", reason="the extension _agent is not built here")


def test_names():
    names = envs.names()
    assert {"CartPole-v1", "Pendulum-v1", "Breakout", "InvertedPendulum"} <= set(names) and len(names) == len(set(names))


def test_the_package_alone_loads_neither_openblas_nor_mujoco():
    code = ("import replaybus; maps = open('/proc/self/maps').read(); assert '_core' in maps; "
            "assert '_agent' not in maps and 'mujoco' not in maps; import replaybus.envs; "
            "assert 'mujoco' in open('/proc/self/maps').read()")
    subprocess.run([sys.executable, "-c", code], check=True, timeout=30)


def test_a_missing_extension_is_named():
    code = ("import sys; sys.modules['replaybus._agent'] = None\n"
            "import replaybus\n"
            "try:\n    import replaybus.envs\n"
            "except ImportError as error:\n    assert 'libopenblas-dev' in str(error), error\n"
            "else:\n    sys.exit('no error')\n")
    subprocess.run([sys.executable, "-c", code], check=True, timeout=30)
