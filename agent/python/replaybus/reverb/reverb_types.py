"""The state of a table, as ``Client.server_info`` and ``Table.info`` return it."""
from __future__ import annotations

from typing import Any, NamedTuple, Optional


class CallStats(NamedTuple):
    """How many inserts or samples were made, and how many wait."""

    completed: int = 0
    pending: int = 0


class RateLimiterInfo(NamedTuple):
    """A limiter's bounds and counts."""

    samples_per_insert: float
    min_diff: float
    max_diff: float
    min_size_to_sample: int
    insert_stats: CallStats = CallStats()
    sample_stats: CallStats = CallStats()


class TableInfo(NamedTuple):
    """A table's settings and counts. The broker does not count deleted episodes and unique samples: these are None."""

    name: str
    sampler_options: Any
    remover_options: Any
    max_size: int
    max_times_sampled: int
    rate_limiter_info: RateLimiterInfo
    signature: Any
    current_size: int = 0
    num_episodes: int = 0
    num_deleted_episodes: Optional[int] = None
    num_unique_samples: Optional[int] = None
    table_worker_time: Any = None


def table_info(table: dict, signature: Any) -> TableInfo:
    """The broker's JSON as a TableInfo."""
    limiter = table["limiter"]
    rates = RateLimiterInfo(
        float(limiter.get("samples_per_insert", 1)), float(limiter.get("min_diff", 0)), float(limiter.get("max_diff", 0)),
        int(float(limiter.get("min_size", 1))),
        CallStats(int(limiter.get("inserts", 0)), int(table.get("waiting_inserts", 0))),
        CallStats(int(limiter.get("samples", 0)), int(table.get("waiting_samplers", 0))))
    return TableInfo(table["name"], table.get("sampler"), table.get("remover"), int(table.get("max_size", 0)),
                     int(table.get("max_times_sampled", 0)), rates, signature, int(table.get("size", 0)),
                     int(table.get("episodes", 0)))
