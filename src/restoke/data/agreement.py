"""What all ranks take over from rank 0 as an epoch begins: the seeds of its order, and the states of generators."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any, final

import numpy as np
import torch

from restoke import comm
from restoke.data.protocols import Seeded
from restoke.data.randomness import Seeds
from restoke.world import World


@final
class Agreement:
    """One broadcast at the start of an epoch, if there is anything that must be alike. `types` are generators of the process
    to share, too; `always`: the seeds matter though no sampler draws."""

    def __init__(self, world: World, types: Collection[str] = (), *, always: bool = False) -> None:
        self._types = [str(name) for name in types if str(name) != "generator"]
        self._always, self._device = always or bool(self._types), world.device
        self._broadcast: Callable[[Any], Any] = partial(comm.broadcast_json, world=world)

    def __call__(self, seeds: Seeds, generators: Sequence[torch.Generator], seeded: Sequence[Seeded], drawn: bool) -> Seeds:
        """Rank 0's seeds. The generators and samplers are set to its own."""
        if not (self._always or drawn or generators or seeded):
            return seeds
        own = {
            "seeds": [seeds.order, seeds.workers],
            "generators": [_packed(generator.get_state()) for generator in generators],
            "initial": [sampler.initial_seed for sampler in seeded],
            "process": read_generators(self._types, self._device),
        }
        found = self._broadcast(own)
        for generator, state in zip(generators, found["generators"], strict=True):
            generator.set_state(_unpacked(state))
        for sampler, initial in zip(seeded, found["initial"], strict=True):
            sampler.initial_seed = initial
        write_generators(found["process"], self._device)
        return Seeds(*found["seeds"])


def synchronize_rng(types: Collection[str], world: World, generator: torch.Generator | None = None) -> None:
    """Set generators to rank 0's state; all ranks call it. "generator" is the one given, others ("torch", "python", "numpy",
    "cuda", "xpu") are the process's own."""
    own = [] if generator is None or "generator" not in map(str, types) else [generator]
    if world.size > 1:
        Agreement(world, types)(Seeds(0, 0), own, [], drawn=False)


def read_generators(types: Collection[str], device: torch.device) -> dict[str, Any]:
    """The states of the process's generators, as JSON."""
    return {name: _read(name, device) for name in types}


def write_generators(states: dict[str, Any], device: torch.device) -> None:
    """Put back what `read_generators` gave."""
    for name, state in states.items():
        _write(name, state, device)


def _read(name: str, device: torch.device) -> Any:
    match name:
        case "torch":
            return _packed(torch.get_rng_state())
        case "python":
            return random.getstate()
        case "numpy":
            kind, keys, *rest = np.random.get_state()
            return [kind, np.asarray(keys).tolist(), *rest]
    return _packed(torch.get_device_module(name).get_rng_state(*_of(name, device)))


def _write(name: str, state: Any, device: torch.device) -> None:
    match name:
        case "torch":
            torch.set_rng_state(_unpacked(state))
        case "python":
            random.setstate((state[0], tuple(state[1]), state[2]))
        case "numpy":
            np.random.set_state((state[0], np.array(state[1], dtype=np.uint32), *state[2:]))
        case _:
            torch.get_device_module(name).set_rng_state(_unpacked(state), *_of(name, device))


def _of(name: str, device: torch.device) -> tuple[torch.device, ...]:
    return (device,) if device.type == name and device.index is not None else ()


def _packed(state: torch.Tensor) -> str:
    return bytes(state.cpu().numpy()).hex()


def _unpacked(state: str) -> torch.Tensor:
    return torch.frombuffer(bytearray.fromhex(state), dtype=torch.uint8)
