"""Reverb's interface: tables, servers, and a client's inserts, samples and questions."""
import collections
import glob
import os
import pickle
import subprocess
import sys
import tempfile

import numpy as np
import pytest

import replaybus
import replaybus.reverb as reverb
from conftest import beside, emptied, in_child, reverb_table, served_reverb, until


spec = {"x": replaybus.Field("float32", (2,)), "a": reverb.TensorSpec([], np.int64)}


@pytest.fixture(scope="module")
def reverb_server():
    tables = [reverb_table(), reverb_table("fifo", reverb.selectors.Fifo()), reverb_table("lifo", reverb.selectors.Lifo()),
              reverb_table("min", reverb.selectors.MinHeap()), reverb_table("max", reverb.selectors.MaxHeap()),
              reverb_table("prioritized", reverb.selectors.Prioritized(1.0)), reverb.Table.queue("queue", 3),
              reverb.Table.stack("stack", 3), reverb_table("signed", signature=spec),
              reverb_table("texts", signature={"s": reverb.TensorSpec((), "S")})]
    with reverb.Server(tables) as server:
        server.tables = {each.name: each for each in tables}
        yield server


@pytest.fixture
def client(reverb_server):
    return emptied(reverb_server)


def values(client, table, n):
    return [float(steps[0].data[0]) for steps in client.sample(table, n)]


def test_insert_and_sample(client):
    client.insert({"b": np.float32(3), "a": np.arange(4)}, {"replay": 2.0})
    sample, = client.sample("replay", 1)
    assert len(sample) == 1 and isinstance(sample[0], reverb.ReplaySample)
    assert sample[0].data[0].tolist() == [0, 1, 2, 3] and sample[0].data[1] == 3  # in the order of the keys
    info = sample[0].info
    assert info.priority == 2 and info.probability == 1 and info.table_size == 1 and info.times_sampled == 1
    whole = next(client.sample("replay", emit_timesteps=False, unpack_as_table_signature=True))
    assert whole.data[0].shape == (1, 4) and whole.data[1].tolist() == [3]  # flat: the table has no signature
    assert whole.info.times_sampled == 2


Step = collections.namedtuple("Step", "observation reward")


@pytest.mark.parametrize("data", [1.5, [1.0, 2], (1, {"b": 2.0, "a": np.zeros((2, 3))}), Step(np.ones(2), 0.5),
                                  {"image": np.zeros((4, 4), np.uint8), "flags": [np.array([True, False]), (3,)]}])
def test_structures(client, data):
    client.insert(data, {"fifo": 1.0})
    sample = next(iter(reverb.TimestepDataset(client.server_address, "fifo", max_samples=1))).data
    if isinstance(data, (dict, tuple, list)):
        assert type(sample) is type(data)
    flat = next(client.sample("fifo"))[0].data
    for want, got, same in zip(leaves(data), leaves(sample), flat, strict=True):
        assert np.array_equal(want, got) and np.asarray(want).dtype == got.dtype and np.array_equal(got, same)


def leaves(value):
    if isinstance(value, dict):
        return [leaf for key in sorted(value) for leaf in leaves(value[key])]
    return [leaf for part in value for leaf in leaves(part)] if isinstance(value, (tuple, list)) else [value]


@pytest.mark.parametrize("data", ["text", b"bytes\0", "", np.array(["ab", "c", ""]), np.array([[b"x"], [b"yz"]]), "ü" * 1000,
                                  np.array(["a", None], object)[:1], np.zeros((2, 0), "S")])
def test_strings(client, data):
    client.insert({"s": data, "n": 1}, {"fifo": 1.0})
    number, got = next(client.sample("fifo"))[0].data
    want = np.array(data, dtype=object)
    encoded = [part.encode() if isinstance(part, str) else part for part in want.reshape(-1)]
    assert got.dtype == object and got.shape == want.shape and list(got.reshape(-1)) == encoded and number == 1


def test_empty_structures(client):
    """Such as a step's extras, which many programs leave empty."""
    Filled = collections.namedtuple("Filled", "observation extras")
    spec = Filled({"x": reverb.TensorSpec((), np.float64), "none": []}, ())
    with served_reverb(reverb_table(signature=spec)) as client:
        assert client.server_info()["replay"].signature == spec
        step = Filled({"x": 1.5, "none": []}, ())
        client.insert(step, {"replay": 1.0})
        got = next(client.sample("replay", unpack_as_table_signature=True))[0].data
        assert type(got) is Filled and got == step
        dataset = reverb.TimestepDataset.from_table_signature(client.server_address, "replay", 1)
        assert next(iter(dataset)).data == step and next(iter(dataset.batch(3))).data.extras == ()
        with client.trajectory_writer(1) as writer:
            writer.append(step)
            assert writer.history.extras == ()
            writer.append(step._replace(extras={"logits": 1.0}))
            assert len(writer.history.extras["logits"]) == 2
        with client.writer(1) as writer:
            writer.append(step)
            writer.create_item("replay", 1, 1.0)


