"""What a row of the compatibility table is: a strategy or a precision, and what it goes together with."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from attrs import frozen

from restoke.configs.rendezvous import Rendezvous
from restoke.errors import Problem
from restoke.facts import Facts, installed
from restoke.held import Formula
from restoke.spec import Precision, Spec

Rule = Callable[[Spec, Facts], Iterator[Problem]]


@frozen(kw_only=True, eq=False, repr=False)
class PrecisionRow:
    """A precision by name: what it means, where it runs; `refused` says why it cannot be chosen yet, `instead` what can.

    `needs` are the modules that must be installed, `extra` the extra of restoke that installs them.
    """

    name: str
    means: Precision = Precision()
    summary: str = ""
    devices: tuple[str, ...] = ("cpu", "cuda", "mps", "xpu")
    capability: tuple[int, int] = (0, 0)  # the least CUDA compute capability
    needs: tuple[str, ...] = ()
    extra: str = ""
    refused: str = ""
    instead: str = ""


@frozen(kw_only=True, eq=False, repr=False)
class Row:
    """A strategy: the module with its `prepare`, and what it goes together with.

    `processes` is "one" or "many": a row of "many" needs a launcher, even for a world of one process. `needs` are the
    modules that must be installed, `extra` the extra of restoke that installs them. `settings` is the key of its settings
    class; a row from another package gives the class itself as `settings_class`. `rules` find what else it cannot do.
    `offload`, `tensor`, `compiles` and `optimizers` are what it takes of these axes; `blocks`: it works block by block;
    `shared`: it takes layers of restoke.nn that ranks share.
    `memory` is the formula of what a rank holds, where there is one.
    `auto` marks the row that `strategy=auto` takes for its kind of `processes`; `bitwise` one whose numbers equal those
    of a hand-written loop (under torch's DDP, for a row of many) to the last bit, `bare` one that runs the very operations of
    that loop. `tried` are the numbers of processes in which the contract tries it; none: 1, and 2 for a row of many.
    """

    name: str
    where: str = ""
    summary: str = ""
    processes: str = "one"
    devices: tuple[str, ...] = ("cpu", "cuda", "mps", "xpu")
    precisions: tuple[str, ...] = ("fp32", "tf32", "bf16", "fp16", "bf16-true", "fp8")
    settings: str = ""
    settings_class: type | None = None
    needs: tuple[str, ...] = ()
    extra: str = ""
    rules: tuple[Rule, ...] = ()
    rendezvous: Callable[[Spec], Rendezvous] = lambda _: Rendezvous()
    offload: tuple[str, ...] = ("none",)
    tensor: bool = False
    blocks: bool = False
    shared: bool = False
    compiles: tuple[str, ...] = ("none", "blocks", "model")
    optimizers: tuple[str, ...] = ("given", "fused", "foreach")
    memory: Formula | None = None
    auto: bool = False
    bitwise: bool = False
    bare: bool = False
    tried: tuple[int, ...] = ()
    package: str = "restoke"
    refused: str = ""
    instead: str = ""

    def load(self) -> Callable[..., Any]:
        """The strategy's `prepare`, imported now."""
        prepare: Callable[..., Any] = importlib.import_module(self.where).prepare
        return prepare

    def usable(self) -> bool:
        """Whether it is connected and its engine installed."""
        return not self.refused and all(map(installed, self.needs))


@frozen(eq=False, repr=False)
class Case:
    """What a rule judges a spec by: its row, the place, and the tables to name alternatives from."""

    row: Row
    facts: Facts
    rows: Callable[[], Mapping[str, Row]]
    precisions: Mapping[str, PrecisionRow]
