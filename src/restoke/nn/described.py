"""A tensor that knows of which whole it is a part, through the operations that keep it so; after any other it knows that too.

A part of the logits looks like logits of fewer classes, and every loss would take it. So a part carries its description, an
operation that mixes or reorders what was cut loses it, and then whatever needs it refuses, naming the operation.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, final

import torch
from attrs import frozen
from torch import Tensor

from restoke.distributed.shards import Shard
from restoke.errors import SpecError
from restoke.nn.provenance import remember

# one element from one element, at the same place
ELEMENTWISE = frozenset(
    """abs add addcmul alpha_dropout bfloat16 bool celu clamp clamp_max clamp_min clip clone contiguous cpu cuda detach div
    double dropout elu exp feature_alpha_dropout float gelu half hardsigmoid hardswish hardtanh int8 leaky_relu lerp log
    logsigmoid masked_fill mish mul nan_to_num neg negative pow relu relu6 requires_grad_ rrelu rsqrt selu sigmoid silu
    softplus softsign sqrt square sub tanh threshold to true_divide type type_as where float_power __neg__ __pos__ rsub
    __add__ __radd__ __sub__ __rsub__ __mul__ __rmul__ __truediv__ __rtruediv__ __pow__ __abs__ __iadd__ __isub__ __imul__
    __itruediv__ add_ sub_ mul_ div_ clamp_ relu_ dropout_ masked_fill_ detach_ zero_ positive
    multiply divide subtract""".split()
)
# other dimensions are folded, or gain or lose one; the last stays the last as long as it keeps its length
RESHAPING = frozenset(
    "view reshape flatten unflatten unsqueeze squeeze expand expand_as view_as reshape_as repeat_interleave".split()
)
# where the dimension that was cut would be normalised or searched: each rank would do it to its own part
WITHIN = frozenset(
    """softmax log_softmax softmin logsumexp argmax argmin topk cross_entropy nll_loss kl_div sort argsort gumbel_softmax
    multinomial multi_margin_loss cumsum layer_norm normalize""".split()
)
LOSSES = frozenset(("cross_entropy", "nll_loss"))
ABOUT = frozenset(
    "__get__ __set__ size dim stride numel element_size __repr__ __len__ __format__ backward register_hook".split()
)


@final
@frozen(eq=False)
class Lost:
    """What is left of a description after an operation that does not keep it."""

    shard: Shard
    by: str


class Part(Tensor):
    """A tensor with a description. `restoke.nn.describe` makes one, and `restoke.nn.shard_of` tells what it knows."""

    _described: Shard | Lost

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func.__name__
        with torch._C.DisableTorchFunctionSubclass():
            parts = [each for each in _tensors((*args, *kwargs.values())) if isinstance(each, Part)]
            if name in WITHIN:
                _refuse_within(name, parts[0]._described, parts[0], args, kwargs)
            out = func(*args, **kwargs)
            return out if name in ABOUT and not isinstance(out, Tensor) else _follow(name, parts, args, out)


def describe(tensor: Tensor, shard: Shard) -> Tensor:
    """The tensor, known to be this part of a whole. Shares memory and gradient.

    Raises:
        SpecError: its length along the shard's dimension is not the shard's.
    """
    if tensor.shape[shard.dim] != shard.length:
        why = f"rank {shard.group.rank} of {shard.group.size} holds {shard.length} of {shard.size} along dimension {shard.dim}"
        raise SpecError.of("shard", tuple(tensor.shape), why, "a tensor of that length there")
    part = _with(tensor, shard)
    remember(part, shard)
    return part


def plain(tensor: Tensor) -> Tensor:
    """The tensor without what is known of it: whoever asks for it takes it as it is."""
    return tensor.as_subclass(Tensor) if isinstance(tensor, Part) else tensor


def shard_of(tensor: Tensor) -> Shard | None:
    """Of which whole the tensor is a part; None where it is one itself.

    Raises:
        SpecError: it was made of a part by an operation that does not tell of which whole the result is.
    """
    if not isinstance(tensor, Part):
        return None
    if isinstance(tensor._described, Lost):
        lost = tensor._described
        why = f"it was made by {lost.by} from one rank's part of {lost.shard.size}, which does not tell what it is a part of"
        instead = "restoke.nn.describe(tensor, shard) if it still is that part, or gather it before"
        raise SpecError.of("shard", tuple(tensor.shape), why, instead)
    return tensor._described


def _with(tensor: Tensor, what: Shard | Lost) -> Tensor:
    part = tensor.as_subclass(Part)
    part._described = what
    return part


def _tensors(values: Any) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _tensors(value)


def _follow(name: str, parts: list[Part], args: Any, out: Any) -> Any:
    """The result, described: by what its operands were, or as having lost that."""
    if isinstance(out, (list, tuple)):
        followed = [_follow(name, parts, args, each) for each in out]
        return type(out)(followed)
    if not isinstance(out, Tensor) or out.ndim == 0 or not out.dtype.is_floating_point or not parts:
        return plain(out) if isinstance(out, Tensor) else out
    first = parts[0]
    known = first._described
    what: Shard | Lost = known
    if not isinstance(known, Lost):
        same = all(isinstance(p._described, Shard) and p._described.size == known.size for p in parts)
        what = known.along(known.dim) if same and _keeps(name, known, first, args, out) else Lost(known, name)
    if isinstance(out, Part):  # done in place: no other tensor, or a leaf would be none any more
        out._described = what
        return out
    return _with(out, what)


def _keeps(name: str, shard: Shard, part: Tensor, args: Any, out: Tensor) -> bool:
    from_end = shard.dim if shard.dim < 0 else shard.dim - part.ndim
    if out.ndim < -from_end or out.shape[from_end] != part.shape[from_end]:
        return False
    if name in ELEMENTWISE or name == "__get__":
        return shard.dim < 0 or out.ndim == part.ndim
    last = from_end == -1 and shard.dim < 0
    if name in RESHAPING:
        return last
    if name == "__getitem__":
        return last and _leading(args[1]) < part.ndim
    return name in ("cat", "concat", "stack") and last and out.ndim >= 2


def _leading(index: Any) -> int:
    """How many dimensions an index takes up, counted from the first; all of them where that cannot be told."""
    items = index if isinstance(index, tuple) else (index,)
    taken = 0
    for item in items:
        if item is None:
            continue
        if item is Ellipsis:
            return 1 << 30
        taken += item.ndim if isinstance(item, Tensor) and item.dtype in (torch.bool, torch.uint8) else 1
    return taken


def _refuse_within(name: str, known: Shard | Lost, part: Tensor, args: Any, kwargs: Any) -> None:
    """Raises SpecError where the function would work along the dimension that was cut."""
    if isinstance(known, Lost):
        if name in LOSSES:  # any other may well be over what was not cut: attention within a rank's own heads
            shard_of(part)
        return
    if known.group.size == 1:
        return
    dim = kwargs.get("dim", args[1] if len(args) > 1 and isinstance(args[1], int) else None)
    if name == "topk":
        dim = kwargs.get("dim", args[2] if len(args) > 2 else -1)
    own = known.dim % part.ndim
    if isinstance(dim, int) and dim % part.ndim != own:
        return
    why = f"this rank holds {known.length} of {known.size} along dimension {known.dim}, and {name} would see those alone"
    instead = "parallel_cross_entropy, parallel_topk, or gather it first"
    raise SpecError.of(name, f"a part of shape {tuple(part.shape)}", why, instead)
