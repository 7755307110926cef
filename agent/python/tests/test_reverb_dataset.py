"""Reverb's interface: datasets, and programs like Acme's agents."""
import threading

import numpy as np
import pytest

import replaybus
import replaybus.reverb as reverb
from conftest import served_reverb


@pytest.fixture
def client():
    signature = {"x": replaybus.Field("float32", (None, 2)), "a": replaybus.Field("int64", (None,))}
    tables = [reverb.Table.queue("queue", 100, signature=signature), reverb.Table.queue("plain", 100)]
    with reverb.Server(tables) as server:
        yield server.localhost_client()


def fill(client, table, n=4):
    with client.trajectory_writer(num_keep_alive_refs=2) as writer:
        for t in range(n + 1):
            writer.append({"x": np.full(2, t, np.float32), "a": t})
            if t:
                writer.create_item(table, float(t), {"x": writer.history["x"][-2:], "a": writer.history["a"][-2:]})


def test_trajectory_dataset(client):
    fill(client, "queue")
    dataset = reverb.TrajectoryDataset.from_table_signature(client.server_address, "queue", 10, rate_limiter_timeout_ms=100)
    samples = list(dataset)
    assert [sample.data["a"].tolist() for sample in samples] == [[0, 1], [1, 2], [2, 3], [3, 4]]
    assert samples[3].data["x"].shape == (2, 2) and samples[3].info.priority == 4
    fill(client, "queue", 3)
    assert len(list(dataset.batch(2, drop_remainder=True))) == 1
    fill(client, "queue", 5)
    batches = list(dataset.take(5).batch(2))  # last: requests ahead of a dataset that is left early may still get items
    for size in (0, -1):
        with pytest.raises(ValueError):
            dataset.batch(size)
    assert [batch.data["x"].shape for batch in batches] == [(2, 2, 2), (2, 2, 2), (1, 2, 2)]
    assert batches[0].info.key.shape == (2,) and batches[0].info.priority.tolist() == [1, 2]


def test_timestep_dataset(client):
    fill(client, "plain", 2)
    dataset = reverb.TimestepDataset(client.server_address, "plain", {"x": np.float32, "a": np.int64}, {"x": (2,), "a": ()},
                                     max_in_flight_samples_per_worker=1, max_samples=2)
    assert [int(sample.data["a"]) for sample in dataset] == [0, 1, 1, 2]


def test_declared_types(client):
    fill(client, "plain", 2)
    for dtypes, shapes in (({"x": np.float64, "a": np.int64}, None), ({"x": np.float32, "a": np.int64}, {"x": (3, 2), "a": (2,)}),
                           ({"x": np.float32}, None)):
        with pytest.raises(ValueError):
            next(iter(reverb.TrajectoryDataset(client.server_address, "plain", dtypes, shapes, 1)))
        fill(client, "plain", 3)  # the dataset may have asked for one item ahead, and for another while it ended


def test_declared_types_and_the_signature(client):
    fill(client, "queue", 2)
    good = {"x": np.float32, "a": np.int64}
    for dtypes, shapes in (({"x": np.float32}, None), ({"x": np.float64, "a": np.int64}, None), (good, {"x": (2, 3), "a": (2,)})):
        with pytest.raises(ValueError):
            next(iter(reverb.TrajectoryDataset(client.server_address, "queue", dtypes, shapes)))
    with pytest.raises(ValueError):
        next(iter(reverb.TimestepDataset(client.server_address, "queue", good, {"x": (3,), "a": ()})))
    assert client.server_info()["queue"].current_size == 2  # no item was lost
    dataset = reverb.TrajectoryDataset(client.server_address, "queue", good, {"x": (None, 2), "a": (2,)}, max_samples=1)
    assert next(iter(dataset)).data["a"].tolist() == [0, 1]
    assert dataset.element_spec.data == {"x": reverb.TensorSpec((None, 2)), "a": reverb.TensorSpec((2,), np.int64)}
    steps = reverb.TimestepDataset(client.server_address, "queue", good, {"x": (2,), "a": ()}, max_samples=1)
    assert [int(step.data["a"]) for step in steps] == [1, 2]
    assert steps.element_spec.info.key == reverb.TensorSpec((), np.uint64)
    signed = reverb.TrajectoryDataset.from_table_signature(client.server_address, "queue", 1)
    assert signed.element_spec.data == client.signature("queue")


