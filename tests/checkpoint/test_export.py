"""What is exported is what was saved, bit for bit, in the layout that other programs read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, load_model
from torch import Tensor, nn

from restoke import OptimizerSpec, Session, checkpoint
from restoke.checkpoint import export
from restoke.errors import CheckpointError
from tests import ranks
from tests.checkpoint import on_ranks
from tests.checkpoint.weight_files import EIGHT_BITS, EVERY, FLOATS, WHOLE, Tied, of_dtype, of_tensors, same, saved

INDEX = "model.safetensors.index.json"


def loaded(folder: Path) -> dict[str, Tensor]:
    """As transformers finds the files: the one, else those of the index."""
    if (folder / "model.safetensors").exists():
        return load_file(folder / "model.safetensors")
    weight_map = json.loads((folder / INDEX).read_text())["weight_map"]
    shards = {name: load_file(folder / name) for name in set(weight_map.values())}
    return {key: shards[name][key] for key, name in weight_map.items()}


def refusal(*args: Path, **options: object) -> str:
    with pytest.raises(CheckpointError) as caught:
        export(*args, **options)  # type: ignore[arg-type]
    return str(caught.value)


def metadata(file: Path) -> dict[str, str]:
    with safe_open(file, "pt") as opened:
        return opened.metadata()  # type: ignore[no-any-return, no-untyped-call]


def test_every_dtype_is_written_bit_for_bit_as_safetensors_itself_reads_it(tmp_path: Path) -> None:
    tensors = {str(dtype)[6:]: of_dtype(dtype, 5, 4) for dtype in EVERY}
    tensors |= {"scalar": torch.tensor(1.5), "empty": torch.empty(3, 0, dtype=torch.int16), "ünïcode": torch.ones(2)}
    of_tensors(tmp_path / "c", tensors)
    done = export(tmp_path / "c", tmp_path / "out")
    assert same(load_file(tmp_path / "out/model.safetensors"), tensors)
    assert done.files == (tmp_path / "out/model.safetensors",)
    assert (done.tensors, done.bytes) == (len(tensors), sum(t.numel() * t.element_size() for t in tensors.values()))


def test_a_trained_model_goes_into_the_bare_one(tmp_path: Path) -> None:
    session = Session(seed=1)
    model = Tied()
    session.prepare(model, OptimizerSpec(torch.optim.AdamW, {"lr": 0.1}))
    session.backward(model.head(model.norm(model.embed(torch.arange(8)))).square().mean())
    session.step()
    session.save(tmp_path / "c")
    export(tmp_path / "c", tmp_path / "one.safetensors")
    bare = Tied()
    assert load_model(bare, tmp_path / "one.safetensors") == (set(), [])
    assert same(bare.state_dict(), model.state_dict())


def test_tied_weights_are_written_once_and_the_other_name_is_in_the_metadata(tmp_path: Path) -> None:
    model = Tied()
    saved(tmp_path / "c", model)
    export(tmp_path / "c", tmp_path / "once")
    assert set(load_file(tmp_path / "once/model.safetensors")) == model.state_dict().keys() - {"head.weight"}
    assert metadata(tmp_path / "once/model.safetensors") == {"format": "pt", "head.weight": "embed.weight"}
    again = checkpoint.open_weights(tmp_path / "once")
    assert again.values["model"]["aliases"] == {"head.weight": "embed.weight"}


def test_tied_weights_are_written_under_each_name_where_that_is_asked_for(tmp_path: Path) -> None:
    model = Tied()
    saved(tmp_path / "c", model)
    export(tmp_path / "c", tmp_path / "each", tied=True)
    assert metadata(tmp_path / "each/model.safetensors") == {"format": "pt"}
    bare = Tied()
    bare.load_state_dict(load_file(tmp_path / "each/model.safetensors"), strict=True)
    assert same(bare.state_dict(), model.state_dict())


def test_a_name_that_has_a_tensor_of_its_own_is_not_taken_for_a_tied_one(tmp_path: Path) -> None:
    tensors = {"a": torch.ones(2), "b": torch.zeros(2)}
    of_tensors(tmp_path / "c", tensors, {"b": "a"})
    for tied in (False, True):
        export(tmp_path / "c", tmp_path / f"{tied}", tied=tied)
        assert same(loaded(tmp_path / f"{tied}"), tensors)
        assert metadata(tmp_path / f"{tied}/model.safetensors") == {"format": "pt"}


def test_each_tensor_lies_where_its_dtype_may(tmp_path: Path) -> None:
    of_tensors(tmp_path / "c", {str(dtype)[6:]: of_dtype(dtype, 3) for dtype in EVERY})
    export(tmp_path / "c", tmp_path / "x.safetensors")
    data = (tmp_path / "x.safetensors").read_bytes()
    size = int.from_bytes(data[:8], "little")
    for name, entry in json.loads(data[8 : 8 + size]).items():
        if name != "__metadata__":
            assert (8 + size + entry["data_offsets"][0]) % getattr(torch, name).itemsize == 0


@pytest.mark.parametrize("limit", [1, 100, 500, 1000, 10**6])
def test_shards_are_filled_in_order_up_to_the_size_and_the_index_says_where_each_is(tmp_path: Path, limit: int) -> None:
    model = Tied()
    saved(tmp_path / "c", model)
    done = export(tmp_path / "c", tmp_path / "out", shard_size=limit)
    tensors = {name: tensor for name, tensor in model.state_dict().items() if name != "head.weight"}
    assert same(loaded(tmp_path / "out"), tensors)
    shards = [load_file(file) for file in done.files if file.name != INDEX]
    sizes = [sum(t.nbytes for t in shard.values()) for shard in shards]
    assert all(size <= limit or len(shard) == 1 for size, shard in zip(sizes, shards, strict=True))
    if len(shards) == 1:
        assert [file.name for file in done.files] == ["model.safetensors"]
        return
    count = len(shards)
    assert [file.name for file in done.files] == [f"model-{i:05d}-of-{count:05d}.safetensors" for i in range(1, count + 1)] + [
        INDEX
    ]
    index = json.loads((tmp_path / "out" / INDEX).read_text())
    assert index["metadata"] == {"total_size": sum(sizes)}
    assert index["weight_map"] == {key: file.name for file, shard in zip(done.files, shards, strict=False) for key in shard}
    assert index.keys() == {"metadata", "weight_map"}


def test_layers_are_sharded_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    saved(tmp_path / "c", Tied())
    export(tmp_path / "c", tmp_path / "out", shard_size=400)
    weight_map = json.loads((tmp_path / "out" / INDEX).read_text())["weight_map"]
    files = [weight_map[f"layers.{i}.weight"] for i in range(11)]
    assert files == sorted(files)
    assert len(set(files)) > 3


def test_the_shards_are_those_that_the_hub_s_own_rule_would_make(tmp_path: Path) -> None:
    hub = pytest.importorskip("huggingface_hub")
    tensors = {f"layers.{i}.w": torch.full((i % 5 + 1, 25), float(i)) for i in range(23)}
    of_tensors(tmp_path / "c", tensors)
    for limit in (90, 400, 1000, 5000):
        export(tmp_path / "c", tmp_path / f"{limit}", shard_size=limit)
        index = json.loads((tmp_path / f"{limit}" / INDEX).read_text())
        theirs = hub.split_torch_state_dict_into_shards(tensors, max_shard_size=limit)
        if limit > 500:  # a tensor larger than the limit is put apart by them, and closes the shard before it by us
            assert index["weight_map"] == theirs.tensor_to_filename
        assert index["metadata"] == theirs.metadata


def test_accelerate_loads_the_folder_into_a_model(tmp_path: Path) -> None:
    modeling = pytest.importorskip("accelerate.utils.modeling")
    model = Tied()
    saved(tmp_path / "c", model)
    for name, options in {"one": {}, "shards": {"shard_size": 500}}.items():
        export(tmp_path / "c", tmp_path / name, **options)  # type: ignore[arg-type]
        bare = Tied()
        modeling.load_checkpoint_in_model(bare, tmp_path / name)
        assert same(bare.state_dict(), model.state_dict())


@pytest.mark.parametrize("target", FLOATS, ids=str)
def test_floating_point_is_cast_and_nothing_else(tmp_path: Path, target: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(1)
    wide = torch.randn(40, 3, dtype=torch.float64, generator=generator) * 100
    special = torch.tensor([float("inf"), float("-inf"), float("nan"), -0.0, 1e-30, 5e-324], dtype=torch.float64)
    tensors = {f"wide.{dtype}": wide.to(dtype) for dtype in FLOATS} | {"special": special}
    tensors |= {f"kept.{dtype}": of_dtype(dtype, 4, 4) for dtype in [*EIGHT_BITS, *WHOLE, torch.complex64]}
    of_tensors(tmp_path / "c", tensors)
    export(tmp_path / "c", tmp_path / "out", dtype=str(target))
    right = {name: tensor if name.startswith("kept") else tensor.to(target) for name, tensor in tensors.items()}
    assert same(load_file(tmp_path / "out/model.safetensors"), right)


@pytest.mark.parametrize(("value", "dtype"), [(70000.0, "float16"), (-1e39, "float32"), (1e39, "bfloat16")])
def test_a_value_beyond_the_range_is_refused_and_leaves_nothing(tmp_path: Path, value: float, dtype: str) -> None:
    of_tensors(tmp_path / "c", {"a": torch.ones(3), "w": torch.tensor([1.0, value], dtype=torch.float64)})
    said = refusal(tmp_path / "c", tmp_path / "out", dtype=dtype)
    assert "w has values beyond its range" in said
    assert sorted(path.name for path in tmp_path.iterdir()) == ["c"]


def test_chunks_of_several_ranks_become_whole_tensors(tmp_path: Path) -> None:
    ranks.run(2, on_ranks.save, tmp_path / "c", "a", 4.0)
    export(tmp_path / "c", tmp_path / "out")
    assert loaded(tmp_path / "out")["w"].equal(on_ranks.WHOLE + 4)


def test_averaged_weights_are_exported_where_they_are_asked_for(tmp_path: Path) -> None:
    model = nn.Linear(2, 1)
    saved(tmp_path / "c", model, ema__weight=torch.full((1, 2), 9.0))
    export(tmp_path / "c", tmp_path / "out", ema=True)
    assert same(loaded(tmp_path / "out"), {"weight": torch.full((1, 2), 9.0), "bias": model.bias.detach()})
    saved(tmp_path / "d", model)
    assert "a has no averaged weights" in refusal(tmp_path / "d", tmp_path / "e", ema=True)


def test_a_state_dict_of_torch_becomes_safetensors_and_what_is_left_out_is_said(tmp_path: Path) -> None:
    state = {f"module.{name}": tensor for name, tensor in Tied().state_dict().items()}
    torch.save({"state_dict": state | {"module.norm._extra_state": {"a": 1}}}, tmp_path / "x.pt")
    done = export(tmp_path / "x.pt", tmp_path / "x.safetensors")
    assert set(load_file(tmp_path / "x.safetensors")) == Tied().state_dict().keys() - {"head.weight"}
    assert [("state_dict" in note, "module." in note, "_extra_state" in note) for note in done.notes] == [
        (True, False, False),
        (False, True, False),
        (False, False, True),
    ]


def test_progress_is_told_of_every_byte(tmp_path: Path) -> None:
    saved(tmp_path / "c", Tied())
    told: list[tuple[int, int]] = []
    done = export(tmp_path / "c", tmp_path / "out", shard_size=500, progress=lambda *step: told.append(step))
    assert sum(written for written, _ in told) == done.bytes
    assert {of for _, of in told} == {done.bytes}


def test_a_tag_chooses_the_checkpoint(tmp_path: Path) -> None:
    models = {tag: nn.Linear(2, 1) for tag in "ab"}
    for tag, model in models.items():
        saved(tmp_path / "c", model, tag)
    export(tmp_path / "c", tmp_path / "a", "a")
    export(tmp_path / "c/b", tmp_path / "b")
    for tag, model in models.items():
        assert same(loaded(tmp_path / tag), dict(model.state_dict()))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"dtype": "int8"}, "weights are not cast to it"),
        ({"dtype": "bfloat61"}, "did you mean 'bfloat16'"),
        ({"dtype": "float8_e4m3fn"}, "weights are not cast to it"),
        ({"shard_size": "5 apples"}, "it is no size in bytes"),
        ({"shard_size": 0}, "it is no size in bytes"),
        ({"shard_size": -1}, "it is no size in bytes"),
        ({"tag": "b"}, "has no such checkpoint"),
    ],
)
def test_what_cannot_be_exported_is_refused(tmp_path: Path, options: dict[str, object], said: str) -> None:
    saved(tmp_path / "c", nn.Linear(2, 1))
    assert said in refusal(tmp_path / "c", tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


def test_a_checkpoint_without_weights_is_refused(tmp_path: Path) -> None:
    of_tensors(tmp_path / "c", {})
    assert "it holds no weights" in refusal(tmp_path / "c", tmp_path / "out")


def test_a_name_that_the_format_keeps_for_itself_is_refused(tmp_path: Path) -> None:
    of_tensors(tmp_path / "c", {"__metadata__": torch.ones(1)})
    assert "safetensors keeps this name for itself" in refusal(tmp_path / "c", tmp_path / "out")
