"""Tensors in nested containers: walked, moved, cut, joined, described; containers keep their types."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from restoke.data import place
from restoke.errors import DataError


def is_torch_tensor(tensor: Any) -> bool:
    return isinstance(tensor, Tensor)


def is_tensor_information(info: Any) -> bool:
    return isinstance(info, TensorInformation)


class TensorInformation(NamedTuple):
    """What there is to know of a tensor without its values."""

    shape: torch.Size
    dtype: torch.dtype


def is_namedtuple(data: Any) -> bool:
    return isinstance(data, tuple) and callable(getattr(data, "_make", None))


def honor_type(obj: Any, generator: Iterator[Any]) -> Any:
    """What the generator gives, as a container of the object's type."""
    return type(obj)(*list(generator)) if is_namedtuple(obj) else type(obj)(generator)


def recursively_apply(
    func: Callable[..., Any],
    data: Any,
    *args: Any,
    test_type: Callable[[Any], bool] = is_torch_tensor,
    error_on_other_type: bool = False,
    **kwargs: Any,
) -> Any:
    """`func(leaf, *args, **kwargs)` for each leaf of lists, tuples and mappings that passes the test.

    Raises:
        DataError: with `error_on_other_type`, another leaf.
    """

    def walk(item: Any) -> Any:
        if isinstance(item, tuple | list):
            return honor_type(item, (walk(each) for each in item))
        if isinstance(item, Mapping):
            return type(item)({key: walk(value) for key, value in item.items()})  # type: ignore[call-arg]
        if test_type(item):
            return func(item, *args, **kwargs)
        if error_on_other_type:
            name = getattr(func, "__name__", "this").strip("_")
            why = f"{name} takes tensors, in lists, tuples and mappings"
            raise DataError.of("data", f"a {type(item).__name__}", why, "torch.tensor(value), or gather_object")
        return item

    return walk(data)


def leaves(data: Any) -> Iterator[tuple[str, Any]]:
    """Each leaf, and the way to it."""
    if isinstance(data, tuple | list):
        for index, item in enumerate(data):
            yield from ((f"[{index}]{way}", leaf) for way, leaf in leaves(item))
    elif isinstance(data, Mapping):
        for key, item in data.items():
            yield from ((f"[{key!r}]{way}", leaf) for way, leaf in leaves(item))
    else:
        yield "", data


def send_to_device(
    tensor: Any, device: torch.device | str | int, non_blocking: bool = False, skip_keys: str | list[str] | None = None
) -> Any:
    """The tensors of a nested batch on a device; entries of mappings under `skip_keys` stay where they are."""
    target = torch.device(device)
    if skip_keys is None:
        return place(tensor, target, non_blocking=non_blocking)
    skipped = [skip_keys] if isinstance(skip_keys, str) else skip_keys
    if isinstance(tensor, Mapping):
        moved = {
            key: value if key in skipped else send_to_device(value, target, non_blocking, skipped)
            for key, value in tensor.items()
        }
        return type(tensor)(moved)  # type: ignore[call-arg]
    if isinstance(tensor, tuple | list):
        return honor_type(tensor, (send_to_device(each, target, non_blocking, skipped) for each in tensor))
    return place(tensor, target, non_blocking=non_blocking)


def get_data_structure(data: Any) -> Any:
    """The shape and dtype of each tensor, in place of it."""
    return recursively_apply(lambda tensor: TensorInformation(tensor.shape, tensor.dtype), data)


def get_shape(data: Any) -> Any:
    """The shape of each tensor, as a list, in place of it."""
    return recursively_apply(lambda tensor: list(tensor.shape), data)


def initialize_tensors(data_structure: Any) -> Any:
    """Empty tensors for a structure of `get_data_structure`."""
    if isinstance(data_structure, TensorInformation):
        return torch.empty(*data_structure.shape, dtype=data_structure.dtype)
    if isinstance(data_structure, tuple | list):
        return honor_type(data_structure, (initialize_tensors(each) for each in data_structure))
    if isinstance(data_structure, Mapping):
        return type(data_structure)({key: initialize_tensors(v) for key, v in data_structure.items()})  # type: ignore[call-arg]
    return data_structure


def find_batch_size(data: Any) -> int | None:
    """The length of the first tensor in it that has a dimension.

    Raises:
        DataError: there is none, in no container that could have one.
    """
    found = next((leaf.shape[0] for _, leaf in leaves(data) if isinstance(leaf, Tensor) and leaf.ndim), None)
    if found is None and isinstance(data, tuple | list | Mapping) and len(data) == 0:
        why = "there is nothing in it"
        raise DataError.of("data", f"an empty {type(data).__name__}", why, "a batch with tensors")
    if found is None and not isinstance(data, tuple | list | Mapping):
        raise DataError.of("data", f"a {type(data).__name__}", "it is no batch of tensors", "tensors, in lists or mappings")
    return found


def ignorant_find_batch_size(data: Any) -> int | None:
    """As `find_batch_size`, or None."""
    try:
        return find_batch_size(data)
    except DataError:
        return None


def slice_tensors(data: Any, tensor_slice: slice, process_index: int | None = None, num_processes: int | None = None) -> Any:
    """The slice of each tensor."""
    return recursively_apply(lambda tensor: tensor[tensor_slice], data)


def concatenate(data: Any, dim: int = 0) -> Any:
    """Several batches of one structure as one, tensor by tensor.

    Raises:
        DataError: they hold something else than tensors.
    """
    first = data[0]
    if isinstance(first, tuple | list):
        return honor_type(first, (concatenate([each[i] for each in data], dim) for i in range(len(first))))
    if isinstance(first, Mapping):
        return type(first)({key: concatenate([each[key] for each in data], dim) for key in first})  # type: ignore[call-arg]
    if not isinstance(first, Tensor):
        raise DataError.of("data", f"a {type(first).__name__}", "only tensors can be joined", "tensors, in lists or mappings")
    return torch.cat(list(data), dim=dim)


def listify(data: Any) -> Any:
    """Each tensor as a list of numbers."""

    def numbers(tensor: Tensor) -> Any:
        cpu = tensor.detach().cpu()
        return (cpu.float() if cpu.dtype == torch.bfloat16 else cpu).tolist()

    return recursively_apply(numbers, data)


def convert_to_fp32(tensor: Any) -> Any:
    """The tensors of half precision in float32."""
    return recursively_apply(lambda t: t.float(), tensor, test_type=_is_half)


def _is_half(tensor: Any) -> bool:
    return isinstance(tensor, Tensor) and tensor.dtype in (torch.float16, torch.bfloat16)


def to_float(output: Any) -> Any:
    """As `convert_to_fp32`, for what a model returns: an object with fields keeps its type, and its other fields."""
    if isinstance(output, Tensor):
        return output.float() if output.dtype in (torch.float16, torch.bfloat16) else output
    return convert_to_fp32(output)
