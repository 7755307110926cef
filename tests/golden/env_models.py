"""The environments, from their published equations, in plain Python.

Sources: Gymnasium's documentation (CartPole-v1 after Barto, Sutton and Anderson 1983; Acrobot-v1 after Sutton and
Barto's book; the mountain cars; Pendulum-v1), bsuite's descriptions of Catch, DeepSea and Memory, MinAtar's paper and
documentation for its games, Lagrange's equations and the control suite's reward for the two carts with a pole.
Nothing here may be derived from agent/env: these models are what that code is compared with.

Each model has
    name, tolerance
    begin(vector)          the state that set_state makes of a vector (a tuple; may hold more than the vector), after a reset with seed 0
    observe(state)         a list of numbers
    step(state, action)    (state, reward, terminal); the action is a list of native values
"""

import copy
import math
from types import SimpleNamespace as Namespace

PI = math.pi


def clip(value, low, high):
    return max(low, min(high, value))


def wrap(angle):
    """Into [-pi, pi)."""
    return (angle + PI) % (2 * PI) - PI


def rk4(derivative, y, h):
    def moved(k, scale):
        return [a + scale * b for a, b in zip(y, k)]

    k1 = derivative(y)
    k2 = derivative(moved(k1, h / 2))
    k3 = derivative(moved(k2, h / 2))
    k4 = derivative(moved(k3, h))
    return [a + h / 6 * (p + 2 * q + 2 * r + s) for a, p, q, r, s in zip(y, k1, k2, k3, k4)]


class Model:
    tolerance = 1e-6

    def begin(self, vector):
        return tuple(vector)

    def observe(self, state):
        return list(state)

    def valid(self, state):
        """Whether the equations hold here; a case ends before they do not."""
        return True


class CartPole(Model):
    """A pole on a cart without friction; explicit Euler, so positions move with the old velocities."""

    name = "CartPole-v1"
    gravity, cart, pole, half_length, force, tau = 9.8, 1.0, 0.1, 0.5, 10.0, 0.02

    def step(self, state, action):
        x, v, angle, omega = state
        push = self.force if action[0] == 1 else -self.force
        total = self.cart + self.pole
        sin, cos = math.sin(angle), math.cos(angle)
        common = (push + self.pole * self.half_length * omega ** 2 * sin) / total
        alpha = (self.gravity * sin - cos * common) / (
            self.half_length * (4 / 3 - self.pole * cos ** 2 / total))
        accel = common - self.pole * self.half_length * alpha * cos / total
        state = (x + self.tau * v, v + self.tau * accel, angle + self.tau * omega, omega + self.tau * alpha)
        return state, 1.0, abs(state[0]) > 2.4 or abs(state[2]) > math.radians(12)


class Acrobot(Model):
    """Two links of length 1, mass 1 and inertia 1, torque at the joint between them; the book's equations."""

    name = "Acrobot-v1"
    m = l = inertia = 1.0
    lc, gravity, h = 0.5, 9.8, 0.2

    def derivative(self, state, torque):
        t1, t2, w1, w2 = state
        m, l, lc, inertia, g = self.m, self.l, self.lc, self.inertia, self.gravity
        d1 = m * lc ** 2 + m * (l ** 2 + lc ** 2 + 2 * l * lc * math.cos(t2)) + 2 * inertia
        d2 = m * (lc ** 2 + l * lc * math.cos(t2)) + inertia
        phi2 = m * lc * g * math.cos(t1 + t2 - PI / 2)
        phi1 = (-m * l * lc * w2 ** 2 * math.sin(t2) - 2 * m * l * lc * w2 * w1 * math.sin(t2)
                + (m * lc + m * l) * g * math.cos(t1 - PI / 2) + phi2)
        a2 = (torque + d2 / d1 * phi1 - m * l * lc * w1 ** 2 * math.sin(t2) - phi2) / (
            m * lc ** 2 + inertia - d2 ** 2 / d1)
        a1 = -(d2 * a2 + phi1) / d1
        return [w1, w2, a1, a2]

    def step(self, state, action):
        t1, t2, w1, w2 = rk4(lambda y: self.derivative(y, action[0] - 1.0), state, self.h)
        state = (wrap(t1), wrap(t2), clip(w1, -4 * PI, 4 * PI), clip(w2, -9 * PI, 9 * PI))
        terminal = -math.cos(state[0]) - math.cos(state[1] + state[0]) > 1
        return state, 0.0 if terminal else -1.0, terminal

    def observe(self, state):
        t1, t2, w1, w2 = state
        return [math.cos(t1), math.sin(t1), math.cos(t2), math.sin(t2), w1, w2]


