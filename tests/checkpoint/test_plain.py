"""Plain values survive JSON exactly, and nothing else is let through."""

from __future__ import annotations

import enum
import json
import math
import random
import struct
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from datetime import UTC, date, datetime, time, timedelta, timezone
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from restoke.checkpoint.plain import decode_mapping, from_json, to_json
from restoke.errors import CheckpointError
from tests.checkpoint.states import same


def round_trip(value: Any) -> Any:
    tensors: dict[str, Tensor] = {}
    text = json.dumps(to_json(value, tensors, "value"), allow_nan=False)
    return from_json(json.loads(text), lambda key: tensors[key].clone())


zones = st.none() | st.timedeltas(timedelta(hours=-23), timedelta(hours=23)).map(timezone)
floats = st.floats() | st.binary(min_size=8, max_size=8).map(lambda data: struct.unpack("d", data)[0])
scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-(2**70), 2**70)
    | floats
    | st.builds(complex, floats, floats)
    | st.text(st.characters(codec=None), max_size=5)
    | st.binary(max_size=5)
    | st.datetimes(timezones=zones)
    | st.dates()
    | st.times(timezones=zones)
    | st.timedeltas()
    | st.sampled_from([torch.float32, torch.bfloat16, torch.int64, torch.quint8, torch.device("cpu"), torch.device("cuda:1")])
    | st.sampled_from(
        [
            Path("a/b"),
            PurePosixPath("/x"),
            PureWindowsPath("c:\\x"),
            UTC,
            np.float32(1.5),
            np.int8(-3),
            np.str_("a\0"),
            np.bytes_(b"\0"),
        ]
    )
)
keys = scalars | st.tuples(scalars, st.frozensets(st.integers()))


