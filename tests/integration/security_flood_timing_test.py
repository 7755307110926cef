"""A flood of failing handshakes beside an innocent client: its rate, the broker's memory, descriptors and log. Runs alone, since it
compares rates."""

import os
import socket
import statistics
import struct
import subprocess
import sys
import time

from keyrings import SANITIZED, KeyBroker, Stranger  # Stranger: for the processes of FLOOD
from keyrings import KeyWorld as World
from harness import check, equal, eventually, resident

HANDSHAKES = 2000 if SANITIZED else 10000


GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00"


def knock(port, rng):
    """One handshake that fails, over a plain socket: NULL, PLAIN, CURVE with nonsense, half a greeting, random bytes."""
    kind = rng.randrange(5)
    mechanism = (b"NULL", b"PLAIN", b"CURVE")[kind] if kind < 3 else b""
    data = GREETING + mechanism.ljust(20, b"\0") + b"\0" * 32
    if kind == 2:   # HELLO of CURVE with nonsense in its box
        data += b"\x04\xc8\x05HELLO\x01\x00" + bytes(72) + rng.randbytes(120)
    elif kind == 3:
        data = data[:rng.randrange(1, 60)]
    elif kind == 4:
        data = rng.randbytes(rng.randrange(1, 400))
    try:
        with socket.create_connection(("127.0.0.1", port), 5) as client:
            client.sendall(data)
            if rng.random() < 0.3:
                client.settimeout(0.02)
                client.recv(64)
            if rng.random() < 0.5:   # ends with a reset
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    except OSError:
        pass


FLOOD = r"""
import random, sys, time
sys.path[:0] = sys.argv[1].split(":")
import security_flood_timing_test as t
import zmq
port, count, seed, public = int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), sys.argv[5].encode()
rng, context = random.Random(seed), zmq.Context()
for i in range(count):
    if i % 10:
        t.knock(port, rng)
    else:   # a stranger with a whole handshake
        client = context.socket(zmq.DEALER)
        client.linger = 0
        t.Stranger(public).secure(client)
        monitor = client.get_monitor_socket(zmq.EVENT_HANDSHAKE_FAILED_AUTH)
        client.connect("tcp://127.0.0.1:%d" % port)
        monitor.poll(2000)
        client.disable_monitor()
        monitor.close(0)
        client.close(0)
"""


def descriptors(world):
    return len(os.listdir("/proc/%d/fd" % world.broker.process.pid))


class Innocent:
    """Asks and counts the answers, from a process of its own so that it competes with the flood for the broker alone."""

    CODE = r"""
import sys, time
sys.path[:0] = sys.argv[1].split(":")
import keyrings, pathlib
from generated import pb
key = keyrings.Key(pathlib.Path(sys.argv[2]))
service = keyrings.Service(sys.argv[3], context=keyrings.KeyContext(key))
print("ready", flush=True)
while True:
    line = sys.stdin.readline()
    if not line:
        break
    end, n, worst = time.monotonic() + float(line), 0, 0.0
    while time.monotonic() < end:
        start = time.monotonic()
        service.ask("counter", pb.Counter(name="innocent", add=1), timeout=60)
        worst, n = max(worst, time.monotonic() - start), n + 1
    print(n / float(line), worst, flush=True)
"""

    def __init__(self, world):
        key = world.broker.new("actor", "actor")
        self.process = subprocess.Popen(
            ["/usr/bin/python3", "-B", "-c", self.CODE, ":".join(sys.path), str(key.path),
             world.endpoint], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        equal(self.process.stdout.readline().strip(), "ready")

    def run_for(self, length):
        self.process.stdin.write("%g\n" % length)
        self.process.stdin.flush()
        rate, worst = map(float, self.process.stdout.readline().split())
        return rate, worst

    def end(self):
        self.process.stdin.close()
        self.process.wait(60)


def flood(broker, count, seed):
    """Starts processes that knock at a broker's door. An attacker has a machine of its own, so these get what processor time is
    left."""
    port = broker.endpoints["service"].rsplit(":", 1)[1]
    return [subprocess.Popen(["/usr/bin/python3", "-B", "-c", FLOOD, ":".join(sys.path), port,
                              str(count // 2), str(seed + i), broker.public.decode()],
                             preexec_fn=lambda: os.nice(10)) for i in range(2)]


def serve_beside(innocent, processes):
    """The innocent client's median rate and longest answer until the processes end."""
    rates, worst, start = [], 0.0, time.monotonic()
    while not rates or any(process.poll() is None for process in processes):
        rate, longest = innocent.run_for(0.2)
        rates.append(rate)
        worst = max(worst, longest)
        check(time.monotonic() - start < 120, "the flood takes too long")
    equal([process.returncode for process in processes], [0] * len(processes))
    return statistics.median(rates), worst


def test_a_flood_of_failing_handshakes(world):
    """The flood takes processor time by itself. So it goes to the broker and, in turn with it, to another that nobody uses: the
    difference is what it costs the innocent client."""
    decoy, innocent, rounds = KeyBroker(), Innocent(world), 5
    innocent.run_for(0.3)
    alone = innocent.run_for(1.0)[0]
    lines, size, open_before = len(world.broker.lines("B0606")), resident(world.broker.process.pid), descriptors(world)
    ratios, rates, worst, most_open, most_size, took = [], [], 0.0, 0, 0, 0.0

    def share():
        return max(statistics.median(ratios), statistics.median(rates) / alone)

    least = 0.25 if SANITIZED else 0.5
    while len(ratios) < rounds or (share() < least and len(ratios) < 3 * rounds):  # other programs may have disturbed some rounds
        i = len(ratios)
        other, _ = serve_beside(innocent, flood(decoy, HANDSHAKES // rounds // 2, 100 + i))
        start = time.monotonic()
        rate, longest = serve_beside(innocent, flood(world.broker, HANDSHAKES // rounds, i))
        took += time.monotonic() - start
        ratios.append(rate / other)
        rates.append(rate)
        worst = max(worst, longest)
        most_open, most_size = max(most_open, descriptors(world)), max(most_size, resident(world.broker.process.pid))
    innocent.end()
    decoy.remove()
    ratio = statistics.median(ratios)
    print("      %d handshakes in %.1f s; innocent %.0f/s alone, %.0f/s beside them (%.2f), %.2f of what it gets beside a flood at "
          "another broker; longest answer %.0f ms; descriptors %d -> %d, memory +%.1f MB, %d lines"
          % (HANDSHAKES // rounds * len(ratios), took, alone, statistics.median(rates), statistics.median(rates) / alone, ratio, worst * 1000,
             open_before, most_open, (most_size - size) / 1e6, len(world.broker.lines("B0606")) - lines))
    check(share() >= least, "the innocent client got %.2f of its rate" % share())
    check(worst < 20.0, "an answer took %.2f s" % worst)
    check(most_size - size < (512 if SANITIZED else 64) << 20, "memory grew by %d bytes" % (most_size - size))
    check(len(world.broker.lines("B0606")) - lines <= 6 * (took + 2 * len(ratios)), "lines in the log")
    eventually(lambda: descriptors(world) <= open_before + 4, 40, "the descriptors")
    equal(world.watch.info().server.messages_bad, 0)
    check(world.broker.alive())
