"""The backward of a loss, which may belong to one prepared model or to several."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, final

from torch import Tensor

from restoke.errors import SessionError
from restoke.facades.accelerate.micro import Micro
from restoke.facades.accelerate.models import Models
from restoke.precision import matmul_context
from restoke.session import Session
from restoke.table import PRECISIONS


@final
class Backward:
    """With one model it is the strategy's own; else the loss is scaled here, once, for the gradients of all."""

    def __init__(self, session: Session, models: Models, micro: Micro) -> None:
        self._session, self._models, self._micro = session, models, micro
        self._context = matmul_context(PRECISIONS[session.spec.precision].means)

    def run(self, loss: Tensor, keywords: Mapping[str, Any]) -> None:
        """Raises SessionError: the loss has no graph."""
        if not loss.requires_grad:
            why = "nothing that it was computed from needs gradients"
            raise SessionError.of(
                "loss", "a tensor without a graph", why, "a loss of a prepared model, outside of torch.no_grad()"
            )
        trained = self._models.trained
        if len(trained) == 1 and not keywords:
            trained[0].parts.stepper.backward(loss)
            trained[0].reduce_late()
            return
        for model in trained:
            model.count_forwards()
        with self._context():
            self._scaled(loss).backward(**keywords)  # type: ignore[no-untyped-call]
        for model in trained:
            model.reduce_late()

    def _scaled(self, loss: Tensor) -> Tensor:
        scaler = self._session.scaler
        if scaler is None:
            return loss
        stepped = [model for model in self._models.trained if model.stepped]
        if not stepped or self._micro.windows.done:
            return scaler.torch.scale(loss)
        for model in self._models.trained:
            model.stepped = False
        return scaler.scale(loss, stepped[-1].parts.optimizer)  # whose step is over: the scale may move now
