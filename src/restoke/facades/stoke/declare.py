"""The spec of a `Stoke(...)` call: its old flags, its new words and its `spec=`, which may not contradict each other."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import attrs

from restoke.errors import Problem, SpecError, nearest
from restoke.facades.stoke.flags import WORDS, Flags
from restoke.spec import Spec


class Said(NamedTuple):
    """One axis as it was declared, and where: `how` is what the user wrote."""

    axis: str
    value: Any
    how: str

    @classmethod
    def of(cls, axis: str, value: Any, how: str | None = None) -> Said:
        """The value as a Spec holds it. Raises SpecError where it can hold no such value."""
        return cls(axis, getattr(Spec(**{axis: value}), axis), how or f"{axis}={value!r}")


def spec_of(flags: Flags, steps: int | None, words: Mapping[str, Any], base: Any) -> Spec:
    """The one spec that flags, words (`strategy=`, `precision=`, ...) and `spec=` declare together.

    Without `spec=` and `device=`, Stoke's `gpu` decides the device, and its default is the CPU.

    Raises:
        SpecError: a rule of Stoke's is broken, or two of them say different things about one axis.
    """
    start = _spec(base)
    found: dict[str, Said] = {}
    clashes = []
    for said in (*_by_flags(flags, steps), *_by_words(words), *_by_spec(start)):
        first = found.setdefault(said.axis, said)
        if said.value not in (first.value, "auto"):
            clashes.append(Problem(said.axis, said.value, f"{first.how} says {first.value!r}", "one of the two"))
    if clashes:
        raise SpecError(*clashes)
    if base is None:
        found.setdefault("device", Said("device", "cpu", "gpu=False"))
    declared = {name: said.value for name, said in found.items()}
    return attrs.evolve(start, **declared, settings=(*start.settings, *flags.configs))


def _spec(base: Any) -> Spec:
    if base is None:
        return Spec()
    if isinstance(base, Spec):
        return base
    if isinstance(base, Mapping):
        return Spec.of(base)
    if isinstance(base, str | os.PathLike):
        return Spec.read(base)
    raise SpecError.of("spec", base, "it is no declaration", "a Spec, the path of a YAML file, or a mapping")


def _by_flags(flags: Flags, steps: int | None) -> Iterator[Said]:
    strategy = flags.strategy()
    if flags.distributed is not None:
        yield Said.of("strategy", strategy, f"distributed={flags.distributed.value!r}")
    if flags.gpu:
        yield Said.of("device", "cuda", "gpu=True")
    if flags.fp16 is not None:
        yield Said.of("precision", WORDS[flags.fp16], f"fp16={flags.fp16.value!r}")
    if flags.grad_clip is not None:
        yield Said.of("clip", flags.grad_clip, f"grad_clip={flags.grad_clip}")
    if steps not in (None, 1):
        yield Said.of("accumulate", steps, f"grad_accum_steps={steps}")


def _by_words(words: Mapping[str, Any]) -> Iterator[Said]:
    return (Said.of(axis, value) for axis, value in words.items() if value is not None)


def _by_spec(spec: Spec) -> Iterator[Said]:
    names = (name for name in spec.declared() if name != "settings")
    return (Said(name, getattr(spec, name), f"spec={name}: {getattr(spec, name)}") for name in names)


def refuse_unknown(unknown: Mapping[str, Any], function: Callable[..., Any]) -> None:
    """Raises SpecError that names the nearest right keyword of `function` for each that it does not have."""
    if unknown:
        kinds = inspect.signature(function).parameters.values()
        names = [p.name for p in kinds if p.name != "self" and p.kind is not p.VAR_KEYWORD]
        found = [Problem(name, value, "there is no such keyword", nearest(name, names)) for name, value in unknown.items()]
        raise SpecError(*found)
