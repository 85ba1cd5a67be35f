"""Stoke's flags and restoke's words: what each is called in the other's, in two tables; and which flags contradict others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import Enum
from typing import Any, NamedTuple

from restoke.configs import ClipGradConfig, DistributedOptions, FP16Options
from restoke.configs.validate import flag, one_of
from restoke.errors import Problem, SpecError
from restoke.spec import Clip, Spec
from restoke.table import PRECISIONS, chosen, row_of


class Placement(NamedTuple):
    """The flags that one strategy is called by; `zero` is the stage of DeepSpeed's ZeRO."""

    distributed: str | None = None
    oss: bool = False
    sharded: bool = False
    fully_sharded: bool = False
    zero: int | None = None


STRATEGIES = {
    "single": Placement(),
    "ddp": Placement(DistributedOptions.ddp),
    "oss": Placement(DistributedOptions.ddp, oss=True),
    "sddp": Placement(DistributedOptions.ddp, oss=True, sharded=True),
    "fairscale-fsdp": Placement(DistributedOptions.ddp, fully_sharded=True),
    "horovod": Placement(DistributedOptions.horovod),
    **{f"deepspeed-{stage}": Placement(DistributedOptions.deepspeed, zero=stage) for stage in range(4)},
}
FP16 = {"fp16": FP16Options.amp, "apex-O1": FP16Options.apex_O1, "apex-O2": FP16Options.apex_O2}
OWN_FP16: dict[str | None, FP16Options] = {DistributedOptions.deepspeed: FP16Options.deepspeed}  # what an engine calls fp16
WORDS = {option: precision for precision, option in FP16.items()} | dict.fromkeys(OWN_FP16.values(), "fp16")
APEX = (FP16Options.apex_O1, FP16Options.apex_O2)


def _option(kind: type[Enum], value: Any, axis: str, word: str, known: Callable[[str], Any]) -> str | None:
    """The value that a member or its value says. Of a name that is none of Stoke's but restoke's own, the refusal knows where
    it belongs."""
    if value is None:
        return None
    try:
        return str(one_of(kind)(value, axis))
    except SpecError as error:
        name = str(value.value if isinstance(value, Enum) else value)
        if not known(name):
            raise
        raise SpecError.of(axis, value, "Stoke has no such option", f"{word}={name!r}") from error


class Flags(NamedTuple):
    """What the flags of a `Stoke(...)` call say, of those that can contradict each other; made by `read_flags`."""

    gpu: bool
    fp16: FP16Options | None
    distributed: DistributedOptions | None
    fairscale_oss: bool
    fairscale_sddp: bool
    fairscale_fsdp: bool
    grad_clip: Clip | None
    configs: tuple[Any, ...]

    @property
    def fairscale(self) -> bool:
        return self.fairscale_oss or self.fairscale_sddp or self.fairscale_fsdp

    @property
    def engine(self) -> bool:
        return self.distributed is DistributedOptions.deepspeed

    def strategy(self) -> str:
        """The strategy that is called by these flags. Raises SpecError with every rule of Stoke's that they break."""
        if found := list(problems(self)):
            raise SpecError(*found)
        asked = Placement(self.distributed, self.fairscale_oss, self.fairscale_sddp, self.fairscale_fsdp, self._zero())
        return next(name for name, placement in STRATEGIES.items() if placement == asked)

    def _zero(self) -> int | None:
        """DeepSpeed's stage stands in its settings; without any it is 0."""
        if not self.engine:
            return None
        from restoke.configs import DeepspeedConfig  # only its users wait for it

        config = next((item for item in self.configs if isinstance(item, DeepspeedConfig)), None) or DeepspeedConfig()
        return 0 if config.zero_optimization is None else config.zero_optimization.stage


def read_flags(
    gpu: Any, fp16: Any, distributed: Any, oss: Any, sddp: Any, fsdp: Any, grad_clip: Any = None, configs: Any = None
) -> Flags:
    """The flags as they were given, members or values. Raises SpecError: one is none of its option's, or of the wrong type."""
    mixed = _option(FP16Options, fp16, "fp16", "precision", PRECISIONS.get)
    spread = _option(DistributedOptions, distributed, "distributed", "strategy", row_of)
    return Flags(
        flag(gpu, "gpu"),
        None if mixed is None else FP16Options(mixed),
        None if spread is None else DistributedOptions(spread),
        flag(oss, "fairscale_oss"),
        flag(sddp, "fairscale_sddp"),
        flag(fsdp, "fairscale_fsdp"),
        Spec(clip=grad_clip).clip,
        Spec(settings=configs).settings,
    )


class Rule(NamedTuple):
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
    own = spec.strategy if chosen(spec).processes == "many" else None
    return STRATEGIES.get(spec.strategy) or Placement(distributed=own)


def fp16_of(spec: Spec) -> str | None:
    """The `fp16` flag that a spec's precision would be called by; one that Stoke never had is called by its own name."""
    means = PRECISIONS[spec.precision].means
    option = FP16.get(spec.precision)
    if option is not None:
        return str(OWN_FP16.get(placement_of(spec).distributed, option))
    return None if means.compute is None and means.params is None else spec.precision
