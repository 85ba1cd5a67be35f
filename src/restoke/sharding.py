"""Parameters, gradients and optimizer state in shards, by torch's FSDP2: what zero2, fsdp and hsdp have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial

import torch
import torch.distributed as dist
from attrs import evolve
from torch import Tensor, nn
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
from torch.nn.modules.batchnorm import _NormBase

from restoke.averaging import average
from restoke.blocks import cut_by_size, find_blocks
from restoke.configs import FSDPConfig
from restoke.empty import place_shards
from restoke.errors import SpecError
from restoke.meshes import mesh
from restoke.mixing import refuse_mixing
from restoke.nn.trained import Shared
from restoke.parts import Layout, Parts, Place, Request, Stepper
from restoke.passes.outputs import own_outputs
from restoke.passes.tensor_steps import in_agreement, show_plain
from restoke.precision import dtype
from restoke.shardable import kept_whole, leave_inference_mode, refuse_mixed, start_alike
from restoke.sparse import refuse_sparse
from restoke.spec import Clip, Precision
from restoke.state import TorchState
from restoke.steppers import torch_stepper
from restoke.world import World


def _place_of(tensor: Tensor) -> Place:
    if not isinstance(tensor, DTensor):
        return Place(tuple(tensor.shape), (0,) * tensor.ndim)
    shape, offsets = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
    return Place(tuple(tensor.shape), tuple(offsets) if 0 not in shape else (0,) * tensor.ndim)


def _like(part: Tensor, other: Tensor) -> Tensor:
    if not isinstance(other, DTensor):
        return part.to(other.device)
    place = part.to(other.to_local().device)
    return DTensor.from_local(
        place, other.device_mesh, other.placements, run_check=False, shape=other.shape, stride=other.stride()
    )


LAYOUT = Layout(
    place=_place_of,
    local=lambda tensor: tensor.to_local() if isinstance(tensor, DTensor) else tensor,
    like=_like,
)


def shard(request: Request, *, whole_after_forward: bool, replicas: int = 1) -> Parts:
    """FSDP2 over the model's blocks, with the settings of FSDPConfig.

    Args:
        whole_after_forward: whether gathered parameters stay until the backward has used them, as in ZeRO stage 2.
        replicas: how many groups of ranks hold a whole copy each.

    Raises:
        SpecError: the model, its blocks or the optimizer do not allow it.
    """
    model, config = request.model, request.spec.setting(FSDPConfig)
    if config.convert_to_sync_batch_norm:
        model = nn.SyncBatchNorm.convert_sync_batchnorm(model)  # type: ignore[no-untyped-call]
        request = evolve(request, model=model)
    scalars = kept_whole(request)
    shared = Shared(model)
    _refuse_low(shared, request)
    if shared:
        refuse_mixing(request, "each rank steps its part of a layer that ranks share", "layers that are whole")
    grid = mesh(request.world, replicas)["replicate", "shard"] if replicas > 1 else mesh(request.world)["shard"]
    offload = (
        CPUOffloadPolicy(pin_memory=request.world.device.type != "cpu") if request.spec.offload == "cpu" else OffloadPolicy()
    )
    units = (*_units(request, config), model)
    refuse_sparse(model, request.spec.strategy)
    refuse_mixed(units, model, [*scalars, *shared.parameters])
    for unit in units:
        start_alike(unit, request.world, shared)
        own_outputs(unit)
        fully_shard(
            unit,
            mesh=grid,
            reshard_after_forward=not whole_after_forward and unit is not model,
            mp_policy=_policy(unit, model, request.precision, config),
            offload_policy=offload,
            ignored_params={*scalars, *shared.parameters},
        )
        leave_inference_mode(unit)
    show_plain(model, request.spec)
    place_shards(model, torch.device("cpu") if request.spec.offload == "cpu" else request.world.device)
    assert isinstance(model, FSDPModule)
    if config.find_unused_parameters:
        if "set_reduce_scatter_unused_params" not in vars(FSDPModule):
            why = "this version of torch cannot reduce gradients that only some ranks have"
            raise SpecError.of("FSDPConfig.find_unused_parameters", True, why, "torch 2.13 or newer")
        model.set_reduce_scatter_unused_params(True)
    shared = Shared(model, LAYOUT, _counts)  # once more: what was on the meta device is another tensor now
    shared.start_alike()
    return _parts(request, model, config, scalars, shared)


def _units(request: Request, config: FSDPConfig) -> list[nn.Module]:
    """What is gathered at once, inner ones first: blocks, or modules by size, but none that shares a parameter with others."""
    model = request.model
    units = [unit for _, unit in find_blocks(model, request.spec.blocks) or cut_by_size(model, config.min_unit)]
    if request.precision.compute is not None:
        # a batch norm's statistics stay float32, and torch wants its parameters to be what they are
        units = [m for m in model.modules() if isinstance(m, _NormBase)] + units
    owners: dict[int, set[nn.Module]] = {}
    for module in model.modules():
        for p in module.parameters(recurse=False):
            owners.setdefault(id(p), set()).add(module)
    return [unit for unit in units if all(owners[id(p)] <= set(unit.modules()) for p in unit.parameters())]


def _policy(unit: nn.Module, model: nn.Module, precision: Precision, config: FSDPConfig) -> MixedPrecisionPolicy:
    """FSDP2's own way of mixed precision: parameters are gathered, and inputs cast, in the compute dtype."""
    reduce = config.reduce_dtype or precision.reduce
    how = dtype(reduce) if reduce is not None else None
    if precision.compute is None or isinstance(unit, _NormBase):
        return MixedPrecisionPolicy(reduce_dtype=how, cast_forward_inputs=False)
    out = torch.float32 if unit is model else None
    return MixedPrecisionPolicy(param_dtype=dtype(precision.compute), reduce_dtype=how, output_dtype=out)


