"""The layers that a plan of tensor parallelism names, and why some of them cannot be sharded."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import final

from attrs import frozen
from torch import nn
from torch.nn.modules.dropout import _DropoutNd

from restoke.blocks import find_blocks
from restoke.configs.tensor import TensorConfig
from restoke.errors import RestokeError, SpecError, nearest
from restoke.spec import Spec

AXIS = "TensorConfig.plan"
SHARES = ("sequence", "heads")  # styles of layers whose parameters stay whole, and see a share of what they work on
NORMS = (nn.LayerNorm, nn.RMSNorm)


@final
@frozen(eq=False)
class Layer:
    """A layer of the model and the style that the plan gives it."""

    name: str
    module: nn.Module
    style: str

    def refused(self, why: str, instead: str) -> RestokeError:
        return SpecError.of(f"{AXIS}.{self.name}", self.style, why, instead)


def find_layers(model: nn.Module, spec: Spec) -> list[Layer]:
    """The layers of the plan, in the model's order; none where layers are not sharded.

    Raises:
        SpecError: a pattern names none, two disagree, or a layer cannot be sharded as the plan says.
    """
    if spec.tensor == 1:
        return []
    layers = _named(model, spec.setting(TensorConfig).plan)
    for layer in layers:
        _check_class(layer)
        _check_parent(layer, model)
        _check_size(layer, spec.tensor)
    _check_ties(layers, model)
    _check_partners(layers, model, spec)
    _check_entrance(layers)
    return layers


def _named(model: nn.Module, plan: Mapping[str, str]) -> list[Layer]:
    leaves = {name: module for name, module in model.named_modules() if next(module.children(), None) is None}
    for pattern in plan:
        if not any(fnmatchcase(name, pattern) for name in leaves):
            why = "no layer has such a name (a layer has no modules inside it)"
            raise SpecError.of(AXIS, pattern, why, nearest(pattern, leaves))
    found = []
    for name, module in leaves.items():
        styles = {pattern: style for pattern, style in plan.items() if fnmatchcase(name, pattern)}
        if len(set(styles.values())) > 1:
            given = " and ".join(f"{pattern}: {style}" for pattern, style in styles.items())
            raise SpecError.of(f"{AXIS}.{name}", given, "a layer has one style", "patterns of which one names it")
        found += [Layer(name, module, style) for style in set(styles.values())]
    return found


def _check_class(layer: Layer) -> None:
    """Whether there is such a style for such a class."""
    kind = type(layer.module).__name__
    if layer.style in SHARES:
        fits = NORMS if layer.style == "heads" else (*NORMS, _DropoutNd, nn.Embedding, nn.Identity)
        if type(layer.module).__module__.startswith("torch.nn") and not isinstance(layer.module, fits):
            names = "LayerNorm, RMSNorm" if layer.style == "heads" else "LayerNorm, RMSNorm, Dropout, Embedding"
            raise layer.refused(f"a {kind} is not the same on a share", f"{names}, or a norm of your own")
        if isinstance(layer.module, nn.LayerNorm) and len(layer.module.normalized_shape) != 1:
            raise layer.refused("it normalises over more than the last dimension", "a norm over features")
        return
    if not isinstance(layer.module, nn.Linear | nn.Embedding):
        raise layer.refused(f"a {kind} cannot be sharded", "a Linear or an Embedding")
    own = layer.module._parameters
    if own.get("weight") is None or set(own) - {"weight", "bias"}:
        raise layer.refused(f"its parameters are {', '.join(own) or 'none'}, not those of torch's class", "leave it out")
    _check_embedding(layer)


def _check_embedding(layer: Layer) -> None:
    module = layer.module
    if not isinstance(module, nn.Embedding):
        return
    if module.max_norm is not None or module.sparse or module.scale_grad_by_freq:
        raise layer.refused("max_norm, sparse and scale_grad_by_freq need the whole of it", "leave it out")
    if module.padding_idx is not None and layer.style != "columns":
        raise layer.refused("torch does not find its padding_idx in a share of the entries", "columns, which keeps all")


def _check_parent(layer: Layer, model: nn.Module) -> None:
    """Modules that read the weights of the layers inside them, without calling those."""
    parent = model.get_submodule(layer.name.rpartition(".")[0])
    if isinstance(parent, nn.MultiheadAttention | nn.TransformerEncoderLayer) and parent is not layer.module:
        why = f"a {type(parent).__name__} uses the weights of its layers without calling them"
        raise layer.refused(why, "a module that calls Linear layers and scaled_dot_product_attention")


def _check_size(layer: Layer, ranks: int) -> None:
    module = layer.module
    if layer.style in SHARES:
        return
    if isinstance(module, nn.Linear):
        axis, size = ("in_features", module.in_features) if layer.style == "rows" else ("out_features", module.out_features)
    else:
        assert isinstance(module, nn.Embedding)
        columns = layer.style == "columns"
        axis, size = ("embedding_dim", module.embedding_dim) if columns else ("num_embeddings", module.num_embeddings)
    if size % ranks:
        why = f"{axis}={size} cannot be divided by {ranks}"
        raise layer.refused(why, f"{axis}={size + ranks - size % ranks}, or leave it out")


def _check_ties(layers: list[Layer], model: nn.Module) -> None:
    """Tied weights are cut alike, or not at all."""
    cuts: dict[int, tuple[str, int | None]] = {}
    planned = {id(layer.module): layer for layer in layers}
    for name, module in model.named_modules():
        layer = planned.get(id(module))
        for own, p in module._parameters.items():
            if p is None:
                continue
            cut = cut_of(layer, own) if layer is not None else None
            other, before = cuts.setdefault(id(p), (name, cut))
            if before != cut:
                why = f"it is tied to {other}, whose weight is {_said(before)}; here it would be {_said(cut)}"
                instead = "vocabulary for both of an embedding and its head, or neither"
                raise SpecError.of(f"{AXIS}.{name}", layer.style if layer else "not in the plan", why, instead)


def _said(cut: int | None) -> str:
    return "whole" if cut is None else f"cut along dimension {cut}"


def cut_of(layer: Layer, parameter: str) -> int | None:
    """The dimension along which a layer's parameter is cut; None where each rank has the whole."""
    if layer.style in SHARES or (parameter == "bias" and layer.style == "rows"):
        return None
    columns = layer.style == "columns"
    return int(columns if isinstance(layer.module, nn.Embedding) else layer.style == "rows")


