"""Batches as PyTorch tensors, and weights that C actors understand.

>>> import numpy as np, replaybus, replaybus.torch
>>> with replaybus.Server([replaybus.Table("replay")]) as server, server.client() as client:
...     with client.writer() as writer:
...         writer.append_block({"observation": np.zeros((100, 4), "float32")}, item=replaybus.Last(1, "replay"))
...     with replaybus.torch.Sampler(client, "replay", batch_size=32) as sampler:
...         batch = sampler.next(timeout=10)
100
>>> batch.data["observation"].shape, batch.key.dtype
(torch.Size([32, 1, 4]), torch.int64)

Only this module imports torch: ``import replaybus`` does not.
"""
from .batch import Batch
from .buffer import ReplayBuffer, ReplayBufferSamples
from .device import prefetch
from .policy import ALGORITHMS, Publisher, States, load, load_states, policy, tensors_of
from .sampler import Dataset, Sampler
from .share import Share
from .updater import Updater

__all__ = ["ALGORITHMS", "Batch", "Dataset", "Publisher", "ReplayBuffer", "ReplayBufferSamples", "Sampler", "Share", "States", "Updater", "load", "load_states",
           "policy", "prefetch", "tensors_of"]
