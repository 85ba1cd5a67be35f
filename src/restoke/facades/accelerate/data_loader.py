"""Loaders as functions of their own: `prepare_data_loader`, `skip_first_batches`, and the samplers behind them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import attrs
import torch

from restoke.data import BatchShare, Dealing, Loader, SeedableRandomSampler, take_loader
from restoke.data import skip_first_batches as skip
from restoke.errors import SpecError
from restoke.facades.accelerate.state import PartialState

BatchSamplerShard = BatchShare
DataLoaderShard = DataLoaderDispatcher = Loader

__all__ = [
    "BatchSamplerShard",
    "DataLoaderDispatcher",
    "DataLoaderShard",
    "SeedableRandomSampler",
    "prepare_data_loader",
    "skip_first_batches",
]


def prepare_data_loader(
    dataloader: Any,
    device: torch.device | None = None,
    num_processes: int | None = None,
    process_index: int | None = None,
    split_batches: bool = False,
    put_on_device: bool = False,
    rng_types: Sequence[Any] | None = None,
    dispatch_batches: bool | None = None,
    even_batches: bool = True,
    slice_fn_for_dispatch: Callable[..., Any] | None = None,
    use_seedable_sampler: bool = False,
    data_seed: int | None = None,
    non_blocking: bool = False,
    use_stateful_dataloader: bool = False,
    torch_device_mesh: Any = None,
) -> Loader:
    """The loader of one rank's share: of this rank, unless another is named.

    Raises:
        SpecError: batches are to be cut by a function of the script's own.
        DataError: the rules, the loader and the ranks contradict each other.
    """
    if slice_fn_for_dispatch is not None:
        raise SpecError.of("slice_fn_for_dispatch", slice_fn_for_dispatch, "no batch is made to be cut", "leave it out")
    here = PartialState().world
    world = attrs.evolve(
        here,
        rank=here.rank if process_index is None else process_index,
        size=here.size if num_processes is None else num_processes,
        device=here.device if device is None else torch.device(device),
    )
    kinds: Any = () if rng_types is None else tuple(str(kind) for kind in rng_types)
    dealing = Dealing(
        split_batches=split_batches,
        even_batches=even_batches,
        dispatch_batches=dispatch_batches,
        use_seedable_sampler=use_seedable_sampler,
        data_seed=data_seed,
        non_blocking=non_blocking or None,
        rng_types=kinds,
        device_placement=put_on_device,
    )
    return take_loader(dataloader, world=world, dealing=dealing)


def skip_first_batches(dataloader: Any, num_batches: int = 0) -> Any:
    """The loader without the first batches of the epoch that begins next; epochs after it are whole."""
    return skip(dataloader, num_batches, world=PartialState().world)
