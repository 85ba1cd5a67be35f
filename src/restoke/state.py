"""The state of a plain model and optimizer, in and out, keyed by the user's own parameter names."""

from __future__ import annotations

from typing import Any, final

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from restoke.errors import CheckpointError, nearest
from restoke.parts import Captured, Chunk, Saved

COMPILED = "_orig_mod."  # torch.compile wraps a module and adds this to its names


@final
class TorchState:
    """Whole tensors: every rank holds all of the state. Of buffers, which may differ between ranks, rank 0's are the state."""

    def __init__(self, module: nn.Module, optimizer: Optimizer, rank: int = 0) -> None:
        self._module = module
        self._optimizer = optimizer
        self._rank = rank

    def capture(self) -> Captured:
        tensors, aliases, extra = self._model_tensors()
        mine = [name for name, tensor in tensors.items() if self._rank == 0 or isinstance(tensor, nn.Parameter)]
        captured = Captured({f"model/{name}": Chunk.whole(tensors[name].detach()) for name in mine})
        captured.values["model"] = {"aliases": aliases, "extra": extra}
        self._capture_optimizer(captured)
        return captured

    def restore(self, saved: Saved, strict: bool) -> list[str]:
        left = self._restore_model(saved, strict)
        if "optimizer" in saved.values:
            self._restore_optimizer(saved)
        return left

    def _model_tensors(self) -> tuple[dict[str, Tensor], dict[str, str], dict[str, Any]]:
        """Each tensor once, the other names of tied ones, and what modules add with `get_extra_state`."""
        tensors: dict[str, Tensor] = {}
        aliases: dict[str, str] = {}
        extra: dict[str, Any] = {}
        first: dict[int, str] = {}
        for name, value in self._module.state_dict(keep_vars=True).items():
            own = name.replace(COMPILED, "")
            if not isinstance(value, Tensor):
                extra[own] = value
            elif (owner := first.setdefault(id(value), own)) != own:
                aliases[own] = owner
            else:
                tensors[own] = value
        return tensors, aliases, extra

    def _restore_model(self, saved: Saved, strict: bool) -> list[str]:
        mine, aliases, extra = self._model_tensors()
        theirs = {key.removeprefix("model/"): key for key in saved.keys() if key.startswith("model/")}  # noqa: SIM118
        renamed = {
            alias: theirs[owner] for alias, owner in saved.values.get("model", {}).get("aliases", {}).items() if owner in theirs
        }
        left = _compare(set(mine), set(theirs) | set(renamed), set(aliases), strict)
        sources = {name: key for name, key in (renamed | theirs).items() if name in mine}
        held = {id(tensor) for tensor in (*self._module.parameters(), *self._module.buffers())}
        own = {name: key for name, key in sources.items() if id(mine[name]) in held}
        for name, key in own.items():
            check_fits(name, mine[name], saved.shape(key), saved.dtype(key))
        with torch.no_grad():
            for name, key in own.items():
                mine[name].copy_(saved.read(key))
        kept = saved.values.get("model", {}).get("extra", {})
        made = {name: saved.read(key) for name, key in sources.items() if name not in own}
        self._hand_over(made | {name: kept[name] for name in extra if name in kept})
        return left

    def _hand_over(self, made: dict[str, Any]) -> None:
        """What modules made for their state (`get_extra_state`, or a `state_dict` of their own), only they can take back."""
        if made:
            whole = self._module.state_dict()
            given = {name: made.get(name.replace(COMPILED, ""), value) for name, value in whole.items()}
            self._module.load_state_dict(given, strict=False)

    def _names(self) -> dict[int, str]:
        return {id(p): name.replace(COMPILED, "") for name, p in self._module.named_parameters()}

    def _capture_optimizer(self, captured: Captured) -> None:
        names = self._names()
        self._refuse_foreign(names)
        fields: dict[str, dict[str, Any]] = {}
        for parameter, state in self._optimizer.state.items():
            name = names[id(parameter)]
            for key, value in state.items():
                if isinstance(value, Tensor):
                    captured.chunks[f"optimizer/{name}/{key}"] = Chunk.whole(value.detach())
                else:
                    fields.setdefault(name, {})[key] = value
        groups = [{**group, "params": [names[id(p)] for p in group["params"]]} for group in self._optimizer.param_groups]
        captured.values["optimizer"] = {"groups": groups, "fields": fields, "class": type(self._optimizer).__name__}

    def _refuse_foreign(self, names: dict[int, str]) -> None:
        foreign = sum(id(p) not in names for group in self._optimizer.param_groups for p in group["params"])
        if foreign:
            why = f"{foreign} of its parameters are none of the model's, and have no name to be saved by"
            raise CheckpointError.of("optimizer", type(self._optimizer).__name__, why, "make them parameters of the model")

    def _restore_optimizer(self, saved: Saved) -> None:
        names = self._names()
        theirs = saved.values["optimizer"]
        groups, kind = self._optimizer.param_groups, type(self._optimizer).__name__
        if theirs["class"] != kind:
            why = f"this run's optimizer is {kind}, whose state is another"
            raise CheckpointError.of(
                "optimizer", theirs["class"], why, f"train with {theirs['class']}, or load the weights alone"
            )
        mine = [[names[id(p)] for p in group["params"]] for group in groups]
        if [group["params"] for group in theirs["groups"]] != mine:
            got = [len(group["params"]) for group in theirs["groups"]]
            why = f"its parameter groups hold {got} parameters, this optimizer's {[len(group) for group in mine]}, or others"
            raise CheckpointError.of(
                "optimizer", theirs["class"], why, "build the optimizer with the groups that it was saved with"
            )
        index = {name: i for i, name in enumerate(name for group in mine for name in group)}
        state: dict[int, dict[str, Any]] = {index[name]: dict(fields) for name, fields in theirs["fields"].items()}
        for key in saved.keys():  # noqa: SIM118
            if key.startswith("optimizer/"):
                name, _, entry = key.removeprefix("optimizer/").rpartition("/")
                state.setdefault(index[name], {})[entry] = saved.read(key)
        self._load(state, theirs["groups"], index)
        self._keep_dtypes(state, index, saved)

    def _load(self, state: dict[int, dict[str, Any]], groups: list[dict[str, Any]], index: dict[str, int]) -> None:
        """Through torch's own loader, which places and casts. Options that the checkpoint lacks keep their values."""
        merged = [
            {**mine, **theirs, "params": [index[name] for name in theirs["params"]]}
            for mine, theirs in zip(self._optimizer.param_groups, groups, strict=True)
        ]
        self._optimizer.load_state_dict({"state": state, "param_groups": merged})

    def _keep_dtypes(self, state: dict[int, dict[str, Any]], index: dict[str, int], saved: Saved) -> None:
        """torch's loader casts state to the parameter's dtype: what was wider is put back, where no dtype changed."""
        parameters = [p for group in self._optimizer.param_groups for p in group["params"]]
        dtypes = {key: saved.dtype(key) for key in saved.keys() if key.startswith("model/")}  # noqa: SIM118
        for name, i in index.items():
            p = parameters[i]
            if dtypes.get(f"model/{name}") != p.dtype:
                continue
            for entry, value in state.get(i, {}).items():
                now = self._optimizer.state[p][entry]
                if isinstance(value, Tensor) and now.dtype != value.dtype:
                    self._optimizer.state[p][entry] = value.to(now.device)


