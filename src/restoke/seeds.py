"""The one seed rule: initialisation alike on all ranks, dropout and augmentation by data rank; and the generators' states."""

from __future__ import annotations

import random
import sys
from typing import Any

import torch


def seed_all(seed: int, stream: int = 0) -> None:
    """Seed Python's, numpy's (where imported) and torch's generators. Stream 0 is what all ranks share to initialise models;
    stream r + 1 is data rank r's own."""
    mixed = seed if stream == 0 else (seed * 1_000_003 + stream * 7_919 + 12_345) % 2**32
    random.seed(mixed)
    torch.manual_seed(mixed)
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed(mixed)


def rng_state(device: torch.device) -> dict[str, Any]:
    """The state of every generator of this process, as plain values and byte tensors."""
    state: dict[str, Any] = {"python": random.getstate(), "torch": torch.get_rng_state()}
    if (numpy := sys.modules.get("numpy")) is not None:
        state["numpy"] = numpy.random.get_state()
    if device.type in ("cuda", "xpu"):
        state["device"] = torch.get_device_module(device).get_rng_state(device)
    elif device.type == "mps":
        state["device"] = torch.mps.get_rng_state()
    return state


def set_rng_state(state: dict[str, Any], device: torch.device) -> None:
    """Put back what `rng_state` gave, for the generators that are here."""
    random.setstate(state["python"])
    torch.set_rng_state(state["torch"])
    if "numpy" in state:
        import numpy as np

        np.random.set_state(state["numpy"])
    if "device" in state and device.type in ("cuda", "xpu"):
        torch.get_device_module(device).set_rng_state(state["device"], device)
    elif "device" in state and device.type == "mps":
        torch.mps.set_rng_state(state["device"])
