"""What torch's functions do to the dimension of a tensor that was cut: keep it as it is, work along it, or neither for sure."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from restoke.distributed.shards import Shard
from restoke.errors import SpecError

# one element from one element, at the same place
ELEMENTWISE = frozenset(
    """abs add addcdiv addcmul alpha_dropout bfloat16 ceil celu clamp clamp_max clamp_min clip clone contiguous copysign cos cpu
    cuda detach div double dropout elu erf exp exp2 expm1 feature_alpha_dropout float float_power floor fmod gelu half
    hardshrink hardsigmoid hardswish hardtanh leaky_relu lerp log log10 log1p log2 logit logsigmoid masked_fill maximum minimum
    mish mul multiply divide nan_to_num neg negative positive pow reciprocal relu relu6 remainder requires_grad_ round rrelu
    rsqrt rsub selu sigmoid sign silu sin softplus softshrink softsign sqrt square sub subtract tan tanh tanhshrink threshold to
    true_divide trunc type type_as where xlogy
    __add__ __radd__ __sub__ __rsub__ __mul__ __rmul__ __truediv__ __rtruediv__ __pow__ __rpow__ __neg__ __pos__ __abs__
    __iadd__ __isub__ __imul__ __itruediv__ __ipow__ add_ addcmul_ addcdiv_ sub_ mul_ div_ clamp_ clip_ exp_ neg_ pow_ relu_
    sigmoid_ tanh_ sqrt_ dropout_ masked_fill_ detach_ zero_ fill_""".split()
)
# the same, and the result may be other than floating-point: a mask made of a part is a part
ANY_TYPE = frozenset(
    """bool int8 int long short byte eq ne lt le gt ge isnan isinf isfinite isclose logical_not logical_and logical_or
    logical_xor __eq__ __ne__ __lt__ __le__ __gt__ __ge__ __and__ __or__ __xor__ __invert__ clone detach to type contiguous
    cpu cuda float double half bfloat16 masked_fill""".split()
)
# other dimensions are folded, or gain or lose one; the last stays the last as long as it keeps its length
RESHAPING = frozenset("view reshape flatten unflatten expand expand_as view_as reshape_as repeat_interleave".split())
PROPERTIES = frozenset(("data", "grad", "real"))  # of a tensor, that are tensors of the same places
# which argument says along which dimension a function works, and what it is where nothing is said: None for all of them
WITHIN: dict[str, tuple[int, int | None]] = {
    **dict.fromkeys("softmax log_softmax softmin logsumexp argmax argmin cumsum cumprod logcumsumexp".split(), (1, None)),
    **dict.fromkeys("cummax cummin max min aminmax amax amin median nanmedian".split(), (1, None)),
    **dict.fromkeys("mean nanmean std var std_mean var_mean".split(), (1, None)),
    **dict.fromkeys("argsort sort mode".split(), (1, -1)),
    **dict.fromkeys("topk kthvalue".split(), (2, -1)),
    **dict.fromkeys("norm linalg_norm linalg_vector_norm quantile nanquantile".split(), (2, None)),
    **dict.fromkeys("normalize cosine_similarity".split(), (2, 1)),
    "gumbel_softmax": (4, -1),
}
# over everything, each rank's is what somebody wants who looks at its numbers; nobody takes it for a loss or a prediction
LOOKS = frozenset("max min aminmax amax amin median nanmedian norm linalg_norm linalg_vector_norm".split())
LAST = frozenset(("multinomial", "glu"))
NORMS = frozenset(("layer_norm", "rms_norm"))
LOSSES = frozenset(
    ("cross_entropy", "kl_div", "binary_cross_entropy", "binary_cross_entropy_with_logits", "linear_cross_entropy")
)
LOSSES_BY_ELEMENT = frozenset(
    """binary_cross_entropy binary_cross_entropy_with_logits hinge_embedding_loss huber_loss kl_div l1_loss mse_loss
    poisson_nll_loss smooth_l1_loss soft_margin_loss""".split()
)
ABOUT = frozenset(
    """__get__ __set__ size dim stride numel element_size __repr__ __len__ __format__ __hash__ backward register_hook
    tolist numpy item""".split()
)


def name_of(func: Any) -> str:
    """What a function is called; a property by its own name."""
    name: str = func.__name__
    return f"__get__ {getattr(func.__self__, '__name__', '')}" if name == "__get__" else name


def is_loss(name: str, kwargs: dict[str, Any]) -> bool:
    """Whether it makes one number of many, or reads across the classes."""
    if name not in LOSSES and not name.endswith("_loss"):
        return False
    return name not in LOSSES_BY_ELEMENT or kwargs.get("reduction", "mean") != "none"


def refuse_within(name: str, shard: Shard, part: Tensor, args: Any, kwargs: dict[str, Any]) -> None:
    """Raises SpecError where the function would work along the dimension that was cut: it would see this rank's part alone."""
    base = name.rstrip("_") if not name.startswith("_") else name
    if not (is_loss(name, kwargs) or _works_along(base, shard.dim % part.ndim, part, args, kwargs)):
        return
    why = f"this rank holds {shard.length} of {shard.size} along dimension {shard.dim}, and {name} would see those alone"
    instead = "parallel_cross_entropy, parallel_topk, or restoke.distributed.gather before"
    raise SpecError.of(name, f"a part of shape {tuple(part.shape)}", why, instead)


