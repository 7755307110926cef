#!/usr/bin/python3
"""The least that a learner of your own can be: samples, writes priorities back, publishes parameters, counts its steps.

It learns nothing. What it publishes is a fixed linear policy for CartPole-v1 in the format of proto/PROTOCOL.md, 21, for
cartpole_actor.py. Put your own training where it says so. A learner that is not the only one would average its
gradients with Reduce (proto/PROTOCOL.md, 14).

The broker may have shards (20): shards.py samples all of them as one table, and goes on without one that is away. For a broker
that is alone it does the same with one shard.
"""

import argparse
import sys
import time

sys.dont_write_bytecode = True

import ending  # noqa: E402

if __name__ == "__main__":
    ending.begin()

import weights  # noqa: E402
from patient import NoBroker, PatientService, Stopped  # noqa: E402
from service import ReplayError  # noqa: E402
from shards import SILENT, ShardedLearner, Shards  # noqa: E402

POLICY_SLOT, STEPS_COUNTER = "policy", "learner_steps"  # the names that actors and launcher use
SAMPLE_SECONDS = 0.5


def parameters(steps):
    """Q-values that push the cart to the side on which the pole falls."""
    matrix = [0.0, 0.0,  0.0, 0.0,  -1.0, 1.0,  -1.0, 1.0]  # position, velocity, angle, its velocity; left, right
    return weights.write([("q/layer0/weight", weights.FLOAT32, [4, 2], matrix),
                          ("q/layer0/bias", weights.FLOAT32, [2], [0.0, 0.0]),
                          ("steps", weights.UINT64, [1], [steps])])


def sample(table, count, patience):
    """A batch, smaller if the table has no more to give for now."""
    end, items = time.monotonic() + patience, []
    while not items:
        items = table.sample(count, SAMPLE_SECONDS)
        if table.living():
            end = time.monotonic() + patience
        elif time.monotonic() > end:
            raise NoBroker("no shard has answered for %g s" % patience)
    return items


def learn(shards, args):
    table = ShardedLearner(shards, args.table, silent=SILENT)
    steps = shards.counter(STEPS_COUNTER)
    shards.put(POLICY_SLOT, parameters(steps))  # actors wait for the first ones
    while not args.steps or steps < args.steps:
        items = sample(table, args.batch, args.timeout)
        # Here a learner trains on item.fields; what it is most wrong about it wants to see again soon. Items whose shard has
        # gone away meanwhile keep their priorities.
        items = [item for item in items if item.shard not in table.away]
        priorities = [abs(item.fields["reward"][0]) for item in items]
        shards.update(args.table, [item.key for item in items], priorities)
        steps = shards.counter(STEPS_COUNTER, 1)
        if steps % args.publish_every == 0:
            shards.put(POLICY_SLOT, parameters(steps), away=table.away)
            print("learner_steps=%d items=%d" % (steps, len(items)), flush=True)
    shards.put(POLICY_SLOT, parameters(steps), away=table.away)


def main():
    parser = argparse.ArgumentParser(description="A learner in plain Python that learns nothing, as an example.",
                                     formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--endpoint", required=True, help="of the broker's service: tcp://HOST:PORT or ipc://PATH")
    parser.add_argument("--table", default="replay", help="to sample from")
    parser.add_argument("--batch", type=int, default=32, help="items of a learner step")
    parser.add_argument("--publish-every", type=int, default=10, help="learner steps between new parameters")
    parser.add_argument("--steps", type=int, default=0, help="end after so many learner steps; 0: at SIGTERM")
    parser.add_argument("--timeout", type=float, default=30.0, help="seconds without a broker before it gives up")
    args = parser.parse_args()
    try:
        learn(Shards(args.endpoint, lambda endpoint: PatientService(endpoint, args.timeout)), args)
    except Stopped:
        pass
    except NoBroker as error:
        print(error, file=sys.stderr)
        return 3
    except (ReplayError, ValueError) as error:
        print("learner: %s" % error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    ending.end(main())
