"""Runs a file of tests: run.py FILE [NAME...]. Debian's python3, with RP_BROKER and the like in the environment, as ctest has them.

A file marks its tests with harness.test. They get a World, if the file has one; a file with a function main does as it likes.
"""

import importlib
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.dont_write_bytecode = True
sys.path[:0] = [str(HERE / name) for name in ("integration", "foreign", "golden")]


def main():
    del sys.argv[0]
    module = importlib.import_module(pathlib.Path(sys.argv[0]).stem)
    if hasattr(module, "main"):
        return module.main()
    from harness import test
    if not hasattr(module, "World"):
        return test.main()
    world = module.World()
    try:
        status = test.main(world)
        if status:
            print("---- the broker's log\n" + world.broker.text()[-4000:])
        return status
    finally:
        getattr(world, "remove", world.broker.remove)()


if __name__ == "__main__":
    sys.exit(main())
