"""The random order that depends on a seed and the epoch alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, final

import torch
from torch.utils.data import BatchSampler, RandomSampler


@final
class SeedableRandomSampler(RandomSampler):
    """As torch's RandomSampler; epoch e is drawn as that does after `manual_seed(data_seed + e)`, and a complete pass leads to
    the next epoch. `data_seed` None: the process's `torch.initial_seed()`, for which a loader takes rank 0's."""

    def __init__(self, *args: Any, data_seed: int | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.initial_seed = torch.initial_seed() if data_seed is None else data_seed
        self.epoch = 0

    def __iter__(self) -> Iterator[int]:
        if self.generator is None:
            self.generator = torch.Generator()
        self.generator.manual_seed(self.initial_seed + self.epoch)
        yield from super().__iter__()
        self.epoch += 1

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch."""
        self.epoch = epoch

    def state_dict(self) -> dict[str, int]:
        """The seed; the epoch is the loader's."""
        return {"initial_seed": self.initial_seed}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Take over the seed."""
        self.initial_seed = int(state["initial_seed"])


def seedable(batch_sampler: Any, data_seed: int | None) -> Any:
    """The batches in a seedable order where torch's RandomSampler made it. A batch sampler of another class than torch's is
    given the sampler in place."""
    found = getattr(batch_sampler, "sampler", None)
    if type(found) is not RandomSampler:
        return batch_sampler
    asked = (found.data_source, found.replacement, found._num_samples, found.generator)
    sampler = SeedableRandomSampler(*asked, data_seed=data_seed)
    if type(batch_sampler) is BatchSampler:
        return BatchSampler(sampler, batch_sampler.batch_size, batch_sampler.drop_last)
    batch_sampler.sampler = sampler
    return batch_sampler
