"""Whole programs: a learner in PyTorch under replay-launch."""
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import replaybus

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
LAUNCH = Path(replaybus._core.__file__).resolve().parents[3] / "replay-launch"
LIMIT_S = 300


def torch_dqn() -> float:
    """The share of the time for which the learner of examples/torch_dqn.py waits for data, until it has learned CartPole."""
    with tempfile.TemporaryDirectory(prefix="replay-bench-") as folder:
        run = Path(folder) / "run"
        done = subprocess.run([sys.executable, str(EXAMPLES / "torch_dqn.py"), "--folder", str(run), "--quiet"], text=True,
                              capture_output=True, timeout=LIMIT_S, env={**os.environ, "RP_LAUNCH": str(LAUNCH)})
        found = re.search(r"waited ([\d.]+)% of the time", (run / "logs" / "learner-0.log").read_text())
        if done.returncode != 0 or not found:
            raise RuntimeError(f"examples/torch_dqn.py ended with status {done.returncode}:\n{done.stdout}{done.stderr}")
        return float(found[1]) / 100
