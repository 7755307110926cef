"""Reverb's interface on replaybus: ``import replaybus.reverb as reverb``. docs/GUIDE.md says what is the same.

>>> import numpy as np
>>> import replaybus.reverb as reverb
>>> server = reverb.Server(tables=[reverb.Table(
...     name="replay", sampler=reverb.selectors.Prioritized(0.8), remover=reverb.selectors.Fifo(), max_size=100,
...     rate_limiter=reverb.rate_limiters.MinSize(1))])
>>> client = reverb.Client(f"localhost:{server.port}")
>>> client.insert({"observation": np.array([0.0, 1.0]), "reward": 2.0}, priorities={"replay": 1.0})
>>> sample = next(client.sample("replay"))[0]
>>> [array.tolist() for array in sample.data]
[[0.0, 1.0], 2.0]
>>> client.mutate_priorities("replay", updates={sample.info.key: 0.5})
>>> client.server_info()["replay"].current_size
1
>>> server.stop()
"""
from . import checkpointers, client, errors, item_selectors, pattern_dataset, platform, pybind, rate_limiters
from . import replay_sample, reverb_types, server, structured_writer, tf_client, timestep_dataset
from . import trajectory_dataset, trajectory_writer, writer
from . import item_selectors as selectors
from .client import Client
from .errors import DeadlineExceededError, ReverbError
from .pattern_dataset import PatternDataset
from .replay_sample import ReplaySample, SampleInfo
from .reverb_types import TableInfo, TensorSpec
from .server import Server, Table
from .structured_writer import Condition, StructuredWriter
from .tf_client import TFClient
from .timestep_dataset import TimestepDataset
from .trajectory_dataset import TrajectoryDataset
from .trajectory_writer import TrajectoryColumn, TrajectoryWriter
from .writer import Writer
