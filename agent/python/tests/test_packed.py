"""Packed batches: items of different lengths one behind the other, and batches that are filled by steps.

The model of every test is a list of items, each with its rows as lists of numpy arrays.
"""
import asyncio
import collections
import pickle

import numpy as np
import pytest

import replaybus
from conftest import await_shards, insert_rows, run_threads

SHAPES = {"tokens": ("int32", ()), "logprob": ("float16", (2,)), "mask": ("bool", ()), "deep": ("float64", (2, 3))}
TOKENS = 1000


def rows_of(rng, n, i):
    """The rows of item i: random, but for the number of the item in the first token."""
    rows = {name: (rng.random((n, *shape)) * 100).astype(dtype) for name, (dtype, shape) in SHAPES.items()}
    rows["tokens"][0] = i
    return rows


def write(client, table, items, episodes=True):
    """Writes the items in their order. Returns their keys."""
    with client.writer(keep_alive=2000) as writer:
        keys = []
        for rows in items:
            writer.append_block(rows, None)
            keys.append(writer.item(table, 1.0, len(rows["tokens"])))
            if episodes:
                writer.end_episode(wait=False)
        writer.flush(timeout=60)
    return keys


def write_two_widths(client, n):
    """Items whose fields do not fit into one array, in turn; each has its number in its rows."""
    with client.writer(keep_alive=10) as narrow, client.writer(keep_alive=10) as wide:
        for i in range(n):
            writer = wide if i % 2 else narrow
            writer.append_block({"x": np.full((10, 2 + i % 2), i, "float32")}, None)
            writer.item("queue", 1.0, 10)
            writer.end_episode()


def make(seed, n=120, most=300):
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, most + 1, n)
    return [rows_of(rng, int(length), i) for i, length in enumerate(lengths)]


def naive(items, most):
    """The numbers of the items of each batch: as many as fit, and at least one."""
    batches, steps = [[]], 0
    for i, rows in enumerate(items):
        n = len(rows["tokens"])
        if batches[-1] and steps + n > most:
            batches.append([])
            steps = 0
        batches[-1].append(i)
        steps += n
    return batches


def check(batch, items, numbers):
    """The batch has exactly these items, packed and padded."""
    wanted = [items[i] for i in numbers]
    lengths = [len(rows["tokens"]) for rows in wanted]
    assert len(batch) == len(numbers)
    assert batch.offsets.dtype == np.int32 and batch.offsets.tolist() == [0, *np.cumsum(lengths).tolist()]
    for name, (dtype, shape) in SHAPES.items():
        packed, data = batch.packed[name], batch.data[name]
        assert packed.dtype == dtype and packed.shape == (sum(lengths), *shape)
        assert np.array_equal(packed, np.concatenate([rows[name] for rows in wanted]))
        assert batch.lengths[name].tolist() == lengths
        assert data.dtype == dtype and data.shape == (len(numbers), max(lengths), *shape)
        for row, rows, n in zip(data, wanted, lengths):
            assert np.array_equal(row[:n], rows[name]) and not row[n:].any()


def numbers_of(batch):
    return batch.packed["tokens"][batch.offsets[:-1]].tolist()


@pytest.fixture(scope="module", params=["thread", "process"])
def server(request):
    tables = [replaybus.Table.queue("queue", 5000), replaybus.Table("replay", sampler="prioritized")]
    with replaybus.Server(tables, mode=request.param) as server:
        yield server


@pytest.fixture(scope="module")
def shards():
    tables = [replaybus.Table.queue("queue", 5000), replaybus.Table("replay")]
    with replaybus.Server(tables, shards=3) as server:
        yield server


@pytest.mark.parametrize("seed", range(4))
def test_a_padded_batch_has_a_packed_form(client, seed):
    items = make(seed, 40)
    keys = write(client, "queue", items)
    with client.sampler("queue", 40) as sampler:
        batch = sampler.next(60)
    check(batch, items, range(40))
    assert batch.key.tolist() == keys
    keys = write(client, "replay", items)
    check(client.fetch("replay", keys[3:9]), items, range(3, 9))


