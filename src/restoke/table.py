"""The compatibility table: a strategy is one file, its settings and one row here. `problems` says what cannot run and why."""

from __future__ import annotations

from functools import cache

import attrs

from restoke.configs.ddp_rules import ddp_problems, ddp_rendezvous
from restoke.configs.fsdp_rules import batch_norm, copies, one_copy
from restoke.errors import Problem, SpecError, nearest
from restoke.facts import Facts
from restoke.held import optimizer_in_shares, replicated, sharded, sharded_copies, whole
from restoke.plugins import Plugin, plugins
from restoke.rows import Case, PrecisionRow, Row
from restoke.rules import RULES
from restoke.spec import Precision, Spec

PRECISIONS = {
    row.name: row
    for row in (
        PrecisionRow(name="fp32", summary="Everything in float32."),
        PrecisionRow(
            name="tf32",
            means=Precision(matmul="tf32"),
            summary="float32 whose products are computed in TF32.",
            devices=("cuda",),
            capability=(8, 0),
        ),
        PrecisionRow(
            name="bf16",
            means=Precision(compute="bfloat16", reduce="float32"),
            summary="Autocast to bfloat16; parameters stay float32.",
            capability=(8, 0),
        ),
        PrecisionRow(
            name="fp16",
            means=Precision(compute="float16", reduce="float32", scaled=True),
            summary="Autocast to float16 with a loss scaler; parameters stay float32.",
        ),
        PrecisionRow(
            name="bf16-true",
            means=Precision(params="bfloat16", reduce="bfloat16"),
            summary="Parameters, gradients and optimizer state in bfloat16.",
            capability=(8, 0),
        ),
        PrecisionRow(
            name="fp8",
            means=Precision(compute="bfloat16", reduce="float32", linear="float8"),
            summary="As bf16, with linear layers that multiply in float8 (torchao); emulated on a CPU.",
            devices=("cpu", "cuda"),
            capability=(8, 9),
            needs=("torchao",),
            extra="torchao",
        ),
        PrecisionRow(name="apex-O1", refused="Apex is not connected yet", instead="fp16 (torch's own autocast and scaler)"),
        PrecisionRow(name="apex-O2", refused="Apex is not connected yet", instead="bf16-true, or fp16"),
    )
}

BUILT_IN = (
    Row(
        name="single",
        where="restoke.strategies.single",
        summary="One process, one device.",
        optimizers=("given", "fused", "foreach", "8bit", "in-backward"),
        memory=whole,
        auto=True,
        bitwise=True,
        bare=True,
    ),
    Row(
        name="ddp",
        where="restoke.strategies.ddp",
        summary="Every process holds the whole model; gradients are averaged while the backward runs.",
        optimizers=("given", "fused", "foreach", "8bit"),
        shared=True,
        processes="many",
        devices=("cpu", "cuda", "xpu"),
        settings="ddp",
        rules=(ddp_problems,),
        rendezvous=ddp_rendezvous,
        memory=replicated,
        auto=True,
        bitwise=True,
        bare=True,
    ),
    Row(
        name="zero1",
        where="restoke.strategies.zero1",
        summary="As ddp, and each process keeps the optimizer state of its share alone (ZeRO stage 1).",
        shared=True,
        processes="many",
        devices=("cpu", "cuda", "xpu"),
        settings="ddp",
        rules=(ddp_problems,),
        rendezvous=ddp_rendezvous,
        memory=optimizer_in_shares,
        bitwise=True,
    ),
    *(
        Row(
            name=name,
            where=f"restoke.strategies.{name}",
            summary=summary,
            processes="many",
            devices=("cpu", "cuda", "xpu"),
            settings="fsdp",
            rules=(rule, batch_norm),
            offload=("none", "cpu"),
            tensor=True,
            shared=True,
            compiles=("none", "blocks"),
            blocks=True,
            tried=tried,
            memory=formula,
        )
        for name, summary, rule, tried, formula in (
            (
                "zero2",
                "Gradients and optimizer state are sharded; forward and backward gather all parameters.",
                one_copy,
                (1, 2),
                sharded,
            ),
            (
                "fsdp",
                "Parameters are sharded too; each block is gathered when it is needed (ZeRO stage 3).",
                one_copy,
                (1, 2),
                sharded,
            ),
            ("hsdp", "As fsdp within groups of processes that hold a copy each.", copies, (2, 4), sharded_copies),
        )
    ),
    *(
        Row(name=name, processes="many", refused=f"{what} is not connected yet", instead="strategy=ddp")
        for name, what in (
            ("oss", "FairScale's OSS"),
            ("sddp", "FairScale's ShardedDDP"),
            ("fairscale-fsdp", "FairScale's FSDP"),
            ("deepspeed-0", "DeepSpeed"),
            ("deepspeed-1", "DeepSpeed"),
            ("deepspeed-2", "DeepSpeed"),
            ("deepspeed-3", "DeepSpeed"),
            ("horovod", "Horovod"),
            ("xla", "XLA"),
        )
    ),
    *(
        Row(name=name, processes="many", refused=why, instead=instead)
        for name, why, instead in (
            (
                "pipeline",
                "its schedule of stages would replace the script's own loop",
                "strategy=fsdp, or tensor=N",
            ),
            (
                "context",
                "attention would have to exchange keys and values",
                "strategy=fsdp with remat=blocks",
            ),
        )
    ),
)


