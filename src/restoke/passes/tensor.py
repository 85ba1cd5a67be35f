"""Tensor parallelism: layers that a plan names are sharded over neighbouring ranks, which share their data."""

from __future__ import annotations

from torch import nn

from restoke.meshes import mesh
from restoke.passes.tensor_plan import find_layers
from restoke.passes.tensor_watch import watch_order
from restoke.spec import Spec
from restoke.world import World


def tensor(model: nn.Module, spec: Spec, world: World) -> None:
    """Shard the layers of the plan over the mesh's tensor axis, in place, with rank 0's weights on every rank.

    Each rank's model code sees plain tensors: whole ones, but for the outputs of "columns" layers (a share of the last
    dimension), and under a plan with "sequence" for what lies between "rows" and "columns" (a share of dimension 1).

    Raises:
        SpecError: the plan cannot be obeyed.
    """
    layers = find_layers(model, spec)
    if not layers:
        return
    from restoke.passes.tensor_styles import shard_layers  # DTensor costs a second of import

    shard_layers(model, layers, mesh(world)["tensor"], world)
    if spec.compile == "none":
        watch_order(model, layers)
