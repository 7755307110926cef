"""A short chaos run: at least 200 faults, and books that must agree; before it, failures of power with journal: 0s, a run with
keys on all sockets, and two brokers that are wrong on purpose, whose errors the same books must show; beside it, 200 faults of
brokers that are four shards of one, half of them with a journal. Under a minute on two
processors; a busy machine may take several times as long. See tests/chaos/README.md."""

import os
import pathlib
import re
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


def chaos(seconds, *arguments):
    """A run that ends by itself long before its bound, unless the machine is busy with other work."""
    return python(CHAOS / "run.py", "--seconds-at-most", 3 * seconds if SLOW else seconds, *arguments)


def shards(seconds, *arguments):
    program = [BUILD / "tests" / "chaos_shards", "--shards", 4, "--seconds-at-most", 3 * seconds if SLOW else seconds, *arguments]
    return subprocess.Popen([str(word) for word in program], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)


def find_out(fault):
    return chaos(300, "--broker", BUILD / "tests" / ("replay-broker-" + fault), "--faults", 8, "--items", 60000, "--rate", 1000000,
                 "--remove")


def main():
    failed = []
    begin = time.monotonic()
    ledger = python(CHAOS / "ledger_test.py")
    wrong = {fault: find_out(fault) for fault in BLAME}
    runs = {"the run with failures of power": chaos(600, "--faults", 30, "--set", "sync=0s", "--only", "power,burst")}
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
    runs["the run over shards with a journal"] = shards(600, "--faults", 100)
    runs["the run over shards without"] = shards(600, "--faults", 100, "--no-journal")
    runs["the run with keys"] = chaos(600, "--faults", 40, "--curve")
    # In a namespace the broker is on another machine, and reads no writer's memory.
    runs["the run on one host"] = chaos(600, "--faults", 40, "--plain", "--between", 0.1)
    runs["the run"] = chaos(600, "--faults", 200, "--between", 0.1, *sys.argv[1:])
    for name, process in runs.items():
        text = process.communicate()[0]
        print(text, end="")
        if process.returncode:
            failed.append(name)
        for run, what in ("the run", "shared chunk"), ("the run on one host", "placed message"):
            if name == run and not re.search("'%s': [1-9]" % what, text):
                failed.append("%s has no %s" % (run, what))
    print("%.1f s; %s" % (time.monotonic() - begin, "failed: " + "; ".join(failed) if failed else "all well"))
    return 1 if failed else 0