def test_types_of_infos_and_lists(client):
    client.insert([1.0, [np.zeros(2), 3]], {"plain": 2.0})
    dataset = reverb.TimestepDataset(client.server_address, "plain", [np.float64, [np.float64, np.int64]], max_samples=1)
    sample, = dataset.map(lambda sample: sample)
    assert isinstance(sample.data, tuple) and isinstance(sample.data[1], tuple) and sample.data[1][1] == 3
    assert [type(value) for value in sample.info] == [np.uint64, np.float64, np.int64, np.float64, np.int32]


@pytest.mark.parametrize("size", [1, 3, 7])
def test_flexible_batches(size):
    table = reverb.Table("t", reverb.selectors.Uniform(), reverb.selectors.Fifo(), 100, reverb.rate_limiters.MinSize(1))
    with served_reverb(table) as client:
        client.insert(1, {"t": 1.0})
        for _ in reverb.TimestepDataset(client.server_address, "t", flexible_batch_size=size).take(20):
            assert client.server_info()["t"].rate_limiter_info.sample_stats.completed % size == 0


@pytest.mark.parametrize("in_flight, batch", [(1, 4), (7, 4), (100, 4), (100, 64), (3000, 2000)])
def test_batches_are_whole(in_flight, batch):
    """Whatever the limiter allows at once, and whatever is requested ahead."""
    limiter = reverb.rate_limiters.SampleToInsertRatio(2.0 * batch, 1, (-1e9, 1e9))
    table = reverb.Table("t", reverb.selectors.Uniform(), reverb.selectors.Fifo(), 100, limiter)
    with served_reverb(table) as client:
        for t in range(10):
            client.insert({"t": t, "text": f"step {t}"}, {"t": 1.0})
        dataset = reverb.TrajectoryDataset(client.server_address, "t", max_in_flight_samples_per_worker=in_flight,
                                           max_samples=3 * batch + 1)
        sizes = []
        for sample in dataset.batch(batch):
            sizes.append(len(sample.info.key))
            assert sample.data["t"].shape == (sizes[-1], 1) and (sample.info.table_size == 10).all()
            assert [text.decode() for text in sample.data["text"][:, 0]] == [f"step {t}" for t in sample.data["t"][:, 0]]
        assert sizes == [batch] * 3 + [1]
        assert [len(sample.info.key) for sample in dataset.batch(batch, drop_remainder=True)] == [batch] * 3


def test_batches_of_a_limiter_that_allows_little():
    limiter = reverb.rate_limiters.SampleToInsertRatio(2.0, 1, 2.0)
    table = reverb.Table("t", reverb.selectors.Uniform(), reverb.selectors.Fifo(), 100, limiter)
    with served_reverb(table) as client:
        def insert():
            for t in range(12):
                client.insert(t, {"t": 1.0})
        actor = threading.Thread(target=insert, daemon=True)
        actor.start()
        batches = reverb.TrajectoryDataset(client.server_address, "t", max_in_flight_samples_per_worker=8).batch(8)
        assert [sample.data.shape for _, sample in zip(range(3), batches)] == [(8, 1)] * 3
        actor.join(60)
        assert not actor.is_alive()


def test_items_of_several_lengths_make_no_batch(client):
    with client.trajectory_writer(3) as writer:
        for t in range(3):
            writer.append(t)
            writer.create_item("plain", 1.0, writer.history[:])
    with pytest.raises(ValueError):
        next(iter(reverb.TrajectoryDataset(client.server_address, "plain").batch(2)))


def test_wrong_arguments(client):
    with pytest.raises(ValueError, match="signature"):
        reverb.TrajectoryDataset.from_table_signature(client.server_address, "plain", 10)
    with pytest.raises(ValueError, match="nothing"):
        reverb.TimestepDataset.from_table_signature(client.server_address, "nothing", 10)
    for wrong in (dict(max_in_flight_samples_per_worker=0), dict(max_samples=0), dict(rate_limiter_timeout_ms=-2),
                  dict(num_workers_per_iterator=0), dict(flexible_batch_size=0)):
        with pytest.raises(ValueError):
            reverb.TrajectoryDataset(client.server_address, "plain", **wrong)


def test_tensorflow_says_so(client):
    with pytest.raises(NotImplementedError, match="TensorFlow"):
        reverb.TFClient("localhost:1")
    with pytest.raises(AttributeError, match="TensorFlow"):
        reverb.TrajectoryDataset(client.server_address, "plain").interleave(1)


@pytest.mark.parametrize("conditions", [
    [], [reverb.Condition.step_index() % 2 == 1], [reverb.Condition.steps_since_applied() >= 3], [reverb.Condition.is_end_episode()],
    [reverb.Condition.data({"x": None, "last": None})["x"] >= 10]])
