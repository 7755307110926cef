"""TFClient needs TensorFlow: the name exists, so that programs can import it, and says what to use instead."""
from typing import Any

from .errors import needs_tensorflow


class TFClient:
    """Operations of a TensorFlow graph."""

    def __init__(self, *_: Any, **__: Any) -> None:
        raise needs_tensorflow("TFClient", "use Client, or iterate over TrajectoryDataset")
