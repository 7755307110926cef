"""Actors whose environments are stepped in Python."""
import gc
import json
import os
import signal
import subprocess
import sys
import threading
import time
import types
import weakref

import numpy as np
import pytest

import replaybus
from conftest import BUILD, beside, in_child, rss_bytes, run_threads, served
from replaybus import spaces, weights
from test_adapter import Dict

envs = pytest.importorskip("replaybus.envs", reason="the extension _agent is not built here")

ACTOR = os.environ.get("RP_ACTOR", str(BUILD / "replay-actor"))
needs_programs = pytest.mark.skipif(not os.access(ACTOR, os.X_OK), reason="needs the programs of a build tree")

ONCE = replaybus.Table("replay", sampler="fifo", max_times_sampled=1, max_size=100_000)


def run_config(environment="CartPole-v1", algorithm="dqn", table=ONCE, **more):
    config = {"environment": {"name": environment}, "agent": {"algorithm": algorithm, "hidden": [16]},
              "adder": {"table": "replay", "n_step": 3}, "actors": {"count": 1, "epsilon": 0.3, "pull_every": 7, "random_steps": 40},
              "broker": {"tables": [table]}}
    for key, value in more.items():
        config[key] = {**config.get(key, {}), **value} if isinstance(value, dict) else value
    return config


def own_config(**more):
    """A run whose environment only the program knows."""
    return {key: value for key, value in run_config(**more).items() if key != "environment"}


def policy(config, seed=0, scale=1.0):
    """Parameters of the network of a configuration, by their names."""
    env = envs.make(config["environment"]["name"])
    inputs, hidden = int(np.prod(env.observation_space.shape)), config["agent"]["hidden"][0]
    rng = np.random.default_rng(seed)
    nets = {"q": (inputs, env.action_space.n)} if config["agent"]["algorithm"] == "dqn" else {
        "policy": (inputs, env.action_space.shape[0]), "q1": (inputs + env.action_space.shape[0], 1)}
    out = {}
    for name, (rows, columns) in nets.items():
        for layer, shape in enumerate([(rows, hidden), (hidden, columns)]):
            out[f"{name}/layer{layer}/weight"] = (scale * rng.normal(size=shape) / shape[0] ** 0.5).astype("float32")
            out[f"{name}/layer{layer}/bias"] = (scale * rng.normal(size=shape[1]) / 3).astype("float32")
    out["steps"] = np.array([seed + 1], "uint64")
    return out


@pytest.fixture
def broker():
    with replaybus.Server([ONCE, replaybus.Table("other")]) as server, server.client(timeout=60) as client:
        yield types.SimpleNamespace(endpoint=server.endpoint, client=client)


def take_all(client, table="replay"):
    """All items of a table that gives each of them once, in their order: a dict of arrays."""
    size = next(row["size"] for row in client.info()["tables"] if row["name"] == table)
    batch = client.sampler(table, batch_size=size, in_flight=1).next(60)
    return {**{key: np.array(value) for key, value in batch.data.items()}, "priority": np.array(batch.priority),
            "policy": np.array(batch.policy)}


def play(actor, env, steps):
    """A loop over one environment, seeded as the C actor seeds its own."""
    observation, _ = env.reset(seed=actor.seeds()[0])
    actor.observe_first(observation)
    for _ in range(steps):
        observation, reward, terminated, truncated, _ = env.step(actor.act(observation))
        actor.observe(reward, terminated, truncated, observation)
        if terminated or truncated:
            observation, _ = env.reset()
            actor.observe_first(observation)


def play_many(actor, env, rounds):
    observations, _ = env.reset(seed=actor.seeds())
    actor.observe_first(observations)
    for _ in range(rounds):
        observations, *rest, info = env.step(actor.act(observations))
        actor.observe(*rest, observations, info)


def c_items(config, steps, tmp_path, tensors):
    """What replay-actor writes with these parameters."""
    path = tmp_path / "run.json"
    path.write_text(json.dumps({**config, "stop": {"steps": steps}}))
    with replaybus.Server([ONCE]) as server, server.client(timeout=60) as client:
        client.params["policy"] = weights.encode(tensors)
        subprocess.run([ACTOR, "-c", str(path), "-e", server.endpoint], check=True, timeout=120, capture_output=True)
        return take_all(client)


