"""The client's questions, servers, errors, and keys."""
import asyncio
import concurrent.futures
import contextlib
import os
import pickle
import subprocess
import sys

import numpy as np
import pytest

import replaybus
from conftest import fill, insert_rows, served, until
from replaybus import Field
from replaybus.statistics import Statistics


def test_params(client):
    with pytest.raises(replaybus.DeadlineExceeded):
        client.params.get("never", timeout=0)
    with pytest.raises(KeyError, match="has no version yet"):
        client.params["never"]
    assert "never" not in client.params
    first = client.params.put("policy", b"one")
    client.params["policy"] = bytearray(b"two")
    param = client.params["policy"]
    assert param.data == b"two" and param.version == first + 1 and param.age >= 0
    with pytest.raises(TimeoutError):
        client.params.get("policy", have=param.version, timeout=0.1)
    client.params["policy"] = b""
    assert client.params["policy"].data == b""
    with pytest.raises(TypeError):
        client.params["policy"] = 3
    with replaybus.Client(client.endpoint) as fresh:  # which is not connected yet
        assert "policy" in fresh.params
    with replaybus.Client(client.endpoint) as fresh:
        assert fresh.params["policy"].data == b""


def test_info(client):
    info = client.info()
    assert [table["name"] for table in info["tables"]] == client.tables
    assert len(client.info("replay")["tables"]) == 1
    with client.writer({"x": 1.0}):
        assert client.info(sessions=True)["sessions"]
    assert client.state()["connected"] and client.state()["release"] == replaybus.__version__
    with pytest.raises(replaybus.NotFound, match="reply"):
        client.info("reply")


def test_signature(client):
    assert client.signature("replay") is None
    assert client.signature("strict") == {"x": Field("float32", (1,))}
    with client.writer(keep_alive=3) as writer:
        for _ in range(3):
            writer.append({"obs": (np.zeros((2, 2), "uint8"), np.float32(0)), "done": False})
        obs, done = writer.columns["obs"], writer.columns["done"]
        writer.item("replay", 1.0, {"obs": (obs[0][-3:-1], obs[1][-1]), "done": done[-2:]})
    assert client.signature("replay") == {"obs": (Field("uint8", (2, 2, 2)), Field("float32")), "done": Field("bool", (None,))}
    with client.writer() as writer:
        writer.append(np.zeros(3))
        writer.item("replay")
    assert client.signature("replay") == Field("float64", (None, 3))
    client.reset("replay")
    assert client.signature("replay") is None


@pytest.mark.parametrize("mode", ["process", "thread"])
def test_metadata(tmp_path, mode):
    text = 'json: {"a": [1, null]}\n\t\x01\x85\u2028 é \U0001F600 # - \'"' + "m" * 60_000
    with replaybus.Server([replaybus.Table("a", metadata=text), replaybus.Table.queue("b", 5)], mode=mode,
                          checkpoint=tmp_path) as server, server.client() as client:
        assert client.metadata("a") == text and client.metadata("b") == ""
        with pytest.raises(replaybus.NotFound):
            client.metadata("c")
        client.checkpoint()
    with replaybus.Server([replaybus.Table("a"), replaybus.Table("b", metadata="x")], mode=mode,
                          checkpoint=tmp_path) as server, server.client() as client:
        assert client.metadata("a") == text and client.metadata("b") == "x"
    with pytest.raises(replaybus.InvalidArgument, match="metadata"):
        replaybus.Server([replaybus.Table("a", metadata="m" * 65_537)], mode=mode)


def test_limiter(client):
    limiter = client.limiter("needs")
    assert limiter["min_size"] == 1_000_000
    assert client.limiter("needs", min_size=10)["min_size"] == 10
    assert "is paused" in client.limiter("needs", paused=True)["inserts_wait"]
    assert not client.limiter("needs", paused=False)["inserts_wait"]
    assert client.limiter("needs", min_size=1_000_000)["min_size"] == 1_000_000
    with pytest.raises(replaybus.Error):
        client.limiter("needs", min_size=-5)


def test_why_reset_checkpoint(client):
    assert client.why()["waits"] == []
    client.insert({"x": 1.0}, {"replay": 1.0})
    assert client.info("replay")["tables"][0]["size"] == 1
    first = client.checkpoint()
    assert first.items == 1 and first.number > 0 and first.seconds > 0 and os.path.isdir(first.folder)
    client.reset("replay")
    assert client.info("replay")["tables"][0]["size"] == 0
    with pytest.raises(KeyError):
        client.reset("reply")


