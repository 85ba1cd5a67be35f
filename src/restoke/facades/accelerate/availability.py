"""Which libraries and devices are here, as scripts ask for them: `is_NAME_available()`."""

from __future__ import annotations

import importlib.metadata
import operator
import platform
from collections.abc import Callable
from typing import Any

import torch

from restoke.facts import installed

COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
    "<=": operator.le,
    "<": operator.lt,
}
# the module behind each name, where it is another
MODULES = {
    "bnb": "bitsandbytes",
    "pippy": "torch.distributed.pipelining",
    "torch_xla": "torch_xla",
    "schedulefree": "schedulefree",
    "lomo": "lomo_optim",
    "msamp": "msamp",
    "transformer_engine": "transformer_engine",
    "transformer_engine_mxfp8": "transformer_engine",
    "torchdata": "torchdata",
    "torchdata_stateful_dataloader": "torchdata.stateful_dataloader",
    "matplotlib": "matplotlib",
    "import_timer": "import_timer",
    "megatron_lm": "megatron",
    "boto3": "boto3",
    "rich": "rich",
    "sagemaker": "sagemaker",
    "tqdm": "tqdm",
    "4bit_bnb": "bitsandbytes",
    "8bit_bnb": "bitsandbytes",
}
LIBRARIES = (
    "aim bnb clearml comet_ml datasets deepspeed dvclive pandas peft pytest "
    "swanlab tensorboard timm torchao torchvision trackio transformers triton wandb mlflow "
    "boto3 rich sagemaker tqdm pippy torch_xla schedulefree lomo msamp transformer_engine "
    "transformer_engine_mxfp8 torchdata torchdata_stateful_dataloader matplotlib import_timer megatron_lm 4bit_bnb 8bit_bnb"
).split()
ABSENT = ("hpu", "mlu", "musa", "neuron", "npu", "sdaa", "tpu", "habana_gaudi1", "ccl", "ipex")


def _has(module: str) -> bool:
    try:
        return installed(module)
    except ImportError:
        return False


def _of(name: str) -> Callable[..., bool]:
    if name == "tensorboard":
        return lambda: _has("tensorboard") or _has("tensorboardX")
    return lambda: _has(MODULES.get(name, name))


def is_cuda_available() -> bool:
    return torch.cuda.is_available()


def is_xpu_available(check_device: bool = False) -> bool:
    return torch.xpu.is_available()


def is_mps_available(min_version: str = "1.12") -> bool:
    return torch.backends.mps.is_available()


def is_rocm_available() -> bool:
    return torch.version.hip is not None and torch.cuda.is_available()


def is_bf16_available(ignore_tpu: bool = False) -> bool:
    return not torch.cuda.is_available() or torch.cuda.is_bf16_supported()


def is_fp16_available() -> bool:
    return True


def is_fp8_available() -> bool:
    return _has("torchao") or _has("transformer_engine")


def check_cuda_fp8_capability() -> bool:
    return torch.cuda.is_available() and torch.cuda.get_device_capability() >= (8, 9)


def is_habana_gaudi1() -> bool:
    return False


def _version(text: str) -> tuple[int, ...]:
    release = text.split("+", maxsplit=1)[0].split("rc", maxsplit=1)[0]
    return tuple(int(part) for part in release.split(".") if part.isdigit())


def compare_versions(library_or_version: Any, operation: str, requirement_version: str) -> bool:
    """Whether a library, or a version, compares so with a version. Raises ValueError: there is no such comparison."""
    if operation not in COMPARISONS:
        raise ValueError(f"`operation` must be one of {list(COMPARISONS)}, received {operation}")
    text = str(library_or_version)
    if text and not text[0].isdigit():
        text = importlib.metadata.version(text)
    return COMPARISONS[operation](_version(text), _version(requirement_version))


def is_torch_version(operation: str, version: str) -> bool:
    return compare_versions(str(torch.__version__), operation, version)


def is_python_version(operation: str, version: str) -> bool:
    return compare_versions(platform.python_version(), operation, version)


def __getattr__(name: str) -> Any:
    word = name.removeprefix("is_").removesuffix("_available")
    if name == f"is_{word}_available" and word in (*LIBRARIES, *ABSENT):
        return _of(word) if word in LIBRARIES else (lambda *_, **__: False)
    raise AttributeError(f"nothing is known of {name!r}")