def _works_along(name: str, own: int, part: Tensor, args: Any, kwargs: dict[str, Any]) -> bool:
    if name in LAST:
        return own == part.ndim - 1
    if name in NORMS:
        shape = kwargs["normalized_shape"] if "normalized_shape" in kwargs else args[1]
        return own >= part.ndim - (1 if isinstance(shape, int) else len(shape))
    if name not in WITHIN:
        return False
    place, usual = WITHIN[name]
    dim = kwargs.get("dim", kwargs.get("axis", args[place] if len(args) > place else usual))
    if isinstance(dim, Tensor) or (dim is None and name in LOOKS):
        return False  # max(tensor, other) is element by element
    dims: tuple[Any, ...] | list[Any] = dim if isinstance(dim, (tuple, list)) else (dim,)
    return not dims or any(each is None or isinstance(each, bool) or int(each) % part.ndim == own for each in dims)


def keeps(name: str, shard: Shard, part: Tensor, args: Any, kwargs: dict[str, Any], out: Tensor) -> bool:
    """Whether the result is the same part of a whole that the function would make of the whole."""
    from_end = shard.dim if shard.dim < 0 else shard.dim - part.ndim
    if out.ndim < -from_end or out.shape[from_end] != part.shape[from_end]:
        return False
    if not (out.dtype.is_floating_point or out.dtype.is_complex) and name not in ANY_TYPE:
        return False
    if name in ELEMENTWISE or name in ANY_TYPE or name in LOSSES_BY_ELEMENT or name.removeprefix("__get__ ") in PROPERTIES:
        return shard.dim < 0 or out.ndim == part.ndim
    if name in ("max", "min"):
        return isinstance(kwargs.get("other", args[1] if len(args) > 1 else None), Tensor) and shard.dim < 0
    return shard.dim < 0 and from_end == -1 and _keeps_last(name, part, args, kwargs, out)


def _keeps_last(name: str, part: Tensor, args: Any, kwargs: dict[str, Any], out: Tensor) -> bool:
    if name in RESHAPING:
        return True
    if name == "__getitem__":
        return args[0] is part and _leading(args[1]) < part.ndim
    dim: Any = kwargs.get("dim", args[1] if len(args) > 1 else None)
    if name == "unsqueeze":
        return bool(dim % out.ndim != out.ndim - 1)
    if name == "squeeze":
        dims = range(part.ndim) if dim is None else dim if isinstance(dim, tuple) else (dim,)
        return part.shape[-1] != 1 or all(each % part.ndim != part.ndim - 1 for each in dims)
    if name in ("cat", "concat", "concatenate", "stack"):
        listed = kwargs["tensors"] if "tensors" in kwargs else args[0]
        return (dim or 0) % out.ndim != out.ndim - 1 and all(type(each) is type(part) for each in listed)
    return False


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
