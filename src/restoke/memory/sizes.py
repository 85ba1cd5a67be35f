"""The sizes of a session's model and of its optimizer's state, which formulas of memory are evaluated on."""

from __future__ import annotations

from torch import Tensor

from restoke.held import Sizes, Weight
from restoke.memory.records import State, Trained
from restoke.memory.storages import plain, storages
from restoke.session import Session


def trained(session: Session) -> Trained:
    """What this rank knows of them. Shapes are whole, however they are sharded; the state is this rank's own part."""
    return Trained(spec=session.spec.declared(), sizes=sizes(session), state=state(session))


def sizes(session: Session) -> Sizes:
    """The sizes, the optimizer's state left out."""
    module = session.parts.module
    weights = [Weight(tuple(p.shape), p.element_size(), p.requires_grad) for p in module.parameters()]
    return Sizes(weights, _nbytes(list(module.buffers())))


def state(session: Session) -> State:
    """The optimizer's state on this rank: zeros before its first step."""
    found = State()
    for parameter, fields in session.parts.optimizer.state.items():
        tensors = [value for value in fields.values() if isinstance(value, Tensor)]
        shaped = [value for value in tensors if value.shape == parameter.shape]
        beside = [value for value in tensors if value.shape != parameter.shape]
        found += State(_nbytes(shaped), sum(t.numel() for t in plain(parameter)), _nbytes(beside), 1)
    return found


def _nbytes(tensors: list[Tensor]) -> int:
    each = {storage._cdata: storage for tensor in tensors for storage in storages(tensor)}
    return sum(storage.nbytes() for storage in each.values())
