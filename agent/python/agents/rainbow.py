#!/usr/bin/python3
"""Rainbow on frames with Ape-X's actors: double Q-learning of distributions, a dueling network, three-step returns, priorities.

What it asks of replay: prioritized items over seven frames of 84x84 that share chunks, so a frame is stored once; batches of 512, whose
rows go straight to the GPU; priorities that come back from there without a wait. On a GPU an update is one CUDA graph.
Instead of noisy layers, each environment explores with an epsilon of its own, as in Ape-X.

What it reaches: docs/AGENTS.md has the four games of MinAtar as pixels at 1,000,000 frames.

  python3 agent/python/agents/rainbow.py      or: replay-launch configs/agents/rainbow.yaml environment.name=Freeway
"""
import copy

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

import replaybus.run
import replaybus.torch
from common import Atoms, device, evaluate, follow, last_observations, made, main, pull

STACK = 4  # frames that the network sees
ATOMS, LOW, HIGH = 51, -1.0, 30.0  # returns that are told apart
SETTINGS = dict(n_step=3, target_every=200, epsilon=0.4, epsilon_alpha=7.0, beta=0.4, chunk=10)


class Net(nn.Module):
    """Logits of a distribution of returns for each action: those of the state's value plus those of the action's advantage."""

    def __init__(self, env, on=None):
        super().__init__()
        self.actions, self.atoms = int(env.single_action_space.n), Atoms(LOW, HIGH, ATOMS, on)
        self.body = nn.Sequential(nn.Conv2d(STACK, 32, 8, 4), nn.ReLU(), nn.Conv2d(32, 64, 4, 2), nn.ReLU(), nn.Conv2d(64, 64, 3), nn.ReLU(),
                                  nn.Flatten())
        self.value = nn.Sequential(nn.Linear(3136, 256), nn.ReLU(), nn.Linear(256, ATOMS))
        self.advantage = nn.Sequential(nn.Linear(3136, 256), nn.ReLU(), nn.Linear(256, self.actions * ATOMS))
        self.to(on, memory_format=torch.channels_last)
        with torch.no_grad():  # returns near 0 at first: the middle of the atoms would promise more than most games ever pay
            self.value[-1].bias.copy_(-self.atoms.values.abs())

    def forward(self, frames):
        features = self.body(frames.contiguous(memory_format=torch.channels_last))
        with torch.autocast(features.device.type, enabled=False):  # what tells actions apart is smaller than bfloat16 can show
            features = features.float()
            advantage = self.advantage(features).unflatten(1, (self.actions, -1))
            return self.value(features).unsqueeze(1) + advantage - advantage.mean(1, keepdim=True)

    def best(self, observations):
        frames = torch.from_numpy(observations).to(self.atoms.values.device).permute(0, 3, 1, 2).float() / 255
        return self.atoms.mean(self(frames)).argmax(1).cpu().numpy()


class Episode:
    """Writes the steps of one environment. An item is n transitions with the frames before and after; it is made when the last frame is there."""

    def __init__(self, run, settings):
        self.run, self.n, frames = run, settings.n_step, STACK + settings.n_step
        blank = dict(frame=np.zeros((84, 84), "uint8"), action=np.int32(0), reward=np.float32(0), discount=np.float32(1))
        self.writer = run.client.writer(blank, chunk_length=settings.chunk, keep_alive=frames, max_in_flight=32, compress=False)
        columns, taken = self.writer.columns, slice(-1 - self.n, -1)
        self.item = self.writer.select(dict(frame=columns["frame"][-frames:], action=columns["action"][-1 - self.n],
                                            reward=columns["reward"][taken], discount=columns["discount"][taken]))
        self.begin()

    def begin(self):
        self.steps = 0

    def step(self, stack, action, reward, discount):
        if self.steps == 0:
            for frame in np.moveaxis(stack[..., :-1], 2, 0):
                self._append(frame)
        self._append(stack[..., -1], action, reward, discount)
        self.steps += 1
        if self.steps > self.n:
            self._make()

    def end(self, stack):
        """The last observation stands for those that would follow; the discount of the step before says whether it counts."""
        for i in range(self.n):
            self._append(stack[..., -1])
            if self.steps + i + 1 > self.n:
                self._make()
        self.writer.end_episode(wait=False)
        self.begin()

    def _append(self, frame, action=0, reward=0.0, discount=1.0):
        self.writer.append(dict(frame=frame, action=np.int32(action), reward=np.float32(reward), discount=np.float32(discount)))

    def _make(self):
        self.writer.item(self.run.table, 4.0, self.item)  # a new item counts as much as the loss of a network that knows nothing


