"""Which settings there are: a class for each key that a spec file has under `settings:`."""

from __future__ import annotations

from typing import Any, cast

import attrs

from restoke.configs.amp import AMPConfig
from restoke.configs.apex import ApexConfig
from restoke.configs.ddp import DDPConfig
from restoke.configs.deepspeed import DeepspeedConfig
from restoke.configs.fairscale import FairscaleFSDPConfig, FairscaleOSSConfig, FairscaleSDDPConfig
from restoke.configs.horovod import HorovodConfig
from restoke.errors import SpecError

SETTINGS: dict[str, type[Any]] = {
    "amp": AMPConfig,
    "apex": ApexConfig,
    "ddp": DDPConfig,
    "horovod": HorovodConfig,
    "oss": FairscaleOSSConfig,
    "sddp": FairscaleSDDPConfig,
    "fairscale-fsdp": FairscaleFSDPConfig,
    "deepspeed": DeepspeedConfig,
}


def register(key: str, cls: type[Any]) -> None:
    """Make the settings of another package's strategy known.

    Raises:
        SpecError: `cls` is no class of settings, or the key or the class is registered already with another one.
    """
    axis, given = f"settings.{key}", cast(object, cls)
    if not (isinstance(given, type) and attrs.has(given)):
        raise SpecError.of(axis, cls, "it is not a class of settings", "a class made by restoke.configs.settings")
    if SETTINGS.get(key, cls) is not cls:
        raise SpecError.of(axis, cls, f"the name belongs to {SETTINGS[key].__name__}", "register it under another name")
    if _key_of(cls) not in (None, key):
        raise SpecError.of(axis, cls, f"the class is registered as {_key_of(cls)!r} already", "use that name")
    SETTINGS[key] = cls


def key_of(instance: Any) -> str:
    """The key of these settings. Raises SpecError for what is no instance of exactly one of the classes in `SETTINGS`."""
    if key := _key_of(type(instance)):
        return key
    if _key_of(instance):
        raise SpecError.of("settings", instance, "it is the class, not settings made from it", f"{instance.__name__}()")
    why = f"{type(instance).__name__} is not the settings of a strategy or a precision"
    raise SpecError.of("settings", instance, why, f"one of: {', '.join(cls.__name__ for cls in SETTINGS.values())}")


def _key_of(cls: Any) -> str | None:
    return next((key for key, known in SETTINGS.items() if known is cls), None)