def _check_partners(layers: list[Layer], model: nn.Module, spec: Spec) -> None:
    """What a columns layer hands on are shares, which a rows layer alone can take."""
    blocks = {f"{name}." for name, _ in find_blocks(model, spec.blocks)}

    def block(layer: Layer) -> str:
        return next((name for name in blocks if layer.name.startswith(name)), "")

    linear = [(layer, layer.module) for layer in layers if isinstance(layer.module, nn.Linear)]
    rows = [(layer, module) for layer, module in linear if layer.style == "rows"]
    for layer, module in [(layer, module) for layer, module in linear if layer.style == "columns"]:
        near = _nearest(layer, [other for other, _ in rows if block(other) == block(layer)])
        if not near:
            why = "its outputs stay in shares, and no rows layer near it takes them"
            raise layer.refused(why, "vocabulary, which gives whole outputs, or rows for the layer that follows")
        widest, most = max(((other, taken.in_features) for other, taken in rows if other in near), key=lambda pair: pair[1])
        if module.out_features > most:
            why = (
                f"its {module.out_features} outputs are more than the {most} inputs of {widest.name}: "
                "of several projections in one, each rank would get another part"
            )
            raise layer.refused(why, "a Linear for each projection, or vocabulary for a head")


def _nearest(layer: Layer, others: list[Layer]) -> list[Layer]:
    """Those that share the longest path with it."""
    path = layer.name.split(".")[:-1]
    for length in range(len(path), -1, -1):
        near = [other for other in others if other.name.split(".")[:length] == path[:length]]
        if near:
            return near
    return []


def shares_sequence(layers: list[Layer]) -> bool:
    """Whether the sequence is shared out between rows and columns layers."""
    return any(layer.style == "sequence" for layer in layers)


def _check_entrance(layers: list[Layer]) -> None:
    if shares_sequence(layers) and not any(isinstance(layer.module, nn.Embedding) for layer in layers):
        first = next(layer for layer in layers if layer.style == "sequence")
        raise first.refused("no Embedding of the plan shares the sequence out before it", "vocabulary for the embedding")
