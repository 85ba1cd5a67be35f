"""Micro-batches and their windows, as `accumulate` counts them: whether it ends a window, and what divides its loss."""

from __future__ import annotations

from typing import Any, final

from torch import Tensor

from restoke.facades.accelerate.plugins import GradientAccumulationPlugin
from restoke.said import say_once
from restoke.windows import Windows


@final
class Micro:
    """The micro-batch that is running. `sync` says whether it ends a window: gradients are reduced, optimizers step.

    A window that ends short, with its loader, is divided by what it has. Where that was not known from its beginning, `due`
    is the factor that its gradients still lack. With `full` it is divided as a full one. `several` says that
    there are several processes.
    """

    def __init__(self, plugin: GradientAccumulationPlugin, *, full: bool = False, several: bool = False) -> None:
        self.plugin, self.full, self.several = plugin, full, several
        self.windows = Windows(plugin.num_steps or 1)
        self.loaders = Windows(1)  # those that are being iterated
        self._share = self.windows.length
        self._sync = True
        self._inside = False
        self.number = 0  # windows that were closed
        self.backwards = 0  # calls of backward, ever
        self.fresh = True  # whether this micro-batch has seen no backward yet
        self._since = 0  # calls of backward outside of `accumulate`, since the last step
        self.due = 1.0

    def resize(self, steps: int) -> None:
        """Windows of so many micro-batches from the next one on."""
        self.plugin.num_steps = steps
        self.windows.resize(steps)

    @classmethod
    def alone(cls) -> Micro:
        """For what belongs to no Accelerator."""
        return cls(GradientAccumulationPlugin(num_steps=1))

    def watch(self, loader: Any) -> None:
        """Follow a loader; its end ends a window, unless the plugin says otherwise."""
        loader.watch(self.loaders)
        if self.plugin.sync_with_dataloader:
            loader.watch(self.windows)

    @property
    def sync(self) -> bool:
        return self._sync

    @sync.setter
    def sync(self, on: bool) -> None:
        """A script may end a window before its time."""
        self._sync = on
        if on and self._inside:
            self._shorten()

    def begin(self) -> bool:
        """A micro-batch begins, unless one is running already: whether it does."""
        if self._inside:
            return False
        self._inside = True
        self._begin()
        return True

    def end(self, whole: bool) -> None:
        """It ends; one that raised does not count."""
        self._inside = False
        if whole:
            self._end()

    def _begin(self) -> None:
        windows = self.windows
        self.fresh, self._since = True, 0
        if windows.done == 0:
            self.due = 1.0
            self._share = int(self.plugin.num_steps or 1) if self.full else windows.length
        self._sync = windows.ending
        if self._sync:
            self._shorten()

    def _shorten(self) -> None:
        """The window ends with this micro-batch; those before were divided by more."""
        done = self.windows.done + 1
        if done != self._share and not self.full:
            if self.windows.done:
                self.due = self._share / done
            else:
                self._share = done

    def _end(self) -> None:
        if self._sync:
            self.windows.close()
            self.number += 1
        else:
            self.windows.done += 1

    def divided(self, loss: Tensor) -> Tensor:
        """The loss's share of its window, which ends short or not."""
        self.backwards += 1
        self.fresh = False
        if not self._inside:
            self._since += 1
            length = self.plugin.num_steps or 1
        else:
            length = self._share
        return loss if length == 1 else loss / length

    def step_is_due(self) -> None:
        """Outside of `accumulate` the script counts its windows itself: what they lack is made good."""
        if self._inside or not self._since:
            return
        length = self.plugin.num_steps or 1
        self.due = 1.0 if self.full or self._since >= length else length / self._since
        if self.due != 1.0:
            say_once(
                f"gradient_accumulation_steps={length}, but the optimizer was stepped after {self._since} backward, outside of "
                "accelerator.accumulate(model): those gradients are divided by what they are"
            )
        self._since = 0
        self.number += 1

    def keeps(self) -> bool:
        """Whether a `zero_grad` now, before the backward, would drop what the window has gathered."""
        return self._inside and self.fresh and self.windows.done > 0

    def state_dict(self) -> dict[str, Any]:
        return {"share": self._share, "due": self.due}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._share, self.due = state["share"], state["due"]