@needs_programs
@pytest.mark.parametrize("environment, algorithm", [("CartPole-v1", "dqn"), ("Catch", "dqn"), ("Pendulum-v1", "ddpg")])
def test_items_are_those_of_the_c_actor(broker, tmp_path, environment, algorithm):
    config = run_config(environment, algorithm, adder={"actor_priorities": True}, actors={"noise_sigma": 0.2})
    tensors = policy(config)
    want = c_items(config, 500, tmp_path, tensors)
    broker.client.params["policy"] = weights.encode(tensors)
    with envs.make(environment) as env, replaybus.Actor(broker.endpoint, config, env=env) as actor:
        play(actor, env, 500)
        assert actor.learner_steps == 1 and actor.version == 1
    got = take_all(broker.client)
    assert set(got) == set(want) and len(got["reward"]) > 400
    for name, values in want.items():
        assert np.array_equal(got[name], values), name


def sorted_rows(items):
    names = ["observation", "action", "reward", "discount", "next_observation"]
    return sorted(b"".join(items[name][i].tobytes() for name in names) for i in range(len(items["reward"])))


@needs_programs
def test_many_environments_are_those_of_the_c_actor(broker, tmp_path):
    config = run_config(actors={"environments": 4})
    tensors = policy(config)
    want = c_items(config, 1200, tmp_path, tensors)
    broker.client.params["policy"] = weights.encode(tensors)
    with envs.make_vec("CartPole-v1", 4) as env, replaybus.Actor(broker.endpoint, config, env=env) as actor:
        play_many(actor, env, 300)
        assert actor.steps == 1200
    assert sorted_rows(take_all(broker.client)) == sorted_rows(want)


def test_greedy_is_the_largest_value(broker):
    config = run_config()
    tensors = policy(config, scale=3.0)
    broker.client.params["policy"] = weights.encode(tensors)
    rng, rows = np.random.default_rng(1), 100
    observations = rng.normal(size=(rows, 4)).astype("float32")
    hidden = np.maximum(observations @ tensors["q/layer0/weight"] + tensors["q/layer0/bias"], 0)
    q = hidden @ tensors["q/layer1/weight"] + tensors["q/layer1/bias"]
    clear = np.abs(q[:, 0] - q[:, 1]) > 1e-4
    with replaybus.Actor(broker.endpoint, config, environments=rows, greedy=True, insert=False) as many:
        many.observe_first(observations)
        actions = many.act(observations)
        assert actions.dtype == np.int64 and np.array_equal(actions[clear], q.argmax(1)[clear]) and clear.sum() > 90
    with replaybus.Actor(broker.endpoint, config, greedy=True, insert=False) as one:
        one.observe_first(observations[0])
        assert [one.act(row) for row in observations[clear]] == q.argmax(1)[clear].tolist()
    assert broker.client.info()["tables"][0]["size"] == 0 and broker.client.counter("environment_steps").value == 0


def test_parameters_arrive_by_themselves(broker):
    config = run_config(actors={"random_steps": 0, "epsilon": 0.0})
    publish = lambda seed: broker.client.params.put("policy", weights.encode(policy(config, seed)))  # noqa: E731
    publish(0)
    with replaybus.Actor(broker.endpoint, config) as actor:
        actor.observe_first(np.zeros(4))
        fill(actor, 20)
        assert (actor.version, actor.learner_steps) == (1, 1)
        publish(9)
        while actor.version == 1:
            fill(actor, 7)
        assert (actor.version, actor.learner_steps) == (2, 10)
        fill(actor, 7)
    assert set(take_all(broker.client)["policy"]) == {1, 10}


def test_act_waits_for_the_first_parameters(broker):
    config = run_config()
    with replaybus.Actor(broker.endpoint, config) as actor:
        actor.observe_first(np.zeros(4, "float32"))
        with pytest.raises(replaybus.DeadlineExceeded, match="policy"):
            actor.wait(0.1)
        timer = threading.Timer(0.3, lambda: broker.client.params.put("policy", weights.encode(policy(config))))
        start = time.monotonic()
        timer.start()
        assert actor.act(np.zeros(4, "float32")) in (0, 1)
        assert 0.2 < time.monotonic() - start < 50
        timer.join()


def test_parameters_of_another_network_are_refused(broker):
    broker.client.params["policy"] = weights.encode({"q/layer0/weight": np.zeros((3, 3), "float32")})
    with replaybus.Actor(broker.endpoint, run_config()) as actor:
        actor.observe_first(np.zeros(4, "float32"))
        with pytest.raises(replaybus.Error, match="policy"):
            actor.act(np.zeros(4, "float32"))


