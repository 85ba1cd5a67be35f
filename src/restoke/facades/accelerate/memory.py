"""Memory: a batch size that fits, found by trying, on all ranks the same; and giving memory back."""

from __future__ import annotations

import datetime
import functools
import gc
import inspect
import itertools
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from restoke.errors import SessionError, SpecError

_NUMBER = itertools.count()  # of attempts, alike on all ranks
_SIGNS = ("CUDA out of memory.", "XPU out of memory.", "cuDNN error: CUDNN_STATUS_NOT_SUPPORTED.", "can't allocate memory")


def clear_device_cache(garbage_collection: bool = False) -> None:
    """Give cached memory of the accelerator back."""
    if garbage_collection:
        gc.collect()
    if torch.accelerator.is_available():
        torch.accelerator.memory.empty_cache()


def release_memory(*objects: Any) -> list[None]:
    """As many None as objects, to assign to their names; what they held is collected."""
    gone: list[None] = [None] * len(objects)
    del objects
    clear_device_cache(garbage_collection=True)
    return gone


def should_reduce_batch_size(exception: Exception) -> bool:
    """Whether it says that memory ran out."""
    if isinstance(exception, torch.OutOfMemoryError):
        return True
    return isinstance(exception, RuntimeError) and any(sign in str(exception) for sign in _SIGNS)


def find_executable_batch_size(
    function: Callable[..., Any] | None = None,
    starting_batch_size: int = 128,
    reduce_batch_size_fn: Callable[[], int] | None = None,
) -> Any:
    """A decorator for a function whose first argument is the batch size: it is called with smaller and smaller ones until
    memory suffices, on all ranks with the same. By default each is nine tenths of the one before.

    Raises:
        SpecError: the call gives the batch size itself.
        SessionError: none fits.
    """
    if function is None:
        return functools.partial(
            find_executable_batch_size, starting_batch_size=starting_batch_size, reduce_batch_size_fn=reduce_batch_size_fn
        )
    run, size = function, starting_batch_size

    def smaller() -> int:
        return int(size * 0.9)

    @functools.wraps(run)
    def attempt(*args: Any, **kwargs: Any) -> Any:
        nonlocal size
        _check_call(run, args)
        size = starting_batch_size
        while size > 0:
            clear_device_cache(garbage_collection=True)
            result, failed = _tried(run, size, args, kwargs)
            if not _any_failed(failed):
                return result
            size = (reduce_batch_size_fn or smaller)()
        raise SessionError.of("batch_size", 0, "No executable batch size found, reached zero", "a smaller model, or sharding")

    return attempt


def _tried(run: Callable[..., Any], size: int, args: Any, kwargs: Any) -> tuple[Any, bool]:
    try:
        return run(size, *args, **kwargs), False
    except Exception as error:
        if not should_reduce_batch_size(error):
            raise
        return None, True


def _check_call(run: Callable[..., Any], args: tuple[Any, ...]) -> None:
    names = list(inspect.signature(run).parameters)
    if len(names) < len(args) + 1:
        shown = ", ".join(f"{name}={value}" for name, value in zip(names[1:], args[1:], strict=False))
        name = getattr(run, "__name__", "the function")
        why = f"Batch size was passed into `{name}` as the first argument when called"
        raise SpecError.of("batch_size", args[0], why, f"remove it: `{name}({shown})`")


def _any_failed(failed: bool) -> bool:
    """Whether memory ran out on any rank: told through the store, since some may still be in a collective."""
    if not dist.is_available() or not dist.is_initialized() or dist.get_world_size() == 1:
        return failed
    store: Any = dist.distributed_c10d._get_default_store()
    prefix = f"restoke/batch-size/{next(_NUMBER)}"
    store.set(f"{prefix}/{dist.get_rank()}", "1" if failed else "0")
    keys = [f"{prefix}/{rank}" for rank in range(dist.get_world_size())]
    store.wait(keys, datetime.timedelta(hours=1))
    return any(store.get(key) == b"1" for key in keys)
