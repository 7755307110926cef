"""What the agents share: how a file starts, networks, schedules, demonstrations, evaluation. Each agent's own idea is in its own file."""
import functools
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import torch
from torch import nn

import replaybus.run
import replaybus.torch
from replaybus.sequences import LAST

CONFIGS = Path(__file__).resolve().parents[3] / "configs" / "agents"
DEMONSTRATIONS = "demonstrations"  # the table, and the counter of episodes that were written to it
FILLED = "{}_filled"  # the counter of a table that fill_once fills: 0 before, 1 meanwhile, 2 afterwards


def main(config, **roles):
    """Runs the role that the first word names: actor, learner or evaluator. Without one, starts replay-launch with the run's file."""
    torch.set_num_threads(1)
    role = sys.argv[1] if len(sys.argv) > 1 else ""
    if role in roles:
        roles[role]()
        return
    built = CONFIGS.parents[1] / "build"
    found = [path for path in (built / "release" / "replay-launch", built / "dev" / "replay-launch") if path.exists()]
    program = os.environ.get("RP_LAUNCH") or shutil.which("replay-launch") or (found[0] if found else None)
    if program is None:
        sys.exit("replay-launch is not on PATH: build it with ./dev build --preset release, or set RP_LAUNCH")
    path = os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", "")])  # the run's python3 is this one
    sys.exit(subprocess.run([str(program), str(CONFIGS / config), *sys.argv[1:]], env={**os.environ, "PATH": path}).returncode)


def device():
    """A GPU for a learner, if there is one."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def mlp(sizes, activation=nn.Tanh, last_gain=1.0):
    """Linear layers with an activation between them and orthogonal weights. A small last_gain makes the first outputs nearly equal."""
    layers = []
    for i, (inputs, outputs) in enumerate(zip(sizes, sizes[1:])):
        last = i == len(sizes) - 2
        layer = nn.Linear(inputs, outputs)
        nn.init.orthogonal_(layer.weight, last_gain if last else 2**0.5)
        nn.init.zeros_(layer.bias)
        layers += [layer] if last else [layer, activation()]
    return nn.Sequential(*layers)


def activation(config):
    return {"relu": nn.ReLU, "tanh": nn.Tanh}[config["agent.activation"]]


class Actions:
    """What a network gives, and what the environment takes: the number of a discrete action, or numbers between -1 and 1."""

    def __init__(self, env):
        space = env.single_action_space
        self.discrete = hasattr(space, "n")
        self.size = int(space.n) if self.discrete else int(np.prod(space.shape))
        if not self.discrete:
            self._middle, self._half = (space.high + space.low) / 2, (space.high - space.low) / 2

    def to_env(self, actions):
        return actions if self.discrete else (self._middle + self._half * np.clip(actions, -1, 1)).astype("float32")


def flat(observations):
    """Observations as rows of float32."""
    return torch.from_numpy(np.asarray(observations, "float32").reshape(len(observations), -1))


def last_observations(following, info):
    """The observations after a step, with the last ones of episodes that the step has ended, where a reset has replaced them."""
    if "final_obs" not in info:
        return following
    mask = info["_final_obs"]
    return np.where(mask.reshape(-1, *[1] * (following.ndim - 1)), np.asarray(info["final_obs"]), following)


class Atoms:
    """The values that a categorical critic has probabilities for."""

    def __init__(self, low, high, count, on=None):
        self.low, self.high, self.values = low, high, torch.linspace(low, high, count, device=on)
        self._gap = (high - low) / (count - 1)

    def mean(self, logits):
        return logits.softmax(-1) @ self.values

    def project(self, reward, discount, share):
        """The distribution of reward + discount * value: each atom's share goes to the two atoms next to its new value."""
        place = ((reward[:, None] + discount[:, None] * self.values).clamp(self.low, self.high) - self.low) / self._gap
        below = place.floor().clamp(max=len(self.values) - 2)
        above, out = share * (place - below), torch.zeros_like(share)
        out.scatter_add_(1, below.long(), share - above)
        return out.scatter_add_(1, below.long() + 1, above)


def made(run, make):
    """Seeds torch from the run, and returns make(env, config)."""
    torch.manual_seed(run.seeds(1)[0] % 2**63)
    with run.environments(1) as env:
        return make(env, run.config)


