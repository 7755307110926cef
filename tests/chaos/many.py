"""Chaos over many seeds: one run after the other, and the sum of them.

  many.py --build DIR --faults N --seeds A-B [arguments of run.py]"""

import argparse
import pathlib
import re
import subprocess
import sys

RUN = pathlib.Path(__file__).resolve().parent / "run.py"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", required=True)
    parser.add_argument("--faults", type=int, required=True)
    parser.add_argument("--seeds", required=True, help="A-B, or one")
    options, rest = parser.parse_known_args()
    first, _, last = options.seeds.partition("-")
    faults = items = 0
    failed, kinds = [], {}
    for seed in range(int(first), int(last or first) + 1):
        run = subprocess.run(["/usr/bin/python3", "-B", str(RUN), "--build", options.build, "--seed", str(seed),
                              "--faults", str(options.faults), "--seconds-at-most", str(60 + options.faults), *rest],
                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        print(run.stdout, flush=True)
        if run.returncode:
            failed.append(seed)
        found = re.search(r"(\d+) faults in [\d.]+ s: (.*)", run.stdout)
        if found:
            faults += int(found[1])
            for part in filter(None, found[2].split(", ")):
                n, _, name = part.partition(" ")
                kinds[name] = kinds.get(name, 0) + int(n)
        found = re.search(r"(\d+) acknowledged", run.stdout)
        items += int(found[1]) if found else 0
    print("== %d faults, %d acknowledged items, seeds %s: %s" % (
        faults, items, options.seeds, "failed: %s" % failed if failed else "the ledger holds for all of them"))
    print("   " + ", ".join("%d %s" % (n, name) for name, n in sorted(kinds.items(), key=lambda k: -k[1])))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
