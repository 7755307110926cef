"""Ranks of data-parallel training: disjoint parts of one global batch with like numbers of steps.

Most tests run a rank on each thread; those with processes also train over torch.distributed.
"""
import concurrent.futures
import gc
import json
import socket
import subprocess
import sys

import numpy as np
import pytest

import replaybus
import replaybus.run
from test_packed import check, rows_of, write, write_two_widths

torch = pytest.importorskip("torch", reason="torch is missing: ./dev install gets python3-torch")
import replaybus.torch as rt  # noqa: E402
from replaybus.torch import ranks  # noqa: E402

TOKENS = 5000
GROUP = 4


def heavy(seed, n, most=2000):
    """Items whose lengths are 100 times apart: most are short, and some very long."""
    rng = np.random.default_rng(seed)
    lengths = np.clip(20 * (rng.pareto(1.1, n) + 1), 20, most).astype(int)
    return [rows_of(rng, int(length), i) for i, length in enumerate(lengths)]


class Arrays:
    """A batch of tensors as the arrays that check compares."""

    def __init__(self, batch):
        self.offsets, self.n = batch.offsets.numpy(), len(batch)
        self.packed, self.data, self.lengths = ({name: value.numpy() for name, value in form.items()}
                                                for form in (batch.packed, batch.data, batch.lengths))

    def __len__(self):
        return self.n


def check_tensors(batch, items, numbers):
    check(Arrays(batch), items, numbers)
    check(Arrays(batch.to("cpu")), items, numbers)


def numbers(batch):
    return batch.packed["tokens"][batch.offsets[:-1].long()].tolist()


def spread(loads):
    return (max(loads) - min(loads)) / max(loads)


@pytest.fixture(scope="module")
def server():
    tables = [replaybus.Table.queue("queue", 5000), replaybus.Table("replay", sampler="prioritized"),
              replaybus.Table("groups", sampler="fifo", max_times_sampled=1, limiter="queue", max_size=800, group=GROUP),
              replaybus.Table("fresh", sampler="fifo", max_times_sampled=1, max_lag=0, limiter={"kind": "lag", "batch": 16})]
    with replaybus.Server(tables) as server:
        yield server


def together(world, run):
    """Calls run(rank) on a thread for each rank. Returns what they return."""
    with concurrent.futures.ThreadPoolExecutor(world) as pool:
        return [future.result(timeout=120) for future in [pool.submit(run, rank) for rank in range(world)]]


def batches_of(client, world, table="queue", *args, **options):
    """All batches of each rank, until their end."""

    def run(rank):
        with rt.Sampler(client, table, *args, rank=rank, world=world, **options) as sampler:
            return list(sampler)

    return together(world, run)


def loads_of(sizes, owners):
    return np.bincount(np.concatenate(owners), np.concatenate(sizes), len(sizes))


@pytest.mark.parametrize("world", [2, 4, 8])
def test_division(world):
    """Even to 5 % where lengths allow it, and few items move."""
    rng = np.random.default_rng(world)
    for _ in range(50):
        sizes = [np.clip(20 * (rng.pareto(1.1, 128) + 1), 20, 2000).astype(int) for _ in range(world)]
        owners = ranks.divide(sizes)
        moved = sum(own[to != rank].sum() for rank, (own, to) in enumerate(zip(sizes, owners)))
        assert spread(loads_of(sizes, owners)) < 0.05 and moved < 0.3 * sum(own.sum() for own in sizes)


def test_a_unit_that_is_longer_than_the_mean_share_is_alone():
    rng = np.random.default_rng(1)
    sizes = [rng.integers(1, 50, 30) for _ in range(4)]
    sizes[2][5] = 10**6
    owners = ranks.divide(sizes)
    loads = loads_of(sizes, owners)
    alone = int(owners[2][5])
    assert loads[alone] == 10**6 and spread(np.delete(loads, alone)) < 0.05


def test_a_division_leaves_no_rank_empty_and_makes_no_share_larger():
    rng = np.random.default_rng(2)
    for _ in range(300):
        world = int(rng.integers(2, 7))
        sizes = [rng.integers(1, rng.choice([3, 300]), rng.integers(0, 5)) for _ in range(world)]
        loads, units = loads_of(sizes, ranks.divide(sizes)), sum(map(len, sizes))
        assert loads.sum() == sum(own.sum() for own in sizes) and (loads > 0).sum() == min(world, units), sizes
        if all(map(len, sizes)):
            assert loads.max() <= max(own.sum() for own in sizes)


