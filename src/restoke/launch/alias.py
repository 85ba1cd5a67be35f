"""Another library's name for a facade: `import stoke` in an unmodified script gives `restoke.facades.stoke`."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_loader
from types import ModuleType
from typing import final

FACADES = "restoke.facades"


@final
class Alias(MetaPathFinder, Loader):
    """Finds each name of `modules` as a module that answers with the attributes of another."""

    def __init__(self, modules: Mapping[str, str]) -> None:
        self.modules = modules

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in self.modules:
            return None
        return spec_from_loader(fullname, self, origin=self.modules[fullname], is_package=True)

    def exec_module(self, module: ModuleType) -> None:
        """A module of its own, so that importing `stoke.x` sets nothing on the facade."""
        real = importlib.import_module(self.modules[module.__name__])
        listed = vars(real).get("__all__") or [name for name in dir(real) if not name.startswith("_")]
        vars(module).update(
            __doc__=real.__doc__,
            __all__=list(listed),
            __getattr__=lambda name: getattr(real, name),
            __dir__=lambda: dir(real),
        )


def install(facade: str) -> None:
    """Let the facade answer to the names that it declares in `MODULES`, also where the library itself is installed."""
    modules: Mapping[str, str] = importlib.import_module(f"{FACADES}.{facade}").MODULES
    sys.meta_path.insert(0, Alias(modules))
