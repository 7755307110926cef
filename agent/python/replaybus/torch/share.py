"""Parallel learners of one agent that stay bit-identical. ``replaybus.run.Learner.share`` makes a member of their group.

In each round every learner adds its gradient, gets the sum (the same bytes for all), and applies the mean. Numbers behind the gradient
say who takes part, at which step, and with which parameters. A learner that starts, comes back or has missed a round joins by the
rules of agent/run/group.h: it takes networks and optimisers from the others. These numbers always go through the broker. The gradient
does so too, or goes through torch.distributed ("gloo", or "nccl" if each learner has a GPU).
"""
import contextlib
import datetime
import os
import time
from typing import Any, NamedTuple, Optional, Sequence

import numpy as np
import torch
import torch.distributed

from .. import weights
from ..closing import Closing
from ..errors import AlreadyExists, DeadlineExceeded, Error, FailedPrecondition, InvalidArgument, Unavailable, Unsupported
from .ranks import own_address

GROUP, STATE, MEETING = "learners", "learner-state", "learner-meeting"  # the broker's reduce group, and two parameter slots
MOST = 64  # learners of a group
_BITS = 24  # of an integer that a float holds exactly
_MASK = (1 << _BITS) - 1
_ROUND_S = 2.0  # how long a round waits for a late member
_STATE_S = 4.0  # how long a learner that joins waits for the state before it asks again
_SLICE_S = 0.2  # a wait; between two of them the learner notices a request to stop
_PAUSE_S = 0.02  # before a learner that may not begin asks again
_LINK_S = 5.0  # deadline of each call of torch.distributed
_TWINS = 3  # a learner that died and came back may meet its own last vector, once
_LEARNS, _JOINS = 0, 1  # the camps of a round: those with a gradient, and those that ask for the state


class _Best(NamedTuple):
    """The learner of a camp that has learned most; of several, the one with the lowest index."""

    steps: int
    index: int
    mark: int


class _Round:
    """A closed round: the sum of the gradients, and for each camp who was there, with which step and parameters."""

    def __init__(self, number: int, counted: bool, vector: np.ndarray) -> None:
        self.number, self.counted = number, counted
        self.gradient, tail = np.split(vector, [len(vector) - 8 * MOST])
        self.camps = tail.reshape(2, 4, MOST)  # count, low and high bits of the step, mark

    def best(self, camp: int) -> Optional[_Best]:
        count, low, high, mark = self.camps[camp]
        found = [_Best(int(low[i]) | int(high[i]) << _BITS, int(i), int(mark[i])) for i in np.flatnonzero(count == 1)]
        return min(found, key=lambda one: (-one.steps, one.index), default=None)

    def learners(self) -> tuple[int, ...]:
        return tuple(int(i) for i in np.flatnonzero(self.camps[_LEARNS, 0]))


