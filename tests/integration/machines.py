"""Machines for tests: network namespaces that are joined by a bridge. Each has a real sshd, and an address, a host name, process
ids, a home folder and a /tmp of its own. The first machine, home, has no sshd: commands run there, and know the others by name.

A test that cannot have machines here (not root, no namespaces, no sshd) ends with status 77, "skipped"."""

import contextlib
import itertools
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from harness import children, everybody, kill, proc
from launches import CONFIG, PATIENCE, Place, check, eventually

SSHD = shutil.which("sshd", path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")
NETWORK = "10.231.0."
SKIPPED = 77
LABS = itertools.count()
# A test that is killed takes its machines along.
DIES_WITH_US = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []
FORWARDER = pathlib.Path(__file__).resolve().parent / "forwarder.py"
OURS = pathlib.Path(__file__).resolve().parents[2]  # the source tree, with the programs

SSHD_CONFIG = """
Port 22
ListenAddress %(address)s
HostKey /mnt/host_key
AuthorizedKeysFile /mnt/authorized_keys
PidFile none
StrictModes no
UsePAM no
PermitRootLogin yes
PasswordAuthentication no
KbdInteractiveAuthentication no
MaxStartups 100
"""

SSH_HOST = """
Host %(name)s
    HostName %(address)s
    Port %(port)d
    HostKeyAlias %(name)s
    User root
    IdentityFile %(base)s/home/key
    IdentitiesOnly yes
    UserKnownHostsFile %(base)s/home/known_hosts
    StrictHostKeyChecking yes
"""

# What the first process of a machine does before it becomes sshd. Folders that are hidden look empty there. The source tree is where it
# was, also if that is below /tmp or /root.
BOOT = """
set -e
base=$1 name=$2 ours=$3; shift 3
mount --make-rprivate /
hostname "$name"
for hidden do mount -t tmpfs none "$hidden"; done
mount -t tmpfs none /run
mkdir /run/sshd /run/ours
mount --rbind "$ours" /run/ours
mount --bind "$base" /mnt
mount --bind /mnt/tmp /tmp
mount --bind /mnt/root /root
[ -e "$ours/tests" ] || { mkdir -p "$ours"; mount --rbind /run/ours "$ours"; }
exec "$SSHD" -D -e -f /mnt/sshd_config
"""

# The same for a command at home, which has a home folder of its own.
HOME = """
set -e
root=$0 ours=$1; shift
mount --make-rprivate /
mkdir -p "$root/../ours"
mount --rbind "$ours" "$root/../ours"
mount --bind "$root" /root
[ -e "$ours/tests" ] || { mkdir -p "$ours"; mount --rbind "$root/../ours" "$ours"; }
hostname home
exec "$@"
"""


def ours_in(folder):
    """The name in this folder through which the source tree is there; None: it is elsewhere."""
    return OURS.relative_to(folder).parts[0] if OURS.is_relative_to(folder) else None


def run(*words, **options):
    """A command of the tests' own, to its end. Gives its output."""
    done = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE, **options)
    check(done.returncode == 0, words, "ended with status", done.returncode, done.stdout, done.stderr)
    return done.stdout


def why_not():
    """Why there can be no machines here; "": there can."""
    if os.geteuid() != 0:
        return "machines for tests need root"
    for tool in ("ip", "ssh", "ssh-keygen", "unshare"):
        if not shutil.which(tool):
            return "there is no program " + tool
    if not SSHD:
        return "there is no program sshd"
    name = "rp%d.try" % os.getpid()
    tries = (["ip", "netns", "add", name], ["ip", "-n", name, "link", "add", "bridge", "type", "bridge"],
             ["ip", "-n", name, "link", "add", "name", "one", "type", "veth", "peer", "name", "two"],
             ["unshare", "--pid", "--mount", "--uts", "--fork", "--mount-proc", "true"])
    why = ""
    for words in tries:
        done = subprocess.run(words, capture_output=True, text=True)
        if done.returncode != 0:
            why = "`%s` is not possible here: %s" % (" ".join(words), done.stderr.strip())
            break
    subprocess.run(["ip", "netns", "del", name], capture_output=True)
    return why


def remove_old():
    """Namespaces of tests that were killed."""
    for line in run("ip", "netns", "list").splitlines():
        name = line.split()[0]
        owner = re.match(r"rp(\d+)\.", name)
        if owner and not os.path.exists("/proc/" + owner[1]):
            subprocess.run(["ip", "netns", "del", name], capture_output=True)


def skip_unless_possible():
    why = why_not()
    if why:
        print("skipped:", why)
        sys.exit(SKIPPED)
    remove_old()


