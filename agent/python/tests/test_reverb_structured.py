"""Reverb's interface: items by rule."""
import numpy as np
import pytest

import replaybus.reverb as reverb
from replaybus.reverb.structured_writer import Condition, create_config, create_reference_step, pattern_from_transform

STEP = {"a": None, "b": {"c": None}}


@pytest.fixture(scope="module")
def reverb_server():
    with reverb.Server([reverb.Table.queue("t", 1000)]) as server:
        yield server


@pytest.fixture
def client(reverb_server):
    client = reverb_server.localhost_client()
    client.reset("t")
    return client


def written(client, *configs, episodes=(5,)):
    """The items, as lists, that these rules make of episodes with a = 0, 1, 2 ... and c = 10 * a."""
    with client.structured_writer(configs) as writer:
        for steps in episodes:
            for t in range(steps):
                writer.append({"a": t, "b": {"c": 10.0 * t}})
            writer.end_episode()
    count = client.server_info()["t"].current_size
    samples = client.sample("t", count, emit_timesteps=False, unpack_as_table_signature=True) if count else []
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
    samples = list(client.sample("t", 3, emit_timesteps=False, unpack_as_table_signature=True))
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
    with reverb.Server([reverb.Table.queue("t", 1)]) as server:
        client = server.localhost_client()
        client.insert(0, {"t": 1.0})
        rule = create_config(create_reference_step(None)[-1], "t", [Condition.is_end_episode()])
        with client.structured_writer([rule]) as writer:
            writer.append(7)
            for _ in range(2):
                with pytest.raises(reverb.DeadlineExceededError):
                    writer.end_episode(timeout_ms=30)
            assert [int(steps[0].data[0]) for steps in client.sample("t", 1)] == [0]
            writer.end_episode(timeout_ms=5000)
        assert client.server_info()["t"].current_size == 1
