"""A connection to a server: inserting, sampling, changing priorities, and looking."""
import os
import threading
from typing import Any, Generator, Mapping, Optional, Sequence, Union

import numpy as np

from .. import client as native
from .. import errors as native_errors
from .. import nest
from . import _codec, _structure
from ._items import ItemWriter, Rows
from ._samples import Request, sampled
from .errors import DeadlineExceededError, translated
from .replay_sample import ReplaySample
from .reverb_types import TableInfo, dtype_name, table_info
from .structured_writer import Config, StructuredWriter
from .trajectory_writer import TrajectoryWriter
from .writer import Writer

SAMPLES_IN_FLIGHT = 64


def _endpoint(address: str) -> str:
    if "://" in address:
        return address
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise ValueError(f"the address of a server is 'host:port', not {address!r}")
    return f"tcp://{'127.0.0.1' if host == 'localhost' else host}:{port}"


class Client:
    """A client of the server at ``server_address``, "host:port".

    It connects when it is first used, and pickles as its address.
    """

    def __init__(self, server_address: str) -> None:
        self._server_address = server_address
        self.native = native.Client(_endpoint(server_address))
        self._local = threading.local()  # of each thread, so that an insert that waits for its table stops no other one
        self._known: Optional[dict[str, _structure.TableFacts]] = None  # by table

    def __repr__(self) -> str:
        return f"Client, server_address={self._server_address}"

    def __reduce__(self):
        return type(self), (self._server_address,)

    @property
    def server_address(self) -> str:
        """The address that the client was made with."""
        return self._server_address

    def _facts(self, table: str) -> _structure.TableFacts:
        """What a table was made with, as the server said when it was first asked, or in the last server_info."""
        if self._known is None:
            self._learn(self.native.info())
        return self._known.get(table, _structure.TableFacts())

    def _learn(self, state: Mapping[str, Any]) -> None:
        self._known = {table["name"]: _structure.facts_of(table.get("metadata", "")) for table in state["tables"]}

    def signature(self, table: str) -> Any:
        """The signature of a table, with a TensorSpec for each value; None if it has none."""
        signature = self.stored_signature(table)
        return None if signature is None else signature.structure()

    def stored_signature(self, table: str) -> Optional[_structure.Signature]:
        """The signature of a table as the server stores it; None if it has none."""
        with translated:
            return self._facts(table).signature

    def insert(self, data: Any, priorities: Mapping[str, float]) -> None:
        """Inserts one timestep into each of the tables, and waits until it is there."""
        if not priorities:
            raise ValueError("priorities must name at least one table")
        node = _structure.node_of(data)
        names = _structure.names(node)
        if not names:
            raise ValueError("the data has no values")
        rows = [_codec.encode(name, leaf) for name, leaf in zip(names, nest.flatten(node, data))]
        specs = [_structure.Spec(name, dtype_name(row.dtype), row.shape) for name, row in zip(names, rows)]
        fields = [Rows(name + row.suffix, row.array[np.newaxis], False) for name, row in zip(names, rows)]
        for table in priorities:
            wanted = self.stored_signature(table)
            if wanted is not None:
                _structure.check(table, wanted.specs, specs)
        with translated:
            if getattr(self._local, "pid", None) != os.getpid():  # a forked child: the streams belong to the parent
                self._local.pid, self._local.writer = os.getpid(), ItemWriter(self.native)
            writer = self._local.writer  # of this thread
            for table, priority in priorities.items():
                writer.create(table, float(priority), fields)
            writer.flush()
            writer.end_episode()  # each insert is an episode, as in Reverb; with shards, the next one may go to another

    def writer(self, max_sequence_length: int, delta_encoded: bool = False, chunk_length: Optional[int] = None,
               max_in_flight_items: Optional[int] = 25) -> Writer:
        """A writer whose items are the last steps, at most max_sequence_length. delta_encoded is accepted and not needed."""
        with translated:
            return Writer(self, max_sequence_length, chunk_length, max_in_flight_items)

    def trajectory_writer(self, num_keep_alive_refs: int, *, get_signature_timeout_ms: Optional[int] = 3000
                          ) -> TrajectoryWriter:
        """A writer whose items are selections of the newest num_keep_alive_refs steps."""
        if num_keep_alive_refs < 1:
            raise ValueError(f"num_keep_alive_refs must be 1 or more, not {num_keep_alive_refs}")
        return TrajectoryWriter(self, num_keep_alive_refs)

    def structured_writer(self, configs: Sequence[Config]) -> StructuredWriter:
        """A writer whose items are made by rules: what structured_writer.create_config makes."""
        return StructuredWriter(self, configs)

    def sample(self, table: str, num_samples: int = 1, *, emit_timesteps: bool = True,
               unpack_as_table_signature: bool = False
               ) -> Generator[Union[list[ReplaySample], ReplaySample], None, None]:
        """Yields items: each a list with a sample per timestep, or with emit_timesteps=False one sample.

        ``data`` is a list of arrays, or with unpack_as_table_signature the structure of the table's signature, if it has one.
        Waits until the table has items to give.
        """
        if num_samples < 1:
            raise ValueError(f"num_samples must be 1 or more, not {num_samples}")
        with translated:
            signature = self.stored_signature(table) if unpack_as_table_signature else None
            node = None if signature is None else signature.node
            for item in sampled(self.native, Request(table, min(num_samples, SAMPLES_IN_FLIGHT), max_samples=num_samples)):
                yield (item.steps if emit_timesteps else item.sample)(node)

    def mutate_priorities(self, table: str, updates: Optional[Mapping[int, float]] = None,
                          deletes: Optional[Sequence[int]] = None) -> None:
        """Sets priorities by key, then deletes keys. Keys that are not in the table are ignored."""
        with translated:
            if updates:
                keys = np.fromiter(updates.keys(), np.uint64, len(updates))
                self.native.update(table, keys, np.fromiter(updates.values(), np.float64, len(updates)))
            if deletes is not None and len(deletes):
                self.native.delete(table, np.fromiter(deletes, np.uint64, len(deletes)))

    def reset(self, table: str) -> None:
        """Removes all items of a table and sets its limiter to zero."""
        with translated:
            self.native.reset(table)

    def server_info(self, timeout: Optional[float] = None) -> dict[str, TableInfo]:
        """The state of every table, by name. ``timeout``, in seconds, covers the connection, too."""
        with translated:
            try:
                self.native.connect(timeout)
                state = self.native.info(timeout=timeout)
            except native_errors.Unavailable as error:
                raise DeadlineExceededError(str(error)) from error
        self._learn(state)  # a new server at the same address may have other tables
        return {table["name"]: self._table_info(table, self._facts(table["name"])) for table in state["tables"]}

    def _table_info(self, table: Mapping[str, Any], facts: _structure.TableFacts) -> TableInfo:
        return table_info(table, facts.sampler or {"kind": table["sampler"]}, facts.remover or {"kind": table["remover"]},
                          None if facts.signature is None else facts.signature.structure())

    def checkpoint(self) -> str:
        """Stores the whole state of the server, and returns the folder of its checkpoints."""
        with translated:
            return self.native.checkpoint().folder
