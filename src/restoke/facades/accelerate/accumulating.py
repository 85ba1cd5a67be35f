"""The context of one micro-batch."""

from __future__ import annotations

from typing import Any, final

from restoke.facades.accelerate.micro import Micro
from restoke.facades.accelerate.trained import Trained


@final
class Accumulating:
    """Within it, models that do not end their window leave gradients unreduced. Inside of another one it counts nothing, and
    adds its models to those."""

    __slots__ = ("_began", "_micro", "_models", "_quiet")

    def __init__(self, micro: Micro, models: list[Trained]) -> None:
        self._micro, self._models = micro, models
        self._quiet: list[Trained] = []

    def __enter__(self) -> None:
        micro = self._micro
        self._began = micro.begin()
        if not micro.sync and not micro.plugin.sync_each_batch:
            self._quiet = self._models
            for model in self._quiet:
                model.parts.set_grad_sync(False)

    def __exit__(self, kind: Any, value: Any, trace: Any) -> None:
        if self._began:
            self._micro.end(kind is None)
        for model in self._quiet:
            model.parts.set_grad_sync(True)
