"""Batches as tensors: samplers, datasets, data loaders."""
import collections
import gc
import os
import pickle
import subprocess
import sys
import time

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is missing: ./dev install gets python3-torch")

import replaybus  # noqa: E402
import replaybus.torch as rt  # noqa: E402
from conftest import insert_rows, until  # noqa: E402
from replaybus.spaces import Box, Discrete  # noqa: E402

TorchStep = collections.namedtuple("TorchStep", "observation reward")
torch.set_num_threads(1)


def fill(client, table="uniform", n=200):
    obs = {"x": np.arange(n, dtype="float32").repeat(3).reshape(n, 3), "y": (np.zeros(n, "uint8"),)}
    insert_rows(client, table, obs=obs, n=np.arange(n))


def test_structure_and_shared_memory(client):
    fill(client)
    with rt.Sampler(client, "uniform", 16, max_samples=160) as sampler:
        batches = list(sampler)
    assert len(batches) == 10
    batch = batches[3]
    gc.collect()
    assert list(batch.data) == ["obs", "n"] and isinstance(batch.data["obs"]["y"], tuple)
    x = batch.data["obs"]["x"]
    assert x.shape == (16, 1, 3) and x.dtype == torch.float32 and torch.equal(x[:, 0, 0].long(), batch.data["n"][:, 0])
    assert x.data_ptr() == batch._batch.data["obs"]["x"].__array_interface__["data"][0]  # no copy
    assert len(batch) == 16 and batch.info["n"] == 16
    assert batch.lengths["n"].tolist() == [1] * 16


def test_values_per_item(client):
    fill(client, "replay")
    arrays = client.sampler("replay", 8, beta=0.5).next(60)
    batch = rt.Batch(arrays)
    assert batch.key.dtype == torch.int64 and batch.key.numpy().view("uint64").tolist() == arrays.key.tolist()
    for name, dtype in (("priority", torch.float64), ("probability", torch.float64), ("weight", torch.float32), ("age", torch.float64),
                        ("policy", torch.int64), ("step", torch.int64), ("times_sampled", torch.int64)):
        tensor = getattr(batch, name)
        assert tensor.dtype == dtype and tensor.tolist() == getattr(arrays, name).tolist()


def test_updater_takes_tensors(client):
    fill(client, "replay")
    batch = rt.Sampler(client, "replay", 8, distinct=True).next(60)
    errors = torch.arange(1.0, 9.0, requires_grad=True, dtype=torch.bfloat16)
    with client.updater("replay") as updater:
        updater.add(batch.key, errors)
        assert updater.flush(10).missing == 0
    with rt.Updater(client, "replay") as updater:
        for value in (2.5, [1.0] * 7 + [2.0], np.full(8, 3.0)):
            updater.add(batch.key, value)
            updater.flush(10)
            assert (np.asarray(client.fetch("replay", batch.key).priority) == value).all()
        with pytest.raises(ValueError, match="1 priorities for 8 keys"):
            updater.add(batch.key, [1.0])
    assert client.update("replay", batch.key, errors * 2).missing == 0
    assert sorted(client.fetch("replay", batch.key).priority) == [2.0 * i for i in range(1, 9)]


def test_element_types(client):
    values = {name: np.array([1, 2, 3], name) for name in ("bool", "int8", "int16", "int32", "int64", "uint8", "float16",
                                                           "float32", "float64", "complex64")}
    values["uint16"], values["uint32"] = np.array([1, 2, 65535], "uint16"), np.array([1, 2, 2**32 - 1], "uint32")
    values["uint64"] = np.array([1, 2, 2**63 - 1], "uint64")
    values["float32"] = torch.tensor([1.0, 2.0, 3.0], dtype=torch.bfloat16)
    bits = torch.tensor([1.5, -2.0, 3.0], dtype=torch.bfloat16)
    with client.writer({**values, "bf": replaybus.Field("bfloat16", (3,)), "float32": replaybus.Field("float32", (3,))}) as writer:
        for given in (bits, bits.view(torch.int16).numpy().view("uint16")):
            writer.append_block({name: value[None] for name, value in {**values, "bf": given}.items()})
            writer.item("uniform")
        for wrong, why in ((torch.ones(3, requires_grad=True), "column 'int8'.*requires grad"), (bits, "'int8' is int8, and the value is float32")):
            with pytest.raises((RuntimeError, ValueError), match=why):
                writer.append({**values, "bf": bits, "int8": wrong})
    for append in ("append", "append_block"):
        with client.writer() as writer:
            getattr(writer, append)({"x": torch.ones(2, 3, dtype=torch.bfloat16)})
            assert writer.columns["x"].dtype == "bfloat16"
        with client.writer() as writer, pytest.raises(RuntimeError, match="column 'x'.*requires grad"):
            getattr(writer, append)({"x": torch.ones(2, 3, requires_grad=True)})
    data = rt.Sampler(client, "uniform", 1).next(60).data
    assert torch.equal(data["bf"][0, 0], bits) and data["bf"].dtype == torch.bfloat16
    wider = {"uint16": torch.int32, "uint32": torch.int64, "uint64": torch.int64}
    for name, array in values.items():
        assert data[name][0, 0].tolist() == array.tolist()
        assert data[name].dtype == wider.get(name, getattr(torch, name, None))


