"""The exponential moving average of the weights, kept beside them: each rank averages what it holds."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import final

import torch
from attrs import evolve
from torch import Tensor, nn

from restoke.errors import SessionError
from restoke.parts import Captured, Chunk, Parts, Saved, Stepper
from restoke.state import COMPILED


@final
class Averages:
    """After each optimizer step that was taken, average = decay * average + (1 - decay) * weight; it begins as the weight
    after the first. (As torch.optim.swa_utils.AveragedModel with get_ema_multi_avg_fn(decay) has it; Polyak and Juditsky 1992.)

    Weights that are trained are averaged, in float32 at least: in bfloat16, steps of 1 - decay would be rounded away.
    """

    def __init__(self, decay: float, parts: Parts) -> None:
        self._weight = 1 - decay
        self._parts = parts
        self._named = [(name.replace(COMPILED, ""), p) for name, p in parts.module.named_parameters()]
        self._averages: dict[str, Tensor] = {}
        self._inside = False

    def followed(self) -> Parts:
        """The parts, with a stepper that averages after each step, and that refuses to train where the averages are in use."""
        stepper = self._parts.stepper

        def backward(loss: Tensor) -> None:
            self.refuse_inside("backward")
            stepper.backward(loss)

        def step() -> bool:
            self.refuse_inside("step")
            stepped = stepper.step()
            if stepped:
                self._update()
            return stepped

        followed: Stepper = evolve(stepper, backward=backward, step=step)
        return evolve(self._parts, stepper=followed)

    def refuse_inside(self, verb: str) -> None:
        """Raises SessionError while the averages are in use."""
        if self._inside:
            why = "the averaged weights are in the model, in place of those that are trained"
            raise SessionError.of("averaged", verb, why, f"{verb} after the with block")

    @torch.no_grad()
    def _update(self) -> None:
        averages: list[Tensor] = []
        weights: list[Tensor] = []
        for name, parameter in self._named:
            if parameter.requires_grad:
                weight = self._wide(parameter)
                if name in self._averages:
                    averages.append(self._averages[name])
                    weights.append(weight)
                else:
                    self._averages[name] = weight.clone()
        if averages:
            torch._foreach_lerp_(averages, weights, self._weight)

    def _wide(self, parameter: nn.Parameter) -> Tensor:
        own = self._parts.layout.local(parameter.detach())
        return own.float() if own.itemsize < 4 else own

    @contextmanager
    def swapped(self) -> Iterator[None]:
        """The averages are the model's weights; before the first step, these are what they are. No collective."""
        self.refuse_inside("averaged")
        self._parts.reshard()
        mine = [(self._parts.layout.local(p.detach()), self._averages.get(name)) for name, p in self._named]
        changed = [(own, average, own.clone()) for own, average in mine if average is not None]
        self._inside = True
        try:
            with torch.no_grad():
                for own, average, _ in changed:
                    own.copy_(average)
            yield
        finally:
            self._parts.reshard()
            with torch.no_grad():
                for own, _, kept in changed:
                    own.copy_(kept)
            self._inside = False

    def capture(self, captured: Captured) -> None:
        """Adds `ema/NAME`, laid out as the parameters."""
        for name, parameter in self._named:
            if name in self._averages:
                captured.chunks[f"ema/{name}"] = Chunk(self._averages[name], *self._parts.layout.place(parameter))

    def restore(self, saved: Saved) -> list[str]:
        """Take up the averages of any world size; returns what there is to say."""
        keys = {key for key in saved.keys() if key.startswith("ema/")}  # noqa: SIM118
        self._averages = {
            name: self._parts.layout.read(saved, f"ema/{name}", p).to(p.device, self._wide(p).dtype)
            for name, p in self._named
            if f"ema/{name}" in keys
        }
        return [] if keys else ["the checkpoint has no averaged weights: they begin with the next step"]
