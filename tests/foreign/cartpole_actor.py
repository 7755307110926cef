#!/usr/bin/python3
"""An actor of your own: CartPole-v1 in plain Python, for a learner of this repository.

`replay-launch configs/custom-actor.yaml` starts two of these instead of replay-actor. It shows all that an actor does:

  1  takes the parameters that the learner publishes             Policy, CartPoleActor.pull
  2  claims environment steps, so that all actors together stop  CartPoleActor.claim
     where they should
  3  acts, and turns steps into n-step transitions               CartPole, Transitions.step
  4  sends them as the broker's credit allows, with heartbeats   Transitions.flow
  5  goes on when the broker was away                            Transitions.recover, patient.py
  6  ends in order at SIGTERM, with status 0                     CartPoleActor.close, ending.py
  7  writes to all shards, if the broker has several: a whole    CartPoleActor.begin, shards.py
     episode to one of them

The protocol is in actor.py, service.py, shards.py and blocks.py, written from proto/PROTOCOL.md alone. For an environment of
your own replace CartPole, and the columns in Transitions. While a shard does not answer, this example waits for it, as it waits
for a broker that is alone. Exit status: 0 done or stopped, 1 failed, 2 wrong arguments, 3 no broker.
"""

import argparse
import collections
import json
import math
import operator
import pathlib
import random
import sys
import time

sys.dont_write_bytecode = True

import ending  # noqa: E402

if __name__ == "__main__":
    ending.begin()

import blocks  # noqa: E402
import weights  # noqa: E402
from actor import Actor  # noqa: E402
from generated import pb  # noqa: E402
from patient import SESSION_UNKNOWN, NoBroker, PatientService, Stopped  # noqa: E402
from service import ReplayError  # noqa: E402
from shards import Shards  # noqa: E402

POLICY_SLOT, STEPS_COUNTER = "policy", "environment_steps"  # the names that learner, evaluator and launcher use
REPORT_SECONDS = 2.0


class CartPole:
    """Gymnasium's CartPole-v1: +1 a step until the pole falls or the cart leaves; 500 steps at most."""

    observation_shape, actions, max_steps = [4], 2, 500

    def __init__(self, rng):
        self.rng = rng

    def reset(self):
        self.state, self.steps = [self.rng.uniform(-0.05, 0.05) for _ in range(4)], 0
        return self.state

    def step(self, action):
        """(observation, reward, terminal, truncated)"""
        x, v, angle, spin = self.state
        sine, cosine = math.sin(angle), math.cos(angle)
        push = ((10.0 if action == 1 else -10.0) + 0.05 * spin * spin * sine) / 1.1
        spin_up = (9.8 * sine - cosine * push) / (0.5 * (4 / 3 - 0.1 * cosine * cosine / 1.1))
        speed_up = push - 0.05 * spin_up * cosine / 1.1
        self.state = [x + 0.02 * v, v + 0.02 * speed_up, angle + 0.02 * spin, spin + 0.02 * spin_up]
        self.steps += 1
        terminal = abs(self.state[0]) > 2.4 or abs(self.state[2]) > math.radians(12)
        return self.state, 1.0, terminal, not terminal and self.steps >= self.max_steps


class Policy:
    """The learner's Q-network: layers `q/layer<i>`, y = x W + b, with tanh or relu between them."""

    def __init__(self, block, activation):
        tensors = weights.read(block)
        self.steps = tensors["steps"][1][0]  # of the learner: the version of the policy, which items carry
        self.activation = math.tanh if activation == "tanh" else lambda x: max(0.0, x)
        self.layers = []
        while "q/layer%d/weight" % len(self.layers) in tensors:
            name = "q/layer%d/" % len(self.layers)
            (_, outputs), matrix = tensors[name + "weight"]
            self.layers.append([(matrix[i::outputs], bias) for i, bias in enumerate(tensors[name + "bias"][1])])
        if "q/value/weight" in tensors or not self.layers:
            raise ValueError("this example evaluates plain Q-networks: set agent: {algorithm: dqn, options: {dueling: false}}")

    def values(self, x):
        for layer in self.layers[:-1]:
            x = [self.activation(sum(map(operator.mul, row, x)) + bias) for row, bias in layer]
        return [sum(map(operator.mul, row, x)) + bias for row, bias in self.layers[-1]]


