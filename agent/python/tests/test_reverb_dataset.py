"""Reverb's interface: datasets, and programs like Acme's agents."""
import collections
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import replaybus
import replaybus.reverb as reverb
from conftest import beside, reverb_table, served_reverb
from replaybus.nest import mapped
from replaybus.reverb import pattern_dataset, structured_writer


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
    signed = reverb.TimestepDataset.from_table_signature(client.server_address, "queue", 1)
    assert signed.element_spec.data == steps.element_spec.data


def test_types_of_infos_and_lists(client):
    client.insert([1.0, [np.zeros(2), 3]], {"plain": 2.0})
    dataset = reverb.TimestepDataset(client.server_address, "plain", [np.float64, [np.float64, np.int64]], max_samples=1)
    sample, = dataset.map(lambda sample: sample)
    assert isinstance(sample.data, tuple) and isinstance(sample.data[1], tuple) and sample.data[1][1] == 3
    assert [type(value) for value in sample.info] == [np.uint64, np.float64, np.int64, np.float64, np.int32]


@pytest.mark.parametrize("size", [1, 3, 7])
def test_flexible_batches(size):
    with served_reverb(reverb_table("t")) as client:
        client.insert(1, {"t": 1.0})
        for _ in reverb.TimestepDataset(client.server_address, "t", flexible_batch_size=size).take(20):
            assert client.server_info()["t"].rate_limiter_info.sample_stats.completed % size == 0


@pytest.mark.parametrize("in_flight, batch", [(1, 4), (7, 4), (100, 4), (100, 64), (3000, 2000)])
def test_batches_are_whole(in_flight, batch):
    """Whatever the limiter allows at once, and whatever is requested ahead."""
    limiter = reverb.rate_limiters.SampleToInsertRatio(2.0 * batch, 1, (-1e9, 1e9))
    with served_reverb(reverb_table("t", rate_limiter=limiter)) as client:
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
    with served_reverb(reverb_table("t", rate_limiter=limiter)) as client:
        def insert():
            for t in range(12):
                client.insert(t, {"t": 1.0})
        with beside(insert):
            batches = reverb.TrajectoryDataset(client.server_address, "t", max_in_flight_samples_per_worker=8).batch(8)
            assert [sample.data.shape for _, sample in zip(range(3), batches)] == [(8, 1)] * 3


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


def test_items_of_different_layouts_keep_their_order(client):
    for i in range(30):
        client.insert({"x": i} if i % 3 else (np.float32(i), np.zeros(i + 1)), {"plain": 1.0})
    dataset = reverb.TrajectoryDataset(client.server_address, "plain", max_samples=30)
    numbers = [sample.data["x"] if isinstance(sample.data, dict) else sample.data[0] for sample in dataset]
    assert [int(number[0]) for number in numbers] == list(range(30))


LENGTH = 12  # steps of an episode
ONCE = dict(sampler=reverb.selectors.Fifo(), max_times_sampled=1)
STEP = {"action": reverb.TensorSpec((), np.int32), "discount": reverb.TensorSpec((), np.float32),
        "observation": {"pixels": reverb.TensorSpec((4, 4), np.uint8), "t": reverb.TensorSpec((), np.int64)},
        "reward": reverb.TensorSpec((), np.float32), "start": reverb.TensorSpec((), bool)}


def observation(t):
    return {"pixels": np.full((4, 4), t, np.uint8), "t": np.int64(t)}


class Adder:
    """A step stays open until its action is known, and so has the newest observation. trajectory(writer, ended): what a step makes an
    item of, or None; ended: it was the last of its episode, and is complete."""

    def __init__(self, client, keep, tables, trajectory):
        self.writer, self.tables, self.trajectory = client.trajectory_writer(num_keep_alive_refs=keep), tables, trajectory

    def add_first(self, observation):
        self.writer.append({"observation": observation, "start": True}, partial_step=True)

    def add(self, action, reward, discount, observation):
        self.writer.append({"action": action, "reward": reward, "discount": discount})
        self.writer.append({"observation": observation, "start": False}, partial_step=True)
        self.create(ended=False)
        if not discount:
            self.writer.append({"action": np.int32(0), "reward": np.float32(0), "discount": np.float32(0)})
            self.create(ended=True)
            self.writer.end_episode()

    def create(self, ended):
        trajectory = self.trajectory(self.writer, ended)
        for table, priority in self.tables.items() if trajectory else ():
            self.writer.create_item(table, priority, trajectory)
            self.writer.flush(block_until_num_items=5)


