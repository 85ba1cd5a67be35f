"""Boxes against numpy, which counts how often each element is covered."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from restoke.checkpoint.tiling import Box, untiled

shapes = st.lists(st.integers(1, 5), max_size=3).map(tuple)


@st.composite
def boxes_in(draw: st.DrawFn, shape: tuple[int, ...]) -> Box:
    offsets = tuple(draw(st.integers(0, n - 1)) for n in shape)
    return Box(offsets, tuple(draw(st.integers(1, n - start)) for start, n in zip(offsets, shape, strict=True)))


def cut(draw: st.DrawFn, box: Box, times: int) -> list[Box]:
    """Cut a box in two, and its parts again: tilings that no grid has are among these."""
    dims = [dim for dim, size in enumerate(box.shape) if size > 1]
    if not times or not dims:
        return [box]
    dim = draw(st.sampled_from(dims))
    size = draw(st.integers(1, box.shape[dim] - 1))
    low = Box(box.offsets, (*box.shape[:dim], size, *box.shape[dim + 1 :]))
    start = (*box.offsets[:dim], box.offsets[dim] + size, *box.offsets[dim + 1 :])
    high = Box(start, (*box.shape[:dim], box.shape[dim] - size, *box.shape[dim + 1 :]))
    return cut(draw, low, times - 1) + cut(draw, high, times - 1)


@st.composite
def tilings(draw: st.DrawFn) -> tuple[tuple[int, ...], list[Box]]:
    shape = draw(shapes)
    return shape, draw(st.permutations(cut(draw, Box.whole(shape), 3)))


def counts(shape: tuple[int, ...], boxes: list[Box]) -> np.ndarray:
    covered = np.zeros(shape, int)
    for box in boxes:
        covered[box.within(Box.whole(shape))] += 1
    return covered


@given(tilings())
def test_every_way_to_cut_a_tensor_tiles_it(tiling: tuple[tuple[int, ...], list[Box]]) -> None:
    shape, boxes = tiling
    assert (counts(shape, boxes) == 1).all()
    assert untiled(shape, boxes) is None


@given(st.data(), tilings())
def test_a_tiling_with_one_box_changed_is_refused_where_numpy_counts_otherwise(
    data: st.DataObject, tiling: tuple[tuple[int, ...], list[Box]]
) -> None:
    shape, boxes = tiling
    at = data.draw(st.integers(0, len(boxes)))
    boxes = [*boxes[:at], data.draw(boxes_in(shape)), *boxes[at + data.draw(st.integers(0, 1)) :]]
    assert (untiled(shape, boxes) is None) == bool((counts(shape, boxes) == 1).all())


@given(st.data(), shapes)
def test_what_two_boxes_share_is_what_numpy_counts_twice(data: st.DataObject, shape: tuple[int, ...]) -> None:
    one, other = data.draw(boxes_in(shape)), data.draw(boxes_in(shape))
    twice = counts(shape, [one, other]) == 2
    shared = one.shared(other)
    assert (counts(shape, [shared] if shared else []) == twice).all()
    if shared:
        numbers = np.arange(twice.size).reshape(shape)
        whole = Box.whole(shape)
        assert (numbers[one.within(whole)][shared.within(one)] == numbers[shared.within(whole)]).all()


@pytest.mark.parametrize(
    ("shape", "boxes"),
    [
        ((4,), []),
        ((4,), [Box((0,), (5,))]),
        ((4,), [Box((-1,), (4,))]),
        ((4,), [Box((0,), (4,)), Box((4,), (0,))]),
        ((4,), [Box((0, 0), (4, 1))]),
        ((), [Box((), ()), Box((), ())]),
        ((0, 3), []),
        ((0, 3), [Box((0, 0), (0, 3)), Box((0, 0), (0, 3))]),
        ((0, 3), [Box((0, 1), (0, 2))]),
        ((4,), [Box((0,), (2,)), Box((0,), (2,))]),
        ((2, 2), [Box((0, 0), (2, 1)), Box((0, 0), (1, 2))]),
    ],
)
def test_what_does_not_tile_is_refused(shape: tuple[int, ...], boxes: list[Box]) -> None:
    assert untiled(shape, boxes)


def test_thousands_of_rows_or_columns_and_a_grid_of_a_thousand_are_checked_in_no_time() -> None:
    rows = [Box((i, 0), (1, 8)) for i in range(4000)]
    columns = [Box((0, i), (8, 1)) for i in range(4000)]
    grid = [Box((i, j), (1, 1)) for i in range(32) for j in range(32)]
    start = time.process_time()
    assert untiled((4000, 8), rows) is None
    assert untiled((8, 4000), columns) is None
    assert untiled((32, 32), grid) is None
    assert time.process_time() - start < 2