def test_weights_of_a_file(broker, tmp_path):
    config = run_config()
    weights.save(tmp_path / "saved.weights", policy(config, 4))
    with replaybus.Actor(broker.endpoint, config, overrides=[f"actors.weights={tmp_path / 'saved.weights'}"]) as actor:
        actor.observe_first(np.zeros(4, "float32"))
        actor.act(np.zeros(4, "float32"))
        assert actor.learner_steps == 5


@pytest.mark.parametrize("flags, discounts", [((True, False), [0, 0]), ((False, True), [1, 1]), ((True, True), [0, 0])])
def test_terminated_and_truncated_are_kept_apart(broker, flags, discounts):
    config = run_config(adder={"n_step": 1})
    with replaybus.Actor(broker.endpoint, config, wait=False) as actor:
        rows = [np.full(4, i, "float32") for i in range(3)]
        for last in range(2):
            actor.observe_first(rows[0])
            for i in (1, 2):
                actor.act(rows[i - 1])
                actor.observe(i, *(flags if i == 2 else (False, False)), rows[i])
        assert actor.state()["episodes"] == 2 and actor.state()["last_return"] == 3.0
    items = take_all(broker.client)
    assert items["reward"].tolist() == [1, 2, 1, 2] and items["discount"][1::2].tolist() == discounts
    assert items["discount"][::2].tolist() == [1, 1] and items["next_observation"][:, 0].tolist() == [1, 2, 1, 2]


@pytest.mark.parametrize("autoreset", envs.AUTORESET)
def test_modes_of_autoreset_give_the_same_items(broker, autoreset):
    config = run_config(adder={"n_step": 1}, actors={"epsilon": 1.0})
    expected = 0
    with envs.make_vec("CartPole-v1", 3, autoreset=autoreset, max_episode_steps=30) as env:
        with replaybus.Actor(broker.endpoint, config, env=env, wait=False) as actor:
            observations, _ = env.reset(seed=1)
            actor.observe_first(observations)
            while actor.state()["episodes"] < 12:
                observations, *rest, info = env.step(actor.act(observations))
                actor.observe(*rest, observations, info)
                ended = rest[1] | rest[2]
                if autoreset == "disabled" and ended.any():
                    observations, _ = env.reset(options={"reset_mask": ended})
                    actor.observe_first(observations, ended)
            expected = actor.steps
    items = take_all(broker.client)
    assert expected - 3 <= len(items["reward"]) <= expected and (items["reward"] == 1).all()
    # Where an episode ends, the item ends with its last observation, not with the first of the next one.
    moved = np.abs(items["next_observation"] - items["observation"]).max(axis=1)
    assert moved.max() < 1.0 and (items["discount"] == 0).sum() > 3


def test_last_observations_as_gymnasium_gives_them(broker):
    """An array of objects, with None for environments that go on."""
    with replaybus.Actor(broker.endpoint, run_config(adder={"n_step": 1}), environments=2, wait=False) as actor:
        rows = np.zeros((2, 4), "float32")
        actor.observe_first(rows)
        actor.act(rows)
        final = np.array([None, None], dtype=object)
        final[1] = np.full(4, 7, "float32")
        info = {"final_observation": final, "_final_observation": np.array([False, True])}
        actor.observe([1, 2], [False, True], np.zeros(2, bool), rows + 1, info)
        actor.act(rows + 1)
        actor.observe([3.0, 4.0], [False, False], [False, False], rows + 2)
    items = take_all(broker.client)
    assert sorted(items["next_observation"][:, 0].tolist()) == [1, 7]


def test_observations_of_other_types_are_converted(broker):
    with replaybus.Actor(broker.endpoint, run_config(adder={"n_step": 1}), wait=False) as actor:
        actor.observe_first([0, 0, 0, 0])
        for observation in (np.zeros(4), np.zeros(8, "float32")[::2], [0.0] * 4, np.zeros(4, ">f4")):
            actor.act(observation)
            actor.observe(np.float32(1), np.bool_(False), 0, observation)
        for observation in (np.zeros(3, "float32"), np.zeros((1, 4), "float32"), 1.0):
            with pytest.raises(ValueError):
                actor.act(observation)
        with pytest.raises(TypeError):
            actor.act(np.zeros(4, complex))


