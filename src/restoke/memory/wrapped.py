"""What torch's wrappers hold beside the model's own tensors: DDP's buckets, and what FSDP2 keeps whole for a while."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any, final

from torch import Tensor, UntypedStorage, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode

Operands = Callable[[Any, Any, Any], tuple[tuple[str, Any], ...]]
# operators by which FSDP2 packs whole gradients, to reduce them, and shards of parameters, to gather them: what they work on
CLASSES_OF: dict[str, Operands] = {
    "fsdp::chunk_cat": lambda args, kwargs, result: (("gradients", args), ("buckets", kwargs.values())),
    "fsdp::all_gather_copy_in": lambda args, kwargs, result: (("gathered", (result,)),),
}


@final
class _Inputs(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Runs no operator, and keeps what each was given first."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: list[Tensor] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        self.seen.append(args[0])
        return args[0]


def buckets(model: nn.Module) -> list[Tensor]:
    """The flat tensors that DDP reduces. Its only way to them makes zeros like each, which is not let happen here."""
    inputs = _Inputs()
    with inputs:
        for module in model.modules():
            if isinstance(module, DistributedDataParallel):
                module.reducer._get_zeros_like_grad_buckets()
    return inputs.seen


def gathered(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """FSDP2's whole parameters, as far as they are gathered now, and gradients that it has not yet reduced."""
    for state in _fsdp_states(model):
        for group in state._fsdp_param_groups:
            yield from _of_group(group)


def _fsdp_states(model: nn.Module) -> Iterator[Any]:
    fsdp = sys.modules.get("torch.distributed.fsdp")  # which takes a second to import: without it there is none in the model
    if fsdp is not None:
        kind = fsdp.FSDPModule
        yield from (module._get_fsdp_state() for module in model.modules() if isinstance(module, kind))


def _of_group(group: Any) -> Iterator[tuple[str, Tensor]]:
    for held in group.fsdp_params:
        whole = vars(held).get("_unsharded_param")  # made at the first gathering
        yield from (("gathered", output) for output in (*held.all_gather_outputs, *held._unsharded_inner_tensors))
        local = (None if whole is None else whole.grad, held.unsharded_accumulated_grad)
        yield from (("gradients", grad) for grad in local if grad is not None)


def resized(found: Callable[[Any], None]) -> Callable[[], None]:
    """Calls `found` with each storage after it was resized, which is how FSDP2 frees. Returns what takes it back."""
    original = UntypedStorage.resize_

    def resize_(storage: Any, size: int) -> Any:
        result = original(storage, size)
        found(storage)
        return result

    own = "resize_" in vars(UntypedStorage)
    UntypedStorage.resize_ = resize_  # type: ignore[method-assign,assignment]

    def restore() -> None:
        if own:
            UntypedStorage.resize_ = original  # type: ignore[method-assign]
        else:
            del UntypedStorage.resize_

    return restore
