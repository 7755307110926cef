"""Reverb's interface: writers, their histories, and what their items become."""
import threading
import time

import numpy as np
import pytest

import replaybus
import replaybus.reverb as reverb


@pytest.fixture(scope="module")
def reverb_server():
    def table(name, **more):
        return reverb.Table(name, reverb.selectors.Fifo(), reverb.selectors.Fifo(), 1000, reverb.rate_limiters.MinSize(1),
                            max_times_sampled=1, **more)
    signature = {"x": replaybus.Field("float64", (None, 2)), "y": replaybus.Field("int64", ())}
    with reverb.Server([table("t"), table("signed", signature=signature), table("other"),
                        reverb.Table.queue("full", 1)]) as server:
        yield server


@pytest.fixture
def client(reverb_server):
    client = reverb.Client(f"localhost:{reverb_server.port}")
    for name in client.server_info():
        client.reset(name)
    return client


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
        with pytest.raises(TypeError):
            writer.create_item("t", 1.0, {"a": np.zeros(2)})
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
        writer.append(3.0)
        writer.create_item("t", 1.0, writer.history[-2:])
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
    assert time.monotonic() - start < 60
    reader = threading.Thread(target=lambda: list(client.sample("full", 2)))
    reader.start()
    writer.close()
    reader.join(60)
    assert not reader.is_alive()


def test_an_episode_with_other_columns(client):
    with client.trajectory_writer(3) as writer:
        for step in ({"a": 1.0}, {"a": 2.0, "z": 5.0}, {"z": 7.0}):
            writer.append(step)
            writer.create_item("t", 1.0, {name: writer.history[name][-1:] for name in step})
            writer.end_episode()
    assert [sorted(item(client)) for _ in range(3)] == [["a"], ["a", "z"], ["z"]]


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
    reader = threading.Thread(target=lambda: list(client.sample("full", 3, emit_timesteps=False)))
    reader.start()
    writer.flush(timeout_ms=60_000)
    reader.join(60)
    assert not reader.is_alive()
    writer.close()


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
