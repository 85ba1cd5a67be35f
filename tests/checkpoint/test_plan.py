"""Each chunk is written once, and the ranks that hold copies share the bytes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from restoke.checkpoint.plan import assign, check_key, row, stored
from restoke.errors import CheckpointError
from restoke.parts import Chunk


def rows_of(*sizes: int) -> list[list[Any]]:
    return [[f"t{i:03}", [0], [size], [size], "float32"] for i, size in enumerate(sizes)]


def loads(rows: list[list[list[Any]]]) -> list[int]:
    held = [0] * len(rows)
    for entry in assign(rows).values():
        for piece in entry.pieces:
            held[piece.rank] += piece.box.volume
    return held


@given(st.lists(st.integers(1, 100), min_size=1, max_size=30), st.integers(1, 5))
def test_replicas_are_written_once_and_no_rank_has_much_more_than_its_share(sizes: list[int], ranks: int) -> None:
    held = loads([rows_of(*sizes)] * ranks)
    assert sum(held) == sum(sizes)
    assert max(held) <= sum(sizes) / ranks + max(sizes)


def test_what_one_rank_alone_holds_counts_before_the_copies_are_shared_out() -> None:
    alone = [["own", [0], [20], [20], "float32"]]
    assert loads([alone + rows_of(30, 30, 30), rows_of(30, 30, 30)]) == [50, 60]


def test_copies_over_a_part_of_the_ranks_go_to_those_that_hold_them() -> None:
    halves = [[["w", [start], [4], [8], "float32"]] for start in (0, 4, 0, 4)]
    pieces = assign(halves)["w"].pieces
    assert {(piece.rank % 2, piece.box.offsets) for piece in pieces} == {(0, (0,)), (1, (4,))}
    assert len(pieces) == 2


def test_an_empty_chunk_of_a_tensor_is_not_written() -> None:
    rows = [[["w", [0], [3], [3], "float32"]], [["w", [3], [0], [3], "float32"]]]
    assert [piece.rank for piece in assign(rows)["w"].pieces] == [0]


def test_an_empty_tensor_is_written_once_and_whole() -> None:
    chunks = [Chunk(torch.empty(0, 4), (0, 4), (0, 0)), Chunk(torch.empty(0, 2), (0, 4), (0, 2))]
    (piece,) = assign([[row("w", chunk)] for chunk in chunks])["w"].pieces
    assert piece.box.shape == (0, 4) == tuple(stored(chunks[1]).shape)


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        ([[["w", [0], [2], [4], "float32"]], [["w", [1], [2], [4], "float32"]]], "overlap"),
        ([[["w", [0], [2], [4], "float32"]]], "2 of 4"),
        ([[["w", [0], [0], [4], "float32"]]], "0 of 4"),
        ([[["w", [0], [4], [4], "float32"]], [["w", [0], [4], [4], "bfloat16"]]], "rank 1 has"),
        ([[["w", [0], [4], [4], "float32"]], [["w", [0, 0], [4, 1], [4, 1], "float32"]]], "rank 1 has"),
    ],
)
def test_chunks_that_make_no_whole_are_refused(rows: list[Any], why: str) -> None:
    with pytest.raises(CheckpointError, match=why):
        assign(rows)


@pytest.mark.parametrize(
    "chunk",
    [
        Chunk(torch.ones(3), (4,), (2,)),
        Chunk(torch.ones(3), (4,), (-1,)),
        Chunk(torch.ones(3), (3, 1), (0, 0)),
        Chunk(torch.ones(3), (3,), ()),
        Chunk.whole(torch.ones(1, dtype=torch.complex128)),
        Chunk.whole(torch.empty(1, device="meta")),
    ],
)
def test_a_chunk_that_cannot_be_is_refused_by_its_key(chunk: Chunk) -> None:
    with pytest.raises(CheckpointError) as refused:
        row("model/w", chunk)
    assert refused.value.problems[0].axis == "model/w"


@pytest.mark.parametrize("key", ["values/x", "__metadata__", "a\nb", "\ud800"])
def test_a_key_that_the_format_needs_or_cannot_hold_is_refused(key: str) -> None:
    with pytest.raises(CheckpointError, match="rename it"):
        check_key(key)
