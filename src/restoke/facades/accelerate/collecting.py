"""The Accelerator's collectives: gathering, reducing, padding, a trigger that any rank may pull, and uneven inputs."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch.distributed.algorithms.join import Join, Joinable

from restoke import comm
from restoke.errors import SpecError
from restoke.facades.accelerate import collectives
from restoke.facades.accelerate.metrics import gather_for_metrics
from restoke.facades.accelerate.state import GradientState
from restoke.facades.accelerate.training import Training


class Collecting(Training):
    """All but the properties are collective: every rank calls them."""

    gradient_state: GradientState
    HABITS: ClassVar[bool]
    _pulled: bool = False

    def gather(self, tensor: Any) -> Any:
        """The tensors of all ranks, joined along the first dimension: see `collectives.gather`."""
        return collectives.gather(tensor, self.world)

    def gather_for_metrics(self, input_data: Any, use_gather_object: bool = False) -> Any:
        """What all ranks computed of this batch, without what even batches repeat.

        Tensors have one row per sample; objects are a list with one per sample.

        Raises:
            DataError: it is a mean, or something else that is not by sample.
        """
        return gather_for_metrics(input_data, self.gradient_state.active_dataloader, use_gather_object, self.world)

    def reduce(self, tensor: Any, reduction: str = "sum", scale: float = 1.0) -> Any:
        """The "sum", "mean", "max" or "min" over all ranks; "none" returns the tensor."""
        return collectives.reduce(tensor, reduction, scale, self.world)

    def pad_across_processes(self, tensor: Any, dim: int = 0, pad_index: int = 0, pad_first: bool = False) -> Any:
        """Tensors as long in `dim` as the longest of all ranks."""
        return collectives.pad(tensor, dim, pad_index, pad_first, self.world)

    def broadcast(self, tensor: Any, from_process: int = 0) -> Any:
        """The tensors as that rank has them."""
        return collectives.broadcast(tensor, from_process, self.world)

    def set_trigger(self) -> None:
        """Let `check_trigger` be true on every rank. Not collective."""
        self._pulled = True

    def check_trigger(self) -> bool:
        """Whether any rank has set the trigger since the last time that it was."""
        pulled = torch.tensor([int(self._pulled)], device=comm.device_of(self.world) if self.world.size > 1 else None)
        if self.world.size > 1:
            dist.all_reduce(pulled, dist.ReduceOp.MAX)
        found = bool(pulled.item())
        self._pulled = self._pulled and not found
        return found

    @contextmanager
    def join_uneven_inputs(self, joinables: Sequence[Any], even_batches: bool | None = None) -> Iterator[None]:
        """Ranks may have different numbers of batches: those that have none left answer for the gradients of the others.

        `even_batches` overrides that of the prepared loaders within the block.

        Raises:
            SpecError: a model is not replicated by DDP, which alone can do this.
        """
        if self.world.size == 1:
            yield
            return
        foreign = next((item for item in joinables if not isinstance(item, Joinable)), None)
        if foreign is not None:
            if self.HABITS:
                said = f"joining uneven inputs is only supported for multi-GPU (DDP) models, not for {type(foreign).__name__}"
                warnings.warn(said, UserWarning, stacklevel=3)
                yield
                return
            why = f"{self.session.spec.strategy} needs every rank in every step"
            raise SpecError.of("joinables", type(foreign).__name__, why, "even_batches=True, or strategy=ddp")
        with ExitStack() as stack:
            if even_batches is not None:
                stack.enter_context(self._loaders.overriding(even_batches))
            stack.enter_context(Join(list(joinables), enable=not even_batches, throw_on_early_termination=False))
            yield