def test_pickle(client):
    copy = pickle.loads(pickle.dumps(client))
    assert copy.endpoint == client.endpoint and copy.timeout == client.timeout and copy.tables == client.tables


def test_no_broker():
    client = replaybus.Client("tcp://127.0.0.1:1", timeout=0.2)  # connects only when it is used
    with pytest.raises(replaybus.Unavailable) as failure:
        client.info()
    assert isinstance(failure.value, ConnectionError) and str(failure.value)
    with pytest.raises(replaybus.InvalidArgument):
        replaybus.Client("nonsense://", timeout=1).info()


@pytest.mark.parametrize("mode", ["process", "thread"])
def test_server_keeps_its_data(tmp_path, mode):
    for expected in (0, 1):
        with replaybus.Server([replaybus.Table("t")], mode=mode, journal=tmp_path) as server, server.client() as client:
            assert client.info()["tables"][0]["size"] == expected
            client.insert(1.0, {"t": 1.0})
        assert mode == "thread" or server.process.poll() == 0


@pytest.mark.parametrize("shards", [1, 2])
def test_items_of_a_table_are_dropped_only_by_the_word(tmp_path, shards, caplog):
    def served_again(name, **config):
        return served(replaybus.Table(name), journal=tmp_path, shards=shards, config=config)

    with served_again("replay") as client:
        fill(client, n=10)
    with pytest.raises(replaybus.Unavailable, match=rf"{tmp_path}.*table 'replay' has \d+ items and is not configured.*drop_tables"):
        served_again("reply").__enter__()
    with served_again("replay") as client:
        assert client.info("replay")["tables"][0]["size"] == 10
    with served_again("reply", checkpoint={"load": "drop_tables"}) as client:
        assert client.tables == ["reply"] and {message[:5] for message in caplog.messages} == {"B0514"}
    with served_again("replay") as client:  # without the word: an empty table may go
        assert client.info("replay")["tables"][0]["size"] == 0


@pytest.mark.parametrize("missing", [False, True])
def test_salvage_drops_the_items_whose_data_is_lost(tmp_path, missing):
    def served_again(**config):
        return served(replaybus.Table("replay"), replaybus.Table.queue("queue", 99), replaybus.Table.queue("taken", 99),
                      journal=tmp_path, config=config)

    def write(client, rows):
        with client.writer(keep_alive=2, chunk_length=1) as writer:
            for i, row in enumerate(rows):
                writer.append(row), writer.item("replay", 1.0, min(i + 1, 2)), writer.item("queue"), writer.item("taken")

    rows = np.random.default_rng(1).integers(0, 2**62, (30, 50))
    with served_again() as client:
        write(client, rows[:20])
        client.checkpoint()
        leased = client.sampler("queue", 9, ack=True, lease=600).next(60)
        taken = client.sample("taken", 9)  # the broker keeps the reply
        client._server.process.kill()
    del leased, taken
    (segment,) = tmp_path.glob("segment-*")
    data = segment.read_bytes()
    at = data.index(rows[7].tobytes())
    segment.unlink() if missing else segment.write_bytes(data[:at] + b"\xff" * 8 + data[at + 8:])
    with pytest.raises(replaybus.Unavailable, match="chunk.*checkpoint.load: salvage"):
        served_again().__enter__()
    left = (0, 0, 0) if missing else (18, 19, 11)
    with served_again(checkpoint={"load": "salvage"}) as client:
        assert tuple(table["size"] for table in client.info()["tables"]) == left
        write(client, rows[20:])
        until(lambda: [*tmp_path.glob("checkpoint-*2.replay")])  # what it has dropped is not in the files any more
        client._server.process.kill()
    with served_again() as client:  # what was dropped is gone, and its places are not taken for others
        assert tuple(table["size"] for table in client.info()["tables"]) == tuple(n + 10 for n in left)
        assert set(client.sample("replay", 500).data[:, 0, 0]) <= set(rows[np.arange(30) != 7, 0])


def test_a_segment_that_somebody_removes_is_written_again(tmp_path):
    with served(replaybus.Table("t"), journal=tmp_path, config={"journal": "0s"}) as client:
        for n in (20, 40):
            insert_rows(client, "t", x=np.random.rand(20, 9))
            [segment.unlink() for segment in tmp_path.glob("segment-*") if n == 20]
        until(lambda: "B0502" in client._server.log())
        client._server.process.kill()
    with served(replaybus.Table("t"), journal=tmp_path) as client:
        assert client.info("t")["tables"][0]["size"] == n