def test_what_is_even_does_not_move():
    assert all((to == rank).all() for rank, to in enumerate(ranks.divide([np.full(5, 7), np.full(7, 5), np.array([35])])))


@pytest.mark.parametrize("world", [2, 4])
@pytest.mark.parametrize("tokens", [True, False], ids=["tokens", "items"])
def test_parts_are_disjoint_complete_and_even(client, world, tokens):
    items = heavy(world, 1600)
    keys = write(client, "queue", items)
    options = dict(tokens_per_batch=TOKENS) if tokens else {}
    parts = batches_of(client, world, "queue", 100, max_samples=1600 // world, **options)
    assert len({len(batches) for batches in parts}) == 1  # equally many for all
    seen = []
    for whole in zip(*parts):
        for batch in whole:
            check_tensors(batch, items, numbers(batch))
            assert batch.key.tolist() == [keys[i] for i in numbers(batch)]
            seen += numbers(batch)
        loads = [int(batch.offsets[-1]) for batch in whole]
        longest = max(int((batch.offsets[1:] - batch.offsets[:-1]).max()) for batch in whole if len(batch))
        if longest <= np.mean(loads) and sum(map(len, whole)) >= 16 * world:
            assert spread(loads) < 0.05, loads
        assert not tokens or max(loads) <= TOKENS
    assert sorted(seen) == list(range(1600))


def test_fewer_items_than_ranks(client):
    """Ranks without an item get an empty batch with all fields: all ranks make the same number of steps."""
    items = heavy(3, 2)
    write(client, "queue", items)

    def run(rank):
        with rt.Sampler(client, "queue", 2, rank=rank, world=4, max_samples=2) as sampler:
            if rank:
                sampler.stop()
            return list(sampler)

    parts = together(4, run)
    assert [len(batches) for batches in parts] == [1, 1, 1, 1] and sorted(len(batches[0]) for batches in parts) == [0, 0, 1, 1]
    for batch, in parts:
        assert batch.packed["deep"].shape == (sum(len(items[i]["tokens"]) for i in numbers(batch)), 2, 3)
        if numbers(batch):
            check_tensors(batch, items, numbers(batch))


def test_groups_stay_whole(client):
    rng, world = np.random.default_rng(4), 2
    with client.writer(keep_alive=600) as writer:
        for group in range(1, 41):
            for _ in range(GROUP):
                n = int(np.clip(20 * (rng.pareto(1.1) + 1), 20, 600))
                writer.set_group(group)
                writer.append_block({"tokens": np.full(n, group)}, None)
                writer.item("groups", 1.0, n)
                writer.end_episode(wait=False)
        writer.flush(timeout=60)
    parts = batches_of(client, world, "groups", 10 * GROUP, max_samples=20 * GROUP)
    seen = []
    for whole in zip(*parts):
        assert spread([int(batch.offsets[-1]) for batch in whole]) < 0.05
        for batch in whole:
            groups = batch.group.reshape(-1, GROUP)
            assert (groups == groups[:, :1]).all() and torch.equal(batch.packed["tokens"][batch.offsets[:-1].long()], batch.group)
            seen += groups[:, 0].tolist()
    assert sorted(seen) == list(range(1, 41))


def test_weights_are_those_of_the_global_batch(client):
    items = heavy(5, 60)
    keys = write(client, "replay", items)
    client.update("replay", keys, np.arange(1, 61))
    for whole in zip(*batches_of(client, 2, "replay", 30, beta=0.5, max_samples=150)):
        least = min(float(batch.probability.min()) for batch in whole)
        for batch in whole:
            check_tensors(batch, items, [keys.index(key) for key in batch.key.tolist()])
            assert np.allclose(batch.weight, (least / batch.probability) ** 0.5, rtol=1e-5)


def test_squeezed_items_and_a_device(client):
    """Items of one step are divided by their number. What is copied to a device is the part."""
    with client.writer() as writer:
        writer.append_block({"x": np.arange(90).reshape(30, 3), "flag": np.arange(30) % 2 == 0}, replaybus.Last(1, "queue"))

    def run(rank):
        with rt.Sampler(client, "queue", 10 + 10 * rank, rank=rank, world=2, squeeze=True, device="meta" if rank else None) as sampler:
            batch = sampler.next(60)
            return batch.data["x"].shape, len(batch)

    assert together(2, run) == [((15, 3), 15)] * 2


def test_a_rank_acknowledges_what_it_took(client):
    items = heavy(6, 40)
    write(client, "queue", items)

    def run(rank):
        with rt.Sampler(client, "queue", 20, rank=rank, world=2, ack=True) as sampler:
            batch = sampler.next(60)
            return batch.ack(), len(batch)

    changes = together(2, run)
    assert [(change.applied, change.missing) for change, _ in changes] == [(20, 0)] * 2 and sum(n for _, n in changes) == 40
    assert client.info("queue")["tables"][0]["size"] == 0


def test_no_rank_takes_ahead_what_another_needs(client):
    """Writers write 16 items for each version: a rank that asked for more than its 8 would leave the other one without, for ever."""
    written = 0

    def publish():
        nonlocal written
        writer.set_policy(client.params.put("policy", b"weights"))
        writer.append_block({"x": np.arange(written, written + 16)}, replaybus.Last(1, "fresh"))
        writer.flush(60)
        written += 16

    def run(rank):
        with rt.Sampler(client, "fresh", 8, rank=rank, world=2, squeeze=True) as sampler:
            got = []
            for _ in range(5):
                got += sampler.next(60).data["x"].tolist()
                if rank == 0:
                    publish()
            return got

    with client.writer() as writer:
        publish()
        parts = together(2, run)
    assert sorted(parts[0] + parts[1]) == list(range(80)) and len(parts[0]) == len(parts[1]) == 40


def test_fields_that_do_not_fit_into_one_array_stay(client):
    write_two_widths(client, 8)
    parts = batches_of(client, 2, "queue", 4, max_samples=4)
    seen = [batch.packed["x"][int(at), 0].item() for batches in parts for batch in batches for at in batch.offsets[:-1]]
    assert sorted(seen) == list(range(8))


def test_a_deadline_names_the_late_rank_and_loses_nothing(client):
    items = heavy(7, 40)
    write(client, "queue", items)

    def run(rank):
        with rt.Sampler(client, "queue", 20, rank=rank, world=2) as sampler:
            if rank == 0:
                for timeout in (0.0, 0.05, 0.05):
                    with pytest.raises(replaybus.DeadlineExceeded, match="waits for rank 1"):
                        sampler.next(timeout or 1)
                late.set_result(True)
            late.result(60)
            return numbers(sampler.next(60))

    late = concurrent.futures.Future()
    parts = together(2, run)
    assert sorted(parts[0] + parts[1]) == list(range(40))


def test_a_rank_that_has_closed(client):
    write(client, "queue", heavy(9, 100))

    def run(rank):
        with rt.Sampler(client, "queue", 10, rank=rank, world=3) as sampler:
            sampler.next(60)
            if rank < 2:
                for _ in range(2):
                    with pytest.raises(replaybus.FailedPrecondition, match="lost rank"):
                        while True:
                            sampler.next(60)

    together(3, run)
    assert client.info("queue")["tables"][0]["size"] >= 50  # who has lost a rank takes no more
    together(2, lambda rank: rt.Sampler(client, "queue", 10, rank=rank, world=2).close())  # others can meet there


def test_close_ends_a_call_that_waits(client):
    write(client, "queue", heavy(11, 40))
    made = together(2, lambda rank: rt.Sampler(client, "queue", 20, rank=rank, world=2))
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        waits = pool.submit(made[0].next)
        while client.info("queue")["tables"][0]["size"] == 40:
            pass  # it has not taken its share yet
        made[0].close()
        with pytest.raises(replaybus.Cancelled):
            waits.result(60)
    made[1].close()


def test_a_sampler_that_is_garbage_has_closed(client):
    write(client, "queue", heavy(12, 40))
    made = together(2, lambda rank: rt.Sampler(client, "queue", 20, rank=rank, world=2))
    del made[1]
    gc.collect()
    with pytest.raises(replaybus.FailedPrecondition, match="lost rank 1"):
        made[0].next(60)
    made[0].close()


def test_a_run_that_stops_does_not_miss_a_rank(client):
    class Gone:
        def next(self, timeout):
            run.stopped = stops
            raise replaybus.FailedPrecondition("rank 1 of 2 has lost rank 0")

    with replaybus.run.Learner(endpoint=client.endpoint, table="queue") as run:
        stops = False
        with pytest.raises(replaybus.FailedPrecondition):
            next(run.batches(Gone()))
        stops = True
        assert list(run.batches(Gone())) == []


def test_meetings(client, monkeypatch):
    """Ranks that do not fit are refused, strangers do no harm, and nobody waits for ever."""
    for rank, world in ((2, 2), (-1, 2), (0, 0)):
        with pytest.raises(replaybus.InvalidArgument, match="ranks count from 0"):
            rt.Sampler(client, "queue", 10, rank=rank, world=world)
    slot = ranks.SLOT.format("queue")
    client.params.put(slot, json.dumps(["127.0.0.1", 1, "secret"]).encode())  # of a run that is over
    before = client.params.get(slot).version

    def run(rank):
        if rank == 2:
            host, port, _ = json.loads(client.params.get(slot, before, 60).data)
            strangers = [socket.create_connection((host, port)) for _ in range(2)]
            for stranger, text in zip(strangers, (b"\xff" * 64, b"\x02\0\0\0\0\0\0\0[]")):
                stranger.sendall(text)
            with pytest.raises(replaybus.InvalidArgument, match="rank 2 of 3"):
                rt.Sampler(client, "queue", 10, rank=2, world=3)
            ready.set_result(True)
            return
        if rank == 1:
            ready.result(60)
        rt.Sampler(client, "queue", 10, rank=rank, world=2).close()

    ready = concurrent.futures.Future()
    together(3, run)
    monkeypatch.setattr(ranks, "_PATIENCE_S", 0.3)
    with pytest.raises(replaybus.DeadlineExceeded, match="for ranks 1, 2"):
        rt.Sampler(client, "queue", 10, rank=0, world=3)
    with pytest.raises(replaybus.DeadlineExceeded, match="rank 0"):
        rt.Sampler(client, "queue", 10, rank=1, world=3)


def test_workers_of_a_loader_are_no_ranks(client):
    dataset = rt.Dataset(client, "queue", 10, rank=0, world=2)
    with pytest.raises(Exception, match="num_workers=0"):
        next(iter(torch.utils.data.DataLoader(dataset, batch_size=None, num_workers=1)))


RANK = """
import sys
import torch, torch.distributed as dist
import replaybus, replaybus.torch as rt

endpoint, table, meeting, rank, world, n = *sys.argv[1:4], *map(int, sys.argv[4:])
if meeting:
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=world)
with replaybus.Client(endpoint) as client, rt.Sampler(client, table, 100, rank=rank, world=world, max_samples=n) as sampler:
    try:
        for batch in sampler:
            steps = [batch.offsets[-1:].long() for _ in range(world)]
            if meeting:
                dist.all_gather(steps, batch.offsets[-1:].long())
            print("steps", *map(int, steps), flush=True)
            print("keys", *batch.key.tolist(), flush=True)
    except replaybus.FailedPrecondition as error:
        sys.exit(f"{error}")
"""


def processes(client, world, *arguments):
    def start(rank):
        words = map(str, (*arguments[:2], rank, world, *arguments[2:]))
        return subprocess.Popen([sys.executable, "-c", RANK, client.endpoint, *words], text=True, stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE)

    return [start(rank) for rank in range(world)]


@pytest.mark.skipif(not (torch.distributed.is_available() and torch.distributed.is_gloo_available()), reason="this torch has no gloo")
@pytest.mark.parametrize("world", [2, 4])
def test_processes_that_train_together(client, tmp_path, world):
    keys = write(client, "queue", heavy(10 + world, 1200))
    started = processes(client, world, "queue", tmp_path / "meeting", 1200 // world)
    said = [process.communicate(timeout=120) for process in started]
    assert [process.returncode for process in started] == [0] * world, said
    lines = [line.split() for out, _ in said for line in out.splitlines()]
    assert sorted(int(key) for kind, *rest in lines if kind == "keys" for key in rest) == sorted(keys)
    steps = [list(map(int, rest)) for kind, *rest in lines if kind == "steps"]
    assert len(steps) == world * (1200 // world // 100) and max(map(spread, steps)) < 0.05


@pytest.mark.parametrize("victim", [0, 1])
def test_a_killed_rank_ends_the_others_with_a_sentence(client, victim):
    write(client, "replay", heavy(20, 300))
    started = processes(client, 3, "replay", "", 0)
    started[victim].stdout.readline()
    started[victim].kill()
    said = [process.communicate(timeout=60)[1] for process in started]
    for rank in {0, 1, 2} - {victim}:
        assert started[rank].returncode == 1 and f"rank {rank} of 3 has lost rank" in said[rank], said
