"""The two ways to clip gradients before the optimizer steps."""

from __future__ import annotations

from typing import Annotated

from attrs import field

from restoke.configs.declare import settings
from restoke.configs.validate import extended, positive


@settings
class ClipGradConfig:
    """Clip each gradient element by value.

    Attributes:
        clip_value: Largest absolute value that an element keeps; above 0.
    """

    clip_value: float = field(validator=positive)


@settings
class ClipGradNormConfig:
    """Scale all gradients together so that their norm is bounded.

    Attributes:
        max_norm: Largest norm that the gradients of all parameters keep together; above 0. `inf` measures without clipping.
        norm_type: The p of the p-norm; above 0. `inf` takes the largest absolute element.
    """

    max_norm: Annotated[float, extended] = field(validator=positive)
    norm_type: Annotated[float, extended] = field(default=2.0, validator=positive)
