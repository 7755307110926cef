#!/usr/bin/python3
"""PPO: proximal policy optimisation (Schulman et al. 2017), with clipped ratios and generalised advantages.

What it asks of replay: a queue with max_lag. Each item is a stretch of `horizon` steps of one environment and is sampled once. It carries
the version of the parameters that acted, one for each update, and the broker gives no item that is further behind. With max_lag 0 actors
wait for the next version, so all data is on-policy.

What it reaches: docs/AGENTS.md has CartPole-v1 and Pendulum-v1 at 100,000 steps, with the seeds that have run.

  python3 agent/python/agents/ppo.py          or: replay-launch configs/agents/ppo-cartpole.yaml, ppo-pendulum.yaml
"""
import numpy as np
import torch
from torch import nn
from torch.distributions import Categorical, Independent, Normal

import replaybus
import replaybus.run
import replaybus.torch
from common import Actions, activation, descend, evaluate, flat, last_observations, linear, made, main, mlp, pull

SETTINGS = dict(batch=256, horizon=32, epochs=20, gae=0.8, clip=0.2, entropy=0.0, value=0.5, anneal=True, deviation=1.0, scale=1.0)


class Policy(nn.Module):
    def __init__(self, env, config, deviation=1.0):
        super().__init__()
        self.actions = Actions(env)
        inputs, hidden = int(np.prod(env.single_observation_space.shape)), config["agent.hidden"] or [64, 64]
        self.policy = mlp([inputs, *hidden, self.actions.size], activation(config), 0.01)
        self.value = mlp([inputs, *hidden, 1], activation(config))
        if not self.actions.discrete:
            self.log_deviation = nn.Parameter(torch.full((self.actions.size,), float(np.log(deviation))))

    def distribution(self, observations):
        out = self.policy(observations)
        return Categorical(logits=out) if self.actions.discrete else Independent(Normal(out, self.log_deviation.exp()), 1)

    def best(self, observations):
        out = self.policy(flat(observations))
        return self.actions.to_env((out.argmax(1) if self.actions.discrete else out).numpy())


def actor():
    with replaybus.run.Actor() as run, run.environments() as env:
        settings, n = run.options(**SETTINGS), env.num_envs
        torch.manual_seed(run.seeds(1)[0] % 2**63)
        policy = Policy(env, run.config)
        writer = run.client.writer(keep_alive=settings.horizon, chunk_length=settings.horizon)
        strict = run.client.info(run.table)["tables"][0].get("max_lag") == 0
        observations, rows = env.reset()[0], []
        while run.claims(n):
            if not rows:
                pull(run, wait=strict, policy=policy)
            with torch.no_grad():
                distribution = policy.distribution(flat(observations))
                actions = distribution.sample()
                log_probability = distribution.log_prob(actions).numpy()
            actions = actions.numpy()
            following, rewards, terminated, truncated, info = env.step(policy.actions.to_env(actions))
            ended = terminated | truncated
            rows.append(dict(observation=observations, action=actions, log_probability=log_probability, reward=rewards.astype("float32"),
                             next_observation=last_observations(following, info), terminated=terminated, ended=ended))
            observations = following
            run.took(rewards, ended)
            if len(rows) == settings.horizon:
                write(run, writer, rows)
                rows = []
        writer.close()


def write(run, writer, rows):
    """Each environment's stretch becomes an item."""
    columns = {name: np.stack([row[name] for row in rows], 1) for name in rows[0]}
    writer.set_policy(run.version)
    with run.waiting("credit"):
        for i in range(len(columns["reward"])):
            writer.append_block({name: column[i] for name, column in columns.items()}, replaybus.Last(len(rows), run.table))
            writer.end_episode(wait=False)


def advantages(policy, data, discount, gae):
    """Generalised advantages over each stretch, and the values that the critic learns."""
    with torch.no_grad():
        value = policy.value(data["observation"]).squeeze(-1)
        following = policy.value(data["next_observation"]).squeeze(-1)
    delta = data["reward"] + discount * following * ~data["terminated"] - value
    keep = discount * gae * ~data["ended"]
    out, running = torch.zeros_like(delta), torch.zeros(len(delta))
    for t in reversed(range(delta.shape[1])):
        running = delta[:, t] + keep[:, t] * running
        out[:, t] = running
    return out, out + value


def stretches(run, count):
    """Batches of `count` items."""
    held = []
    for batch in run.batches(replaybus.torch.Sampler(run.client, run.table, 1)):
        held.append(batch.data)
        if len(held) == count:
            yield {name: torch.cat([data[name] for data in held]) for name in held[0]}
            held = []


def learner():
    with replaybus.run.Learner() as run:
        config, settings = run.config, run.options(**SETTINGS)
        policy = made(run, lambda env, config: Policy(env, config, settings.deviation))
        items = config["actors.environments"] * max(1, config["actors.count"])
        steps = items * settings.horizon
        batch, rate = settings.batch, config["agent.learning_rate"] or 3e-4
        updates = settings.epochs * -(-steps // batch)
        total = config["stop.steps"] / steps * updates
        adam = torch.optim.Adam(policy.parameters(), rate, eps=1e-5)
        run.publishes(replaybus.torch.States(run.client, policy=policy).keep(adam=adam), every=updates)
        run.steps -= run.steps % updates  # a state saved amid an update: whole ones end with new parameters
        for data in stretches(run, items):
            data = {name: value.flatten(2) if value.ndim > 3 else value for name, value in data.items()}
            data["reward"] = settings.scale * data["reward"]
            advantage, target = advantages(policy, data, config["agent.discount"] or 0.99, settings.gae)
            rows = {name: value.flatten(0, 1) for name, value in dict(data, advantage=advantage, target=target).items()}
            share = run.steps / total if settings.anneal and total else 0.0
            adam.param_groups[0]["lr"], clip = linear(rate, 0, share), linear(settings.clip, settings.clip / 10, share)
            for _ in range(settings.epochs):
                for index in torch.randperm(steps).split(batch):
                    losses = update(policy, adam, {name: value[index] for name, value in rows.items()}, clip, settings,
                                    config["agent.clip_norm"] or 0.5)
                    run.step(**losses)


def update(policy, adam, rows, clip, settings, clip_norm):
    distribution = policy.distribution(rows["observation"])
    ratio = (distribution.log_prob(rows["action"]) - rows["log_probability"]).exp()
    advantage = rows["advantage"]
    if len(advantage) > 1:  # one value has no deviation
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    policy_loss = -torch.minimum(ratio * advantage, ratio.clamp(1 - clip, 1 + clip) * advantage).mean()
    value_loss = (policy.value(rows["observation"]).squeeze(-1) - rows["target"]).square().mean()
    entropy = distribution.entropy().mean()
    descend(adam, policy_loss + settings.value * value_loss - settings.entropy * entropy, clip_norm)
    return dict(policy_loss=policy_loss.detach(), value_loss=value_loss.detach(), entropy=entropy.detach())


if __name__ == "__main__":
    main("ppo-cartpole.yaml", actor=actor, learner=learner, evaluator=lambda: evaluate("policy", Policy))
