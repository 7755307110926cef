"""replaybus.statistics: what several processes have seen is one mean and one variance."""
import os

import numpy as np
import pytest

import replaybus
from conftest import served
from replaybus import statistics
from replaybus.statistics import Statistics, normalize


@pytest.fixture(autouse=True)
def fresh_process(monkeypatch):
    monkeypatch.setattr(statistics, "_numbers", statistics.collections.defaultdict(statistics.itertools.count))
    monkeypatch.setattr(statistics, "_here", statistics.collections.defaultdict(dict))
    for name in (statistics.ACTOR, statistics.FOLDER):
        monkeypatch.setenv(name, "")  # and nothing is left of what a test sets


def test_writers_and_readers_agree_with_numpy(client):
    rng, seen = np.random.default_rng(1), []
    writers = [Statistics((3,), "agree", client=client, index=i, every=7) for i in (0, 1, 1)]  # two environments of one actor
    reader = Statistics((3,), "agree", client=client, index=None)
    assert reader.count == 0 and (reader.scale(np.ones(3)) == 1).all()
    for _ in range(20):
        for writer in writers:
            seen.append(rng.normal(5, 3, (int(rng.integers(0, 4)), 3)))
            writer.update(seen[-1])
    for statistic in (*writers, *writers, reader):
        statistic.sync()
    values = np.concatenate(seen)
    for statistic in (*writers, reader):
        assert statistic.count == len(values)
        np.testing.assert_allclose(statistic.mean, values.mean(0))
        np.testing.assert_allclose(statistic.variance, values.var(0))
    reader.update(values + 100)
    assert reader.count == len(values)  # it reads only


def test_a_restarted_actor_goes_on(client, monkeypatch):
    first = Statistics((), "again", client=client, index=4)
    first.update([1.0, 2.0, 3.0])
    first.sync()
    monkeypatch.setattr(statistics, "_numbers", statistics.collections.defaultdict(statistics.itertools.count))
    second = Statistics((), "again", client=client, index=4)
    assert second.count == 3
    second.update([4.0])
    second.sync()
    assert Statistics((), "again", client=client, index=None).mean == 2.5


def test_a_run_keeps_them_for_its_weights_and_for_those_who_resume_it(client, tmp_path, monkeypatch):
    from replaybus.actor.__main__ import _announce

    def begin(*words):
        monkeypatch.setattr(statistics, "_numbers", statistics.collections.defaultdict(statistics.itertools.count))
        _announce(list(words))

    def of_weights(place):
        begin("--weights", str(tmp_path / place), "--endpoint", client.endpoint)
        return normalize(Env(), "kept")

    with pytest.warns(RuntimeWarning):
        assert of_weights("best.weights").statistics.count == 0
    begin("--endpoint", client.endpoint, "--index", "1", "--folder", str(tmp_path))
    Statistics((2,), "kept").update([[10.0, 20.0]])
    begin("--endpoint", client.endpoint, "--index", "0", "--folder", str(tmp_path))
    Statistics((2,), "kept").update([[0.0, 0.0]])
    for place in ("best.weights", "snapshots/000000000100.weights"):
        env = of_weights(place)
        assert env.reset()[0].tolist() == [-1.0, -1.0] and env.statistics.mean.tolist() == [5.0, 10.0]
    with served(replaybus.Table("t")) as other:  # the broker of a run that is resumed without a journal has none
        for index, own in (("1", 0), ("0", 2)):  # in sum they are counted once
            begin("--endpoint", other.endpoint, "--index", index, "--folder", str(tmp_path))
            env = normalize(Env(), "kept")
            assert env.statistics.count == 2 and env.statistics._own[0, 0] == own
        env.statistics.update([[5.0, 10.0]])
        other.counter("run_folder").add(-7)  # from here on they are the tables of another run
        begin("--endpoint", other.endpoint, "--evaluate")
        (tmp_path / "actor-0.kept.npy").unlink()
        env = normalize(Env(), "kept")
        assert env.statistics.count == 0
        np.save(tmp_path / "actor-0.kept.npy", np.full((3, 2), 5.0))  # comes home from a host, whose actors have no slots
        env.reset()
        assert env.statistics.count == 5
    (tmp_path / "actor-0.kept.npy").write_bytes(b"")
    with pytest.warns(RuntimeWarning):
        assert of_weights("best.weights").statistics.count == 0


