"""Priorities that a device computes, sent without waiting for it."""
import collections
import math
from typing import Any, Optional

import torch

from ..client import Client
from ..closing import Flushing
from ..errors import Error, InvalidArgument
from ..sampler import Change, as_keys
from .device import to_host

_IN_FLIGHT = 64  # requests without an answer: many batches, so that a broker that is busy for a moment does not hold up the learner


class Updater(Flushing):
    """Sends new priorities of one table in the order of the calls. Neither the device nor the broker is waited for.

    Priorities on a CUDA device are copied to pinned memory, and sent by the first call after the copy is done: ``add``, ``flush`` or
    ``close``. At most ``pending`` calls of ``add`` are that far behind; then ``add`` waits for the oldest. An error that the broker
    reports is raised by a later call.
    """

    def __init__(self, client: Client, table: str, pending: int = 16) -> None:
        self.table = table
        self._updater = client.updater(table, in_flight=_IN_FLIGHT)
        self._most = max(0, pending)
        self._pending: "collections.deque[tuple]" = collections.deque()

    def __repr__(self) -> str:
        return f"<replaybus.torch.Updater: table {self.table!r}, {len(self._pending)} calls behind>"

    def add(self, keys: Any, priorities: Any) -> None:
        """Takes new priorities, one per key: a tensor, or what becomes one. ``keys`` are on the CPU, such as ``batch.key``."""
        keys, priorities = as_keys(keys), torch.as_tensor(priorities)
        if priorities.ndim == 0:
            priorities = priorities.expand(len(keys))
        if priorities.numel() != len(keys):
            raise ValueError(f"{priorities.numel()} priorities for {len(keys)} keys: give one per key")
        self._pending.append((keys, *to_host(priorities)))
        self._send(self._most)

    def _send(self, keep: int) -> None:
        """Sends what is done, and waits while more than ``keep`` are not."""
        while self._pending and (len(self._pending) > keep or self._pending[0][2].query()):
            keys, priorities, done = self._pending[0]
            done.synchronize()
            values = priorities.double().numpy()
            try:
                self._updater.add(keys, values)
            except InvalidArgument:
                if not ((values >= 0) & (values < math.inf)).all():  # they would be refused each time
                    self._pending.popleft()
                raise
            self._pending.popleft()  # after the error of an earlier request it is sent again

    def flush(self, timeout: Optional[float] = None) -> Change:
        """Waits until the device and the broker are done with everything; returns the totals so far."""
        self._send(0)
        return self._updater.flush(timeout)

    def _give_up(self) -> None:
        self._updater._give_up()

    def close(self, timeout: Optional[float] = None) -> None:
        """Flushes. After DeadlineExceeded it can be called again."""
        errors = []
        try:
            for _ in range(len(self._pending) + 1):
                try:
                    self._send(0)
                except Error as error:  # of an earlier request: what is left is sent all the same
                    errors.append(error)
        finally:
            self._pending.clear()
            self._updater.close(timeout)
        if errors:
            raise errors[0]
