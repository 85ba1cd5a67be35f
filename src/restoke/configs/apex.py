"""Settings of NVIDIA Apex's mixed precision."""

from __future__ import annotations

from typing import Annotated

from attrs import field
from attrs.validators import optional

from restoke.configs.declare import settings
from restoke.configs.validate import dtype, not_negative, positive


@settings
class ApexConfig:
    """How `apex.amp` casts and scales; dtypes are given by name or as torch's own, and kept by name.

    Attributes:
        cast_model_outputs: Floating dtype that the model's outputs are cast to; None leaves them.
        convert_to_sync_batch_norm: Whether batch norms become Apex's, whose statistics span all ranks.
        max_loss_scale: Ceiling of the dynamic loss scale.
        min_loss_scale: Floor of the dynamic loss scale; None sets none.
        scaler_per_loss: Whether each of several losses gets a scale of its own.
        verbosity: How much Apex prints; 0 is nothing.
    """

    cast_model_outputs: Annotated[str, dtype] | None = None
    convert_to_sync_batch_norm: bool = False
    max_loss_scale: float = field(default=2.0**24, validator=positive)
    min_loss_scale: float | None = field(default=None, validator=optional(positive))
    scaler_per_loss: bool = False
    verbosity: int = field(default=0, validator=not_negative)
