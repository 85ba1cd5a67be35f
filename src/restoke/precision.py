"""A precision as torch's own autocast, loss scaler and matrix products have it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any, final

import torch
import torch.distributed as dist
from torch import Tensor
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

from restoke.configs import AMPConfig
from restoke.errors import SpecError
from restoke.spec import Precision

Context = Callable[[], AbstractContextManager[Any]]


def dtype(name: str) -> torch.dtype:
    """torch's dtype of this name."""
    found = vars(torch)[name]
    assert isinstance(found, torch.dtype)
    return found


def compute_context(precision: Precision, device: torch.device) -> Context:
    """What forward, loss and backward run under; made anew for each use, since one autocast object cannot be entered twice."""
    if precision.compute is not None:
        return partial(torch.autocast, device.type, dtype(precision.compute))
    return nullcontext


def matmul_context(precision: Precision) -> Context:
    """How float32 products are computed while forward and backward run; the process's own choice is put back after."""
    return partial(_matmul, precision.matmul) if precision.matmul is not None else nullcontext


@contextmanager
def _matmul(mode: str) -> Iterator[None]:
    backends: Any = torch.backends
    switches = (backends.cuda.matmul, backends.cudnn.conv, backends.cudnn.rnn)
    before = [switch.fp32_precision for switch in switches]
    try:
        for switch in switches:
            switch.fp32_precision = mode
        yield
    finally:
        for switch, was in zip(switches, before, strict=True):
            switch.fp32_precision = was


@final
class LossScaler:
    """torch's GradScaler for one or several sessions: the scale moves when each has stepped, or when one begins anew before.

    `torch` is the scaler itself; reading it changes nothing.
    """

    def __init__(self, scaler: GradScaler) -> None:
        self.torch = scaler
        self._sessions = 0
        self._stepped: set[int] = set()  # optimizers, by identity, since the last update
        self._window: int | None = None

    def serve(self, window: int) -> None:
        """Take on a session of so many micro-batches per step. Raises SpecError where another's windows are of another length:
        its step would change the scale while the gradients of this one wait, scaled as before."""
        if self._window not in (None, window):
            why = f"the session that the scaler is shared with has accumulate={self._window}"
            raise SpecError.of("accumulate", window, why, f"accumulate={self._window}, or a scaler of its own")
        self._window = window
        self._sessions += 1

    def scale(self, loss: Tensor, optimizer: Optimizer) -> Tensor:
        """The loss scaled, for the gradients of this optimizer (and of those that step with it)."""
        if id(optimizer) in self._stepped:
            self._update()
        return self.torch.scale(loss)

    def unscale(self, optimizer: Optimizer) -> None:
        """Divide the optimizer's gradients by the scale, noting an overflow."""
        self.torch.unscale_(optimizer)

    def step(self, optimizer: Optimizer) -> None:
        """Step the optimizer unless its gradients overflowed."""
        self.torch.step(optimizer)
        self._stepped.add(id(optimizer))
        if len(self._stepped) >= self._sessions:
            self._update()

    def _update(self) -> None:
        self._stepped.clear()
        self.torch.update()


def loss_scaler(precision: Precision, device: torch.device, config: AMPConfig) -> LossScaler | None:
    """A scaler where the precision needs one."""
    if not precision.scaled:
        return None
    growth, backoff = config.growth_factor, config.backoff_factor
    return LossScaler(GradScaler(device.type, config.init_scale, growth, backoff, config.growth_interval))


def spread_overflow(seen: Sequence[Tensor], marked: Sequence[Tensor], device: torch.device) -> None:
    """Where any rank's `seen` gradients overflowed, the first of `marked` overflows on every rank: all skip the step."""
    overflow = torch.zeros((), device=device)
    if seen:
        norms = torch._foreach_norm(list(seen), float("inf"))
        overflow = (~torch.isfinite(torch.stack([norm.float() for norm in norms]))).any().float()
    dist.all_reduce(overflow, dist.ReduceOp.MAX)
    if marked:
        marked[0].add_(torch.where(overflow > 0, float("inf"), 0.0))
