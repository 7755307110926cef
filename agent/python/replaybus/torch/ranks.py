"""Ranks of data-parallel training: each takes a share of a global batch, and they exchange items until all have equally many steps.

Two designs were weighed. The broker could keep one sample for all ranks and answer each with its part: every byte would travel once, but
a new request would have to go through waits, kept samples, leases, the journal, shared memory and shards, and batches by steps are made
in clients. Here the ranks do it. Each samples for itself, so that queues stay exactly-once and all options of a sampler stay what they
are. They tell each other the lengths of their items, come to the same division, and send the items that it moves. Few have to: an item
stays where it is while its rank has room, so most bytes travel once, and none more than twice.

A rank asks the broker for its share only when all ranks have had theirs of the batch before. Otherwise one rank could take, ahead of
time, the items that another needs now, and writers that wait for the learner would write no more.

The ranks talk over connections of their own, because a collective of torch.distributed that waits for a rank cannot be given up: neither
deadlines nor signals nor ``close`` would be noticed. Rank 0 says through the broker where it is, with a secret; who may read that
parameter slot may take part. The connections are not encrypted.
"""
import contextlib
import json
import os
import queue
import secrets
import socket
import struct
import threading
import time
import weakref
import zlib
from typing import Any, Iterable, Iterator, Optional, Sequence

import numpy as np
import torch

from .. import _core, nest, weights
from ..client import Client
from ..closing import Closing
from ..errors import Cancelled, DeadlineExceeded, EndOfStream, Error, FailedPrecondition, InvalidArgument, Unavailable
from ..sampler import Change, Leased, Sampler
from .batch import Batch, _restore

SLOT = "ranks-{}"  # the parameter slot in which the ranks of a table meet
EVEN = 0.01  # of the mean: ranks whose steps differ by less exchange nothing
_PATIENCE_S = 300.0  # how long ranks wait for each other to come, and to read
_HELLO_S = 5.0  # how long somebody who has connected may take to say who it is
_ALIGNED = 64  # bytes
_SILENCE = ((socket.TCP_KEEPIDLE, 10), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 4))  # after 30 s a host is gone


def divide(sizes: Sequence[np.ndarray]) -> list[np.ndarray]:
    """sizes: the steps of each rank's units. Returns the rank that each unit goes to.

    No rank gets more than the largest share was before, and none stays empty while there are enough units. A unit that is longer than
    the mean share is alone, and the other ranks share the rest evenly.
    """
    world, every = len(sizes), np.sort(np.concatenate(sizes))[::-1]
    alone, rest = 0, int(every.sum())
    while alone < len(every) and every[alone] * (world - alone) > rest:
        rest -= int(every[alone])
        alone += 1
    level = rest / (world - alone)  # of the ranks that share the rest

    def badness(owners: list[np.ndarray]) -> tuple[int, int, int]:
        """Ranks without a unit, the largest share, and how far those that share the rest are apart."""
        loads = np.bincount(np.concatenate(owners), np.concatenate(sizes), world).astype(int)
        return int((loads == 0).sum()), int(loads.max()), int(np.ptp(np.sort(loads)[:world - alone]))

    best = [np.full(len(own), rank) for rank, own in enumerate(sizes)]
    least = badness(best)
    for room in (level, 0.0):  # the second time no rank has a claim to what it has: more moves, and the parts may be more even
        if least[0] <= max(0, world - len(every)) and least[2] <= EVEN * level:
            break
        owners = _longest_first(sizes, room)
        found = badness(owners)
        if found < least:
            best, least = owners, found
    return best


def _longest_first(sizes: Sequence[np.ndarray], room: float) -> list[np.ndarray]:
    """The longest unit first: each stays with its rank while that has room for it, or else goes to the rank with the fewest steps."""
    owners = [np.full(len(own), rank) for rank, own in enumerate(sizes)]
    loads, empty = [0] * len(sizes), len(sizes)
    order = sorted((-int(n), rank, i) for rank, own in enumerate(sizes) for i, n in enumerate(own))
    for left, (size, rank, i) in zip(range(len(order), 0, -1), order):
        stays = loads[rank] - size <= room and (loads[rank] == 0 or left > empty)
        to = rank if stays else loads.index(min(loads))
        empty -= loads[to] == 0
        loads[to] -= size
        owners[rank][i] = to
    return owners


