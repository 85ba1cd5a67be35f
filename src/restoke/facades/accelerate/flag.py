"""A truth value that may also be called, for scripts that wrote a property as a method."""

from __future__ import annotations

from typing import Any, final


@final
class Flag(int):
    """True or False, as an int that prints and compares as a bool does; `flag()` is the bool."""

    def __call__(self) -> bool:
        return self == 1

    def __repr__(self) -> str:
        return repr(self == 1)

    def __str__(self) -> str:
        return repr(self)

    def __format__(self, spec: str) -> str:
        return format(str(self), spec)

    def __reduce__(self) -> tuple[Any, ...]:
        return Flag, (int(self),)
