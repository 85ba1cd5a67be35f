"""What the user declares: one frozen value that every part of restoke reads and none changes."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Self, TypeVar, cast

import attrs
from attrs import field, frozen

from restoke.configs import SETTINGS, ClipGradConfig, ClipGradNormConfig, key_of, settings_from, settings_to
from restoke.configs.yaml_text import read_yaml
from restoke.errors import Problem, SpecError, nearest
from restoke.plugins import plugins

Clip = ClipGradNormConfig | ClipGradConfig
S = TypeVar("S")

ENVIRONMENT = "RESTOKE_SPEC"  # what the launcher declared, as JSON; read by every session of every rank


class Precision(NamedTuple):
    """A mixed-precision policy as data; each strategy reads it in its own native way. Dtypes are torch's names."""

    compute: str | None = None  # dtype of forward and backward under autocast; None keeps the parameters' own
    params: str | None = None  # dtype that the parameters are converted to before training; None leaves them
    reduce: str | None = None  # dtype of the gradient reduction, where the strategy can choose it
    matmul: str | None = None  # how float32 products are computed ("tf32"); None leaves torch's own choice
    linear: str | None = None  # what linear layers multiply in ("float8"); None: as everything else
    scaled: bool = False  # whether the loss needs a gradient scaler


def _name(value: Any) -> str:
    return str(getattr(value, "value", value))


def _count(value: Any, axis: attrs.Attribute[Any]) -> int:
    digits = isinstance(value, str) and re.fullmatch(r"-?[0-9]{1,20}", value)
    if isinstance(value, bool) or not (isinstance(value, int) or digits):
        raise SpecError.of(axis.name, value, "it is not a whole number", "give an integer")
    return int(value)


def _count_or_none(value: Any, axis: attrs.Attribute[Any]) -> int | None:
    return None if value is None else _count(value, axis)


def _clip(value: Any) -> Clip | None:
    """A clip class, a number (the largest norm), a mapping of a clip class's fields, or `norm:1.0` / `value:0.5`."""
    if value is None or isinstance(value, Clip):
        return value
    if isinstance(value, Mapping):
        kind = ClipGradConfig if "clip_value" in value else ClipGradNormConfig
        return cast("Clip", settings_from(kind, value, "clip"))
    kind_name, _, number = str(value).rpartition(":")
    try:
        size = float(number)
    except ValueError:
        size = math.nan
    if kind_name not in ("", "norm", "value") or math.isnan(size) or isinstance(value, bool):
        raise SpecError.of(
            "clip", value, "it is neither a number nor norm:NUMBER nor value:NUMBER", "clip=1.0 (largest 2-norm)"
        )
    return ClipGradConfig(clip_value=size) if kind_name == "value" else ClipGradNormConfig(max_norm=size, norm_type=2.0)


def _settings_class(key: str) -> type[Any]:
    if key not in SETTINGS:
        plugins()  # another package may bring it
    if key not in SETTINGS:
        raise SpecError.of(f"settings.{key}", "...", "nothing has settings of this name", nearest(key, SETTINGS))
    return SETTINGS[key]


def _settings(value: Any) -> tuple[Any, ...]:
    """Settings objects, or a mapping `{key: {field: value}}` as a spec file has it."""
    if value is None:
        return ()
    if isinstance(value, Mapping):
        value = [
            settings_from(_settings_class(key), {} if fields is None else fields, f"settings.{key}")
            for key, fields in value.items()
        ]
    if not isinstance(value, Iterable) or isinstance(value, str):
        raise SpecError.of("settings", value, "it is not a list of settings", "settings=[DDPConfig(...)]")
    found: dict[str, Any] = {}
    for item in value:
        key = key_of(item)  # refuses what is no settings
        if key in found:
            raise SpecError.of("settings", item, f"settings of {key} are given twice", "give them once")
        found[key] = item
    return tuple(found.values())


def _decay(value: Any, axis: attrs.Attribute[Any]) -> float | None:
    if value is None:
        return None
    try:
        return float(math.nan if isinstance(value, bool) else value)
    except (TypeError, ValueError):
        raise SpecError.of(axis.name, value, "it is not a number", "0.999") from None


def _patterns(value: Any, axis: attrs.Attribute[Any]) -> tuple[str, ...]:
    given = () if value is None else value.split(",") if isinstance(value, str) else value
    found = tuple(given) if isinstance(given, Iterable) else (given,)
    if not all(isinstance(item, str) and item for item in found):
        raise SpecError.of(axis.name, value, "it is no list of name patterns", "such as layers.*")
    return found


def _axis(default: Any, converter: Any, help_: str) -> Any:
    return field(default=default, converter=converter, metadata={"help": help_})


def _plain(convert: Any) -> Any:
    return attrs.Converter(convert)


def _named(convert: Any) -> Any:
    return attrs.Converter(convert, takes_field=True)