def _form(batch: Batch) -> bytes:
    """What batches must have in common if they are to be one."""
    fields = [(name, field[0], field[3][1 if one else 2 - batch._packed:], one)
              for name, field, one in zip(nest.names(batch._node), batch._fields, batch._squeezes)]
    return json.dumps([fields, [place is not None for place in batch._places]]).encode()


def _units(batch: Batch) -> tuple[np.ndarray, np.ndarray]:
    """Of what stays together, a group or an item: its first item, and its steps (those of its longest field)."""
    steps = np.ones(len(batch), np.int64)
    for field, one in zip(batch._fields, batch._squeezes):
        if not one:
            steps = np.maximum(steps, batch._steps(field))
    group = batch.group
    begins = np.arange(len(batch)) if group is None else np.flatnonzero(np.diff(group.numpy(), prepend=~group[:1].numpy()))
    return begins, np.add.reduceat(steps, begins) if len(begins) else steps


def _select(batch: Batch, items: np.ndarray) -> dict[str, np.ndarray]:
    """Copies of some items."""
    host, n = batch._host, len(batch)
    out = {"form": np.frombuffer(_form(batch), np.uint8)}
    for i, ((_, dtype), at) in enumerate(zip(_core.ARRAYS, batch._places)):
        if at is not None:
            out[f"item/{i}"] = host[at:at + n * np.dtype(dtype).itemsize].view(dtype)[items]
    for i, (field, one) in enumerate(zip(batch._fields, batch._squeezes)):
        _, offset, size, shape, _ = field
        count = shape[0] if one or batch._packed else shape[0] * shape[1]
        rows = host[offset:offset + size].reshape(count, size // max(1, count))
        if not one:
            lengths = batch._steps(field)
            begins = np.cumsum(lengths, dtype=np.int64) - lengths if batch._packed else np.arange(n) * shape[1]
            out[f"steps/{i}"] = lengths = lengths[items]
            ends = np.cumsum(lengths, dtype=np.int64)
            rows = rows[np.arange(ends[-1] if len(ends) else 0) + np.repeat(begins[items] - ends + lengths, lengths)]
        out[f"rows/{i}"] = rows[items] if one else rows
    return out


def _join(parts: Sequence[dict[str, np.ndarray]], info: dict) -> Batch:
    """A packed batch of all parts, which have one form."""
    form, places = json.loads(bytes(parts[0]["form"]))
    n = sum(len(part["item/0"]) for part in parts)
    names = sorted((name for name in parts[0] if name != "form"), key=lambda name: name.startswith("rows/"))  # what stays on the host first
    at, end = {}, 0
    for name in names:
        at[name] = end
        end += -(-sum(part[name].nbytes for part in parts) // _ALIGNED) * _ALIGNED
    host = np.empty(max(end, 1), np.uint8)  # torch shows no other types over no bytes
    for name in names:
        whole = [part[name].reshape(-1).view(np.uint8) for part in parts]
        np.concatenate(whole, out=host[at[name]:at[name] + sum(map(len, whole))])
    fields = []
    for i, (_, dtype, shape, one) in enumerate(form):
        rows = sum(len(part[f"rows/{i}"]) for part in parts)
        size = rows * parts[0][f"rows/{i}"].shape[1]
        fields.append((dtype, at[f"rows/{i}"], size, (rows, *shape), None if one else at[f"steps/{i}"]))
    places = tuple(at[f"item/{i}"] if there else None for i, there in enumerate(places))
    return _restore((tuple(name for name, *_ in form), n, tuple(fields), places, True, tuple(one for *_, one in form),
                     torch.from_numpy(host), host, {**info, "n": n}))


def _send(to: socket.socket, data: bytes) -> None:
    to.sendall(struct.pack("<Q", len(data)))
    to.sendall(data)


def _receive(of: socket.socket, most: Optional[int] = None) -> bytearray:
    """ConnectionError: the other side is gone, or says too much."""

    def read(n: int) -> bytearray:
        data = bytearray(n)
        view = memoryview(data)
        while len(view):
            got = of.recv_into(view)
            if not got:
                raise ConnectionError("it has closed the connection")
            view = view[got:]
        return data

    size, = struct.unpack("<Q", read(8))
    if most is not None and size > most:
        raise ConnectionError(f"a message of {size} bytes")
    return read(size)


def own_address(client: Client) -> str:
    """This machine's address on the way to the broker."""
    host, _, port = client.endpoint.rpartition("/")[2].rpartition(":")
    with contextlib.suppress(OSError, ValueError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as way:
        way.connect((host, int(port)))  # sends nothing
        return way.getsockname()[0]
    return "127.0.0.1"


class _Meeting:
    """Connects all ranks with each other. They come to rank 0, which tells them about each other when all are there."""

    def __init__(self, client: Client, slot: str, rank: int, world: int) -> None:
        self._client, self._slot, self._rank, self._world = client, slot, rank, world
        self._end, self._why, self.peers = time.monotonic() + _PATIENCE_S, "", {}
        host = own_address(client)
        try:
            with socket.create_server((host, 0)) as server:
                self._server, self._own = server, [host, server.getsockname()[1]]
                (self._host if rank == 0 else self._come)()
            for peer in self.peers.values():
                peer.settimeout(None)
                peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                peer.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", int(_PATIENCE_S), 0))
                for option, value in _SILENCE:
                    peer.setsockopt(socket.IPPROTO_TCP, option, value)
        except BaseException:
            for peer in self.peers.values():
                peer.close()
            raise

    def _left(self, waits_for: str) -> float:
        left = self._end - time.monotonic()
        if left <= 0:
            raise DeadlineExceeded(f"rank {self._rank} of {self._world} has waited {_PATIENCE_S:g} s for {waits_for}{self._why}: each rank "
                                   "makes a sampler of this table with its rank and the same world")
        return left

    def _host(self) -> None:
        self._secret = secrets.token_hex(16)
        self._client.params.put(self._slot, json.dumps([*self._own, self._secret]).encode())
        ranks = {0: self._own, **dict(self._accept(range(1, self._world)))}
        for peer in self.peers.values():
            _send(peer, json.dumps([ranks[rank] for rank in range(self._world)]).encode())

    def _come(self) -> None:
        have, ranks = 0, None
        while ranks is None:  # the slot may still have the place of an earlier rank 0
            left = self._left("rank 0")
            try:
                param = self._client.params.get(self._slot, have, min(1.0, left))
                have, (host, port, self._secret) = param.version, json.loads(param.data)
                ranks = json.loads(self._connect(0, (host, port), True))
            except DeadlineExceeded:
                pass
            except Unavailable as error:  # rank 0 is slow, or the place is that of an earlier one
                self._why, have = f" ({error})", 0
                time.sleep(min(1.0, left))
            except (ValueError, TypeError) as error:
                self._why = f" ({error})"
        if isinstance(ranks, str):
            raise InvalidArgument(ranks)
        for rank in range(1, self._rank):
            self._connect(rank, tuple(ranks[rank]), False)
        for _ in self._accept(range(self._rank + 1, self._world)):
            pass

    def _connect(self, rank: int, address: tuple, answers: bool) -> bytes:
        try:
            with contextlib.ExitStack() as undo:
                peer = undo.enter_context(socket.create_connection(address, min(_HELLO_S, self._left(f"rank {rank}"))))
                _send(peer, json.dumps(dict(secret=self._secret, rank=self._rank, world=self._world, address=self._own)).encode())
                peer.settimeout(self._left("other ranks"))
                answer = _receive(peer, 1 << 20) if answers else b""
                self.peers[rank] = peer
                undo.pop_all()
                return answer
        except OSError as error:
            where = f"{address[0]}:{address[1]}"
            raise Unavailable(f"rank {self._rank} of {self._world} cannot talk to rank {rank} at {where}: {error}") from None

    def _accept(self, ranks: Sequence[int]) -> Iterator[tuple[int, list]]:
        """Yields ranks with their addresses. A rank that comes twice was started anew."""
        while not all(rank in self.peers for rank in ranks):
            missing = [str(rank) for rank in ranks if rank not in self.peers]
            self._server.settimeout(self._left(f"rank{'s' * (len(missing) > 1)} {', '.join(missing)}"))
            with contextlib.ExitStack() as undo, contextlib.suppress(OSError, ValueError, KeyError, TypeError):  # late, or a stranger
                peer = undo.enter_context(self._server.accept()[0])
                peer.settimeout(_HELLO_S)
                hello = json.loads(_receive(peer, 1 << 12))
                if not secrets.compare_digest(hello["secret"], self._secret):
                    continue
                if hello["world"] != self._world or hello["rank"] not in ranks:
                    text = (f"rank {hello['rank']} of {hello['world']}: rank {self._rank} of {self._world} makes a sampler of the same table; "
                            "each rank has a number of its own, and the same world")
                    _send(peer, json.dumps(text).encode())
                    continue
                self.peers[hello["rank"]] = peer
                undo.pop_all()
                yield hello["rank"], hello["address"]


class Ranks(Closing):
    """The batches of one rank. All ranks get equally many, and end together."""

    def __init__(self, arrays: Sampler, client: Client, rank: int, world: int, beta: float) -> None:
        self._arrays, self._rank, self._world, self._beta = arrays, rank, world, beta
        self._peers = _Meeting(client, SLOT.format(arrays.table), rank, world).peers
        self._hang_up = weakref.finalize(self, _hang_up, os.getpid(), self._peers.values())
        self._inbox: dict[int, queue.Queue] = {other: queue.Queue() for other in self._peers}
        for other, peer in self._peers.items():
            threading.Thread(target=_listen, args=(peer, self._inbox[other]), name=f"replay-rank-{other}", daemon=True).start()
        self._ended, self._mine = False, None  # own share of the batch
        self._stage, self._got = 0, {}  # what is done for the next batch, and what this stage has received, by rank
        self._parts: list[dict[int, np.ndarray]] = []  # by rank: its units that go to each rank
        self._error: Optional[Error] = None  # a rank is gone, or this one has ended

    def close(self) -> None:
        self._error = Cancelled("the sampler was closed")
        self._hang_up()

    def next(self, timeout: Optional[float] = None) -> Batch:
        """This rank's part of the next global batch. A deadline loses nothing: call again."""
        end = None if timeout is None else time.monotonic() + timeout
        if self._error is not None:
            raise self._error
        if self._stage == 0:
            for other, inbox in self._inbox.items():
                if inbox.queue and isinstance(inbox.queue[-1], Exception):
                    raise self._lost(other, inbox.queue[-1])  # before items are taken that nobody would get
            self._take(timeout)
            self._stage = 1
        if self._stage == 1:
            self._collect(self._peers, end)
            self._agree()
            self._stage = 2
        senders = [rank for rank, to in enumerate(self._parts) if rank != self._rank and self._rank in to]
        self._collect(senders, end)
        batch = self._whole()
        self._stage, self._got = 0, {}
        return batch

    def _take(self, timeout: Optional[float]) -> None:
        """Takes the own share, and tells the others the steps of its units."""
        if not self._ended:
            try:
                self._mine = Batch(self._arrays.next(timeout))
            except EndOfStream:
                self._ended, self._mine = True, None
        said: dict[str, Any] = {"units": np.zeros(0, np.int64)}
        if self._mine is not None:
            self._begins, said["units"] = _units(self._mine)
            said["form"] = np.array([zlib.crc32(_form(self._mine))], np.uint32)
            said["least"] = self._mine.probability.numpy().min(initial=np.inf, keepdims=True)
        self._said = said
        for other in self._peers:
            self._tell(other, said)

    def _agree(self) -> None:
        """Finds the division that all ranks find, and sends what others get of the own share."""
        said = [self._got.get(rank, self._said) for rank in range(self._world)]
        have = [rank for rank, one in enumerate(said) if "form" in one]
        if not have:
            raise EndOfStream("all ranks have come to the end of their samples")
        sizes = [one["units"] for one in said]
        owners = divide(sizes)
        if len({int(said[rank]["form"][0]) for rank in have}) > 1:  # fields that do not fit into one array stay where they are
            owners = [np.full(len(own), rank) for rank, own in enumerate(sizes)]
        self._parts = [{int(to): np.flatnonzero(own == to) for to in np.unique(own)} for own in owners]
        for rank in range(self._world):
            if rank not in have and not any(rank in to for to in self._parts):
                self._parts[have[0]][rank] = np.zeros(0, int)  # no items, but it learns which fields there are
        self._least, self._got = min(float(said[rank]["least"][0]) for rank in have), {}
        for other, units in self._parts[self._rank].items():
            if other != self._rank:
                self._tell(other, _select(self._mine, self._items(units)))

    def _items(self, units: np.ndarray) -> np.ndarray:
        """The items of some units of the own share."""
        chosen = np.zeros(len(self._begins), bool)
        chosen[units] = True
        return np.flatnonzero(np.repeat(chosen, np.diff(self._begins, append=len(self._mine))))

    def _whole(self) -> Batch:
        mine, parts, own = self._mine, self._got, self._parts[self._rank]
        if mine is not None and not parts and list(own) == [self._rank]:
            batch = mine
        else:
            if mine is not None:
                parts = {**parts, self._rank: _select(mine, self._items(own.get(self._rank, np.zeros(0, int))))}
            info = mine.info if mine is not None else dict(partial=True, table_size=0, waited_ns=0, text="this rank has come to its end")
            batch = _join([parts[rank] for rank in sorted(parts)], info)
            batch._own = mine if mine is not None else _Nothing()
        if self._beta and len(batch):
            batch.weight.copy_((self._least / batch.probability) ** self._beta)
        return batch

    def _tell(self, other: int, data: dict) -> None:
        try:
            _send(self._peers[other], weights.encode(data))
        except OSError as error:
            raise self._lost(other, error) from None
        except BaseException:  # of a signal: the others cannot know which part of a message they have
            self._lost(other, "a message to it was cut short")
            self._hang_up()
            raise

    def _collect(self, ranks: Iterable[int], end: Optional[float]) -> None:
        """Receives one message of each of these ranks. A slow rank is no error; one that is gone is noticed by its connection."""
        for other in ranks:
            if other in self._got:
                continue
            try:
                message = self._inbox[other].get(timeout=None if end is None else max(0.0, end - time.monotonic()))
            except queue.Empty:
                raise DeadlineExceeded(f"rank {self._rank} of {self._world} waits for rank {other}, which has no share of the next batch "
                                       "yet, or has not called next") from None
            if isinstance(message, Exception):
                raise self._lost(other, message)
            self._got[other] = weights.decode(message)

    def _lost(self, other: int, why: Any) -> Error:
        if self._error is None:
            self._error = FailedPrecondition(f"rank {self._rank} of {self._world} has lost rank {other}: {why}. Close the samplers of all "
                                             "ranks, and make new ones")
        return self._error


class _Nothing(Leased):
    """What a rank at its end has under lease."""

    def _lease(self, op: int, seconds: float, timeout: Any) -> Change:
        return Change(0, 0, 0)


def _hang_up(pid: int, peers: Iterable[socket.socket]) -> None:
    if os.getpid() == pid:  # a child has the same connections, and no use of them
        for peer in peers:
            with contextlib.suppress(OSError):
                peer.shutdown(socket.SHUT_RDWR)
            peer.close()


def _listen(peer: socket.socket, inbox: "queue.Queue") -> None:
    """Reads all the time, so that nobody who sends waits for the program of this rank."""
    try:
        while True:
            inbox.put(_receive(peer))
    except Exception as error:  # whatever the other side has sent
        inbox.put(error)
