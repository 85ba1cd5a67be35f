"""The way in for Stoke's old `.pt` files. They are pickles: loading one runs whatever code is in it."""

from __future__ import annotations

import pickle
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, final

import torch
from attrs import define
from torch import Tensor

from restoke import configs
from restoke.checkpoint.tiling import Box
from restoke.errors import CheckpointError, nearest

COUNTERS = ("optimizer_step", "backward_step", "grad_accum_step")
PARTS = (*COUNTERS, "model_state_dict", "optimizer_state_dict", "scaler_state_dict", "extras")


@final
@define(eq=False)
class StokeFile:
    """A `restoke.parts.Saved` whose tensors are in memory.

    `values` has `model` and `optimizer` as a strategy's state reads them, and `counters` (optimizer_step, backward_step,
    grad_accum_step), `scaler` (or None), `status` and `extras` as Stoke wrote them.
    """

    path: Path
    values: Mapping[str, Any]
    _tensors: dict[str, Tensor]

    def keys(self) -> Collection[str]:
        return self._tensors.keys()

    def shape(self, key: str) -> tuple[int, ...]:
        return tuple(self._tensor(key).shape)

    def dtype(self, key: str) -> torch.dtype:
        return self._tensor(key).dtype

    def read(self, key: str, offsets: tuple[int, ...] | None = None, shape: tuple[int, ...] | None = None) -> Tensor:
        tensor = self._tensor(key)
        whole = Box.whole(tuple(tensor.shape))
        box = whole if offsets is None or shape is None else Box(tuple(offsets), tuple(shape))
        return tensor[box.within(whole)].clone()

    def _tensor(self, key: str) -> Tensor:
        if key not in self._tensors:
            raise CheckpointError.of("key", key, f"{self.path.name} has no such tensor", nearest(key, self._tensors))
        return self._tensors[key]


def read_stoke(path: Path | str, names: Sequence[str], optimizer: str) -> StokeFile:
    """Read a file of Stoke's `save` (CPU, GPU, DDP, FairScale, Horovod). **It runs code from the file**: know where it is from.

    Stoke itself need not be installed: its classes become those of `restoke.configs`.

    Args:
        path: the `.pt` file.
        names: the names of the parameters in the order in which the optimizer had them, which is that of
            `model.named_parameters()`; Stoke saved the optimizer's state by their numbers.
        optimizer: the optimizer's class, such as "AdamW", which the file does not say.

    Raises:
        CheckpointError: the file is missing, or none of Stoke's, or its optimizer has another number of parameters.
    """
    path = Path(path)
    data = _load(path)
    missing = [part for part in PARTS if not isinstance(data, dict) or part not in data]
    if missing:
        why = f"it is no file of Stoke's: {', '.join(missing)} not in it"
        raise CheckpointError.of("path", str(path), why, "a file that Stoke saved")
    weights, extra = _split(data["model_state_dict"])
    tensors = {f"model/{name}": value for name, value in weights.items()}
    by_name, groups = _by_name(data["optimizer_state_dict"], names)
    fields: dict[str, Any] = {}
    for name, state in by_name.items():
        moments, fields[name] = _split(state)
        tensors |= {f"optimizer/{name}/{key}": value for key, value in moments.items()}
    values = {
        "model": {"aliases": {}, "extra": extra},
        "optimizer": {"groups": groups, "fields": fields, "class": optimizer},
        "counters": {name: data[name] for name in COUNTERS},
        "scaler": data["scaler_state_dict"],
        "status": data.get("stoke_status"),
        "extras": data["extras"],
    }
    return StokeFile(path, values, tensors)


def _split(state: Mapping[str, Any]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors, and the rest."""
    tensors = {key: value for key, value in state.items() if isinstance(value, Tensor)}
    return tensors, {key: value for key, value in state.items() if key not in tensors}


def _by_name(state: Mapping[str, Any], names: Sequence[str]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """What torch's optimizers keep by the number of a parameter, by its name; and their groups likewise."""
    count = sum(len(group["params"]) for group in state["param_groups"])
    if count != len(names):
        why = f"its optimizer has {count} parameters"
        raise CheckpointError.of("names", f"{len(names)} names", why, "the names of model.named_parameters(), as it was then")
    order = [number for group in state["param_groups"] for number in group["params"]]
    name_of = dict(zip(order, names, strict=True))
    groups = [{**group, "params": [name_of[number] for number in group["params"]]} for group in state["param_groups"]]
    return {name_of[number]: fields for number, fields in state["state"].items()}, groups


def _load(path: Path) -> Any:
    if not path.is_file():
        raise CheckpointError.of("path", str(path), "there is no such file", "a file that Stoke saved")
    try:
        return torch.load(path, map_location="cpu", weights_only=False, pickle_module=_pickle_for_stoke())
    except CheckpointError:
        raise
    except Exception as error:  # the code in the file may raise anything
        why = f"it cannot be unpickled ({type(error).__name__}: {error})"
        raise CheckpointError.of("path", str(path), why, "a file that Stoke saved") from error


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if module.partition(".")[0] != "stoke":
            return super().find_class(module, name)
        if name not in configs.__all__:
            raise CheckpointError.of("path", f"{module}.{name}", "restoke has no such class of Stoke's", "load it with Stoke")
        return vars(configs)[name]


def _pickle_for_stoke() -> Any:
    """A module to torch.load's taste: pickle, but with our Unpickler."""
    return SimpleNamespace(Unpickler=_Unpickler, load=pickle.load, __name__="pickle")