def test_a_sample_says_that_memory_is_full_of_another_table():
    demo = replaybus.Table("demo", limiter={"kind": "min_size", "min_size": 50})
    with served(replaybus.Table("replay"), demo, config={"memory_limit": "8MiB"}) as client:
        for table in ("replay", "demo"):
            insert_rows(client, table, x=np.random.rand(300, 5000))
        with pytest.raises(replaybus.DeadlineExceeded, match=r"needs 49 more inserts: .*; 299 of its items were evicted .*'replay'"):
            client.sample("demo", 1, timeout=0)


def test_server_says_what_is_wrong():
    for mode in ("process", "thread"):
        with pytest.raises(replaybus.InvalidArgument, match="max_sise"):
            replaybus.Server([{**replaybus.Table("t"), "max_sise": 3}], mode=mode)
        with pytest.raises(replaybus.InvalidArgument, match=r"^tables\[0\].remover: no selector 'lru': there are fifo, .*prioritized\Z"):
            replaybus.Server([replaybus.Table("t", remover="lru")], mode=mode)
    with pytest.raises(replaybus.InvalidArgument, match="mode"):
        replaybus.Server([replaybus.Table("t")], mode="quantum")


@pytest.mark.parametrize("cls", replaybus.errors.BY_STATUS[1:], ids=lambda cls: cls.__name__)
def test_every_error(cls):
    error = cls("a sentence")
    assert isinstance(error, replaybus.Error) and str(error) == "a sentence" and error.text == "a sentence"
    assert replaybus.errors.BY_STATUS[error.status] is cls
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is cls and str(copy) == "a sentence"
    base = {"InvalidArgument": ValueError, "NotFound": KeyError, "DeadlineExceeded": TimeoutError}.get(cls.__name__, Exception)
    assert isinstance(error, base)


def test_without_numpy():
    out = subprocess.run([sys.executable, "-c", "import sys; sys.modules['numpy'] = None; import replaybus"], capture_output=True,
                         text=True, timeout=120)
    assert out.returncode == 1 and "pip install numpy" in out.stderr and sys.executable in out.stderr


def test_self_test():
    out = subprocess.run([sys.executable, "-m", "replaybus"], capture_output=True, text=True, timeout=120)
    assert out.returncode == 0, out.stderr
    assert replaybus.__version__ in out.stdout and "self-test" in out.stdout


def test_mistakes_have_sentences(server, client):
    with pytest.raises(TypeError, match=r"Server\(\[Table"):
        replaybus.Server(replaybus.Table("t"))
    with pytest.raises(TypeError, match="max_sise"):
        replaybus.Table("replay", max_sise=3)
    with pytest.raises(TypeError, match="a server cannot be pickled"):
        pickle.dumps(server)
    for call, why in ((lambda: pickle.dumps(client.writer()), "Writer: .* pickle its client"), (lambda: client.params[3], "slot or counter is a str, not 3"),
                      (lambda: client.params.put("a", {"w": 1}), "weights.encode"), (lambda: client.params.put("a", np.array(None)), "weights.encode"),
                      (lambda: client.sampler("replay", beta="a"), "beta is a number"),
                      (lambda: client.insert({"x": 1.0}, ["replay"]), "priorities is a dict"), (lambda: client.info(timeout="a"), "timeout is None or")):
        with pytest.raises(TypeError, match=why):
            call()
    assert client.params.put("named", b"") and "named" in list(client.params)
    for endpoint in ("localhost:7600", "7600"):
        with pytest.raises(ValueError, match="tcp://HOST:PORT"):
            replaybus.Client(endpoint)
    with pytest.raises(TypeError, match="7600"):
        replaybus.Client(7600)


def test_repr_names_what_it_is(server, client):
    with client.writer() as writer, client.sampler("uniform", 2) as sampler, client.updater("uniform") as updater:
        assert repr(writer) == "<replaybus.Writer: no steps yet>"
        writer.append({"x": 1.0})
        writer.item("uniform")
        assert repr(writer) == "<replaybus.Writer: 1 steps of this episode, columns x>"
        assert repr(sampler.next(60)) == "<replaybus.Batch: 2 items, x float64 (2, 1)>"
        assert "uniform" in repr(sampler) and "uniform" in repr(updater)
        with client.vector_writer(2) as vector:
            assert "2 streams" in repr(vector)
    assert "closed" in repr(writer) and "closed" in repr(sampler)
    assert server.running and "running" in repr(server) and server.endpoint in repr(server)
    assert "jobs" in repr(client.counter("jobs")) and server.endpoint in repr(client.params)
    other = server.client()
    assert repr(other) == f"Client({server.endpoint!r})"
    other.close()
    assert "closed" in repr(other)


