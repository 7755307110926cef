"""Runs a file of tests: run.py FILE [NAME...]. Debian's python3, with RP_BROKER and the like in the environment, as ctest has them.

Its tests are the functions test_*. They get a World, if the file has one, whose broker must end in order after them; a file with a
function main does as it likes.
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
    from harness import run_tests
    if not hasattr(module, "World"):
        return run_tests()
    world = module.World()
    try:
        status = run_tests(world)
        if world.broker.stop() != 0:
            print("FAIL  the broker did not end in order")
            status = 1
        if status:
            print("---- the broker's log\n" + world.broker.text()[-4000:])
        return status
    finally:
        world.broker.remove()


if __name__ == "__main__":
    sys.exit(main())
