"""Prepares models: each gets a session, with the optimizer that is its own, or with a shell for those that step it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import update_wrapper
from typing import Any, final

import attrs
from torch import nn
from torch.optim import Optimizer
from torch.utils.weak import WeakTensorKeyDictionary

from restoke.empty import place
from restoke.errors import SpecError
from restoke.facades.accelerate.micro import Micro
from restoke.facades.accelerate.shell import Shell, refuse_steered, repoint
from restoke.facades.accelerate.trained import Trained
from restoke.facades.accelerate.trees import to_float
from restoke.precision import compute_context
from restoke.session import Session
from restoke.table import PRECISIONS, chosen
from restoke.undoing import undo


@final
class Models:
    """The prepared models of one Accelerator, in the order in which they came."""

    def __init__(self, first: Session, micro: Micro, block_classes: Sequence[str] = ()) -> None:
        self._first, self._micro, self._block_classes = first, micro, tuple(block_classes)
        self._unused: Session | None = first
        self.trained: list[Trained] = []
        self.shells: dict[Trained, Shell] = {}
        self._became = WeakTensorKeyDictionary()  # parameters that a strategy replaced, for optimizers that come later

    def train(self, model: nn.Module, optimizer: Optimizer | None, free: Sequence[Optimizer]) -> Trained:
        """Wrap a model. Its own optimizer, if it has one, is undone and built on it; else those of `free` that have some of
        its parameters are pointed at what these become.

        Raises:
            SpecError: the declaration cannot be obeyed for this model.
        """
        before = dict(model.named_parameters())
        session = self._session(model)
        shell = None
        if optimizer is None:
            optimizer = shell = Shell(list(before.values()))
            shell.pull(free)
        session.prepare(model, undo(optimizer, model))
        trained = Trained(session, self._micro)
        widen(trained.parts.module, trained.parts.stepper.forward_context)
        after = dict(trained.parts.module.named_parameters())
        self._became.update({p: after[name] for name, p in before.items() if after[name] is not p})
        if shell is not None:
            self._settle(trained, shell, before, free)
        self.trained.append(trained)
        if len(self.trained) > 1:
            for each in self.trained:
                each.count_forwards()
        return trained

    def _settle(self, trained: Trained, shell: Shell, before: dict[str, nn.Parameter], free: Sequence[Optimizer]) -> None:
        self.shells[trained] = shell
        after = dict(trained.parts.module.named_parameters())
        now = {id(p): after[name] for name, p in before.items()}
        touched = [opt for opt in free if any(id(p) in now for group in opt.param_groups for p in group["params"])]
        if touched:
            refuse_steered(shell, trained.session.spec.strategy)
        for optimizer in touched:
            repoint(optimizer, now)
        shell.push(touched)

    def adopt(self, optimizer: Optimizer) -> None:
        """Point an optimizer that came after its models at what their parameters became.

        Raises:
            SpecError: it has a state already, which was not laid out with the model.
        """
        held = [p for group in optimizer.param_groups for p in group["params"]]
        now = {id(p): self._became[p] for p in held if p in self._became}
        if now and optimizer.state:
            why = "its model was sharded before, without its state"
            raise SpecError.of("optimizer", type(optimizer).__name__, why, "prepare(model, optimizer) in one call")
        repoint(optimizer, now)

    def forget(self) -> None:
        """None is known any more; the next model gets a session of its own."""
        self.trained.clear()
        self.shells.clear()

    def place(self, model: nn.Module) -> nn.Module:
        """A model that is only evaluated: on the device, under the precision, and not wrapped."""
        precision, device = PRECISIONS[self._first.spec.precision].means, self._first.world.device
        placed = place(model, device)
        widen(placed, compute_context(precision, device))
        return placed

    def wraps(self, model: nn.Module) -> bool:
        """Whether the strategy has anything to do with the model: it is trained, or sharded block by block."""
        return chosen(self._first.spec).blocks or any(p.requires_grad for p in model.parameters())

    def _session(self, model: nn.Module) -> Session:
        session, self._unused = self._unused, None
        spec = self._first.spec
        if self._block_classes:
            names = [name for name, module in model.named_modules() if type(module).__name__ in self._block_classes]
            if not names:
                why = f"the model has no module of these classes ({', '.join(self._block_classes)})"
                raise SpecError.of(
                    "transformer_cls_names_to_wrap", self._block_classes, why, "leave them out: blocks are found"
                )
            session, spec = None, attrs.evolve(spec, blocks=tuple(names))
        session = session or Session(spec, scaler=self._first.scaler)
        session.windows = self._micro.windows
        return session


@final
class Widened:
    """A forward that runs under the precision's context, and whose outputs come back in float32."""

    def __init__(self, forward: Callable[..., Any], context: Callable[[], Any]) -> None:
        self.own, self._context = forward, context
        update_wrapper(self, forward)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with self._context():
            output = self.own(*args, **kwargs)
        return to_float(output)

    def __reduce__(self) -> tuple[Any, ...]:
        return Widened, (self.own, self._context)


def widen(module: nn.Module, context: Callable[[], Any]) -> None:
    """Let its forward run under the context, where there is one."""
    if context is not nullcontext:
        module.forward = Widened(module.forward, context)


def narrow(module: nn.Module) -> None:
    """Give the module its own forward back."""
    forward = vars(module).get("forward")
    if isinstance(forward, Widened):
        if getattr(forward.own, "__self__", None) is module:
            del module.forward
        else:
            module.forward = forward.own
