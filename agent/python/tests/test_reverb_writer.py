"""Reverb's interface: writers, their histories, and what their items become; and items by rule."""
import collections
import contextlib
import time
from unittest import mock

import numpy as np
import pytest

import replaybus
import replaybus.reverb as reverb
from conftest import beside, emptied, reverb_table, served_reverb
from replaybus.reverb.structured_writer import (Condition, create_config, create_reference_step, infer_signature,
                                                pattern_from_transform, td_error, unpack_pattern)


@pytest.fixture(scope="module")
def reverb_server():
    once = dict(sampler=reverb.selectors.Fifo(), max_size=1000, max_times_sampled=1)
    signature = {"x": replaybus.Field("float64", (None, 2)), "y": replaybus.Field("int64", ())}
    with reverb.Server([reverb_table("t", **once), reverb_table("signed", signature=signature, **once), reverb.Table.queue("full", 1)]) as server:
        yield server


@pytest.fixture
def client(reverb_server):
    return emptied(reverb_server)


def item(client, table="t"):
    """The next item, in the structure in which it was written."""
    return next(iter(reverb.TrajectoryDataset(client.server_address, table, max_samples=1))).data


def size(client, table="t"):
    return client.server_info()[table].current_size


def test_writer(client):
    with client.writer(max_sequence_length=3) as writer:
        for t in range(5):
            writer.append({"b": np.full(2, t), "a": float(t)})
            if t >= 2:
                writer.create_item("t", num_timesteps=3, priority=1.0)
        with pytest.raises(ValueError):
            writer.create_item("t", num_timesteps=4, priority=1.0)
    steps, = client.sample("t")
    assert [step.data[0] for step in steps] == [0, 1, 2] and steps[2].data[1].tolist() == [2, 2]
    assert item(client)["a"].tolist() == [1, 2, 3]
    with pytest.raises(ValueError):
        writer.append(1.0)


def test_writer_sequence_and_arguments(client):
    with client.writer(4, chunk_length=2) as writer:
        with pytest.raises(ValueError):
            writer.create_item("t", 1, 1.0)
        writer.append_sequence((np.arange(4), np.zeros((4, 2))))
        writer.create_item("t", 3, 1.0)
        writer.flush()
        assert size(client) == 1
    assert item(client)[0].tolist() == [1, 2, 3]
    for wrong in ((0,), (2, False, 3), (2, False, 1, 0)):
        with pytest.raises(ValueError):
            client.writer(*wrong)


def test_trajectories(client):
    with client.trajectory_writer(num_keep_alive_refs=4) as writer:
        for t in range(6):
            writer.append({"obs": {"x": np.full(2, t, np.float32)}, "r": float(t)})
        history = writer.history
        writer.create_item("t", 1.5, {"x": history["obs"]["x"][-3:], "r": history["r"][-1], "late": history["r"][2:6:2]})
        writer.create_item("t", 1.0, [history["r"][[5, 3]], history["r"][-2]])
        writer.create_item("t", 1.0, (history["r"][2:],))
        writer.flush()
        assert writer.episode_steps == 6 and len(history["r"]) == 6
        assert history["r"][-2:].numpy().tolist() == [4, 5] and history["r"][-1].numpy() == 5
        with pytest.raises(ValueError, match="expired"):
            writer.create_item("t", 1.0, history["r"][1])
        with pytest.raises(IndexError):
            history["r"][6]
        for wrong in (np.zeros(2), next(iter(history["r"]))):
            with pytest.raises(TypeError):
                writer.create_item("t", 1.0, {"a": wrong})
    first = item(client)
    assert first["x"][:, 0].tolist() == [3, 4, 5] and first["r"] == 5 and first["r"].shape == ()
    assert first["late"].tolist() == [2, 4]
    second = item(client)
    assert second[0].tolist() == [5, 3] and second[1] == 4
    assert item(client)[0].tolist() == [2, 3, 4, 5]