class Share(Closing):
    """A learner's place in the group.

    learners: how many gave a gradient in the last round; leads: this one publishes, counts and saves for all; joins: how often this
    learner took the state of the others.
    """

    def __init__(self, run: Any, publisher: Any, optimizers: Sequence[torch.optim.Optimizer], backend: Optional[str] = None) -> None:
        self._parameters = [p for optimizer in optimizers for group in optimizer.param_groups for p in group["params"]]
        if not self._parameters or any(p.dtype != torch.float32 for p in self._parameters):
            raise InvalidArgument("share takes optimisers of float32 parameters: their gradients are averaged over the learners")
        if publisher is None or not all(publisher.keeps(optimizer) for optimizer in optimizers):
            raise InvalidArgument("a learner that joins takes optimisers from the others: name them in the publisher's keep(), and call "
                                  "publishes before share")
        if backend is not None and not torch.distributed.is_available():
            raise Unsupported(f"backend {backend!r}: this PyTorch was built without torch.distributed; leave backend out to sum through "
                              "the broker")
        if run.index >= MOST:
            raise InvalidArgument(f"learner {run.index}: at most {MOST} learners share a run")
        self._run, self._publisher, self._backend = run, publisher, backend
        self._reduce = run.client.reduce(GROUP) if run.count > 1 else None
        self._member, self._gives, self._twins, self._number = run.count == 1, False, 0, 0
        self._linked: tuple[int, ...] = ()  # the learners that torch.distributed connects
        self.learners, self.leads, self.joins = 1, run.index == 0, 0

    def __repr__(self) -> str:
        return f"<replaybus.torch.Share: learner {self._run.index}, round {self._number} of {self.learners} learners>"

    def close(self) -> None:
        """Leaves the group: the others no longer wait for this learner."""
        self._unlink()
        if self._reduce is not None:
            self._reduce.close()

    def mean(self) -> bool:
        """Replaces the gradients by their mean over the learners. False: the run stops, or the others have gone on without this learner.
        Then drop the batch and take the next; meanwhile the learner gets the state of the others."""
        if self._reduce is None:
            return True
        with self._run.waiting("reduce"):
            self._member = self._add_gradient()
        self.leads = self.leads and (self._member or self._run.stopped)  # the others may go on, and then one of them leads
        return self._member

    def _add_gradient(self) -> bool:
        gradient = None if self._backend else self._gradient()
        round = self._exchange(gradient.cpu().numpy() if gradient is not None else None, _LEARNS)
        if round is None or not self._fits(round):
            return False
        there, joins = round.learners(), round.best(_JOINS)
        self._number, self.learners, self.leads = round.number, len(there), round.best(_LEARNS).index == self._run.index
        self._gives = self.leads and joins is not None
        total = self._sum_by_torch(there) if self._backend else torch.from_numpy(round.gradient)
        if total is None:
            return False
        parts = (total / len(there)).split([p.numel() for p in self._parameters])
        for p, part in zip(self._parameters, parts):
            p.grad = part.view_as(p).to(p.device)
        return True

    def _fits(self, round: _Round) -> bool:
        """True if this learner may apply the sum: it has missed no round, and is where the learner that has learned most is."""
        learns, joins, steps = round.best(_LEARNS), round.best(_JOINS), self._run.steps
        return (round.number == self._number + 1 and learns is not None and (learns.steps, learns.mark) == (steps, self._mark())
                and (joins is None or joins.steps <= steps))

    def _gradient(self) -> torch.Tensor:
        return torch.cat([torch.zeros_like(p).view(-1) if p.grad is None else p.grad.reshape(-1) for p in self._parameters])

    def _mark(self) -> int:
        """Bits of a sum of the parameters' bits: it does not depend on the order of the additions, so every device gets the same."""
        bits = torch.cat([p.detach().reshape(-1) for p in self._parameters]).view(torch.int32)
        return int(bits.sum(dtype=torch.int64)) & _MASK

    def _exchange(self, gradient: Optional[np.ndarray], camp: int) -> Optional[_Round]:
        """Takes part in one round. None: the run stops, or the broker was restarted."""
        size = sum(p.numel() for p in self._parameters) if self._backend is None else 0
        vector, steps = np.zeros(size + 8 * MOST, np.float32), self._run.steps
        if gradient is not None:
            vector[:size] = gradient
        vector[size:].reshape(2, 4, MOST)[camp, :, self._run.index] = 1, steps & _MASK, steps >> _BITS, self._mark()
        while not self._run.stopped:
            try:
                reduced = self._reduce.add(vector, _ROUND_S, _SLICE_S)
                return _Round(reduced.round, reduced.counted, vector)
            except (DeadlineExceeded, Unavailable):
                continue
            except FailedPrecondition:
                return None
        return None

    def _sum_by_torch(self, there: tuple[int, ...]) -> Optional[torch.Tensor]:
        """The sum over these learners. None: one of them is gone; those that got no sum join those that did."""
        total = self._gradient()
        try:
            if there != self._linked:
                self._link(there)
            if len(there) > 1:
                torch.distributed.all_reduce(total)
            return total
        except (RuntimeError, ValueError, OSError, Error):
            self._unlink()
            return None

    def _link(self, there: tuple[int, ...]) -> None:
        """Connects these learners. The first one opens a store, and says through the broker where."""
        self._unlink()
        os.environ.setdefault("TORCH_NCCL_BLOCKING_WAIT", "1")  # nccl: a learner that is gone is an error here, and does not end the others
        first, limit = there[0] == self._run.index, datetime.timedelta(seconds=_LINK_S)
        if len(there) > 1:
            host, port = (own_address(self._run.client), 0) if first else self._meeting()
            store = torch.distributed.TCPStore(host, port, None, first, limit, wait_for_workers=False)
            if first:
                self._run.client.params.put(MEETING, f"{self._number} {host} {store.port}".encode(), _LINK_S)
            torch.distributed.init_process_group(self._backend, store=store, rank=there.index(self._run.index), world_size=len(there),
                                                 timeout=limit)
        self._linked = there

    def _meeting(self) -> tuple[str, int]:
        have, end = 0, time.monotonic() + _LINK_S
        while True:
            param = self._run.client.params.get(MEETING, have, end - time.monotonic())
            number, host, port = param.data.decode().split()
            if int(number) == self._number:
                return host, int(port)
            have = param.version

    def _unlink(self) -> None:
        if len(self._linked) > 1 and torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()
        self._linked = ()

    def join(self) -> bool:
        """Makes this learner a member of the group. False: not yet; call again."""
        if not self._member:
            with self._run.waiting("reduce"):
                self._member = self._join_once()
        return self._member

    def _join_once(self) -> bool:
        round = self._exchange(None, _JOINS)
        if round is None:
            return False
        self._number = round.number
        if not round.counted or self._has_twin(round):
            return False
        learns, joins = round.best(_LEARNS), round.best(_JOINS)
        if not round.learners():
            return self._begin(joins)
        if learns is None or joins.steps > learns.steps:
            return False  # a learner that joins is ahead of them all: they begin again together
        return self._take_state()

    def _has_twin(self, round: _Round) -> bool:
        index = self._run.index
        alone = round.camps[_LEARNS, 0, index] == 0 and round.camps[_JOINS, 0, index] == 1
        self._twins = 0 if alone else self._twins + 1
        if self._twins >= _TWINS:
            raise AlreadyExists(f"there is another learner with index {index}: give each its own (REPLAY_INDEX, or index=)")
        return not alone

    def _begin(self, best: _Best) -> bool:
        """No learner has a gradient. The one that has learned most goes on from its own state; if none has learned, learner 0 does."""
        if best.index != self._run.index or (best.steps == 0 and self._run.index != 0):
            time.sleep(_PAUSE_S)
            return False
        self.leads = True
        self._publisher.put(self._run.steps)
        return True

    def applied(self) -> None:
        """Gives the state to the learners that asked for it in this round. ``Learner.step`` calls it."""
        if self._gives:
            self._gives = False
            state = {**self._publisher.state(self._run.steps), "round": np.array([self._number], "uint64")}
            with contextlib.suppress(Error):  # they ask again
                self._run.client.params.put(STATE, weights.encode(state), _STATE_S)

    def _take_state(self) -> bool:
        """Waits for the state after this round; the slot may still hold an older one."""
        have, end = 0, time.monotonic() + _STATE_S
        while not self._run.stopped and time.monotonic() < end:
            try:
                param = self._run.client.params.get(STATE, have, _SLICE_S)
            except (DeadlineExceeded, Unavailable):
                continue
            have, tensors = param.version, weights.decode(param.data)
            if int(tensors["round"][0]) == self._number:
                self._run.steps = self._publisher.restore(tensors)
                self.joins += 1
                return True
        return False
