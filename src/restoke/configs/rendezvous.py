"""What settings say about how processes meet; `World` obeys it."""

from __future__ import annotations

from typing import NamedTuple


class Rendezvous(NamedTuple):
    """`backend` None means: the right one for the device. `local_rank` None means: as the launcher says."""

    backend: str | None = None
    init_method: str = "env://"
    local_rank: int | None = None
