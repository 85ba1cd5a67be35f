"""What a script may ask about its process without an Accelerator: ranks and device, the precision, and the running window."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, final

import torch
import torch.distributed as dist

from restoke.errors import SessionError, SpecError
from restoke.facades.accelerate.declare import precision_of
from restoke.facades.accelerate.micro import Micro
from restoke.facades.accelerate.processes import ProcessControl
from restoke.facades.accelerate.words import DistributedType
from restoke.session import Session
from restoke.spec import Spec
from restoke.world import World

# what a strategy or a device is called in Accelerate's terms
TYPES = {
    "fsdp": DistributedType.FSDP,
    "hsdp": DistributedType.FSDP,
    "zero2": DistributedType.FSDP,
    "fairscale-fsdp": DistributedType.FSDP,
    **{f"deepspeed-{stage}": DistributedType.DEEPSPEED for stage in range(4)},
    "xla": DistributedType.XLA,
}
DEVICES = {"cpu": DistributedType.MULTI_CPU, "cuda": DistributedType.MULTI_GPU, "xpu": DistributedType.MULTI_XPU}
WORDS = {"fp32": "no", "fp16": "fp16", "bf16": "bf16", "fp8": "fp8"}


def type_of(spec: Spec, world: World) -> DistributedType:
    """What runs, as Accelerate would call it."""
    if world.size == 1:
        return DistributedType.NO
    return TYPES.get(spec.strategy) or DEVICES.get(world.device.type, DistributedType.MULTI_GPU)


class StateError(SessionError, AttributeError):
    """A state was asked that was reset."""


def reset(name: str) -> StateError:
    """The error for a state of this name."""
    why = f"`{name}` object has no attribute any more. This happens if `{name}._reset_state()` was called"
    error = StateError.of(name, "reset", why, "make it, or the Accelerator, anew")
    assert isinstance(error, StateError)
    return error


class Shared(ProcessControl):
    """All instances of a class have one state, which the first one, or an Accelerator, makes."""

    _shared_state: ClassVar[dict[str, Any]]

    @property
    def world(self) -> World:
        return self._session.world

    @property
    def _session(self) -> Session:
        session = self._shared_state.get("session")
        if session is None:
            raise reset(type(self).__name__)
        assert isinstance(session, Session)
        return session

    @property
    def initialized(self) -> bool:
        return bool(self._shared_state)

    @property
    def distributed_type(self) -> DistributedType:
        given: DistributedType | None = self._shared_state.get("distributed_type")
        return given or type_of(self._session.spec, self.world)

    @distributed_type.setter
    def distributed_type(self, value: DistributedType) -> None:
        """For what reads it here alone: it changes nothing of what runs."""
        self._shared_state["distributed_type"] = value

    @property
    def backend(self) -> str | None:
        """The library that carries the collectives; None in one process."""
        return str(dist.get_backend()) if self.world.size > 1 else None

    @property
    def debug(self) -> bool:
        """Whether collectives check shapes: they always do."""
        return True

    @debug.setter
    def debug(self, value: bool) -> None:
        """Of no effect: they always do."""

    def destroy_process_group(self, group: Any = None) -> None:
        """Nothing: the group lives as long as the process, and ends in order with it."""

    def __repr__(self) -> str:
        lines = {
            "Distributed environment": f"{self.distributed_type.value}{f'  Backend: {self.backend}' if self.backend else ''}",
            "Num processes": self.num_processes,
            "Process index": self.process_index,
            "Local process index": self.local_process_index,
            "Device": self.device,
        }
        return "".join(f"{name}: {value}\n" for name, value in lines.items())


@final
class PartialState(Shared):
    """Ranks and device, and what to do by them. The first one of a process joins the job: with `cpu`, on the CPU."""

    _shared_state: ClassVar[dict[str, Any]] = {}

    def __init__(self, cpu: bool = False, **kwargs: Any) -> None:
        kwargs.pop("_from_accelerator", None)
        if unknown := sorted(kwargs.keys() - {"backend", "init_method", "timeout"}):
            raise SpecError.of(unknown[0], kwargs[unknown[0]], "there is no such keyword", "cpu=, backend= or timeout=")
        if not self._shared_state:
            self._shared_state["session"] = Session(device="cpu" if cpu else "auto")
        elif cpu and self.device.type != "cpu":
            why = f"this process works on {self.device}"
            raise SpecError.of("cpu", True, why, "PartialState(cpu=True) before all else")

    @property
    def default_device(self) -> torch.device:
        return self.device

    @classmethod
    def _reset_state(cls) -> None:
        """Forget it; the next one joins anew, to the same group."""
        cls._shared_state.clear()


@final
class AcceleratorState(Shared):
    """What the last Accelerator was declared as."""

    _shared_state: ClassVar[dict[str, Any]] = {}

    def __init__(self, mixed_precision: str | None = None, cpu: bool = False, **kwargs: Any) -> None:
        if not self._shared_state:
            precision: dict[str, Any] = {} if mixed_precision is None else {"precision": precision_of(mixed_precision)}
            self._shared_state["session"] = Session(device="cpu" if cpu else "auto", **precision)

    @property
    def mixed_precision(self) -> str:
        return WORDS.get(self._session.spec.precision, self._session.spec.precision)

    @property
    def is_fsdp2(self) -> bool:
        return self.distributed_type == DistributedType.FSDP

    @property
    def deepspeed_plugin(self) -> None:
        return None

    @property
    def fsdp_plugin(self) -> None:
        return None

    def __repr__(self) -> str:
        return f"{super().__repr__()}Mixed precision type: {self.mixed_precision}\n"

    @classmethod
    def _reset_state(cls, reset_partial_state: bool = False) -> None:
        """Forget it."""
        cls._shared_state.clear()
        if reset_partial_state:
            PartialState._reset_state()


@final
class GradientState:
    """The window and the loader that run, of the last Accelerator or of the one given."""

    _shared_state: ClassVar[dict[str, Any]] = {}

    def __init__(self, gradient_accumulation_plugin: Any = None, *, micro: Micro | None = None) -> None:
        self._own = micro

    @property
    def _micro(self) -> Micro:
        micro = self._own or self._shared_state.get("micro")
        if micro is None:
            micro = self._shared_state["micro"] = Micro.alone()
        return micro

    @property
    def sync_gradients(self) -> bool:
        return self._micro.sync

    @property
    def num_steps(self) -> int:
        return self._micro.plugin.num_steps or 1

    @property
    def adjust_scheduler(self) -> bool:
        return self._micro.plugin.adjust_scheduler

    @property
    def sync_with_dataloader(self) -> bool:
        return self._micro.plugin.sync_with_dataloader

    @property
    def sync_each_batch(self) -> bool:
        return self._micro.plugin.sync_each_batch

    @property
    def plugin_kwargs(self) -> Mapping[str, Any]:
        return self._micro.plugin.to_kwargs()

    @property
    def initialized(self) -> bool:
        return bool(self._shared_state)

    @property
    def active_dataloader(self) -> Any:
        """The innermost loader that is being iterated; None outside of any."""
        loaders = self._micro.loaders.loaders
        return loaders[-1] if loaders else None

    @property
    def dataloader_references(self) -> list[Any]:
        return [None, *self._micro.loaders.loaders]

    @property
    def in_dataloader(self) -> bool:
        return self.active_dataloader is not None

    @property
    def end_of_dataloader(self) -> bool:
        """Whether the batch that was handed out last is the last of its loader's epoch."""
        loader = self.active_dataloader
        return loader is not None and bool(loader.end_of_dataloader)

    @property
    def remainder(self) -> int:
        """Real samples in the last step of the running loader, if it is not complete; -1 outside of any, or unknown."""
        loader = self.active_dataloader
        return -1 if loader is None else int(loader.remainder)

    def __repr__(self) -> str:
        return (
            f"Sync Gradients: {self.sync_gradients}\nAt end of current dataloader: {self.end_of_dataloader}\n"
            f"Extra samples added: {self.remainder}\n"
        )

    @classmethod
    def _reset_state(cls) -> None:
        """Forget it."""
        cls._shared_state.clear()