def transition(writer, ended):
    """Over three steps: two observations, and all that is between them."""
    history = writer.history
    if not ended and writer.episode_steps >= 3:
        return {"o": mapped(lambda column: column[-4], history["observation"]), "a": history["action"][-3], "r": history["reward"][-3:],
                "d": history["discount"][-3:], "next": mapped(lambda column: column[-1], history["observation"])}


def sequences(length, period):
    """Overlapping sequences of complete steps."""
    def trajectory(writer, ended):
        steps = writer.episode_steps
        if not ended and steps >= length and (steps - length) % period == 0:
            return mapped(lambda column: column[steps - length:steps], writer.history)
    return trajectory


def whole_episode(writer, ended):
    return mapped(lambda column: column[:], writer.history) if ended else None


def play(adder, episodes, length=LENGTH):
    for _ in range(episodes):
        adder.add_first(observation(0))
        for t in range(length):
            adder.add(np.int32(t % 3), np.float32(t), np.float32(t + 1 < length), observation(t + 1))


def signature(steps):
    return mapped(lambda spec: reverb.TensorSpec((steps, *spec.shape), spec.dtype), STEP)


def test_n_step_transitions():
    tables = [reverb_table(**ONCE), reverb_table("copy")]
    with served_reverb(*tables) as client:
        adder = Adder(client, 4, {"replay": 1.0, "copy": 2.0}, transition)
        play(adder, 2)
        assert not adder.writer._copies._streams  # the steps were sent once
        transitions = list(reverb.TrajectoryDataset(client.server_address, "replay", rate_limiter_timeout_ms=100))
        starts = [int(sample.data["o"]["t"]) for sample in transitions]
        assert starts == 2 * list(range(LENGTH - 2))
        for start, sample in zip(starts, transitions):
            data = sample.data
            assert data["next"]["t"] == start + 3 and (data["next"]["pixels"] == start + 3).all()
            assert data["r"].tolist() == [start, start + 1, start + 2] and data["a"] == start % 3
            assert data["d"].tolist() == [1, 1, float(start + 3 < LENGTH)]
        batch = next(iter(reverb.TrajectoryDataset(client.server_address, "copy").batch(16)))
        assert batch.data["o"]["pixels"].shape == (16, 4, 4) and (batch.info.priority == 2).all()
        assert (batch.data["next"]["t"] - batch.data["o"]["t"] == 3).all()


def test_sequences():
    with served_reverb(reverb_table(**ONCE, signature=signature(4))) as client:
        adder = Adder(client, 5, {"replay": 1.0}, sequences(4, 2))
        play(adder, 2)
        assert not adder.writer._copies._streams
        dataset = reverb.TrajectoryDataset.from_table_signature(client.server_address, "replay", 10,
                                                                rate_limiter_timeout_ms=100)
        samples = [sample.data for sample in dataset]
        assert [int(data["observation"]["t"][0]) for data in samples] == 2 * [0, 2, 4, 6, 8]
        assert all((np.diff(data["observation"]["t"]) == 1).all() and data["start"][1:].sum() == 0 for data in samples)
        assert [bool(data["start"][0]) for data in samples] == 2 * [True, False, False, False, False]
        play(Adder(client, 5, {"replay": 1.0}, sequences(4, 2)), 1)
        steps = reverb.TimestepDataset(client.server_address, "replay", rate_limiter_timeout_ms=100)
        assert [int(step.data["reward"]) for step in steps][:6] == [0, 1, 2, 3, 2, 3]


def test_whole_episodes():
    with served_reverb(reverb.Table.queue("queue", 10, signature=signature(None))) as client:
        adder = Adder(client, LENGTH + 1, {"queue": 1.0}, whole_episode)
        for length in (3, LENGTH, 1):
            play(adder, 1, length)
        dataset = reverb.TrajectoryDataset.from_table_signature(client.server_address, "queue", 10, max_samples=3)
        assert [len(sample.data["reward"]) for sample in dataset] == [4, LENGTH + 1, 2]  # with the last, empty step
        assert client.server_info()["queue"].current_size == 0


