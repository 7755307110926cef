"""A short chaos run: at least 200 faults, and books that must agree; before it, failures of power with fsync always, a run with
keys on all sockets, and two brokers that are wrong on purpose, whose errors the same books must show. At most 90 seconds in all. See
tests/chaos/README.md."""

import os
import pathlib
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
CHAOS = HERE.parent / "chaos"
BUILD = pathlib.Path(os.environ.get("RP_BUILD_DIR", "build/dev"))
SLOW = bool(os.environ.get("RP_SANITIZE"))

# What each of the wrong brokers must be blamed for.
BLAME = {"drop": ("accepted items are missing", "the limiter counts", "after a reconnect only"),
         "double": ("keys that nobody wrote", "which nobody wrote", "the limiter counts")}


def python(*arguments):
    return subprocess.Popen(["/usr/bin/python3", "-B", *map(str, arguments)], stdout=subprocess.PIPE,
                            stderr=subprocess.STDOUT, text=True)


def find_out(fault):
    return python(CHAOS / "run.py", "--broker", BUILD / "tests" / ("replay-broker-" + fault), "--faults", 8,
                  "--items", 60000, "--rate", 1000000, "--seconds-at-most", 24, "--remove")


def main():
    failed = []
    begin = time.monotonic()
    ledger = python(CHAOS / "ledger_test.py")
    wrong = {fault: find_out(fault) for fault in BLAME}
    power = python(CHAOS / "run.py", "--faults", 30, "--set", "fsync=always", "--only", "power,burst",
                   "--seconds-at-most", 200 if SLOW else 35)
    print(ledger.communicate()[0], end="")
    if ledger.returncode:
        failed.append("the ledger's own test")
    for fault, process in wrong.items():
        text = process.communicate()[0]
        if process.returncode != 1 or not any(words in text for words in BLAME[fault]):
            print(text)
            failed.append("a broker with the fault '%s' was not found out" % fault)
        else:
            print("a broker with the fault '%s' was found out after %.1f s" % (fault, time.monotonic() - begin))
    print(power.communicate()[0], end="")
    if power.returncode:
        failed.append("the run with failures of power")
    curve = python(CHAOS / "run.py", "--faults", 40, "--curve", "--seconds-at-most", 100 if SLOW else 25)
    print(curve.communicate()[0], end="")
    if curve.returncode:
        failed.append("the run with keys")
    left = 88 - (time.monotonic() - begin)
    run = python(CHAOS / "run.py", "--faults", 200, "--seconds-at-most", 300 if SLOW else left, *sys.argv[1:])
    print(run.communicate()[0], end="")
    if run.returncode:
        failed.append("the run")
    print("%.1f s; %s" % (time.monotonic() - begin, "failed: " + "; ".join(failed) if failed else "all well"))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
