"""What the offline agents share: batches of a table that a file fills, two critics."""
import torch
from torch import nn

import replaybus.torch
from common import activation, device, evaluate, fill_once, mlp
from continuous import Policy
from replaybus import data

# A file to read into the table (empty: the broker loads a checkpoint), the bound of its actions, and a factor for rewards.
OPTIONS = dict(data="", bound=1.0, rewards=1.0)


class Critics(nn.Module):
    """Two networks Q(s, a), computed together: their layers are one stack of matrices."""

    def __init__(self, policy, config):
        super().__init__()
        sizes = [policy.inputs + policy.actions.size, *policy.hidden, 1]
        pair = [[layer for layer in mlp(sizes) if isinstance(layer, nn.Linear)] for _ in range(2)]
        self.weights = nn.ParameterList(torch.stack([layer.weight.t() for layer in layers]).detach() for layers in zip(*pair))
        self.biases = nn.ParameterList(torch.stack([layer.bias[None] for layer in layers]).detach() for layers in zip(*pair))
        self.activation = activation(config)()

    def forward(self, observations, actions):
        x = torch.cat([observations, actions], -1).expand(2, -1, -1)
        for i, (weight, bias) in enumerate(zip(self.weights, self.biases)):
            x = torch.baddbmm(bias, x if i == 0 else self.activation(x), weight)
        return x[:, :, 0]


def batches(run, settings):
    """Observations, actions, rewards, discounts and next observations, from a table that a file fills first, if one is given."""
    def fill():
        print(f"{settings.data}: {data.load(run.client, settings.data, run.table).items} items in table '{run.table}'", flush=True)

    if settings.data:
        fill_once(run, run.table, fill)
    config = run.config
    discount = config["agent.discount"] or 0.99
    for batch in run.batches(replaybus.torch.Sampler(run.client, run.table, config["agent.batch"] or 256, device=device())):
        items = batch.data
        yield (items["observation"].flatten(1), items["action"].flatten(1) / settings.bound, settings.rewards * items["reward"].flatten(),
               discount * items["discount"].flatten(), items["next_observation"].flatten(1))


def evaluator(heads=1):
    evaluate("policy", lambda env, config: Policy(env, config, heads))
