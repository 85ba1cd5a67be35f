"""The first forward of a model in tensor parallelism is watched: the shares that layers hand on must be taken up again."""

from __future__ import annotations

from typing import Any

from torch import nn

from restoke.passes.tensor_plan import Layer, shares_sequence


def watch_order(model: nn.Module, layers: list[Layer]) -> None:
    """Raises SpecError at the end of the first forward where its output, or a layer's input, is not what the plan says."""
    called: list[Layer] = []
    hooks = [layer.module.register_forward_hook(lambda *_, layer=layer: called.append(layer)) for layer in layers]

    def ended(*_: Any) -> None:
        for hook in hooks:
            hook.remove()
        _check_columns(called)
        if shares_sequence(layers):
            _check_sequence(called)

    hooks.append(model.register_forward_hook(ended))


def _linear(layer: Layer, style: str) -> bool:
    return layer.style == style and isinstance(layer.module, nn.Linear)


def _check_columns(called: list[Layer]) -> None:
    open_ = None
    for layer in called:
        open_ = layer if _linear(layer, "columns") else None if layer.style == "rows" else open_
    if open_ is not None:
        raise open_.refused(
            "no rows layer was called after it: its outputs stay in shares", "vocabulary, which gives whole ones"
        )


def _check_sequence(called: list[Layer]) -> None:
    if not called:
        return
    if not isinstance(called[0].module, nn.Embedding):
        why = "it is called before any Embedding of the plan has shared the sequence out"
        raise called[0].refused(why, "vocabulary or sequence for the embedding before it")
    if not _linear(called[-1], "vocabulary"):
        why = "the sequence is still shared out behind it, where the model ends"
        raise called[-1].refused(why, "vocabulary for the head after it, or no sequence style")
