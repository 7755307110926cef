"""Reverb's interface: items by rule."""
import numpy as np
import pytest

import replaybus.reverb as reverb
from conftest import served_reverb
from replaybus.reverb.structured_writer import (Condition, create_config, create_reference_step, infer_signature,
                                                pattern_from_transform, td_error, unpack_pattern)

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