def test_actor_and_learner():
    """An actor in a thread, and a learner that writes priorities back, under a limiter."""
    limiter = reverb.rate_limiters.SampleToInsertRatio(samples_per_insert=2.0, min_size_to_sample=20, error_buffer=40.0)
    table = reverb_table(sampler=reverb.selectors.Prioritized(0.6), rate_limiter=limiter, signature=signature(3))
    with served_reverb(table) as client, ThreadPoolExecutor(1) as pool:
        actor = pool.submit(lambda: play(Adder(client, 4, {"replay": 1.0}, sequences(3, 1)), 20, 20))
        dataset = reverb.TrajectoryDataset.from_table_signature(client.server_address, "replay", 32, rate_limiter_timeout_ms=5000)
        sampled, items = 0, 20 * 18
        for batch in dataset.batch(16):
            rewards = batch.data["reward"]
            assert (batch.data["observation"]["t"] == rewards).all() and (np.diff(rewards, axis=1) == 1).all()
            client.mutate_priorities("replay", updates=dict(zip(batch.info.key, np.abs(rewards[:, -1]) + 1)))
            sampled += len(rewards)
        actor.result(60)
        info = client.server_info()["replay"]
        assert info.rate_limiter_info.insert_stats.completed == items and info.current_size == 100
        assert abs(sampled - (items - 20) * 2) <= 80 and sampled == info.rate_limiter_info.sample_stats.completed


Step = collections.namedtuple("Step", "observation action reward extras")


class StructuredAdder:
    """An adder whose items are made by rules: n-step transitions, shorter ones at the end of an episode."""

    spec = Step({"t": reverb.TensorSpec((), np.int64)}, reverb.TensorSpec((), np.int32), reverb.TensorSpec((), np.float32), ())

    def __init__(self, client, configs):
        self.writer = client.structured_writer(configs)

    def add_first(self, observation):
        self.writer.append(Step({"t": observation["t"]}, None, None, ()), partial_step=True)

    def add(self, action, reward, discount, observation):
        assert self.writer.step_is_open
        self.writer.append(Step({"t": None}, action, reward, ()))
        self.writer.append(Step({"t": observation["t"]}, None, None, ()), partial_step=True)
        self.writer.flush(2)
        if not discount:
            self.writer.append(Step(None, np.int32(0), np.float32(0), ()))
            self.writer.end_episode()

    @classmethod
    def rule(cls, n, *conditions):
        def transition(step):
            return Step({"t": step.observation["t"][-(n + 1)::n]}, step.action[-(n + 1):-n], step.reward[-(n + 1):-1], ())
        pattern = structured_writer.pattern_from_transform(cls.spec, transition)
        return structured_writer.create_config(pattern, "replay", conditions=conditions)


def test_transitions_by_rule():
    condition = structured_writer.Condition
    rules = [StructuredAdder.rule(3, condition.step_index() >= 3)]
    rules += [StructuredAdder.rule(n, condition.is_end_episode(), condition.step_index() >= n) for n in (2, 1)]
    signature = structured_writer.infer_signature(rules, StructuredAdder.spec)
    assert signature == Step({"t": reverb.TensorSpec((2,), np.int64)}, reverb.TensorSpec((1,), np.int32),
                             reverb.TensorSpec((None,), np.float32), ())
    with served_reverb(reverb_table(**ONCE, signature=signature)) as client:
        play(StructuredAdder(client, rules), 2)
        samples = list(client.sample("replay", 2 * LENGTH, emit_timesteps=False, unpack_as_table_signature=True))
        spans = [sample.data.observation["t"].tolist() for sample in samples]
        assert spans == 2 * ([[t, t + 3] for t in range(LENGTH - 2)] + [[LENGTH - 2, LENGTH], [LENGTH - 1, LENGTH]])
        assert all(len(sample.data.reward) == last - first for sample, (first, last) in zip(samples, spans))
        assert all(type(sample.data) is Step and sample.data.extras == () for sample in samples)
        assert client.server_info()["replay"].current_size == 0


def test_a_server_that_is_not_there():
    for call in (lambda: reverb.Client("localhost:1").server_info(timeout=0.2),
                 lambda: reverb.TrajectoryDataset.from_table_signature("localhost:1", "t", 1, get_signature_timeout_secs=0.2)):
        start = time.monotonic()
        with pytest.raises(reverb.DeadlineExceededError):
            call()
        assert time.monotonic() - start < 60