def test_strings_of_a_signature(client):
    client.insert({"s": "one"}, {"texts": 1.0})
    for bad in ({"s": 1}, {"s": np.array(["one"])}):
        with pytest.raises(ValueError, match="signature"):
            client.insert(bad, {"texts": 1.0})
    assert client.server_info()["texts"].signature == {"s": reverb.TensorSpec((), object)}
    assert next(client.sample("texts", unpack_as_table_signature=True))[0].data["s"] == b"one"


@pytest.mark.parametrize("shape", [(0,), (0, 3), (2, 0, 5)])
@pytest.mark.parametrize("more", [{}, {"t": 1, "texts": np.zeros(0, "S")}])
def test_arrays_without_elements(client, shape, more):
    with client.trajectory_writer(3) as writer:
        for t in range(3):
            writer.append({"none": np.zeros(shape, np.float32), **more})
        writer.create_item("fifo", 1.0, {"all": writer.history["none"][:], "last": writer.history["none"][-1]})
    every, last = next(client.sample("fifo", emit_timesteps=False)).data
    assert every.shape == (3, *shape) and last.shape == shape and last.dtype == every.dtype == np.float32


def test_several_tables(client):
    client.insert(1.0, {"fifo": 1.0, "lifo": 2.0})
    info = client.server_info()
    assert info["fifo"].current_size == info["lifo"].current_size == 1
    with pytest.raises(reverb.ReverbError):
        client.insert(1.0, {"no such table": 1.0})
    with pytest.raises(ValueError):
        client.insert(1.0, {})
    client.insert(2.0, {"fifo": 1.0})  # the client works after a refused item
    assert client.server_info()["fifo"].current_size == 2


def test_what_cannot_be_inserted(client):
    with pytest.raises(ValueError):
        client.insert({"a": None}, {"replay": 1.0})
    for value in ({}, [], {"a": ()}):
        with pytest.raises(ValueError):
            client.insert(value, {"replay": 1.0})
        with client.trajectory_writer(1) as writer, pytest.raises(ValueError):
            writer.append(value)
    for value in (object(), np.array([{}]), np.datetime64("2026-01-01")):
        with pytest.raises(ValueError):
            client.insert(value, {"replay": 1.0})
        with client.trajectory_writer(1) as writer, pytest.raises(ValueError):
            writer.append({"x": value, "y": 1})
    with pytest.raises(TypeError):
        client.insert({1: 2.0}, {"replay": 1.0})
    assert client.server_info()["replay"].current_size == 0


def test_insert_in_a_forked_child(client):
    client.insert(1.0, {"replay": 1.0})
    assert in_child(lambda: client.insert(2.0, {"replay": 1.0})) is None and client.server_info()["replay"].current_size == 2


def test_selectors(client):
    for name in ("fifo", "lifo", "min", "max"):
        for value, priority in ((1.0, 5.0), (2.0, 1.0), (3.0, 9.0)):
            client.insert(value, {name: priority})
    assert values(client, "fifo", 1) == [1] and values(client, "lifo", 1) == [3]
    assert values(client, "min", 1) == [2] and values(client, "max", 1) == [3]


def test_queue_and_stack(client):
    for value in (1.0, 2.0, 3.0):
        client.insert(value, {"queue": 1.0, "stack": 1.0})
    with beside(lambda: client.insert(4.0, {"queue": 1.0})) as (waiting,):
        until(lambda: client.server_info()["queue"].rate_limiter_info.insert_stats.pending)
        client.insert(5.0, {"replay": 1.0})  # which does not wait for the other thread
        assert waiting.is_alive() and values(client, "queue", 4) == [1, 2, 3, 4] and values(client, "stack", 3) == [3, 2, 1]
    assert client.server_info()["queue"].current_size == 0


