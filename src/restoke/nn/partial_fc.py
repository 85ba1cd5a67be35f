"""A margin head that trains a sample of its classes in each step, as Partial FC does (An et al. 2021, 2022)."""

from __future__ import annotations

import weakref
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from restoke.distributed.groups import Group, get_group
from restoke.distributed.messages import agreed_number
from restoke.distributed.shards import Shard, cut
from restoke.errors import CheckpointError, SpecError
from restoke.nn.functional.margin_linear import check_rows, parallel_margin_linear
from restoke.nn.init import sharded_
from restoke.nn.margin_linear import SPREAD
from restoke.nn.margins import ArcFace, Margin
from restoke.nn.owned import counted
from restoke.nn.registry import register_shard
from restoke.nn.sampled_rows import bring, take
from restoke.nn.sampling import Positives, Sample, among, draw, positives, rarity, size_of
from restoke.prepared import TOLD

SAMPLED = "sampled"


@final
class PartialFC(nn.Module):
    """`ParallelMarginLinear` whose steps see a sample of the classes: all that occur in the batch, and others at random.

    Classes outside the sample take no gradient, and the step leaves them as they are, bit by bit: neither momentum nor weight
    decay moves them. Gradients and the optimizer's state on the device are those of the sample. What a class that leaves it
    had gathered, momentum or Adam's averages, waits in the CPU's memory for its next turn.

    `attach` it to its optimizer once; a session does. Within a window of several backwards the sample only grows; the first
    forward after an optimizer step, or after gradients were cleared, draws a new one. In eval mode, and without gradients,
    all classes take part. At rate 1 it is `ParallelMarginLinear`.

    Args:
        sample_rate: of the classes, above 0, at most 1; where more occur in a batch, all ranks sample more.
        correction: add log(1/p) to the logits of classes that were in the sample with probability p, so that the loss
            estimates that over all classes.
        seed: of the draws; None: rank 0 draws one.
        margin, scale, group: as of `ParallelMarginLinear`.

    Attributes:
        weight: shape (classes of this rank, in_features).
        sampled: the rows of it that are in the sample, with their gradient, where the optimizer sees them.

    Raises:
        SpecError: a size or the rate is outside its range, or a group of one rank has peers, so that classes are not shared.
    """

    weight: nn.Parameter

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        margin: Margin | None = None,
        scale: float = 64.0,
        sample_rate: float = 0.1,
        *,
        correction: bool = False,
        seed: int | None = None,
        group: Group | None = None,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.in_features, self.num_classes = counted("in_features", in_features), counted("num_classes", num_classes)
        self.margin: Margin = ArcFace() if margin is None else margin
        self.scale, self.sample_rate, self.correction = scale, sample_rate, correction
        self.shard = Shard(get_group(group), 0, num_classes)
        _check_rate(sample_rate, self.shard.group)
        self.seed = agreed_number(int(torch.randint(1 << 62, ())) if seed is None else seed, self.shard.group)
        self.draws = 0
        self._progress = _Progress()
        self.weight = nn.Parameter(torch.empty(self.shard.length, in_features, device=device, dtype=dtype))
        register_shard(self, "weight", self.shard)
        if sample_rate < 1:
            size = size_of(sample_rate, self.shard, [])
            rows = cut(size, self.shard.group.size, self.shard.group.rank)[1]
            self.sampled = nn.Parameter(torch.zeros(rows, in_features, device=device, dtype=dtype))
            register_shard(self, SAMPLED, Shard(self.shard.group, 0, size))
            self.register_state_dict_post_hook(_without_sampled)  # type: ignore[no-untyped-call]
            self.register_load_state_dict_pre_hook(_with_sampled)  # type: ignore[no-untyped-call]
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the values anew; every rank of the group calls it."""
        sharded_(nn.init.normal_, self.weight, self.shard, 0.0, SPREAD)

    def attach(self, optimizer: Optimizer) -> None:
        """Let the optimizer step what is sampled: it has been given this head's parameters, all of them. Once is enough.

        Raises:
            SpecError: it has not.
        """
        if self.sample_rate == 1 or self._progress.optimizer is optimizer:
            return
        known = {id(p) for group in optimizer.param_groups for p in group["params"]}
        if id(self.weight) not in known or id(self.sampled) not in known:
            why = "it has to know the head's weight and its sampled rows"
            raise SpecError.of("optimizer", type(optimizer).__name__, why, "give it head.parameters(), all of them")
        optimizer.register_step_pre_hook(self._before_step)
        optimizer.register_step_post_hook(self._after_step)
        self._progress.optimizer = optimizer

    def forward(self, input: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:  # noqa: A002 (torch's name)
        """Logits of the sampled classes, a described part, and the targets as numbers among them: a loss's arguments.

        Args:
            input: features of all rows, alike on every rank of the group (`gather_rows`): shape (rows, in_features).
            target: numbers of their classes, int64, shape (rows); negative: none. It is left as it is.

        Raises:
            SpecError: shapes or dtypes do not fit, a target is no class, or no optimizer is attached.
        """
        how: dict[str, Any] = {"margin": self.margin, "scale": self.scale}
        if self.sample_rate == 1:
            return parallel_margin_linear(input, self.weight, target, shard=self.shard, **how), target
        if not (self.training and torch.is_grad_enabled()):
            return parallel_margin_linear(input, self.weight.detach(), target, shard=self.shard, **how), target
        check_rows(input, self.in_features, target)
        self._check_attached()
        found = positives(target, self.shard)
        sample = self._take_in(found)
        use = _Use(sample)
        self._progress.uses.append(weakref.ref(use))
        rows = _Rows.apply(self.sampled, self, use)  # type: ignore[no-untyped-call]
        offset = rarity(sample, found, self.shard) if self.correction else None
        numbers = among(target, sample, self.shard)
        return parallel_margin_linear(input, rows, numbers, shard=sample.shard, offset=offset, **how), numbers

    def logits(self, input: Tensor) -> Tensor:  # noqa: A002
        """Scaled cosines to all classes, without margin or gradient to the class vectors: a described part."""
        return parallel_margin_linear(input, self.weight.detach(), shard=self.shard, scale=self.scale)

    def extra_repr(self) -> str:
        sizes = f"in_features={self.in_features}, num_classes={self.num_classes}, sample_rate={self.sample_rate:g}"
        return f"{sizes}, margin={self.margin}, scale={self.scale:g}, ranks={self.shard.group.size}"

    def get_extra_state(self) -> dict[str, int]:
        """Where the draws stand. Raises CheckpointError within a window, whose sample is nowhere saved."""
        if self.sample_rate < 1 and self.sampled.grad is not None and not self._progress.stepped:
            why = "gradients of a sample of classes wait for their step"
            raise CheckpointError.of("sampled", "a window that has not ended", why, "save after optimizer.step()")
        return {"seed": self.seed, "draws": self.draws}

    def set_extra_state(self, state: dict[str, int]) -> None:
        self.seed, self.draws = state["seed"], state["draws"]
        self._progress.sample = None

    @torch.no_grad()
    def _take_in(self, found: Positives) -> Sample:
        """The sample of this forward: a new one, or that of the window with these positives added."""
        progress, classes = self._progress, self.shard
        old = None if progress.may_draw(self.sampled) else progress.sample
        kept, needed = found.rows, found.counts
        if old is not None:
            kept = torch.cat([old.index, kept])
            pairs = zip(old.shard.lengths, classes.lengths, needed, strict=True)
            needed = [min(length, have + more) for have, length, more in pairs]
        sample = draw(size_of(self.sample_rate, classes, needed), classes, kept, self.seed, self.draws)
        grad = None
        if old is not None and self.sampled.grad is not None and not progress.stepped:
            grad = torch.zeros(len(sample.index), self.in_features, dtype=self.weight.dtype, device=self.weight.device)
            grad[sample.positions(old.index)] = self.sampled.grad
        self.sampled.grad = None
        self.sampled.data = self.weight[sample.index]
        self.sampled.grad = grad
        register_shard(self, SAMPLED, sample.shard)
        progress.sample, progress.stepped = sample, False
        self.draws += 1
        return sample

    def _check_attached(self) -> None:
        if self._progress.optimizer is None:
            why = "a step moves the sampled rows, and has to bring their momentum along and put them back"
            raise SpecError.of("optimizer", None, why, "head.attach(optimizer) before the first forward")

    def _before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if self.sampled.grad is None or self._progress.sample is None:
            return
        if len(args) > 1 or kwargs.get("closure") is not None:
            why = "a closure's forwards would draw samples while the optimizer steps"
            raise SpecError.of("optimizer.step", "a closure", why, "forward and backward first, then step()")
        bring(optimizer, self.sampled, self.weight, self._progress.sample.index)

    @torch.no_grad()
    def _after_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if self.sampled.grad is None or self._progress.sample is None:
            return
        index = self._progress.sample.index
        take(optimizer, self.sampled, self.weight, index)
        self.weight[index] = self.sampled.detach()
        self._progress.stepped = True


def follow(model: nn.Module, optimizer: Optimizer) -> None:
    """Attach every `PartialFC` of the model to the optimizer. A session does it by itself."""
    for module in model.modules():
        if isinstance(module, PartialFC):
            module.attach(optimizer)


def _follow_session(session: Any) -> None:
    """Raises SpecError where an axis would take the sampled rows, other classes in each step, for one parameter."""
    sampling = any(isinstance(m, PartialFC) and m.sample_rate < 1 for m in session.parts.module.modules())
    if sampling and session.spec.ema is not None:
        why = "PartialFC samples other classes in each step, and an average of their rows is none of a class"
        raise SpecError.of("ema", session.spec.ema, why, "ema=none, or sample_rate=1")
    if sampling and session.spec.optimizer == "in-backward":
        why = "PartialFC's sampled rows get their gradient when the backward is over"
        raise SpecError.of("optimizer", session.spec.optimizer, why, "optimizer=given, or sample_rate=1")
    follow(session.parts.module, session.parts.optimizer)


TOLD.append(_follow_session)


@final
class _Progress:
    """Where a head stands between two steps. A copy of a head begins anew."""

    def __init__(self) -> None:
        self.optimizer: Optimizer | None = None
        self.sample: Sample | None = None
        self.stepped = False  # since the sample was drawn
        self.uses: list[weakref.ref[_Use]] = []

    def may_draw(self, sampled: nn.Parameter) -> bool:
        """Whether nothing waits for the sample: no gradient for its step, and no graph for its backward."""
        self.uses = [ref for ref in self.uses if (use := ref()) is not None and not use.done]
        return self.sample is None or (not self.uses and (self.stepped or sampled.grad is None))

    def __reduce__(self) -> tuple[type[_Progress], tuple[()]]:
        return _Progress, ()


@final
class _Use:
    """A forward that waits for its backward."""

    def __init__(self, sample: Sample) -> None:
        self.sample = sample
        self.done = False


class _Rows(torch.autograd.Function):
    """The sampled rows. Their gradient is added by hand: a window's sample may have grown since the forward."""

    @staticmethod
    def forward(ctx: Any, sampled: Tensor, head: PartialFC, use: _Use) -> Tensor:
        ctx.head, ctx.use = head, use
        return sampled.view_as(sampled)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[None, None, None]:
        head, use = ctx.head, ctx.use
        current = head._progress.sample
        if current is None or (use.done and current is not use.sample):
            why = "another sample of classes has been drawn since the forward"
            raise SpecError.of("backward", "a second one", why, "a forward for each backward")
        use.done = True
        sampled = head.sampled
        if current is not use.sample:
            grad = torch.zeros_like(sampled).index_copy_(0, current.positions(use.sample.index), grad)
        sampled.grad = grad if sampled.grad is None else sampled.grad + grad
        return None, None, None


def _without_sampled(module: nn.Module, state: dict[str, Any], prefix: str, metadata: Any) -> None:
    """The rows are in the weight already."""
    del state[prefix + SAMPLED]


def _with_sampled(module: nn.Module, state: dict[str, Any], prefix: str, *rest: Any) -> None:
    state[prefix + SAMPLED] = module._parameters[SAMPLED]


def _check_rate(rate: float, group: Group) -> None:
    if not 0 < rate <= 1:
        raise SpecError.of("sample_rate", rate, "it is the share of classes that take part in a step", "above 0, at most 1")
    if rate < 1 and group.size == 1 and group.peers is not None:
        why = "every rank would sample among its own copy of all classes, and data parallelism would average unlike ones"
        raise SpecError.of("group", "of one rank", why, "a group of several ranks, which share the classes")