def test_partial_and_missing(client):
    with client.trajectory_writer(10) as writer:
        writer.append({"a": 1, "b": 10})
        reference = writer.append({"a": 2}, partial_step=True)
        with pytest.raises(ValueError):
            writer.append({"a": 3}, partial_step=True)
        one = reverb.TrajectoryColumn([reference["a"]], squeeze=True)
        writer.create_item("t", 1.0, {"a": writer.history["a"][:], "one": one})  # of an open step
        writer.append({"b": 20})
        writer.append({"a": 3, "b": None, "c": 0.5})  # a column less, and a new one
        history = writer.history
        writer.create_item("t", 1.0, {"a": history["a"][:], "c": history["c"][-1:]})
        for column, row in (("b", -1), ("c", 0)):
            with pytest.raises(ValueError, match="None"):
                history[column][row]
        with pytest.raises(ValueError):
            writer.append({"a": 1.5})  # another type
        writer.end_episode()
        writer.append({"a": 9})
        writer.create_item("t", 1.0, writer.history["a"][-1:])
    first = item(client)
    assert first["a"].tolist() == [1, 2] and first["one"] == 2
    second = item(client)
    assert second["a"].tolist() == [1, 2, 3] and second["c"].tolist() == [0.5]
    assert item(client).tolist() == [9]


def test_episodes(client):
    with client.trajectory_writer(5) as writer:
        writer.append(1.0)
        old = writer.history[-1]
        writer.create_item("t", 1.0, old)
        writer.end_episode()
        assert size(client) == 1 and writer.episode_steps == 0 and len(writer.history) == 0
        with pytest.raises(ValueError):
            writer.create_item("t", 1.0, old)
        writer.append(2.0)
        writer.end_episode(clear_buffers=False)
        assert writer.episode_steps == 0 and len(writer.history) == 1
        writer.append(3.0)
        writer.create_item("t", 1.0, writer.history[-2:])
        with pytest.raises(ValueError):
            writer.flush(-1)
    assert item(client) == 1 and item(client).tolist() == [2, 3]
    with pytest.raises(RuntimeError):
        writer.append(1.0)
    with pytest.raises(ValueError):
        client.trajectory_writer(0)


def test_signature(client):
    with client.trajectory_writer(5) as writer:
        for t in range(3):
            writer.append({"x": np.zeros(2), "y": t})
        history = writer.history
        writer.create_item("signed", 1.0, {"x": history["x"][:], "y": history["y"][-1]})
        for bad in ({"x": history["x"][:], "y": history["y"][:]}, {"x": history["x"][:]}):
            with pytest.raises(ValueError, match="signature"):
                writer.create_item("signed", 1.0, bad)
    assert item(client, "signed")["x"].shape == (3, 2)


def test_time_outs(client):
    writer = client.trajectory_writer(2)
    for t in range(2):
        writer.append({"x": t})
        writer.create_item("full", 1.0, writer.history["x"][-1:])
    writer.flush(block_until_num_items=1, timeout_ms=60_000)
    start = time.monotonic()
    with pytest.raises(reverb.errors.DeadlineExceededError):
        writer.flush(timeout_ms=50)
    with pytest.raises(TimeoutError):
        writer.end_episode(timeout_ms=50)
    assert time.monotonic() - start < 60 and writer.episode_steps == len(writer.history["x"]) == 2
    with beside(lambda: list(client.sample("full", 2))):
        writer.close()


def test_an_episode_with_other_columns(client):
    with client.trajectory_writer(3) as writer:
        for step in ({"a": 1.0}, {"a": 2.0, "z": 5.0}, {"z": 7.0}):
            writer.append(step)
            writer.create_item("t", 1.0, {name: writer.history[name][-1:] for name in step})
            writer.end_episode()
    assert [sorted(item(client)) for _ in range(3)] == [["a"], ["a", "z"], ["z"]]


