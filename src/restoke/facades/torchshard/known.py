"""Which parameters of this process are shards: layers are noted as they are built, others as a script tells of them.

Some of TorchShard's names get a tensor, and torch's own get gradients or optimizers, and none of them the model.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple
from weakref import WeakSet

from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.utils.weak import WeakIdKeyDictionary

from restoke.distributed.shards import Shard
from restoke.nn.registry import KEY, MARK

_MODULES: WeakSet[nn.Module] = WeakSet()
_TOLD = WeakIdKeyDictionary()
_HANDLES: list[Any] = []


class Known(NamedTuple):
    """A parameter, and which part of a whole it is."""

    tensor: Tensor
    shard: Shard


def follow() -> None:
    """Note every module that gets a parameter from now on."""
    if not _HANDLES:
        _HANDLES.append(register_module_parameter_registration_hook(_note))


def unfollow() -> None:
    """Note no more; what was noted stays."""
    while _HANDLES:
        _HANDLES.pop().remove()


def _note(module: nn.Module, name: str, param: Any) -> None:
    _MODULES.add(module)


def tell(param: Tensor) -> None:
    """The script said of which whole this parameter is a part."""
    _TOLD[param] = True


def note_model(model: nn.Module) -> None:
    """A model that may have been built before, or copied."""
    for module in model.modules():
        _MODULES.add(module)


def all_known() -> Iterator[Known]:
    """Every shard, also of groups of one rank."""
    for module in tuple(_MODULES):
        for name, shard in vars(module).get(KEY, {}).items():
            tensor = {**module._parameters, **module._buffers}.get(name)
            if tensor is not None and shard is not None:
                yield Known(tensor, shard)
    for param in tuple(_TOLD.keys()):  # type: ignore[no-untyped-call]
        shard = vars(param).get(MARK)
        if shard is not None:
            yield Known(param, shard)


def by_identity() -> dict[int, Shard]:
    """Shards by the identity of the parameter, those left out that are the whole."""
    return {id(known.tensor): known.shard for known in all_known() if known.shard.group.size > 1}


def by_gradient() -> dict[int, Shard]:
    """The same by the identity of the gradient."""
    shards = {id(known.tensor.grad): known.shard for known in all_known() if known.shard.group.size > 1}
    shards.pop(id(None), None)
    return shards


def shard_of_memory(tensor: Tensor) -> Shard | None:
    """Of the parameter whose memory this tensor is: `layer.weight.data` is a new tensor at each call."""
    for known in all_known():
        same = known.tensor.untyped_storage()._cdata == tensor.untyped_storage()._cdata
        if same and known.tensor.shape == tensor.shape:
            return known.shard
    return None
