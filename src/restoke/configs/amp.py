"""Settings of torch's own loss scaler, which float16 under autocast needs."""

from __future__ import annotations

from attrs import field
from attrs.validators import gt

from restoke.configs.declare import settings
from restoke.configs.validate import at_least_one, fraction, positive


@settings
class AMPConfig:
    """How the loss scale follows the gradients: down when one overflows, up after a run of clean steps.

    Attributes:
        backoff_factor: What the scale is multiplied by after a step with an inf or NaN gradient; between 0 and 1.
        growth_factor: What the scale is multiplied by after `growth_interval` clean steps; above 1.
        growth_interval: Optimizer steps in a row without overflow that it takes to grow.
        init_scale: The scale of the first step.
    """

    backoff_factor: float = field(default=0.5, validator=fraction)
    growth_factor: float = field(default=2.0, validator=gt(1))
    growth_interval: int = field(default=2000, validator=at_least_one)
    init_scale: float = field(default=2.0**16, validator=positive)