def pull(run, wait=False, **networks):
    """Fills an actor's networks with newer parameters, if there are any. Returns whether there were."""
    tensors = run.parameters(wait=wait)
    if tensors is not None:
        replaybus.torch.load_states(tensors, **networks)
    return tensors is not None


def sequence_adder(run, n, table, start=()):
    config = run.config
    return run.client.sequence_adder(n, table, length=config["adder.length"], period=config["adder.period"],
                                     burn_in=config["adder.burn_in"], start=start, max_in_flight=max(1, config["adder.buffer_items"] // n))


def fill_once(run, table, fill):
    """Calls fill, which writes recorded steps to a table of the run, once in the run. If a learner was killed while it filled the table, the
    next one removes what is there and fills it again: no step is in the table twice."""
    counter = run.client.counter(FILLED.format(table))
    if run.index > 0 or counter.value == 2:
        return
    if counter.value == 1:
        run.client.delete(table, [item["key"] for item in run.client.items(table)])
    else:
        counter.add(1)
    fill()
    counter.add(1)


def play_expert(env, seen, step):
    """Plays an episode in each of the environments by their expert, which DeepSea has. step(seen, actions) takes and adds a step of each;
    it returns what the agent sees next, the rewards, and which episodes ended."""
    running = np.ones(env.num_envs, bool)
    while running.any():  # an environment that ends early begins another episode, which is a demonstration as well
        seen, _, ended = step(seen, env.expert())
        running &= ~ended


def sources(run, ratio):
    """Of a sampler: replay, with a share `ratio` of demonstrations."""
    return [(run.client, run.table), (run.client, DEMONSTRATIONS, ratio)][:2 if ratio > 0 else 1]


def follow(targets, modules, share):
    """Moves target networks by a share towards the networks; 1: copies them."""
    with torch.no_grad():
        for target, module in zip(targets, modules):
            torch._foreach_mul_(list(target.parameters()), 1 - share)
            torch._foreach_add_(list(target.parameters()), list(module.parameters()), alpha=share)
            for to, of in zip(target.buffers(), module.buffers()):
                to.copy_(of)


def track(run, targets, modules, usual, delay=1):
    """Moves target networks as agent.target says: by a share at each step, 0 stands for the usual one; from 1 on it is the steps between
    copies. delay: it is called every so many steps."""
    target = run.config["agent.target"] or usual
    if int(target) % delay:
        raise ValueError(f"agent.target is {target:g}; the targets move with the policy, so it must be a multiple of policy_delay, {delay}")
    if target < 1 or run.steps % int(target) == 0:
        follow(targets, modules, min(target, 1))


def descend(adam, loss, clip=None):
    """A step down the gradient, whose norm over all parameters is at most clip."""
    adam.zero_grad()
    loss.backward()
    if clip is not None:
        nn.utils.clip_grad_norm_([parameter for group in adam.param_groups for parameter in group["params"]], clip)
    adam.step()


def returns(items, values, discount, n):
    """What the action of each row of sequences was worth over up to n steps, within its episode and its sequence. values: of the observations."""
    going, out = items["step_type"][:, :-1] < LAST, values
    for _ in range(n):
        following = items["reward"][:, :-1] + discount * items["discount"][:, :-1] * out[:, 1:]
        out = torch.cat([torch.where(going, following, values[:, :-1]), values[:, -1:]], 1)
    return out


def linear(first, last, share):
    """From first to last as share goes from 0 to 1."""
    return first + (last - first) * min(max(share, 0.0), 1.0)


def returns_of(env, act):
    """The return of one episode in each of the environments. act(observations) gives actions for the environment."""
    observations, _ = env.reset()
    returns, running = np.zeros(env.num_envs), np.ones(env.num_envs, bool)
    while running.any():
        observations, rewards, terminated, truncated, _ = env.step(act(observations))
        returns += rewards * running
        running &= ~(terminated | truncated)
    return returns


def evaluate(name, make, act=lambda network, observations: network.best(observations)):
    """An evaluator: make(env, config) gives the network that is published by this name, and act its greedy actions."""
    with replaybus.run.Evaluator() as run, run.environments(run.episodes) as env:
        torch.manual_seed(run.seeds(1)[0] % 2**63)
        network = make(env, run.config)
        for tensors in run.parameters():
            replaybus.torch.load_states(tensors, **{name: network})
            with torch.no_grad():
                run.result(returns_of(env, functools.partial(act, network)))