class Transitions:
    """Steps in, items of the table out: s, a, R, D, s' over up to n steps, as replay-learner reads them.

    Row t of the stream is s_t, a_t and, in reward and discount, R and D of the window that ENDS at s_t:
    R = r_0 + g r_1 + ... + g^(k-1) r_(k-1), and D = g^(k-1), or 0 after a terminal step (the learner multiplies by g
    once more). So an item is a range of rows: s and a stand in its first one, R, D and s' in its last, and one layout
    does for all. After the last step of an episode its last observation is repeated for the windows that are left.
    """

    def __init__(self, service, name, args, observation_shape):
        self.service, self.n_step, self.discount = service, args.n_step, args.discount
        self.table, self.chunk_rows, self.buffer_items = args.table, args.batch_items, args.buffer_items
        self.columns = [pb.Column(name="observation", dtype="float32", shape=observation_shape),
                        pb.Column(name="action", dtype="int32"), pb.Column(name="reward", dtype="float32"),
                        pb.Column(name="discount", dtype="float32")]
        # name of the field, its column, and its row in the item: 0 the first, -1 the last
        fields = [("observation", 0, 0), ("action", 1, 0), ("reward", 2, -1), ("discount", 3, -1),
                  ("next_observation", 0, -1)]
        self.fields = [pb.Field(name=n, column=c, start=s, count=1, squeeze=True) for n, c, s in fields]
        self.items, self.blocked_s, self.policy, self.stuck = 0, 0.0, 0, 0
        self.stream = Actor(service, self.columns, name)  # HELLO
        self.open()

    def open(self):
        """The beginning of a session: nothing of an earlier one is left."""
        if self.table not in self.stream.tables:
            raise ValueError("the broker has no table '%s', only %s" % (self.table, ", ".join(self.stream.tables)))
        self.layout = self.stream.layout(self.table, self.fields)
        self.rewards = collections.deque(maxlen=self.n_step)  # of the window, oldest first
        self.rows, self.spans = [], []                        # not sent yet: rows; items as (first row, rows)
        self.chunks = collections.deque()                     # (first row, number) of those that items may still need
        self.episode, self.next_beat = 0, 0.0

    def step(self, observation, action, reward, next_observation, terminal, truncated):
        self.row(observation, action, len(self.rewards) + 1)
        self.rewards.append(reward)
        if terminal or truncated:
            span = len(self.rewards) + 1
            while self.rewards:
                self.row(next_observation, 0, span, terminal)
                self.rewards.popleft()
        if len(self.rows) >= self.chunk_rows or terminal or truncated:
            self.flow(end=terminal or truncated)

    def row(self, observation, action, span, terminal=False):
        window = len(self.rewards)
        total = sum(self.discount ** i * reward for i, reward in enumerate(self.rewards))
        remains = self.discount ** (window - 1) if window and not terminal else 0.0
        self.rows.append((observation, action, total, remains))
        if window:
            self.spans.append((self.stream.next_step + len(self.rows) - span, span))

    def flow(self, end=False):
        """Rows become a chunk; it and its items are sent. Waits until the broker has all but some of our items in its
        table: that is how the limiter of the table slows actors down."""
        self.seal(end)
        try:
            sent, start = self.stream.send(0), time.monotonic()
            while not (sent and self.stream.wait_until(self.has_room, 0.1)):
                self.beat()
                sent = self.stream.send(0.1)
            self.blocked_s += time.monotonic() - start
            self.beat()
        except ReplayError as error:
            self.recover(error)
        if self.stream.rejections:
            first = self.stream.rejections[0]
            raise ValueError("the broker refused %d items, the first: %s" % (len(self.stream.rejections), first.text))

    def has_room(self):
        return self.stream.unresolved() <= self.buffer_items

    def seal(self, end):
        if not self.rows:
            return
        stream, data = self.stream, list(zip(*self.rows))
        data[0] = [number for observation in data[0] for number in observation]
        packed = [blocks.pack(column, values) for column, values in zip(self.columns, data)]
        self.chunks.append((stream.next_step, stream.chunk(packed, len(self.rows), episode=self.episode)))
        for first, rows in self.spans:
            at, chunk = next(c for c in reversed(self.chunks) if c[0] <= first)
            stream.item(self.layout, chunk, first - at, rows, priority=1.0, policy=self.policy)
        self.items += len(self.spans)
        self.rows, self.spans = [], []
        # Chunks that no later item can reach are let go, here and in the broker.
        reach = stream.next_step if end else stream.next_step - self.n_step
        while len(self.chunks) > 1 and self.chunks[1][0] <= reach:
            self.chunks.popleft()
        if end:
            self.chunks.clear()
            self.episode += 1
        stream.oldest_chunk = self.chunks[0][1] if self.chunks else stream.next_chunk

    def beat(self):
        """Takes what the broker says, and tells it at least twice in heartbeat_ms that we are there."""
        stream = self.stream
        stream.poll_credit(0)
        if time.monotonic() < self.next_beat:
            return
        self.next_beat = time.monotonic() + stream.hello_reply.heartbeat_ms / 2000
        before = stream.credit.received
        received = stream.heartbeat().received
        self.stuck = self.stuck + 1 if before == received < stream.last_number else 0
        # Messages were lost on the way, or the broker has restarted: HELLO, and those above `received` again.
        if self.stuck >= 6 or stream.credit.gap:
            self.stuck = 0
            self.resume()

    def tend(self):
        """Keeps the session alive while episodes go to other shards."""
        try:
            self.beat()
        except ReplayError as error:
            self.recover(error)

    def resume(self):
        reply = self.stream.resume()
        print("session taken up again; messages lost: %d" % reply.lost_messages, flush=True)

    def recover(self, error):
        """The broker does not know the session (any more): takes it up again or, if it is gone, opens a new one."""
        if error.status != SESSION_UNKNOWN:
            raise error
        try:
            self.resume()
        except ReplayError as again:
            if again.status != SESSION_UNKNOWN:
                raise
            # Whether these items are in the table cannot be found out. A transition more or less does no harm.
            print("new session; items in doubt, not sent again: %d" % len(self.stream.start_over()), flush=True)
            self.open()


