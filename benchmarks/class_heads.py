"""Heads over many classes with their losses, as dense, torch's `loss_parallel` and restoke have them, and what each holds."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, final

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from restoke.distributed import group_of
from restoke.memory.tracker import Tracker
from restoke.nn import ParallelLinear, ParallelLinearCrossEntropy
from restoke.nn.functional import parallel_cross_entropy
from restoke.nn.functional.linear_cross_entropy import classes_at_a_time

FEATURES, ROWS = 256, 64
SGD = {"lr": 0.1, "momentum": 0.9}


class Head(ABC):
    """A layer, its loss and its optimizer; a step is the loss's forward and backward."""

    layer: nn.Module

    def __init__(self, layer: nn.Module, classes: int, device: str) -> None:
        self.layer = layer
        self.optimizer = torch.optim.SGD(layer.parameters(), **SGD)
        torch.manual_seed(1)
        self.x = torch.randn(ROWS, FEATURES, device=device).requires_grad_()
        self.target = torch.arange(ROWS, device=device) * (classes // ROWS)

    @abstractmethod
    def backward(self) -> None:
        """The loss and all gradients."""

    def step(self) -> None:
        self.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.x.grad = None

    def state(self) -> list[Any]:
        """What it holds between steps."""
        momenta = [value for state in self.optimizer.state.values() for value in state.values()]
        return [*self.layer.parameters(), *momenta, self.x, self.target]

    def peak(self) -> int:
        """The most bytes of tracked storages of this rank in a forward and backward, with what is held meanwhile."""
        self.step()
        tracker = Tracker(self.x.device.type)
        tracker.start()
        tracker.label(("other", each) for each in self.state() if isinstance(each, Tensor))
        self.backward()
        tracker.stop()
        tracker.fold()
        self.optimizer.zero_grad()
        return tracker.peak.nbytes


@final
class Dense(Head):
    """Every rank has every class."""

    def __init__(self, classes: int, device: str) -> None:
        super().__init__(nn.Linear(FEATURES, classes, device=device), classes, device)

    def backward(self) -> None:
        F.cross_entropy(self.layer(self.x), self.target).backward()


@final
class LossParallel(Head):
    """DTensor's layer by columns, and its loss."""

    def __init__(self, classes: int, device: str) -> None:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor import Shard, distribute_tensor
        from torch.distributed.tensor.parallel import ColwiseParallel, loss_parallel, parallelize_module

        self._context = loss_parallel
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        layer = nn.Linear(FEATURES, classes, device="meta")
        plan = ColwiseParallel(output_layouts=Shard(-1), use_local_output=False)
        if device == "meta":
            for name, whole in list(layer.named_parameters()):
                layer.register_parameter(name, nn.Parameter(distribute_tensor(whole, mesh, [Shard(0)])))
        else:
            layer = nn.Linear(FEATURES, classes)
        super().__init__(parallelize_module(layer, mesh, plan), classes, device)

    def backward(self) -> None:
        with self._context():
            F.cross_entropy(self.layer(self.x), self.target).backward()


@final
class Separate(Head):
    """restoke's layer, and its loss of the logits."""

    def __init__(self, classes: int, device: str) -> None:
        super().__init__(ParallelLinear(FEATURES, classes, dim=1, device=device), classes, device)

    def backward(self) -> None:
        parallel_cross_entropy(self.layer(self.x), self.target).backward()


@final
class Fused(Head):
    """restoke's layer and loss in one."""

    def __init__(self, classes: int, device: str) -> None:
        layer = ParallelLinearCrossEntropy(FEATURES, classes, bias=True, device=device)
        super().__init__(layer, classes, device)

    def backward(self) -> None:
        self.layer(self.x, self.target).backward()


HEADS: dict[str, type[Any]] = {"dense": Dense, "loss_parallel": LossParallel, "separate": Separate, "fused": Fused}


def due(name: str, classes: int, device: str) -> int:
    """What the head needs at least, in bytes: weights, gradients and momentum, the input and its gradient, and the logits:
    two buffers of them for a loss by itself, a chunk for the fused one."""
    size = 1 if name == "dense" else group_of().size
    local = -(-classes // size)
    logits = ROWS * (min(local, classes_at_a_time(device, ROWS, local)) if name == "fused" else 2 * local)
    return 4 * (3 * local * (FEATURES + 1) + 2 * ROWS * FEATURES + logits)
