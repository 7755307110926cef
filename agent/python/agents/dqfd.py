#!/usr/bin/python3
"""DQfD: deep Q-learning from demonstrations (Hester et al. 2018). Double Q-learning with returns over 1 and n steps, and a margin loss that
ranks an expert's action above the others in the states of the demonstrations.

What it asks of replay: one sampler over two tables. A share `ratio` of each batch comes from the table `demonstrations`, which is filled
once and never evicted from; the rest from what the actors insert. Both are prioritized, each has its own updates, and the importance
weights are those of the mixture. Items are sequences, in which every step has its return over 1 and over up to n steps.

What it reaches: docs/AGENTS.md has DeepSea of size 20 with 100 demonstrations, and without (ratio: 0), which is double DQN.

  python3 agent/python/agents/dqfd.py          or: replay-launch configs/agents/dqfd.yaml
"""
import copy

import numpy as np
import torch

import replaybus.run
import replaybus.torch
from common import (DEMONSTRATIONS, activation, descend, evaluate, fill_once, flat, linear, made, main, mlp, play_expert, pull, returns,
                    sequence_adder, sources, track)
from replaybus import data, sequences

SETTINGS = dict(data="", demonstrations=100, ratio=0.25, pretrain=200, n_step=10, margin=0.8, margin_weight=1.0, n_weight=1.0,
                decay=1e-5, beta=0.6)


def q_for(env, config):
    inputs, hidden = int(np.prod(env.single_observation_space.shape)), config["agent.hidden"] or [64]
    return mlp([inputs, *hidden, int(env.single_action_space.n)], activation(config))


def actor():
    with replaybus.run.Actor() as run, run.environments() as env:
        adder = sequence_adder(run, env.num_envs, run.table)
        torch.manual_seed(run.seeds(1)[0] % 2**63)
        config, rng, q = run.config, np.random.default_rng(run.seeds(2)[1]), q_for(env, run.config)
        observations, _ = env.reset()
        while run.claims(env.num_envs):
            pull(run, q=q)
            with torch.no_grad():
                actions = q(flat(observations)).argmax(1).numpy()
            epsilon = linear(1.0, config["actors.epsilon"], run.environment_steps / max(1, config["actors.epsilon_steps"]))
            actions = np.where(rng.random(len(actions)) < epsilon, rng.integers(env.single_action_space.n, size=len(actions)), actions)
            with run.waiting("credit"):
                observations, rewards, ended = step(env, adder, observations, actions)
            run.took(rewards, ended)
        adder.close()


def step(env, adder, observations, actions):
    """Takes a step and adds it. Returns the next observations, the rewards, and which episodes ended."""
    actions = actions.astype("int32")  # of both tables: items of another type would not fit into one batch
    following, rewards, terminated, truncated, info = env.step(actions)
    adder.add({"observation": observations, "action": actions, "reward": rewards.astype("float32")}, terminated, truncated,
              info.get("final_obs"))
    return following, rewards, terminated | truncated


def demonstrations(run, settings):
    """Writes them from a file, or by the environment's expert."""
    if settings.data:
        data.load(run.client, settings.data, DEMONSTRATIONS, length=run.config["adder.length"], period=run.config["adder.period"],
                  dtypes={"action": "int32"})
        return
    n = settings.demonstrations
    with run.environments(n) as env, sequence_adder(run, n, DEMONSTRATIONS) as adder:
        play_expert(env, env.reset()[0], lambda observations, actions: step(env, adder, observations, actions))


def batches(run, settings):
    """Batches of demonstrations alone at first, then of both tables; with what tells the steps of demonstrations from others."""
    size = run.config["agent.batch"] or 32
    if settings.ratio > 0:
        left = settings.pretrain - run.steps
        if left > 0:
            with replaybus.torch.Sampler(run.client, DEMONSTRATIONS, size, beta=settings.beta, max_samples=left * size) as sampler:
                for batch in run.batches(sampler):
                    yield batch, torch.ones(len(batch), dtype=torch.bool)
    with replaybus.torch.Sampler(sources(run, settings.ratio), batch_size=size, beta=settings.beta) as sampler:
        for batch in run.batches(sampler):
            yield batch, torch.zeros(len(batch), dtype=torch.bool) if batch.source is None else batch.source == 1


def losses(q, target, items, taught, settings, discount):
    """The loss of each row, the error of its 1-step return, and which rows count."""
    observation = items["observation"].flatten(2).float()
    values, action = q(observation), items["action"].long().unsqueeze(-1)
    with torch.no_grad():
        value = target(observation).gather(-1, values.argmax(-1, keepdim=True)).squeeze(-1)
        one, many = (returns(items, value, discount, n) for n in (1, settings.n_step))
    chosen = values.gather(-1, action).squeeze(-1)
    margin = torch.full_like(values, settings.margin).scatter(-1, action, 0)
    imitation = ((values + margin).max(-1).values - chosen) * taught.unsqueeze(1)
    error = chosen - one
    loss = error.square() / 2 + settings.n_weight * (chosen - many).square() / 2 + settings.margin_weight * imitation
    mask = items["step_type"] < sequences.LAST
    mask[:, -1] = False  # what followed the last row is in another item
    return loss, error, mask


def learner():
    with replaybus.run.Learner() as run:
        settings, config = run.options(**SETTINGS), run.config
        q = made(run, q_for)
        target = copy.deepcopy(q)
        adam = torch.optim.Adam(q.parameters(), config["agent.learning_rate"] or 1e-3, weight_decay=settings.decay)
        if settings.ratio > 0:
            fill_once(run, DEMONSTRATIONS, lambda: demonstrations(run, settings))
        run.publishes(replaybus.torch.States(run.client, q=q).keep(target=target, adam=adam), every=config["learners.publish_every"])
        updaters = [replaybus.torch.Updater(run.client, table) for table in (run.table, DEMONSTRATIONS)]
        for batch, taught in batches(run, settings):
            loss, error, mask = losses(q, target, batch.data, taught, settings, config["agent.discount"] or 0.99)
            total = (batch.weight.unsqueeze(1) * loss * mask).sum() / mask.sum()
            descend(adam, total)
            track(run, [target], [q], 0.01)
            priority = sequences.priorities(error.detach(), mask) + 1e-3
            for updater, rows in zip(updaters, (~taught, taught)):
                updater.add(batch.key[rows], priority[rows])
            run.step(loss=total.detach(), q=error.detach().abs().mean())


def evaluator():
    evaluate("q", q_for, lambda q, observations: q(flat(observations)).argmax(1).numpy().astype("int32"))


if __name__ == "__main__":
    main("dqfd.yaml", actor=actor, learner=learner, evaluator=evaluator)
