"""What a script reads from an Accelerator: what was declared, and what came of it. None of it is collective."""

from __future__ import annotations

from typing import Any

import torch

from restoke.data import Dealing
from restoke.facades.accelerate.collecting import Collecting
from restoke.facades.accelerate.loaders import dealing_of
from restoke.facades.accelerate.plugins import DataLoaderConfiguration, ProjectConfiguration
from restoke.facades.accelerate.state import AcceleratorState, type_of
from restoke.facades.accelerate.words import DistributedType

SINGLE = (DistributedType.NO, DistributedType.MULTI_CPU, DistributedType.FSDP, DistributedType.DEEPSPEED)


class Access(Collecting):
    """Properties."""

    rng_types: Any
    state: AcceleratorState
    project_configuration: ProjectConfiguration
    _config: DataLoaderConfiguration

    @property
    def distributed_type(self) -> DistributedType:
        return type_of(self.session.spec, self.world)

    @property
    def multi_device(self) -> bool:
        return self.distributed_type not in SINGLE

    @property
    def mixed_precision(self) -> str:
        return self.state.mixed_precision

    @property
    def native_amp(self) -> bool:
        return self.session.spec.precision != "fp32"

    @property
    def dataloader_config(self) -> DataLoaderConfiguration:
        """For loaders that are prepared from now on."""
        return self._config

    @dataloader_config.setter
    def dataloader_config(self, value: DataLoaderConfiguration) -> None:
        self._config = value
        self._loaders.dealing = dealing_of(value, self.rng_types, self.device_placement)

    @property
    def dealing(self) -> Dealing:
        """How the batches of loaders are dealt to the ranks."""
        return self._loaders.dealing

    @property
    def split_batches(self) -> bool:
        return self.dealing.split_batches

    @property
    def dispatch_batches(self) -> bool | None:
        return self.dealing.dispatch_batches

    @property
    def even_batches(self) -> bool:
        """Whether loaders that are prepared from now on give every rank as many batches."""
        return self.dealing.even_batches

    @even_batches.setter
    def even_batches(self, value: bool) -> None:
        self._loaders.deal(even_batches=value)

    @property
    def use_seedable_sampler(self) -> bool:
        return self.dealing.use_seedable_sampler

    @property
    def non_blocking(self) -> bool:
        return bool(self.dealing.non_blocking)

    @property
    def use_stateful_dataloader(self) -> bool:
        """Every loader is."""
        return True

    @property
    def project_dir(self) -> str | None:
        return self.project_configuration.project_dir

    @property
    def logging_dir(self) -> str | None:
        return self.project_configuration.logging_dir

    @property
    def save_iteration(self) -> int:
        return self.project_configuration.iteration

    @property
    def is_fsdp2(self) -> bool:
        return self.distributed_type == DistributedType.FSDP

    @property
    def is_composable_parallelism_enabled(self) -> bool:
        return self.is_fsdp2

    @property
    def should_save_model(self) -> bool:
        return bool(self.is_local_main_process)

    @property
    def data_parallel_rank(self) -> int:
        """Which share of the data is this rank's."""
        return self.world.data_rank

    @property
    def tensor_parallel_rank(self) -> int:
        """Which part of each layer is this rank's."""
        return self.world.rank % self.world.tensor

    @property
    def torch_device_mesh(self) -> Any:
        """The ranks by axis; None in one process."""
        if self.world.size == 1:
            return None
        from restoke.meshes import mesh

        return mesh(self.world)

    @property
    def step(self) -> int:
        """Micro-batches of the running window that are complete."""
        return self._micro.windows.done

    @property
    def default_device(self) -> torch.device:
        return self.device
