"""The environments, from their published equations, in plain Python.

Sources: Gymnasium's documentation (CartPole-v1 after Barto, Sutton and Anderson 1983; Acrobot-v1 after Sutton and
Barto's book; the mountain cars; Pendulum-v1), bsuite's descriptions of Catch and DeepSea, MinAtar's paper and
documentation for Breakout, Lagrange's equations and the control suite's reward for the two carts with a pole.
Nothing here may be derived from agent/env: these models are what that code is compared with.

Each model has
    name, tolerance
    begin(vector)          the state that set_state makes of a vector (a tuple; may hold more than the vector)
    observe(state)         a list of numbers
    step(state, action)    (state, reward, terminal); the action is a list of native values
"""

import math

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
        """Whether the equations hold here; a trace ends before they do not."""
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


class Breakout(Model):
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

    Planes, last in the order of an observation: paddle, ball, trail, brick. Actions: 0 stay, 1 left, 2 right.
    """

    name = "Breakout"
    size = 10
    horizontal = {0: 1, 1: 0, 2: 3, 3: 2}  # the direction with its horizontal part turned
    vertical = {0: 3, 3: 0, 1: 2, 2: 1}

    def begin(self, vector):
        row, column, direction, paddle = vector[:4]
        cells = enumerate(vector[4:])
        bricks = frozenset((1 + i // self.size, i % self.size) for i, brick in cells if brick)
        return (row, column, direction, paddle, bricks, (row, column), False)

    def step(self, state, action):
        row, column, direction, paddle, bricks, _, struck = state
        paddle = clip(paddle + {0: 0, 1: -1, 2: 1}[action[0]], 0, self.size - 1)
        trail = (row, column)
        to_row = row + (1 if direction in (2, 3) else -1)
        to_column = column + (1 if direction in (1, 2) else -1)
        reward, terminal, meets_brick = 0.0, False, False
        if not 0 <= to_column < self.size:
            to_column = clip(to_column, 0, self.size - 1)
            direction = self.horizontal[direction]
        if to_row < 0:
            to_row = 0
            direction = self.vertical[direction]
        elif (to_row, to_column) in bricks:
            meets_brick = True
            if not struck:
                reward = 1.0
                bricks = bricks - {(to_row, to_column)}
                to_row = row
                direction = self.vertical[direction]
        elif to_row == self.size - 1:
            if not bricks:
                bricks = frozenset((r, c) for r in (1, 2, 3) for c in range(self.size))
            if column == paddle:
                to_row, direction = row, self.vertical[direction]
            elif to_column == paddle:
                to_row, direction = row, self.vertical[self.horizontal[direction]]
            else:
                terminal = True
        return (to_row, to_column, direction, paddle, bricks, trail, meets_brick), reward, terminal

    def observe(self, state):
        row, column, _, paddle, bricks, trail, _ = state
        planes = [[0, 0, 0, 0] for _ in range(self.size * self.size)]
        planes[(self.size - 1) * self.size + paddle][0] = 1
        planes[row * self.size + column][1] = 1
        planes[trail[0] * self.size + trail[1]][2] = 1
        for r, c in bricks:
            planes[r * self.size + c][3] = 1
        return [value for cell in planes for value in cell]


class CartAndPole(Model):
    """A cart on a rail with a rigid pole: Lagrange's equations in x and the pole's angle (0 up, positive towards +x),
    with the parameters of docs/GUIDE.md, "MuJoCo models". The pole's centre is at (x + l sin a, l cos a), so

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