def test_spaces_of_a_program(broker):
    observation_space = spaces.Box(-1, 1, (2, 3), np.float64)
    action_space = types.SimpleNamespace(shape=(2,), low=np.array([0.0, -5.0]), high=np.array([1.0, 5.0]), dtype=np.float32)
    config = own_config(algorithm="td3", actors={"epsilon": 0.0})
    with replaybus.Actor(broker.endpoint, config, observation_space=observation_space, action_space=action_space, wait=False) as actor:
        actor.observe_first(np.zeros((2, 3)))
        actions = np.array([actor.act(np.zeros((2, 3))) for _ in range(30)])
        assert actions.dtype == np.float32 and (actions >= [0, -5]).all() and (actions <= [1, 5]).all() and np.ptp(actions[:, 1]) > 2
        actor.observe(1.0, True, False, np.zeros((2, 3)))
    items = take_all(broker.client)
    assert items["observation"].shape[1:] == (2, 3) and np.abs(items["action"]).max() <= 1


def test_dicts_and_several_discrete_actions(broker):
    observation_space = Dict(position=spaces.Box(-1, 1, (2,)), room=spaces.Discrete(3))
    action_space = spaces.MultiDiscrete([2, 3])
    value = {"position": np.array([0.5, -0.5]), "room": 2}
    options = {"observation_space": observation_space, "action_space": action_space, "wait": False}
    with replaybus.Actor(broker.endpoint, own_config(adder={"n_step": 1}), **options) as actor:
        actor.observe_first(value)
        actions = [tuple(actor.act(value)) for _ in range(40)]
        assert all(action in action_space for action in actions) and len(set(actions)) > 3
        actor.observe(1.0, True, False, {"position": [1, 1], "room": 0})
        with pytest.raises(ValueError, match="1 parts"):
            actor.observe_first({"position": [1, 1]})
    items = take_all(broker.client)
    assert items["observation"].tolist() == [[0.5, -0.5, 0, 0, 1]] and items["next_observation"].tolist() == [[1, 1, 1, 0, 0]]
    assert 0 <= items["action"][0] < 6


def test_dicts_of_many_environments(broker):
    options = {"observation_space": Dict(x=spaces.Box(-9, 9, (1,))), "action_space": spaces.Discrete(2), "environments": 2}
    with replaybus.Actor(broker.endpoint, own_config(adder={"n_step": 1}), wait=False, **options) as actor:
        batch = lambda *values: {"x": np.array(values, "float32")[:, None]}  # noqa: E731
        actor.observe_first(batch(0, 0))
        assert actor.act(batch(0, 0)).shape == (2,)
        final = np.array([None, {"x": np.array([7.0])}], dtype=object)
        actor.observe([1, 1], [False, True], [False, False], batch(1, 2), {"final_obs": final, "_final_obs": [False, True]})
        actor.act(batch(1, 2))
        actor.observe([1, 1], [True, True], [False, False], batch(3, 4))
    ends = take_all(broker.client)
    assert sorted(zip(ends["observation"][:, 0], ends["next_observation"][:, 0])) == [(0, 1), (0, 7), (1, 3), (2, 4)]


def test_images_with_planes_first(broker):
    space = spaces.Box(0, 255, (3, 8, 6), "uint8")
    options = {"observation_space": space, "action_space": spaces.Discrete(2), "wait": False}
    image = space.sample()
    with replaybus.Actor(broker.endpoint, own_config(adder={"n_step": 1}), **options) as actor:
        actor.observe_first(image)
        actor.act(image)
        actor.observe(1.0, True, False, image)
    assert np.array_equal(take_all(broker.client)["observation"][0], image.transpose(1, 2, 0))


def test_a_vector_environment_says_how_it_resets():
    assert envs.make_vec("CartPole-v1", 2).metadata["autoreset_mode"] == "SAME_STEP"


def test_finished(broker):
    with envs.make("CartPole-v1") as env:
        with replaybus.Actor(broker.endpoint, run_config(stop={"steps": 100}), env=env, wait=False) as actor:
            assert not actor.finished
            play(actor, env, 100)
            assert actor.finished and actor.steps == 100
            with pytest.raises(replaybus.EndOfStream, match="100 environment steps"):
                actor.act(np.zeros(4))
    assert broker.client.counter("environment_steps").value == 100


def test_finished_in_whole_rounds(broker):
    with envs.make_vec("CartPole-v1", 8) as env:
        with replaybus.Actor(broker.endpoint, run_config(stop={"steps": 100}), env=env, wait=False) as actor:
            with pytest.raises(replaybus.EndOfStream):
                play_many(actor, env, 13)
            assert actor.finished and actor.steps == 96