def test_a_run_in_one_process_shares_them_and_begins_from_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv(statistics.ACTOR, statistics.HERE)
    monkeypatch.setenv(statistics.FOLDER, str(tmp_path))
    np.save(tmp_path / "actor-0.one.npy", np.ones((3, 2)))
    evaluator, *players = (normalize(Env(), "one", every=1) for _ in range(3))
    assert [env.statistics.count for env in (evaluator, *players)] == [0] * 3
    for env, action in zip(players, (4.0, 8.0)):
        env.reset(), env.step(action)
    assert evaluator.reset()[0].tolist() == players[1].statistics.scale([0.0, 0.0]).tolist() and evaluator.statistics.count == 4
    assert (np.load(tmp_path / "actor-0.one.npy")[:2, 0] == [4, 3]).all()


@pytest.mark.parametrize("as_objects", [False, True])
def test_a_vector_of_environments_shares_them_and_its_last_observations_are_scaled(as_objects):
    envs = pytest.importorskip("replaybus.envs", reason="the extension _agent is not built here")

    class Vector(envs.VectorEnv):
        def step(self, actions):
            *out, info = super().step(actions)
            if as_objects and info:
                rows = np.full(2, None)
                for i in np.flatnonzero(info["_final_obs"]):
                    rows[i] = info["final_obs"][i]
                info = {"final_obs": rows, "_final_obs": info["_final_obs"]}
            return (*out, info)

    with Vector("CartPole-v1", 2) as plain, Vector("CartPole-v1", 2) as inner:
        env = normalize(inner)
        assert (env.single_observation_space.shape, env.observation_space.shape, env.statistics.mean.shape) == ((4,), (2, 4), (4,))
        plain.reset(seed=1), env.reset(seed=1)
        info = {}
        while not info:
            *_, wanted = plain.step([1, 1])
            *_, info = env.step([1, 1])
        i = int(np.flatnonzero(info["_final_obs"])[0])
        assert (info["final_obs"][i] == env.statistics.scale(wanted["final_obs"][i])).all()


class Env:
    observation_space = type("Box", (), {"shape": (2,)})()
    action_space = "the same"

    def reset(self, *, seed=None, options=None):
        return np.zeros(2), {"seed": seed}

    def step(self, action):
        return np.full(2, action), 1.0, False, True, {}


def test_environments_of_actors_and_the_evaluator(client, server, monkeypatch):
    from replaybus.actor.__main__ import _announce
    _announce(["--endpoint", server.endpoint, "--index", "2", "-c", "run.yaml"])
    assert os.environ[statistics.ACTOR] == f"{server.endpoint} 2"
    env = normalize(Env(), "env", every=1)
    assert env.reset(seed=3)[1] == {"seed": 3} and env.action_space == "the same" and env.observation_space.shape == (2,)
    observation, reward, *_ = env.step(4.0)
    assert observation.tolist() == [1.0, 1.0] and observation.dtype == np.float32 and reward == 1.0  # mean 2, deviation 2
    _announce(["-e", server.endpoint, "--evaluate"])
    evaluator = normalize(Env(), "env")
    assert evaluator.reset()[0].tolist() == [-1.0, -1.0] and evaluator.statistics.count == 2
    env.step(4.0), evaluator.reset()
    assert evaluator.statistics.count == 3
    os.environ.pop(statistics.ACTOR)
    assert normalize(Env(), "env").statistics.count == 0  # outside of a run