@pytest.mark.parametrize("count", [-1, 2**32, 2**32 + 1, 2**64 + 1])
def test_counts_are_not_cut_off(client, count):
    for options in ({"batch": count}, {"in_flight": count}):
        with pytest.raises(replaybus.InvalidArgument):
            client.updater("uniform", **options)


def test_one_shots(client):
    for t in range(5):
        client.insert({"obs": np.full(3, t, "float32"), "more": (t, [1.0, 2.0])}, {"replay": t + 1.0, "uniform": 1.0})
    batch = client.sample("replay", 20, beta=1.0)
    assert batch["obs"].shape == (20, 3) and batch["more"][0].shape == (20,) and batch["more"][1].shape == (20, 2)
    assert np.array_equal(batch.priority, batch["obs"][:, 0] + 1) and batch.weight.max() == 1
    client.reset("uniform")
    client.insert(np.arange(2.0), {"uniform": 1.0})  # another structure
    assert len(client.sample("uniform", 3)) == 3
    with pytest.raises(replaybus.DeadlineExceeded, match="more inserts"):
        client.sample("queue", 2, timeout=0.2)
    with pytest.raises(replaybus.NotFound):
        client.insert({"x": 1.0}, {"nowhere": 1.0})
    with concurrent.futures.ThreadPoolExecutor() as pool:  # a sample that waits holds nobody up
        waits = pool.submit(client.sample, "queue", 1, timeout=60)
        client.insert({"x": 1.0}, {"queue": 1.0}, timeout=30)
        assert waits.result(60)["x"].tolist() == [1.0]
    for n in range(1, 12):
        assert len(client.sample("replay", n)) == n
    assert len(client._kept) == 8
    client.close()
    with pytest.raises(replaybus.FailedPrecondition):
        client.sample("replay", 2)


def test_squeeze_and_seed(client):
    with client.writer() as writer:
        for t in range(50):
            writer.append({"x": float(t)})
            writer.item("uniform")
            writer.item("replay", t + 1.0)
    for table in ("uniform", "replay"):
        runs = [[client.sample(table, 8, squeeze=True, seed=seed)["x"].tobytes() for seed in (3, 4)] for _ in range(2)]
        assert runs[0] == runs[1] and runs[0][0] != runs[0][1]
        runs = []
        for _ in range(2):
            with client.sampler(table, 8, in_flight=0, squeeze=True, seed=3) as sampler:
                runs.append([sampler.next(60)["x"].tobytes() for _ in range(5)])
        assert runs[0] == runs[1] and len(set(runs[0])) == 5
        seen = []
        for seed in (*range(4), -1, np.int64(9)):
            with client.sampler(table, 8, in_flight=0, seed=seed) as sampler:
                seen += [sampler.next(60)["x"].tobytes() for _ in range(3)]
        assert len(set(seen)) == len(seen)
    assert client.sample("uniform", 4)["x"].shape == (4, 1) and client.sample("uniform", 4, squeeze=True)["x"].shape == (4,)
    client.reset("uniform")
    client.insert({"y": 1.0}, {"uniform": 1.0})
    with pytest.raises(replaybus.InvalidArgument, match="'y'"):
        client.sample("uniform", 4, squeeze=True).data


def test_signatures_and_numbers_of_numpy():
    given = {"x": Field("float32", (2,)), "y": (Field("int64"), Field("uint8", (None, 3)))}
    sampler = {"kind": "prioritized", "exponent": np.float32(0.5)}
    with served(replaybus.Table("t", signature=given, max_size=np.int64(10), sampler=sampler, group=np.int64(2))) as client:
        assert client.signature("t") == given and client.info("t")["tables"][0]["max_size"] == 10
        with pytest.raises(replaybus.InvalidArgument, match="wants 3"):
            client.insert({"x": np.zeros(2, "float32")}, {"t": 1.0})
        again = replaybus.Table("t", signature=client.signature("t"))
    assert again["signature"] == {"x": ["float32", 2], "y/(0)": ["int64"], "y/(1)": ["uint8", 0, 3]}


