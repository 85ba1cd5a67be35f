"""Precisions as torch has them: contexts that leave no trace, and a scaler that several optimizers may share."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from restoke.configs import AMPConfig
from restoke.passes.convert import convert
from restoke.precision import compute_context, loss_scaler, matmul_context
from restoke.spec import Precision
from restoke.table import PRECISIONS

CPU = torch.device("cpu")


def test_tf32_holds_within_its_context_alone() -> None:
    before = torch.backends.cuda.matmul.fp32_precision
    with matmul_context(PRECISIONS["tf32"].means)():
        assert torch.backends.cuda.matmul.fp32_precision == "tf32"
        assert torch.backends.cudnn.conv.fp32_precision == "tf32"  # type: ignore[attr-defined]
    assert torch.backends.cuda.matmul.fp32_precision == before
    with pytest.raises(ZeroDivisionError), matmul_context(PRECISIONS["tf32"].means)():
        raise ZeroDivisionError
    assert torch.backends.cuda.matmul.fp32_precision == before


@pytest.mark.parametrize("name", ["bf16", "fp16"])
def test_autocast_computes_low_and_ends(name: str) -> None:
    layer, x = nn.Linear(2, 2), torch.ones(1, 2)
    context = compute_context(PRECISIONS[name].means, CPU)
    with context(), context():
        assert str(layer(x).dtype) == f"torch.{PRECISIONS[name].means.compute}"
    assert layer(x).dtype == torch.float32


def test_only_what_is_scaled_has_a_scaler_and_it_obeys_its_settings() -> None:
    assert loss_scaler(PRECISIONS["bf16"].means, CPU, AMPConfig()) is None
    config = AMPConfig(backoff_factor=0.25, growth_factor=3.0, growth_interval=7, init_scale=32.0)
    scaler = loss_scaler(PRECISIONS["fp16"].means, CPU, config)
    assert scaler is not None
    made = scaler.torch
    got = (made.get_backoff_factor(), made.get_growth_factor(), made.get_growth_interval(), made.get_scale())
    assert got == (0.25, 3.0, 7, 32.0)


class _Nested(nn.Module):
    def forward(self, batch: dict[str, torch.Tensor], *, extra: torch.Tensor) -> dict[str, torch.Tensor]:
        assert batch["x"].dtype == extra.dtype == torch.bfloat16
        assert batch["index"].dtype == torch.int64
        return {"y": batch["x"] + extra, "index": batch["index"]}


def test_a_converted_model_casts_what_goes_in_and_out_however_nested() -> None:
    model = _Nested()
    convert(model, Precision(params="bfloat16"))
    output = model({"x": torch.ones(2), "index": torch.ones(2, dtype=torch.int64)}, extra=torch.ones(2))
    assert (output["y"].dtype, output["index"].dtype) == (torch.float32, torch.int64)


def test_nothing_declared_leaves_the_model_alone() -> None:
    model = nn.Linear(2, 2)
    convert(model, Precision())
    assert model.weight.dtype == torch.float32
    assert not model._forward_pre_hooks