class MountainCar(Model):
    name = "MountainCar-v0"
    goal = 0.5

    def push(self, action):
        return 0.001 * (action[0] - 1)

    def reward(self, action, terminal):
        return -1.0

    def step(self, state, action):
        position, velocity = state
        velocity = clip(velocity + self.push(action) - 0.0025 * math.cos(3 * position), -0.07, 0.07)
        position = clip(position + velocity, -1.2, 0.6)
        if position == -1.2 and velocity < 0:
            velocity = 0.0
        terminal = position >= self.goal and velocity >= 0
        return (position, velocity), self.reward(action, terminal), terminal


class MountainCarContinuous(MountainCar):
    name = "MountainCarContinuous-v0"
    goal = 0.45

    def push(self, action):
        return 0.0015 * action[0]

    def reward(self, action, terminal):
        return (100.0 if terminal else 0.0) - 0.1 * action[0] ** 2


class Pendulum(Model):
    """The angle is 0 upright and is not wrapped in the state; the reward belongs to the state before the step."""

    name = "Pendulum-v1"
    gravity, mass, length, h = 10.0, 1.0, 1.0, 0.05

    def step(self, state, action):
        angle, omega = state
        u = action[0]
        cost = wrap(angle) ** 2 + 0.1 * omega ** 2 + 0.001 * u ** 2
        alpha = 3 * self.gravity / (2 * self.length) * math.sin(angle) + 3 / (self.mass * self.length ** 2) * u
        omega = clip(omega + alpha * self.h, -8.0, 8.0)
        return (angle + omega * self.h, omega), -cost, False

    def observe(self, state):
        return [math.cos(state[0]), math.sin(state[0]), state[1]]


class Catch(Model):
    """The paddle moves, then the ball falls one row; the episode ends when the ball is in the paddle's row."""

    name = "Catch"
    rows, columns = 10, 5

    def step(self, state, action):
        row, column, paddle = state
        paddle = clip(paddle + int(action[0]) - 1, 0, self.columns - 1)
        row += 1
        terminal = row == self.rows - 1
        reward = (1.0 if paddle == column else -1.0) if terminal else 0.0
        return (row, column, paddle), reward, terminal

    def observe(self, state):
        row, column, paddle = state
        cells = [0] * (self.rows * self.columns)
        cells[row * self.columns + column] = 1
        cells[(self.rows - 1) * self.columns + paddle] = 1
        return cells


class DeepSea(Model):
    """Size 10, action 1 is right everywhere. Every right costs 0.01 / size, also the one that earns 1: right in the
    last column, where only an episode of nothing but right arrives, in the last row. After that row nothing is seen."""

    name = "DeepSea"
    size = 10

    def step(self, state, action):
        row, column = state
        right = action[0] == 1
        reward = -0.01 / self.size if right else 0.0
        if right and column == self.size - 1:
            reward += 1.0
        column = clip(column + (1 if right else -1), 0, self.size - 1)
        return (row + 1, column), reward, row + 1 == self.size

    def observe(self, state):
        row, column = state
        cells = [0] * (self.size * self.size)
        if row < self.size:
            cells[row * self.size + column] = 1
        return cells


class Memory(Model):
    """Length 30: the cue is seen at time 0 only, and the action at time 30 is the answer."""

    name = "Memory"
    length = 30

    def step(self, state, action):
        time, cue = state
        terminal = time == self.length
        return (time + 1, cue), (1.0 if action[0] == cue else -1.0) if terminal else 0.0, terminal

    def observe(self, state):
        time, cue = state
        return [max(0.0, (self.length - time) / self.length), 2.0 * cue - 1 if time == 0 else 0.0]


