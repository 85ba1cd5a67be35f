"""The properties that echo what runs."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from restoke import (
    AMPConfig,
    ApexConfig,
    ClipGradNormConfig,
    DDPConfig,
    DeepspeedConfig,
    FairscaleFSDPConfig,
    FairscaleOSSConfig,
    FairscaleSDDPConfig,
    HorovodConfig,
    Session,
    Spec,
)
from restoke.facades.stoke.status import Echoes, StokeStatus
from tests.facades.stoke.samples import SGD, net, stoke

KEYS = [
    "cuda",
    "nccl",
    "batch_size",
    "grad_accum",
    "grad_clip",
    "gpu",
    "distributed",
    "zero",
    "oss",
    "sharded",
    "fully_sharded",
    "world_size",
    "fp16",
]


def test_the_status_has_stokes_keys_and_cannot_be_changed() -> None:
    clip = ClipGradNormConfig(1.0, 2.0)
    it = stoke(fp16="amp", grad_accum_steps=3, grad_clip=clip)
    status = it.status.status
    assert sorted(status) == sorted(KEYS)
    assert [status[key] for key in KEYS[2:]] == [8, 3, clip, False, None, None, False, False, False, 1, "amp"]
    assert status["cuda"] is torch.cuda.is_available()
    assert status["nccl"] is torch.distributed.is_nccl_available()
    with pytest.raises(TypeError):
        status["gpu"] = True  # type: ignore[index]
    assert (it.batch_size, it.effective_batch_size, it.grad_accum, it.grad_clip, it.fp16) == (8, 24, 3, clip, "amp")
    assert (it.cuda, it.nccl) == (status["cuda"], status["nccl"])
    assert repr(it.status).splitlines()[0] == "STOKE STATE:"
    assert len(repr(it.status).splitlines()) == 15
    assert "Mixed precision: amp" in repr(it.status)


class Told(Echoes):
    """A Stoke object's properties, for strategies that do not run here."""

    def __init__(self, **axes: Any) -> None:
        self.session = Session()
        self.session.spec = Spec(**axes)

    @property
    def status(self) -> StokeStatus:
        return StokeStatus.of(self.session, 4)


FLAGS = ("is_ddp", "is_horovod", "is_deepspeed", "is_amp", "is_apex", "oss", "sharded", "fully_sharded")
SETTINGS = {
    "amp_config": AMPConfig(init_scale=2.0),
    "apex_config": ApexConfig(verbosity=1),
    "ddp_config": DDPConfig(bucket_cap_mb=1),
    "deepspeed_config": DeepspeedConfig(dump_state=True),
    "oss_config": FairscaleOSSConfig(broadcast_fp16=True),
    "sddp_config": FairscaleSDDPConfig(reduce_fp16=True),
    "fsdp_config": FairscaleFSDPConfig(bucket_cap_mb=1),
    "horovod_config": HorovodConfig(compression=True),
}


@pytest.mark.parametrize(
    ("strategy", "precision", "true", "configs"),
    [
        ("single", "fp32", "", ""),
        ("single", "fp16", "is_amp", "amp_config"),
        ("single", "apex-O2", "is_apex", "apex_config"),
        ("ddp", "fp32", "is_ddp", "ddp_config"),
        ("ddp", "fp16", "is_ddp is_amp", "ddp_config amp_config"),
        ("oss", "fp32", "is_ddp oss", "ddp_config oss_config"),
        ("sddp", "fp32", "is_ddp oss sharded", "ddp_config oss_config sddp_config"),
        ("fairscale-fsdp", "fp32", "is_ddp fully_sharded", "ddp_config fsdp_config"),
        ("horovod", "apex-O1", "is_horovod is_apex", "horovod_config apex_config"),
        ("deepspeed-2", "fp16", "is_deepspeed", "deepspeed_config"),
        ("fsdp", "bf16", "", ""),
    ],
)
def test_flags_and_settings_tell_what_is_on(strategy: str, precision: str, true: str, configs: str) -> None:
    it = Told(strategy=strategy, precision=precision, settings=SETTINGS.values())
    assert [name for name in FLAGS if getattr(it, name)] == [name for name in FLAGS if name in true.split()]
    assert {name: getattr(it, name) for name in SETTINGS} == {
        name: value if name in configs.split() else None for name, value in SETTINGS.items()
    }


def test_a_status_has_the_properties_of_stokes() -> None:
    status = Told(strategy="deepspeed-3", precision="fp16").status
    assert (status.zero, status.is_fp16_deepspeed, status.is_fp16_amp, status.is_fairscale) == (3, True, False, False)
    assert status.is_distributed_deepspeed
    assert all(Told(strategy=strategy).status.is_fairscale for strategy in ("oss", "sddp", "fairscale-fsdp"))
    assert Told(strategy="fsdp").distributed == "fsdp"


def test_settings_that_are_not_given_are_the_defaults() -> None:
    assert stoke(fp16="amp").amp_config == AMPConfig()
    assert stoke().amp_config is None


def test_the_users_own_model_and_the_session_are_in_reach() -> None:
    model = net()
    it = stoke(model=model)
    assert it.model_access is model
    assert it.session.parts.optimizer is it.optimizer
    assert it.optimizer.defaults["lr"] == SGD["optimizer_kwargs"]["lr"]
    assert (it.scaler, it.fp16_state_dict) == (None, None)


# the device and the strategy that run are told, not those that the script wrote
def test_what_was_declared_outside_is_what_is_told(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("RESTOKE_SPEC", '{"precision": "fp16", "accumulate": 2}')
    it = stoke(grad_accum_steps=4)
    assert (it.fp16, it.grad_accum, it.effective_batch_size) == ("amp", 2, 16)
    assert "accumulate=2 (the script: 4)" in capsys.readouterr().err