def test_a_step_that_the_stream_did_not_get(client, monkeypatch):
    """What an exception in the middle of an append leaves is what items become."""
    with client.trajectory_writer(num_keep_alive_refs=4) as writer:
        for x in range(4):
            with monkeypatch.context() as patch, contextlib.ExitStack() as stack:
                if x == 2:
                    patch.setattr(replaybus.Writer, "append", mock.Mock(side_effect=KeyboardInterrupt))
                    stack.enter_context(pytest.raises(KeyboardInterrupt))
                writer.append({"x": x})
        seen = writer.history["x"][-3:]
        writer.create_item("t", 1.0, {"x": seen})
        writer.flush()
        assert item(client)["x"].tolist() == [value.numpy() for value in seen]


def test_rows_of_another_writer_are_refused(client):
    with client.trajectory_writer(3) as one, client.trajectory_writer(3) as two:
        one.append({"a": 1.0})
        two.append({"a": 77.0})
        with pytest.raises(ValueError, match="another writer"):
            two.create_item("t", 1.0, {"a": one.history["a"][-1:]})
    assert size(client) == 0


def test_rows_are_chosen_by_numbers(client):
    with client.trajectory_writer(3) as writer:
        for value in range(3):
            writer.append({"a": float(value)})
        column = writer.history["a"]
        assert list(column[np.array([2, 0])].numpy()) == [2, 0]
        for wrong, error in ((np.array([False, True, True]), TypeError), ([0.9], TypeError), ([], ValueError)):
            with pytest.raises(error):
                column[wrong]


def test_items_of_an_open_step(client):
    with client.trajectory_writer(4) as writer:
        writer.append({"a": 1, "b": 1})
        writer.append({"a": 2}, partial_step=True)
        writer.create_item("t", 1.0, {"a": writer.history["a"][-2:]})
        writer.create_item("t", 1.0, {"b": writer.history["b"][-1:]})  # comes after the item before it
        writer.flush(timeout_ms=60_000)
        assert size(client) == 2
        writer.create_item("t", 1.0, {"a": writer.history["a"][-1]})
        writer.append({"b": 2})
        writer.create_item("t", 1.0, {"b": writer.history["b"][:]})
        for priority in (-1.0, float("nan"), float("inf")):
            with pytest.raises(ValueError):
                writer.create_item("t", priority, {"b": writer.history["b"][:]})
    assert [[column.tolist() for column in sample.data] for sample in client.sample("t", 4, emit_timesteps=False)] == [
        [[1, 2]], [[1]], [2], [[1, 2]]]


def test_an_item_of_an_open_step_keeps_the_time_out(client):
    client.insert(0, {"full": 1.0})
    writer = client.trajectory_writer(2)
    writer.append({"a": 1, "b": 1})
    writer.create_item("full", 1.0, {"a": writer.history["a"][-1]})
    writer.append({"a": 2}, partial_step=True)
    writer.create_item("full", 1.0, {"a": writer.history["a"][-1]})
    start = time.monotonic()
    for _ in range(2):
        with pytest.raises(reverb.DeadlineExceededError):
            writer.flush(timeout_ms=30)
    assert time.monotonic() - start < 60
    with beside(lambda: list(client.sample("full", 3, emit_timesteps=False))):
        writer.flush(timeout_ms=60_000)
    writer.close()


@pytest.mark.parametrize("kind", ["writer", "trajectory_writer"])
def test_a_block_that_fails_while_its_table_is_full(monkeypatch, kind):
    """The writer is closed, its items that have no room are given up, and the exception is the program's own."""
    monkeypatch.setattr(reverb.trajectory_writer, "EXIT_MS", 30)
    with served_reverb(reverb.Table.queue("full", 1)) as client:
        client.insert(0, {"full": 1.0})
        with pytest.raises(ZeroDivisionError), getattr(client, kind)(2) as writer:
            writer.append(1)
            writer.create_item("full", *((1, 1.0) if kind == "writer" else (1.0, writer.history[-1])))
            1 / 0
        with pytest.raises((ValueError, RuntimeError), match="closed"):
            writer.append(1)
        with getattr(client, kind)(2) as writer:
            writer.close()  # a block whose writer was closed ends without an error
        if kind == "writer":
            with pytest.raises(ValueError, match="closed"), writer:
                pass


