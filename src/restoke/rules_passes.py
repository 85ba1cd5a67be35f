"""The rules of what is done to a model and its optimizer beside the strategy: offload, tensor, remat, compile and more."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from restoke.configs import SETTINGS, ClipGradNormConfig
from restoke.errors import Problem, nearest
from restoke.facts import installed
from restoke.rows import Case, Row
from restoke.spec import Spec

OFFLOADS = ("none", "cpu")
REMATS = ("none", "blocks", "selective")
COMPILES = ("none", "blocks", "model")
OPTIMIZERS = ("given", "fused", "foreach", "8bit", "in-backward")


def supporting(case: Case, want: Callable[[Row], bool], otherwise: str) -> str:
    """Which strategies could do it, as the user would write it."""
    names = [name for name, row in case.rows().items() if row.usable() and want(row)]
    return f"strategy={' or '.join(names)}" if names else otherwise


def _choice(axis: str, got: str, known: tuple[str, ...]) -> Iterator[Problem]:
    if got not in known:
        yield Problem(axis, got, "there is no such choice", nearest(got, known))


def offload(spec: Spec, case: Case) -> Iterator[Problem]:
    yield from _choice("offload", spec.offload, OFFLOADS)
    if spec.offload in OFFLOADS and not case.row.refused and spec.offload not in case.row.offload:
        instead = supporting(case, lambda row: spec.offload in row.offload, "offload=none")
        yield Problem("offload", spec.offload, f"{case.row.name} keeps everything on the device", instead)


def _plan(spec: Spec) -> Mapping[str, str]:
    given = next((item for item in spec.settings if SETTINGS.key_of(type(item)) == "tensor"), None)
    return given.plan if given is not None else {}


def tensor(spec: Spec, case: Case) -> Iterator[Problem]:
    plan = _plan(spec)
    if spec.tensor < 1:
        yield Problem("tensor", spec.tensor, "a layer is on one rank at least", "tensor=1 or more")
    elif spec.tensor > 1 and not case.row.refused and not (case.row.tensor or (case.row.shared and not plan)):
        instead = supporting(case, lambda row: row.tensor, "tensor=1")
        how = "cannot shard layers by a plan" if case.row.shared else "cannot shard layers"
        yield Problem("tensor", spec.tensor, f"{case.row.name} {how}", instead)
    elif spec.tensor > 1 and case.facts.processes % spec.tensor:
        why = f"{case.facts.processes} processes cannot be divided into groups of {spec.tensor}"
        yield Problem("tensor", spec.tensor, why, f"--processes {spec.tensor * (case.facts.processes // spec.tensor + 1)}")
    elif spec.tensor > 1 and not plan and not case.row.shared:
        instead = 'TensorConfig(plan={"*.up": "columns", "*.down": "rows"})'
        yield Problem("tensor", spec.tensor, "no plan says which layers are sharded, and how", instead)
    elif spec.tensor == 1 and plan:
        yield Problem("tensor", spec.tensor, "a plan shards layers, and there are no ranks to share them", "tensor=2 or more")


def remat(spec: Spec, case: Case) -> Iterator[Problem]:
    yield from _choice("remat", spec.remat, REMATS)


def compile_(spec: Spec, case: Case) -> Iterator[Problem]:
    yield from _choice("compile", spec.compile, COMPILES)
    if spec.compile in COMPILES and not case.row.refused and spec.compile not in case.row.compiles:
        instead = f"compile={' or '.join(case.row.compiles)}"
        yield Problem("compile", spec.compile, f"{case.row.name} cannot be compiled so", instead)


def optimizer(spec: Spec, case: Case) -> Iterator[Problem]:
    yield from _choice("optimizer", spec.optimizer, OPTIMIZERS)
    if spec.optimizer in OPTIMIZERS and not case.row.refused and spec.optimizer not in case.row.optimizers:
        instead = supporting(case, lambda row: spec.optimizer in row.optimizers, "optimizer=given")
        yield Problem("optimizer", spec.optimizer, f"{case.row.name} cannot run the optimizer so", instead)


def eight_bits(spec: Spec, case: Case) -> Iterator[Problem]:
    if spec.optimizer == "8bit" and not installed("torchao"):
        yield Problem("optimizer", "8bit", "torchao is not installed", "pip install 'restoke[torchao]'")


def in_backward(spec: Spec, case: Case) -> Iterator[Problem]:
    """Where a step within the backward would be another step."""
    if spec.optimizer != "in-backward":
        return
    if spec.accumulate > 1:
        why = f"each backward steps, and gradients of {spec.accumulate} micro-batches would have to wait for another"
        yield Problem("optimizer", spec.optimizer, why, "accumulate=1, or optimizer=given")
    if isinstance(spec.clip, ClipGradNormConfig):
        why = "the norm of all gradients is known only when the first are gone"
        yield Problem("optimizer", spec.optimizer, why, "clip=value:..., or optimizer=given")
    row = case.precisions.get(spec.precision)
    if row is not None and row.means.scaled:
        why = "whether a scaled gradient overflowed is known only when others have stepped"
        yield Problem("optimizer", spec.optimizer, why, "precision=bf16, or optimizer=given")


def float8(spec: Spec, case: Case) -> Iterator[Problem]:
    row = case.precisions.get(spec.precision)
    if row is not None and row.means.linear is not None and spec.tensor > 1:
        why = "layers that are sharded do not multiply in float8"
        yield Problem("precision", spec.precision, why, "precision=bf16, or tensor=1")


def ema(spec: Spec, case: Case) -> Iterator[Problem]:
    if spec.ema is not None and not 0 < spec.ema < 1:
        yield Problem("ema", spec.ema, "a decay is between 0 and 1", "ema=0.999")


def blocks(spec: Spec, case: Case) -> Iterator[Problem]:
    if spec.blocks and spec.remat == "none" and spec.compile != "blocks" and not (case.row.blocks or case.row.refused):
        instead = supporting(case, lambda row: row.blocks, "leave it out")
        yield Problem("blocks", ",".join(spec.blocks), "nothing here works block by block", f"remat=blocks, or {instead}")


PASS_RULES = (offload, tensor, remat, compile_, optimizer, eight_bits, in_backward, float8, ema, blocks)
