"""The golden traces of the environments are what their script computes from the published equations."""

import pathlib
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "golden"))

import env_traces

sys.exit(env_traces.main(["--check"]))