@frozen(kw_only=True)
class Spec:
    """One point in the space of runs: what a script declares, a launcher overrides and a checkpoint records.

    A `Spec` can hold what cannot run: `restoke.table.problems` finds every reason why, and a session refuses with them.

    Raises:
        SpecError: a value is of the wrong type, or settings are given twice.
    """

    strategy: str = _axis(
        "auto", _plain(_name), "How the work is spread over processes; auto: single, or ddp when several run."
    )
    device: str = _axis("auto", _plain(_name), "cpu, cuda, mps, xpu; auto: the best one that is here.")
    precision: str = _axis("fp32", _plain(_name), "fp32, tf32, bf16, fp16 (autocast), bf16-true, fp8 (torchao).")
    accumulate: int = _axis(1, _named(_count), "Micro-batches per optimizer step.")
    clip: Clip | None = _axis(None, _plain(_clip), "Clip gradients: 1.0 or norm:1.0 (largest 2-norm), or value:0.5.")
    offload: str = _axis("none", _plain(_name), "cpu: parameters, gradients and optimizer state wait in host memory.")
    tensor: int = _axis(1, _named(_count), "Ranks over which each layer is sharded (tensor parallelism).")
    remat: str = _axis("none", _plain(_name), "Recompute activations: blocks (all of them), or selective (all but products).")
    compile: str = _axis("none", _plain(_name), "torch.compile each of the blocks, or the model.")
    blocks: tuple[str, ...] = _axis(
        (), _named(_patterns), "Name patterns of what is sharded, recomputed, compiled as one; found by themselves."
    )
    optimizer: str = _axis("given", _plain(_name), "How the optimizer runs: given, fused, foreach, 8bit, in-backward.")
    ema: float | None = _axis(None, _named(_decay), "Decay of the weights' exponential moving average, kept beside them.")
    seed: int | None = _axis(None, _named(_count_or_none), "One seed for initialisation, dropout, augmentation and shuffling.")
    processes: int | None = _axis(None, _named(_count_or_none), "Processes in all; checked against what the launcher started.")
    settings: tuple[Any, ...] = _axis((), _plain(_settings), "Settings of strategies and precisions, by class or by name.")

    def setting(self, kind: type[S]) -> S:
        """The settings of this class: as declared, else its defaults."""
        return next((item for item in self.settings if isinstance(item, kind)), None) or kind()

    @classmethod
    def of(cls, mapping: Mapping[str, Any], where: str = "spec") -> Self:
        """The spec of a plain mapping, such as a YAML file holds. Raises SpecError with all that is wrong in it by itself."""
        if not isinstance(mapping, Mapping):
            raise SpecError.of(where, mapping, "it is not a mapping of settings", "write lines such as `strategy: ddp`")
        known = [f.name for f in attrs.fields(cls)]
        found: list[Problem] = []
        for name, value in mapping.items():
            if name not in known:
                found.append(Problem(str(name), value, f"{where} has a setting that does not exist", nearest(name, known)))
                continue
            try:
                cls(**{name: value})
            except SpecError as error:
                found += error.problems
        if found:
            raise SpecError(*found)
        return cls(**mapping)

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Self:
        """The spec in a YAML file. Raises SpecError where the file is missing or says what cannot be understood."""
        return cls.of(read_mapping(path), where=str(path))

    def declared(self) -> dict[str, Any]:
        """What differs from the defaults, as plain JSON values; `Spec.of` gives the same spec back."""
        plain: dict[str, Any] = {}
        for axis in attrs.fields(type(self)):
            value = getattr(self, axis.name)
            if value != axis.default:
                plain[axis.name] = value
        if self.clip is not None:
            plain["clip"] = settings_to(self.clip, only_changed=False)
        if self.settings:
            plain["settings"] = {key_of(item): settings_to(item) for item in self.settings}
        return plain

    def overlaid(self, outside: Mapping[str, Any], where: str = ENVIRONMENT) -> tuple[Self, list[str]]:
        """This spec with what was declared outside the script; and a phrase for each declaration that it overrode."""
        merged = dict(outside)
        if "settings" in merged:
            merged["settings"] = self._merged_settings(merged["settings"])
        other = type(self).of(merged, where)
        changes = {name: getattr(other, name) for name in merged if getattr(other, name) != getattr(self, name)}
        mine = self.declared()
        said = [
            f"{name}={_short(value)} (the script: {_short(getattr(self, name))})"
            for name, value in changes.items()
            if name in mine
        ]
        return attrs.evolve(self, **changes), said

    def _merged_settings(self, outside: Mapping[str, Any]) -> dict[str, Any]:
        mine = {key_of(item): settings_to(item, only_changed=False) for item in self.settings}
        return _merged(mine, outside)


def _merged(inner: Mapping[str, Any], outer: Mapping[str, Any]) -> dict[str, Any]:
    """Field by field, at every depth: what the outer one has wins."""
    deeper = {key: _merged(inner[key], value or {}) for key, value in outer.items() if isinstance(inner.get(key), Mapping)}
    return {**inner, **outer, **deeper}


def _short(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def read_mapping(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The mapping that a YAML spec file holds, unread. Raises SpecError for a missing, unreadable or malformed file."""
    import yaml

    try:
        found = read_yaml(Path(path).read_text(encoding="utf-8"), str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError.of("spec", str(path), f"the file cannot be read ({error})", "give the path of a YAML file") from error
    except yaml.YAMLError as error:
        where = " ".join(str(error).split())
        raise SpecError.of(
            "spec", str(path), f"the file is not YAML ({where})", "write lines such as `strategy: ddp`"
        ) from error
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise SpecError.of("spec", str(path), "the file holds no mapping", "write lines such as `strategy: ddp`")
    return found


def outside_spec(environ: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """What the launcher declared in the one environment variable that it sets; empty where it set none."""
    text = environ.get(ENVIRONMENT, "")
    if not text:
        return {}
    try:
        found = json.loads(text)
    except ValueError as error:
        raise SpecError.of(ENVIRONMENT, text, f"it is not JSON ({error})", "let restoke launch set it, or unset it") from error
    if not isinstance(found, dict):
        raise SpecError.of(ENVIRONMENT, text, "it holds no mapping", "let restoke launch set it, or unset it")
    return found
