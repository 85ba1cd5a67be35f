"""How the batches of one global order are dealt to the data ranks: the rules that may be chosen, and what cannot be obeyed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, final

from attrs import field, frozen

from restoke.errors import DataError, Problem

RNG_TYPES = ("generator", "torch", "python", "numpy", "cuda", "xpu", "mps")


@final
@frozen(kw_only=True)
class Dealing:
    """Whole batches are dealt to the ranks in turn, so that one process, with batches as many times as big, sees the same.

    `split_batches`: `batch_size` counts the samples of all ranks together, and each batch is cut among them.
    `even_batches`: an incomplete last step is filled up with the epoch's first samples, which `Loader.real` tells apart;
    otherwise some ranks get a shorter batch in it, or none.
    `dispatch_batches`: rank 0 alone reads, and sends each rank its part; None: where an iterable dataset goes to a device.
    `use_seedable_sampler`: a random order depends on `data_seed` (None: rank 0's seed of torch) and the epoch alone.
    `non_blocking`: copies to the device do not block; None: where memory is pinned.
    `rng_types`: generators of the process that all ranks set to rank 0's state as an epoch begins. The order, and the
    sampler's generator, are rank 0's in any case.
    """

    split_batches: bool = False
    even_batches: bool = True
    dispatch_batches: bool | None = None
    use_seedable_sampler: bool = False
    data_seed: int | None = None
    non_blocking: bool | None = None
    rng_types: tuple[str, ...] = field(default=("generator",), converter=tuple)
    device_placement: bool = True

    def __attrs_post_init__(self) -> None:
        """Raises DataError where rules contradict each other."""
        problems = list(self._problems())
        if problems:
            raise DataError(*problems)

    def _problems(self) -> Iterator[Problem]:
        for name in self.rng_types:
            if str(name) not in RNG_TYPES:
                yield Problem("rng_types", name, "there is no such generator", ", ".join(RNG_TYPES))
        if self.dispatch_batches and not self.device_placement:
            why = "dispatched batches are put on each rank's device"
            yield Problem("dispatch_batches", True, why, "device_placement=True, or dispatch_batches=False")
        if self.data_seed is not None and not self.use_seedable_sampler:
            yield Problem("data_seed", self.data_seed, "it seeds the seedable sampler", "use_seedable_sampler=True")


def check_cut(size: Any, replicas: int) -> None:
    """Raises DataError where a batch cannot be cut among the ranks."""
    if size is None:
        why = "a batch of unknown size cannot be cut into equal parts"
        raise DataError.of("split_batches", True, why, "split_batches=False, or a batch sampler with a batch_size")
    if size % replicas:
        why = f"with split_batches it must be a round multiple of the {replicas} data ranks"
        raise DataError.of("batch_size", size, why, f"{-(-size // replicas) * replicas}, or split_batches=False")