def test_items_of_one_length_are_packed_without_a_copy(client):
    items = [rows_of(np.random.default_rng(i), 7, i) for i in range(10)]
    write(client, "queue", items)
    with client.sampler("queue", 10) as sampler:
        batch = sampler.next(60)
    check(batch, items, range(10))
    assert np.shares_memory(batch.packed["deep"], batch.data["deep"])
    assert batch.offsets.tolist() == list(range(0, 71, 7))


@pytest.mark.parametrize("tokens", [None, 30])
def test_columns_with_steps_of_their_own(client, tokens):
    with client.writer({"x": 0.0, "y": replaybus.Field("int32", (2,))}, keep_alive=9) as writer:
        for n in (2, 5, 9):
            for t in range(n):
                writer.append({"x": t, "y": [t, n]})
            x, y = writer.columns["x"], writer.columns["y"]
            writer.item("queue", 1.0, {"all": x[-n:], "last": y[-1], "two": y[-2:]})
            writer.end_episode()
    with client.sampler("queue", 3, tokens_per_batch=tokens, max_samples=3) as sampler:
        batch, = sampler
    assert batch.packed["all"].tolist() == [*range(2), *range(5), *range(9)]
    assert batch.packed["last"].tolist() == batch.data["last"].tolist() == [[1, 2], [4, 5], [8, 9]]
    assert batch.packed["two"].tolist() == [[0, 2], [1, 2], [3, 5], [4, 5], [7, 9], [8, 9]]
    assert batch.data["two"].shape == (3, 2, 2) and batch.data["all"].shape == (3, 9)
    with pytest.raises(replaybus.InvalidArgument, match="different numbers of steps"):
        batch.offsets


def test_no_field_has_steps(client):
    with client.writer({"x": 0.0}) as writer:
        for t in range(5):
            writer.append({"x": t})
            writer.item("queue", 1.0, {"x": writer.columns["x"][-1]})
    with client.sampler("queue", tokens_per_batch=2, max_samples=5) as sampler:
        batches = list(sampler)
    assert [batch.offsets.tolist() for batch in batches] == [[0, 1, 2], [0, 1, 2], [0, 1]]
    assert np.concatenate([batch.packed["x"] for batch in batches]).tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("in_flight, batch_size", [(4, None), (1, 7), (0, 5), (0, 1000), (2, 1)])
@pytest.mark.parametrize("seed", range(3))
def test_batches_are_those_of_the_model(client, seed, in_flight, batch_size):
    items = make(seed)
    keys = write(client, "queue", items, episodes=seed != 1)  # in one episode, chunks are shared by items
    wanted = naive(items, TOKENS)
    with client.sampler("queue", batch_size, in_flight=in_flight, tokens_per_batch=TOKENS, max_samples=len(items)) as sampler:
        batches = list(sampler)
        assert sampler.stats()["items"] == len(items) and sampler.stats()["batches"] == len(wanted)
    assert [numbers_of(batch) for batch in batches] == wanted
    for batch, numbers in zip(batches, wanted):
        check(batch, items, numbers)
        assert batch.key.tolist() == [keys[i] for i in numbers]
        assert batch.offsets[-1] <= TOKENS
    assert [batch.info["partial"] for batch in batches] == [False] * (len(wanted) - 1) + [True]


def test_an_item_that_is_longer_than_a_batch(client):
    items = make(5, 20, 300)
    write(client, "queue", items)
    with client.sampler("queue", tokens_per_batch=50, timeout=0.2) as sampler:
        got = [numbers_of(batch) for batch in sampler]
    assert got == naive(items, 50) and any(len(items[numbers[0]]["tokens"]) > 50 for numbers in got)


def test_a_batch_of_exactly_its_tokens(client):
    items = [rows_of(np.random.default_rng(i), 250, i) for i in range(9)]
    write(client, "queue", items)
    with client.sampler("queue", tokens_per_batch=TOKENS, max_samples=9) as sampler:
        assert [batch.offsets[-1] for batch in sampler] == [1000, 1000, 250]


