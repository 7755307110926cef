"""Compiles proto/replay.proto with protoc and gives the module as `pb`. Nothing stays on disk."""

import os
import pathlib
import subprocess
import sys
import tempfile

SOURCE = pathlib.Path(os.environ.get("RP_SOURCE_DIR", pathlib.Path(__file__).resolve().parents[2]))


def _compile():
    proto = SOURCE / "proto"
    with tempfile.TemporaryDirectory(prefix="replay-pb-") as folder:
        subprocess.run(["protoc", "-I", str(proto), "--python_out", folder, str(proto / "replay.proto")], check=True)
        sys.path.insert(0, folder)
        try:
            import replay_pb2
        finally:
            sys.path.remove(folder)
    return replay_pb2


pb = _compile()
