"""Builds the wheel: CMake makes the extensions and the broker, setuptools packs them.

REPLAYBUS_BUILD names a build folder of the repository that has them already; otherwise one is made in build/python-cmake.
The extension _agent (replaybus.envs, replaybus.Actor) needs OpenBLAS and MuJoCo: without them the package has no such
extension, and says so when it is asked for.
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
        options = ["-DCMAKE_BUILD_TYPE=Release", "-DRP_TESTS=OFF", f"-DPython3_EXECUTABLE={sys.executable}",
                   "-DRP_AGENTS=AUTO"]
        generator = ["-G", "Ninja"] if shutil.which("ninja") else []
        subprocess.check_call(["cmake", "-S", str(ROOT), "-B", str(tree), *options, *generator])
        subprocess.check_call(["cmake", "--build", str(tree), "--target", "replay_python_package", "-j",
                               str(os.cpu_count() or 2)])
        return tree

    def copy_built(self, tree: Path) -> None:
        package = Path(__file__).resolve().parent / "replaybus" if self.inplace else Path(self.build_lib) / "replaybus"
        (package / "bin").mkdir(parents=True, exist_ok=True)
        built = tree / "lib" / "python" / "replaybus"
        self.files = ["_core.abi3.so", "bin/replay-broker", "bin/replay-ctl"]
        if (built / "_agent.abi3.so").exists():
            self.files.append("_agent.abi3.so")
        for name in self.files:
            shutil.copy2(built / name, package / name)

    def get_outputs(self) -> list:
        return [str(Path(self.build_lib) / "replaybus" / name) for name in self.files]


class Abi3Wheel(bdist_wheel):
    """A wheel for every Python from 3.10 on."""

    def finalize_options(self) -> None:
        self.py_limited_api = "cp310"
        super().finalize_options()


setup(version=version(), ext_modules=[Extension("replaybus._core", [], py_limited_api=True)],
      cmdclass={"build_ext": CMakeBuild, "bdist_wheel": Abi3Wheel})
