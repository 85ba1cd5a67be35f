"""Activations that are computed again in the backward instead of kept: of whole blocks, or all in them but products."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial, update_wrapper
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts, noop_context_fn

from restoke.blocks import find_blocks
from restoke.errors import SpecError
from restoke.spec import Spec

Contexts = tuple[AbstractContextManager[Any], AbstractContextManager[Any]]
KEPT = {  # operations of aten whose results `selective` keeps, in any overload
    *("mm", "addmm", "bmm", "baddbmm", "_scaled_mm", "_grouped_mm", "_scaled_grouped_mm", "convolution", "_convolution"),
    *("_flash_attention_forward", "_efficient_attention_forward", "_scaled_dot_product_attention_math_for_mps"),
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_cudnn_attention",
    "_scaled_dot_product_fused_attention_overrideable",
}


def remat(model: nn.Module, spec: Spec) -> None:
    """Each block's forward is replaced by one that recomputes: hooks, such as a strategy's, stay outside of it.

    Raises:
        SpecError: the model has no blocks, or a pattern names none.
    """
    if spec.remat == "none":
        return
    blocks = find_blocks(model, spec.blocks)
    if not blocks:
        why = "no kind of layer repeats in the model, so there are no blocks to recompute one by one"
        raise SpecError.of("remat", spec.remat, why, "blocks= with patterns of module names, or remat=none")
    for name, block in blocks:
        block.forward = Recomputed(block, block.forward, name, spec.remat)


@final
class Recomputed:
    """A block's forward under torch.utils.checkpoint, with random numbers and autocast as they were the first time.

    What a batch norm counts is counted once: it counts into copies when it runs again. A block that changes other buffers,
    and so might read others than before, is refused when it does. An object, not a function: a deep copy of the model then
    runs the copy's blocks.
    """

    def __init__(self, block: nn.Module, forward: Callable[..., Any], name: str, how: str) -> None:
        self._block, self._forward, self._name, self._how = block, forward, name, how
        self._options = _OPTIONS[how]
        self._found: _Found | None = None
        update_wrapper(self, forward)  # its signature stays

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return self._forward(*args, **kwargs)
        if torch.compiler.is_compiling():  # what is compiled counts once by itself
            return checkpoint(self._forward, *args, use_reentrant=False, **self._options, **kwargs)
        found = self._found = self._found or _Found(self._block)
        versions = found.versions()
        output = self._checkpointed(found, args, kwargs)
        if found.versions() != versions:
            self._refuse(found, versions)
        return output

    def _checkpointed(self, found: _Found, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """All that is passed is passed by position: torch saves and watches such tensors, and sees which device they are on."""
        names, count = tuple(kwargs), len(args)

        def run(_: Tensor, *given: Any) -> Any:
            return self._forward(*given[:count], **dict(zip(names, given[count:], strict=True)))

        # the empty tensor says whose generator to keep, where a block's inputs lie within other objects
        given = (found.anchor(), *args, *kwargs.values())
        return checkpoint(run, *given, use_reentrant=False, context_fn=partial(_counting_once, self._options, found))

    def _refuse(self, found: _Found, versions: list[int]) -> None:
        changed = [name for (name, buffer), was in zip(found.others, versions, strict=True) if buffer()._version != was]
        why = f"{self._name} changes its buffer {changed[0]} in its forward, and would read it changed when it runs again"
        raise SpecError.of("remat", self._how, why, "blocks= with patterns of modules without it, or remat=none")


@final
class _Found:
    """The buffers of a block, once the model is where it trains."""

    def __init__(self, block: nn.Module) -> None:
        self.norms = [module for module in block.modules() if isinstance(module, _NormBase) and module.track_running_stats]
        own = {id(buffer) for norm in self.norms for buffer in norm.buffers(recurse=False)}
        self.others = [
            (f"{prefix}.{name}".lstrip("."), partial(module.get_buffer, name))
            for prefix, module in block.named_modules()
            for name, buffer in module.named_buffers(recurse=False)
            if id(buffer) not in own
        ]
        first = next(block.parameters(), None)
        self._device = first.device if first is not None else torch.device("cpu")

    def versions(self) -> list[int]:
        return [buffer()._version for _, buffer in self.others]

    def anchor(self) -> Tensor:
        return torch.empty(0, device=self._device)


def _counting_once(options: dict[str, Any], found: _Found) -> Contexts:
    first, again = options.get("context_fn", noop_context_fn)()
    return first, _both(_set_aside(found.norms), again) if found.norms else again


@contextmanager
def _both(one: AbstractContextManager[Any], two: AbstractContextManager[Any]) -> Iterator[None]:
    with one, two:
        yield


@contextmanager
def _set_aside(norms: list[_NormBase]) -> Iterator[None]:
    """Copies stand in for the statistics. (Without any, or with a momentum of 0, the norm would run other operations.)"""
    kept = [(norm._buffers, dict(norm._buffers)) for norm in norms]
    try:
        for norm in norms:
            for name, buffer in norm._buffers.items():
                norm._buffers[name] = None if buffer is None else buffer.clone()
        yield
    finally:
        for buffers, own in kept:
            buffers.update(own)


def _keep_products(context: Any, operation: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    name = operation.__name__.partition(".")[0] if operation.namespace == "aten" else ""
    return CheckpointPolicy.MUST_SAVE if name in KEPT else CheckpointPolicy.PREFER_RECOMPUTE


_OPTIONS: dict[str, dict[str, Any]] = {
    "blocks": {},
    "selective": {"context_fn": partial(create_selective_checkpoint_contexts, _keep_products)},
}