def _refuse_low(shared: Shared, request: Request) -> None:
    """FSDP2 hands its inputs to each module in the compute dtype; a shard, which it does not know, stays as it is."""
    if shared and request.precision.compute is not None:
        why = f"{shared.names[0]} is a layer that ranks share, which torch's FSDP2 does not cast"
        raise SpecError.of("precision", request.spec.precision, why, "precision=fp32 or bf16-true, or strategy=zero1")


def _parts(request: Request, model: FSDPModule, config: FSDPConfig, scalars: list[nn.Parameter], shared: Shared) -> Parts:
    world = request.world
    assert isinstance(model, nn.Module)
    sharded = [module for module in model.modules() if isinstance(module, FSDPModule)]
    _check_steps(request, bool(scalars or shared))
    optimizer = request.optimizer.build(model.named_parameters())
    state = model._get_fsdp_state()
    synced = [True]

    def set_grad_sync(on: bool) -> None:
        if on is not synced[0]:
            synced[0] = on
            model.set_requires_gradient_sync(on)
            if not config.reshard_after_backward:
                model.set_reshard_after_backward(on)

    def reduce_grads() -> None:
        set_grad_sync(True)
        state._root_post_backward_final_callback()
        average(scalars, world.size)

    def reshard() -> None:
        for module in sharded:
            module.reshard()

    stepper = torch_stepper(
        model, optimizer, _native(request.precision), world.device, request.scaler, layout=LAYOUT, clip_to=shared.clip
    )
    stepper = shared.settled(in_agreement(stepper, model, world), list(model.parameters()))
    stepper = _settled(stepper, scalars, reshard, world)
    held = TorchState(model, optimizer, world.rank, shared.layout, opened=_opened(reshard))
    return Parts(
        model,
        model,
        optimizer,
        stepper,
        held,
        set_grad_sync,
        reduce_grads,
        shared.layout,
        reshard,
        partial(_abandon, model, sharded),
        local_buffers=True,
        average_shards=shared.average,
        own_grads=False,
    )


def _check_steps(request: Request, mixed: bool) -> None:
    """torch has not taught every optimizer, nor every way to run one, to step shards: this one is tried on a small one.

    Where some parameters are none of FSDP2's, it is tried on both kinds together: `mixed`.
    """
    cls, kwargs = request.optimizer.cls, dict(request.optimizer.kwargs)
    local = torch.zeros(2, 2, device=request.world.device)
    p = nn.Parameter(DTensor.from_local(local, mesh(request.world)["shard"], [Shard(0)], run_check=False))
    tried = [p, nn.Parameter(local.clone())] if mixed else [p]
    for each in tried:
        each.grad = torch.zeros_like(each)
    try:
        cls(tried, **kwargs).step()
    except NotImplementedError as error:
        name = getattr(cls, "__name__", str(cls))
        how = "fused " if kwargs.get("fused") else ""
        why = f"torch cannot step shards by its {how}{name} ({str(error).splitlines()[0]})"
        instead = "optimizer=foreach, another optimizer, or strategy=zero1"
        raise SpecError.of("optimizer", f"{how}{name}", why, instead) from error
    except (TypeError, ValueError, RuntimeError) as error:
        if "mixed torch.Tensor and DTensor" in str(error):
            why = "torch cannot step shards and other tensors together so"
            raise SpecError.of("optimizer", getattr(cls, "__name__", str(cls)), why, "foreach=False") from error
        return  # what else it refuses, building it on the model will tell


def _abandon(model: FSDPModule, sharded: Sequence[FSDPModule]) -> None:
    """Whole gradients of micro-batches wait where no optimizer sees them, and a forward that failed leaves its marks."""
    if model._get_fsdp_state()._is_root:  # known from the first forward on
        model.reset_iter_state()
    for module in sharded:
        group = module._get_fsdp_state()._fsdp_param_group
        for held in group.fsdp_params if group is not None else ():
            held.unsharded_accumulated_grad = None
            if "_unsharded_param" in vars(held):
                held._unsharded_param.grad = None


def _native(precision: Precision) -> Precision:
    """What is left for autocast: nothing."""
    return precision._replace(compute=None)


def _opened(reshard: Callable[[], None]) -> Callable[[], AbstractContextManager[None]]:
    @contextmanager
    def opened() -> Iterator[None]:
        reshard()
        yield

    return opened


def _settled(stepper: Stepper, scalars: list[nn.Parameter], reshard: Callable[[], None], world: World) -> Stepper:
    """Parameters that a forward without a backward left gathered would outlive the step, and be used for the new ones."""
    if not scalars:

        def step() -> bool:
            reshard()
            return stepper.step()

        return evolve(stepper, step=step)
    reduced = [False]

    def reduce() -> None:
        if not reduced[0]:
            average(scalars, world.size)
        reduced[0] = True

    def clip(how: Clip) -> Tensor | None:
        reduce()
        return stepper.clip(how)

    def reduced_step() -> bool:
        reduce()
        reduced[0] = False
        reshard()
        return stepper.step()

    return evolve(stepper, clip=clip, step=reduced_step)


def _counts(p: nn.Parameter) -> bool:
    """Of ranks that hold the same part, one: the first along each axis over which the tensor is not cut."""
    grad = p.grad
    if not isinstance(grad, DTensor):
        return dist.get_rank() == 0
    beside = dist.get_world_size() // grad.device_mesh.size()  # meshes of ranks that share layers hold the same parts
    if dist.get_rank() % beside:
        return False
    at = grad.device_mesh.get_coordinate()
    assert at is not None
    return all(not isinstance(how, Replicate) or index == 0 for how, index in zip(grad.placements, at, strict=True))
