"""Parallel learners in torch: what they sample, that they stay bit-identical, and what a learner that was killed gets from the others."""
import collections
import os
import subprocess
import sys
import time

import numpy as np
import pytest

import replaybus
import replaybus.run
from replaybus import weights

torch = pytest.importorskip("torch", reason="torch is missing: ./dev install gets python3-torch")
import replaybus.torch  # noqa: E402

# Writes a line for each of its steps: step, learners, how often it has joined, a print of networks and optimiser, and the keys.
LEARNER = """
import os, sys, zlib
import torch, replaybus.run, replaybus.torch

torch.set_num_threads(1)
with replaybus.run.Learner() as run:
    torch.manual_seed(run.index)
    backend = sys.argv[1] if len(sys.argv) > 1 else None
    where = torch.device("cuda", run.index) if backend == "nccl" else torch.device("cpu")
    if backend == "nccl":
        torch.cuda.set_device(where)
    net = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)).to(where)
    adam = torch.optim.Adam(net.parameters(), 1e-2)
    publisher = replaybus.torch.States(run.client, net=net).keep(adam=adam)
    run.publishes(publisher)
    group = run.share(adam, backend=backend)
    with open(run.folder / f"pid-{run.index}", "w") as file:
        file.write(str(os.getpid()))
    with open(run.folder / f"steps-{run.index}", "a") as file:
        for batch in run.batches(replaybus.torch.Sampler(run.client, run.table, 4, squeeze=True)):
            adam.zero_grad()
            net(batch.data["x"].to(where)).sub(1).square().mean().backward()
            if group.mean():
                adam.step()
                run.step()
                values = [*net.parameters(), *(value for state in adam.state.values() for value in state.values())]
                mark = zlib.crc32(b"".join(value.detach().cpu().numpy().tobytes() for value in values))
                print(run.steps, group.learners, group.joins, mark, *batch.key.tolist(), file=file, flush=True)
print(run.leads)
"""
QUEUE = replaybus.Table("replay", max_size=64, max_times_sampled=1, sampler="fifo", limiter={"kind": "queue"})
Row = collections.namedtuple("Row", "step learners joins mark keys")


def rows(folder, index):
    path = folder / f"steps-{index}"
    lines = path.read_text().split("\n")[:-1] if path.exists() else []
    return [Row(*map(int, line.split()[:4]), tuple(line.split()[4:])) for line in lines]


class Feeding:
    """Keeps the queue full while the learners are watched."""

    def __init__(self, client, processes):
        self._writer, self._rng, self._processes = client.writer(), np.random.default_rng(1), processes

    def until(self, condition):
        end = time.monotonic() + 240
        while not condition():
            assert time.monotonic() < end and all(process.poll() is None for process in self._processes)
            try:
                self._writer.append_block({"x": self._rng.normal(size=(4, 3)).astype("float32")}, replaybus.Last(1, "replay"), timeout=0.2)
            except replaybus.DeadlineExceeded:
                pass


def check(folder):
    """A round of both learners leaves the same bytes at each, and no item was sampled twice. Returns how many rounds they had together.
    What one learns alone may be lost: it was killed, or the other was only slow and had learned more (agent/run/group.h)."""
    found = [row for index in (0, 1) for row in rows(folder, index)]
    marks = collections.defaultdict(list)
    for row in found:
        if row.learners == 2:
            marks[row.step].append(row.mark)
    differ = [step for step, there in marks.items() if len(set(there)) > 1]
    assert not differ, [row[:4] for row in found if abs(row.step - differ[0]) <= 3]
    keys = [key for row in found for key in row.keys]
    assert len(set(keys)) == len(keys)
    return sum(len(there) == 2 for there in marks.values())


def together(folder):
    """Whether both have taken part in one round."""
    last = [(rows(folder, index) or [None])[-1] for index in (0, 1)]
    return all(row and row.learners == 2 for row in last)


@pytest.mark.parametrize("backend, victim", [([], 0), ([], 1), (["gloo"], 0), (["nccl"], 0)],
                         ids=["broker-0", "broker-1", "gloo-0", "nccl-0"])
def test_a_learner_that_was_killed_takes_the_state_of_the_other(tmp_path, backend, victim):
    if backend == ["gloo"] and not (torch.distributed.is_available() and torch.distributed.is_gloo_available()):
        pytest.skip("this torch has no gloo")
    if backend == ["nccl"] and torch.cuda.device_count() < 2:
        pytest.skip("nccl wants a GPU for each learner")

    def start(index):
        more = {"REPLAY_ENDPOINT": server.endpoint, "REPLAY_FOLDER": str(tmp_path), "REPLAY_INDEX": str(index), "REPLAY_COUNT": "2"}
        return subprocess.Popen([sys.executable, "-c", LEARNER, *backend], env={**os.environ, **more}, stdout=subprocess.PIPE, text=True)

    with replaybus.Server([QUEUE]) as server, server.client() as client:
        processes = [start(0), start(1)]
        feeding = Feeding(client, processes)
        feeding.until(lambda: together(tmp_path))
        processes[victim].kill()
        processes.pop(victim).communicate()
        before, other = len(rows(tmp_path, victim)), 1 - victim
        feeding.until(lambda: rows(tmp_path, other)[-1].learners == 1)  # it goes on alone, and leads
        alone = rows(tmp_path, other)[-1].step
        processes.insert(victim, start(victim))
        feeding.until(lambda: len(rows(tmp_path, victim)) > before + 5 and together(tmp_path) and check(tmp_path) > 2)
        for process in processes:
            process.terminate()
        leads = [process.communicate(timeout=60)[0].strip() for process in processes]
        assert [process.returncode for process in processes] == [0, 0]
        first = next(row for row in rows(tmp_path, victim)[before:] if row.learners == 2)
        assert first.step > alone and first.joins > 0  # it goes on from the state of the other; a late learner joins once more
        check(tmp_path)
        assert "True" in leads  # also both, if the second one went on alone for a moment
        steps = client.counter("learner_steps").value
        assert abs(steps - max(row.step for index in (0, 1) for row in rows(tmp_path, index))) <= 1
        assert weights.load(tmp_path / "learner.weights")["steps"][0] >= steps - 1


def test_what_share_needs(tmp_path):
    net = torch.nn.Linear(3, 1)
    adam = torch.optim.Adam(net.parameters())
    with replaybus.Server([QUEUE]) as server, replaybus.run.Learner(endpoint=server.endpoint, folder=tmp_path) as run:
        with pytest.raises(replaybus.InvalidArgument, match="keep"):
            run.share(adam)
        run.publishes(replaybus.torch.States(run.client, net=net).keep(adam=adam))
        with pytest.raises(replaybus.InvalidArgument, match="float32"):
            run.share(torch.optim.Adam([torch.zeros(1, dtype=torch.float64)]))
        group = run.share(adam)
        net(torch.ones(1, 3)).backward()
        assert group.mean() and group.join() and net.weight.grad.tolist() == [[1, 1, 1]]  # alone
