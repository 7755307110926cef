"""Patterns over steps that are there already: the items that a StructuredWriter would make of them, without a server.

>>> from replaybus.reverb import structured_writer
>>> step = structured_writer.create_reference_step({"x": None, "last": None})
>>> rule = structured_writer.create_config({"before": step["x"][-2], "now": step["x"][-1]}, "any")
>>> steps = [{"x": i, "last": i == 1} for i in range(4)]
>>> [(int(item["before"]), int(item["now"])) for item in PatternDataset(steps, [rule], True, lambda step: step["last"])]
[(0, 1), (2, 3)]
"""
import collections
from typing import Any, Callable, Iterable, Iterator, Sequence

import numpy as np

from .. import nest
from . import _structure
from ._dataset import Iterable as Dataset
from .replay_sample import ReplaySample, SampleInfo
from .structured_writer import Config, State, infer_signature


class PatternDataset(Dataset):
    """The items of rules (``structured_writer.create_config``) over the steps of an iterable, in order; it can be iterated over as often as
    that can. is_end_of_episode tells of each step whether it is the last of its episode; with respect_episode_boundaries no item
    spans two episodes.
    """

    def __init__(self, input_dataset: Iterable[Any], configs: Sequence[Config], respect_episode_boundaries: bool,
                 is_end_of_episode: Callable[[Any], bool]) -> None:
        if not configs:
            raise ValueError("At least one config must be provided.")
        super().__init__(self._items)
        self._steps, self._configs = input_dataset, tuple(configs)
        self._bounded, self._is_end = respect_episode_boundaries, is_end_of_episode

    @property
    def element_spec(self) -> Any:
        """The form of the items, if the steps' dataset tells theirs."""
        return infer_signature(self._configs, self._steps.element_spec)

    def _items(self) -> Iterator[Any]:
        history: collections.deque = collections.deque(maxlen=max(config.rows for config in self._configs))
        since, count = [0] * len(self._configs), 0
        for step in self._steps:
            node = _structure.node_of(step)
            values = [np.asarray(value) for value in nest.flatten(node, step)]
            history.append({**dict(zip(_structure.paths(node), values)), (): values[0]})  # a pattern without paths: the first column
            count, since = count + 1, [steps + 1 for steps in since]
            ends = bool(self._is_end(step))
            for at_end in (False, True)[:1 + ends]:
                for i, config in enumerate(self._configs):
                    if config.applies(State(count - 1, since[i], at_end, history[-1].__getitem__), len(history)):
                        since[i] = 0
                        yield nest.pack(config.node, [self._field(history, part) for part in config.nodes])
            if ends and self._bounded:
                history.clear()
                since, count = [0] * len(self._configs), 0

    @staticmethod
    def _field(history: collections.deque, part: Any) -> np.ndarray:
        rows = [history[i][part.path] for i in part.steps(len(history))]
        return np.stack(rows) if isinstance(part.rows, slice) else rows[0]


def pattern_dataset_with_info(input_dataset: Iterable[Any], configs: Sequence[Config], respect_episode_boundaries: bool,
                              is_end_of_episode: Callable[[Any], bool]) -> Dataset:
    """A PatternDataset whose items are samples with an info of zeros."""
    items = PatternDataset(input_dataset, configs, respect_episode_boundaries, is_end_of_episode)
    return items.map(lambda data: ReplaySample(SampleInfo.zeros(), data))