class Rng:
    """xoshiro256++, seeded by splitmix64: what environments draw from. Published by Blackman and Vigna, and Steele et al."""

    mask = (1 << 64) - 1

    def __init__(self, seed=0):
        self.words = []
        for i in range(1, 5):
            z = (seed + i * 0x9e3779b97f4a7c15) & self.mask
            z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9 & self.mask
            z = (z ^ z >> 27) * 0x94d049bb133111eb & self.mask
            self.words.append(z ^ z >> 31)

    def rotated(self, x, k):
        return (x << k | x >> 64 - k) & self.mask

    def next(self):
        a, b, c, d = self.words
        c, d = c ^ a, d ^ b
        self.words, result = [a ^ d, b ^ c, c ^ b << 17 & self.mask, self.rotated(d, 45)], self.words[0] + self.words[3]
        return (self.rotated(result & self.mask, 23) + a) & self.mask

    def unit(self):
        return (self.next() >> 11) / (1 << 53)

    def below(self, n):
        """The high half of the product with n; products whose low half is below 2^64 mod n are drawn again."""
        while True:
            product = self.next() * n
            if product & self.mask >= (1 << 64) % n:
                return product >> 64


class MinAtar(Model):
    """A state is (game, action before, generator). sticky: probability that the action before is taken instead; it is drawn before
    anything else in a step. A game has
        reset(rng)                 a new episode
        scene(vector)              of set_state
        play(game, action, rng)    changes the game; (reward, terminal)
        cells(game)                (row, column, plane) of the cells that are 1
    """

    size = 10
    sticky, ramping = 0.0, True

    def start(self, seed):
        rng = Rng(seed)
        return self.reset(rng), 0, rng

    def again(self, state):
        """The next episode of the same generator."""
        return self.reset(state[2]), 0, state[2]

    def begin(self, vector):
        return self.scene([int(v) for v in vector]), 0, self.start(0)[2]

    def step(self, state, action):
        return self.advance(copy.deepcopy(state), action)

    def advance(self, state, action):
        """A step that changes the state itself."""
        game, last, rng = state
        taken = last if self.sticky > 0 and rng.unit() < self.sticky else int(action[0])
        reward, terminal = self.play(game, taken, rng)
        return (game, taken, rng), float(reward), terminal

    def observe(self, state):
        values = [0] * (self.size * self.size * len(self.planes))
        for row, column, plane in self.cells(state[0]):
            values[(row * self.size + column) * len(self.planes) + self.planes.index(plane)] = 1
        return values


