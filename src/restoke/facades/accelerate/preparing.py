"""`prepare`: models, optimizers, loaders and schedulers in any order and number; what was prepared before stays as it is."""

from __future__ import annotations

import gc
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader

from restoke.data import Loader
from restoke.errors import SessionError, SpecError
from restoke.facades.accelerate.loaders import Loaders
from restoke.facades.accelerate.micro import Micro
from restoke.facades.accelerate.models import Models, narrow
from restoke.facades.accelerate.optimizer import AcceleratedOptimizer
from restoke.facades.accelerate.pairs import Pairs, pair
from restoke.facades.accelerate.processes import ProcessControl
from restoke.facades.accelerate.scheduler import AcceleratedScheduler
from restoke.facades.accelerate.trained import trained_of
from restoke.said import say_once


class Preparing(ProcessControl):
    """What was prepared, and how."""

    _micro: Micro
    _held: Models
    _loaders: Loaders
    _optimizers: list[AcceleratedOptimizer]
    _schedulers: list[AcceleratedScheduler]
    _placed: dict[nn.Module, bool]
    device_placement: bool
    step_scheduler_with_optimizer: bool

    @abstractmethod
    def _check_state(self) -> None:
        """Raises SessionError where the script has reset the states."""

    @property
    @abstractmethod
    def _scheduler_steps(self) -> int:
        """How often a call of a scheduler's `step` steps it."""

    def prepare(self, *args: Any, device_placement: Sequence[bool | None] | None = None) -> Any:
        """What is returned for each, in the order given: models wrapped, optimizers and schedulers that know windows, loaders
        of this rank's share. A single one comes back bare; what is none of these comes back as it is.

        Raises:
            SessionError: nothing was given.
            SpecError: the declaration cannot be obeyed for one of them.
        """
        self._check_state()
        if not args:
            raise SessionError.of("prepare", "nothing", "there is nothing to prepare", "prepare(model, optimizer, loader)")
        places = list(device_placement) if device_placement is not None else [None] * len(args)
        if len(places) != len(args):
            why = f"there are {len(args)} objects"
            raise SpecError.of("device_placement", device_placement, why, "one True, False or None for each")
        for item, placed in zip(args, places, strict=True):
            self._check_placement(item, self.device_placement if placed is None else placed)
        models = [item for item in args if isinstance(item, nn.Module) and not self._is_prepared(item)]
        optimizers = [item for item in args if isinstance(item, Optimizer) and self._wrapper(item) is None]
        pairs = pair(models, optimizers)
        for optimizer in optimizers:
            self._held.adopt(optimizer)
            self._optimizers.append(AcceleratedOptimizer(optimizer, self._micro, free=optimizer in pairs.free))
        for model in dict.fromkeys(models):
            self._take(model, pairs)
        self._claim()
        kept = {id(item): self._prepared(item, place) for item, place in zip(args, places, strict=True) if not _steered(item)}
        kept |= {id(item): self.prepare_scheduler(item) for item in args if _steered(item)}
        result = tuple(kept[id(item)] for item in args)
        return result if len(result) > 1 else result[0]

    def _prepared(self, item: Any, placed: bool | None) -> Any:
        if isinstance(item, nn.Module):
            trained = trained_of(item)
            return item if trained is None else trained.parts.model
        if isinstance(item, Optimizer):
            return self._wrapper(item)
        if isinstance(item, DataLoader | Loader):
            return self._loaders.take(item, self.device_placement if placed is None else placed)
        return item

    def _take(self, model: nn.Module, pairs: Pairs) -> None:
        if isinstance(model, DistributedDataParallel | DataParallel):
            why = "it is wrapped by the script already"
            raise SpecError.of("model", type(model).__name__, why, "the module itself: the strategy wraps it")
        if not self._held.wraps(model):
            self._placed[self._held.place(model)] = True
            return
        free = [wrapper.optimizer for wrapper in self._optimizers if wrapper.free or not wrapper.owners]
        own = pairs.owned.get(model)
        self._held.train(model, own, [optimizer for optimizer in free if optimizer is not own])

    def _claim(self) -> None:
        """Tell each optimizer the models whose parameters it has."""
        for wrapper in self._optimizers:
            mine = {id(p) for group in wrapper.param_groups for p in group["params"]}
            wrapper.owners = [m for m in self._held.trained if mine & m.ids]
            taken = [m for m in wrapper.owners if m not in self._held.shells and m.parts.optimizer is not wrapper.optimizer]
            if taken:
                name = type(taken[0].parts.module).__name__
                why = f"{name} was prepared with an optimizer that it has for itself"
                instead = "prepare the model with all its optimizers in one call"
                raise SpecError.of("optimizer", type(wrapper.optimizer).__name__, why, instead)

    def _is_prepared(self, model: nn.Module) -> bool:
        trained = trained_of(model)
        return model in self._placed or (trained is not None and trained in self._held.trained)

    def _wrapper(self, optimizer: Optimizer) -> AcceleratedOptimizer | None:
        return next((w for w in self._optimizers if optimizer is w or optimizer is w.optimizer), None)

    def _check_placement(self, item: Any, placed: bool) -> None:
        if placed or not isinstance(item, nn.Module):
            return
        kinds = {p.device.type for p in item.parameters()} - {self.device.type}
        if kinds:
            why = f"the model is on {', '.join(sorted(kinds))}, and the strategy works on {self.device}"
            raise SpecError.of(
                "device_placement", False, why, f"model.to({str(self.device)!r}) before, or device_placement=True"
            )

    def prepare_model(self, model: nn.Module, device_placement: bool | None = None, evaluation_mode: bool = False) -> nn.Module:
        """One model; with `evaluation_mode` it is placed, and not wrapped."""
        if evaluation_mode and not self._is_prepared(model):
            self._placed[self._held.place(model)] = True
            return model
        prepared: nn.Module = self.prepare(model, device_placement=[device_placement])
        return prepared

    def prepare_optimizer(self, optimizer: Optimizer, device_placement: bool | None = None) -> AcceleratedOptimizer:
        """One optimizer, of models that were prepared before."""
        prepared: AcceleratedOptimizer = self.prepare(optimizer, device_placement=[device_placement])
        return prepared

    def prepare_data_loader(
        self, data_loader: Any, device_placement: bool | None = None, slice_fn_for_dispatch: Callable[..., Any] | None = None
    ) -> Any:
        """One loader.

        Raises:
            SpecError: a function that slices is given: batches are cut before they are made.
        """
        if slice_fn_for_dispatch is not None:
            why = "no batch is made to be cut"
            raise SpecError.of("slice_fn_for_dispatch", slice_fn_for_dispatch, why, "leave it out")
        return self.prepare(data_loader, device_placement=[device_placement])

    def prepare_scheduler(self, scheduler: Any) -> AcceleratedScheduler:
        """One scheduler, built on an optimizer that is prepared, or on what `prepare` returned for it."""
        if isinstance(scheduler, AcceleratedScheduler):
            return scheduler
        for known in self._schedulers:
            if known.scheduler is scheduler:
                return known
        steered = getattr(scheduler, "optimizer", None)
        wrapper = None if steered is None else self._wrapper(steered)
        optimizers = self._optimizers if wrapper is None else [wrapper]
        times = self._scheduler_steps
        if times > 1:
            say_once(f"schedulers step {times} times per call, once for each process, as scripts for Accelerate expect")
        made = AcceleratedScheduler(
            scheduler, optimizers, self._micro, step_with_optimizer=self.step_scheduler_with_optimizer, times=times
        )
        self._schedulers.append(made)
        return made

    def unwrap_model(self, model: nn.Module, keep_fp32_wrapper: bool = True, keep_torch_compile: bool = True) -> nn.Module:
        """The script's own module inside of what `prepare` returned."""
        trained = trained_of(model)
        own = model if trained is None else trained.parts.module
        while isinstance(own, DistributedDataParallel | DataParallel):
            own = own.module
        if not keep_fp32_wrapper:
            narrow(own)
        compiled = getattr(own, "_orig_mod", None)
        return own if keep_torch_compile or not isinstance(compiled, nn.Module) else compiled

    def free_memory(self, *objects: Any) -> list[None]:
        """Forget what was prepared; returns as many None as objects were given, to assign to their names."""
        self._held.forget()
        self._loaders.forget()
        for kept in (self._optimizers, self._schedulers, self._placed):
            kept.clear()
        self._micro.windows.close()
        gone: list[None] = [None] * len(objects)
        del objects
        gc.collect()
        if self.device.type != "cpu":
            torch.accelerator.memory.empty_cache()
        return gone


def _steered(item: Any) -> bool:
    """Whether it is a scheduler."""
    plain = not isinstance(item, nn.Module | Optimizer | DataLoader | Loader)
    return isinstance(item, LRScheduler | AcceleratedScheduler) or (plain and _schedules(item))


def _schedules(item: Any) -> bool:
    return isinstance(getattr(item, "optimizer", None), Optimizer) and callable(getattr(item, "step", None))
