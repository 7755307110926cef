#!/usr/bin/python3
"""The least that a learner of your own can be: samples, writes priorities back, publishes parameters, counts its steps.

It learns nothing. What it publishes is a fixed linear policy for CartPole-v1 in the format of docs/WEIGHTS.md, for
cartpole_actor.py. Put your own training where it says so. A learner that is not the only one would average its
gradients with Reduce (proto/PROTOCOL.md, 14).
"""

import argparse
import sys

sys.dont_write_bytecode = True

import ending  # noqa: E402

if __name__ == "__main__":
    ending.begin()

import learner  # noqa: E402
import weights  # noqa: E402
from generated import pb  # noqa: E402
from patient import NoBroker, PatientService, Stopped  # noqa: E402
from service import ReplayError  # noqa: E402

POLICY_SLOT, STEPS_COUNTER = "policy", "learner_steps"  # the names that actors and launcher use
DEADLINE_EXCEEDED = 4
SAMPLE_MS = 500  # no longer than a request may take before it is sent again


def parameters(steps):
    """Q-values that push the cart to the side on which the pole falls."""
    matrix = [0.0, 0.0,  0.0, 0.0,  -1.0, 1.0,  -1.0, 1.0]  # position, velocity, angle, its velocity; left, right
    return weights.write([("q/layer0/weight", weights.FLOAT32, [4, 2], matrix),
                          ("q/layer0/bias", weights.FLOAT32, [2], [0.0, 0.0]),
                          ("steps", weights.UINT64, [1], [steps])])


def sample(service, table, count):
    """A batch, or none if the table has none to give for now."""
    try:
        reply, frames = service.ask("sample", pb.Sample(table=table, count=count, timeout_ms=SAMPLE_MS))
    except ReplayError as error:
        if error.status != DEADLINE_EXCEEDED:
            raise
        return []
    return learner.decode(reply.sample, frames)


def learn(service, args):
    steps = service.counter(STEPS_COUNTER)
    service.put(POLICY_SLOT, parameters(steps))  # actors wait for the first ones
    while not args.steps or steps < args.steps:
        items = sample(service, args.table, args.batch)
        if not items:
            continue
        # Here a learner trains on item.fields; what it is most wrong about it wants to see again soon.
        priorities = [abs(item.fields["reward"][0]) for item in items]
        service.update(args.table, [item.key for item in items], priorities)
        steps = service.counter(STEPS_COUNTER, 1)
        if steps % args.publish_every == 0:
            service.put(POLICY_SLOT, parameters(steps))
            print("learner_steps=%d items=%d" % (steps, len(items)), flush=True)
    service.put(POLICY_SLOT, parameters(steps))


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
        learn(PatientService(args.endpoint, args.timeout), args)
    except Stopped:
        pass
    except NoBroker as error:
        print(error, file=sys.stderr)
        return 3
    except ReplayError as error:
        print("learner: %s" % error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    ending.end(main())