def test_an_insert_that_fails_inserts_nothing_but_one_that_timed_out_may_come_in_later():
    with served(replaybus.Table.queue("q", 1)) as client:
        with pytest.raises(replaybus.NotFound, match="no table 'missing': the broker has 'q'"):
            client.insert({"x": 2.0}, {"q": 1.0, "missing": 1.0})
        for x, timeout in ((0.0, 60), (1.0, 0.2)):
            with pytest.raises(replaybus.DeadlineExceeded) if x else contextlib.nullcontext():
                client.insert({"x": x}, {"q": 1.0}, timeout=timeout)
        assert [client.sample("q", 1)["x"].tolist() for _ in range(2)] == [[0.0], [1.0]]


@pytest.mark.parametrize("shards, options, first", [(1, {"tokens_per_batch": 100}, 5), (2, {"whole": True}, 0)])
def test_a_sample_that_timed_out_loses_nothing(shards, options, first):
    with served(replaybus.Table.queue("q", 100), shards=shards) as client:
        for n, wanted, timeout in ((5, first, 0.4), (7, 12 - first, 0.4 if first else 30)):
            for _ in range(n):
                client.insert({"x": 1.0}, {"q": 1.0})
            with contextlib.nullcontext() if wanted else pytest.raises(replaybus.DeadlineExceeded):
                assert len(client.sample("q", 12, timeout=timeout, **options)) == wanted


def test_async(client):
    client.insert({"x": 2.0}, {"uniform": 1.0})

    async def read(**options):
        with client.sampler("uniform", 4, **options) as sampler:
            return [float(batch["x"].sum()) async for batch in sampler]

    assert asyncio.run(read(max_samples=12)) == asyncio.run(read(max_samples=12, in_flight=0)) == [8.0] * 3

    async def late():
        waits = asyncio.ensure_future(read(max_samples=4))
        await asyncio.sleep(0.3)
        assert not waits.done()
        client.insert({"x": 5.0}, {"uniform": 1.0})
        return await asyncio.wait_for(waits, 60)

    client.reset("uniform")
    assert asyncio.run(late()) == [20.0]


CTL = os.environ.get("RP_CTL") or os.path.join(os.path.dirname(replaybus.__file__), "..", "..", "..", "replay-ctl")


@pytest.fixture
def keys(tmp_path):
    """A folder of keys with one key for each role."""
    if not os.path.exists(CTL):
        pytest.skip("replay-ctl, which makes keys, is not there")
    for role in ("actor", "learner", "admin"):
        subprocess.run([CTL, "key", "new", str(tmp_path / f"{role}.key"), "--role", role, "--keys", str(tmp_path / "keys")],
                       check=True, stdout=subprocess.DEVNULL)
    return tmp_path


@pytest.mark.parametrize("mode", ["process", "thread"])
def test_roles(keys, mode):
    config = {"security": {"mode": "curve", "keys": str(keys / "keys")}}
    server = replaybus.Server([replaybus.Table("replay")], mode=mode, config=config)
    with server, \
            replaybus.Client(server.endpoint, key_file=keys / "actor.key") as actor, \
            replaybus.Client(server.endpoint, key_file=str(keys / "learner.key"), timeout=60) as learner:
        with actor.writer() as writer:
            writer.append({"x": 1.0})
            writer.item("replay", 1.0)
            writer.flush(timeout=60)
        again = pickle.loads(pickle.dumps(learner))
        with again.sampler("replay", batch_size=1, timeout=60) as sampler:
            assert next(sampler).data["x"].tolist() == [[1.0]]
        with pytest.raises(replaybus.PermissionDenied):
            actor.params["policy"] = b"weights"
        Statistics((), client=learner, index=1).update([1.0, 3.0])
        own = Statistics((), client=actor)
        with pytest.warns(RuntimeWarning):
            own.update([8.0])
        assert own.count == 3 and own.mean == 4  # it reads those of others
        with pytest.raises(PermissionError):
            learner.reset("replay")
        with pytest.raises(replaybus.PermissionDenied):
            replaybus.Client(server.endpoint, timeout=60, key_file="").tables


def test_key_files(keys):
    with pytest.raises(replaybus.NotFound):
        replaybus.Client("tcp://127.0.0.1:1", key_file=str(keys / "nobody.key"), timeout=1).connect()
    os.chmod(keys / "actor.key", 0o644)
    with pytest.raises(replaybus.PermissionDenied):
        replaybus.Client("tcp://127.0.0.1:1", key_file=keys / "actor.key", timeout=1).connect()