def test_a_deadline_loses_nothing(client):
    """Items that do not fill a batch stay for the next call, and for the end."""
    items = make(7, 60)
    wanted = naive(items, TOKENS)
    with client.sampler("queue", tokens_per_batch=TOKENS) as sampler:
        with pytest.raises(replaybus.DeadlineExceeded):
            sampler.next(0)
        write(client, "queue", items[:2])
        for timeout in (0, 0.05, 0):
            with pytest.raises(replaybus.DeadlineExceeded):
                sampler.next(timeout)
        write(client, "queue", items[2:])
        got = [numbers_of(sampler.next(60)) for _ in wanted[:-1]]
        with pytest.raises(replaybus.DeadlineExceeded):
            sampler.next(0.05)
        sampler.stop()
        rest = [numbers_of(batch) for batch in sampler]
    assert got + rest == wanted


@pytest.mark.parametrize("ack", [False, True])
def test_a_sampler_on_demand_ends_with_the_items_that_fill_no_batch(client, ack):
    items = make(15, 20)
    write(client, "queue", items)
    got = []
    with client.sampler("queue", tokens_per_batch=TOKENS, in_flight=0, ack=ack, timeout=2) as sampler:
        for batch in sampler:
            got.append(numbers_of(batch))
            assert not ack or batch.ack().applied == len(batch)
    assert got == naive(items, TOKENS)


def test_async_iteration(client):
    items = make(8, 50)
    write(client, "queue", items)

    async def all_of():
        with client.sampler("queue", tokens_per_batch=TOKENS, max_samples=50) as sampler:
            return [numbers_of(batch) async for batch in sampler]

    assert asyncio.run(all_of()) == naive(items, TOKENS)


def test_weights_are_those_of_the_batch(client):
    items = make(9, 30)
    keys = write(client, "replay", items)
    client.update("replay", keys, np.arange(1, 31))
    with client.sampler("replay", tokens_per_batch=TOKENS, beta=1.0, max_samples=300) as sampler:
        n = 0
        for batch in sampler:
            check(batch, items, [keys.index(key) for key in batch.key.tolist()])
            weights = 1 / (30 * batch.probability)
            assert np.allclose(batch.probability, batch.priority / 465) and np.allclose(batch.weight, weights / weights.max(), rtol=1e-5)
            n += len(batch)
    assert n == 300


def test_wrong_options(client):
    for options, text in (({"tokens_per_batch": 0}, "1 or more"), ({"squeeze": True}, "squeeze"), ({"distinct": True}, "distinct"),
                          ({"whole": True}, "whole"), ({"flexible": True}, "flexible")):
        with pytest.raises(replaybus.InvalidArgument, match=text):
            client.sampler("queue", **{"tokens_per_batch": 100, **options})


def test_fields_that_do_not_fit_into_one_array(client):
    write_two_widths(client, 6)
    with client.sampler("queue", tokens_per_batch=1000, max_samples=6) as sampler:
        batches = list(sampler)
    got = collections.Counter()
    for batch in batches:
        assert batch.info["partial"]
        got.update(batch.packed["x"][batch.offsets[:-1], 0].tolist())
    assert got == {i: 1 for i in range(6)}


@pytest.mark.parametrize("in_flight", [0, 4])
@pytest.mark.parametrize("seed", range(3))
def test_every_item_of_all_shards_once(shards, seed, in_flight):
    items = make(seed, 200)
    with shards.client(timeout=60) as client:
        await_shards(client, 3)
        client.reset("queue")
        keys = write(client, "queue", items)
        assert len({key >> 56 for key in keys}) == 3
        with client.sampler("queue", in_flight=in_flight, tokens_per_batch=TOKENS, max_samples=200) as sampler:
            batches = list(sampler)
    seen = []
    for batch in batches:
        check(batch, items, numbers_of(batch))
        assert batch.key.tolist() == [keys[i] for i in numbers_of(batch)]
        assert (batch.shard == batch.key >> np.uint64(56)).all()
        seen += numbers_of(batch)
    assert sorted(seen) == list(range(200))
    assert [numbers_of(batch) for batch in batches] == [[seen[i] for i in numbers] for numbers in naive([items[i] for i in seen], TOKENS)]


