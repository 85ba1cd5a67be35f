"""Initialisation of sharded tensors whose result depends on the seed and the whole shape, never on how many ranks share it.

The whole is thought of as blocks of rows, each with a generator of its own: a rank makes the blocks that its part touches, one
at a time. What a method would do to the whole is recorded without doing it, so the fans that it reads are those of the whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from hashlib import blake2b
from typing import Any, final

import torch
from attrs import frozen
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from restoke.distributed.groups import Group
from restoke.distributed.messages import agreed_number
from restoke.distributed.pieces import spread
from restoke.distributed.shards import Shard

BLOCK = 1 << 18  # elements: a block is whole rows of about so many
RANDOM = frozenset("uniform_ normal_ log_normal_ exponential_ cauchy_ geometric_ bernoulli_ random_".split())
FIXED = frozenset("fill_ zero_ mul_ add_ sub_ div_ clamp_ clamp_min_ clamp_max_ abs_ neg_ exp_ tanh_ erfinv_ sqrt_".split())
Init = Callable[..., Any]
Call = Callable[[Tensor, torch.Generator], Any]


def sharded_(init_fn: Init, tensor: Tensor, shard: Shard, *args: Any, **kwargs: Any) -> Tensor:
    """Fill this rank's part with what `init_fn(whole, *args, **kwargs)` would make; every rank of the group calls it.

    The seed is the one that rank 0 draws, from `generator=` if that is given; so ranks need not have equal seeds. A method
    that is not elementwise (`orthogonal_`, say) makes the whole once, in the CPU memory of each group's first rank, which
    sends the parts. On the meta device nothing happens.

    Args:
        init_fn: one of `torch.nn.init`, or any function that fills a tensor in place from torch's generator.
        tensor: this rank's part, filled in place and returned.
    """
    return _fill(init_fn, tensor, shard, shard.group, args, kwargs)


def alike_(init_fn: Init, tensor: Tensor, group: Group, *args: Any, **kwargs: Any) -> Tensor:
    """The same for a tensor that every rank holds whole: filled alike on each, whatever their seeds."""
    return _fill(init_fn, tensor, None, group, args, kwargs)


@torch.no_grad()
def _fill(init_fn: Init, tensor: Tensor, shard: Shard | None, group: Group, args: Any, kwargs: dict[str, Any]) -> Tensor:
    if tensor.is_meta or torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE) is not None:
        return tensor
    method = _Method.of(init_fn, args, kwargs)
    drawn = torch.randint(1 << 62, (), generator=method.named.pop("generator", None), device="cpu")
    seed = agreed_number(int(drawn), group)
    shape = tuple(tensor.shape) if shard is None else shard.whole_shape(tensor)
    calls = _calls(method, shape, tensor.dtype)
    if calls is None:
        _from_whole(method, tensor, shape, shard, seed)
    else:
        _by_blocks(calls, tensor, shape, shard, seed)
    return tensor


@final
@frozen
class _Method:
    """An init function with all of its arguments but the tensor."""

    func: Init
    given: tuple[Any, ...]
    named: dict[str, Any]

    @classmethod
    def of(cls, func: Init, given: tuple[Any, ...], named: dict[str, Any]) -> _Method:
        inner: Any = func
        while isinstance(inner, partial) and not inner.args:
            inner, named = inner.func, inner.keywords | named
        return cls(inner, given, dict(named))

    def __call__(self, tensor: Tensor, **more: Any) -> None:
        self.func(tensor, *self.given, **self.named, **more)


def _calls(method: _Method, shape: tuple[int, ...], dtype: torch.dtype) -> list[Call] | None:
    """What the method does to each element of the whole; None where it does anything else."""
    if method.func is nn.init.trunc_normal_:  # draws again what it rejects, each element by itself
        return [lambda block, generator: method(block, generator=generator)]
    root = torch.empty((), dtype=dtype, device="cpu").expand(shape)  # of the whole's shape, in one element's memory
    recorder = _Recorder(root)
    try:
        with recorder:
            method(root)
    except _NotByElement:
        return None
    return recorder.calls


class _NotByElement(Exception):  # noqa: N818 (a signal, which _calls alone sees)
    pass


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes what is done in place to every element of the root, and does nothing."""

    def __init__(self, root: Tensor) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.root = root
        self.calls: list[Call] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, given = func.overloadpacket.__name__, kwargs or {}
        others = (*args[1:], *given.values())
        if not (args and self._is_root(args[0])) or any(isinstance(each, Tensor) for each in others):
            raise _NotByElement
        if name == "detach":
            return func(*args)
        if name in RANDOM:
            self.calls.append(lambda block, generator: func(block, *args[1:], **{**given, "generator": generator}))
        elif name in FIXED:
            self.calls.append(lambda block, _: func(block, *args[1:], **given))
        else:
            raise _NotByElement
        return args[0]

    def _is_root(self, value: Any) -> bool:
        if not isinstance(value, Tensor) or value.untyped_storage()._cdata != self.root.untyped_storage()._cdata:
            return False
        return value.shape == self.root.shape and value.stride() == self.root.stride()


def _by_blocks(calls: list[Call], tensor: Tensor, shape: tuple[int, ...], shard: Shard | None, seed: int) -> None:
    by_rows = shard is not None and shard.dim % len(shape) == 0
    first = shard.start if shard is not None and by_rows else 0
    last = first + (tensor.shape[0] if shape else 1)
    rows, generator = (tensor if shape else tensor.view(1)), torch.Generator(tensor.device)
    for number, (start, end) in _blocks(shape or (1,), first, last):
        block = torch.empty((end - start, *shape[1:]), dtype=tensor.dtype, device=tensor.device)
        generator.manual_seed(_mixed(seed, number))
        for call in calls:
            call(block, generator)
        low, high = max(first, start), min(last, end)
        mine = block[low - start : high - start]
        rows[low - first : high - first] = mine if shard is None or by_rows else shard.of(mine)


def _blocks(shape: tuple[int, ...], first: int, last: int) -> Iterator[tuple[int, tuple[int, int]]]:
    """Number, first row and end of each block that touches these rows."""
    each = max(1, BLOCK // max(1, torch.Size(shape[1:]).numel()))
    for number in range(first // each, -(-last // each) if last > first else 0):
        yield number, (number * each, min(shape[0], (number + 1) * each))


def _mixed(seed: int, number: int) -> int:
    """The seed of a block: a generator reads few of its bits, so all of them must differ from a neighbour's."""
    return int.from_bytes(blake2b(f"{seed}/{number}".encode(), digest_size=8).digest(), "big") >> 1


def _from_whole(method: _Method, tensor: Tensor, shape: tuple[int, ...], shard: Shard | None, seed: int) -> None:
    whole = None
    if shard is None or shard.group.rank == 0:
        whole = torch.empty(shape, dtype=tensor.dtype, device="cpu")
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            method(whole)
    if shard is not None:
        spread(whole, tensor, shard)
    elif whole is not None:
        tensor.copy_(whole)
