"""Stoke's flags and restoke's words: what each is called in the other's, in two tables; and which flags contradict others."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from functools import partial
from typing import Any

from attrs import field, frozen

from restoke.configs import ClipGradConfig, DeepspeedConfig, DistributedOptions, FP16Options
from restoke.configs.validate import flag, one_of
from restoke.errors import Problem, SpecError
from restoke.spec import Clip, Spec
from restoke.table import PRECISIONS, rows


@frozen(kw_only=True)
class Placement:
    """The flags that one strategy is called by; `zero` is the stage of DeepSpeed's ZeRO, `own_fp16` an engine's own word."""

    distributed: str | None = None
    oss: bool = False
    sharded: bool = False
    fully_sharded: bool = False
    zero: int | None = None
    own_fp16: FP16Options | None = field(default=None, eq=False)


def _zero(stage: int) -> Placement:
    return Placement(distributed=DistributedOptions.deepspeed, zero=stage, own_fp16=FP16Options.deepspeed)


STRATEGIES: dict[str, Placement] = {
    "single": Placement(),
    "ddp": Placement(distributed=DistributedOptions.ddp),
    "oss": Placement(distributed=DistributedOptions.ddp, oss=True),
    "sddp": Placement(distributed=DistributedOptions.ddp, oss=True, sharded=True),
    "fairscale-fsdp": Placement(distributed=DistributedOptions.ddp, fully_sharded=True),
    "horovod": Placement(distributed=DistributedOptions.horovod),
    **{f"deepspeed-{stage}": _zero(stage) for stage in range(4)},
}
FP16: dict[str, FP16Options] = {"fp16": FP16Options.amp, "apex-O1": FP16Options.apex_O1, "apex-O2": FP16Options.apex_O2}
WORDS = {option: precision for precision, option in FP16.items()} | {FP16Options.deepspeed: "fp16"}
APEX = (FP16Options.apex_O1, FP16Options.apex_O2)


def _distributed(value: Any) -> DistributedOptions | None:
    name = _option(DistributedOptions, value, "distributed", "strategy", rows())
    return None if name is None else DistributedOptions(name)


def _fp16(value: Any) -> FP16Options | None:
    name = _option(FP16Options, value, "fp16", "precision", PRECISIONS)
    return None if name is None else FP16Options(name)


def _option(kind: type[Enum], value: Any, axis: str, word: str, known: Iterable[str]) -> str | None:
    """The value that a member or its value says. Of a name that is none of Stoke's but restoke's own, the refusal knows where
    it belongs."""
    if value is None:
        return None
    try:
        return str(one_of(kind)(value, axis))
    except SpecError as error:
        name = str(value.value if isinstance(value, Enum) else value)
        if name not in known:
            raise
        raise SpecError.of(axis, value, "Stoke has no such option", f"{word}={name!r}") from error


def _flag(axis: str) -> Any:
    return field(default=False, converter=partial(flag, axis=axis))


def _clip(value: Any) -> Clip | None:
    return Spec(clip=value).clip


def _configs(value: Any) -> tuple[Any, ...]:
    return Spec(settings=value).settings


@frozen(kw_only=True)
class Flags:
    """What the flags of a `Stoke(...)` call say, of those that can contradict each other."""

    gpu: bool = _flag("gpu")
    fp16: FP16Options | None = field(default=None, converter=_fp16)
    distributed: DistributedOptions | None = field(default=None, converter=_distributed)
    fairscale_oss: bool = _flag("fairscale_oss")
    fairscale_sddp: bool = _flag("fairscale_sddp")
    fairscale_fsdp: bool = _flag("fairscale_fsdp")
    grad_clip: Clip | None = field(default=None, converter=_clip)
    configs: tuple[Any, ...] = field(default=(), converter=_configs)

    @property
    def fairscale(self) -> bool:
        return self.fairscale_oss or self.fairscale_sddp or self.fairscale_fsdp

    @property
    def engine(self) -> bool:
        return self.distributed is DistributedOptions.deepspeed

    def placement(self) -> Placement:
        """What the flags ask for; DeepSpeed's stage stands in its settings."""
        stage = None
        if self.engine:
            config = next((item for item in self.configs if isinstance(item, DeepspeedConfig)), None) or DeepspeedConfig()
            stage = config.zero_optimization.stage if config.zero_optimization is not None else 0
        return Placement(
            distributed=self.distributed,
            oss=self.fairscale_oss,
            sharded=self.fairscale_sddp,
            fully_sharded=self.fairscale_fsdp,
            zero=stage,
        )

    def strategy(self) -> str:
        """The strategy that is called by these flags. Raises SpecError with every rule of Stoke's that they break."""
        if found := list(problems(self)):
            raise SpecError(*found)
        asked = self.placement()
        return next(name for name, placement in STRATEGIES.items() if placement == asked)