def actor():
    with replaybus.run.Actor() as run, run.environments() as env:
        settings, discount, n = run.options(**SETTINGS), run.config["agent.discount"] or 0.99, env.num_envs
        rng, net = np.random.default_rng(run.seeds(1)), Net(env, device())
        place = (np.arange(n) + run.index * n) / max(1, run.count * n - 1)
        epsilon = settings.epsilon ** (1 + settings.epsilon_alpha * np.minimum(place, 1))
        episodes = [Episode(run, settings) for _ in range(n)]
        observations = env.reset()[0]
        while run.claims(n):
            pull(run, net=net)
            with torch.no_grad():
                actions = np.where(rng.random(n) < epsilon, rng.integers(net.actions, size=n), net.best(observations))
            following, rewards, terminated, truncated, info = env.step(actions)
            last, ended = last_observations(following, info), terminated | truncated
            with run.waiting("credit"):
                for i, episode in enumerate(episodes):
                    episode.step(observations[i], actions[i], rewards[i], 0.0 if terminated[i] else discount)
                    if ended[i]:
                        episode.end(last[i])
            observations = following
            run.took(rewards, ended)


class Update:
    """One step of the optimizer over tensors that stay in their place, so that it can be captured as a graph."""

    def __init__(self, net, adam, settings, batch, where):
        self.net, self.target, self.adam, self.n, self.cuda = net, copy.deepcopy(net), adam, settings.n_step, where.type == "cuda"
        self.rows, self.kind = torch.arange(batch, device=where), torch.bfloat16 if self.cuda else torch.float32
        shapes = dict(frame=((STACK + self.n, 84, 84), torch.uint8), action=((), torch.int32), reward=((self.n,), torch.float32),
                      discount=((self.n,), torch.float32), weight=((), torch.float32))
        self.data = {name: torch.zeros((batch, *shape), dtype=dtype, device=where) for name, (shape, dtype) in shapes.items()}
        self.loss, self.priority, self.q = (torch.zeros(shape, device=where) for shape in ((), (batch,), ()))
        self.graph = self.capture() if self.cuda else None

    def capture(self):
        """The graph of an update. The updates that lead to it count for nothing: everything is put back, in its place."""
        net, adam = copy.deepcopy(self.net.state_dict()), copy.deepcopy(self.adam.state_dict()["state"])
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            for _ in range(3):
                self.learn()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.learn()
        self.net.load_state_dict(net)
        for i, values in enumerate(self.adam.state.values()):
            for name, value in values.items():
                value.copy_(adam[i][name]) if i in adam else value.zero_()
        return graph

    def __call__(self, batch):
        for name, value in dict(batch.data, weight=batch.weight).items():
            self.data[name].copy_(value)
        self.graph.replay() if self.graph else self.learn()

    def learn(self):
        data, net = self.data, self.net
        with torch.autocast(self.rows.device.type, torch.bfloat16, enabled=self.cuda):
            frames = data["frame"].to(self.kind) / 255
            with torch.no_grad():
                following = frames[:, self.n:]
                best = net.atoms.mean(net(following)).argmax(1)
                probability = self.target(following)[self.rows, best].softmax(1)
            logits = net(frames[:, :STACK])[self.rows, data["action"].long()]
        kept = data["discount"].cumprod(1)
        gain = data["reward"][:, 0] + (kept[:, :-1] * data["reward"][:, 1:]).sum(1)
        loss = F.cross_entropy(logits, net.atoms.project(gain, kept[:, -1], probability), reduction="none")
        mean = (data["weight"] * loss).mean()
        self.adam.zero_grad(set_to_none=False)
        mean.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 10.0)
        self.adam.step()
        self.loss.copy_(mean.detach())
        self.priority.copy_(loss.detach() + 1e-3)
        self.q.copy_(net.atoms.mean(logits.detach()).mean())


def learner():
    with replaybus.run.Learner() as run:
        config, settings, where = run.config, run.options(**SETTINGS), device()
        torch.backends.cuda.matmul.allow_tf32 = True
        net = made(run, lambda env, config: Net(env, where))
        batch = config["agent.batch"]
        adam = torch.optim.Adam(net.parameters(), config["agent.learning_rate"] or 2.5e-4, eps=1e-5, capturable=where.type == "cuda")
        run.publishes(replaybus.torch.States(run.client, net=net).keep(adam=adam), every=config["learners.publish_every"])
        update = Update(net, adam, settings, batch, where)
        sampler = replaybus.torch.Sampler(run.client, run.table, batch, beta=settings.beta, device=where)
        updater = replaybus.torch.Updater(run.client, run.table)
        for data in run.batches(sampler):
            update(data)
            updater.add(data.key, update.priority)
            if run.steps % settings.target_every == 0:
                follow([update.target], [net], 1)
            run.step(loss=update.loss, q=update.q)


if __name__ == "__main__":
    main("rainbow.yaml", actor=actor, learner=learner,
         evaluator=lambda: evaluate("net", lambda env, config: Net(env, device())))
