"""Environment variables, read and set as scripts do it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


def str_to_bool(value: str, to_bool: bool = False) -> int | bool:
    """1 or 0 for a word that means yes or no. Raises ValueError: it means neither."""
    word = value.lower()
    if word in ("y", "yes", "t", "true", "on", "1"):
        return True if to_bool else 1
    if word in ("n", "no", "f", "false", "off", "0"):
        return False if to_bool else 0
    raise ValueError(f"invalid truth value {value}")


def parse_flag_from_env(key: str, default: bool = False) -> bool:
    """Whether the variable means yes."""
    return bool(str_to_bool(os.environ.get(key, str(default))))


def parse_choice_from_env(key: str, default: str = "no") -> str:
    return os.environ.get(key, str(default))


def get_int_from_env(env_keys: list[str], default: int) -> int:
    """The first of these variables that is a number from 0 on."""
    found = (int(os.environ.get(key, "-1")) for key in env_keys)
    return next((value for value in found if value >= 0), default)


@contextmanager
def clear_environment() -> Iterator[None]:
    """Without any variable; those that were there are put back, and new ones taken away."""
    kept = os.environ.copy()
    os.environ.clear()
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(kept)


@contextmanager
def patch_environment(**kwargs: Any) -> Iterator[None]:
    """With these variables, in capitals; those that they replace are put back."""
    kept: dict[str, str | None] = {}
    for key, value in kwargs.items():
        kept[key.upper()] = os.environ.get(key.upper())
        os.environ[key.upper()] = str(value)
    try:
        yield
    finally:
        for key, before in kept.items():
            if before is None:
                os.environ.pop(key, None)
            else:
                os.environ[key] = before
