"""Every process holds the whole model, and the optimizer state of its own share alone (ZeRO stage 1). Steps equal ddp's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, final

import torch
import torch.distributed as dist
from attrs import evolve
from torch import Tensor, nn
from torch.optim import Optimizer

from restoke.configs import DDPConfig
from restoke.mixing import refuse_mixing
from restoke.nn.trained import Shared
from restoke.parts import WHOLE, Parts, Place, Request
from restoke.replicas import replicate
from restoke.sparse import refuse_sparse
from restoke.state import TorchState
from restoke.world import World

# torch 2.13 renamed it
_all_gather: Callable[[Tensor, Tensor], Any] = vars(dist).get("all_gather_single", dist.all_gather_into_tensor)


def prepare(request: Request) -> Parts:
    """torch's DistributedDataParallel with the settings of DDPConfig, around an optimizer that steps a shard of each parameter.

    Raises:
        SpecError: the optimizer does not work element by element: what it does to a shard is not what it does to the whole;
            or a layer's gradients are sparse.
    """
    refuse_sparse(request.model, "zero1")
    refuse_mixing(request, "zero1 steps a shard of each parameter", "strategy=ddp")
    return replicate(
        request,
        lambda model: request.optimizer.build(model.named_parameters()),
        lambda model, optimizer, shared: _state(model, optimizer, request, shared),
    )


def _state(model: nn.Module, optimizer: Optimizer, request: Request, shared: Shared) -> TorchState:
    bucket = request.spec.setting(DDPConfig).bucket_cap_mb << 20
    shards = Shards(model, optimizer, request.world, bucket, shared)
    layout = evolve(WHOLE, place=shards.place)
    rank = request.world.rank
    return TorchState(model, optimizer, rank, shared.layout, held=shards.names, shards=layout, opened=shards.opened)


@final
class Shards:
    """This rank's rows of each parameter, views of it, that the optimizer is shown while it steps.

    At all other times it has the whole parameters, so that schedulers, scalers and clipping see what they know. What is a
    shard already, of a layer that ranks share, is stepped as it is.
    """

    def __init__(self, model: nn.Module, optimizer: Optimizer, world: World, bucket: int, shared: Shared) -> None:
        self._shared = shared
        self._model, self._optimizer, self._world, self._bucket = model, optimizer, world, bucket
        self._shard: dict[nn.Parameter, nn.Parameter] = {}
        self._whole: dict[int, nn.Parameter] = {}
        self._depth = 0
        for group in optimizer.param_groups:
            for p in group["params"]:
                self._shard_of(p)
        optimizer.register_step_pre_hook(lambda *_: self._before_step())
        optimizer.register_step_post_hook(lambda *_: self._after_step())
        optimizer.register_state_dict_pre_hook(lambda _: self._show())
        optimizer.register_state_dict_post_hook(lambda *_: self._hide())
        optimizer.register_load_state_dict_pre_hook(lambda *_: self._show())
        optimizer.register_load_state_dict_post_hook(lambda _: self._hide())

    def place(self, shard: Tensor) -> Place:
        """The shape of a shard's parameter, and its first row in it."""
        whole = self._whole[id(shard)]
        if whole in self._shared:
            return self._shared.layout.place(whole)
        return Place(tuple(whole.shape), (self._rows(whole)[0], *(0 for _ in whole.shape[1:])) if whole.ndim else ())

    def names(self) -> dict[int, str]:
        """The parameters' names, by the identity of their shards."""
        names = {p: name for name, p in self._model.named_parameters()}
        return {id(shard): names[p] for p, shard in self._shard.items() if p in names}

    @contextmanager
    def opened(self) -> Iterator[None]:
        """The optimizer has the shards."""
        self._show()
        try:
            yield
        finally:
            self._hide()

    def _rows(self, p: Tensor) -> tuple[int, int]:
        """As torch.chunk cuts: the last ranks may have fewer rows, or none."""
        each = -(-p.shape[0] // self._world.size)
        return min(self._world.rank * each, p.shape[0]), min((self._world.rank + 1) * each, p.shape[0])

    def _cut(self, whole: Tensor, like: Tensor) -> Tensor:
        if not like.ndim:
            return whole
        first, end = self._rows(like)
        return whole[first:end]

    def _shard_of(self, p: nn.Parameter) -> nn.Parameter:
        if p not in self._shard:
            own = p in self._shared
            shard = p if own else nn.Parameter(self._cut(p.detach(), p), requires_grad=p.requires_grad)
            self._shard[p], self._whole[id(shard)] = shard, p
            if not own and p in self._optimizer.state:  # some begin with one, for the parameters that they were built on
                begun = self._optimizer.state.pop(p)
                self._optimizer.state[shard] = {key: self._state_of(value, p) for key, value in begun.items()}
        return self._shard[p]

    def _state_of(self, value: Any, p: nn.Parameter) -> Any:
        return self._cut(value, p).clone() if isinstance(value, Tensor) and value.shape == p.shape else value

    def _rows_of(self) -> list[tuple[nn.Parameter, nn.Parameter]]:
        """Each parameter that is cut here, and its rows."""
        return [(p, shard) for p, shard in self._shard.items() if shard is not p]

    def _show(self) -> None:
        self._depth += 1
        if self._depth == 1:
            for group in self._optimizer.param_groups:
                group["params"] = [self._shard_of(p) for p in group["params"]]

    def _hide(self) -> None:
        self._depth -= 1
        if self._depth == 0:
            for group in self._optimizer.param_groups:
                group["params"] = [self._whole[id(shard)] for shard in group["params"]]

    def _before_step(self) -> None:
        self._show()  # makes the shards of parameters that a script has added to the optimizer
        for p, shard in self._rows_of():
            shard.grad = None if p.grad is None else self._cut(p.grad, p)

    @torch.no_grad()
    def _after_step(self) -> None:
        self._hide()
        stepped = []
        for p, shard in self._rows_of():
            if shard.grad is not None and p.ndim:
                stepped.append(p)
            shard.grad = None
        for bucket in self._buckets(stepped):
            self._gather(bucket)

    def _buckets(self, parameters: list[nn.Parameter]) -> Iterator[list[nn.Parameter]]:
        """By dtype, of about the size of DDP's buckets."""
        for dtype in dict.fromkeys(p.dtype for p in parameters):
            bucket: list[nn.Parameter] = []
            size = 0
            for p in parameters:
                if p.dtype != dtype:
                    continue
                bucket.append(p)
                size += p.numel() * p.element_size()
                if size >= self._bucket:
                    yield bucket
                    bucket, size = [], 0
            if bucket:
                yield bucket

    def _gather(self, bucket: list[nn.Parameter]) -> None:
        """Every rank's rows to all, in one collective; the last ranks' are padded to the length of the first's."""
        size = self._world.size
        lengths = [-(-p.shape[0] // size) * (p.numel() // max(p.shape[0], 1)) for p in bucket]
        mine = torch.zeros(sum(lengths), dtype=bucket[0].dtype, device=bucket[0].device)
        for p, piece in zip(bucket, torch.split(mine, lengths), strict=True):
            shard = self._shard[p].detach()
            piece[: shard.numel()] = shard.reshape(-1)
        whole = mine.new_empty(size * mine.numel())
        _all_gather(whole, mine)
        for p, pieces in zip(bucket, torch.split(whole.view(size, -1), lengths, dim=1), strict=True):
            p.copy_(pieces.reshape(-1)[: p.numel()].view_as(p))
