"""Compiles proto/replay.proto with protoc into a temporary folder and gives the module as `pb`."""

import atexit
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

SOURCE = pathlib.Path(os.environ.get("RP_SOURCE_DIR", pathlib.Path(__file__).resolve().parents[2]))


def _compile():
    folder = tempfile.mkdtemp(prefix="replay-pb-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    proto = SOURCE / "proto"
    subprocess.run(["protoc", "-I", str(proto), "--python_out", folder, str(proto / "replay.proto")], check=True)
    sys.path.insert(0, folder)
    import replay_pb2
    return replay_pb2


pb = _compile()
