"""Builds the wheel: CMake makes the extension and the broker, setuptools packs them.

REPLAYBUS_BUILD names a build folder of the repository that has both already; otherwise one is made in build/python-cmake.
"""
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from wheel.bdist_wheel import bdist_wheel

ROOT = Path(__file__).resolve().parents[2]


def version() -> str:
    return re.search(r"project\(replay VERSION (\S+)", (ROOT / "CMakeLists.txt").read_text())[1]


class CMakeBuild(build_ext):
    """Copies what CMake has built to where setuptools expects it."""

    def run(self) -> None:
        self.copy_built(Path(os.environ["REPLAYBUS_BUILD"]) if "REPLAYBUS_BUILD" in os.environ else self.build_tree())

    def build_tree(self) -> Path:
        tree = ROOT / "build" / "python-cmake"
        options = ["-DCMAKE_BUILD_TYPE=Release", "-DRP_TESTS=OFF", f"-DPython3_EXECUTABLE={sys.executable}"]
        generator = ["-G", "Ninja"] if shutil.which("ninja") else []
        subprocess.check_call(["cmake", "-S", str(ROOT), "-B", str(tree), *options, *generator])
        subprocess.check_call(["cmake", "--build", str(tree), "--target", "replay_python", "replay-broker", "-j",
                               str(os.cpu_count() or 2)])
        return tree

    def copy_built(self, tree: Path) -> None:
        package = Path(__file__).resolve().parent / "replaybus" if self.inplace else Path(self.build_lib) / "replaybus"
        (package / "bin").mkdir(parents=True, exist_ok=True)
        shutil.copy2(tree / "lib" / "python" / "replaybus" / "_core.abi3.so", package / "_core.abi3.so")
        shutil.copy2(tree / "replay-broker", package / "bin" / "replay-broker")

    def get_outputs(self) -> list:
        return [str(Path(self.build_lib) / "replaybus" / name) for name in ("_core.abi3.so", "bin/replay-broker")]


class Abi3Wheel(bdist_wheel):
    """A wheel for every Python from 3.11 on."""

    def finalize_options(self) -> None:
        self.py_limited_api = "cp311"
        super().finalize_options()


setup(version=version(), ext_modules=[Extension("replaybus._core", [], py_limited_api=True)],
      cmdclass={"build_ext": CMakeBuild, "bdist_wheel": Abi3Wheel})
