"""Every kind of batch is moved with its type, and what need not move stays the same object."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict, UserDict, defaultdict, namedtuple
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import attrs
import pytest
import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence, pack_sequence

from restoke.data import place
from restoke.errors import DataError

META = torch.device("meta")  # a device to move to, wherever the tests run
CPU = torch.device("cpu")


class Pair(NamedTuple):
    x: Tensor
    label: Any


Loose = namedtuple("Loose", "x y")


class TupleOfMine(tuple):
    __slots__ = ()


class ListOfMine(list):
    name = ""


@attrs.frozen
class Frozen:
    x: Tensor
    note: str = "n"
    _private: Any = None


@attrs.define
class Open:
    x: Tensor
    derived: Any = attrs.field(init=False, default=None)


@dataclasses.dataclass(frozen=True, slots=True)
class FrozenData:
    x: Tensor
    rest: tuple[Any, ...] = ()


@dataclasses.dataclass
class Data:
    x: Tensor
    unset: Any = dataclasses.field(init=False)


@dataclasses.dataclass
class Mail:
    to: str
    x: Tensor


class Encoding(UserDict):
    """As transformers' BatchEncoding: a UserDict with attributes and its own `to`, which moves in place."""

    def to(self, device: torch.device) -> Encoding:
        self.data = {key: value.to(device) for key, value in self.data.items()}
        return self


class ModelOutput(OrderedDict):
    """As transformers' outputs: items that are attributes too."""

    def __setitem__(self, key: str, value: Any) -> None:
        super().__setitem__(key, value)
        object.__setattr__(self, key, value)


class Mover:
    def __init__(self) -> None:
        self.asked: list[Any] = []

    def to(self, device: Any, non_blocking: bool = False) -> Mover:
        self.asked.append((device, non_blocking))
        return self


class InPlace:
    def __init__(self) -> None:
        self.x = torch.ones(2)

    def to(self, device: torch.device) -> None:
        self.x = self.x.to(device)


class ReadOnly(Mapping):
    def __init__(self, *, x: Tensor) -> None:
        self.x = x

    def __getitem__(self, key: str) -> Tensor:
        return self.x

    def __iter__(self) -> Iterator[str]:
        return iter(["x"])

    def __len__(self) -> int:
        return 1


def x() -> Tensor:
    return torch.ones(2)


def of_mine() -> ListOfMine:
    made = ListOfMine([x(), 1])
    made.name = "kept"
    return made


CONTAINERS: list[Any] = [
    x(),
    [x(), 1, "s"],
    (x(), None),
    {"x": x(), 3: "s"},
    OrderedDict(b=x(), a=x()),
    defaultdict(list, x=x()),
    UserDict(x=x()),
    ModelOutput(x=x()),
    MappingProxyType({"x": x()}),
    Pair(x(), 1),
    Loose(x(), x()),
    TupleOfMine((x(), 1)),
    of_mine(),
    Frozen(x(), private=x()),
    Open(x()),
    FrozenData(x(), (1, x())),
    Data(x()),
    Mail("somebody", x()),
    pack_sequence([torch.ones(3), torch.ones(2)]),
    torch.max(torch.ones(2, 2), dim=0),
    {"deep": [Pair(x(), {"more": (Frozen(x()), [OrderedDict(x=x())])})]},
]


def tensors(batch: Any) -> list[Tensor]:
    """All tensors in it, found another way than by `place`."""
    if isinstance(batch, Tensor):
        return [batch]
    if isinstance(batch, PackedSequence):
        return [batch.data]
    if isinstance(batch, Mapping):
        return [found for value in batch.values() for found in tensors(value)]
    if isinstance(batch, list | tuple):
        return [found for value in batch for found in tensors(value)]
    if attrs.has(type(batch)) or dataclasses.is_dataclass(batch):
        names = [*getattr(type(batch), "__attrs_attrs__", ()), *getattr(type(batch), "__dataclass_fields__", {}).values()]
        return [found for item in names for found in tensors(getattr(batch, item.name, None))]
    return []


@pytest.mark.parametrize("batch", CONTAINERS, ids=lambda batch: type(batch).__name__)
def test_every_tensor_moves_and_every_type_stays(batch: Any) -> None:
    moved = place(batch, META)
    assert type(moved) is type(batch)
    assert [item.device for item in tensors(moved)] == [META] * len(tensors(batch))
    assert {item.device for item in tensors(batch)} == {CPU}


@pytest.mark.parametrize("batch", CONTAINERS, ids=lambda batch: type(batch).__name__)
def test_what_is_there_already_stays_the_same_object(batch: Any) -> None:
    assert place(batch, CPU) is batch
    assert place(batch, "cpu") is batch


@pytest.mark.parametrize("other", ["s", b"b", 1, 1.5, None, True, {1, 2}, object(), len, int, ReadOnly, range(3)], ids=repr)
def test_everything_else_is_untouched(other: Any) -> None:
    assert place(other, META) is other


def test_only_what_moved_is_new() -> None:
    batch = {"x": x(), "names": ["a", "b"], "there": [torch.ones(1, device=META)]}
    moved = place(batch, META)
    assert moved["names"] is batch["names"]
    assert moved["there"] is batch["there"]
    assert list(moved) == list(batch)


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.uint8, torch.float64, torch.float16, torch.complex64])
def test_no_dtype_changes(dtype: torch.dtype) -> None:
    assert place((torch.ones(2).to(dtype),), META)[0].dtype is dtype


def test_containers_keep_what_they_know_beside_their_items() -> None:
    counted = place(defaultdict(list, x=x()), META)
    assert counted["new"] == []
    assert place(of_mine(), META).name == "kept"
    assert list(place(OrderedDict(b=x(), a=x()), META)) == ["b", "a"]
    output = place(ModelOutput(x=x()), META)
    assert output.x is output["x"]
    assert place(Mail("somebody", x()), META).to == "somebody"
    assert Frozen(x(), private=1)._private == place(Frozen(x(), private=1), META)._private


def test_an_object_with_to_moves_itself_with_non_blocking_where_it_takes_that() -> None:
    mover = Mover()
    assert place([mover], META, non_blocking=True)[0] is mover
    assert mover.asked == [(META, True)]
    in_place = InPlace()
    assert place(in_place, META, non_blocking=True) is in_place
    assert in_place.x.device == META
    encoding = place(Encoding(ids=torch.ones(2, dtype=torch.int64)), META, non_blocking=True)
    assert type(encoding) is Encoding
    assert encoding["ids"].device == META


def test_a_mapping_that_cannot_be_made_anew_is_refused_with_what_to_do() -> None:
    there = ReadOnly(x=torch.ones(1, device=META))
    assert place(there, META) is there
    with pytest.raises(DataError, match=r"ReadOnly.*to\(device\)"):
        place(ReadOnly(x=x()), META)
