#!/usr/bin/python3
"""A DQN learner in PyTorch for C actors: CartPole-v1 to a mean return of 475.

  python3 torch_dqn.py        starts replay-launch with torch_dqn.yaml, which starts a broker, actors, an evaluator, and this file
                              as the learner

Double Q-learning with returns over ten steps. The actors compute the returns; the learner samples transitions, trains, and publishes
its network, with which the actors act. It prints the share of the time for which it waited for data.
"""
import copy
import os
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
BATCH, DISCOUNT, TAU = 64, 0.99, 0.01


def launch() -> int:
    """Runs everything. Status 0: an evaluation reached 475."""
    built = HERE.parents[2] / "build"
    found = [path / "replay-launch" for path in (built / "release", built / "dev") if (path / "replay-launch").exists()]
    program = os.environ.get("RP_LAUNCH") or shutil.which("replay-launch") or (found[0] if found else None)
    if program is None:
        sys.exit("replay-launch is not on PATH: build it with ./dev build --preset release, or set RP_LAUNCH")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path),  # the learner runs in this Python, with its packages
                   "PATH": os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", "")])}
    return subprocess.run([str(program), str(HERE / "torch_dqn.yaml"), *sys.argv[1:]], env=environment).returncode


def learn() -> None:
    import torch

    import replaybus.run
    import replaybus.torch

    torch.set_num_threads(1)
    with replaybus.run.Learner() as run:  # the broker's address, the table and the folder come from replay-launch
        torch.manual_seed(run.seed)
        q = torch.nn.Sequential(torch.nn.Linear(4, 64), torch.nn.Tanh(), torch.nn.Linear(64, 64), torch.nn.Tanh(),
                                torch.nn.Linear(64, 2))
        target = copy.deepcopy(q)
        weights, target_weights = list(q.parameters()), list(target.parameters())
        adam = torch.optim.Adam(weights, lr=1e-3)
        run.publishes(replaybus.torch.Publisher(run.client, "dqn", q=q).keep(target=target, adam=adam), every=2)
        sampler = replaybus.torch.Sampler(run.client, run.table, BATCH)
        rows = torch.arange(BATCH)
        for batch in run.batches(sampler):  # until the launcher stops the run
            data = batch.data
            observation, following = data["observation"], data["next_observation"]
            with torch.no_grad():
                best = q(following).argmax(1)
                value = data["reward"] + DISCOUNT * data["discount"] * target(following)[rows, best]
            loss = (q(observation)[rows, data["action"].long()] - value).square().mean() / 2
            adam.zero_grad()
            loss.backward()
            adam.step()
            with torch.no_grad():
                torch._foreach_mul_(target_weights, 1 - TAU)
                torch._foreach_add_(target_weights, weights, alpha=TAU)
            run.step(loss=loss, q=value.mean())
        print(f"{run.steps} learner steps; waited {100 * run.wait_share:.1f}% of the time")


if __name__ == "__main__":
    if "REPLAY_ENDPOINT" in os.environ:
        learn()
    else:
        sys.exit(launch())