@frozen
class Rule:
    """Flags that `broken` is true of are refused: `axis` is the one to blame."""

    axis: str
    broken: Callable[[Flags], bool]
    why: str
    instead: str


RULES = (
    Rule(
        "fairscale_sddp",
        lambda flags: flags.fairscale_sddp and not flags.fairscale_oss,
        "it reduces each gradient to the rank that holds its optimizer state, which OSS shards",
        "fairscale_oss=True as well",
    ),
    Rule(
        "fairscale_fsdp",
        lambda flags: flags.fairscale_fsdp and (flags.fairscale_oss or flags.fairscale_sddp),
        "FairScale's FSDP shards optimizer state and gradients by itself",
        "fairscale_fsdp=True alone",
    ),
    Rule(
        "distributed",
        lambda flags: flags.fairscale and flags.distributed is not DistributedOptions.ddp,
        "FairScale shards over the processes of DDP",
        "distributed='ddp', or no FairScale flag",
    ),
    Rule(
        "fp16",
        lambda flags: flags.fairscale and flags.fp16 in APEX,
        "FairScale does not work with Apex",
        "fp16='amp'",
    ),
    Rule(
        "grad_clip",
        lambda flags: (flags.fairscale_oss or flags.fairscale_fsdp) and isinstance(flags.grad_clip, ClipGradConfig),
        "FairScale clips sharded gradients by their norm only",
        "ClipGradNormConfig",
    ),
    Rule(
        "fp16",
        lambda flags: flags.fp16 is FP16Options.deepspeed and not flags.engine,
        "DeepSpeed's mixed precision is a part of its engine",
        "distributed='deepspeed' as well, or fp16='amp'",
    ),
    Rule(
        "fp16",
        lambda flags: flags.engine and flags.fp16 not in (None, FP16Options.deepspeed),
        "DeepSpeed's engine brings its own mixed precision",
        "fp16='deepspeed'",
    ),
)


def problems(flags: Flags) -> Iterator[Problem]:
    """What Stoke's own rules refuse about flags; whether what they stand for can run here, the table knows."""
    for rule in RULES:
        if rule.broken(flags):
            yield Problem(rule.axis, getattr(flags, rule.axis), rule.why, rule.instead)


def placement_of(spec: Spec) -> Placement:
    """The flags that a resolved spec's strategy would be called by; one that Stoke never had is called by its own name."""
    own = spec.strategy if rows()[spec.strategy].processes == "many" else None
    return STRATEGIES.get(spec.strategy) or Placement(distributed=own)


def fp16_of(spec: Spec) -> str | None:
    """The `fp16` flag that a spec's precision would be called by; one that Stoke never had is called by its own name."""
    means = PRECISIONS[spec.precision].means
    if means.compute is None and means.params is None and spec.precision not in FP16:
        return None
    option = FP16.get(spec.precision, spec.precision)
    own = placement_of(spec).own_fp16
    return str(own if own is not None and means.scaled else option)