@cache
def rows() -> dict[str, Row]:
    """Every strategy by name: restoke's own, then those of installed packages; one that cannot be read refuses."""
    table = {row.name: row for row in BUILT_IN}
    for plugin in plugins():
        row = _third_party(plugin)
        if row.name in table:
            clash = f"its name is taken by a strategy of {table[row.name].package}"
            row = Row(
                name=f"{plugin.package}:{row.name}", package=plugin.package, refused=clash, instead="rename it in that package"
            )
        table[row.name] = row
    return table


_OWN = {row.name: row for row in BUILT_IN}


def row_of(name: str) -> Row | None:
    """The strategy of this name. Other packages are asked only for names that are not restoke's own."""
    return _OWN.get(name) or rows().get(name)


def _third_party(plugin: Plugin) -> Row:
    if isinstance(plugin.value, Row):
        return attrs.evolve(plugin.value, package=plugin.package)
    error = plugin.error or f"its entry point is a {type(plugin.value).__name__}, not a restoke Row"
    why, instead = f"{plugin.package} could not be read ({error})", f"repair or uninstall {plugin.package}"
    return Row(name=plugin.name, package=plugin.package, refused=why, instead=instead)


def resolve(spec: Spec, facts: Facts) -> Spec:
    """The spec with each `auto` replaced by what it means here."""
    if spec.strategy == "auto":
        kind = "many" if facts.launched or facts.processes > 1 else "one"
        spec = attrs.evolve(spec, strategy=next(row.name for row in BUILT_IN if row.auto and row.processes == kind))
    if spec.device == "auto":
        row = row_of(spec.strategy)
        usable = [name for name in facts.devices if row is None or name in row.devices]
        spec = attrs.evolve(spec, device=usable[0] if usable else "cpu")
    return spec


def problems(spec: Spec, facts: Facts) -> list[Problem]:
    """Every reason why this spec cannot run there; empty if it can. `auto` is resolved first."""
    spec = resolve(spec, facts)
    row = row_of(spec.strategy)
    if row is None:
        row = Row(name=spec.strategy, refused="there is no such strategy", instead=nearest(spec.strategy, usable()))
    case = Case(row, facts, rows, PRECISIONS)
    found = [problem for rule in RULES for problem in rule(spec, case)]
    return found + [problem for rule in row.rules for problem in rule(spec, facts)]


def chosen(spec: Spec) -> Row:
    """The row of a spec that was checked."""
    row = row_of(spec.strategy)
    assert row is not None
    return row


def usable() -> list[str]:
    """The strategies that are connected and whose engines are installed."""
    return [name for name, row in rows().items() if row.usable()]


def check(spec: Spec, facts: Facts) -> Spec:
    """The resolved spec. Raises SpecError with every problem, if there is one."""
    if found := problems(spec, facts):
        raise SpecError(*found)
    return resolve(spec, facts)