class CartPoleActor:
    def __init__(self, shards, args):
        self.args, self.shards, self.name = args, shards, "actor-%d" % args.index
        self.rng = random.Random("%d/%d" % (args.seed, args.index))
        self.env, self.policy, self.version = CartPole(self.rng), None, 0
        self.lanes = [Transitions(s, self.name, args, self.env.observation_shape) for s in shards.services]
        self.total = self.steps = self.left = self.episodes = 0
        self.returns, self.reported = [], (time.monotonic(), 0, 0.0)

    def begin(self):
        """A new episode, at the better of two shards, by items that are not confirmed yet."""
        two = self.rng.sample(self.lanes, 2) if len(self.lanes) > 1 else self.lanes
        self.transitions = min(two, key=lambda lane: lane.stream.unresolved())
        return self.env.reset(), 0.0

    def pull(self):
        """Newer parameters, if there are any."""
        for slot, block in self.shards.get([POLICY_SLOT], have=[self.version]):
            self.policy, self.version = Policy(block, self.args.activation), slot.version
            for lane in self.lanes:
                lane.policy = self.policy.steps

    def claim(self):
        """Takes some steps out of the count of all actors before it takes them in the environment. False: the end."""
        part, limit = self.args.pull_every, self.args.steps
        self.left = part  # already now: if we are stopped while we wait for the answer, close() gives them back
        total = self.shards.counter(STEPS_COUNTER, part)
        self.total = total - part
        if limit and total > limit:
            self.left = max(0, limit - self.total)
            self.shards.counter(STEPS_COUNTER, self.left - part)
        return self.left > 0

    def choose(self, observation):
        part = self.total / self.args.epsilon_steps if self.total < self.args.epsilon_steps else 1.0
        if self.rng.random() < 1.0 + part * (self.args.epsilon - 1.0):
            return self.rng.randrange(self.env.actions)
        values = self.policy.values(observation)
        return values.index(max(values))

    def run(self):
        while not self.policy:
            self.pull()
            self.each(Transitions.flow)
            time.sleep(0.02)
        observation, value = self.begin()
        while self.claim():
            self.pull()
            self.each(Transitions.tend)
            while self.left > 0:
                action = self.choose(observation)
                following, reward, terminal, truncated = self.env.step(action)
                self.left, self.steps, self.total, value = self.left - 1, self.steps + 1, self.total + 1, value + reward
                self.transitions.step(observation, action, reward, following, terminal, truncated)
                observation = following
                if terminal or truncated:
                    self.returns.append(value)
                    self.episodes += 1
                    observation, value = self.begin()
            if time.monotonic() - self.reported[0] >= REPORT_SECONDS:
                self.report()
        self.each(Transitions.flow)

    def each(self, act):
        for lane in self.lanes:
            act(lane)

    def report(self):
        """A line for people and, with --folder, one of JSON for replay-launch: the names are those of replay-actor."""
        now, blocked = time.monotonic(), sum(lane.blocked_s for lane in self.lanes)
        seconds, mean = max(1e-9, now - self.reported[0]), sum(self.returns) / max(1, len(self.returns))
        line = {"time": time.time(), "process": self.name, "environment_steps": self.total,
                "learner_steps": self.policy.steps if self.policy else 0, "actor_steps": self.steps,
                "steps_per_second": (self.steps - self.reported[1]) / seconds, "episodes": self.episodes,
                "return": mean if self.returns else None, "items": sum(lane.items for lane in self.lanes),
                "blocked_share": (blocked - self.reported[2]) / seconds}
        self.returns, self.reported = [], (now, self.steps, blocked)
        print("steps=%d of %d steps_per_second=%.0f episodes=%d return=%.1f blocked_share=%.2f" % (
            self.steps, self.total, line["steps_per_second"], self.episodes, mean, line["blocked_share"]), flush=True)
        if self.args.folder:
            with open(pathlib.Path(self.args.folder) / (self.name + ".jsonl"), "a") as file:
                file.write(json.dumps(line) + "\n")

    def close(self, stopped):
        """Gives back the steps that were not taken, and waits a moment for the last items: BYE."""
        self.report()
        print("items at each shard: %s" % " ".join(str(lane.items) for lane in self.lanes), flush=True)
        for service in self.shards.services:
            service.last_words(0.4 if stopped else 10.0)
        self.finish(lambda: self.left > 0 and self.shards.counter(STEPS_COUNTER, -self.left))
        self.each(lambda lane: self.finish(lambda: lane.stream.bye(timeout_ms=300 if stopped else 5000)))

    @staticmethod
    def finish(act):
        """A shard that is away does not keep the others from their ends."""
        try:
            act()
        except (Stopped, NoBroker, ReplayError) as error:
            print("the last items are in doubt: %s" % error, flush=True)


