"""Our writer against the safetensors library, which must read what it wrote."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest
import torch
import xxhash
from safetensors.torch import load_file

from restoke.checkpoint import container
from restoke.checkpoint.container import DTYPES, write_tensors
from restoke.checkpoint.disk import DISK
from restoke.checkpoint.formats import checksum
from tests.checkpoint.states import bits

TENSORS = {
    **{
        name: torch.arange(48, dtype=torch.uint8).reshape(2, 24).view(dtype) for name, dtype in DTYPES.items() if name != "bool"
    },
    "bool": torch.tensor([True, False, True]),
    "scalar": torch.tensor(2.5),
    "empty": torch.empty(0, 7),
    "transposed": torch.arange(6.0).reshape(2, 3).t(),
    "strided": torch.arange(10)[::3],
    "expanded": torch.ones(1, 1).expand(3, 2),
    "conjugate": torch.tensor([1 + 2j, 3 - 1j]).conj(),
    "negative": torch.tensor([1 + 2j]).conj().imag,
    "parameter": torch.nn.Parameter(torch.ones(2)),
    'é / " \\': torch.ones(1),
}


def test_the_library_reads_every_dtype_and_layout_bit_for_bit(tmp_path: Path) -> None:
    write_tensors(tmp_path / "x", TENSORS, DISK)
    loaded = load_file(tmp_path / "x")
    assert loaded.keys() == TENSORS.keys()
    for key, tensor in TENSORS.items():
        assert loaded[key].shape == tensor.shape
        assert loaded[key].dtype == tensor.dtype or key == "float4_e2m1fn_x2", key
        assert bits(loaded[key]) == bits(tensor.detach().resolve_conj().resolve_neg()), key


def test_the_hash_made_while_writing_is_that_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(container, "PIECE", 5)
    entry = write_tensors(tmp_path / "x", TENSORS, DISK)
    data = (tmp_path / "x").read_bytes()
    assert (entry.bytes, entry.checksum) == (len(data), xxhash.xxh3_128_hexdigest(data))
    assert checksum(tmp_path / "x", "xxh3_128") == entry.checksum


def test_every_tensor_is_aligned_to_its_element(tmp_path: Path) -> None:
    write_tensors(tmp_path / "x", {"a": torch.ones(3, dtype=torch.int8), "b": torch.ones(2, dtype=torch.float64)}, DISK)
    data = (tmp_path / "x").read_bytes()
    length = struct.unpack("<Q", data[:8])[0]
    starts = {key: entry["data_offsets"][0] for key, entry in json.loads(data[8 : 8 + length]).items() if key != "__metadata__"}
    assert length % 8 == 0
    assert starts == {"b": 0, "a": 16}


def test_no_tensors_make_a_valid_file(tmp_path: Path) -> None:
    write_tensors(tmp_path / "x", {}, DISK)
    assert load_file(tmp_path / "x") == {}


def test_tensors_may_share_memory(tmp_path: Path) -> None:
    base = torch.arange(4.0)
    write_tensors(tmp_path / "x", {"a": base, "b": base, "c": base[1:3]}, DISK)
    assert load_file(tmp_path / "x")["c"].tolist() == [1, 2]


def test_a_file_that_is_there_is_not_written_over(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"mine")
    with pytest.raises(FileExistsError):
        write_tensors(tmp_path / "x", {}, DISK)
    assert (tmp_path / "x").read_bytes() == b"mine"