class Machine:
    """One machine. Its processes are those of a PID namespace, whose first process is its sshd."""

    def __init__(self, lab, name, number, hide):
        self.lab, self.name, self.number, self.hide = lab, name, number, [str(path) for path in hide]
        self.address = NETWORK + str(number)
        self.space = "%s-%s" % (lab.tag, name)
        self.base = lab.base / name
        self.popen = None
        for folder in ("tmp", "root"):
            (self.base / folder).mkdir(parents=True)
        (self.base / "tmp").chmod(0o1777)
        lab.plug(self)

    def cut_off(self):
        """The cable is pulled: no side hears of the other any more."""
        run("ip", "-n", self.space, "link", "set", "eth0", "down")

    def join(self):
        run("ip", "-n", self.space, "link", "set", "eth0", "up")

    def write_config(self):
        run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self.base / "host_key"))
        self.allow()
        (self.base / "sshd_config").write_text(SSHD_CONFIG % {"address": self.address})

    def allow(self, allowed=True):
        """Whether home may log in."""
        (self.base / "authorized_keys").write_text((self.lab.base / "home" / "key.pub").read_text() if allowed else "")

    def start(self):
        log = open(self.base / "sshd.log", "ab")
        self.popen = subprocess.Popen(
            [*DIES_WITH_US, "ip", "netns", "exec", self.space, "unshare", "--pid", "--mount", "--uts", "--fork", "--kill-child",
             "--mount-proc", "sh", "-c", BOOT, "sh", str(self.base), self.name, str(OURS), *self.hide], stdin=subprocess.DEVNULL,
            stdout=log, stderr=log, env=dict(os.environ, SSHD=SSHD, LC_ALL="C.UTF-8"))
        log.close()
        eventually(lambda: self.popen.poll() is not None or self.listens(), PATIENCE, "the sshd of " + self.name)
        check(self.popen.poll() is None, self.name, "did not start:", self.log())

    def listens(self):
        done = subprocess.run(["ip", "netns", "exec", self.space, "cat", "/proc/net/tcp"], capture_output=True, text=True)
        return any(line.split()[1].endswith(":0016") and line.split()[3] == "0A" for line in done.stdout.splitlines()[1:])

    def stop(self):
        """Power off: every process of the machine is killed."""
        if not self.popen:
            return
        for pid in self.processes(everything=True):
            kill(pid)
        self.popen.wait()
        self.popen = None

    def log(self):
        return (self.base / "sshd.log").read_text(errors="replace")

    def init(self):
        """Process id, seen from here, of the machine's first process; 0: none."""
        return next(iter(children(self.popen.pid)), 0) if self.popen else 0

    def processes(self, everything=False):
        """Process ids, seen from here. Without `everything` those of logins and what they started."""
        def space(pid):
            with contextlib.suppress(OSError):
                return os.stat("/proc/%d/ns/pid" % pid).st_ino

        init = self.init()
        here = init and space(init)
        return [pid for pid in everybody() if here and space(pid) == here and (everything or pid != init)]

    def commands(self):
        """Command lines of what runs there beside sshd, by process id."""
        found = {pid: proc(pid, "cmdline").decode(errors="replace") for pid in self.processes()}
        found = {pid: words.replace("\0", " ").strip() for pid, words in found.items()}
        return {pid: text for pid, text in found.items() if text and not text.startswith("sshd: ")}

    def left(self):
        """What a run has left behind: processes, and files outside of the cache."""
        files = [str(path.relative_to(self.base)) for path in (self.base / "tmp").iterdir() if path.name != ours_in("/tmp")]
        files += [str(path.relative_to(self.base)) for path in (self.base / "root").iterdir() if path.name not in (".cache", ours_in("/root"))]
        return list(self.commands().values()) + files

    def nothing_left(self, seconds=PATIENCE):
        eventually(lambda: not self.left(), seconds, lambda: "the end of all on %s, %s," % (self.name, self.left()))

    def cache(self):
        return self.base / "root" / ".cache" / "replay" / "programs"


class Forwarder:
    """A process on a machine of its own that stands for another machine: connections to a port are forwarded there, late."""

    def __init__(self, lab, name, ports, delay_ms=0, rate=0):
        """ports: {port here: (address, port)}; rate: bytes/s in each direction, 0: as many as it can"""
        self.machine = lab.add_bare(name)
        self.address = self.machine.address
        words = ["%s:%d:%s:%d" % (self.address, port, *to) for port, to in ports.items()]
        self.log = lab.base / (name + ".log")
        with open(self.log, "wb") as log:
            self.popen = subprocess.Popen([*DIES_WITH_US, "ip", "netns", "exec", self.machine.space, "/usr/bin/python3",
                                           str(FORWARDER), "--delay-ms", str(delay_ms), "--rate", str(rate), *words], stdout=log, stderr=log)
        lab.others.append(self.popen)
        eventually(lambda: "ready" in self.text(), PATIENCE, "the forwarder")

    def text(self):
        return self.log.read_text(errors="replace")

    def lift(self):
        """From now on, as many bytes/s as it can."""
        self.popen.send_signal(signal.SIGUSR2)

    def cut(self):
        """Breaks all connections that there are. Gives how many were broken so far."""
        before = self.text().count("cut ")
        self.popen.send_signal(signal.SIGUSR1)
        eventually(lambda: self.text().count("cut ") > before, PATIENCE, "the cut")
        return sum(int(line.split()[1]) for line in self.text().splitlines() if line.startswith("cut "))


