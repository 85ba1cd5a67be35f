"""Loggers that speak once for all ranks, or for each in turn."""

from __future__ import annotations

import logging
from collections.abc import MutableMapping
from typing import Any, final

from restoke import comm
from restoke.facades.accelerate.state import PartialState
from restoke.world import ranks_here

_WARNED: set[tuple[str, str]] = set()


@final
class MultiProcessAdapter(logging.LoggerAdapter[logging.Logger]):
    """`main_process_only` (True by default): rank 0 alone speaks. `in_order`: all speak in turn; every rank calls."""

    def log(self, level: int, msg: object, *args: Any, **kwargs: Any) -> None:
        kwargs.setdefault("stacklevel", 2)
        main_only, in_order = kwargs.pop("main_process_only", True), kwargs.pop("in_order", False)
        if not self.isEnabledFor(level):
            return
        ranks = ranks_here()
        if in_order and ranks.size > 1:
            world = PartialState().world
            for rank in range(ranks.size):
                if rank == ranks.rank:
                    self._say(level, msg, args, kwargs, rank)
                comm.barrier(world)
        elif ranks.rank == 0 or not main_only:
            self._say(level, msg, args, kwargs, None if main_only else ranks.rank)

    def _say(self, level: int, msg: object, args: Any, kwargs: MutableMapping[str, Any], rank: int | None) -> None:
        text, keywords = self.process(msg, kwargs)
        self.logger.log(level, text if rank is None else f"[RANK {rank}] {text}", *args, **keywords)

    def warning_once(self, msg: str, *args: Any, **kwargs: Any) -> None:
        """As `warning`, once for each text."""
        if (self.logger.name, msg) not in _WARNED:
            _WARNED.add((self.logger.name, msg))
            self.warning(msg, *args, **kwargs)


def get_logger(name: str, log_level: str | None = None) -> MultiProcessAdapter:
    """The logger of this name, which rank 0 alone writes to unless it is told otherwise."""
    logger = logging.getLogger(name)
    if log_level is not None:
        logger.setLevel(log_level.upper())
        logger.root.setLevel(log_level.upper())
    return MultiProcessAdapter(logger, {})
