"""Between a state dict of whole tensors, in rank 0's CPU memory, and the parts that the ranks of a model hold."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from restoke.distributed.groups import group_of
from restoke.distributed.messages import agreed_json, everyone, is_first
from restoke.distributed.pieces import assemble, spread, spread_flat
from restoke.distributed.shards import Shard
from restoke.errors import CheckpointError, nearest
from restoke.nn.registry import all_shards

WRAPPED = "module."  # what DistributedDataParallel puts before every name


def collect_state_dict(model: nn.Module, state_dict: Mapping[str, Any] | None = None, prefix: str = "") -> dict[str, Any]:
    """The model's state with every shard made whole, in rank 0's CPU memory; every rank calls it, the others get nothing.

    Args:
        state_dict: `model.state_dict(prefix=prefix)`, or a part of it, of this rank; None: that.
        prefix: what stands before the model's names, also in the result.

    Raises:
        CheckpointError: a name of `state_dict` is none of the model's, or a tensor is not the part that this rank holds.
    """
    state = model.state_dict(prefix=prefix) if state_dict is None else state_dict
    shards = _stripped(all_shards(model))
    names = _names_in(state, prefix)
    problems = _unknown(names, _stripped(model.state_dict(keep_vars=True)))
    for name, full in names.items():
        shard = shards.get(name)
        if shard is not None and state[full].shape[shard.dim] != shard.length:
            problems.append(f"{full} has the shape {tuple(state[full].shape)}, not that of this rank's part")
    _refuse_together(problems)
    whole: dict[str, Any] = OrderedDict()
    for name, full in names.items():
        value, shard = state[full], shards.get(name)
        value = value.detach() if isinstance(value, Tensor) else value
        whole[full] = value.to("cpu") if shard is None and isinstance(value, Tensor) else value
        if shard is not None:
            whole[full] = assemble(value, shard)
    return _like(state, whole) if is_first(group_of()) else OrderedDict()


def relocate_state_dict(model: nn.Module, state_dict: Mapping[str, Any] | None, prefix: str = "") -> dict[str, Any]:
    """This rank's part of a whole state, in CPU memory, under the model's own names; every rank calls it.

    Args:
        state_dict: whole tensors, under the model's names behind `prefix`; names with another beginning are left out. Given
            on every rank, it is cut there; given on rank 0 alone, None elsewhere (or the empty one that `collect_state_dict`
            gives there), its tensors are sent, a piece at a time.

    Raises:
        CheckpointError: on every rank: a name is none of the model's, a tensor has not the shape of the whole, or nobody has
            the state.
    """
    world = group_of()
    if not state_dict and not is_first(world):
        state_dict = None
    given = everyone(state_dict is not None, world)
    own = _stripped(model.state_dict(keep_vars=True))
    shards = _stripped(all_shards(model))
    names = {} if state_dict is None else _names_in(state_dict, prefix)
    problems: list[str] = []
    if state_dict is not None:
        problems = [*_unknown(names, own), *_misshapen(state_dict, names, own, shards, given)]
    elif is_first(world):
        problems = ["rank 0 has no state"]
    _refuse_together(problems)
    if given and state_dict is not None:
        parts = {name: _cut(state_dict[full], shards.get(name)) for name, full in names.items()}
    else:
        parts = _sent(state_dict, names, own, shards)
    real = dict(zip(own, model.state_dict(keep_vars=True), strict=True))
    return _like(model.state_dict(), OrderedDict((real[name], part) for name, part in parts.items()))


def _sent(
    state: Mapping[str, Any] | None, names: dict[str, str], own: dict[str, Tensor], shards: dict[str, Shard]
) -> dict[str, Tensor]:
    """What rank 0 has, one tensor after the other."""
    world = group_of()
    dtypes = {name: str(state[full].dtype).removeprefix("torch.") for name, full in names.items()} if state is not None else {}
    parts: dict[str, Tensor] = OrderedDict()
    for name, dtype in agreed_json(dtypes if is_first(world) else {}, world).items():
        whole = state[names[name]].detach() if is_first(world) and state is not None else None
        shard = shards.get(name)
        if shard is not None or whole is None:
            part = torch.empty(own[name].shape, dtype=getattr(torch, dtype), device="cpu")
        else:
            part = whole.to("cpu").contiguous()
        if shard is not None:
            spread(whole, part, shard)
        else:
            spread_flat(part, world)
        parts[name] = part
    return parts


def _cut(value: Any, shard: Shard | None) -> Any:
    if not isinstance(value, Tensor):
        return value
    value = value.detach()
    return value.to("cpu") if shard is None else shard.of(value).to("cpu", copy=True).contiguous()


def _stripped(named: Mapping[str, Any]) -> dict[str, Any]:
    """Without what wrappers put before every name."""
    while named and all(name.startswith(WRAPPED) for name in named):
        named = {name.removeprefix(WRAPPED): value for name, value in named.items()}
    return dict(named)


def _names_in(state: Mapping[str, Any], prefix: str) -> dict[str, str]:
    """The state's names by the model's, those with another beginning left out."""
    full = _stripped({name: name for name in state})
    return _stripped({name.removeprefix(prefix): value for name, value in full.items() if name.startswith(prefix)})


def _unknown(names: Iterable[str], own: Mapping[str, Any]) -> list[str]:
    odd = [f"{name} is no name of the model ({nearest(name, own)})" for name in names if name not in own]
    return odd if names or not own else ["no name has that prefix"]


def _misshapen(
    state: Mapping[str, Any], names: dict[str, str], own: dict[str, Any], shards: dict[str, Shard], given: bool
) -> list[str]:
    problems = []
    for name, full in names.items():
        if name not in own:
            continue
        value, mine = state[full], own[name]
        if not isinstance(value, Tensor) or not isinstance(mine, Tensor):
            if not given:
                problems.append(f"{full} is no tensor, and so each rank must be given it")
            continue
        shape = shards[name].whole_shape(mine) if name in shards else tuple(mine.shape)
        if tuple(value.shape) != shape:
            problems.append(f"{full} has the shape {tuple(value.shape)}, and the whole {shape}")
    return problems


def _refuse_together(problems: list[str]) -> None:
    world = group_of()
    if everyone(not problems, world):
        return
    first = agreed_json(problems, world)
    told = problems or first or ["another rank refuses it"]
    raise CheckpointError.of(
        "state_dict", "; ".join(told), "it does not fit the model", "the state of this model, all of it whole"
    )


def _like(state: Mapping[str, Any], values: Any) -> dict[str, Any]:
    """With the versions of its modules, which torch keeps on a state dict, and load_state_dict reads."""
    result: dict[str, Any] = OrderedDict(values)
    if (versions := vars(state).get("_metadata") if isinstance(state, OrderedDict) else None) is not None:
        vars(result)["_metadata"] = versions
    return result
