"""What `import accelerate` gives to a script that was written for it: the face, with the habits that such scripts count on."""

from __future__ import annotations

from typing import Any, final

from restoke.facades import accelerate
from restoke.facades.accelerate.face import Face
from restoke.facades.accelerate.names import PLACES
from restoke.facades.accelerate.suite import install

install()
__version__ = "1.15.0"  # the Accelerate that the names are those of: scripts compare it


@final
class Accelerator(Face):
    """As `restoke.Accelerator`; but a scheduler steps once per process in each call, and the last window of an epoch is divided
    by the full number of micro-batches, as such scripts have chosen their schedules and learning rates for."""

    HABITS = True


__all__ = list(PLACES)


def __getattr__(name: str) -> Any:
    return getattr(accelerate, name)
