"""The replay buffer with tensors in its batches."""
from typing import Any

import numpy as np
import torch

from ..buffer import ReplayBuffer as ArrayBuffer
from ..buffer import ReplayBufferSamples
from .sampler import Sampler


class ReplayBuffer(ArrayBuffer):
    """``replaybus.ReplayBuffer`` whose batches are tensors on ``device``; "auto" takes a GPU if there is one.

    >>> from replaybus.spaces import Box, Discrete
    >>> with ReplayBuffer(1000, Box(-1, 1, (4,)), Discrete(2), seed=1) as buffer:
    ...     buffer.add(np.zeros(4, "float32"), np.ones(4, "float32"), 1, 0.5, False)
    ...     batch = buffer.sample(32)
    >>> batch.observations.shape, batch.actions.shape, batch.dones.dtype
    (torch.Size([32, 4]), torch.Size([32, 1]), torch.float32)
    """

    def _device(self, device: Any) -> torch.device:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else torch.device(device)

    def _array(self, values: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(values).to(self.device)

    def _sampler(self, batch_size: int) -> Sampler:
        return Sampler(self.client, self.table, batch_size, device=self.device, prefetch=max(self.prefetch, 1), in_flight=self.prefetch)

    def _weights(self, batch: Any, beta: float) -> torch.Tensor:
        return ((batch.probability / batch.probability.min()) ** -beta).float()


__all__ = ["ReplayBuffer", "ReplayBufferSamples"]