def test_named_tuples_travel(client):
    with client.writer() as writer:
        writer.append_block(TorchStep(np.ones((9, 2), "float32"), np.ones(9)), item=replaybus.Last(1, "uniform"))
    batch = rt.Sampler(client, "uniform", 4).next(60)
    other = pickle.loads(pickle.dumps(batch))
    assert type(other.data) is TorchStep and torch.equal(other.data.observation, batch.data.observation)
    assert other.key.tolist() == batch.key.tolist() and other.info == batch.info and len(other) == 4
    moved = batch.to("cpu")
    assert type(moved.data) is TorchStep and moved.weight.tolist() == batch.weight.tolist()
    assert moved.block.numel() % 64 == 0 and moved.key.tolist() == batch.key.tolist() and moved.info == batch.info


def test_deadline_and_end(client):
    with rt.Sampler(client, "uniform", 4, timeout=0.2) as sampler:
        with pytest.raises(replaybus.DeadlineExceeded, match="uniform"):
            sampler.next(0.05)
        assert list(sampler) == []


def test_dataset_without_workers(client):
    fill(client)
    dataset = rt.Dataset(client, "uniform", 16, max_samples=100)
    assert sum(len(batch) for batch in dataset) == 100
    assert sum(len(batch) for batch in dataset) == 100  # again, from the start
    assert list(rt.Dataset(client.endpoint, "queue", 4, timeout=0.2)) == []
    assert len(next(iter(dataset))) == 16  # an early end


def loader(dataset, workers, **options):
    return torch.utils.data.DataLoader(dataset, batch_size=None, num_workers=workers, **options)


def test_loader_workers_share_the_samples(client):
    fill(client)
    batches = list(loader(rt.Dataset(client, "uniform", 16, max_samples=101), 2))
    assert sum(len(batch) for batch in batches) == 101  # 51 and 50
    assert sorted(len(batch) for batch in batches) == [2, 3] + [16] * 6
    x = batches[0].data["obs"]["x"]
    assert torch.equal(x[:, 0, 0].long(), batches[0].data["n"][:, 0]) and isinstance(batches[0].data["obs"]["y"], tuple)
    assert list(loader(rt.Dataset(client, "uniform", 16, max_samples=1), 2))[0].key.shape == (1,)  # a worker without a share


def test_loader_workers_read_a_queue_once(client):
    fill(client, "queue", 90)
    seen = torch.cat([batch.data["n"][:, 0] for batch in loader(rt.Dataset(client, "queue", 5, timeout=0.5, in_flight=1), 2)])
    assert sorted(seen.tolist()) == list(range(90))


def test_loader_early_break(client):
    fill(client)
    begun = time.monotonic()
    for _ in range(3):
        batches = iter(loader(rt.Dataset(client, "uniform", 16), 2))
        next(batches)
        del batches
    assert time.monotonic() - begun < 60
    fill(client)  # the parent's connection still works


def test_loader_with_a_device_in_a_worker_is_refused(client):
    with pytest.raises(replaybus.InvalidArgument, match="pin_memory=True to the DataLoader"):
        list(loader(rt.Dataset(client, "uniform", 16, device="cuda"), 1))


def test_torch_is_not_imported_unasked():
    code = "import sys, replaybus, replaybus.reverb, replaybus.weights; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=120).returncode == 0


def test_a_worker_ends_with_its_program(client):
    """Workers that wait for a table do not outlive a program that was killed."""
    code = f"""
import os, signal, sys, torch, replaybus.torch
loader = torch.utils.data.DataLoader(replaybus.torch.Dataset({client.endpoint!r}, 'needs', 4), batch_size=None, num_workers=1)
batches = iter(loader)
print(batches._workers[0].pid, flush=True)
import time; time.sleep(1)
os.kill(os.getpid(), signal.SIGKILL)
"""
    out = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, timeout=120)
    until(lambda: not os.path.exists(f"/proc/{int(out.stdout)}/exe"))


PAIR = Box(-np.inf, np.inf, (2,))


@pytest.mark.parametrize("options", [dict(n_step=2, prioritized=True, handle_timeout_termination=False), dict(n_envs=2)])
def test_replay_buffer(options):
    """The arrays of replaybus.ReplayBuffer as tensors."""
    batches, n = [], options.get("n_envs", 1)
    for cls in (rt.ReplayBuffer, replaybus.ReplayBuffer):
        with cls(50, PAIR, Discrete(3), seed=1, **options) as buffer:
            for t in range(40):
                rows, infos = np.array([[t, env] for env in range(n)], "float32"), [{"TimeLimit.truncated": t % 20 == 19} for _ in range(n)]
                buffer.add(rows, rows + 100, np.full(n, t % 3), rows[:, 0], np.full(n, t % 10 == 9), infos)
            buffer.update_priorities(buffer.sample(30).keys, torch.arange(30.0, requires_grad=True).bfloat16())
            batches.append(buffer.sample(30))
    assert batches[0]._fields[:5] == ("observations", "actions", "next_observations", "dones", "rewards")
    for name, tensor, array in zip(batches[0]._fields, *batches):
        assert isinstance(tensor, torch.Tensor), name
        assert name == "keys" or tensor.numpy().dtype == array.dtype and np.array_equal(tensor.numpy(), array), name
