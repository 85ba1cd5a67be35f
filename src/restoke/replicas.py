"""Whole copies of a model on every rank, their gradients averaged by torch's DDP: what ddp and zero1 have in common."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from attrs import evolve
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from restoke.averaging import average
from restoke.comm import broadcast_tensor
from restoke.configs import DDPConfig
from restoke.empty import place
from restoke.errors import SpecError
from restoke.mixing import refuse_mixing
from restoke.nn.trained import Shared
from restoke.parts import Parts, Request, State, Stepper
from restoke.steppers import torch_stepper


def replicate(
    request: Request,
    build: Callable[[nn.Module], Optimizer],
    state: Callable[[nn.Module, Optimizer, Shared], State],
) -> Parts:
    """torch's DistributedDataParallel with the settings of DDPConfig, the optimizer that `build` makes, and its state."""
    config, world = request.spec.setting(DDPConfig), request.world
    model = place(request.model, world.device)
    if config.convert_to_sync_batch_norm:
        model = nn.SyncBatchNorm.convert_sync_batchnorm(model)  # type: ignore[no-untyped-call]
    shared = Shared(model)
    if shared:
        refuse_mixing(request, "each rank steps its part of a layer that ranks share", "layers that are whole")
    shared.start_alike()
    if shared and not _trained(shared.copies(list(model.parameters()))):
        return _of_shards(request, model, build(model), state, shared)
    ddp = _wrap(model, request, config, shared)
    optimizer = build(model)

    def set_grad_sync(on: bool) -> None:
        # DDP reads this in its forward: toggled around the backward alone, as `no_sync()` often is, it does nothing
        ddp.require_backward_grad_sync = on

    def reduce_grads() -> None:
        average(shared.copies(list(model.parameters())), world.size)

    frozen = [p for p in shared.copies(list(model.parameters())) if not p.requires_grad]

    def reduce_late() -> None:
        # DDP knows those alone that were trained when it wrapped the model
        if late := [p for p in frozen if p.requires_grad]:
            average(late, world.size)

    stepper = _watched(ddp, _stepper(request, model, optimizer, shared), reduce_grads, reduce_late)
    sync = set_grad_sync if config.no_sync else _always_in_sync
    held = state(model, optimizer, shared)
    return Parts(
        ddp,
        model,
        optimizer,
        stepper,
        held,
        sync,
        reduce_grads,
        shared.layout,
        average_shards=shared.average,
        local_buffers=not config.broadcast_buffers,
    )


def _stepper(request: Request, model: nn.Module, optimizer: Optimizer, shared: Shared) -> Stepper:
    clip_to = shared.clip if shared else None
    stepper = torch_stepper(model, optimizer, request.precision, request.world.device, request.scaler, clip_to=clip_to)
    return shared.settled(stepper, list(model.parameters()))


def _of_shards(
    request: Request,
    model: nn.Module,
    optimizer: Optimizer,
    state: Callable[[nn.Module, Optimizer, Shared], State],
    shared: Shared,
) -> Parts:
    """Where all that is trained is shards, there is nothing for DDP to average, and it refuses: a head on frozen features."""
    for tensor in (*model.parameters(), *model.buffers()):
        if tensor not in shared:
            broadcast_tensor(tensor.data)
    stepper, held = _stepper(request, model, optimizer, shared), state(model, optimizer, shared)
    frozen = shared.copies(list(model.parameters()))

    def reduce_grads() -> None:
        if _trained(frozen):  # a script unfroze them
            average(frozen, request.world.size)

    def clip(how: Any) -> Tensor | None:
        reduce_grads()
        return stepper.clip(how)

    def step() -> bool:
        reduce_grads()
        return stepper.step()

    stepped = evolve(stepper, clip=clip, step=step)
    parts = Parts(model, model, optimizer, stepped, held, _always_in_sync, reduce_grads, shared.layout)
    return evolve(parts, average_shards=shared.average, local_buffers=True)


def _trained(parameters: list[nn.Parameter]) -> bool:
    return any(p.requires_grad for p in parameters)


def _refused(model: nn.Module, error: Exception) -> Exception:
    why = f"torch's DDP refuses it ({str(error).splitlines()[0]})"
    return SpecError.of("model", type(model).__name__, why, "a model that it takes, or strategy=single")