def arguments():
    parser = argparse.ArgumentParser(description="A CartPole-v1 actor in plain Python for replay-learner (dqn).",
                                     formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    add = parser.add_argument
    add("--endpoint", required=True, help="of the broker's service: tcp://HOST:PORT or ipc://PATH")
    add("--index", type=int, default=0, help="which actor this is, from 0")
    add("--seed", type=int, default=1, help="of everything random, together with the index")
    add("--steps", type=int, default=0, help="end after so many steps of all actors (stop.steps); 0: at SIGTERM")
    add("--table", default="replay", help="to insert into (adder.table)")
    add("--n-step", type=int, default=1, help="steps of a transition (adder.n_step)")
    add("--discount", type=float, default=0.99, help="agent.discount")
    add("--activation", choices=("relu", "tanh"), default="relu", help="of the network (agent.activation)")
    add("--epsilon", type=float, default=0.1, help="part of random actions")
    add("--epsilon-steps", type=int, default=0, help="steps of all actors over which it falls from 1")
    add("--pull-every", type=int, default=20, help="steps between looks for new parameters")
    add("--batch-items", type=int, default=20, help="steps that are stored and sent together")
    add("--buffer-items", type=int, default=100, help="items that are sent and not in the table yet, at most")
    add("--folder", default="", help="for reports: FOLDER/actor-INDEX.jsonl; empty: none")
    add("--timeout", type=float, default=30.0, help="seconds without a broker before it gives up, with status 3")
    args = parser.parse_args()
    for name in ("n_step", "pull_every", "batch_items", "buffer_items"):
        if getattr(args, name) < 1:
            parser.error("--%s must be at least 1" % name.replace("_", "-"))
    return args


def main():
    args = arguments()
    actor, stopped = None, False
    try:
        actor = CartPoleActor(Shards(args.endpoint, lambda endpoint: PatientService(endpoint, args.timeout)), args)
        actor.run()
    except Stopped:
        stopped = True
    except NoBroker as error:
        print(error, file=sys.stderr)
        return 3
    except (ReplayError, ValueError) as error:
        print("%s: %s" % (actor.name if actor else "actor", error), file=sys.stderr)
        return 1
    if actor:
        actor.close(stopped)
    return 0


if __name__ == "__main__":
    ending.end(main())
