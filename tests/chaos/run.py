#!/usr/bin/python3
"""Chaos: a real broker, many clients, random faults, and books that must agree in the end.

  run.py [--faults N] [--seed S] [--seconds-at-most T] [--build DIR] [--broker PROGRAM]
  run.py [--faults N] --seeds A-B ...      one run after the other, and the sum of them

Exit status 0: the ledger holds. 1: it does not, the differences are printed and the folder is kept. The seed decides
the broker's settings, the clients' plans, the faults and their delays; it repeats a run as far as timing allows."""

import argparse
import collections
import json
import multiprocessing
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback

sys.dont_write_bytecode = True
HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "foreign")]

import faults
import keys
from auditor import Auditor
from harness import eventually, free_ports
from sampler import Clerk, Sampler
from scene import DRAIN, RUN, SETTLE, STOP, TABLES, Shared
from stage import Broker, die_with_parent
from writer import Writer

LIMIT = 30.0   # seconds for everything to settle
WRITERS = 3
LONGEST = 0.6  # seconds of a stop
PAUSE_EVERY = 45  # faults between two audits


class Scene:
    """What a client's process gets to know."""

    def __init__(self, folder, seed):
        self.folder, self.seed, self.shared = folder, seed, Shared()
        self.direct = self.relayed = None
        (folder / "logs").mkdir()

    def complain(self, text):
        with open(self.folder / "complaints", "a") as file:
            file.write("%.3f %s\n" % (time.monotonic(), text))

    def complaints(self):
        path = self.folder / "complaints"
        return path.read_text().splitlines() if path.exists() else []

    def endpoints(self, index, direct=False):
        """(service, ingest): every other client goes through the relay."""
        return self.relayed if self.relayed and index % 2 and not direct else self.direct


class Part:
    """A client: what it is, and its process."""

    def __init__(self, make):
        self.make, self.pid, self.incarnation = make, 0, 0