def inside(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    dicts = st.dictionaries(keys, values, max_size=3)
    lists = st.lists(values, max_size=3)
    queues = st.builds(deque, lists, st.none() | st.integers(0, 4))
    named = st.dictionaries(st.sampled_from(["$tuple", "$dict", "$", "$int", "plain", "values/0"]), values)
    return lists | lists.map(tuple) | dicts | dicts.map(OrderedDict) | queues | named


values = st.recursive(
    scalars | st.sets(keys) | st.frozensets(keys) | keys.map(lambda key: Counter([key, key])), inside, max_leaves=8
)


@given(values)
@settings(max_examples=300, deadline=None)
def test_a_plain_value_comes_back_exactly(value: Any) -> None:
    assert same(round_trip(value), value)


@pytest.mark.parametrize(
    "value",
    [
        2**53 + 1,
        -(10**5000),
        {10**5000: {10**5000}},
        -0.0,
        math.nan,
        -math.inf,
        {"$tuple": [1]},
        {"$tuple": [1], "a": 2},
        {"a": 1, "$b": 2},
        {1: "a", "1": "b", None: "c", (1, 2): "d", False: "e"},
        {"z": 1, "a": 2},
        "\ud800 lone",
        Counter("abca"),
        bytearray(b"\0\xff"),
        torch.Size([2, 3]),
        [(), [], {}, set(), b"", ""],
        datetime(2024, 10, 27, 2, 30, fold=1, tzinfo=timezone(timedelta(hours=2))),
        time(2, fold=1),
        date.min,
        random.Random(3).getstate(),
        np.random.RandomState(3).get_state(),
        np.random.default_rng(3).bit_generator.state,
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_awkward_value_comes_back_exactly(value: Any) -> None:
    assert same(round_trip(value), value)


@pytest.mark.parametrize(
    "dtype", ["bool", "i1", "u2", ">i4", "<f2", "f8", "longdouble", "c8", "clongdouble", "S3", "U4", "M8[ns]", "m8[25s]"]
)
@pytest.mark.parametrize("shape", [(), (0,), (2, 0, 3), (3,), (2, 3)])
def test_numpy_comes_back_exactly(dtype: str, shape: tuple[int, ...]) -> None:
    array = np.arange(math.prod(shape)).reshape(shape).astype("i8").astype(dtype)
    back = round_trip({"array": array, "scalar": np.ones((), "i8").astype(dtype)[()]})
    assert same(back, {"array": array, "scalar": np.ones((), "i8").astype(dtype)[()]})
    back["array"][...] = back["array"]  # it can be written to


def test_an_array_in_another_order_comes_back_with_its_elements() -> None:
    array = np.asfortranarray(np.arange(6.0).reshape(2, 3))[:, ::-1]
    assert np.array_equal(round_trip(array), array)


def test_tensors_go_to_the_files_and_not_into_the_json() -> None:
    tensors: dict[str, Tensor] = {}
    weight = torch.ones(2, requires_grad=True)
    data = to_json({"a": [weight, np.arange(3)], "b": torch.zeros(())}, tensors, "extras", "values/x")
    assert list(tensors) == ["values/x/0", "values/x/1", "values/x/2"]
    assert data["a"][0] == {"$tensor": "values/x/0"}
    assert data["b"] == {"$tensor": "values/x/2"}
    assert tensors["values/x/0"].data_ptr() == weight.data_ptr()
    assert not tensors["values/x/0"].requires_grad


class Colour(enum.Enum):
    red = 1


class Number(enum.IntEnum):
    one = 1


Point = namedtuple("Point", "x y")
LOOP: list[Any] = []
LOOP.append(LOOP)


@pytest.mark.parametrize(
    ("value", "axis"),
    [
        ({"config": {"fn": print}}, "extras.config.fn"),
        ({"a b": [0, {1: Colour.red}]}, "extras['a b'][1][1]"),
        ([Number.one], "extras[0]"),
        ((Point(1, 2),), "extras[0]"),
        ({"x": defaultdict(list)}, "extras.x"),
        ({"p": torch.nn.Parameter(torch.ones(1))}, "extras.p"),
        ({"o": np.array([None])}, "extras.o"),
        ({"r": np.zeros(1, "i4,f4")}, "extras.r"),
        ({"m": torch.empty(1, device="meta")}, "extras.m"),
        ({"s": torch.eye(2).to_sparse()}, "extras.s"),
        ({"c": torch.zeros(1, dtype=torch.complex128)}, "extras.c"),
        ({"t": datetime(2024, 1, 1, tzinfo=ZoneInfo("UTC"))}, "extras.t.tzinfo"),
        ({Colour.red: 1}, "extras key <Colour.red: 1>"),
        (range(3), "extras"),
    ],
    ids=str,
)
def test_another_type_is_refused_by_the_path_to_it(value: Any, axis: str) -> None:
    with pytest.raises(CheckpointError) as refused:
        to_json(value, {}, "extras")
    assert refused.value.problems[0].axis == axis
    assert refused.value.problems[0].instead


def test_a_value_that_contains_itself_is_refused() -> None:
    with pytest.raises(CheckpointError, match="contains itself"):
        to_json(LOOP, {}, "extras")


def test_a_tensor_is_refused_where_none_can_be_kept() -> None:
    with pytest.raises(CheckpointError, match=r"meta\.x='Tensor'"):
        to_json({"x": torch.ones(1)}, None, "meta")


@pytest.mark.parametrize(
    "data",
    [
        {"$eval": "1"},
        {"$": 1},
        {"$tuple": "ab"},
        {"$tuple": [1], "x": 2},
        {"$set": [[1]]},
        {"$dict": [[1]]},
        {"$dict": [[{"$set": []}, 1]]},
        {"$int": 7},
        {"$int": "1_0_z"},
        {"$float": "00"},
        {"$bytes": "%"},
        {"$deque": [-1, []]},
        {"$deque": []},
        {"$dtype": "load"},
        {"$device": "rm -rf"},
        {"$datetime": ["x", 0]},
        {"$datetime": [2000, 1, 1, 0, 0, 0, 0, "utc", 0]},
        {"$timedelta": [10**20]},
        {"$timezone": 1},
        {"$path": ["os.system", "ls"]},
        {"$number": ["O", ""]},
        {"$number": ["<f8", "AAAA"]},
        {"$number": ["<i4", "AAAAAAAAAAA="]},
        {"$number": ["<i4,<f4", "AAAAAAAAAAA="]},
        {"$tensor": "missing"},
        {"$tensor": ["x"]},
        {"$array": ["x", "<f8", [2**61]]},
        {"$array": ["x", "<f8", [-1, -1]]},
        {"$array": ["x", "|O8", [1]]},
        {"$array": ["x", "<f8"]},
        {"$size": [1.5]},
        {"a": {"$complex": ["0", "0"]}},
    ],
    ids=str,
)
def test_malformed_json_is_refused(data: Any) -> None:
    tensors = {"x": torch.zeros(8, dtype=torch.uint8)}
    with pytest.raises(CheckpointError, match="malformed"):
        from_json(data, lambda key: tensors[key])


@pytest.mark.parametrize("data", [[1], {"$dict": [[1, 2]]}, "x"])
def test_values_without_names_are_refused(data: Any) -> None:
    with pytest.raises(CheckpointError, match="no names"):
        decode_mapping(data, lambda key: torch.zeros(1))
