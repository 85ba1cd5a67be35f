"""`from stoke import X`, as scripts write it, under restoke's name and under Stoke's own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import restoke
from restoke.facades import stoke
from restoke.facades.stoke import MODULES

NAMES = [
    "Stoke",
    "ParamNormalize",
    "FP16Options",
    "DistributedOptions",
    "StokeOptimizer",
    "ClipGradNormConfig",
    "ClipGradConfig",
    "FairscaleOSSConfig",
    "FairscaleSDDPConfig",
    "FairscaleFSDPConfig",
    "HorovodConfig",
    "ApexConfig",
    "DeepspeedConfig",
    "DDPConfig",
    "AMPConfig",
    "DeepspeedAIOConfig",
    "DeepspeedActivationCheckpointingConfig",
    "DeepspeedFlopsConfig",
    "DeepspeedFP16Config",
    "DeepspeedPLDConfig",
    "DeepspeedOffloadOptimizerConfig",
    "DeepspeedOffloadParamConfig",
    "DeepspeedTensorboardConfig",
    "DeepspeedZeROConfig",
    "BucketedDistributedSampler",
]
LATER = ["StokeScheduler", "HorovodOps", "OffloadDevice", "BackendOptions"]
ELSEWHERE = {
    "stoke": ["__version__", *NAMES, *LATER],
    "stoke.stoke": ["Stoke"],
    "stoke.configs": ["StokeOptimizer", "DDPConfig", "HorovodOps", "OffloadDevice", "BackendOptions"],
    "stoke.data": ["StokeDataLoader", "BucketedDistributedSampler"],
    "stoke.status": ["StokeStatus", "DistributedOptions", "FP16Options"],
    "stoke.utils": ["ParamNormalize", "place_data_on_gpu", "zero_optimizer_grads", "unrolled_print", "make_folder"],
}


@pytest.mark.parametrize("name", [*NAMES, *LATER])
def test_every_name_of_stokes_is_restokes_and_the_facades(name: str) -> None:
    assert getattr(restoke, name) is getattr(stoke, name)
    assert name in restoke.__all__
    assert name in stoke.__all__


def test_an_unknown_name_is_none() -> None:
    with pytest.raises(AttributeError, match="no 'Stock'"):
        stoke.Stock  # noqa: B018
    assert dir(stoke) == sorted(stoke.__all__)


def test_the_modules_of_stoke_are_there_under_its_own_names() -> None:
    assert MODULES.keys() == ELSEWHERE.keys()
    lines = [f"from {module} import {', '.join(names)}" for module, names in ELSEWHERE.items()]
    code = "\n".join(["from restoke.launch.alias import install", "install('stoke')", *lines, "import stoke.utils"])
    code += "\nassert stoke.utils.ParamNormalize is ParamNormalize"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_values_of_the_enums_are_as_scripts_compare_them() -> None:
    assert restoke.DistributedOptions.ddp.value == "ddp" == restoke.DistributedOptions.ddp
    assert restoke.FP16Options["amp"].value == "amp"
    assert restoke.BackendOptions.mpi.value == "mpi"  # B54: a blank before it
    assert restoke.ParamNormalize.MILLION.value == 1e6


# B55: every DeepspeedConfig had the same sections, and they could be changed
def test_default_sections_cannot_be_changed_for_others() -> None:
    config: Any = restoke.DeepspeedConfig()
    with pytest.raises(AttributeError):
        config.aio.block_size = 1


def test_the_small_functions_do_what_they_say(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stoke.make_folder(tmp_path / "a" / "b")
    stoke.make_folder(str(tmp_path / "a"))
    assert (tmp_path / "a" / "b").is_dir()
    stoke.unrolled_print(["x", "y"], single_line=True)
    assert capsys.readouterr().out == "Stoke -- x, y\n"
    weight = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    weight.grad = torch.ones(2)
    stoke.zero_optimizer_grads(optimizer, apex=True)
    stoke.zero_optimizer_grads(optimizer, horovod=True)
    assert weight.grad.tolist() == [0, 0]
    stoke.zero_optimizer_grads(optimizer)
    assert weight.grad is None


@pytest.mark.gpu
def test_a_batch_comes_to_the_gpu_and_labels_stay_whole_numbers() -> None:
    batch = stoke.place_data_on_gpu({"x": torch.ones(2), "y": torch.ones(2, dtype=torch.long)}, fp16="deepspeed")  # B11
    assert {key: (value.device.type, value.dtype) for key, value in batch.items()} == {
        "x": ("cuda", torch.float32),
        "y": ("cuda", torch.int64),
    }


def test_importing_stoke_loads_nothing_that_training_does_not_need() -> None:
    code = "import sys, torch; before = set(sys.modules); from restoke import Stoke; print(*sorted(set(sys.modules) - before))"
    told = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60).stdout.split()
    foreign = {name.split(".")[0] for name in told} - {"restoke"}
    assert foreign <= {"attr", "attrs"}
    assert not {"restoke.data", "restoke.checkpoint", "restoke.launch"} & set(told) - {"restoke.checkpoint"}