class Conductor:
    def __init__(self, options):
        self.options, self.rng = options, random.Random(options.seed)
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="replay-chaos-"))
        self.settings = self.choose()
        if options.curve:
            keys.make(self.folder / "keys")
        self.scene = Scene(self.folder, options.seed)
        self.scene.spills = self.settings["memory"] != "0"
        self.broker = Broker(options.broker, self.folder, self.settings, not options.plain, self.power_library())
        self.lost_bytes, self.damaged, self.aborted = 0, set(), 0
        self.longest, self.checkpoints, self.counts = LONGEST, 0, collections.Counter()
        self.cast, self.writers, self.others, self.audits = [], WRITERS, [], 0
        self.begin, self.longest_fault, self.longest_rest = time.monotonic(), (0.0, "none"), 0.0
        self.totals, self.interrupted = {}, False

    def choose(self):
        """The broker's settings: by the seed."""
        rng = random.Random("settings-%d" % self.options.seed)
        chosen = {
            "sync": rng.choice(["never", "20ms", "0s"]),
            "max": rng.choice(["1MiB", "8MiB", "1GiB"]), "every": rng.choice(["0s", "150ms", "1s"]),
            "keep": rng.randint(1, 3),
            "memory": rng.choice(["0", "0", "300KiB", "2MiB"]),
            "expiry": rng.choice(["600ms", "5s"]), "curve": self.options.curve,
            "load": "salvage" if self.options.only_starts else "newest"}
        return dict(chosen, **dict(pair.split("=") for pair in self.options.set))

    def power_library(self):
        """Where nothing but what was synced must survive. A sanitizer wants to be the first library itself."""
        path = pathlib.Path(self.options.broker).resolve().parent / "tests" / "chaos_power.so"
        wanted = not os.environ.get("RP_SANITIZE") and (
            self.settings["sync"] == "0s" or self.options.only_starts)
        return path if wanted and path.exists() else None

    def fork(self, run):
        sys.stdout.flush()
        pid = os.fork()
        if pid:
            return pid
        try:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            die_with_parent()
            run()
        except BaseException:
            self.scene.complain("a client failed: " + traceback.format_exc().replace("\n", " | "))
            os._exit(1)
        os._exit(0)

    def start_relay(self):
        """Connections that can be cut, also in the middle of a message."""
        ports, log = free_ports(2), self.folder / "relay.log"
        ways = ["127.0.0.1:%d:%s:%d" % (own, self.broker.ground.host, port) for own, port in zip(ports, self.broker.ports)]
        with open(log, "wb") as file:
            self.relay = subprocess.Popen([sys.executable, "-B", str(HERE.parent / "integration" / "forwarder.py"), *ways], stdout=file,
                                          stderr=file, preexec_fn=die_with_parent)
        eventually(lambda: b"ready" in log.read_bytes(), what="the relay")
        self.others.append(self.relay.pid)
        self.scene.relayed = tuple("tcp://127.0.0.1:%d" % port for port in ports)

    def start_auditor(self):
        ours, theirs = multiprocessing.Pipe()

        def serve():
            ours.close()
            Auditor(self.scene).serve(theirs)
        self.others.append(self.fork(serve))
        theirs.close()
        self.pipe = ours

    def ask_auditor(self, command, *args):
        self.pipe.send((command, args))
        if not self.pipe.poll(60):
            raise RuntimeError("the auditor does not answer")
        status, result = self.pipe.recv()
        if status != "ok":
            raise RuntimeError("the auditor could not do it: %s" % result)
        return result

    def plan_cast(self):
        options = {"rate": self.options.rate / self.writers, "items": self.options.items / self.writers}
        for i in range(self.writers):
            self.cast.append(Part(lambda index, n, i=i: Writer(self.scene, i, i << 16 | n, options)))

        def sampler(name, kind, depth, plan, updates=None, pause=0.004):
            self.cast.append(Part(lambda index, n: Sampler(self.scene, index, name, kind, depth, n, plan, updates or {}, pause)))
        sampler("learner-0", "REQ", 1, {"replay": [8, 32, 64]}, {"replay": (2, 0)})
        sampler("learner-1", "DEALER", 4, {"replay": [16, 32]}, {"replay": (2, 1)})
        sampler("queue-0", "RELAXED", 1, {"queue": [1, 8, 30]})
        sampler("queue-1", "DEALER", 4, {"queue": [1, 4, 16]})
        sampler("queue-2", "REQ", 1, {"queue": [2, 20]})
        sampler("roamer-0", "DELIMITED", 2, {"recent": [4, 16], "signed": [2, 8], "thrice": [3, 20]},
                {"signed": (1, 0)}, 0.01)
        sampler("roamer-1", "DEALER", 2, {"best": [2, 10], "thrice": [5], "recent": [7]}, None, 0.01)
        for i in range(2):
            self.cast.append(Part(lambda index, n, i=i: Clerk(self.scene, index, "clerk-%d" % i, "DEALER", 1 + i, n,
                                                              "signed" if i == 0 else "")))

    def start_client(self, index):
        part = self.cast[index]
        part.incarnation += 1
        n = part.incarnation
        part.pid = self.fork(lambda: part.make(index, n).run())

    def kill_client(self, index):
        pid = self.cast[index].pid
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)

    def revive(self):
        """Clients that ended by themselves have complained; the others go on."""
        for index, part in enumerate(self.cast):
            pid, status = os.waitpid(part.pid, os.WNOHANG)
            if pid:
                # libzmq 4.3 may abort a process that closes a socket while its connection breaks in the middle of a
                # message (session_base.cpp, clean_pipes): to the broker that is one more client that is gone.
                if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGABRT:
                    self.aborted += 1
                elif status or index >= self.writers:   # a writer may say bye
                    self.scene.complain("client %d has ended by itself, with status %d" % (index, status))
                self.start_client(index)

    def restart(self, end):
        end()
        self.broker.start()
        self.scene.shared.generation += 1

    def possible(self):
        ground = self.broker.ground
        have = {"": True, "disk": ground.has_disk, "link": ground.has_link, "older": int(self.settings["keep"]) > 1,
                "power": self.broker.power.library is not None}
        wanted = self.options.only.split(",") if self.options.only else None
        return [f for f in faults.ALL if have[f[3]] and (not wanted or any(w in f[0] for w in wanted))]

    def inject(self):
        """One fault, or two or three at once."""
        possible = self.possible()
        n = self.rng.choices([1, 2, 3], [7, 2, 1])[0]
        for name, function, _, _ in self.rng.choices(possible, [f[2] for f in possible], k=n):
            self.counts[name] += 1
            if self.options.verbose:
                print("%7.3f %s" % (time.monotonic() - self.begin, name), flush=True)
            before = time.monotonic()
            function(self, self.rng)
            self.longest_fault = max(self.longest_fault, (time.monotonic() - before, name))
            if not self.broker.alive():
                raise RuntimeError("the broker has ended by itself, with status %s" % self.broker.process.returncode)
        if self.rng.random() < 0.1:
            self.checkpoints += 1
            self.broker.signal(signal.SIGUSR1)

    def wait_idle(self, indices):
        end = time.monotonic() + LIMIT
        shared = self.scene.shared
        while any(shared.idle[i] != shared.state for i in indices):
            if time.monotonic() > end:
                late = [i for i in indices if shared.idle[i] != shared.state]
                raise RuntimeError("clients %s do not settle within %g s:\n  %s"
                                   % (late, LIMIT, "\n  ".join(self.ask_auditor("why"))))
            self.revive()
            time.sleep(0.005)

    def settle(self):
        before = time.monotonic()
        self.scene.shared.phase = DRAIN
        self.wait_idle(range(self.writers))
        self.scene.shared.phase = SETTLE
        self.wait_idle(range(len(self.cast)))
        self.longest_rest = max(self.longest_rest, time.monotonic() - before)

    def audit(self, bytes_of=300, restarted=False):
        """The differences between the books and the broker; restarted: and to what it was before."""
        self.audits += 1
        return self.scene.complaints() + self.ask_auditor("audit", bytes_of, restarted)

    def pause(self, last):
        """Everything comes to rest; then the books are compared, also after a kill -9 and after a clean restart."""
        self.settle()
        found = self.audit()
        if not found:
            if last or self.rng.random() < 0.5:
                self.restart(self.broker.kill)
                found = ["after a kill -9 at rest: " + text for text in
                         self.audit(10 ** 9 if last else 300, restarted=True)]
            if not found and self.rng.random() < 0.5:
                table = self.rng.choice(TABLES).name
                self.ask_auditor("reset", table)
                self.restart(self.broker.kill)
                found = ["after a reset of %s: %s" % (table, text) for text in self.audit()]
            if not found and last:
                self.restart(self.broker.stop)
                found = ["after SIGTERM and a restart: " + text for text in self.audit(10 ** 9, restarted=True)]
        if not last:
            self.scene.shared.phase = RUN
        return found

    def hurry(self):
        """Whether there are more faults left than the time allows at this pace."""
        total, spent = sum(self.counts.values()), time.monotonic() - self.begin
        return self.options.faults - total > (self.options.seconds_at_most - 15 - spent) / max(0.01, spent) * total

    def is_over(self):
        total = sum(self.counts.values())
        late = time.monotonic() - self.begin > self.options.seconds_at_most - 8
        items = sum(self.scene.shared.done[i] for i in range(self.writers))
        enough = self.options.items == float("inf") or items >= self.options.items * 0.97
        return late or total >= self.options.faults and enough

    def perform(self):
        self.broker.start()
        self.scene.direct = tuple("tcp://%s:%d" % (self.broker.ground.host, p) for p in self.broker.ports[:2])
        self.start_relay()
        self.start_auditor()
        self.plan_cast()
        for index in range(len(self.cast)):
            self.start_client(index)
        next_pause = PAUSE_EVERY
        time.sleep(0.3)
        while not self.is_over():
            if sum(self.counts.values()) < self.options.faults:
                self.inject()
            time.sleep(self.rng.uniform(0, self.options.between) if not self.hurry() else 0)
            self.revive()
            if self.options.only_starts:
                continue
            if self.scene.complaints():
                break
            if sum(self.counts.values()) >= next_pause:
                next_pause += PAUSE_EVERY
                found = self.pause(last=False)
                if found:
                    return found
        return [] if self.options.only_starts else self.pause(last=True)

    def close(self):
        self.scene.shared.phase = STOP
        for pid in self.others + [part.pid for part in self.cast if part.pid]:
            try:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
            except (ProcessLookupError, ChildProcessError):
                pass
        self.broker.close()

    def keep_files(self):
        """The journal may lie in a namespace that ends with us. The broker is ended first: it would go on deleting files."""
        ground = self.broker.ground
        if self.broker.process:
            self.broker.kill()
        if ground.has_disk and ground.path(self.broker.journal).is_dir():
            for path in ground.path(self.broker.journal).iterdir():
                shutil.copy(path, self.broker.journal)

    def report(self, found):
        print("chaos: seed %d, %s" % (self.options.seed, json.dumps(self.settings)))
        for note in self.broker.ground.notes:
            print("  skipped: " + note)
        print("  %d faults in %.1f s: %s" % (sum(self.counts.values()), time.monotonic() - self.begin,
                                             ", ".join("%d %s" % (n, name) for name, n in self.counts.most_common())))
        print("  %d starts of the broker, the slowest %.2f s; %d checkpoints by signal; %d audits"
              % (self.broker.starts, self.broker.slowest, self.checkpoints, self.audits))
        print("  longest: %.1f s for a fault (%s), %.1f s until all was at rest"
              % (*self.longest_fault, self.longest_rest))
        if self.aborted:
            print("  %d clients were ended by an assertion of libzmq" % self.aborted)
        if self.broker.power.library:
            print("  %d bytes that were not synced were lost with the power" % self.lost_bytes)
        if self.totals:
            print("  " + ", ".join("%s %s" % (value, key) for key, value in self.totals.items()))
        if not found:
            print("the broker started every time" if self.options.only_starts else "the ledger holds", flush=True)
            return
        print("the ledger does NOT hold, %d differences (%s is kept):" % (len(found), self.folder))
        for text in found[:40]:
            print("  " + text)
        sys.stdout.flush()

    def run(self):
        """Whether the ledger holds."""
        try:
            found = self.perform()
            self.totals = self.ask_auditor("totals")
        except (Exception, KeyboardInterrupt) as error:
            self.interrupted = isinstance(error, KeyboardInterrupt)
            found = self.scene.complaints() + ["%s" % (error or repr(error))]
            if self.options.verbose:
                traceback.print_exc()
        finally:
            self.scene.shared.phase = STOP
        if self.totals and self.options.items == float("inf") and sum(self.counts.values()) < self.options.faults:
            found = found or ["only %d of %d faults in the time given"
                              % (sum(self.counts.values()), self.options.faults)]
        if found:
            self.keep_files()
        self.close()
        self.report(found)
        if self.options.remove or not found:
            shutil.rmtree(self.folder, ignore_errors=True)
        return not found