def test_mutate_priorities(client):
    for value in (1.0, 2.0):
        client.insert(value, {"max": value})
    keys = {float(s[0].data[0]): s[0].info.key for s in client.sample("max", 1)}
    client.mutate_priorities("max", updates={keys[2.0]: 0.5, 12345: 1.0})
    assert values(client, "max", 1) == [1]
    client.mutate_priorities("max", deletes=[keys[2.0], 12345])
    assert client.server_info()["max"].current_size == 1
    client.mutate_priorities("max")
    with pytest.raises(ValueError):
        client.mutate_priorities("max", updates={next(client.sample("max"))[0].info.key: float("nan")})
    with pytest.raises(ValueError):
        values(client, "max", 0)


def test_signature(client):
    good = {"x": np.zeros(2, np.float32), "a": 1}
    client.insert(good, {"signed": 1.0})
    for bad in ({"x": np.zeros(3, np.float32), "a": 1}, {"x": np.zeros(2), "a": 1}, {"x": good["x"]}, 1.0):
        with pytest.raises(ValueError, match="signature"):
            client.insert(bad, {"signed": 1.0})
    assert client.server_info()["signed"].signature == spec
    assert next(client.sample("signed", unpack_as_table_signature=True))[0].data["a"] == 1
    client.insert([1, good["x"]], {"signed": 1.0})  # names do not count


def test_specs():
    assert reverb.TensorSpec((None, 2), "float32") == replaybus.Field("float32", (None, 2)) != reverb.TensorSpec((2,))
    assert reverb.TensorSpec((), int, "a") == reverb.TensorSpec([], np.int64) != reverb.TensorSpec((), np.int32)
    assert reverb.TensorSpec((), int, "a") != reverb.TensorSpec((), int, "b") and reverb.TensorSpec(()) != "text"


def test_infos(client, reverb_server):
    client.insert(1.0, {"prioritized": 1.0})
    values(client, "prioritized", 3)
    info = reverb_server.tables["prioritized"].info
    assert info.name == "prioritized" and info.current_size == 1 and info.max_size == 100
    assert info.rate_limiter_info.insert_stats.completed == 1 and info.rate_limiter_info.sample_stats.completed == 3
    assert (info.num_unique_samples, info.num_episodes, info.num_deleted_episodes) == (1, 1, 0)
    assert info.sampler_options.prioritized.priority_exponent == 1 and info.remover_options.fifo
    assert client.server_info()["min"].sampler_options.HasField("heap")
    assert client.server_info()["min"].sampler_options.heap.min_heap
    assert not client.server_info()["max"].sampler_options.heap.min_heap
    assert reverb_server.tables["prioritized"].can_sample(5) and not reverb_server.tables["fifo"].can_sample(1)
    queue = reverb_server.tables["queue"]
    assert queue.can_insert(3) and not queue.can_insert(4)
    copy = queue.replace(name="other", max_size=7)
    assert copy.name == "other" and copy.info.max_size == 7 and copy.info.current_size == 0


@pytest.mark.parametrize("mode", ["thread", "process"])
def test_a_folder_of_its_own(mode):
    """It stays if somebody has asked for a checkpoint, and so knows it."""
    folders = lambda: set(glob.glob(os.path.join(tempfile.gettempdir(), "replaybus-checkpoint-*")))  # noqa: E731
    before = folders()
    with reverb.Server([reverb.Table.queue("queue", 10)], mode=mode) as server:
        reverb.Client(f"localhost:{server.port}").insert([1.0], {"queue": 1.0})
        assert len(folders() - before) == 1
        with pytest.raises(Exception):
            reverb.Server([reverb.Table.queue("queue", 10)], port=server.port, mode=mode)
        assert len(folders() - before) == 1
    assert folders() == before
    program = f"import replaybus.reverb as reverb; server = reverb.Server([reverb.Table.queue('queue', 10)], mode={mode!r})"
    subprocess.run([sys.executable, "-c", program], check=True)
    assert folders() == before
    with reverb.Server([reverb.Table.queue("queue", 10)], mode=mode) as server:
        client = reverb.Client(f"localhost:{server.port}")
        client.insert([1.0], {"queue": 1.0})
        folder = client.checkpoint()
    assert folders() - before == {folder}
    with reverb.Server([reverb.Table.queue("queue", 10)], checkpointer=reverb.checkpointers.DefaultCheckpointer(folder)) as server:
        assert server.localhost_client().server_info()["queue"].current_size == 1


def test_the_folder_of_a_checkpoint_of_shards(tmp_path):
    folder = tmp_path
    for expected in range(2):
        with served_reverb(reverb_table(), checkpointer=reverb.checkpointers.DefaultCheckpointer(str(folder)), mode="process",
                           config={"shards": 2}) as client:
            assert client.server_info()["replay"].current_size == expected
            client.insert(1.0, {"replay": 1.0})
            folder = client.checkpoint()


