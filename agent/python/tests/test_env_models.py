"""The built-in environments against the plain models of tests/golden/env_models.py: every number of the scenes of env_scenes.py, and of
long random play of MinAtar's games, with actions that stick and games that become harder."""
import pathlib
import random
import sys

import numpy as np
import pytest

envs = pytest.importorskip("replaybus.envs", reason="the extension _agent is not built here")
GOLDEN = pathlib.Path(__file__).resolve().parents[3] / "tests" / "golden"
if not GOLDEN.exists():
    pytest.skip("needs the models of a source tree", allow_module_level=True)
sys.path.insert(0, str(GOLDEN))
import env_models  # noqa: E402
import env_scenes  # noqa: E402
import replaybus  # noqa: E402


@pytest.mark.parametrize("model, cases", env_scenes.SCENES, ids=lambda part: getattr(part, "name", ""))
def test_scenes(model, cases):
    options = {"sticky": 0} if isinstance(model, env_models.MinAtar) else {}
    env, total = envs.make_vec(model.name, 1, autoreset="disabled", copy=False, **options), 0
    continuous = env.single_action_space.shape != ()
    for number, (vector, policy, most) in enumerate(cases()):
        env.reset(seed=0)
        seen = env.set_state([vector])
        assert env_scenes.agree(seen.ravel().tolist(), model.observe(model.begin(vector)), model.tolerance), number
        steps = 0
        for action, *wanted in env_scenes.played(model, vector, policy, most):
            seen.view("uint8").fill(0x55)  # so that a number that is not written shows
            seen, reward, terminal, truncated, _ = env.step(np.array([action], "float32") if continuous else np.array(action))
            assert env_scenes.agree(seen.ravel().tolist(), wanted[0], model.tolerance), (number, action)
            assert env_scenes.agree(reward.tolist(), wanted[1:2], model.tolerance), (number, action)
            assert (terminal[0], truncated[0]) == (wanted[2], False), (number, action)
            steps += 1
        assert steps >= 1, number
        total += steps
    assert total >= 10


def test_every_environment_has_scenes():
    """But for Cheetah: its contacts are the solver of the MuJoCo library, and there are no equations to write a model from."""
    for name in set(envs.names()) - {model.name for model, _ in env_scenes.SCENES} - {"Cheetah"}:
        with pytest.raises(replaybus.Unsupported, match="cannot be put into a state"):
            envs.make_vec(name, 1).set_state([[0]])


def evade(game):
    """Leaves a row of Asterix before its enemy comes: plays long enough to see every level."""
    def danger(y):
        thing = game.things.get(y)
        if thing is None or thing.gold:
            return 0
        ahead = (game.x - thing.x) * (1 if thing.right else -1)
        return 20 - ahead if ahead >= 0 else 0
    rows = {0: game.y, 2: max(1, game.y - 1), 4: min(8, game.y + 1)}
    return min(rows, key=lambda action: (danger(rows[action]), action))


def aim(game):
    """Goes where a shot would meet an alien of Space Invaders and fires, where no bomb falls: clears waves."""
    def meets(y, x):
        """The column where a shot that is fired now meets this alien: it goes round a ring of 20 places, with a pause at the ends."""
        moves = (9 - y) // min(len(game.aliens), game.move_interval)
        place = ((x if game.direction > 0 else 19 - x) + moves) % 20
        return place if place < 10 else 19 - place
    target = min((meets(y, x) for y, x in game.aliens), key=lambda x: (abs(x - game.x), x))
    places = {0: game.x, 1: max(0, game.x - 1), 2: min(9, game.x + 1)}

    def danger(action):
        return sum(row - 4 for row, x in game.bombs if x == places[action] and row > 4)
    best = min(places, key=lambda action: (danger(action), abs(target - places[action]), action))
    return 3 if best == 0 and target == game.x else best


