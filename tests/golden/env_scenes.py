"""Scenes of the environments: of each model in env_models.py, cases of a state, actions to take there, and the most steps.

A case ends at its terminal step, or before its model ceases to hold, or before rounding could matter: a twin that starts TWIN away must
agree with it within a tenth of the tolerance at every step. Of MinAtar's games there are the scenes that long random play, which
test_env_models.py compares as well, hardly reaches.
"""

import math
import random

import env_models as models

TWIN = 1e-12


def constant(*action):
    return lambda state, t: list(action)


def alternating(period, *actions):
    return lambda state, t: [actions[t // period % len(actions)]]


def discrete(seed, n, hold=1):
    """Random actions below n, each kept for `hold` steps."""
    draw = random.Random(seed)
    return held(hold, lambda: int(draw.random() * n))


def continuous(seed, bound, hold=1):
    """Random actions within the bound, all of them exact as float32."""
    draw = random.Random(seed)
    return held(hold, lambda: (int(draw.random() * 257) - 128) / 128 * bound)


def held(hold, draw):
    kept = []

    def policy(state, t):
        if t % hold == 0:
            kept[:] = [draw()]
        return list(kept)
    return policy


def follow(function):
    return lambda state, t: [function(state)]


def sign(value, high, low):
    return high if value >= 0 else low


def cartpole():
    yield (0.01, -0.02, 0.03, 0.04), constant(1), 60
    yield (-0.03, 0.02, -0.01, 0.05), constant(0), 60
    yield (0.02, 0.01, 0.04, -0.03), alternating(1, 0, 1), 100
    yield (-0.04, 0.03, 0.02, 0.01), discrete(11, 2), 100
    yield (0.0, 0.0, 0.0, 0.0), discrete(12, 2), 100
    # Kept upright for long, with wide swings of the cart.
    yield (0.5, -0.3, 0.05, 0.2), follow(lambda s: sign(s[2] + 0.5 * s[3] + 0.05 * s[0] + 0.1 * s[1], 1, 0)), 200
    # Out of the track on both sides, with the pole upright.
    yield (2.2, 0.9, 0.02, -0.1), follow(lambda s: sign(s[2] + 0.4 * s[3], 1, 0)), 100
    yield (-2.3, -1.2, -0.03, 0.1), follow(lambda s: sign(s[2] + 0.4 * s[3], 1, 0)), 100
    yield (1.0, -1.5, 0.15, 1.2), discrete(13, 2), 60


def acrobot():
    yield (0.05, -0.08, 0.03, 0.1), constant(0), 50
    yield (-0.02, 0.04, -0.06, 0.08), alternating(5, 0, 2), 100
    yield (0.1, 0.1, -0.1, -0.1), discrete(21, 3), 100
    yield (0.0, 0.0, 0.0, 0.0), follow(lambda s: sign(s[3], 2, 0)), 150
    yield (0.03, -0.05, 0.02, 0.01), follow(lambda s: sign(s[3], 2, 0)), 150
    yield (1.2, -1.5, 0.5, 1.0), discrete(22, 3), 80
    yield (-3.1, 1.0, -5.0, 8.0), constant(1), 60
    yield (0.3, 2.9, 12.0, -28.0), discrete(23, 3), 40  # reaches both bounds of the velocities
    yield (1.0, 3.0, -12.5, 28.2), discrete(24, 3), 40


def mountaincar():
    yield (-0.5, 0.0), constant(2), 100
    yield (-0.55, 0.0), constant(1), 100
    yield (-0.45, 0.0), discrete(31, 3, 5), 100
    yield (-0.6, 0.0), follow(lambda s: sign(s[1], 2, 0)), 200
    yield (-0.42, 0.0), follow(lambda s: sign(-s[1], 0, 2)), 200
    yield (-1.0, -0.05), constant(0), 60  # into the wall on the left
    yield (0.3, 0.06), constant(2), 30
    yield (0.55, -0.03), discrete(32, 3), 40  # beyond the goal, but backwards
    yield (-0.9, 0.069), constant(2), 60  # faster than allowed


def mountaincar_continuous():
    yield (-0.5, 0.0), constant(1.0), 100
    yield (-0.55, 0.0), constant(0.0), 100
    yield (-0.45, 0.0), continuous(41, 1.0), 100
    yield (-0.6, 0.0), continuous(42, 1.0, 8), 200
    yield (-0.42, 0.0), follow(lambda s: sign(s[1], 1.0, -1.0)), 200
    yield (-0.58, 0.0), follow(lambda s: sign(s[1], 0.75, -0.625)), 200
    yield (-1.1, -0.06), constant(-0.25), 40
    yield (0.5, -0.02), continuous(43, 1.0), 60  # beyond the goal, but backwards
    yield (-0.9, 0.069), constant(0.5), 60


def pendulum():
    yield (math.pi, 0.0), follow(lambda s: sign(s[1], 2.0, -2.0)), 100
    yield (0.1, 0.2), constant(0.0), 60
    yield (-2.0, -0.5), continuous(51, 2.0), 100
    yield (1.5, 0.9), alternating(7, 2.0, -2.0), 100
    yield (-0.05, 0.1), follow(lambda s: max(-2.0, min(2.0, round(-8 * s[0] - 2 * s[1], 0) / 4))), 60
    yield (2.0, 7.5), constant(2.0), 100  # faster than allowed, and around many times
    yield (-2.0, -7.5), constant(-2.0), 100
    yield (9.5, -1.0), continuous(52, 2.0, 4), 60


def catch():
    for column in range(5):
        yield (0, column, 2), discrete(60 + column, 3), 20
        yield (0, column, 2), follow(lambda s: 1 + (s[1] > s[2]) - (s[1] < s[2])), 20
    yield (0, 1, 2), constant(0), 20
    yield (0, 3, 2), constant(2), 20
    yield (4, 0, 4), constant(0), 20
    yield (7, 4, 0), constant(1), 20


def deepsea():
    yield (0, 0), constant(1), 20
    yield (0, 0), constant(0), 20
    yield (0, 0), alternating(1, 0, 1), 20
    yield (0, 0), alternating(9, 1, 0), 20  # wrong at the very last step
    for seed in range(70, 76):
        yield (0, 0), discrete(seed, 2), 20
    yield (4, 4), constant(1), 20
    yield (9, 9), constant(0), 20
    yield (8, 6), constant(1), 20


def memory():
    for cue in (0, 1):
        yield (0, cue), constant(cue), 40
        yield (0, cue), discrete(77 + cue, 2), 40
        yield (29, cue), constant(1 - cue), 40
        yield (0, cue), alternating(30, cue, 1 - cue), 40  # wrong at the very last step


def breakout():
    wall = (1,) * 30

    def bricks(*cells):
        return tuple(int((1 + i // 10, i % 10) in cells) for i in range(30))

    def track(state):
        """Keeps the paddle below the ball."""
        ball, paddle = state[0].column, state[0].paddle
        return {-1: 1, 0: 0, 1: 2}[(ball > paddle) - (ball < paddle)]

    yield (3, 0, 2, 4) + wall, follow(track), 14  # from the reset's state to the first bricks
    yield (4, 0, 0, 5) + wall, constant(0), 2  # a brick and the side wall at once
    # Two bricks in a row: it flies through the second.
    yield (2, 3, 1, 5) + bricks((1, 4), (3, 5), (3, 3)), constant(1), 3
    yield (1, 5, 1, 5) + bricks((3, 1)), constant(0), 3  # the ceiling
    yield (0, 9, 1, 5) + bricks((1, 9), (2, 7)), constant(0), 3  # the corner
    yield (8, 4, 2, 5) + bricks((1, 0)), constant(0), 2  # the paddle's corner: back where it came from
    yield (8, 4, 3, 4) + bricks((1, 0)), constant(1), 2  # the paddle comes to the corner
    yield (7, 2, 2, 3) + bricks(), constant(0), 3  # a new wall, and on
    yield (8, 2, 2, 5) + bricks(), constant(0), 2  # a new wall, and lost


def freeway():
    lanes = [(c, c % 6, (c * 3) % 10) for c in range(8)]

    def scene(row, rest, *cars):
        return (row, rest) + sum((tuple(car) for car in cars), ())

    yield scene(9, 3, *lanes), constant(1), 12
    yield scene(1, 0, *lanes), constant(1), 8  # arrives: new cars
    yield scene(5, 0, *[(9, 0, 0), (0, 0, 5)] * 4), discrete(101, 3), 14  # around the ends
    yield scene(6, 1, *[(3, 2, 4)] * 8), constant(0), 5  # a car from the left


def asterix():
    def scene(row, column, spawn, march, ramp, level, **things):
        flat = sum(((things.get("r%d" % y) or (0, 0)) for y in range(1, 9)), ())
        return (row - 1, column, spawn, march, ramp, level) + flat

    yield scene(5, 5, 10, 5, 101, 0), discrete(111, 5), 45
    yield scene(1, 0, 9, 2, 50, 0), alternating(1, 2, 1, 4, 3), 6  # the corners
    yield scene(4, 4, 9, 3, 50, 0, r4=(2, 5), r5=(4, 6)), constant(3), 4  # walks into gold
    yield scene(4, 4, 9, 0, 50, 0, r4=(2, 3)), constant(0), 2  # gold comes
    yield scene(4, 4, 9, 0, 50, 9, r1=(1, 9), r2=(2, 9), r3=(3, 0), r6=(4, 0)), constant(0), 3  # leave the board
    yield scene(4, 4, 0, 5, 50, 0, **{"r%d" % y: (1, 9 - y) for y in range(1, 9)}), constant(0), 3  # no row is free
    for level in range(10):  # the level rises: the intervals after it
        yield scene(1, 0, 1, 1, 1, level), constant(0), 14


def space_invaders():
    def scene(column, shot=0, march=5, bomb=5, right=0, ramps=0, **cells):
        masks = [[0] * 10 for _ in range(3)]
        for mask, name in zip(masks, ("aliens", "shots", "bombs")):
            for row, at in cells.get(name, ()):
                mask[row] |= 1 << at
        return (column, shot, march, bomb, right, ramps, *masks[0], *masks[1], *masks[2])

    yield scene(5, 0, 12, 10), discrete(121, 4), 30
    yield scene(4, 0, aliens=[(7, 4), (0, 0)]), constant(3), 8  # fires, hits, waits
    yield scene(4, bombs=[(7, 4), (9, 9), (0, 4)], aliens=[(0, 0)]), constant(0), 4  # a bomb
    yield scene(4, march=0, aliens=[(9, 5), (3, 6)]), constant(0), 2  # an alien comes from the side
    yield scene(9, march=0, aliens=[(9, 0), (3, 6)]), constant(0), 2  # landed, and not at the cannon
    yield scene(9, march=0, right=1, aliens=[(5, 9), (3, 6)]), constant(0), 6  # turns at the right
    yield scene(4, bomb=0, aliens=[(1, 3), (5, 3), (7, 5)]), constant(0), 2  # two are near: the left one
    yield scene(4, aliens=[(5, 4)], shots=[(6, 4), (0, 2), (9, 1)]), constant(0), 3  # a new wave
    for ramps in range(7):
        yield scene(4, march=1, ramps=ramps, aliens=[(5, 4)], shots=[(6, 4)]), constant(0), 16


def inverted_pendulum():
    balance = follow(lambda s: max(-3.0, min(3.0, round(64 * (5 * s[1] + s[3] + 0.3 * s[0] + 0.5 * s[2])) / 64)))
    yield (0.01, -0.005, 0.002, 0.008), constant(0.0), 40
    yield (0.0, 0.01, 0.0, 0.0), constant(0.75), 40
    yield (-0.01, -0.01, 0.01, 0.01), continuous(81, 3.0), 40
    yield (0.2, 0.03, -0.3, -0.1), continuous(82, 0.5), 40
    yield (0.1, -0.1, 0.0, 0.5), balance, 60
    yield (-0.3, 0.15, 0.4, -0.9), balance, 60
    yield (0.5, -0.12, -1.0, 1.5), alternating(1, 3.0, -3.0), 40


def swing_up():
    yield (0.01, math.pi - 0.02, 0.005, -0.01), constant(0.0), 60
    yield (0.0, math.pi, 0.0, 0.0), alternating(25, 0.5, -0.5), 120
    yield (0.0, 3.1, 0.0, 0.0), continuous(91, 1.0), 100
    yield (-0.2, 2.5, 0.1, 1.0), follow(lambda s: sign(-s[3] * math.cos(s[1]), 0.75, -0.75)), 100
    yield (0.3, 0.05, -0.1, -0.2), continuous(92, 1.0, 3), 80
    yield (0.0, 1.5, 0.5, 9.0), constant(-0.25), 80
    yield (-0.5, -2.0, 1.0, -6.0), continuous(93, 1.0, 10), 80


SCENES = (
    (models.CartPole(), cartpole), (models.Acrobot(), acrobot), (models.MountainCar(), mountaincar),
    (models.MountainCarContinuous(), mountaincar_continuous), (models.Pendulum(), pendulum), (models.Catch(), catch),
    (models.DeepSea(), deepsea), (models.Breakout(), breakout), (models.Freeway(), freeway),
    (models.Asterix(), asterix), (models.SpaceInvaders(), space_invaders), (models.Memory(), memory),
    (models.InvertedPendulum(), inverted_pendulum), (models.CartPoleSwingUp(), swing_up))


def agree(a, b, tolerance):
    return len(a) == len(b) and all(abs(p - q) <= tolerance * (1 + abs(q)) for p, q in zip(a, b))


def played(model, vector, policy, steps):
    """(action, observation, reward, terminal) of each step of a case."""
    state, twin = model.begin(vector), model.begin([v if isinstance(v, int) else v + TWIN for v in vector])
    for t in range(steps):
        action = policy(state, t)
        state, reward, terminal = model.step(state, action)
        twin, twin_reward, twin_terminal = model.step(twin, action)
        seen = model.observe(state)
        if not model.valid(state) or terminal != twin_terminal or not agree(
                model.observe(twin) + [twin_reward], seen + [reward], model.tolerance / 10):
            return
        yield action, seen, reward, terminal
        if terminal:
            return
