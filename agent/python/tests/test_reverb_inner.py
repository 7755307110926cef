"""Reverb's interface: the layer below the writers, and writers on top of a layer of one's own."""
from unittest import mock

import numpy as np
import pytest

import replaybus.reverb as reverb
from replaybus.reverb import pybind


class Value:
    """A reference that a layer of one's own gives."""

    expired = False

    def __init__(self, data):
        self.data = data
        self.shape, self.dtype = np.shape(data), np.asarray(data).dtype

    def numpy(self):
        return self.data


@pytest.fixture
def layer():
    layer = mock.Mock()
    layer.Append.side_effect = layer.AppendPartial.side_effect = lambda values: [
        None if value is None else Value(value) for value in values]
    layer.max_num_keep_alive_refs = 4
    return layer


@pytest.fixture
def writer(layer):
    return reverb.trajectory_writer.TrajectoryWriter(layer)


def values(history):
    return [reference and reference.data for reference in history]


def test_columns_keep_their_numbers(layer, writer):
    writer.append({"b": 1, "a": [2, 3]})
    layer.Append.assert_called_with([2, 3, 1])
    writer.append({"b": 4, "new": 5}, partial_step=True)
    layer.AppendPartial.assert_called_with([None, None, 4, 5])
    writer.append({"a": [6, None], "new": None})
    layer.Append.assert_called_with([6, None, None, None])
    history = writer.history
    assert values(history["a"][0]) == [2, 6] and values(history["a"][1]) == [3, None]
    assert values(history["b"]) == [1, 4] and values(history["new"]) == [None, 5]
    assert writer.episode_steps == 2


def test_values_expire_in_the_history(writer):
    for t in range(6):
        writer.append(t)
    assert values(writer.history) == [2, 3, 4, 5] and len(writer.history) == 6
    assert [ref.data for ref in writer.history[:]] == [2, 3, 4, 5]
    assert [ref.data for ref in writer.history[::-1]] == [5, 4, 3, 2]
    assert [ref.data for ref in writer.history[3:]] == [3, 4, 5]
    for rows in (1, slice(1, None), [0, 5], -5):
        with pytest.raises(ValueError):
            writer.history[rows]


def test_items(layer, writer):
    for t in range(3):
        writer.append({"x": t})
    history = writer.history["x"]
    writer.create_item("table", 0.5, {"last": history[-1], "some": history[[2, 0]], "all": history[:]})
    table, priority, columns, squeeze = layer.CreateItem.call_args.args
    assert (table, priority, squeeze) == ("table", 0.5, [False, True, False])
    assert [[ref.data for ref in refs] for refs in columns] == [[0, 1, 2], [2], [2, 0]]
    with pytest.raises(TypeError):
        writer.create_item("table", 0.5, {"last": next(iter(history))})


def test_waiting(layer, writer):
    writer.append(1)
    writer.flush(3, timeout_ms=20)
    layer.Flush.assert_called_with(3, 20)
    layer.EndEpisode.side_effect = reverb.DeadlineExceededError("full")
    with pytest.raises(reverb.DeadlineExceededError):
        writer.end_episode(timeout_ms=1)
    assert writer.episode_steps == 1 and len(writer.history) == 1
    layer.EndEpisode.side_effect = None
    writer.end_episode(clear_buffers=False)
    assert writer.episode_steps == 0 and len(writer.history) == 1
    writer.end_episode()
    layer.EndEpisode.assert_called_with(True, None)
    assert len(writer.history) == 0
    with pytest.raises(ValueError):
        writer.flush(-1)


@pytest.mark.parametrize("error, flushes", [(None, 1), (ValueError, 1), (reverb.ReverbError, 0)])
def test_what_a_block_does_at_its_end(layer, writer, error, flushes):
    try:
        with writer:
            if error:
                raise error("test")
    except (ValueError, reverb.ReverbError):
        pass
    assert layer.Flush.call_count == flushes and layer.Close.call_count == 1


def test_configure(layer, writer):
    writer.configure(("y",), num_keep_alive_refs=2, max_chunk_length=None)
    writer.append({"x": 1})
    layer.ConfigureChunker.assert_not_called()
    writer.append({"x": 1, "y": 2})
    layer.ConfigureChunker.assert_called_once_with(1, pybind.AutoTunedChunkerOptions(2, 1.0))
    writer.configure(("x",), num_keep_alive_refs=3, max_chunk_length=3)
    layer.ConfigureChunker.assert_called_with(0, pybind.ConstantChunkerOptions(max_chunk_length=3, num_keep_alive_refs=3))
    for keep, chunk in ((0, None), (2, 0), (2, 3)):
        with pytest.raises(ValueError):
            writer.configure(("x",), num_keep_alive_refs=keep, max_chunk_length=chunk)


def test_columns():
    column = reverb.TrajectoryColumn([Value(np.zeros((2, 3), np.int8))] * 4)
    assert len(column) == 4 and column.shape == (4, 2, 3) and column.dtype == np.int8 and column.numpy().shape == (4, 2, 3)
    one = reverb.TrajectoryColumn([Value(7)], squeeze=True)
    assert one.shape == () and one.numpy() == 7
    for references, squeeze in (([], True), ([Value(1)] * 2, True), ([None], False), ([Value(1), None], False)):
        with pytest.raises(ValueError):
            reverb.TrajectoryColumn(references, squeeze=squeeze)


@pytest.fixture(scope="module")
def client():
    with reverb.Server([reverb.Table.queue("queue", 100)]) as server:
        yield server.localhost_client()


def test_the_layer_itself(client):
    layer = pybind.TrajectoryWriter(client, 2)
    one, none = layer.AppendPartial([np.float32(1), None])
    assert none is None and layer.step_is_open and not one.expired and one.numpy() == 1 and one.dtype == np.float32
    (_, two), (three, _) = layer.Append([None, 2]), layer.Append([np.float32(3), None])
    layer.CreateItem("queue", 1.0, [[one, three], [two]], [False, True])
    layer.Append([np.float32(4), None])
    assert one.expired and two.expired and not three.expired
    with pytest.raises(ValueError):
        layer.CreateItem("queue", 1.0, [[one]], [True])
    layer.ConfigureChunker(0, pybind.ConstantChunkerOptions(1, 5))
    assert not one.expired
    layer.Flush(0, 5000)
    assert [field.tolist() for field in next(client.sample("queue", emit_timesteps=False)).data] == [[1, 3], 2]
    layer.EndEpisode(True, 5000)
    assert one.expired and three.expired
    layer.Close()
    with pytest.raises(RuntimeError):
        layer.Append([1])


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
        for other in ({"a": 1}, [1], 1):
            with pytest.raises(ValueError):
                writer.append(other)
        writer.append({"a": None, "c": 1})
        assert writer.episode_steps == 2
