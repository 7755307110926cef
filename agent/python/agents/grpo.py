#!/usr/bin/python3
"""GRPO: group-relative policy optimisation (Shao et al. 2024) of a small language model, with clipped ratios and no critic.

Digits are to be put in order: an answer is right or wrong. The model sees a few right answers first; then the reward alone teaches it.

What it asks of replay: three queues, one behind the other. The learner writes prompts. A rollout worker takes some under lease, and writes
several answers to each with the version of the parameters that made them. A reward worker takes answers under lease, and writes them with
their rewards, in groups: the answers to one prompt. The learner takes groups that are at most max_lag versions behind, and writes prompts
for max_lag + 1 batches, so that nothing is made that would be too old. Whoever is killed: no prompt is lost, and none is learned twice.

What it reaches: docs/AGENTS.md has the share of right answers after 300 updates, and bench/lag draws it against the lag.

  python3 agent/python/agents/grpo.py          or: replay-launch configs/agents/grpo-sort.yaml, grpo-small.yaml
"""
import math
import time

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

import replaybus
import replaybus.run
import replaybus.torch
from common import descend, device, main, pull

# digits: in a prompt; warm_up, warm_batch, warm_rate: steps on right answers; prompts, answers: of each in an update; low, high: how far
# a ratio may be from 1; take: prompts that a rollout worker takes together; delay: seconds that it wastes; rewarders: actors that are reward
# workers; ahead: batches of prompts beside the present one (-1: max_lag); rise: updates in which the learning rate rises; then it falls to 0
SETTINGS = dict(digits=8, width=128, layers=4, heads=4, warm_up=40, warm_batch=128, warm_rate=5e-4, prompts=128, answers=8, low=0.2,
                high=0.28, take=64, delay=0.0, rewarders=1, ahead=-1, rise=20)
PROMPTS, ANSWERS = "prompts", "answers"  # tables
LEASED = dict(flexible=True, squeeze=True, ack=True, lease=10.0)  # a worker that does not answer for so long loses its work to others
SEPARATOR, TOKENS = 10, 11  # after the ten digits; with them


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.attend, self.join = heads, nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.widen, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x, past=None):
        """past: keys and values of the tokens before x. Returns those of all tokens, too."""
        q, k, v = (part.unflatten(2, (self.heads, -1)).transpose(1, 2) for part in self.attend(self.first(x)).chunk(3, 2))
        if past is not None:
            k, v = torch.cat([past[0], k], 2), torch.cat([past[1], v], 2)
        score = q @ k.transpose(2, 3) / math.sqrt(q.shape[3])
        if past is None:
            score = score + torch.full(score.shape[2:], -math.inf, device=x.device).triu(1)
        x = x + self.join((score.softmax(3) @ v).transpose(1, 2).flatten(2))
        return x + self.narrow(F.gelu(self.widen(self.second(x)))), (k, v)


class Model(nn.Module):
    """A transformer that continues digits and a separator with the same digits in order."""

    def __init__(self, settings):
        super().__init__()
        self.digits, width = settings.digits, settings.width
        self.token, self.place = nn.Embedding(TOKENS, width), nn.Embedding(2 * self.digits, width)
        self.blocks = nn.ModuleList(Block(width, settings.heads) for _ in range(settings.layers))
        self.last, self.out = nn.LayerNorm(width), nn.Linear(width, TOKENS - 1)
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                nn.init.normal_(module.weight, std=0.02)

    def forward(self, tokens, past=None):
        """Logits of the next digit after each token, and keys and values for what follows."""
        begin = 0 if past is None else past[0][0].shape[2]
        x, kept = self.token(tokens) + self.place.weight[begin:begin + tokens.shape[1]], []
        for i, block in enumerate(self.blocks):
            x, keys = block(x, None if past is None else past[i])
            kept.append(keys)
        return self.out(self.last(x)), kept

    def logits(self, prompts, answers):
        """Of each digit of given answers."""
        separator = torch.full_like(prompts[:, :1], SEPARATOR)
        return self(torch.cat([prompts, separator, answers[:, :-1]], 1))[0][:, self.digits:]

    @torch.no_grad()
    def answer(self, prompts, count=0):
        """`count` random answers to each prompt, one behind the other, with the logarithms of their digits' probabilities; with 0 the
        most likely one."""
        logits, past = self(torch.cat([prompts, torch.full_like(prompts[:, :1], SEPARATOR)], 1))
        logits = logits[:, -1].repeat_interleave(max(1, count), 0)
        past = [tuple(part.repeat_interleave(max(1, count), 0) for part in pair) for pair in past]
        digits, chances = [], []
        for i in range(self.digits):
            if i:
                logits, past = self(digits[-1], past)
                logits = logits[:, -1]
            chance = logits.log_softmax(1)
            digits.append(torch.multinomial(chance.exp(), 1) if count else chance.argmax(1, True))
            chances.append(chance.gather(1, digits[-1]))
        return torch.cat(digits, 1), torch.cat(chances, 1)


