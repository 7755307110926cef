"""The games of MinAtar against the plain models of tests/golden/env_models.py: every number of long random play, with actions that
stick and games that become harder. The traces of tests/golden show scenes that chance seldom brings."""
import pathlib
import random
import sys
from types import SimpleNamespace

import numpy as np
import pytest

envs = pytest.importorskip("replaybus.envs", reason="the extension _agent is not built here")
GOLDEN = pathlib.Path(__file__).resolve().parents[3] / "tests" / "golden"
if not GOLDEN.exists():
    pytest.skip("needs the models of a source tree", allow_module_level=True)
sys.path.insert(0, str(GOLDEN))
import env_models  # noqa: E402


class Breakout(env_models.MinAtar):
    """The model of the traces with what they leave out: where a ball starts, and actions that stick."""

    name, rules = "Breakout", env_models.Breakout()

    def reset(self, rng):
        right = rng.below(2) == 1
        return SimpleNamespace(state=self.rules.begin([3, 9 if right else 0, 3 if right else 2, 4] + [1] * 30))

    def play(self, game, action, rng):
        game.state, reward, terminal = self.rules.step(game.state, [action])
        return reward, terminal

    def observe(self, state):
        return self.rules.observe(state[0].state)


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


@pytest.mark.parametrize("kind", [Breakout, env_models.Freeway, env_models.Asterix, env_models.SpaceInvaders])
def test_random_play(kind):
    model = kind()
    n = envs.make(model.name).action_space.n
    for seed in (1, 2**64 - 3):
        episodes, total, _ = play(model, chance(n, seed), seed, 2600)
        assert episodes >= 1 and (total > 0 or model.name == "Freeway")


def test_breakout_is_played_on():
    def below(game):
        row, column, _, paddle, *_ = game.state
        return 1 if column < paddle else 2 if column > paddle else 0
    episodes, total, _ = play(Breakout(), chance(3, 6, below, 0.98), 6, 3000)
    assert total > 2 * episodes  # chance has 0.4


def test_freeway_is_crossed():
    episodes, total, _ = play(env_models.Freeway(), chance(3, 5, lambda game: 1, 0.95), 5, 3000)
    assert episodes == 1 and total >= 10


@pytest.mark.parametrize("ramping", [True, False])
def test_asterix_becomes_harder(ramping):
    ramps = set()

    def choose(game):
        ramps.add(game.ramps)
        return evade(game)
    play(env_models.Asterix(), choose, 3, 2500, ramping=ramping, sticky=0.0)
    assert max(ramps) >= 5 if ramping else ramps == {0}


@pytest.mark.parametrize("ramping", [True, False])
def test_space_invaders_comes_in_faster_waves(ramping):
    intervals = set()

    def choose(game):
        intervals.add(game.move_interval)
        return aim(game)
    _, total, _ = play(env_models.SpaceInvaders(), choose, 4, 2500, ramping=ramping, sticky=0.05)
    assert total >= 100 and (min(intervals) <= 9 if ramping else intervals == {12})


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