def test_steps_that_were_not_taken_are_given_back(broker):
    with replaybus.Actor(broker.endpoint, run_config(actors={"pull_every": 1000}), wait=False) as actor:
        actor.observe_first(np.zeros(4))
        actor.act(np.zeros(4))
        actor.observe(1.0, False, False, np.zeros(4))
        assert broker.client.counter("environment_steps").value >= 1000
    assert broker.client.counter("environment_steps").value == 1


def test_calls_in_the_wrong_order(broker):
    row = np.zeros(4, "float32")
    with replaybus.Actor(broker.endpoint, run_config(), wait=False) as actor:
        with pytest.raises(replaybus.FailedPrecondition, match="observe_first"):
            actor.act(row)
        actor.observe_first(row)
        with pytest.raises(replaybus.FailedPrecondition, match="inside an episode"):
            actor.observe_first(row)
        with pytest.raises(replaybus.FailedPrecondition, match="call act"):
            actor.observe(1.0, False, False, row)
        actor.act(row)
        actor.observe(1.0, True, False, row)
        with pytest.raises(replaybus.FailedPrecondition, match="observe_first"):
            actor.act(row)
        with pytest.raises(TypeError):
            actor.observe(1.0)
        actor.observe_first(row)
        actor.act(row)
        for reward in (float("nan"), float("inf"), 1e300):
            with pytest.raises(replaybus.InvalidArgument, match="reward"):
                actor.observe(reward, False, False, row)
        with pytest.raises(TypeError):
            actor.observe("much", False, False, row)
        actor.observe(1.0, False, False, row)
        assert actor.steps == 2


def test_wrong_arguments(broker):
    def refuse(error, match, *args, **kwargs):
        with pytest.raises(error, match=match):
            replaybus.Actor(broker.endpoint, *args, **kwargs)

    refuse(replaybus.InvalidArgument, "agent.algorithm", run_config(algorithm="dqm"))
    refuse(replaybus.InvalidArgument, "continuous", run_config(algorithm="sac"))
    refuse(replaybus.FailedPrecondition, "other spaces", run_config(), env=envs.make("Acrobot-v1"))
    refuse(replaybus.NotFound, "nowhere", run_config(adder={"table": "nowhere"}, table=replaybus.Table("nowhere")))
    refuse(ValueError, "at least 1", run_config(), environments=0)
    refuse(ValueError, "both spaces", run_config(), action_space=spaces.Discrete(2))
    refuse(TypeError, "sequence", run_config(), overrides="agent.batch=1")
    refuse(replaybus.InvalidArgument, "agent.bath", run_config(), overrides=["agent.bath=1"])
    refuse(replaybus.Error, "nowhere.yaml", "/nowhere.yaml")
    with pytest.raises(replaybus.Unavailable):
        replaybus.Actor("tcp://127.0.0.1:9", run_config(), timeout=0.2)
    strict = replaybus.Table("replay", signature={"x": ["float32", 1]})
    with served(strict) as client, pytest.raises(replaybus.Error, match="replay"):
        replaybus.Actor(client.endpoint, run_config(), wait=False)


FULL = replaybus.Table.queue("replay", 10)


def fill(actor, steps):
    row = np.zeros(4, "float32")
    for _ in range(steps):
        actor.act(row)
        actor.observe(1.0, False, False, row)


def full_config():
    return run_config(table=FULL, agent={"batch": 1}, adder={"n_step": 1, "buffer_items": 2})


def interrupt_when_it_waits(actor, client):
    """Sends SIGINT when the table is full, and the actor has taken no more steps for a while."""
    before = -1
    while actor.steps != before or not client.info("replay")["tables"][0]["waiting_inserts"]:
        before = actor.steps
        time.sleep(0.3)
    os.kill(os.getpid(), signal.SIGINT)


def test_ctrl_c_in_observe_loses_nothing():
    """A step that Ctrl-C interrupts, because the table is full, is finished by the next call."""
    with replaybus.Server([FULL]) as server, server.client(timeout=60) as client:
        with replaybus.Actor(server.endpoint, full_config(), wait=False) as actor:
            actor.observe_first(np.zeros(4, "float32"))
            with beside(lambda: interrupt_when_it_waits(actor, client)), pytest.raises(KeyboardInterrupt):
                fill(actor, 100)
            before, keys = actor.steps, []
            assert before < 20
            sampler = client.sampler("replay", batch_size=1, in_flight=1, max_samples=before + 25)
            with beside(lambda: keys.extend(batch.key[0] for batch in sampler)):
                fill(actor, 25)
                assert actor.steps == before + 26
                actor.flush(60)
            assert len(set(keys)) == len(keys) == actor.state()["items"] == before + 25
            assert client.info("replay")["tables"][0]["size"] == 0


