"""Files of weights that are malformed, incomplete or hostile are refused by name, and run no code."""

from __future__ import annotations

import json
import os
import pickle
import random
import struct
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from restoke.checkpoint import open_weights
from restoke.errors import CheckpointError
from tests.checkpoint.weight_files import sharded


def refusal(path: Path, **options: Any) -> str:
    with pytest.raises(CheckpointError) as caught:
        open_weights(path, **options)
    (problem,) = caught.value.problems
    assert problem.why
    assert problem.instead
    return str(caught.value)


def header(path: Path, entries: Mapping[str, Any] | bytes, data: bytes = b"", length: int | None = None) -> Path:
    """A safetensors file with this header, right or wrong."""
    text = entries if isinstance(entries, bytes) else json.dumps(entries).encode()
    path.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + data)
    return path


def entry(dtype: str = "F32", shape: list[int] | None = None, span: list[int] | None = None) -> dict[str, Any]:
    return {"dtype": dtype, "shape": [1] if shape is None else shape, "data_offsets": span or [0, 4]}


FOUR = b"\0" * 4
MALFORMED: dict[str, tuple[Any, bytes, int | None]] = {
    "longer header than file": ({"w": entry()}, FOUR, 1 << 40),
    "header of 2^63 bytes": ({"w": entry()}, FOUR, (1 << 63) + 1),
    "no JSON": (b"{nothing}", FOUR, None),
    "a list": ([1], FOUR, None),
    "cut data": ({"w": entry()}, b"\0", None),
    "data left over": ({"w": entry()}, FOUR * 2, None),
    "shape and bytes differ": ({"w": entry(shape=[2])}, FOUR, None),
    "shape of 2^63": ({"w": entry(shape=[1 << 63])}, FOUR, None),
    "shape that overflows": ({"w": entry(shape=[1 << 33, 1 << 33])}, FOUR, None),
    "empty shape that overflows": ({"w": entry(shape=[0, 1 << 62, 1 << 62], span=[0, 0])}, b"", None),
    "negative shape": ({"w": entry(shape=[-1])}, FOUR, None),
    "overlapping": ({"v": entry(), "w": entry()}, FOUR, None),
    "a gap": ({"v": entry(), "w": entry(span=[8, 12])}, FOUR * 3, None),
    "reversed span": ({"w": entry(span=[4, 0])}, FOUR, None),
    "unknown dtype": ({"w": entry("F99")}, FOUR, None),
    "a dtype that torch lacks": ({"w": entry("F6_E2M3", [8], [0, 6])}, b"\0" * 6, None),
    "no dtype": ({"w": {"shape": [1], "data_offsets": [0, 4]}}, FOUR, None),
    "a name twice": (b'{"w":%b,"w":%b}' % ((json.dumps(entry()).encode(),) * 2), FOUR, None),
    "nested deep": (b'{"w":' * 100_000, FOUR, None),
    "no text as name": (b"\xff\xfe{}", FOUR, None),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_a_malformed_safetensors_file_is_refused_by_name(tmp_path: Path, case: str) -> None:
    assert "x.safetensors" in refusal(header(tmp_path / "x.safetensors", *MALFORMED[case]))


def test_the_header_that_the_malformed_ones_come_from_is_right(tmp_path: Path) -> None:
    assert open_weights(header(tmp_path / "x", {"w": entry()}, FOUR)).read("model/w").item() == 0.0


@pytest.mark.parametrize(
    "content", [b"", b"x", b"{}", b"\0" * 8, b"PK\x03\x04", b"PK\x03\x04" + b"x" * 100, b"\x80\x02.", b"\x80"]
)
@pytest.mark.parametrize("suffix", [".safetensors", ".pt", ".bin"])
def test_a_file_of_something_else_is_refused(tmp_path: Path, content: bytes, suffix: str) -> None:
    (tmp_path / f"x{suffix}").write_bytes(content)
    assert f"x{suffix}" in refusal(tmp_path / f"x{suffix}")


class Touch:
    """Unpickling this makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("nested", [True, False])
def test_code_in_a_file_is_not_run(tmp_path: Path, zipped: bool, nested: bool) -> None:
    hostile: Any = Touch(tmp_path / "made")
    content = {"state_dict": {"w": torch.ones(1)}, "args": hostile} if nested else hostile
    torch.save(content, tmp_path / "x.pt", _use_new_zipfile_serialization=zipped)
    assert "reading it would run code" in refusal(tmp_path / "x.pt")
    assert not (tmp_path / "made").exists()
    torch.load(tmp_path / "x.pt", weights_only=False)
    assert (tmp_path / "made").exists()  # it would have


def test_a_plain_pickle_is_refused_without_being_run(tmp_path: Path) -> None:
    (tmp_path / "x.pt").write_bytes(pickle.dumps(Touch(tmp_path / "made")))
    refusal(tmp_path / "x.pt")
    assert not (tmp_path / "made").exists()


def test_a_compressed_archive_is_refused_before_it_is_unpacked(tmp_path: Path) -> None:
    torch.save({"w": torch.zeros(1 << 20)}, tmp_path / "whole.pt")
    with (
        zipfile.ZipFile(tmp_path / "whole.pt") as whole,
        zipfile.ZipFile(tmp_path / "x.pt", "w", zipfile.ZIP_DEFLATED) as packed,
    ):
        for name in whole.namelist():
            packed.writestr(name, whole.read(name))
    assert "a part of it is compressed" in refusal(tmp_path / "x.pt")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({}, "there is no state dict in it"),
        ({"epoch": 1, "loss": 0.5}, "epoch, loss"),
        (torch.ones(3), "a Tensor"),
        ([torch.ones(3)], "a list"),
        ({0: torch.ones(1)}, "there is no state dict in it"),
        ({"model": {"w": torch.ones(1)}, "state_dict": {"w": torch.ones(1)}}, "it holds several: state_dict, model"),
        ({"w": torch.ones(3).to_sparse()}, "its layout is torch.sparse_coo"),
        ({"w": torch.ones(2, device="meta")}, "it has no data"),
        ({"w": torch.ones(2, dtype=torch.complex128)}, "safetensors has no such dtype"),
        ({"a._orig_mod.w": torch.ones(1), "a.w": torch.ones(1)}, "two tensors are called a.w"),
    ],
    ids=str,
)
def test_what_is_no_state_dict_is_refused_with_what_it_is(tmp_path: Path, content: Any, said: str) -> None:
    torch.save(content, tmp_path / "x.pt")
    assert said in refusal(tmp_path / "x.pt")


def index(folder: Path, weight_map: Any, **more: Any) -> Path:
    path = folder / "model.safetensors.index.json"
    path.write_text(json.dumps({"metadata": {}, "weight_map": weight_map, **more}))
    return path


@pytest.mark.parametrize(
    "name", ["../x", "/etc/x", "a/b", "..", ".", "", "a\\b", "C:x", "a\0", "a\nb", None, 3, ["x"], {"a": 1}]
)
def test_an_index_that_names_more_than_files_beside_it_is_refused(tmp_path: Path, name: Any) -> None:
    (tmp_path / "in").mkdir()
    save_file({"w": torch.ones(1)}, tmp_path / "x")
    assert "which is no plain file name" in refusal(index(tmp_path / "in", {"w": name}))


@pytest.mark.parametrize(
    "text", ["", "[]", "{", "{}", '{"weight_map": []}', '{"weight_map": {}}', '{"weight_map": 1}', "[" * 100_000]
)
def test_what_is_no_index_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(text)
    assert "it is no index of shards" in refusal(tmp_path)


def test_an_index_with_a_name_twice_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.index.json").write_text('{"weight_map": {"w": "a", "w": "b"}}')
    assert "a name is in it twice" in refusal(tmp_path / "a.index.json")


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    sharded(tmp_path, {f"model-0000{i}-of-00003.safetensors": {f"w{i}": torch.ones(1)} for i in (1, 2, 3)})
    (tmp_path / "model-00002-of-00003.safetensors").unlink()
    assert "model-00002-of-00003.safetensors is missing" in refusal(tmp_path)
    (tmp_path / "model.safetensors.index.json").unlink()
    assert "of its 3 shards, number 2 is missing" in refusal(tmp_path)


def test_a_set_of_more_shards_than_there_could_be_asks_for_no_memory(tmp_path: Path) -> None:
    save_file({"w": torch.ones(1)}, tmp_path / "model-1-of-999999999.safetensors")
    assert "number 2, 3, 4, 5, 6 is missing" in refusal(tmp_path)


def test_a_tensor_that_the_index_promises_must_be_in_that_file(tmp_path: Path) -> None:
    sharded(tmp_path, {"a.safetensors": {"v": torch.ones(1)}, "b.safetensors": {"w": torch.ones(1)}})
    index(tmp_path, {"v": "a.safetensors", "w": "a.safetensors"})
    assert "it says that w is in a.safetensors, which has no such tensor" in refusal(tmp_path / "model.safetensors.index.json")


def test_a_tensor_in_two_files_without_an_index_is_refused(tmp_path: Path) -> None:
    for i in (1, 2):
        save_file({"w": torch.ones(1)}, tmp_path / f"model-{i}-of-2.safetensors")
    assert "w is in two of its files" in refusal(tmp_path)


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ([], "it holds no file of weights"),
        (["config.json", "README.md"], "it holds no file of weights"),
        ([".metadata", "__0_0.distcp"], "it is a checkpoint of torch.distributed.checkpoint"),
        (["zero_to_fp32.py", "latest"], "it is a checkpoint of DeepSpeed"),
        (["unet.safetensors", "vae.safetensors"], "it holds several (unet.safetensors, vae.safetensors)"),
        (["a.pt", "b.pth"], "it holds several (a.pt, b.pth)"),
        (["model.safetensors", "x-1-of-1.safetensors"], "it holds several"),
    ],
)
def test_a_folder_that_does_not_say_which_file_is_refused(tmp_path: Path, files: list[str], said: str) -> None:
    for name in files:
        save_file({"w": torch.ones(1)}, tmp_path / name)
    assert said in refusal(tmp_path)


def test_a_file_beside_an_index_that_it_is_not_in_is_refused(tmp_path: Path) -> None:
    sharded(tmp_path, {"a.safetensors": {"w": torch.ones(1)}})
    save_file({"w": torch.zeros(1)}, tmp_path / "model.safetensors")
    assert "it holds several (model.safetensors.index.json, model.safetensors)" in refusal(tmp_path)


def test_what_only_checkpoints_have_is_refused_for_files(tmp_path: Path) -> None:
    save_file({"w": torch.ones(1)}, tmp_path / "x.safetensors")
    assert "tag='a'" in refusal(tmp_path, tag="a")
    assert "ema=True" in refusal(tmp_path, ema=True)


@pytest.mark.parametrize("path", ["nowhere", "x" * 5000, "a/" * 3000])
def test_a_path_that_leads_nowhere_is_refused(tmp_path: Path, path: str) -> None:
    refusal(tmp_path / path)


def test_damaged_files_are_refused_or_give_tensors_of_their_shape(tmp_path: Path) -> None:
    """Nothing has a checksum here, so a changed number passes; the process, and what it believes of shapes, may not break."""
    tensors = {"w": torch.ones(4, 3), "b": torch.arange(3)}
    rng = random.Random(0)
    torch.save(tensors, tmp_path / "whole.pt")
    save_file(tensors, tmp_path / "whole.safetensors")
    refused = 0
    for trial in range(200):
        whole = bytearray((tmp_path / ("whole.pt" if trial % 2 else "whole.safetensors")).read_bytes())
        if trial % 5 == 0:
            whole = whole[: rng.randrange(len(whole))]
        else:
            whole[rng.randrange(len(whole))] ^= 1 << rng.randrange(8)
        (tmp_path / "x").write_bytes(whole)
        try:
            weights = open_weights(tmp_path / "x")
            for key in weights.keys():  # noqa: SIM118
                assert tuple(weights.read(key).shape) == weights.shape(key)
        except CheckpointError:
            refused += 1
    assert refused > 60
