"""Old flags, new words and `spec=` declare one spec together, or say where they contradict each other."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from restoke import AMPConfig, ClipGradNormConfig, DDPConfig, Spec, Stoke
from restoke.errors import SpecError
from restoke.facades.stoke.declare import refuse_unknown, spec_of
from tests.facades.stoke.samples import CE, SGD, net, stoke
from tests.facades.stoke.test_flags import flags


def declared(steps: int | None = 1, base: Any = None, words: dict[str, Any] | None = None, **given: Any) -> Spec:
    return spec_of(flags(**given), steps, words or {}, base)


def test_nothing_said_is_one_process_on_the_cpu_or_what_a_launcher_started() -> None:
    assert declared() == Spec(device="cpu")


@pytest.mark.parametrize(
    ("given", "axes"),
    [
        ({"gpu": True}, {"device": "cuda"}),
        ({"fp16": "amp"}, {"device": "cpu", "precision": "fp16"}),
        ({"fp16": "apex_O1"}, {"device": "cpu", "precision": "apex-O1"}),
        ({"fp16": "deepspeed", "distributed": "deepspeed"}, {"device": "cpu", "precision": "fp16", "strategy": "deepspeed-0"}),
        ({"distributed": "ddp", "gpu": True}, {"device": "cuda", "strategy": "ddp"}),
        ({"distributed": "ddp"}, {"device": "cpu", "strategy": "ddp"}),
        ({"grad_clip": ClipGradNormConfig(2.0, 2.0)}, {"device": "cpu", "clip": 2.0}),
        ({"grad_clip": "value:3"}, {"device": "cpu", "clip": "value:3"}),
        ({"configs": [AMPConfig(init_scale=8.0)]}, {"device": "cpu", "settings": [AMPConfig(init_scale=8.0)]}),
        ({"steps": 4}, {"device": "cpu", "accumulate": 4}),
        ({"steps": None}, {"device": "cpu"}),
        ({"words": {"strategy": "ddp", "precision": "bf16", "device": "auto", "seed": 3}}, None),
    ],
)
def test_each_flag_and_word_sets_its_axis(given: dict[str, Any], axes: dict[str, Any] | None) -> None:
    assert declared(**given) == Spec(**axes if axes is not None else given["words"])


def test_a_spec_is_an_object_a_mapping_or_a_file_and_words_add_to_it(tmp_path: Path) -> None:
    file = tmp_path / "ddp.yaml"
    file.write_text("strategy: ddp\naccumulate: 2\nsettings: {ddp: {bucket_cap_mb: 5}}\n")
    whole = Spec(strategy="ddp", accumulate=2, settings=[DDPConfig(bucket_cap_mb=5)])
    for base in (whole, {"strategy": "ddp", "accumulate": 2, "settings": {"ddp": {"bucket_cap_mb": 5}}}, file, str(file)):
        assert declared(base=base) == whole  # gpu=False, the default, says nothing beside a spec
        more = declared(base=base, fp16="amp", configs=[AMPConfig()])
        assert (more.precision, more.settings) == ("fp16", (DDPConfig(bucket_cap_mb=5), AMPConfig()))
    assert declared(base={}, gpu=True).device == "cuda"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"fp16": "amp", "words": {"precision": "bf16"}}, "precision='bf16': fp16='amp' says 'fp16'. Instead: one of the two."),
        ({"gpu": True, "words": {"device": "cpu"}}, "device='cpu': gpu=True says 'cuda'"),
        ({"distributed": "ddp", "words": {"strategy": "single"}}, "strategy='single': distributed='ddp' says 'ddp'"),
        ({"distributed": "ddp", "base": {"strategy": "fsdp"}}, "strategy='fsdp': distributed='ddp' says 'ddp'"),
        ({"words": {"precision": "bf16"}, "base": Spec(precision="fp16")}, "precision='fp16': precision='bf16' says 'bf16'"),
        ({"steps": 2, "base": {"accumulate": 4}}, "accumulate=4: grad_accum_steps=2 says 2"),
        ({"grad_clip": 1.0, "base": {"clip": 2.0}}, "says ClipGradNormConfig(max_norm=1.0"),
        ({"configs": [DDPConfig()], "base": {"settings": {"ddp": {}}}}, "settings of ddp are given twice"),
        ({"base": 3}, "spec=3: it is no declaration"),
        ({"base": "missing.yaml"}, "spec='missing.yaml': the file cannot be read"),
        ({"base": {"stratgy": "ddp"}}, "did you mean 'strategy'"),
        ({"words": {"seed": "x"}}, "seed='x': it is not a whole number"),
    ],
)
def test_a_contradiction_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=re.escape(message)):
        declared(**given)


def test_every_contradiction_is_told_at_once_and_agreement_is_none() -> None:
    with pytest.raises(SpecError) as caught:
        declared(fp16="amp", distributed="ddp", words={"precision": "bf16", "strategy": "fsdp"})
    assert [problem.axis for problem in caught.value.problems] == ["precision", "strategy"]
    assert declared(fp16="amp", words={"precision": "fp16"}, base={"precision": "fp16"}).precision == "fp16"
    assert declared(gpu=True, words={"device": "auto"}).device == "cuda"


def test_a_mistyped_keyword_is_named_with_the_nearest_right_one() -> None:
    with pytest.raises(SpecError) as caught:
        Stoke(net(), SGD, CE, 8, grad_acum_steps=2, stratgy="ddp")
    assert [(p.axis, p.instead) for p in caught.value.problems] == [
        ("grad_acum_steps", "did you mean 'grad_accum_steps'"),
        ("stratgy", "did you mean 'strategy'"),
    ]

    def method(self: Any, first: int, **rest: Any) -> None: ...

    with pytest.raises(SpecError, match=r"zzz=1: there is no such keyword. Instead: one of: first\.$"):
        refuse_unknown({"zzz": 1}, method)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"batch_size": 0}, "batch_size_per_device=0: a batch holds at least one sample"),
        ({"batch_size": "many"}, "batch_size_per_device='many': it is not a whole number"),
        ({"grad_accum_steps": 0}, "accumulate=0: an optimizer step needs at least one micro-batch"),  # B58
        ({"grad_accum_steps": -1}, "accumulate=-1"),
        ({"ema_weight": 0}, "ema_weight=0: it is no weight of the newest loss. Instead: a number above 0, up to 1."),
        ({"ema_weight": 1.5}, "ema_weight=1.5"),
        ({"ema_weight": True}, "ema_weight=True"),
        ({"ema_weight": "0.1"}, "ema_weight='0.1'"),
        ({"info_rank": "all"}, "info_rank='all': it is neither a rank nor a list of ranks"),
        ({"model": CE.forward}, "model='method': it is no torch.nn.Module"),
        ({"loss": 3}, "loss=3: it cannot be called"),
        ({"loss": []}, "loss=None: it cannot be called"),
        ({"loss": [CE, None]}, "loss=None: it cannot be called"),
        ({"gpu": True}, "device='cuda': torch sees none here. Instead: device=cpu"),  # R1
        ({"distributed": "horovod"}, "strategy='horovod': Horovod is not connected yet. Instead: strategy=ddp"),
        ({"distributed": "ddp"}, "strategy='ddp': it needs processes that a launcher started, and none did"),
        ({"fp16": "apex_O1"}, "precision='apex-O1': Apex is not connected yet. Instead: precision=fp16"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_made(given: dict[str, Any], message: str) -> None:
    if given.get("gpu") and torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(SpecError, match=re.escape(message)) as caught:
        stoke(**given)
    assert isinstance(caught.value, TypeError)  # as Stoke's own refusals of types were
    assert isinstance(caught.value, ValueError)