def warm_up(model, settings, on):
    """Learns from right answers to random prompts."""
    adam = torch.optim.AdamW(model.parameters(), settings.warm_rate)
    for _ in range(settings.warm_up):
        prompts = torch.randint(10, (settings.warm_batch, settings.digits), device=on)
        answers = prompts.sort(1)[0]
        loss = F.cross_entropy(model.logits(prompts, answers).flatten(0, 1), answers.flatten())
        descend(adam, loss)


def right(prompts, answers):
    """Whether each answer has the digits of its prompt in order."""
    return (np.sort(prompts, -1) == answers).all(-1)


def update(model, adam, groups, settings):
    """One step of the learner. groups: tensors whose first two dimensions are prompts and answers."""
    rows, reward = {name: value.flatten(0, 1) for name, value in groups.items()}, groups["reward"]
    advantage = ((reward - reward.mean(1, True)) / (reward.std(1, keepdim=True) + 1e-4)).reshape(-1, 1)
    answers = rows["answer"].long()
    chance = model.logits(rows["prompt"].long(), answers).log_softmax(2).gather(2, answers[:, :, None])[:, :, 0]
    ratio = (chance - rows["chance"]).exp()
    clipped = ratio.clamp(1 - settings.low, 1 + settings.high)
    loss = -torch.minimum(ratio * advantage, clipped * advantage).mean()
    descend(adam, loss, 1.0)
    return dict(policy_loss=loss.detach(), accuracy=reward.mean(), clipped=(ratio != clipped).float().mean())


def actor():
    with replaybus.run.Actor() as run:
        settings = run.options(**SETTINGS)
        torch.manual_seed(run.seeds(1)[0] % 2**63)
        (rewards if run.index < settings.rewarders else rollouts)(run, settings)


def rollouts(run, settings):
    """Answers prompts with the newest parameters."""
    on, writer = device(), run.client.writer(chunk_length=settings.answers)
    model = Model(settings).to(on)
    for batch in run.batches(run.client.sampler(PROMPTS, settings.take, **LEASED)):
        pull(run, policy=model)
        answers, chances = model.answer(torch.from_numpy(batch.data["prompt"]).to(on).long(), settings.answers)
        time.sleep(settings.delay)
        rows = {name: np.repeat(value, settings.answers, 0) for name, value in batch.data.items()}
        writer.set_policy(run.version)
        with run.waiting("credit"):
            writer.append_block(dict(rows, answer=answers.cpu().numpy().astype("uint8"), chance=chances.cpu().numpy()),
                                replaybus.Last(1, ANSWERS))
            writer.flush()
        batch.ack()
        if not run.claims(len(answers)):
            break


def rewards(run, settings):
    """Marks answers. Those to one prompt are a group, even if several workers have marked them."""
    writer = run.client.writer(chunk_length=settings.answers)
    for batch in run.batches(run.client.sampler(ANSWERS, settings.take * settings.answers, **LEASED)):
        rows = dict(batch.data, reward=right(batch.data["prompt"], batch.data["answer"]).astype("float32"))
        begins = np.flatnonzero(np.diff(rows["number"], prepend=-1) | np.diff(batch.policy.astype("int64"), prepend=-1))
        with run.waiting("credit"):
            for begin, end in zip(begins, [*begins[1:], len(batch)]):
                writer.set_policy(int(batch.policy[begin]))
                writer.set_group(int(rows["number"][begin]) + 1)
                writer.append_block({name: value[begin:end] for name, value in rows.items()}, replaybus.Last(1, run.table))
            writer.flush()
        batch.ack()


