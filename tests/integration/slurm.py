"""A real Slurm of its own: controller and some virtual nodes on this machine, in a temporary folder, with free ports, without
systemd. Two partitions over all nodes: jobs in `main` preempt jobs in `spare`, which are queued again."""

import getpass
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import tempfile

from harness import free_ports
from runs import SLOW, check, eventually

PATH = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "sbatch", "squeue", "scontrol", "scancel", "sinfo")
CONFIG = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={base}/run/munge.sock,cred_expire=5
CryptoType=crypto/munge
SlurmctldPort={port}
StateSaveLocation={base}/state
SlurmdSpoolDir={base}/spool/%n
SlurmctldPidFile={base}/run/slurmctld.pid
SlurmdPidFile={base}/run/%n.pid
SlurmctldLogFile={base}/log/slurmctld
SlurmdLogFile={base}/log/%n
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=sched_min_interval=0,sched_interval=1,bf_interval=1,requeue_delay=1
SlurmdParameters=config_overrides
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
MpiDefault=none
ReturnToService=2
KillWait=2
JobRequeue=1
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
{nodes}
PartitionName=main Nodes=ALL Default=YES PriorityTier=10 MaxTime=INFINITE State=UP PreemptMode=off
PartitionName=spare Nodes=ALL PriorityTier=1 MaxTime=INFINITE State=UP PreemptMode=requeue GraceTime=0
"""


def skip_without_slurm():
    missing = [name for name in PROGRAMS if not shutil.which(name, path=PATH)]
    if missing:
        print("skipped: there is no %s here (./dev install cluster)" % ", ".join(missing))
        sys.exit(77)


class Cluster:
    """Nodes n1, n2, ... Use as a context."""

    def __init__(self, nodes=4, cpus=2):
        self.base = pathlib.Path(tempfile.mkdtemp(prefix="replay-slurm-"))
        self.base.chmod(0o755)
        self.nodes, self.daemons = ["n%d" % (i + 1) for i in range(nodes)], []
        for name in ("state", "spool", "log", "run", "munge"):
            (self.base / name).mkdir(mode=0o700 if name == "munge" else 0o755)
        ports = free_ports(nodes + 1)
        lines = ["NodeName=%s NodeAddr=127.0.0.1 Port=%d CPUs=%d RealMemory=4000 State=UNKNOWN" % (name, port, cpus)
                 for name, port in zip(self.nodes, ports)]
        self.conf = self.base / "slurm.conf"
        self.conf.write_text(CONFIG.format(base=self.base, port=ports[-1], user=getpass.getuser(),
                                           host=socket.gethostname().split(".")[0], nodes="\n".join(lines)))
        self.environment = dict(os.environ, SLURM_CONF=str(self.conf), PATH=PATH)

    def __enter__(self):
        try:
            self.start()
        except BaseException:
            self.__exit__(*sys.exc_info())
            raise
        return self

    def __exit__(self, kind, error, trace):
        for daemon in reversed(self.daemons):
            daemon.terminate()
        for daemon in self.daemons:
            try:
                daemon.wait(60)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        if kind:
            for log in sorted((self.base / "log").glob("*")):
                print("---- %s\n%s" % (log.name, log.read_text(errors="replace")[-3000:]))
        shutil.rmtree(self.base, ignore_errors=True)

    def daemon(self, name, *words):
        with open(self.base / "log" / (name + ".out"), "ab") as out:
            self.daemons.append(subprocess.Popen([shutil.which(name, path=PATH), *words], stdout=out, stderr=out,
                                                 stdin=subprocess.DEVNULL, env=self.environment))

    def start(self):
        munge = self.base / "munge"
        (munge / "key").write_bytes(os.urandom(128))
        (munge / "key").chmod(0o600)
        sock = self.base / "run" / "munge.sock"
        self.daemon("munged", "--foreground", "--key-file=%s/key" % munge, "--socket=%s" % sock, "--pid-file=%s/pid" % munge,
                    "--log-file=%s/log" % munge, "--seed-file=%s/seed" % munge)
        eventually(sock.exists, 20 * SLOW, "munged")
        self.daemon("slurmctld", "-D", "-c", "-f", str(self.conf))
        for node in self.nodes:
            self.daemon("slurmd", "-D", "-N", node, "-f", str(self.conf))
        eventually(lambda: self.states() == {"idle"}, 30 * SLOW, "idle nodes")

    def call(self, *words, status=0):
        done = subprocess.run(words, capture_output=True, text=True, env=self.environment, timeout=60 * SLOW)
        check(status is None or done.returncode == status, words, "ended with", done.returncode, done.stdout, done.stderr)
        return done.stdout

    def states(self):
        return set(self.call("sinfo", "-h", "-N", "-p", "main", "-o", "%T", status=None).split())

    def tasks(self, array):
        """{index: (state, node)} of an array that is in the queue."""
        text = self.call("squeue", "-r", "-h", "-j", str(array), "-o", "%i %T %N", status=None)
        rows = [line.split() for line in text.splitlines() if "_" in line]
        return {int(row[0].split("_")[1]): (row[1], row[2] if len(row) > 2 else "") for row in rows}

    def running(self, array):
        return sorted(index for index, task in self.tasks(array).items() if task[0] == "RUNNING")

    def known(self, job):
        return bool(self.call("squeue", "-h", "-j", str(job), "-o", "%T", status=None).strip())

    def preempt(self, seconds):
        """Takes all processors that jobs in `spare` have, for a while."""
        cpus = self.call("sinfo", "-h", "-p", "main", "-o", "%C").split("/")
        free = int(cpus[3]) - self.used("main")
        return self.call("sbatch", "--parsable", "-p", "main", "-n", str(free), "-o", "/dev/null", "--wrap",
                         "sleep %g" % seconds).strip()

    def used(self, partition):
        """Processors of running jobs in a partition."""
        return sum(int(n) for n in self.call("squeue", "-h", "-p", partition, "-t", "R", "-o", "%C").split())