def test_closing_gives_up_after_a_time_out(client):
    client.insert(0, {"full": 1.0})
    writer = client.trajectory_writer(2)
    writer.append(1)
    writer.create_item("full", 1.0, writer.history[-1])
    with pytest.raises(reverb.DeadlineExceededError):
        writer.flush(timeout_ms=20)
    start = time.monotonic()
    writer.close()
    writer.close()
    assert time.monotonic() - start < 60


STEP = {"a": None, "b": {"c": None}}


def written(client, *configs, episodes=(5,)):
    """The items, as lists, that these rules make of episodes with a = 0, 1, 2 ... and c = 10 * a."""
    with client.structured_writer(configs) as writer:
        for steps in episodes:
            for t in range(steps):
                writer.append({"a": t, "b": {"c": 10.0 * t}})
            writer.end_episode()
    count = client.server_info()["t"].current_size
    samples = reverb.TrajectoryDataset(client.server_address, "t", max_samples=count) if count else []
    return [sample.data.tolist() if isinstance(sample.data, np.ndarray) else
            {name: value.tolist() for name, value in sample.data.items()} for sample in samples]


def test_patterns(client):
    step = create_reference_step(STEP)
    config = create_config({"a": step["a"][-3:-1], "c": step["b"]["c"][-1]}, "t")
    assert written(client, config, episodes=(4, 2, 3)) == [
        {"a": [0, 1], "c": 20}, {"a": [1, 2], "c": 30}, {"a": [0, 1], "c": 20}]
    strided = create_config(pattern_from_transform(STEP, lambda step: step["a"][-3::2]), "t")
    assert written(client, strided) == [[0, 2], [1, 3], [2, 4]]


@pytest.mark.parametrize("conditions, expected", [
    ([Condition.step_index() % 2 == 1], [1, 3]),
    ([Condition.step_index() >= 3], [3, 4]),
    ([Condition.step_index() != 2, Condition.step_index() < 4], [0, 1, 3]),
    ([Condition.steps_since_applied() >= 2], [1, 3]),
    ([Condition.is_end_episode()], [4]),
    ([Condition.data(STEP)["b"]["c"] > 25], [3, 4]),
    ([Condition.data(STEP)["a"] <= 0], [0]),
    ([Condition.is_end_episode(), Condition.step_index() < 3], []),
])
def test_conditions(client, conditions, expected):
    assert written(client, create_config(create_reference_step(STEP)["a"][-1], "t", conditions)) == expected


def test_several_rules_and_partial_steps(client):
    step = create_reference_step({"a": None, "b": None})
    rules = [create_config({"a": step["a"][-1]}, "t"), create_config({"b": step["b"][-2:]}, "t")]
    with client.structured_writer(rules) as writer:
        writer.append({"a": 1}, partial_step=True)
        assert writer.step_is_open
        writer.append({"b": 1})
        writer.append({"a": 2, "b": None})  # the second rule has no value to take
        writer.append({"a": 3}, partial_step=True)
        writer.end_episode()
        assert not writer.step_is_open
    samples = list(reverb.TrajectoryDataset(client.server_address, "t", max_samples=3))
    assert [int(sample.data["a"]) for sample in samples] == [1, 2, 3]
    assert client.server_info()["t"].current_size == 0


def test_wrong_rules(client):
    column = create_reference_step(STEP)["a"]
    for rows in (0, slice(0, 2), slice(None, None), slice(-1, -2), slice(-2, None, -1), slice(-3, 1)):
        with pytest.raises(ValueError):
            column[rows]
    with pytest.raises(TypeError):
        create_config({"a": column}, "t")
    with pytest.raises(TypeError):
        create_config(column[-1], "t", [Condition.step_index()])
    with pytest.raises(ValueError):
        client.structured_writer([])


def test_repeated_end_makes_no_second_item():
    with served_reverb(reverb.Table.queue("t", 1)) as client:
        client.insert(0, {"t": 1.0})
        rule = create_config(create_reference_step(None)[-1], "t", [Condition.is_end_episode()])
        with client.structured_writer([rule]) as writer:
            writer.append(7)
            for _ in range(2):
                with pytest.raises(reverb.DeadlineExceededError):
                    writer.end_episode(timeout_ms=30)
            assert [int(steps[0].data[0]) for steps in client.sample("t", 1)] == [0]
            writer.end_episode(timeout_ms=60_000)
        assert client.server_info()["t"].current_size == 1


