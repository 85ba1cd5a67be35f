"""A model with layers that ranks share, while it is trained: which of its tensors are shards, and what a step does for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import final

import torch
import torch.distributed as dist
from attrs import evolve
from torch import Tensor, nn

from restoke.averaging import average
from restoke.clipping import clip_parts
from restoke.configs import TensorConfig
from restoke.errors import SpecError
from restoke.nn.registry import shards_of
from restoke.parts import WHOLE, Layout, Place, Stepper
from restoke.precision import spread_overflow
from restoke.rows import Row
from restoke.spec import Clip, Spec


def refuse_shared(model: nn.Module, spec: Spec, row: Row) -> None:
    """Raises SpecError where the model has layers that ranks share, and the strategy or an axis cannot take them."""
    shards = shards_of(model)
    planned = bool(spec.setting(TensorConfig).plan)
    if not shards:
        _refuse_none(spec, planned)
        return
    name, shard = next(iter(shards.items()))
    got = f"{name}, a shard over {shard.group.size} ranks"
    if not row.shared:
        raise SpecError.of("model", got, f"{row.name} would take it for a copy that all ranks hold", "strategy=ddp or zero1")
    if spec.tensor > 1 and planned:
        raise SpecError.of("model", got, "a plan shards layers too", "one of the two ways: a plan, or layers that ranks share")
    odd = next((name for name, shard in shards.items() if spec.tensor not in (1, shard.group.size)), None)
    if odd is not None:
        why = f"{odd} is shared by {shards[odd].group.size} ranks, and each group of {spec.tensor} has a batch of its own"
        raise SpecError.of("tensor", spec.tensor, why, f"tensor={shards[odd].group.size}, or group_of({spec.tensor}) for it")


def _refuse_none(spec: Spec, planned: bool) -> None:
    if spec.tensor > 1 and not planned:
        why = "no plan says which layers are sharded, and no layer of the model is one that ranks share"
        instead = 'TensorConfig(plan={"*.up": "columns", "*.down": "rows"}), or a layer of restoke.nn'
        raise SpecError.of("tensor", spec.tensor, why, instead)


@final
class Shared:
    """The shards among a model's tensors, once these are where they stay; falsy where there are none.

    What data parallelism does to copies it must not do to shards. Ranks of other groups that hold the same shards, the
    peers, are copies of each other: theirs start alike, and their gradients are averaged.
    """

    def __init__(
        self, model: nn.Module, base: Layout = WHOLE, counts: Callable[[nn.Parameter], bool] = lambda _: dist.get_rank() == 0
    ) -> None:
        self._base, self._others_count = base, counts
        shards = shards_of(model)
        named: dict[str, Tensor] = dict(model.named_parameters(remove_duplicate=False))
        named |= dict(model.named_buffers(remove_duplicate=False))
        self._shard = {id(named[name]): shard for name, shard in shards.items()}
        self.names = sorted(name for name, tensor in named.items() if id(tensor) in self._shard)
        self.tensors = list({id(named[name]): named[name] for name in self.names}.values())
        self.parameters = [tensor for tensor in self.tensors if isinstance(tensor, nn.Parameter)]
        self.layout = evolve(base, place=self._place) if shards else base

    def __bool__(self) -> bool:
        return bool(self._shard)

    def __contains__(self, tensor: Tensor) -> bool:
        return id(tensor) in self._shard

    def copies(self, parameters: list[nn.Parameter]) -> list[nn.Parameter]:
        """Those that are no shards."""
        return [p for p in parameters if p not in self]

    def _place(self, tensor: Tensor) -> Place:
        shard = self._shard.get(id(tensor))
        if shard is None:
            return self._base.place(tensor)
        return Place(shard.whole_shape(tensor), shard.offsets(tensor) if tensor.numel() else (0,) * tensor.ndim)

    def start_alike(self) -> None:
        """Peers begin with the first one's values."""
        for tensor in self.tensors:
            peers = self._shard[id(tensor)].group.peers
            if peers is not None:
                dist.broadcast(tensor.data, src=peers.ranks[0], group=peers.handle)

    def average(self) -> None:
        """Peers' gradients, in one collective for each dtype and group. (An average of averages is itself.)"""
        groups = {id(peers): peers for shard in self._shard.values() if (peers := shard.group.peers) is not None}
        for key, peers in groups.items():
            own = [p for p in self.parameters if id(self._shard[id(p)].group.peers) == key]
            average(own, peers.size, peers.handle)

    def clip(self, parameters: list[nn.Parameter], how: Clip) -> Tensor | None:
        """Clips by the norm of all: of copies, one is counted; of shards each, once."""
        return clip_parts(parameters, how, self._base.local, self._counts)

    def _counts(self, p: nn.Parameter) -> bool:
        shard = self._shard.get(id(p))
        if shard is None:
            return self._others_count(p)
        return shard.group.peers is None or shard.group.peers.rank == 0

    def settled(self, stepper: Stepper, parameters: list[nn.Parameter]) -> Stepper:
        """The same steps; before the first of a window's end peers are averaged, and an overflow of one rank is all ranks'."""
        if not self:
            return stepper
        done = [False]

        def settle() -> None:
            if done[0]:
                return
            done[0] = True
            self.average()
            if stepper.scaler is not None:
                _agree_on_overflow(self.parameters, parameters, self._base.local)

        def clip(how: Clip) -> Tensor | None:
            settle()
            return stepper.clip(how)

        def step() -> bool:
            settle()
            done[0] = False
            return stepper.step()

        return evolve(stepper, clip=clip, step=step)


def _agree_on_overflow(shards: list[nn.Parameter], all_: list[nn.Parameter], local: Callable[[Tensor], Tensor]) -> None:
    seen = [p.grad for p in shards if p.grad is not None and p.grad.numel()]
    marked = [part for p in all_ if p.grad is not None and (part := local(p.grad)).numel()]
    spread_overflow(seen, marked, torch.device("cpu") if not all_ else local(all_[0].detach()).device)
