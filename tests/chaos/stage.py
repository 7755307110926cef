"""The broker of a chaos run and the ground it stands on: a network namespace whose link can be taken down, a small file
system that can be full. Both where root is allowed to; without them the broker runs on 127.0.0.1 in a plain folder."""

import ctypes
import os
import pathlib
import signal
import subprocess
import time

import harness
from scene import TABLES

DISK = 768 << 20
LIBC = ctypes.CDLL(None)


def die_with_parent():
    """Whoever ends the conductor, nothing stays behind."""
    LIBC.prctl(1, signal.SIGKILL)


def quiet(*command):
    """Whether a command could be run, and went well."""
    try:
        return subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode == 0
    except OSError:
        return False


class Ground:
    """holder: a process that keeps the namespaces alive; its end takes them away."""

    def __init__(self, journal, wanted):
        self.holder, self.enter, self.has_link, self.has_disk = None, [], False, False
        self.host, self.journal = "127.0.0.1", journal
        self.notes = []
        if wanted and os.geteuid() == 0 and quiet("unshare", "-n", "-m", "true"):
            self.hold()
        else:
            self.notes.append("no namespaces: the link stays up, the disk is never full")

    def hold(self):
        read, write = os.pipe()
        self.holder = subprocess.Popen(
            ["unshare", "-n", "-m", "--propagation", "private", "sh", "-c", "echo; exec sleep 100000"],
            stdout=write, stderr=subprocess.DEVNULL, preexec_fn=die_with_parent)
        os.close(write)
        ready = os.read(read, 1)
        os.close(read)
        if not ready:
            self.notes.append("no namespaces here: the link stays up, the disk is never full")
            self.holder = None
            return
        target = str(self.holder.pid)
        self.inside = ["nsenter", "-t", target, "-n", "-m", "--"]
        self.has_disk = quiet(*self.inside, "mount", "-t", "tmpfs", "-o", "size=%d" % DISK, "chaos", str(self.journal))
        near, far = "rp%sa" % target, "rp%sb" % target
        net = "10.%d.%d." % (100 + self.holder.pid // 250 % 100, self.holder.pid % 250)
        self.has_link = (quiet("ip", "link", "add", near, "type", "veth", "peer", "name", far, "netns", target) and
                         quiet("ip", "addr", "add", net + "1/30", "dev", near)
                         and quiet("ip", "link", "set", near, "up")
                         and quiet(*self.inside, "ip", "addr", "add", net + "2/30", "dev", far)
                         and quiet(*self.inside, "ip", "link", "set", far, "up")
                         and quiet(*self.inside, "ip", "link", "set", "lo", "up"))
        self.far = far
        if self.has_link:
            self.host, self.enter = net + "2", self.inside
        else:
            self.notes.append("no link of its own: it stays up")
            self.enter = ["nsenter", "-t", target, "-m", "--"] if self.has_disk else []
        if not self.has_disk:
            self.notes.append("no file system of its own: the disk is never full")

    def link(self, up):
        quiet(*self.inside, "ip", "link", "set", self.far, "up" if up else "down")

    def path(self, path):
        """A file of the broker's as seen from here."""
        return pathlib.Path("/proc/%d/root%s" % (self.holder.pid, path)) if self.has_disk else path

    def room(self, free):
        """Leaves so many bytes free; None: all there are."""
        size = DISK
        if free is not None:
            state = os.statvfs(self.path(self.journal))
            size = (state.f_blocks - state.f_bfree) * state.f_bsize + free
        return quiet(*self.inside, "mount", "-o", "remount,size=%d" % max(4096, size), str(self.journal))

    def close(self):
        if self.holder:
            self.holder.kill()
            self.holder.wait()


class Power:
    """What a failure of power would leave: power.c writes down what was synced, the rest may be gone."""

    def __init__(self, library, log):
        self.library, self.log = library, log

    def environment(self):
        return dict(os.environ, LD_PRELOAD=str(self.library), RP_POWER_LOG=str(self.log)) if self.library else None

    def synced(self):
        """({(device, inode): bytes}, {(name, inode): None}) as far as they were synced. Of two threads that sync the folder, the one that
        has looked first may be noted last: so a name that was there once stays."""
        sizes, names, listing = {}, {}, None
        for line in self.log.read_text().splitlines() if self.log.exists() else ():
            words = line.split(" ", 3)
            if words[0] in "FT":
                file, size = (int(words[1]), int(words[2])), int(words[3])
                sizes[file] = size if words[0] == "F" else min(size, sizes.get(file, 0))
            elif words[0] == "D":
                listing = {}
            elif words[0] == "N":
                listing[words[2], int(words[1])] = None
            elif words[0] == "E":
                names.update(listing)
        return sizes, names

    def fail(self, folder, rng):
        """Takes away what was not synced: all of it, or some. Says how many bytes."""
        sizes, names = self.synced()
        worst, lost = rng.random() < 0.5, 0
        for path in sorted(folder.glob("*.replay*")):
            state = path.stat()
            safe = min(state.st_size, sizes.get((state.st_dev, state.st_ino), 0))
            size = safe if worst else rng.choice([safe, rng.randint(safe, state.st_size), state.st_size])
            if size < state.st_size:
                os.truncate(path, size)
                lost += state.st_size - size
            if (path.name, state.st_ino) not in names and (worst or rng.random() < 0.5):
                before = [name for name, inode in names if inode == state.st_ino]
                if before:   # its new name was not on the disk yet
                    path.rename(folder / before[-1])
                else:
                    path.unlink()
                    lost += size
        self.settle(folder)
        return lost

    def settle(self, folder):
        """What is there now is on the disk."""
        files = [(path, path.stat()) for path in folder.iterdir()]
        lines = ["F %d %d %d" % (s.st_dev, s.st_ino, s.st_size) for _, s in files]
        lines += ["D"] + ["N %d %s" % (s.st_ino, path.name) for path, s in files] + ["E"]
        self.log.write_text("\n".join(lines) + "\n")


class Broker(harness.Broker):
    def __init__(self, program, folder, options, wanted, library=None):
        self.program, self.folder, self.options = program, folder, options
        self.power = Power(library, folder / "power.log")
        self.journal = folder / "journal"
        self.journal.mkdir()
        self.ground = Ground(self.journal, wanted)
        self.ports = harness.free_ports(3)
        self.config, self.where = folder / "broker.yaml", folder / "endpoints"
        self.log = open(folder / "broker.log", "ab")
        self.process, self.starts, self.slowest = None, 0, 0.0
        self.config.write_text(self.settings())

    def settings(self):
        o, host = self.options, self.ground.host
        lines = ["service: tcp://%s:%d" % (host, self.ports[0]), "ingest: tcp://%s:%d" % (host, self.ports[1]),
                 "events: tcp://%s:%d" % (host, self.ports[2]), "memory_limit: 512MiB",
                 "session: {expiry: %s}" % o["expiry"], "log: {level: info}"]
        lines += ["folder: %s\njournal: %s\njournal_max: %s" % (self.journal, o["sync"], o["max"]),
                  "checkpoint: {every: %s, keep: %d, load: %s}" % (o["every"], int(o["keep"]), o["load"]),
                  "storage: {memory: %s}" % o["memory"]]
        lines += ["security: {mode: curve, keys: %s}" % (self.folder / "keys") if o["curve"] else "security: {mode: none}"]
        lines += ["tables:"]
        for t in TABLES:
            times = ", max_times_sampled: %d" % t.times if t.times else ""
            lines += ["  - {name: %s, max_size: %d%s, %s}" % (t.name, t.max_size, times, t.text)]
        return "\n".join(lines) + "\n"

    def launch(self):
        self.log.write(b"== start %d\n" % self.starts)
        self.log.flush()
        self.starts += 1
        super().launch(self.ground.enter, self.program, env=self.power.environment(), preexec_fn=die_with_parent)

    def ready(self):
        begin = time.monotonic()
        super().ready()
        self.slowest = max(self.slowest, time.monotonic() - begin)

    def newest(self, kind):
        """The file with the largest number, or None."""
        files = sorted(self.ground.path(self.journal).glob(kind + "-*.replay"))
        return files[-1] if files else None

    def close(self):
        if self.process and self.alive():
            self.kill()
        self.ground.close()
        self.log.close()