def check_fits(name: str, mine: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """Raises CheckpointError where a saved tensor cannot become this one. Between float dtypes a copy rounds, and may."""
    if tuple(mine.shape) != shape:
        why = f"the model's has shape {tuple(mine.shape)}"
        raise CheckpointError.of(f"model/{name}", f"shape {shape}", why, "build the model as it was saved")
    if mine.dtype != dtype and not (mine.is_floating_point() and dtype.is_floating_point):
        raise CheckpointError.of(f"model/{name}", str(dtype), f"the model's is {mine.dtype}", "build the model as it was saved")


def _compare(mine: set[str], theirs: set[str], aliases: set[str], strict: bool) -> list[str]:
    """The names that only one side has. Raises CheckpointError for them where `strict`."""
    missing, unexpected = sorted(mine - theirs), sorted(theirs - mine - aliases)
    left = [f"{name}: the checkpoint has none" for name in missing] + [f"{name}: the model has none" for name in unexpected]
    if strict and left:
        name = (missing or unexpected)[0]
        others = unexpected if missing else sorted(mine)
        hint = f"{nearest(name, others)} in its place, or" if others else "build the model that it was saved from, or"
        counts = f"{len(missing)} tensors of the model are not in it and {len(unexpected)} of its are not in the model"
        why = f"{counts} ({name} first)"
        raise CheckpointError.of("checkpoint", f"{len(theirs)} tensors", why, f"{hint} strict=False")
    return left
