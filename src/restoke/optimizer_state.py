"""The state of a torch optimizer, in and out, keyed by the names of the parameters that it belongs to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, final

from torch import Tensor
from torch.optim import Optimizer

from restoke.errors import CheckpointError
from restoke.packed import packed, unpacked
from restoke.parts import Captured, Chunk, Layout, Saved


@final
class OptimizerState:
    """A tensor of a parameter's own shape is laid out as the parameter; any other, such as a count of steps, is whole."""

    def __init__(self, optimizer: Optimizer, names: Callable[[], dict[int, str]], layout: Layout) -> None:
        self._optimizer = optimizer
        self._names = names  # of what the optimizer keeps state for, by identity
        self._layout = layout

    def capture(self, captured: Captured) -> None:
        """Adds `optimizer/NAME/FIELD` for each tensor, and the groups. Raises CheckpointError: a parameter has no name."""
        names = self._names()
        self._refuse_foreign(names)
        fields: dict[str, dict[str, Any]] = {}
        for parameter, state in self._optimizer.state.items():
            name = names[id(parameter)]
            for key, value in unpacked(state.items()):
                if isinstance(value, Tensor):
                    captured.chunks[f"optimizer/{name}/{key}"] = self._chunk(value.detach(), parameter, name)
                else:
                    fields.setdefault(name, {})[key] = value
        groups = [{**group, "params": [names[id(p)] for p in group["params"]]} for group in self._optimizer.param_groups]
        captured.values["optimizer"] = {"groups": groups, "fields": fields, "class": type(self._optimizer).__name__}

    def _chunk(self, value: Tensor, parameter: Tensor, name: str) -> Chunk:
        part = self._layout.local(parameter.detach())
        if value.ndim and self._layout.local(value).shape == part.shape:
            return Chunk(self._layout.local(value), *self._layout.place(parameter))
        if self._layout.local(value) is not value or (value.ndim and self._layout.cuts(parameter)):
            kind = type(self._optimizer).__name__
            why = f"{kind} keeps a shard of shape {tuple(value.shape)} for a parameter of shape {tuple(parameter.shape)}"
            raise CheckpointError.of(f"optimizer/{name}", kind, why, "an optimizer whose state has the parameter's shape")
        return Chunk.whole(value)

    def _refuse_foreign(self, names: dict[int, str]) -> None:
        foreign = sum(id(p) not in names for group in self._optimizer.param_groups for p in group["params"])
        if foreign:
            why = f"{foreign} of its parameters are none of the model's, and have no name to be saved by"
            raise CheckpointError.of("optimizer", type(self._optimizer).__name__, why, "make them parameters of the model")

    def check(self, saved: Saved, strict: bool) -> list[str]:
        """What will not be restored. Raises CheckpointError where `strict`: it is of another kind of optimizer, or groups."""
        kind, theirs = type(self._optimizer).__name__, saved.values["optimizer"]
        if theirs["class"] != kind:
            why = f"this run's optimizer is {kind}, whose state is another"
            if strict:
                instead = f"train with {theirs['class']}, or strict=False for the weights without it"
                raise CheckpointError.of("optimizer", theirs["class"], why, instead)
            return [f"optimizer {theirs['class']}: {why}, and begins anew"]
        mine, saved_as = self._grouped(), [group["params"] for group in theirs["groups"]]
        if mine == saved_as:
            return []
        if strict:
            got = [len(group) for group in saved_as]
            why = f"its parameter groups hold {got} parameters, this optimizer's {[len(group) for group in mine]}, or others"
            instead = "build the optimizer with the groups that it was saved with, or strict=False"
            raise CheckpointError.of("optimizer", theirs["class"], why, instead)
        here, there = ({name for group in groups for name in group} for groups in (mine, saved_as))
        others = f"{len(here - there)} parameters begin anew, {len(there - here)} are left out"
        return [f"optimizer {kind}: its parameter groups are others, whose options follow most of their parameters; {others}"]

    def restore(self, saved: Saved) -> None:
        """The state of each parameter that both have, and the options of its group; of another class, nothing."""
        theirs = saved.values["optimizer"]
        if theirs["class"] != type(self._optimizer).__name__:
            return
        parameters = dict(zip([name for group in self._grouped() for name in group], self._parameters(), strict=True))
        index = {name: i for i, name in enumerate(parameters)}
        state = {index[name]: dict(fields) for name, fields in theirs["fields"].items() if name in index}
        for key in saved.keys():  # noqa: SIM118
            name, _, entry = key.removeprefix("optimizer/").rpartition("/")
            if key.startswith("optimizer/") and name in index:
                state.setdefault(index[name], {})[entry] = self._read(saved, key, parameters[name])
        for name, i in index.items():
            if i in state:
                state[i] = packed(state[i], parameters[name].dtype)
        self._load(state, theirs["groups"], index)
        self._keep_dtypes(state, index, saved)

    def _grouped(self) -> list[list[str]]:
        names = self._names()
        return [[names[id(p)] for p in group["params"]] for group in self._optimizer.param_groups]

    def _parameters(self) -> list[Tensor]:
        return [p for group in self._optimizer.param_groups for p in group["params"]]

    def _read(self, saved: Saved, key: str, parameter: Tensor) -> Tensor:
        shape = self._layout.place(parameter).shape
        if shape and saved.shape(key) == shape:
            return self._layout.like(self._layout.read(saved, key, parameter), parameter)
        return saved.read(key)

    def _load(self, state: dict[int, dict[str, Any]], groups: list[dict[str, Any]], index: dict[str, int]) -> None:
        """Through torch's own loader, which places and casts. Options that the checkpoint lacks keep their values."""
        merged = [
            {**mine, **_options(names, groups), "params": [index[name] for name in names]}
            for mine, names in zip(self._optimizer.param_groups, self._grouped(), strict=True)
        ]
        self._optimizer.load_state_dict({"state": state, "param_groups": merged})

    def _keep_dtypes(self, state: dict[int, dict[str, Any]], index: dict[str, int], saved: Saved) -> None:
        """torch's loader casts state to the parameter's dtype: what was wider is put back, where no dtype changed."""
        parameters = self._parameters()
        dtypes = {key: saved.dtype(key) for key in saved.keys() if key.startswith("model/")}  # noqa: SIM118
        for name, i in index.items():
            p = parameters[i]
            if dtypes.get(f"model/{name}") != p.dtype:
                continue
            for entry, value in state.get(i, {}).items():
                now = self._optimizer.state[p][entry]
                if isinstance(value, Tensor) and now.dtype != value.dtype:
                    self._optimizer.state[p][entry] = value.to(now.device)


def _options(names: list[str], groups: list[dict[str, Any]]) -> dict[str, Any]:
    """Those of the saved group that most of these parameters were in; none where no group had any of them."""
    shared = [len({*group["params"]} & {*names}) for group in groups]
    return groups[shared.index(max(shared))] if any(shared) else {}