def run_all(options, seeds):
    """The seeds for which the ledger does not hold."""
    failed, counts, items = [], collections.Counter(), 0
    for seed in seeds:
        print("chaos: seed %d" % seed, flush=True)
        try:
            conductor = Conductor(argparse.Namespace(**dict(vars(options), seed=seed)))
            failed += [] if conductor.run() else [seed]
        except Exception:  # the other seeds run all the same
            traceback.print_exc()
            failed.append(seed)
            continue
        counts += conductor.counts
        items += conductor.totals.get("acknowledged", 0)
        if conductor.interrupted:
            break
    if len(seeds) > 1:
        print("== %d faults, %d acknowledged items, seeds %d to %d: %s" % (
            sum(counts.values()), items, seeds[0], seeds[-1],
            "failed: %s" % failed if failed else "the ledger holds for all of them"))
        print("   " + ", ".join("%d %s" % (n, name) for name, n in counts.most_common()))
    return failed


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--faults", type=int, default=200, help="how many")
    add("--seed", type=int, default=0, help="0: from the system")
    add("--seeds", default="", metavar="A-B", help="several, instead of --seed")
    add("--seconds-at-most", type=float, help="for one run; by default 90, and of several a second for each fault and a minute more")
    add("--build", help="folder of the programs; by default RP_BROKER of the environment")
    add("--broker", help="the program itself")
    add("--rate", type=float, default=2500.0, help="items per second that the writers offer together")
    add("--items", type=float, default=float("inf"), help="stop after so many items")
    add("--set", type=lambda text: text.split(","), default=[], metavar="KEY=VALUE,...",
        help="the broker's settings, instead of the seed's: sync, max, every, keep, memory, expiry")
    add("--only", default="", help="only faults whose names contain one of these words")
    add("--between", type=float, default=0.15, help="longest pause between faults, in seconds")
    add("--only-starts", action="store_true",
        help="power may fail whatever sync is; then acknowledged things may be lost, but the broker must start")
    add("--curve", action="store_true", help="with keys, on all sockets")
    add("--plain", action="store_true", help="no namespaces")
    add("--remove", action="store_true", help="remove the folder in any case")
    add("--verbose", action="store_true")
    options = parser.parse_args()
    first, _, last = (options.seeds or str(options.seed or random.SystemRandom().randrange(1, 1 << 31))).partition("-")
    options.seconds_at_most = options.seconds_at_most or (60.0 + options.faults if options.seeds else 90.0)
    if not options.broker:
        options.broker = str(pathlib.Path(options.build) / "replay-broker") if options.build else \
            os.environ.get("RP_BROKER", "replay-broker")
    if "/" in options.broker:
        options.broker = str(pathlib.Path(options.broker).resolve())  # it is started in another folder
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by a signal"))
    return 1 if run_all(options, range(int(first), int(last or first) + 1)) else 0


if __name__ == "__main__":
    sys.exit(main())
