"""The row and the settings of the strategy `averaged`. The table reads this file at every start, so it imports no torch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from restoke.configs import settings
from restoke.configs.validate import dtype
from restoke.errors import Problem
from restoke.facts import Facts
from restoke.rows import Row
from restoke.spec import Spec


@settings
class AveragedConfig:
    """How the gradients are averaged.

    Attributes:
        reduce: Dtype in which gradients travel, by its name in torch; None takes the precision's, or else their own.
    """

    reduce: Annotated[str, dtype] | None = None


def problems(spec: Spec, facts: Facts) -> Iterator[Problem]:
    """What the table cannot know by itself."""
    if spec.setting(AveragedConfig).reduce == "float16":
        why = "the sum of the ranks' gradients would overflow without a word"
        yield Problem("AveragedConfig.reduce", "float16", why, "bfloat16, which has float32's range")


ROW = Row(
    name="averaged",
    where="restoke_averaged.strategy",
    summary="Every process holds the whole model; gradients are averaged in one message at the end of a window.",
    processes="many",
    devices=("cpu", "cuda"),
    settings_class=AveragedConfig,
    rules=(problems,),
)