def test_close_ends_a_wait(broker):
    actor = replaybus.Actor(broker.endpoint, run_config())
    actor.observe_first(np.zeros(4))
    threading.Timer(0.2, actor.close).start()
    with pytest.raises(replaybus.Cancelled):
        actor.act(np.zeros(4))
    with pytest.raises(replaybus.FailedPrecondition, match="closed"):
        actor.act(np.zeros(4))
    actor.close()
    assert actor.closed


def test_closes_after_the_broker():
    server = replaybus.Server([FULL])
    actor = replaybus.Actor(server.endpoint, full_config(), wait=False)
    actor.observe_first(np.zeros(4))
    fill(actor, 12)  # more than the table holds: the rest waits
    server.stop()
    start = time.monotonic()
    for _ in range(2):
        with pytest.raises(replaybus.DeadlineExceeded):
            actor.close(0.3)
    assert not actor.closed
    actor._give_up()
    assert actor.closed and time.monotonic() - start < 50


def test_exit_without_close(broker):
    code = f"""
import json, numpy as np, replaybus
actor = replaybus.Actor({broker.endpoint!r}, json.loads({json.dumps(json.dumps(run_config()))}), wait=False)
actor.observe_first(np.zeros(4))
for _ in range(50):
    actor.act(np.zeros(4))
    actor.observe(1.0, False, False, np.zeros(4))
"""
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert out.returncode == 0 and all(line.startswith("C01") for line in out.stderr.splitlines()), out.stderr  # of a slow connection
    assert len(take_all(broker.client)["reward"]) == 49


def test_garbage_collection(broker):
    seen = []
    for _ in range(3):
        actor = replaybus.Actor(broker.endpoint, run_config(), wait=False)
        actor.observe_first(np.zeros(4))
        fill(actor, 3)
        actor.itself = actor
        seen.append(weakref.ref(actor))
        del actor
        gc.collect()
    assert [ref() for ref in seen] == [None] * 3


def test_fork(broker):
    with replaybus.Actor(broker.endpoint, run_config(), wait=False) as actor:
        actor.observe_first(np.zeros(4))
        fill(actor, 3)

        def use():
            with pytest.raises(replaybus.FailedPrecondition):
                actor.act(np.zeros(4))
            actor.close()
            with replaybus.Actor(broker.endpoint, run_config(), wait=False, index=1) as own:
                own.observe_first(np.zeros(4))
                fill(own, 4)
                return own.steps

        assert in_child(use) == 4
        fill(actor, 3)
    assert len(take_all(broker.client)["reward"]) == 5 + 3


def test_threads(broker):
    """Four actors in threads of one process, and two threads that share one."""
    def work(index):
        with envs.make("CartPole-v1") as env, replaybus.Actor(broker.endpoint, config, env=env, index=index, wait=False) as actor:
            play(actor, env, 500)

    config = run_config(adder={"n_step": 1})
    assert not run_threads(4, work)
    assert broker.client.counter("environment_steps").value == 2000
    with replaybus.Actor(broker.endpoint, config, wait=False, insert=False) as shared:
        shared.observe_first(np.zeros(4))
        assert not run_threads(2, lambda i: [shared.act(np.zeros(4)) for _ in range(500)])


def test_no_leak(broker):
    config = run_config(adder={"n_step": 1}, actors={"pull_every": 10})
    with envs.make_vec("CartPole-v1", 8) as env, replaybus.Actor(broker.endpoint, config, env=env, wait=False) as actor:
        with broker.client.params.publisher("policy") as publisher:
            def work(rounds):
                for i in range(rounds):
                    nonlocal observations
                    observations, *rest, info = env.step(actor.act(observations))
                    actor.observe(*rest, observations, info)
                    if i % 50 == 0:
                        publisher.put(weights.encode(policy(config, i)))
                        broker.client.reset("replay")

            observations, _ = env.reset(seed=1)
            actor.observe_first(observations)
            work(2000)
            gc.collect()
            before = rss_bytes()
            work(10_000)
            gc.collect()
            assert rss_bytes() - before < 10 << 20