def test_infer_signature():
    step = {"a": np.zeros((3, 4), np.float32), "b": [reverb.TensorSpec((), np.int8), np.zeros(2)]}
    row = create_reference_step(step)

    def rule(pattern, table="t"):
        return create_config(pattern, table)
    one = infer_signature([rule({"x": row["a"][-6::2], "y": (row["b"][0][-1], row["b"][1][-2:])})], step)
    assert one == {"x": reverb.TensorSpec((3, 3, 4), np.float32, "x"),
                   "y": (reverb.TensorSpec((), np.int8, "y/0"), reverb.TensorSpec((2, 2), np.float64, "y/1"))}
    both = infer_signature([rule({"x": row["a"][-2:]}), rule({"x": row["a"][-3:-1]}), rule({"x": row["a"][-3:]})], step)
    assert both == {"x": reverb.TensorSpec((None, 3, 4), np.float32)}
    for wrong in ([], [rule(row["a"][-1]), rule(row["a"][-1], "u")], [rule({"x": row["a"][-1]}), rule({"y": row["a"][-1]})],
                  [rule(row["a"][-1]), rule(row["b"][1][-1])], [rule(row["a"][-1]), rule(row["a"][-1:])]):
        with pytest.raises(ValueError):
            infer_signature(wrong, step)
    with pytest.raises(ValueError):
        infer_signature([rule(row["a"][-1])], {"b": np.zeros(2)})
    with reverb.Server([reverb.Table.queue("t", 10, signature=one)]) as server:
        assert server.localhost_client().server_info()["t"].signature == one


def test_td_error(client):
    priority = td_error(0.75, STEP, lambda step: step["b"]["c"])
    rule = create_config(create_reference_step(STEP)["a"][-2:], "t", priority=priority)
    with client.structured_writer([rule]) as writer:
        for t, error in enumerate((1.0, -3.0, 0.0)):
            writer.append({"a": t, "b": {"c": error}})
    assert [steps[0].info.priority for steps in client.sample("t", 2)] == [0.75 * 3 + 0.25 * 2, 0.75 * 3 + 0.25 * 1.5]
    for weight, column in ((2.0, lambda step: step["a"]), (0.5, lambda step: step)):
        with pytest.raises((ValueError, TypeError)):
            td_error(weight, STEP, column)


def test_steps_have_the_columns_of_the_first(client):
    rule = create_config(create_reference_step(STEP)["b"]["c"][-1], "t")
    assert unpack_pattern(rule) == create_reference_step(STEP)["b"]["c"][-1]
    with client.structured_writer([rule]) as writer:
        writer.append({"a": 1, "b": {"c": 1}})
        for wrong in ({"a": 1, "b": {"c": 1.5}}, {"a": 1, "b": {"c": np.zeros(2, int)}}, {"a": 1, "b": {"c": 1, "d": 1}}):
            with pytest.raises(ValueError):
                writer.append(wrong)
        writer.append({"b": {"c": 2}})
    assert [int(steps.data[0]) for steps in client.sample("t", 2, emit_timesteps=False)] == [1, 2]


def values(history):
    return [reference and reference.numpy().tolist() for reference in history]


def test_values_expire_in_the_history(client):
    with client.trajectory_writer(4) as writer:
        references = [writer.append(t) for t in range(6)]
        assert values(writer.history) == [2, 3, 4, 5] and len(writer.history) == 6
        assert [reference.expired for reference in references] == [True] * 2 + [False] * 4
        assert values(writer.history[:]) == [2, 3, 4, 5] and values(writer.history[::-1]) == [5, 4, 3, 2]
        assert values(writer.history[3:]) == [3, 4, 5]
        for rows in (1, slice(1, None), [0, 5], -5):
            with pytest.raises(ValueError):
                writer.history[rows]
        writer.end_episode()
        assert all(reference.expired for reference in references)