def play(model, choose, seed, steps, **options):
    """Plays both and compares everything. The number of episodes, the return, and the last state."""
    env = envs.make(model.name, **options)
    model.sticky, model.ramping = options.get("sticky", 0.1), options.get("ramping", True)
    state, episodes, total = model.start(seed), 0, 0.0
    seen, _ = env.reset(seed=seed)
    for step in range(steps):
        assert seen.ravel().tolist() == model.observe(state), f"{model.name}, seed {seed}, before step {step}"
        action = choose(state[0])
        state, reward, terminal = model.advance(state, [action])
        seen, *rest = env.step(action)
        total += reward
        truncated = not terminal and rest[2]
        assert rest[:2] == [reward, terminal], f"{model.name}, seed {seed}, step {step}"
        if terminal or truncated:
            assert seen.ravel().tolist() == model.observe(state)
            state, (seen, _) = model.again(state), env.reset()
            episodes += 1
    return episodes, total, state[0]


def chance(n, seed, policy=None, share=0.0):
    """Random actions, or a share of a policy's."""
    draw = random.Random(seed)
    return lambda game: policy(game) if policy and draw.random() < share else draw.randrange(n)


@pytest.mark.parametrize("kind", [env_models.Breakout, env_models.Freeway, env_models.Asterix, env_models.SpaceInvaders])
def test_random_play(kind):
    model = kind()
    n = envs.make(model.name).action_space.n
    for seed in (1, 2**64 - 3):
        episodes, total, _ = play(model, chance(n, seed), seed, 2600)
        assert episodes >= 1 and (total > 0 or model.name == "Freeway")


def test_breakout_is_played_on():
    def below(game):
        return 1 if game.column < game.paddle else 2 if game.column > game.paddle else 0
    episodes, total, _ = play(env_models.Breakout(), chance(3, 6, below, 0.98), 6, 3000)
    assert total > 2 * episodes  # chance has 0.4


def test_freeway_is_crossed():
    episodes, total, _ = play(env_models.Freeway(), chance(3, 5, lambda game: 1, 0.95), 5, 3000)
    assert episodes == 1 and total >= 10


@pytest.mark.parametrize("ramping", [True, False])
@pytest.mark.parametrize("kind, policy, seed, sticky, least, number, begins, change", [
    (env_models.Asterix, evade, 3, 0.0, 0, "ramps", 0, 5), (env_models.SpaceInvaders, aim, 4, 0.05, 100, "move_interval", 12, -3)])
def test_games_become_harder(kind, policy, seed, sticky, least, number, begins, change, ramping):
    """Enemies come faster, or aliens in faster waves; least: the return."""
    seen = set()

    def choose(game):
        seen.add(getattr(game, number))
        return policy(game)
    _, total, _ = play(kind(), choose, seed, 2500, ramping=ramping, sticky=sticky)
    assert total >= least
    assert any((value - begins) / change >= 1 for value in seen) if ramping else seen == {begins}


def test_chances_are_those_of_the_rules():
    env = envs.make_vec("Freeway", 4000)
    first, _ = env.reset(seed=1)
    speeds = first[:, 1:9, :, 2:].sum(axis=(0, 1, 2)) / (8 * 4000)
    right = first[:, 1:9, 9, 2:].sum() / (8 * 4000)  # the trail of a car in column 0 that goes right
    assert np.allclose(speeds, 0.2, atol=0.015) and abs(right - 0.5) < 0.015
    env = envs.make_vec("Asterix", 4000, sticky=0.0)
    env.reset(seed=1)
    for _ in range(11):
        seen, *_ = env.step(np.zeros(4000, int))
    gold, enemy = seen[..., 3], seen[..., 1]
    assert (gold + enemy).sum() == 4000 and abs(gold.mean() * 100 - 1 / 3) < 0.04
    rows = (gold + enemy).sum(axis=(0, 2))[1:9] / 4000
    assert np.allclose(rows, 1 / 8, atol=0.025) and abs((gold + enemy)[:, :, :5].sum() / 4000 - 0.5) < 0.04