def test_what_a_table_keeps_of_its_signature():
    names = {f"a_name_of_some_length_{i}": reverb.TensorSpec((), "float32") for i in range(5000)}
    with pytest.raises(ValueError, match="signature"):
        reverb_table(signature=names)
    many = dict(list(names.items())[:500])
    with served_reverb(reverb_table(signature=many), reverb_table("plain", sampler=reverb.selectors.Fifo())) as client:
        assert client.server_info()["replay"].signature == many
        assert client.native.metadata("plain") == ""  # metadata that a file has for the table stays


def test_restart_from_checkpoint(tmp_path):
    """Also from the folder of another server."""
    one, two = (str(tmp_path / name) for name in ("one", "two"))
    for first, folder, fallback in ((True, one, None), (False, one, None), (False, two, one)):
        checkpointer = reverb.checkpointers.DefaultCheckpointer(folder, fallback_checkpoint_path=fallback)
        with served_reverb(reverb_table(), checkpointer=checkpointer) as client:
            if first:
                client.insert(7.0, {"replay": 3.0})
                assert client.checkpoint() == folder
            sample, = client.sample("replay")
            assert (float(sample[0].data[0]), sample[0].info.priority) == (7, 3)


def test_journal_and_host(tmp_path):
    for expected in (0, 1):
        with served_reverb(reverb_table(), checkpointer=reverb.checkpointers.DefaultCheckpointer(str(tmp_path)), journal=True,
                           host="0.0.0.0", config={"memory_limit": "64MiB", "security": {"mode": "none"}}) as client:
            assert client.server_info()["replay"].current_size == expected
            client.insert(1.0, {"replay": 1.0})


def test_servers(client):
    with pytest.raises(ValueError):
        reverb.Server([])
    with pytest.raises(ValueError):
        reverb.Server([reverb_table(), reverb_table()])
    with reverb.Server([reverb_table()], mode="process") as server, beside(server.wait):
        server.localhost_client().insert(1.0, {"replay": 1.0})
        server.stop()
    copy = pickle.loads(pickle.dumps(client))
    assert copy.server_address == client.server_address and "replay" in copy.server_info(timeout=60)
    with pytest.raises(ValueError):
        reverb.Client("nonsense")


def test_rate_limiters():
    for limiter in (lambda: reverb.rate_limiters.MinSize(0), lambda: reverb.rate_limiters.SampleToInsertRatio(0, 1, 5),
                    lambda: reverb.rate_limiters.SampleToInsertRatio(4, 1, 3.9),
                    lambda: reverb.rate_limiters.SampleToInsertRatio(1, 1, (5, 10)),
                    lambda: reverb.selectors.Prioritized(-1)):
        with pytest.raises(ValueError):
            limiter()
    ratio = reverb.rate_limiters.SampleToInsertRatio(2, 10, 4)
    assert (ratio.min_diff, ratio.max_diff) == (16, 24)
    pair = reverb.rate_limiters.SampleToInsertRatio(2, 10, [0, 50])
    assert (pair.min_diff, pair.max_diff) == (0, 50)


def test_a_broker_of_another_module_has_no_signatures():
    with replaybus.Server([replaybus.Table("replay", metadata="of the program")], mode="thread") as server:
        client = reverb.Client(server.endpoint.removeprefix("tcp://"))
        assert client.server_info()["replay"].signature is None and client.signature("replay") is None
        assert client.server_info()["replay"].sampler_options.uniform


def test_the_first_call_of_a_client_knows_the_signature(client):
    client.insert({"x": np.zeros(2, np.float32), "a": 1}, {"signed": 1.0})
    for _ in range(5):
        fresh = reverb.Client(client.server_address)
        assert next(fresh.sample("signed", unpack_as_table_signature=True))[0].data["a"] == 1
        assert reverb.Client(client.server_address).signature("signed") == spec


def test_unknown_tables(client):
    for call in (lambda: next(client.sample("nothing")), lambda: client.reset("nothing"),
                 lambda: client.mutate_priorities("nothing", updates={1: 1.0}),
                 lambda: next(iter(reverb.TrajectoryDataset(client.server_address, "nothing")))):
        with pytest.raises(reverb.ReverbError, match="nothing"):
            call()


def test_a_table_after_its_server():
    replay = reverb_table()
    server = reverb.Server([replay])
    assert replay.info.current_size == 0
    server.stop()
    with pytest.raises(reverb.ReverbError, match="the server of table 'replay' has stopped"):
        replay.info
