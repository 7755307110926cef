"""Requests from plain values, so that a log can hold them and a successor can repeat them."""

import struct

from generated import pb


def value_of(seed, size):
    """The bytes of a parameter slot."""
    return struct.pack("<Q", seed) * (size // 8)


def _sample(table, count, flags, timeout_ms):
    return pb.Sample(table=table, count=count, timeout_ms=timeout_ms, whole="w" in flags, flexible="f" in flags,
                     distinct="d" in flags, shared=3 if "s" in flags else 0)


BODIES = {
    "hello": lambda: pb.Hello(),
    "sample": _sample,
    "update": lambda table, keys, priorities: pb.Update(table=table, key=keys, priority=priorities),
    "delete": lambda table, keys: pb.Delete(table=table, key=keys),
    "fetch": lambda table, keys: pb.Fetch(table=table, key=keys),
    "list": lambda table, cursor, limit: pb.List(table=table, cursor=cursor, limit=limit),
    "cancel": lambda ids: pb.Cancel(id=ids),
    "reset": lambda table: pb.Reset(table=table),
    "counter": lambda name, add: pb.Counter(name=name, add=add),
    "params_put": lambda name, seed, size: pb.ParamsPut(name=name),
    "params_get": lambda name: pb.ParamsGet(name=[name], have=[0], timeout_ms=0),
    "checkpoint": lambda timeout_ms, start_only: pb.Checkpoint(timeout_ms=timeout_ms, start_only=start_only),
    "info": lambda cursor=0: pb.Info(sessions=True, session_cursor=cursor),
    "why": lambda: pb.Why(),
}


def make(name, args):
    payload = [value_of(args[1], args[2])] if name == "params_put" else []
    return BODIES[name](*args), payload