class Ledger(set):
    """The numbers of the prompts that were learned from. It is saved with the learner's state."""

    def state_dict(self):
        return {"numbers": torch.tensor(sorted(self), dtype=torch.int64)}

    def load_state_dict(self, state):
        self.update(state["numbers"].tolist())


class Groups:
    """Groups of answers with their rewards. Before the learner takes a batch, it writes prompts for it and for those ahead of it. A
    prompt is under way while it, or its answers, are in one of the three queues: what was dropped, went stale or was lost is replaced."""

    def __init__(self, run, settings, ledger, publisher):
        self._run, self._settings, self._publisher, self.version = run, settings, publisher, 0
        self._written, self._writer = max(ledger, default=-1) + 1, run.client.writer(max_in_flight=1 << 16)  # all that is ever missing
        self._sampler = run.client.sampler(run.table, settings.prompts * settings.answers, in_flight=0, whole=True, squeeze=True)

    def next(self, timeout=None):
        self.version = self._publisher.flush(timeout)  # the batch is of this version, or of those shortly before
        self._writer.flush(timeout=timeout)
        settings, tables = self._settings, {table["name"]: table for table in self._run.client.info(timeout=timeout)["tables"]}
        issued, answered, marked = (tables[name] for name in (PROMPTS, ANSWERS, self._run.table))
        ahead = settings.ahead if settings.ahead >= 0 else marked["max_lag"]
        under_way = issued["size"] + -(-(answered["size"] + marked["size"]) // settings.answers)
        missing = settings.prompts * (ahead + 1) - under_way
        if missing > 0:
            first = max(self._written, issued["total_inserts"])
            random = np.random.default_rng([self._run.config["seed"], first])
            prompts = random.integers(10, size=(missing, settings.digits), dtype="uint8")
            self._writer.append_block(dict(number=np.arange(first, first + missing), prompt=prompts), replaybus.Last(1, PROMPTS))
            self._written = first + missing
            self._writer.flush(timeout=timeout)
        return self._sampler.next(timeout)


def learner():
    with replaybus.run.Learner() as run:
        settings, on, ledger = run.options(**SETTINGS), device(), Ledger()
        torch.manual_seed(run.seeds(1)[0] % 2**63)
        model = Model(settings).to(on)
        warm_up(model, settings, on)
        rate = run.config["agent.learning_rate"] or 3e-4
        adam = torch.optim.AdamW(model.parameters(), rate)
        publisher = replaybus.torch.States(run.client, policy=model).keep(adam=adam, ledger=ledger)
        run.publishes(publisher, every=1)
        source, last, losses = Groups(run, settings, ledger, publisher), run.config["stop.learner_steps"], {}
        for batch in run.batches(source):
            groups = {name: torch.from_numpy(value).unflatten(0, (-1, settings.answers)) for name, value in batch.data.items()}
            new = {number: i for i, number in enumerate(groups["number"][:, 0].tolist()) if number not in ledger}
            ledger.update(new)
            if new:
                adam.param_groups[0]["lr"] = rate * min(1, (run.steps + 1) / settings.rise) * (1 - run.steps / last if last else 1)
                groups = {name: value[list(new.values())].to(on) for name, value in groups.items()}
                losses = update(model, adam, groups, settings)
            run.step(**losses, policy_staleness=source.version - batch.policy.mean())
            if run.steps == last:
                run.stop()


def evaluator():
    with replaybus.run.Evaluator() as run:
        settings, on = run.options(**SETTINGS), device()
        prompts = np.random.default_rng(run.seeds(1)).integers(10, size=(run.episodes, settings.digits))
        model = Model(settings).to(on)
        for tensors in run.parameters():
            replaybus.torch.load_states(tensors, policy=model)
            run.result(right(prompts, model.answer(torch.from_numpy(prompts).to(on))[0].cpu().numpy()))


if __name__ == "__main__":
    main("grpo-sort.yaml", actor=actor, learner=learner, evaluator=evaluator)
