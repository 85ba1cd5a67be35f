"""The `Accelerator` of new scripts: each scheduler step is one step, and each window is divided by what it has."""

from __future__ import annotations

from typing import final

from restoke.facades.accelerate.face import Face


@final
class Accelerator(Face):
    """What five lines in a plain training script need: it prepares models, optimizers, loaders and schedulers for any device,
    strategy and precision, and then runs their backward and their collectives.

    The arguments are Accelerate's. `fp16=True` is the old word for `mixed_precision="fp16"`; `spec` is a whole declaration (a
    Spec, the path of a YAML file, or a mapping). What `restoke launch` declares overrides them.

    Raises:
        SpecError: the declaration cannot be obeyed here, and why.
        WorldError: launcher, settings and process group contradict each other.
    """