class Lab:
    """Home and other machines; nothing of it is left when it is closed."""

    def __init__(self, names=(), hide=()):
        self.tag = "rp%d.%d" % (os.getpid(), next(LABS))
        self.base = pathlib.Path(tempfile.mkdtemp(prefix="replay-lab-"))
        self.machines, self.others, self.next, self.hide = {}, [], 1, hide
        self.switch = self.tag + "-switch"
        try:
            run("ip", "netns", "add", self.switch)
            run("ip", "-n", self.switch, "link", "add", "bridge", "type", "bridge")
            run("ip", "-n", self.switch, "link", "set", "bridge", "up")
            self.home = self.add_bare("home")
            run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self.base / "home" / "key"))
            (self.base / "home" / "root" / ".ssh").mkdir(mode=0o700)
            (self.base / "home" / "known_hosts").touch()
            for name in names:
                self.add(name, hide)
        except BaseException:
            self.close()
            raise

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        if kind:
            for machine in self.machines.values():
                path = machine.base / "sshd.log"
                if path.exists():
                    print("---- sshd of %s\n%s" % (machine.name, path.read_text(errors="replace")[-1500:]))
                    print("processes:", *machine.commands().values(), sep="\n  ")
        self.close()

    def __getitem__(self, name):
        return self.machines[name]

    def plug(self, machine):
        """A cable from the machine to the switch."""
        run("ip", "netns", "add", machine.space)
        port = "port%d" % machine.number
        run("ip", "link", "add", "eth0", "netns", machine.space, "type", "veth", "peer", "name", port, "netns",
            self.switch)
        run("ip", "-n", self.switch, "link", "set", port, "master", "bridge", "up")
        run("ip", "-n", machine.space, "address", "add", machine.address + "/24", "dev", "eth0")
        for link in ("lo", "eth0"):
            run("ip", "-n", machine.space, "link", "set", link, "up")

    def add_bare(self, name, hide=()):
        """A machine without an sshd."""
        machine = Machine(self, name, self.next, hide)
        self.next += 1
        self.machines[name] = machine
        return machine

    def add(self, name, hide=()):
        machine = self.add_bare(name, hide)
        machine.write_config()
        machine.start()
        self.know(name, machine)
        return machine

    def know(self, name, machine, address=None, port=22, known=True):
        """Home's ssh reaches the machine under the name. known: and knows its key."""
        key = (machine.base / "host_key.pub").read_text()
        with open(self.base / "home" / "known_hosts", "a") as out:
            out.write("%s %s" % (name, key) if known else "")
        with open(self.base / "home" / "root" / ".ssh" / "config", "a") as out:
            out.write(SSH_HOST % {"name": name, "address": address or machine.address, "port": port, "base": self.base})

    def prefix(self):
        """Words before a command that is to run at home; the command keeps the process id."""
        return ["ip", "netns", "exec", self.home.space, "unshare", "--mount", "--uts", "sh", "-c", HOME, str(self.home.base / "root"), str(OURS)]

    def at_home(self, *words, **options):
        return subprocess.run([*self.prefix(), *words], capture_output=True, text=True, timeout=PATIENCE, **options)

    def nothing_left(self, seconds=PATIENCE):
        for machine in self.machines.values():
            if machine.popen:
                machine.nothing_left(seconds)

    def close(self):
        for popen in self.others:
            popen.kill()
            popen.wait()
        for machine in self.machines.values():
            machine.stop()
            subprocess.run(["ip", "netns", "del", machine.space], capture_output=True)
        subprocess.run(["ip", "netns", "del", self.switch], capture_output=True)
        shutil.rmtree(self.base, ignore_errors=True)


def place_in(lab, hosts):
    """A working directory at home, for runs over the machines."""
    place = Place(CONFIG + hosts, cache=lab.base / "cache")
    place.prefix = lab.prefix()
    return place


def stored(machine):
    """The programs on a machine: name of their folder, and when their files were written."""
    return {folder.name: [(path.name, path.stat().st_ino, path.stat().st_ctime_ns) for path in sorted(folder.iterdir())]
            for folder in machine.cache().iterdir()}


if __name__ == "__main__":  # a shell at home, to try things by hand
    skip_unless_possible()
    start = time.monotonic()
    with Lab(sys.argv[1:] or ["cpu1", "cpu2"]) as lab:
        print("%d machines in %.1f s; `ssh NAME` reaches %s" %
              (len(lab.machines), time.monotonic() - start, ", ".join(name for name in lab.machines if name != "home")))
        subprocess.run([*lab.prefix(), os.environ.get("SHELL", "sh")])
