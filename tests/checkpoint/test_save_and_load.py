"""What is saved is what is loaded; one rank."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from restoke import checkpoint
from restoke.checkpoint import opening
from restoke.checkpoint.container import DTYPES
from restoke.errors import CheckpointError
from restoke.parts import Captured, Chunk, Saved
from tests.checkpoint.states import ONE, bits, files_of, filled, load, mark_of, same, save


def saved_of(folder: Path, chunks: dict[str, torch.Tensor], values: dict[str, Any] | None = None) -> checkpoint.Opened:
    captured = Captured({key: Chunk.whole(tensor) for key, tensor in chunks.items()}, values or {})
    checkpoint.write(folder, "a", captured, ONE, meta={})
    return load(folder)


def test_every_dtype_comes_back_bit_for_bit(tmp_path: Path) -> None:
    tensors = {f"model/{n}": torch.randint(0, 2, (3, 32), dtype=torch.uint8).view(dtype) for n, dtype in DTYPES.items()}
    saved: Saved = saved_of(tmp_path, tensors)
    assert set(saved.keys()) == set(tensors)
    for key, tensor in tensors.items():
        assert (saved.shape(key), saved.dtype(key)) == (tuple(tensor.shape), tensor.dtype)
        assert saved.read(key).dtype == tensor.dtype
        assert bits(saved.read(key)) == bits(tensor), key
        half = (1, 0), (2, 3)
        assert bits(saved.read(key, *half)) == bits(tensor[1:3, :3]), key


def test_scalars_and_empty_tensors_come_back(tmp_path: Path) -> None:
    saved = saved_of(tmp_path, {"s": torch.tensor(3), "e": torch.empty(2, 0, 3), "n": torch.empty(0)})
    assert same(saved.read("s"), torch.tensor(3))
    assert same(saved.read("s", (), ()), torch.tensor(3))
    assert same(saved.read("e"), torch.empty(2, 0, 3))
    assert same(saved.read("e", (1, 0, 1), (1, 0, 2)), torch.empty(1, 0, 2))
    assert same(saved.read("n", (0,), (0,)), torch.empty(0))


@pytest.fixture(scope="module")
def block(tmp_path_factory: pytest.TempPathFactory) -> tuple[checkpoint.Opened, torch.Tensor]:
    tensor = torch.arange(5 * 4 * 3).reshape(5, 4, 3)
    return saved_of(tmp_path_factory.mktemp("block"), {"x": tensor}), tensor


@given(st.data())
def test_every_box_is_what_slicing_gives(block: tuple[checkpoint.Opened, torch.Tensor], data: st.DataObject) -> None:
    saved, tensor = block
    offsets = tuple(data.draw(st.integers(0, n)) for n in tensor.shape)
    shape = tuple(data.draw(st.integers(0, n - start)) for start, n in zip(offsets, tensor.shape, strict=True))
    expected = tensor[tuple(slice(start, start + size) for start, size in zip(offsets, shape, strict=True))]
    assert same(saved.read("x", offsets, shape), expected.clone())


@pytest.mark.parametrize(
    "box", [((0, 0), (1, 1)), ((0, 0, 0), (6, 4, 3)), ((-1, 0, 0), (1, 1, 1)), ((0, 0, 0), None), (None, (1, 1, 1))]
)
def test_a_box_that_is_not_inside_is_refused(block: tuple[checkpoint.Opened, torch.Tensor], box: tuple[Any, Any]) -> None:
    with pytest.raises(CheckpointError, match="there is no box"):
        block[0].read("x", *box)


def test_an_unknown_key_is_refused_with_the_nearest(tmp_path: Path) -> None:
    saved = saved_of(tmp_path, {"model/weight": torch.ones(1)})
    with pytest.raises(CheckpointError, match="did you mean 'model/weight'"):
        saved.read("model/wieght")


def test_what_is_read_is_a_copy(tmp_path: Path) -> None:
    saved = saved_of(tmp_path, {"x": torch.zeros(3)})
    before = files_of(tmp_path / "a")
    saved.read("x").fill_(7)
    assert saved.read("x").tolist() == [0, 0, 0]
    gc.collect()
    assert files_of(tmp_path / "a") == before


def test_values_meta_and_each_ranks_own_come_back(tmp_path: Path) -> None:
    own = torch.get_rng_state()
    values = {"extras": {"t": torch.ones(2), (1,): {2}}, "$odd": 1, "rank/rng": {"torch": own}, "rank/x": (1,)}
    checkpoint.write(tmp_path, "a", Captured({}, values), ONE, meta={"spec": {"clip": (1, 2)}})
    saved = load(tmp_path)
    assert same(dict(saved.values), {"extras": values["extras"], "$odd": 1})
    assert len(saved.rank_values) == saved.world_size == 1
    assert same(saved.rank_values[0], {"rng": {"torch": own}, "x": (1,)})
    assert same([*saved.rank_values[:]], [saved.rank_values[0]])
    assert same(saved.meta, {"spec": {"clip": (1, 2)}})
    assert list(saved.keys()) == []


@pytest.mark.parametrize(
    ("options", "axis"),
    [
        ({"tag": ""}, "tag"),
        ({"tag": ".."}, "tag"),
        ({"tag": "a/b"}, "tag"),
        ({"tag": ".hidden"}, "tag"),
        ({"tag": "a\0b"}, "tag"),
        ({"tag": "x" * 101}, "tag"),
        ({"tag": 5}, "tag"),
        ({"keep": 0}, "keep"),
        ({"keep": True}, "keep"),
        ({"meta": {"x": torch.ones(1)}}, "meta.x"),
        ({"captured": Captured({}, {"extras": {"config": {"fn": print}}})}, "extras.config.fn"),
        ({"captured": Captured({"values/x": Chunk.whole(torch.ones(1))})}, "key"),
        ({"captured": Captured({"x": Chunk(torch.ones(1), (2,), (0,))})}, "x"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_what_cannot_be_saved_is_refused_and_leaves_no_trace(tmp_path: Path, options: dict[str, Any], axis: str) -> None:
    tag, captured, rest = options.pop("tag", "a"), options.pop("captured", Captured()), {"meta": {}, **options}
    with pytest.raises(CheckpointError) as refused:
        checkpoint.write(tmp_path / "run", tag, captured, ONE, **rest)
    assert refused.value.problems[0].axis == axis
    assert not (tmp_path / "run").exists()


def test_missing_folders_are_made(tmp_path: Path) -> None:
    assert save(tmp_path / "a" / "b", "t", 1.0) == tmp_path / "a" / "b" / "t"
    assert mark_of(load(tmp_path / "a" / "b", "t")) == 1.0


def test_the_newest_is_loaded_by_generation_and_not_by_name(tmp_path: Path) -> None:
    for mark, tag in enumerate(["z", "a", "m"]):
        save(tmp_path, tag, float(mark))
    saved = load(tmp_path)
    assert (saved.tag, saved.generation, mark_of(saved), saved.notes) == ("m", 3, 2.0, [])
    assert mark_of(load(tmp_path, "z")) == 0.0


def test_a_tag_is_replaced_by_a_newer_one_of_its_name(tmp_path: Path) -> None:
    for mark in (1.0, 2.0):
        save(tmp_path, "last", mark)
    saved = load(tmp_path, "last")
    assert (mark_of(saved), saved.generation) == (2.0, 2)
    assert {path.name for path in tmp_path.iterdir()} == {"last", ".lock"}


@pytest.mark.parametrize("keep", [1, 2, 3])
def test_retention_deletes_the_oldest_and_nothing_that_is_not_ours(tmp_path: Path, keep: int) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "rank-notes.txt").write_text("mine")
    for mark in range(4):
        save(tmp_path, f"step-{mark}", float(mark), keep=keep)
    left = {path.name for path in tmp_path.iterdir()} - {".lock", "logs", "rank-notes.txt"}
    assert left == {f"step-{mark}" for mark in range(4 - keep, 4)}
    assert (tmp_path / "logs").is_dir()


def test_something_else_of_the_tags_name_is_not_lost(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("all of it")
    with pytest.raises(CheckpointError, match="would be lost"):
        save(tmp_path, "mine", 1.0)
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "all of it"


def test_a_link_of_the_tags_name_is_not_written_over(tmp_path: Path) -> None:
    save(tmp_path, "step-1", 1.0)
    (tmp_path / "latest").symlink_to("step-1")
    with pytest.raises(CheckpointError, match="would be lost"):
        save(tmp_path, "latest", 2.0)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".lock", "latest", "step-1"]
    assert mark_of(load(tmp_path)) == 1.0


def test_a_tag_that_is_called_as_a_file_of_chunks_loads(tmp_path: Path) -> None:
    save(tmp_path, "rank-1-of-2.safetensors", 1.0)
    assert mark_of(load(tmp_path)) == 1.0


def test_what_was_opened_is_read_from_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "KEPT_OPEN", 0)
    monkeypatch.chdir(tmp_path)
    save(Path("run"), "a", 1.0)
    saved = load(Path("run"))
    monkeypatch.chdir("/")
    assert mark_of(saved) == 1.0


def test_a_damaged_one_of_the_tags_name_is_replaced(tmp_path: Path) -> None:
    (save(tmp_path, "last", 1.0) / "manifest.json").write_bytes(b"")
    save(tmp_path, "last", 2.0)
    assert mark_of(load(tmp_path, "last")) == 2.0


def test_a_listing_tells_what_there_is(tmp_path: Path) -> None:
    for mark in range(3):
        save(tmp_path, f"step-{mark}", float(mark))
    (tmp_path / "step-0" / "manifest.json").write_bytes(b"{}")
    (tmp_path / "other").mkdir()
    file = tmp_path / "step-1" / "rank-00000-of-00001.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"!")
    seen = checkpoint.listing(tmp_path)
    assert [(e.tag, e.generation, e.world_size, e.good) for e in seen] == [
        ("step-2", 3, 1, None),
        ("step-1", 2, 1, None),
        ("step-0", None, None, False),
    ]
    assert seen[0].bytes == sum(map(len, files_of(tmp_path / "step-2").values()))
    assert seen[0].created is not None
    assert [(e.good, bool(e.fault)) for e in checkpoint.listing(tmp_path, verify=True)] == [
        (True, False),
        (False, True),
        (False, True),
    ]
    with pytest.raises(CheckpointError, match="no such folder"):
        checkpoint.listing(tmp_path / "none")
    with pytest.raises(CheckpointError, match="no such folder") as refused:
        checkpoint.read(tmp_path / "none", None, ONE)
    assert refused.value.__cause__ is None
    assert refused.value.__suppress_context__


def test_nothing_is_copied_into_the_draft(tmp_path: Path) -> None:
    from restoke.checkpoint.draft import Draft

    captured = filled(1.0)
    draft = Draft.of(captured, {}, ONE)
    for key, chunk in captured.chunks.items():
        assert draft.tensors[key].data_ptr() == chunk.tensor.data_ptr()
