"""The verbs. A `Session` decides when things happen; its strategy's parts decide how."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, final

from torch import Tensor, nn
from torch.optim import Optimizer

from restoke.configs import AMPConfig
from restoke.errors import SessionError, SpecError
from restoke.optim import OptimizerSpec
from restoke.parts import Parts, Request, Step
from restoke.passes import apply_passes
from restoke.precision import LossScaler, loss_scaler
from restoke.said import say_once
from restoke.seeds import seed_all
from restoke.spec import Spec, outside_spec
from restoke.table import PRECISIONS, check, rows
from restoke.windows import Windows
from restoke.world import World, facts_here, ranks_here


@final
class Session:
    """One model and its optimizer, trained as a spec declares.

    A process may have several sessions over one world: a GAN has two. What was declared outside the script (by `restoke
    launch`) overrides `spec`, and one line on stderr says what was overridden.

    Args:
        spec: the declaration; or give its fields as keywords.
        scaler: another session's `scaler`, where one backward serves both.

    Raises:
        SpecError: the spec cannot be obeyed here; every reason is named.
        WorldError: the launcher, the settings and the process group contradict each other.
    """

    def __init__(self, spec: Spec | None = None, *, scaler: LossScaler | None = None, **axes: Any) -> None:
        if spec is not None and axes:
            raise SpecError.of(next(iter(axes)), next(iter(axes.values())), "a spec was given as well", "one of the two")
        ranks = ranks_here()
        declared, said = (spec or Spec.of(axes)).overlaid(outside_spec())
        self.spec: Spec = check(declared, facts_here(ranks))
        row = rows()[self.spec.strategy]
        self.world: World = World.join(self.spec.device, ranks, row.rendezvous(self.spec), row.processes == "many")
        if said and self.world.is_main:
            say_once(f"declared outside the script: {'; '.join(said)}")
        precision = PRECISIONS[self.spec.precision].means
        self.scaler = scaler or loss_scaler(precision, self.world.device, self.spec.setting(AMPConfig))
        self.windows = Windows(self.spec.accumulate)
        self.steps = 0  # optimizer steps taken
        self.skipped = 0  # optimizer steps that an overflow skipped
        self.schedulers: list[Any] = []
        self.registered: dict[str, Any] = {}
        self._parts: Parts | None = None
        if self.spec.seed is not None:
            seed_all(self.spec.seed)

    def prepare(
        self,
        model: nn.Module,
        optimizer: OptimizerSpec,
        scheduler: Callable[[Optimizer], Any] | None = None,
    ) -> nn.Module:
        """Place and wrap the model, build the optimizer on it and the scheduler on that. Returns what `forward` calls.

        The scheduler is stepped once after each optimizer step that was not skipped.

        Raises:
            SessionError: this session has a model already.
            SpecError: the optimizer's groups or keywords do not fit.
        """
        if self._parts is not None:
            raise SessionError.of("prepare", type(model).__name__, "this session has a model already", "a second Session")
        precision = PRECISIONS[self.spec.precision].means
        apply_passes(model, precision)
        request = Request(self.spec, self.world, model, optimizer, precision, self.scaler)
        parts: Parts = rows()[self.spec.strategy].load()(request)
        self._parts = parts
        self.scaler = parts.stepper.scaler
        self._set_grad_sync, self._model, self._backward = parts.set_grad_sync, parts.model, parts.stepper.backward
        self.forward_context = parts.stepper.forward_context
        if scheduler is not None:
            self.schedulers.append(scheduler(parts.optimizer))
        if self.spec.seed is not None:
            seed_all(self.spec.seed, 1 + self.world.data_rank)
        return parts.model

    @property
    def parts(self) -> Parts:
        """What the strategy made. Raises SessionError before `prepare`."""
        if self._parts is None:
            raise SessionError.of("session", "no model", "prepare was not called", "session.prepare(model, optimizer) first")
        return self._parts

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The model's output, under the precision's context; whether its gradients are reduced is settled here."""
        self._set_grad_sync(self.windows.ending)
        with self.forward_context():
            return self._model(*args, **kwargs)

    def divide(self, loss: Tensor) -> Tensor:
        """The loss's share of its window of micro-batches: the one place where it is divided."""
        length = self.windows.length
        return loss if length == 1 else loss / length

    def backward(self, loss: Tensor) -> None:
        """Add the gradients of the loss, a mean over the micro-batch, divided by the window's length."""
        self._backward(self.divide(loss))

    def backward_divided(self, share: Tensor) -> None:
        """As `backward`, of a loss that `divide` has divided."""
        self._backward(share)

    def step(self) -> Step | None:
        """End a micro-batch. At the end of its window: clip, step, clear the gradients, step the schedulers."""
        if not self.windows.ending:
            self.windows.done += 1
            return None
        return self._boundary(self.windows.done + 1)

    def flush(self) -> Step | None:
        """End the window now, with the micro-batches that it has; None if it has none. Every rank calls this."""
        done = self.windows.done
        if done == 0:
            return None
        self.parts.reduce_grads()
        return self._boundary(done)

    def _boundary(self, done: int) -> Step:
        stepper, windows = self.parts.stepper, self.windows
        if done != windows.length:
            stepper.rescale(windows.length / done)
        norm = None if self.spec.clip is None else stepper.clip(self.spec.clip)
        stepped = stepper.step()
        stepper.clear()
        windows.close()
        if stepped:
            self.steps += 1
            for scheduler in self.schedulers:
                scheduler.step()
        else:
            self.skipped += 1
        return Step(norm, not stepped)

    def zero_grads(self) -> None:
        """Drop the gradients and begin a new window."""
        self.parts.stepper.clear()
        self.windows.close()

    def register(self, name: str, thing: Any) -> None:
        """Save and load this object too: its `state_dict` must hold plain values and tensors."""
        if name in self.registered:
            raise SessionError.of("register", name, "something is registered by this name", "another name")
        self.registered[name] = thing

    def save(self, folder: str | os.PathLike[str], tag: str | None = None, extras: Mapping[str, Any] | None = None) -> str:
        """Write a checkpoint and return its tag. Every rank calls this. See `restoke.checkpoint`."""
        from restoke.session_state import save

        return save(self, Path(folder), tag or f"step-{self.steps}", extras or {})

    def load(self, folder: str | os.PathLike[str], tag: str | None = None, strict: bool = True) -> dict[str, Any]:
        """Restore a checkpoint (the newest good one where no tag is given); returns its extras. Every rank calls this."""
        from restoke.session_state import load

        return load(self, Path(folder), tag, strict)