class Breakout(MinAtar):
    """MinAtar's Breakout. This reading of its rules, in the order of one step:

    1. The paddle moves by at most one cell in row 9 and stops at the sides.
    2. The ball aims at the diagonal neighbour in its direction (0 up-left, 1 up-right, 2 down-right, 3 down-left).
    3. Beyond a side: it aims at the cell of the side column instead (the row still changes) and its horizontal
       direction turns. This comes before and together with any of 4, 5, 6.
    4. Above row 0: it aims at row 0 and its vertical direction turns.
    5. Else, a brick in the cell aimed at: unless the step before met a brick too, the brick goes, the reward is 1, the
       ball keeps its row (the column still changes) and its vertical direction turns. Right after such a step the ball
       flies through: no reward, the brick stays, the ball is in the brick's cell.
    6. Else, row 9 aimed at: if no brick is left, a new wall appears in rows 1 to 3. If the paddle is in the column that
       the ball leaves, the ball keeps its row and its vertical direction turns. Else, if the paddle is in the column
       aimed at, the ball keeps its row and turns back the way it came in both directions; the column still changes.
       Else the ball enters row 9 and the episode ends.
    7. The trail is where the ball was before the step. "Met a brick" is remembered for one step, whether the brick went
       or not.

    An episode begins with the ball in row 3, at the left side and flying down-right, or (1 of 2) at the right side and flying
    down-left, above a whole wall. Actions: 0 stay, 1 left, 2 right.
    """

    name = "Breakout"
    planes = ("paddle", "ball", "trail", "brick")
    horizontal = {0: 1, 1: 0, 2: 3, 3: 2}  # the direction with its horizontal part turned
    vertical = {0: 3, 3: 0, 1: 2, 2: 1}

    def reset(self, rng):
        return self.scene([3, *((9, 3) if rng.below(2) == 1 else (0, 2)), 4] + [1] * 30)

    def scene(self, vector):
        row, column, direction, paddle = vector[:4]
        bricks = {(1 + i // self.size, i % self.size) for i, brick in enumerate(vector[4:]) if brick}
        return Namespace(row=row, column=column, direction=direction, paddle=paddle, bricks=bricks, trail=(row, column),
                         struck=False)

    def play(self, game, action, rng):
        game.paddle = clip(game.paddle + {0: 0, 1: -1, 2: 1}[action], 0, self.size - 1)
        game.trail = game.row, game.column
        row = game.row + (1 if game.direction in (2, 3) else -1)
        column = game.column + (1 if game.direction in (1, 2) else -1)
        reward, terminal, meets_brick = 0, False, False
        if not 0 <= column < self.size:
            column = clip(column, 0, self.size - 1)
            game.direction = self.horizontal[game.direction]
        if row < 0:
            row = 0
            game.direction = self.vertical[game.direction]
        elif (row, column) in game.bricks:
            meets_brick = True
            if not game.struck:
                reward = 1
                game.bricks.remove((row, column))
                row = game.row
                game.direction = self.vertical[game.direction]
        elif row == self.size - 1:
            if not game.bricks:
                game.bricks = {(r, c) for r in (1, 2, 3) for c in range(self.size)}
            if game.column == game.paddle:
                row, game.direction = game.row, self.vertical[game.direction]
            elif column == game.paddle:
                row, game.direction = game.row, self.vertical[self.horizontal[game.direction]]
            else:
                terminal = True
        game.row, game.column, game.struck = row, column, meets_brick
        return reward, terminal

    def cells(self, game):
        yield self.size - 1, game.paddle, "paddle"
        yield game.row, game.column, "ball"
        yield *game.trail, "trail"
        for brick in game.bricks:
            yield *brick, "brick"


class Freeway(MinAtar):
    """MinAtar's Freeway, in the order of one step:

    1. Up or down moves the chicken (column 4, rows 0 to 9) if its timer is 0, and sets the timer to 3.
    2. In row 0: +1, all cars draw speeds anew and have their timers set, but stay where they are; the chicken is in row 9.
    3. For each car: if it is on the chicken, the chicken is in row 9. If its timer is 0, the timer becomes the speed (1 to 5), the car moves
       by one cell (row i, around the ends of the board), and if it is on the chicken now, the chicken is in row 9. Else the
       timer falls by one.
    4. The chicken's timer falls by one unless it is 0.

    An episode begins in row 9 with a timer of 3 and all cars in column 0. Speeds are drawn for cars in rows 1 to 8, then
    directions (1 of 2: right). Actions: 0 stay, 1 up, 2 down."""

    name = "Freeway"
    planes = ("chicken", "car", "speed1", "speed2", "speed3", "speed4", "speed5")

    def draw(self, cars, rng):
        speeds = [1 + rng.below(5) for _ in cars]
        for car, speed in zip(cars, speeds):
            car.velocity = speed if rng.below(2) == 1 else -speed
            car.timer = speed

    def reset(self, rng):
        cars = [Namespace(x=0, y=y) for y in range(1, 9)]
        self.draw(cars, rng)
        return Namespace(y=9, timer=3, cars=cars)

    def scene(self, vector):
        cars = []
        for y in range(1, 9):
            x, timer, kind = vector[3 * y - 1:3 * y + 2]
            cars.append(Namespace(x=x, y=y, timer=timer, velocity=kind + 1 if kind < 5 else 4 - kind))
        return Namespace(y=vector[0], timer=vector[1], cars=cars)

    def play(self, game, action, rng):
        reward = 0
        if action != 0 and game.timer == 0:
            game.timer = 3
            game.y = clip(game.y + {1: -1, 2: 1}[action], 0, 9)
        if game.y == 0:
            reward = 1
            self.draw(game.cars, rng)
            game.y = 9
        for car in game.cars:
            if (car.x, car.y) == (4, game.y):
                game.y = 9
            if car.timer == 0:
                car.timer = abs(car.velocity)
                car.x += 1 if car.velocity > 0 else -1
                car.x = {-1: 9, 10: 0}.get(car.x, car.x)
                if (car.x, car.y) == (4, game.y):
                    game.y = 9
            else:
                car.timer -= 1
        game.timer = max(0, game.timer - 1)
        return reward, False

    def cells(self, game):
        yield game.y, 4, "chicken"
        for car in game.cars:
            yield car.y, car.x, "car"
            yield car.y, (car.x - (1 if car.velocity > 0 else -1)) % 10, "speed%d" % abs(car.velocity)


class Asterix(MinAtar):
    """MinAtar's Asterix, in the order of one step:

    1. If the spawn timer is 0, it becomes the spawn interval, and a thing enters: it draws whether it goes right (1 of 2),
       whether it is gold (0 of 3), and its row among the free rows of 1 to 8. Without a free row it is lost.
    2. The player moves by one cell within rows 1 to 8.
    3. A thing on the player: gold goes and is worth 1, an enemy ends the episode.
    4. If the move timer is 0, it becomes the move interval, all things move by one cell, those beyond the board go; then 3 again.
    5. Both timers fall by one.
    6. With ramping, unless both intervals are 1: the ramp timer, from 100, falls by one while it is not negative. Else it becomes 100, the
       spawn interval falls by one, and the move interval falls by one every second time; neither falls below 1.

    An episode begins at row 5, column 5, with intervals of 10 and 5 and the timers at their intervals."""

    name = "Asterix"
    planes = ("player", "enemy", "trail", "gold")

    def reset(self, rng):
        return Namespace(y=5, x=5, spawn_timer=10, spawn_interval=10, move_timer=5, move_interval=5, ramp_timer=100, ramps=0,
                         things={})

    def scene(self, vector):
        things = {}
        for y in range(1, 9):
            kind, x = vector[4 + 2 * y:6 + 2 * y]
            if kind:
                things[y] = Namespace(x=x, gold=kind in (2, 4), right=kind < 3)
        level = vector[5]
        return Namespace(y=vector[0] + 1, x=vector[1], spawn_timer=vector[2], spawn_interval=10 - level, move_timer=vector[3],
                         move_interval=5 - level // 2, ramp_timer=vector[4] - 1, ramps=level, things=things)

    def enter(self, game, rng):
        right, gold = rng.below(2) == 1, rng.below(3) == 0
        rows = [y for y in range(1, 9) if y not in game.things]
        if rows:
            game.things[rows[rng.below(len(rows))]] = Namespace(x=0 if right else 9, gold=gold, right=right)

    def meet(self, game):
        thing = game.things.get(game.y)
        if thing is None or thing.x != game.x:
            return 0, False
        if thing.gold:
            del game.things[game.y]
        return int(thing.gold), not thing.gold

    def ramp(self, game):
        if not self.ramping or (game.spawn_interval == 1 and game.move_interval == 1):
            return
        if game.ramp_timer >= 0:
            game.ramp_timer -= 1
            return
        game.ramp_timer = 100
        if game.ramps % 2 == 1:
            game.move_interval = max(1, game.move_interval - 1)
        game.spawn_interval = max(1, game.spawn_interval - 1)
        game.ramps += 1

    def play(self, game, action, rng):
        if game.spawn_timer == 0:
            self.enter(game, rng)
            game.spawn_timer = game.spawn_interval
        right, down = {0: (0, 0), 1: (-1, 0), 2: (0, -1), 3: (1, 0), 4: (0, 1)}[action]
        game.x, game.y = clip(game.x + right, 0, 9), clip(game.y + down, 1, 8)
        reward, terminal = self.meet(game)
        if game.move_timer == 0:
            game.move_timer = game.move_interval
            for thing in game.things.values():
                thing.x += 1 if thing.right else -1
            game.things = {y: thing for y, thing in game.things.items() if 0 <= thing.x <= 9}
            more, end = self.meet(game)
            reward, terminal = reward + more, terminal or end
        game.spawn_timer -= 1
        game.move_timer -= 1
        self.ramp(game)
        return reward, terminal

    def cells(self, game):
        yield game.y, game.x, "player"
        for y, thing in game.things.items():
            yield y, thing.x, "gold" if thing.gold else "enemy"
            behind = thing.x - (1 if thing.right else -1)
            if 0 <= behind <= 9:
                yield y, behind, "trail"


class SpaceInvaders(MinAtar):
    """MinAtar's Space Invaders, in the order of one step:

    1. Fire with a shot timer of 0 puts a shot into the cannon's cell (row 9) and sets the timer to 5. Left and right move the cannon.
    2. Shots move up and bombs move down by one row; beyond the board they are gone. A bomb in the cannon's cell ends the episode.
    3. An alien in the cannon's cell ends the episode.
    4. If the move timer is 0, it becomes the number of aliens, at most the move interval. If an alien is in the last column of its direction,
       the direction turns and all go down by one row (from row 9 to row 0, which ends the episode). Else all go sideways by one cell. Then
       3 again.
    5. If the bomb timer is 0, it becomes 10, and a bomb appears in the cell of the lowest alien of the column nearest to the cannon, the left
       one of two.
    6. Where an alien and a shot share a cell, both go, and the reward is 1.
    7. The shot timer falls by one unless it is 0; the other timers fall by one.
    8. Without aliens, the move interval falls by one if ramping and above 6, and a wave is in rows 0 to 3, columns 2 to 7.

    An episode begins with the cannon in column 5, a wave that goes left, an interval of 12, and timers of 0 (shot), 12 (move), 10 (bomb).
    Actions: 0 stay, 1 left, 2 right, 3 fire."""

    name = "SpaceInvaders"
    planes = ("cannon", "alien", "alien_left", "alien_right", "shot", "bomb")

    def wave(self):
        return {(y, x) for y in range(4) for x in range(2, 8)}

    def reset(self, rng):
        return Namespace(x=5, aliens=self.wave(), direction=-1, shots=set(), bombs=set(), move_interval=12, shot_timer=0, move_timer=12,
                         bomb_timer=10)

    def scene(self, vector):
        def cells(masks):
            return {(y, x) for y, mask in enumerate(masks) for x in range(10) if mask >> x & 1}
        return Namespace(x=vector[0], shot_timer=vector[1], move_timer=vector[2], bomb_timer=vector[3],
                         direction=1 if vector[4] else -1, move_interval=12 - vector[5], aliens=cells(vector[6:16]) or self.wave(),
                         shots=cells(vector[16:26]), bombs=cells(vector[26:36]))

    def march(self, game):
        """True if the aliens have landed."""
        game.move_timer = min(len(game.aliens), game.move_interval)
        edge = 9 if game.direction > 0 else 0
        if any(x == edge for _, x in game.aliens):
            landed = any(y == 9 for y, _ in game.aliens)
            game.direction = -game.direction
            game.aliens = {((y + 1) % 10, x) for y, x in game.aliens}
            return landed
        game.aliens = {(y, x + game.direction) for y, x in game.aliens}
        return False

    def play(self, game, action, rng):
        if action == 3 and game.shot_timer == 0:
            game.shots.add((9, game.x))
            game.shot_timer = 5
        elif action in (1, 2):
            game.x = clip(game.x + {1: -1, 2: 1}[action], 0, 9)
        game.shots = {(y - 1, x) for y, x in game.shots if y > 0}
        game.bombs = {(y + 1, x) for y, x in game.bombs if y < 9}
        cannon = (9, game.x)
        terminal = cannon in game.bombs or cannon in game.aliens
        if game.move_timer == 0:
            landed = self.march(game)
            terminal = terminal or landed or cannon in game.aliens
        if game.bomb_timer == 0:
            game.bomb_timer = 10
            column = min({x for _, x in game.aliens}, key=lambda x: (abs(x - game.x), x))
            game.bombs.add((max(y for y, x in game.aliens if x == column), column))
        hit = game.aliens & game.shots
        game.aliens -= hit
        game.shots -= hit
        game.shot_timer = max(0, game.shot_timer - 1)
        game.move_timer -= 1
        game.bomb_timer -= 1
        if not game.aliens:
            if self.ramping and game.move_interval > 6:
                game.move_interval -= 1
            game.aliens = self.wave()
        return len(hit), terminal

    def cells(self, game):
        yield 9, game.x, "cannon"
        for y, x in game.aliens:
            yield y, x, "alien"
            yield y, x, "alien_left" if game.direction < 0 else "alien_right"
        for y, x in game.shots:
            yield y, x, "shot"
        for y, x in game.bombs:
            yield y, x, "bomb"


class CartAndPole(Model):
    """A cart on a rail with a rigid pole: Lagrange's equations in x and the pole's angle (0 up, positive towards +x),
    with the equations of agent/env/mujoco.h. The pole's centre is at (x + l sin a, l cos a), so

        T = M x'^2 / 2 + m (x'^2 + 2 l cos(a) x' a' + l^2 a'^2) / 2 + I a'^2 / 2,    V = m g l cos(a)

    and d/dt dL/dq' - dL/dq = force - damping * q' for both. RK4 over (q, q'), the force held during a step. The rail's
    end is a soft limit that these equations leave out: traces stop short of it."""

    gravity = 9.81

    def derivative(self, state, force):
        _, angle, v, omega = state
        sin, cos = math.sin(angle), math.cos(angle)
        ml = self.pole * self.centre
        a, b, d = self.cart + self.pole, ml * cos, self.inertia + ml * self.centre
        p = force - self.cart_damping * v + ml * sin * omega ** 2
        q = ml * self.gravity * sin - self.hinge_damping * omega
        det = a * d - b * b
        return [v, omega, (d * p - b * q) / det, (a * q - b * p) / det]

    def advance(self, state, action):
        for _ in range(self.frame_skip):
            state = rk4(lambda y: self.derivative(y, self.gear * action[0]), state, self.h)
        return tuple(state)

    def valid(self, state):
        return abs(state[0]) < 0.95 * self.rail


class InvertedPendulum(CartAndPole):
    name = "InvertedPendulum"
    cart, pole, centre, inertia = 10.5, 5.0, 0.3, 0.19
    cart_damping, hinge_damping, gear, h, frame_skip, rail = 1.0, 1.0, 100.0, 0.02, 2, 1.0

    def step(self, state, action):
        state = self.advance(state, action)
        return state, 1.0, abs(state[1]) > 0.2


class CartPoleSwingUp(CartAndPole):
    name = "CartPoleSwingUp"
    cart, pole, centre, inertia = 1.0, 0.1, 0.5, 0.0094
    cart_damping, hinge_damping, gear, h, frame_skip, rail = 0.0005, 0.000002, 10.0, 0.01, 1, 1.8

    def step(self, state, action):
        state = self.advance(state, action)
        x, angle, _, omega = state
        upright = (1 + math.cos(angle)) / 2
        centred = (1 + tolerance(x, 2)) / 2
        small_control = (4 + max(0.0, 1 - action[0] ** 2)) / 5
        small_velocity = (1 + tolerance(omega, 5)) / 2
        return state, upright * centred * small_control * small_velocity, False

    def observe(self, state):
        x, angle, v, omega = state
        return [x, math.cos(angle), math.sin(angle), v, omega]


def tolerance(value, margin):
    """The control suite's: 1 at zero, a bell curve that is 0.1 at the margin."""
    return math.exp(math.log(0.1) * (value / margin) ** 2)