@pytest.mark.parametrize("error, flushes", [(None, 1), (ValueError, 1), (reverb.ReverbError, 0)])
def test_what_a_block_does_at_its_end(client, error, flushes):
    with mock.patch.object(reverb.TrajectoryWriter, "flush") as flush, contextlib.suppress(ValueError, reverb.ReverbError):
        with client.trajectory_writer(1) as writer:
            if error:
                raise error("test")
    assert flush.call_count == flushes
    with pytest.raises(RuntimeError, match="closed"):
        writer.append(1)


def test_configure(client):
    with client.trajectory_writer(1) as writer:
        writer.configure(("y",), num_keep_alive_refs=2, max_chunk_length=None)  # of a column to come
        references = [writer.append({"x": t, "y": t}) for t in range(3)]
        assert [[reference[name].expired for reference in references] for name in "xy"] == [[True, True, False], [True, False, False]]
        writer.configure(("x",), num_keep_alive_refs=3, max_chunk_length=3)
        assert not references[0]["x"].expired
        writer.append({"x": 3, "y": 3})
        writer.create_item("t", 1.0, {name: writer.history[name][-2:] for name in "xy"})
        for keep, chunk in ((0, None), (2, 0), (2, 3)):
            with pytest.raises(ValueError):
                writer.configure(("x",), num_keep_alive_refs=keep, max_chunk_length=chunk)
    assert {name: rows.tolist() for name, rows in item(client).items()} == {"x": [2, 3], "y": [2, 3]}


def test_columns_of_references(client):
    with client.trajectory_writer(4) as writer:
        image, number = writer.append([np.zeros((2, 3), np.int8), 7])
        column = reverb.TrajectoryColumn([image] * 4)
        assert len(column) == 4 and column.shape == (4, 2, 3) and column.dtype == np.int8 and column.numpy().shape == (4, 2, 3)
        one = reverb.TrajectoryColumn([number], squeeze=True)
        assert one.shape == () and one.numpy() == 7
        for references, squeeze in (([], True), ([number] * 2, True), ([None], False), ([number, None], False)):
            with pytest.raises(ValueError):
                reverb.TrajectoryColumn(references, squeeze=squeeze)
        other, = writer.append([np.ones((2, 3), np.int8)])
        writer.create_item("t", 1.0, [reverb.TrajectoryColumn([image, other]), one])
    assert [field.tolist() for field in item(client)] == [np.stack([np.zeros((2, 3)), np.ones((2, 3))]).tolist(), 7]


@pytest.mark.parametrize("value, message", [({"a": [1, 2.0]}, r"dtype.*\('a', 1\).*double.*int64"),
                                            ({"a": [1, np.zeros((2, 3), int)]}, r"shape.*\('a', 1\).*\[2,3\].*\[\]")])
def test_refused_values_change_nothing(client, value, message):
    with client.trajectory_writer(3) as writer:
        writer.append({"a": [1, 2]})
        with pytest.raises(ValueError, match=message):
            writer.append(value)
        assert writer.episode_steps == 1 and len(writer.history["a"][0]) == 1
        writer.append({"a": [3, 4]})
        assert writer.history["a"][0][:].numpy().tolist() == [1, 3]


def test_structures_that_contradict(client):
    with client.trajectory_writer(3) as writer:
        writer.append({"a": {"b": 1}})
        named, turned = (collections.namedtuple("Pair", fields)(1, 2) for fields in ("x y", "y x"))
        writer.append({"a": None, "pair": named})
        for other, why in (({"a": 1}, "a leaf is in the place of a dict"), ([1], "a list"), (1, "a leaf"),
                           ({"pair": turned}, r"a test_reverb_writer.Pair\(y, x\) is in the place of a test_reverb_writer.Pair\(x, y\)")):
            with pytest.raises(ValueError, match=why):
                writer.append(other)
        writer.append({"a": None, "c": 1})
        assert writer.episode_steps == 3