def _wrap(model: nn.Module, request: Request, config: DDPConfig, shared: Shared) -> DistributedDataParallel:
    if not _trained(list(model.parameters())):
        why = "no parameter of the model requires a gradient"
        raise SpecError.of("strategy", request.spec.strategy, why, "strategy=single, or unfreeze some")
    buffers: dict[str, Any] = {} if config.broadcast_buffers else {"broadcast_buffers": False}
    if shared:
        ignored = [name for each in shared.names for name in (each, f".{each}")]  # of the root's own, DDP asks by both
        DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, ignored)  # type: ignore[no-untyped-call]
    with warnings.catch_warnings():
        # a new name is on its way in torch, but not yet all that the old one means: buffers unsynchronised from the start
        warnings.filterwarnings("ignore", message=".*broadcast_buffers", category=FutureWarning)
        try:
            ddp = DistributedDataParallel(
                model,
                device_ids=request.world.device_ids,
                bucket_cap_mb=config.bucket_cap_mb,
                find_unused_parameters=config.find_unused_parameters,
                gradient_as_bucket_view=config.gradient_as_bucket_view,
                static_graph=config.static_graph,
                **buffers,
            )
        except dist.DistError:
            raise
        except (RuntimeError, TypeError, ValueError) as error:
            raise _refused(model, error) from error
    if config.comm_hook is not None:
        state, hook = _comm_hook(config.comm_hook)
        # torch compares annotations with classes, which postponed ones are not: a function without any passes
        ddp.register_comm_hook(state, lambda state, bucket: hook(state, bucket))  # noqa: PLW0108
    return ddp


def _always_in_sync(on: bool) -> None:
    """DDPConfig(no_sync=False): every backward reduces, as DDP does by itself."""


def _watched(
    ddp: DistributedDataParallel, stepper: Stepper, reduce_grads: Callable[[], None], reduce_late: Callable[[], None]
) -> Stepper:
    """DDP reduces in the first backward after a forward and leaves a second one local, without a word: that one is averaged
    before the step, and so are parameters that were unfrozen later. (An average of averages is itself: nothing counts twice.)
    """
    fresh, local, settled = [False], [False], [False]
    forward: Callable[..., Any] = ddp.forward
    grads_on = torch.is_grad_enabled

    def noting(*args: Any, **kwargs: Any) -> Any:
        if grads_on():
            fresh[0] = True
        return forward(*args, **kwargs)

    ddp.forward = noting  # type: ignore[method-assign]  # a hook would send every call through torch's slow path

    def backward(loss: Tensor) -> None:
        local[0] = local[0] or not fresh[0]
        fresh[0] = False
        stepper.backward(loss)

    def settle() -> None:
        if settled[0]:
            return
        (reduce_grads if local[0] else reduce_late)()
        local[0], settled[0] = False, True

    def clip(how: Any) -> Tensor | None:
        settle()
        return stepper.clip(how)

    def step() -> bool:
        settle()
        settled[0] = False
        return stepper.step()

    return evolve(stepper, backward=backward, clip=clip, step=step)


def _comm_hook(name: str) -> tuple[Any, Callable[..., Any]]:
    """The state and function of a communication hook: one of torch's by name, or `module:function`."""
    if name in ("bf16", "fp16"):
        return (torch.bfloat16 if name == "bf16" else torch.float16), _compressed
    if name == "powersgd":
        from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

        return powerSGD_hook.PowerSGDState(None), powerSGD_hook.powerSGD_hook
    module, _, function = name.partition(":")
    try:
        hook: Callable[..., Any] = vars(importlib.import_module(module))[function]
    except (ImportError, KeyError) as error:
        raise SpecError.of(
            "DDPConfig.comm_hook", name, f"it cannot be imported ({error})", "module:function that exists"
        ) from error
    return None, hook


def _compressed(dtype: torch.dtype, bucket: Any) -> torch.futures.Future[Tensor]:
    """The bucket's mean over the ranks, sent in a smaller dtype. torch's own hooks for this fail on gloo."""
    whole = bucket.buffer()
    small = (whole / dist.get_world_size()).to(dtype)
    future: Any = dist.all_reduce(small, async_op=True).get_future()
    return future.then(lambda done: whole.copy_(done.value()[0]))  # type: ignore[no-any-return]