def test_stop_gives_every_item_of_all_shards(shards):
    items = make(11, 150)
    with shards.client(timeout=60) as client:
        await_shards(client, 3)
        client.reset("queue")
        write(client, "queue", items)
        seen = []
        with client.sampler("queue", tokens_per_batch=TOKENS) as sampler:
            for _ in range(3):
                seen += numbers_of(sampler.next(60))
            sampler.stop()
            for batch in sampler:
                seen += numbers_of(batch)
        left = 150 - len(seen)  # those that were not picked
        if left:
            with client.sampler("queue", tokens_per_batch=TOKENS, timeout=60, max_samples=left) as rest:
                for batch in rest:
                    seen += numbers_of(batch)
    assert sorted(seen) == list(range(150))


def test_sources(client):
    items = make(12, 40)
    write(client, "queue", items[:20])
    write(client, "replay", items[20:])
    with replaybus.Sampler([(client, "replay", 0.5), (client, "replay", 0.5)], tokens_per_batch=TOKENS, max_samples=100) as sampler:
        batches = list(sampler)
    for batch in batches:
        check(batch, items, numbers_of(batch))
    sources = np.concatenate([batch.source for batch in batches])
    assert len(sources) == 100 and 20 < sources.sum() < 80


def test_samplers_of_one_queue_take_disjoint_items_and_like_numbers_of_steps(client):
    """Full batches differ by less than the longest item."""
    items, most = make(13, 2000), 16384
    write(client, "queue", items)
    ranks = [[], []]

    def run(rank):
        with client.sampler("queue", tokens_per_batch=most, timeout=0.5) as sampler:
            ranks[rank] += list(sampler)

    assert not run_threads(2, run)
    assert sorted(i for batches in ranks for batch in batches for i in numbers_of(batch)) == list(range(2000))
    for batches in ranks:
        assert all(most - 300 < batch.offsets[-1] <= most for batch in batches[:-1])


@pytest.mark.parametrize("tokens", [None, TOKENS])
def test_tensors(client, tokens):
    torch = pytest.importorskip("torch", reason="torch is missing: ./dev install gets python3-torch")
    import replaybus.torch as rt

    items = make(14, 60)
    wanted = naive(items, TOKENS) if tokens else [list(range(60))]
    write(client, "queue", items)
    with rt.Sampler(client, "queue", 60, tokens_per_batch=tokens, max_samples=60) as sampler:
        batches = list(sampler)
    assert len(batches) == len(wanted)
    for batch, numbers in zip(batches, wanted):
        check(batch._batch, items, numbers)
        lengths = [len(items[i]["tokens"]) for i in numbers]
        for form in (batch, batch.to("cpu"), pickle.loads(pickle.dumps(batch))):
            assert form.offsets.dtype == torch.int32 and form.offsets.tolist() == [0, *np.cumsum(lengths).tolist()]
            assert form.lengths["deep"].tolist() == lengths
            for name in SHAPES:
                assert np.array_equal(form.packed[name].numpy(), batch._batch.packed[name])
                assert np.array_equal(form.data[name].numpy(), batch._batch.data[name])
        if tokens:  # the memory that the library wrote
            assert batch.packed["deep"].data_ptr() == batch._batch.fields()[batch._batch.names().index("deep")].ctypes.data


def test_tensors_of_squeezed_items(client):
    pytest.importorskip("torch", reason="torch is missing: ./dev install gets python3-torch")
    import replaybus.torch as rt

    insert_rows(client, "queue", x=np.arange(10.0).reshape(5, 2))
    with rt.Sampler(client, "queue", 5, squeeze=True) as sampler:
        batch = sampler.next(60)
    assert batch.packed["x"].shape == batch.data["x"].shape == batch._batch.packed["x"].shape == (5, 2)
    assert batch.offsets.tolist() == batch._batch.offsets.tolist() == [0, 1, 2, 3, 4, 5]


def test_a_dataset_of_workers(client):
    torch = pytest.importorskip("torch", reason="torch is missing: ./dev install gets python3-torch")
    import replaybus.torch as rt

    items = make(15, 60)
    write(client, "queue", items)
    dataset = rt.Dataset(client, "queue", tokens_per_batch=TOKENS, max_samples=60)
    seen = []
    for batch in torch.utils.data.DataLoader(dataset, batch_size=None, num_workers=2):
        assert batch.offsets[-1] <= TOKENS
        seen += batch.packed["tokens"][batch.offsets[:-1].long()].tolist()
    assert sorted(seen) == list(range(60))
