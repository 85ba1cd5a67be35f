"""Which settings there are: a class for each key that a spec file has under `settings:`."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, MutableMapping
from typing import Any, cast, final

import attrs

from restoke.errors import SpecError


@final
class Registry(MutableMapping[str, type[Any]]):
    """A class by its key. restoke's own are named as `module:Class` and imported when asked for: most runs need two of them."""

    def __init__(self, places: dict[str, str]) -> None:
        self._found: dict[str, type[Any] | str] = dict(places)

    def __getitem__(self, key: str) -> type[Any]:
        found = self._found[key]
        if isinstance(found, str):
            module, _, name = found.partition(":")
            found = self._found[key] = cast("type[Any]", vars(importlib.import_module(module))[name])
        return found

    def __setitem__(self, key: str, cls: type[Any]) -> None:
        self._found[key] = cls

    def __delitem__(self, key: str) -> None:
        del self._found[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)

    def __contains__(self, key: object) -> bool:
        return key in self._found

    def key_of(self, cls: Any) -> str | None:
        """The key of a class, if it has one; imports nothing."""
        place = f"{cls.__module__}:{cls.__qualname__}" if isinstance(cls, type) else ""
        return next((key for key, known in self._found.items() if known is cls or known == place), None)


SETTINGS = Registry(
    {
        "amp": "restoke.configs.amp:AMPConfig",
        "apex": "restoke.configs.apex:ApexConfig",
        "ddp": "restoke.configs.ddp:DDPConfig",
        "fsdp": "restoke.configs.fsdp:FSDPConfig",
        "tensor": "restoke.configs.tensor:TensorConfig",
        "horovod": "restoke.configs.horovod:HorovodConfig",
        "oss": "restoke.configs.fairscale:FairscaleOSSConfig",
        "sddp": "restoke.configs.fairscale:FairscaleSDDPConfig",
        "fairscale-fsdp": "restoke.configs.fairscale:FairscaleFSDPConfig",
        "deepspeed": "restoke.configs.deepspeed:DeepspeedConfig",
    }
)


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
    if SETTINGS.key_of(cls) not in (None, key):
        raise SpecError.of(axis, cls, f"the class is registered as {SETTINGS.key_of(cls)!r} already", "use that name")
    SETTINGS[key] = cls


def key_of(instance: Any) -> str:
    """The key of these settings. Raises SpecError for what is no instance of exactly one of the classes in `SETTINGS`."""
    if key := SETTINGS.key_of(type(instance)):
        return key
    if SETTINGS.key_of(instance):
        raise SpecError.of("settings", instance, "it is the class, not settings made from it", f"{instance.__name__}()")
    why = f"{type(instance).__name__} is not the settings of a strategy or a precision"
    raise SpecError.of("settings", instance, why, f"one of: {', '.join(cls.__name__ for cls in SETTINGS.values())}")
