"""Weights come out of any file bit for bit, and only what is asked for is read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from restoke.checkpoint import open_weights
from restoke.checkpoint import weights as checkpoint_weights
from restoke.errors import CheckpointError
from tests import ranks
from tests.checkpoint import on_ranks, weight_files
from tests.checkpoint.weight_files import (
    State,
    as_checkpoint,
    as_old_torch,
    as_one_checkpoint,
    as_safetensors,
    as_shards,
    as_shards_without_index,
    as_torch,
    bits,
    every_dtype,
    own_memory,
    read_all,
    same,
    saved,
    sharded,
)

FORMS = [as_torch, as_safetensors, as_shards, as_shards_without_index, as_checkpoint, as_one_checkpoint]


@pytest.mark.parametrize("form", FORMS)
def test_every_dtype_comes_out_bit_for_bit(tmp_path: Path, form: Callable[[Path, State], Path]) -> None:
    tensors = every_dtype()
    weights = open_weights(form(tmp_path, tensors))
    assert same(read_all(weights), tensors)
    assert {key: (weights.shape(key), weights.dtype(key)) for key in weights.keys()} == {  # noqa: SIM118
        f"model/{name}": (tuple(tensor.shape), tensor.dtype) for name, tensor in tensors.items()
    }
    assert weights.notes == []


@pytest.mark.parametrize("form", FORMS)
def test_a_box_is_that_part_of_the_whole_and_new_memory(tmp_path: Path, form: Callable[[Path, State], Path]) -> None:
    tensors = every_dtype()
    weights = open_weights(form(tmp_path, tensors))
    for name, tensor in tensors.items():
        if tensor.ndim == 2 and tensor.numel():
            assert bits(weights.read(f"model/{name}", (1, 0), (3, 4))) == bits(tensor[1:4])
            assert bits(weights.read(f"model/{name}", (2, 1), (2, 3))) == bits(tensor[2:4, 1:])
    first = weights.read("model/float32")
    first.zero_()
    assert bits(weights.read("model/float32")) == bits(tensors["float32"])


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("box", [((0, 0), (6, 4)), ((-1, 0), (1, 1)), ((0,), (5,)), ((0, 0), None)])
def test_a_box_outside_is_refused(tmp_path: Path, form: Callable[[Path, State], Path], box: tuple[Any, Any]) -> None:
    weights = open_weights(form(tmp_path, {"w": torch.ones(5, 4), "b": torch.ones(1)}))
    with pytest.raises(CheckpointError, match="there is no box"):
        weights.read("model/w", *box)


def test_the_nearest_name_is_told_where_there_is_no_such_tensor(tmp_path: Path) -> None:
    weights = open_weights(as_safetensors(tmp_path, {"weight": torch.ones(2)}))
    with pytest.raises(CheckpointError, match="did you mean 'model/weight'"):
        weights.shape("model/wieght")


def test_a_file_from_before_zip_is_read_and_that_is_said(tmp_path: Path) -> None:
    tensors = {"w": torch.arange(6.0).reshape(2, 3), "b": torch.arange(3)}
    weights = open_weights(as_old_torch(tmp_path, tensors))
    assert same(read_all(weights), tensors)
    assert "read into memory as a whole" in weights.notes[0]


def test_a_file_is_known_by_what_is_in_it_whatever_it_is_called(tmp_path: Path) -> None:
    tensors = {"w": torch.arange(6.0)}
    for name in ("a.bin", "a"):
        assert same(read_all(open_weights(as_safetensors(tmp_path, tensors).rename(tmp_path / name))), tensors)
        assert same(read_all(open_weights(as_torch(tmp_path, tensors).rename(tmp_path / name))), tensors)


def test_a_header_of_any_length_is_no_pickle(tmp_path: Path) -> None:
    beginnings = set()
    for size in range(40, 200):
        save_file({"n" * size: torch.ones(1)}, tmp_path / "x")
        beginnings.add((tmp_path / "x").read_bytes()[:1])
        assert open_weights(tmp_path / "x").shape(f"model/{'n' * size}") == (1,)
    assert b"\x80" in beginnings


@pytest.mark.parametrize("nest", [("state_dict",), ("model",), ("model_state_dict",), ("module",), ("state_dict", "model")])
def test_a_state_dict_is_found_beside_other_things(tmp_path: Path, nest: tuple[str, ...]) -> None:
    content: Any = {"w": torch.arange(3.0)}
    for name in reversed(nest):
        content = {"epoch": 3, "optimizer": {"state": {}}, name: content}
    torch.save(content, tmp_path / "x.pt")
    weights = open_weights(tmp_path / "x.pt")
    assert same(read_all(weights), {"w": torch.arange(3.0)})
    assert [f"from {name!r}" in note for name, note in zip(nest, weights.notes, strict=True)] == [True] * len(nest)


def test_of_a_checkpoint_only_the_model_is_seen(tmp_path: Path) -> None:
    saved(tmp_path, nn.Linear(3, 2))
    weights = open_weights(tmp_path)
    assert sorted(weights.keys()) == ["model/bias", "model/weight"]
    assert set(weights.values) == {"model"}


def test_a_tag_names_one_checkpoint_and_the_newest_good_one_is_taken_without(tmp_path: Path) -> None:
    models = [nn.Linear(2, 1) for _ in range(3)]
    for tag, model in zip("abc", models, strict=True):
        path = saved(tmp_path, model, tag)
    (path / "rank-00000-of-00001.safetensors").write_bytes(b"")
    for options, model in (({"tag": "a"}, models[0]), ({}, models[1])):
        assert same(read_all(open_weights(tmp_path, **options)), model.state_dict())
    assert "c cannot" in open_weights(tmp_path).notes[0]
    with pytest.raises(CheckpointError, match="it cannot be loaded"):
        open_weights(tmp_path / "c")
    with pytest.raises(CheckpointError, match="is one checkpoint already"):
        open_weights(tmp_path / "a", tag="b")


def test_a_checkpoint_that_is_replaced_while_it_is_opened_is_not_mixed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved(tmp_path, nn.Linear(2, 1))
    read = checkpoint_weights.read

    def then_replaced(*args: Any) -> Any:
        opened = read(*args)
        saved(tmp_path, nn.Linear(2, 1))
        return opened

    monkeypatch.setattr(checkpoint_weights, "read", then_replaced)
    with pytest.raises(CheckpointError, match="another save replaced or deleted a while it was opened"):
        open_weights(tmp_path)


def test_averaged_weights_take_the_place_of_those_that_have_an_average(tmp_path: Path) -> None:
    model = nn.Linear(2, 1)
    saved(tmp_path, model, ema__weight=torch.full((1, 2), 9.0))
    averaged = read_all(open_weights(tmp_path, ema=True))
    assert same(averaged, {"weight": torch.full((1, 2), 9.0), "bias": model.bias.detach()})
    assert same(read_all(open_weights(tmp_path)), dict(model.state_dict()))


def test_a_folder_of_a_hub_with_both_kinds_gives_the_safetensors(tmp_path: Path) -> None:
    as_safetensors(tmp_path, {"w": torch.ones(1)})
    torch.save({"w": torch.zeros(1)}, tmp_path / "pytorch_model.bin")
    torch.save({}, tmp_path / "optimizer.pt")
    assert open_weights(tmp_path).read("model/w").item() == 1.0


def test_files_may_be_links_as_in_a_cache(tmp_path: Path) -> None:
    (tmp_path / "blobs").mkdir()
    target = as_safetensors(tmp_path / "blobs", {"w": torch.ones(1)})
    (tmp_path / "hub").mkdir()
    (tmp_path / "hub/model.safetensors").symlink_to(target)
    assert open_weights(tmp_path / "hub").read("model/w").item() == 1.0


def test_shards_of_torch_files_are_read_by_their_index(tmp_path: Path) -> None:
    parts = {
        "pytorch_model-00001-of-00002.bin": {"a": torch.ones(2)},
        "pytorch_model-00002-of-00002.bin": {"b": torch.zeros(3)},
    }
    sharded(tmp_path, parts, "pytorch_model.bin.index.json")
    for name, tensors in parts.items():
        torch.save(tensors, tmp_path / name)
    for path in (tmp_path, tmp_path / "pytorch_model.bin.index.json"):
        assert same(read_all(open_weights(path)), {"a": torch.ones(2), "b": torch.zeros(3)})


def test_tensors_that_an_index_does_not_list_are_left_out_and_said(tmp_path: Path) -> None:
    sharded(tmp_path, {"x.safetensors": {"a": torch.ones(2)}})
    save_file({"a": torch.ones(2), "b": torch.ones(2)}, tmp_path / "x.safetensors")
    weights = open_weights(tmp_path)
    assert list(weights.keys()) == ["model/a"]
    assert "does not list 1 of the tensors" in weights.notes[0]


def test_opening_does_not_read_the_tensors_into_memory(tmp_path: Path) -> None:
    size = 48 << 20
    for form in (as_torch, as_safetensors):
        path = form(tmp_path, {"w": torch.zeros(size, dtype=torch.uint8)})
        before = own_memory()
        weights = open_weights(path)
        part = weights.read("model/w", (size // 2,), (1000,))
        assert own_memory() - before < size // 4
        assert part.untyped_storage().nbytes() == 1000
        path.unlink()


def test_every_rank_opens_and_reads_its_own_box(tmp_path: Path) -> None:
    whole = torch.arange(24.0).reshape(6, 4)
    for path in (as_safetensors(tmp_path, {"w": whole}), as_checkpoint(tmp_path, {"w": whole})):
        assert ranks.run(2, weight_files.rows_on_rank, path) == [whole[:3].tolist(), whole[3:].tolist()]


def test_where_one_rank_cannot_open_them_none_can(tmp_path: Path) -> None:
    save_file({"w": torch.ones(1)}, tmp_path / "0.safetensors")
    said = ranks.run(2, weight_files.refused_on_rank, tmp_path)
    assert said[0] == said[1]
    assert "rank 1: there is no such file" in said[0]


def test_a_checkpoint_of_two_ranks_is_whole(tmp_path: Path) -> None:
    ranks.run(2, on_ranks.save, tmp_path, "a", 1.0)
    assert open_weights(tmp_path).read("model/w").equal(on_ranks.WHOLE + 1)
