"""The timesteps of the items of a table, as an iterator."""
from typing import Iterator, Optional

from ._dataset import Dataset
from ._samples import Item
from .replay_sample import ReplaySample


class TimestepDataset(Dataset):
    """Iterates over the timesteps of a table's items, one by one. All fields of an item must have the same number of steps."""

    @property
    def element_spec(self) -> ReplaySample:
        """A sample with a TensorSpec in the place of each array."""
        spec, form = super().element_spec, self._form
        if self._declared or form is None or any(field.shape == () for field in form.specs):
            return spec
        steps = [field._replace(shape=field.shape and field.shape[1:]) for field in form.specs]  # the signature is that of items
        return spec._replace(data=form._replace(specs=steps).structure())

    def _may_be(self, want: Optional[tuple], have: Optional[tuple]) -> bool:
        """A signature describes steps, or whole items, whose first dimension counts steps."""
        return super()._may_be(want, have) or (bool(have) and want == have[1:])

    def _of_item(self, item: Item) -> Iterator[ReplaySample]:
        for step in range(item.timesteps()):
            yield ReplaySample(item.info, self._data(item.names, [field[step, ...] for field in item.fields]))
