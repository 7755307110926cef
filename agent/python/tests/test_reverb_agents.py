"""Programs like those that agents' libraries write for Reverb: adders over a trajectory writer, learners over datasets."""
import collections
import time

import numpy as np
import pytest

import replaybus.reverb as reverb
from conftest import served_reverb
from replaybus.reverb import structured_writer

LENGTH = 12  # steps of an episode
STEP = {"action": reverb.TensorSpec((), np.int32), "discount": reverb.TensorSpec((), np.float32),
        "observation": {"pixels": reverb.TensorSpec((4, 4), np.uint8), "t": reverb.TensorSpec((), np.int64)},
        "reward": reverb.TensorSpec((), np.float32), "start": reverb.TensorSpec((), bool)}


def mapped(function, structure):
    if isinstance(structure, dict):
        return {name: mapped(function, part) for name, part in structure.items()}
    return function(structure)


def observation(t):
    return {"pixels": np.full((4, 4), t, np.uint8), "t": np.int64(t)}


class Adder:
    """What adders have in common: a step stays open until its action is known, and so has the newest observation."""

    def __init__(self, client, keep, tables):
        self.writer, self.tables = client.trajectory_writer(num_keep_alive_refs=keep), tables

    def add_first(self, observation):
        self.writer.append({"observation": observation, "start": True}, partial_step=True)

    def add(self, action, reward, discount, observation):
        self.writer.append({"action": action, "reward": reward, "discount": discount})
        self.writer.append({"observation": observation, "start": False}, partial_step=True)
        self.write()
        if not discount:
            self.writer.append({"action": np.int32(0), "reward": np.float32(0), "discount": np.float32(0)})
            self.write_last()
            self.writer.end_episode()

    def create(self, trajectory):
        for table, priority in self.tables.items():
            self.writer.create_item(table, priority, trajectory)
            self.writer.flush(block_until_num_items=5)

    def write(self):
        pass

    def write_last(self):
        pass


class NStepAdder(Adder):
    """Transitions over n steps: two observations, and all that is between them."""

    def __init__(self, client, n, tables):
        super().__init__(client, n + 1, tables)
        self.n = n

    def write(self):
        if self.writer.episode_steps >= self.n:
            history = self.writer.history
            self.create({"o": mapped(lambda column: column[-self.n - 1], history["observation"]),
                         "a": history["action"][-self.n], "r": history["reward"][-self.n:],
                         "d": history["discount"][-self.n:], "next": mapped(lambda column: column[-1], history["observation"])})


class SequenceAdder(Adder):
    """Overlapping sequences of complete steps."""

    def __init__(self, client, length, period, tables):
        super().__init__(client, length + 1, tables)
        self.length, self.period = length, period

    def write(self):
        steps = self.writer.episode_steps
        if steps >= self.length and (steps - self.length) % self.period == 0:
            history = self.writer.history
            first = steps - self.length
            self.create(mapped(lambda column: column[first:steps], history))


class EpisodeAdder(Adder):
    """Whole episodes."""

    def write_last(self):
        self.create(mapped(lambda column: column[:], self.writer.history))


def play(adder, episodes, length=LENGTH):
    for _ in range(episodes):
        adder.add_first(observation(0))
        for t in range(length):
            adder.add(np.int32(t % 3), np.float32(t), np.float32(t + 1 < length), observation(t + 1))


def table(name="replay", sampler=None, limiter=None, **more):
    return reverb.Table(name, sampler or reverb.selectors.Fifo(), reverb.selectors.Fifo(), max_size=1000,
                        rate_limiter=limiter or reverb.rate_limiters.MinSize(1), **more)


def signature(steps):
    return mapped(lambda spec: reverb.TensorSpec((steps, *spec.shape), spec.dtype), STEP)


def test_n_step_transitions():
    tables = [table(max_times_sampled=1), table("copy", reverb.selectors.Uniform())]
    with served_reverb(*tables) as client:
        adder = NStepAdder(client, 3, {"replay": 1.0, "copy": 2.0})
        play(adder, 2)
        assert not adder.writer._writer._copies._streams  # the steps were sent once
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
    with served_reverb(table(max_times_sampled=1, signature=signature(4))) as client:
        adder = SequenceAdder(client, 4, 2, {"replay": 1.0})
        play(adder, 2)
        assert not adder.writer._writer._copies._streams
        dataset = reverb.TrajectoryDataset.from_table_signature(client.server_address, "replay", 10,
                                                                rate_limiter_timeout_ms=100)
        samples = [sample.data for sample in dataset]
        assert [int(data["observation"]["t"][0]) for data in samples] == 2 * [0, 2, 4, 6, 8]
        assert all((np.diff(data["observation"]["t"]) == 1).all() and data["start"][1:].sum() == 0 for data in samples)
        assert [bool(data["start"][0]) for data in samples] == 2 * [True, False, False, False, False]
        play(SequenceAdder(client, 4, 2, {"replay": 1.0}), 1)
        steps = reverb.TimestepDataset(client.server_address, "replay", rate_limiter_timeout_ms=100)
        assert [int(step.data["reward"]) for step in steps][:6] == [0, 1, 2, 3, 2, 3]


def test_whole_episodes():
    with served_reverb(reverb.Table.queue("queue", 10, signature=signature(None))) as client:
        adder = EpisodeAdder(client, LENGTH + 1, {"queue": 1.0})
        for length in (3, LENGTH, 1):
            play(adder, 1, length)
        dataset = reverb.TrajectoryDataset.from_table_signature(client.server_address, "queue", 10, max_samples=3)
        assert [len(sample.data["reward"]) for sample in dataset] == [4, LENGTH + 1, 2]  # with the last, empty step
        assert client.server_info()["queue"].current_size == 0


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
    with served_reverb(table(max_times_sampled=1, signature=signature)) as client:
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
