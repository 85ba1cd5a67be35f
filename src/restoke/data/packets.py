"""A batch as bytes and back, its tensors without a copy more than that: what rank 0 sends where it alone reads the data."""

from __future__ import annotations

import io
import pickle
import struct
from collections.abc import Sequence
from typing import Any, final

import torch
from torch import Tensor

ALIGNED = 64  # where each tensor begins: vector instructions want it


def pack(value: Any) -> Tensor:
    """The bytes of any picklable value: (bytes,), uint8. Only ranks of one job read it, so that pickle is as safe here as
    between a process and its workers."""
    buffers: list[pickle.PickleBuffer] = []
    stream = io.BytesIO()
    _Packer(stream, protocol=5, buffer_callback=buffers.append).dump(value)
    raws: list[Any] = [stream.getvalue(), *(buffer.raw() for buffer in buffers)]
    table = struct.pack(f"<{len(raws) + 1}q", len(raws), *(len(raw) for raw in raws))
    places, end = _places(len(table), [len(raw) for raw in raws])
    packet = torch.empty(end, dtype=torch.uint8)
    view = _bytes(packet)
    view[: len(table)] = table
    for place, raw in zip(places, raws, strict=True):
        view[place : place + len(raw)] = raw
    return packet


def unpack(packet: Tensor) -> Any:
    """What was packed; its tensors share the packet's memory."""
    view = _bytes(packet)
    (count,) = struct.unpack_from("<q", view)
    lengths = struct.unpack_from(f"<{count}q", view, 8)
    places, _ = _places(8 * (count + 1), lengths)
    first, *buffers = (view[place : place + length] for place, length in zip(places, lengths, strict=True))
    return pickle.loads(first, buffers=buffers)  # noqa: S301 - from rank 0 of this job


def _bytes(packet: Tensor) -> memoryview:
    array: Any = packet.numpy()
    return memoryview(array)


def _places(begin: int, lengths: Sequence[int]) -> tuple[list[int], int]:
    places, end = [], begin
    for length in lengths:
        place = -(-end // ALIGNED) * ALIGNED
        places.append(place)
        end = place + length
    return places, end


@final
class _Packer(pickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        if type(value) is not Tensor or value.device.type != "cpu" or value.layout is not torch.strided or value.requires_grad:
            return NotImplemented
        flat = value.contiguous().reshape(-1).view(torch.uint8).numpy()
        return _tensor, (flat, str(value.dtype).removeprefix("torch."), tuple(value.shape))


def _tensor(flat: Any, dtype: str, shape: tuple[int, ...]) -> Tensor:
    return torch.from_numpy(flat).view(getattr(torch, dtype)).reshape(shape)
