"""python3 -m replaybus: says what is installed, and tests it."""
import argparse
import sys
import time

import numpy as np

import replaybus


def self_test() -> int:
    """Writes, samples and updates against a broker of its own. Returns the number of items."""
    with replaybus.Server([replaybus.Table("replay", sampler="prioritized")]) as server, server.client() as client:
        with client.writer(keep_alive=2) as writer:
            writer.append({"observation": np.zeros(4, "float32"), "reward": 0.0})
            for step in range(1, 1001):
                writer.append({"observation": np.full(4, step, "float32"), "reward": float(step)})
                writer.item("replay", 1.0, 2)
        items = 0
        with client.sampler("replay", 100, max_samples=1000) as sampler, client.updater("replay") as updater:
            for batch in sampler:
                data = batch.data
                assert (data["observation"][:, :, 0] == data["reward"]).all(), "a row of one step belongs to another"
                updater.add(batch.key, data["reward"][:, 1])
                items += len(batch)
            assert updater.flush(10).missing == 0, "sampled keys are missing"
        return items


def main() -> int:
    argparse.ArgumentParser(prog="python3 -m replaybus", description="Says what is installed, and tests it: writes, samples and "
                            "updates against a broker of its own.").parse_args()
    print(f"replaybus {replaybus.__version__}, Python {sys.version.split()[0]}, numpy {np.__version__}")
    print(f"extension {replaybus._core.__file__}")
    print(f"broker    {replaybus.broker_program()}")
    try:
        from replaybus import envs
        print(f"environments: {', '.join(envs.names())}")
    except ImportError as error:
        print(f"no environments: {error}")
    start = time.monotonic()
    items = self_test()
    print(f"self-test: wrote, sampled and updated {items} items in {time.monotonic() - start:.2f} s: all is well")
    return 0


if __name__ == "__main__":
    sys.exit(main())