def test_patterns_over_steps_make_the_items_of_a_structured_writer(conditions):
    from replaybus.reverb import pattern_dataset, structured_writer
    steps = [{"x": np.int64(i), "last": np.bool_(i in (4, 5, 14, 24))} for i in range(25)]
    step = structured_writer.create_reference_step(steps[0])
    rules = [structured_writer.create_config({"a": step["x"][-3], "b": step["x"][-2:]}, "q", conditions),
             structured_writer.create_config({"a": step["x"][-1], "b": step["x"][-1:]}, "q", conditions)]
    server = reverb.Server([reverb.Table.queue("q", 1000)])
    with reverb.Client(f"localhost:{server.port}").structured_writer(rules) as writer:
        for one in steps:
            writer.append(one)
            if one["last"]:
                writer.end_episode()
    want = [[array.tolist() for array in sample.data]
            for sample in server.localhost_client().sample("q", server.localhost_client().server_info()["q"].current_size, emit_timesteps=False)]
    server.stop()
    items = reverb.PatternDataset(steps, rules, True, lambda one: one["last"])
    assert want and [[item["a"].tolist(), item["b"].tolist()] for item in items] == want
    assert len(list(items)) == len(want)  # again
    sample = next(iter(pattern_dataset.pattern_dataset_with_info(steps, rules, True, lambda one: one["last"])))
    assert sample.info == reverb.SampleInfo.zeros() and sample.data["a"] == want[0][0]
    over = list(reverb.PatternDataset(steps, rules[:1], False, lambda one: one["last"]))
    assert conditions or len(over) == 23  # items may span episodes


STEPS, SEQUENCE, BATCH = 400, 3, 16


def act(address, errors):
    """An adder: overlapping sequences within episodes of 20 steps."""
    try:
        writer = reverb.Client(address).trajectory_writer(num_keep_alive_refs=SEQUENCE)
        for t in range(STEPS):
            writer.append({"observation": np.full(4, t, np.float32), "action": np.int32(t % 3), "reward": float(t)})
            if writer.episode_steps >= SEQUENCE:
                columns = {name: column[-SEQUENCE:] for name, column in writer.history.items()}
                writer.create_item("priority_table", 1.0, columns)
            if t % 20 == 19:
                writer.end_episode(timeout_ms=60_000)
        writer.close()
    except Exception as error:  # the test looks at it
        errors.append(error)


def test_actor_and_learner():
    limiter = reverb.rate_limiters.SampleToInsertRatio(samples_per_insert=2.0, min_size_to_sample=20, error_buffer=40.0)
    signature = {"observation": replaybus.Field("float32", (SEQUENCE, 4)), "action": replaybus.Field("int32", (SEQUENCE,)),
                 "reward": replaybus.Field("float64", (SEQUENCE,))}
    table = reverb.Table("priority_table", sampler=reverb.selectors.Prioritized(0.6), remover=reverb.selectors.Fifo(),
                         max_size=100, rate_limiter=limiter, signature=signature)
    errors = []
    with reverb.Server([table]) as server:
        address = f"localhost:{server.port}"
        actor = threading.Thread(target=act, args=(address, errors), daemon=True)
        actor.start()
        client = reverb.Client(address)
        dataset = reverb.TrajectoryDataset.from_table_signature(address, "priority_table", 2 * BATCH,
                                                                rate_limiter_timeout_ms=5000)
        sampled = 0
        for batch in dataset.batch(BATCH):
            observations, rewards = batch.data["observation"], batch.data["reward"]
            assert (observations[..., 0] == rewards).all() and (np.diff(rewards, axis=1) == 1).all()
            priorities = np.abs(rewards[:, -1]) + 1
            client.mutate_priorities("priority_table", updates=dict(zip(batch.info.key, priorities)))
            sampled += len(rewards)
        actor.join(60)
        assert not actor.is_alive() and not errors
        items = STEPS // 20 * (20 - SEQUENCE + 1)
        info = client.server_info()["priority_table"]
        assert info.rate_limiter_info.insert_stats.completed == items and info.current_size == 100
        assert abs(sampled - (items - 20) * 2) <= 80 and sampled == info.rate_limiter_info.sample_stats.completed


def test_items_of_different_layouts_keep_their_order(client):
    for i in range(30):
        client.insert({"x": i} if i % 3 else (np.float32(i), np.zeros(i + 1)), {"plain": 1.0})
    dataset = reverb.TrajectoryDataset(client.server_address, "plain", max_samples=30)
    numbers = [sample.data["x"] if isinstance(sample.data, dict) else sample.data[0] for sample in dataset]
    assert [int(number[0]) for number in numbers] == list(range(30))
