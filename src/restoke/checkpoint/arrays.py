"""numpy arrays and scalars as raw bytes, and which tensors a file can hold."""

from __future__ import annotations

import base64
import math
import re
from typing import Any

import numpy as np
import torch
from torch import Tensor

from restoke.checkpoint.container import NAMES
from restoke.errors import CheckpointError

SIMPLE = re.compile(r"[<>|=][biufcSUMm]\d{1,18}(\[[0-9A-Za-z/]{1,20}\])?")  # no objects, no records


def check_tensor(tensor: Tensor, axis: str) -> None:
    """Raises CheckpointError where the tensor cannot be stored as its bytes."""
    got = f"a {type(tensor).__name__} of shape {tuple(tensor.shape)}"
    if tensor.is_meta or tensor.layout is not torch.strided:
        why = "it has no data (it is on the meta device)" if tensor.is_meta else f"its layout is {tensor.layout}"
        raise CheckpointError.of(axis, got, why, "save a dense tensor")
    if type(tensor.detach()) is not Tensor:
        raise CheckpointError.of(axis, got, "its class gives its bytes another meaning", "save the tensors it is made of")
    if tensor.dtype not in NAMES:
        remedy = "torch.view_as_real(tensor)" if tensor.is_complex() else "convert it to one of " + ", ".join(NAMES.values())
        raise CheckpointError.of(axis, str(tensor.dtype), "safetensors has no such dtype", remedy)


def _simple(dtype: np.dtype[Any], axis: str) -> str:
    name = dtype.str
    if not SIMPLE.fullmatch(name) or dtype.names is not None:
        raise CheckpointError.of(axis, f"a numpy {dtype}", "it holds no plain numbers or texts", "convert it to plain values")
    return name


def scalar_to_json(value: np.generic, axis: str) -> list[str]:
    """[dtype, bytes in base 64]."""
    return [_simple(value.dtype, axis), base64.b64encode(value.tobytes()).decode()]


def scalar_from_json(content: list[str]) -> Any:
    name, data = content
    return _array(name, (), base64.b64decode(data, validate=True))[()]


def array_to_tensor(value: np.ndarray[Any, Any], axis: str) -> tuple[Tensor, list[Any]]:
    """The array's bytes as a tensor, and [dtype, shape]."""
    name = _simple(value.dtype, axis)
    data = np.frombuffer(bytearray(value.tobytes()), dtype=np.uint8)
    return torch.from_numpy(data), [name, list(value.shape)]


def tensor_to_array(tensor: Tensor, name: str, shape: list[int]) -> np.ndarray[Any, Any]:
    return _array(name, tuple(shape), tensor.numpy())


def _array(name: str, shape: tuple[int, ...], data: Any) -> np.ndarray[Any, Any]:
    """Raises ValueError where the bytes are not as many as the dtype and the shape say."""
    if not SIMPLE.fullmatch(name):
        raise ValueError(f"{name} is no dtype of plain numbers or texts")
    dtype = np.dtype(name)
    size = memoryview(data).nbytes
    if math.prod(shape) * dtype.itemsize != size:
        raise ValueError(f"{size} bytes are no {name} of shape {shape}")
    return np.ndarray(shape, dtype) if size == 0 else np.ndarray(shape, dtype, buffer=data)
