"""What a loader shows: the attributes of torch's DataLoader, and what the batch given out last holds."""

from __future__ import annotations

from abc import ABC
from collections.abc import Callable, Sized
from typing import Any

import torch

from restoke.data.options import Options
from restoke.data.rounds import Tally
from restoke.data.sources import Source
from restoke.world import World


class Attributes(ABC):
    """The attributes of torch's DataLoader under its names, and those of the running step."""

    world: World
    _options: Options
    _source: Source
    _tally: Tally | None
    _last: bool

    @property
    def end_of_dataloader(self) -> bool:
        """Whether the batch given out last is the last of its epoch."""
        return self._last

    @property
    def real(self) -> tuple[int, ...] | None:
        """How many entries of each data rank's batch given out last are real, from its front; those behind repeat others of
        the epoch. None where only a sampler or stream that shards itself could tell."""
        return None if self._tally is None else self._tally.real

    @property
    def sizes(self) -> tuple[int, ...] | None:
        """How many entries each data rank's batch given out last has; 0: the rank has none. None as in `real`."""
        return None if self._tally is None else self._tally.sizes

    @property
    def remainder(self) -> int:
        """The real samples of all ranks in the last step where it is not a full one; 0 where it is; -1 while unknown."""
        if self._tally is None or not self._last:
            return -1
        total, full = sum(self._tally.real), self.total_batch_size
        return 0 if self._tally.real == self._tally.sizes and full in (None, total) else total

    @property
    def total_batch_size(self) -> int | None:
        """The samples of all ranks in a full step; None where batches have no fixed size."""
        options = self._options
        given = options.batch_size if options.batch_sampler is None else getattr(options.batch_sampler, "batch_size", None)
        return given if given is None or self.split_batches else given * self.world.data_size

    @property
    def total_dataset_length(self) -> int | None:
        """Of all ranks; None where unknown."""
        return self._samples

    @property
    def split_batches(self) -> bool:
        """Whether `batch_size` counts the samples of all ranks together."""
        return self._options.dealing is not None and self._options.dealing.split_batches

    @property
    def _samples(self) -> int | None:
        return len(self.dataset) if isinstance(self.dataset, Sized) else None

    @property
    def dataset(self) -> Any:
        return self._options.dataset

    @property
    def batch_size(self) -> int | None:
        """Samples in a batch of this rank; None where a batch sampler makes the batches."""
        return self._options.batch_size if self._options.batch_sampler is None else None

    @property
    def sampler(self) -> Any:
        """The user's own where it gives this rank's indices, else what deals it to the ranks; None for a stream."""
        return self._source.sampler

    @property
    def batch_sampler(self) -> Any:
        """What gives this rank's indices batch by batch; None for a stream, and without batches."""
        return self._source.batch_sampler

    @property
    def drop_last(self) -> bool:
        return self._options.drop_last

    @property
    def generator(self) -> torch.Generator | None:
        return self._options.generator

    @property
    def num_workers(self) -> int:
        return self._source.torch.num_workers

    @property
    def collate_fn(self) -> Callable[[Any], Any]:
        collate: Callable[[Any], Any] = self._options.collate_fn or self._source.torch.collate_fn
        return collate

    @property
    def pin_memory(self) -> bool:
        return self._source.torch.pin_memory

    @property
    def timeout(self) -> float:
        return self._source.torch.timeout

    @property
    def worker_init_fn(self) -> Callable[[int], None] | None:
        return self._options.worker_init_fn

    @property
    def multiprocessing_context(self) -> Any:
        return self._source.torch.multiprocessing_context

    @property
    def prefetch_factor(self) -> int | None:
        return self._source.torch.prefetch_factor

    @property
    def persistent_workers(self) -> bool:
        return self._options.persistent_workers
