"""Partial FC's per-rank files fill a head over any number of ranks, and nothing in them is run."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from restoke.distributed.collectives import all_gather
from restoke.nn import ParallelLinear, ParallelMarginLinear, PartialFC
from restoke.nn.partial_fc_files import load_partial_fc
from tests.nn.joined import refused, run

CLASSES, FEATURES = 11, 3


def wanted() -> Tensor:
    return torch.randn(CLASSES, FEATURES, generator=torch.Generator().manual_seed(2))


def written(folder: Path, ranks: int, layout: str, legacy: bool = False) -> Path:
    """As insightface writes them: the first ranks have a row more; version 2 beside its optimizer and scheduler."""
    first = 0
    for rank in range(ranks):
        rows = CLASSES // ranks + (rank < CLASSES % ranks)
        part = wanted()[first : first + rows].clone()
        first += rows
        if layout == "tensor":
            name, value = f"rank_{rank}_softmax_weight.pt", part
            torch.save(torch.zeros(1), folder / f"rank_{rank}_softmax_weight_mom.pt")
        else:
            name = f"checkpoint_gpu_{rank}.pt"
            optimizer = torch.optim.SGD([nn.Parameter(part)], lr=0.1)
            state = {"epoch": 3, "state_dict_softmax_fc": {"weight": part}, "state_optimizer": optimizer.state_dict()}
            value = state | {"state_dict_backbone": {"weight": torch.zeros(2)}}
        torch.save(value, folder / name, _use_new_zipfile_serialization=not legacy)
    return folder


def loaded(files: Any, kind: str) -> Tensor:
    made: dict[str, Any] = {
        "margin": lambda: ParallelMarginLinear(FEATURES, CLASSES),
        "partial": lambda: PartialFC(FEATURES, CLASSES),
        "linear": lambda: ParallelLinear(FEATURES, CLASSES, bias=False, dim=1),
    }
    head = made[kind]()
    load_partial_fc(head, files)
    shard = head.shard if kind != "linear" else head.shards["weight"]
    return all_gather(head.weight.detach(), 0, shard.lengths, shard.group)


@pytest.mark.parametrize("layout", ["tensor", "checkpoint"])
@pytest.mark.parametrize("ranks", [1, 4, 8])
def test_files_of_any_number_of_ranks_fill_a_head_of_any_other(ranks: int, layout: str, tmp_path: Path) -> None:
    folder = written(tmp_path, ranks, layout)
    for n, kind in ((1, "margin"), (2, "partial"), (3, "margin"), (2, "linear")):
        for found in run(n, loaded, str(folder), kind):
            assert torch.equal(found, wanted())


def test_paths_and_the_format_before_zip_files_do_too(tmp_path: Path) -> None:
    written(tmp_path, 10, "tensor", legacy=True)
    paths = [str(tmp_path / f"rank_{rank}_softmax_weight.pt") for rank in range(10)]
    assert torch.equal(run(2, loaded, paths, "margin")[1], wanted())


class Runs:
    def __reduce__(self) -> Any:
        return os.mkdir, (os.environ["RUN_BY_A_PICKLE"],)


def test_nothing_in_a_file_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUN_BY_A_PICKLE", str(tmp_path / "run"))
    written(tmp_path, 2, "tensor")
    torch.save({"weight": wanted(), "other": Runs()}, tmp_path / "rank_1_softmax_weight.pt")
    head = ParallelMarginLinear(FEATURES, CLASSES)
    assert "as tensors alone" in refused(load_partial_fc, head, tmp_path)
    assert not (tmp_path / "run").exists()


def refusal(files: Any, broken_on: int | None) -> str:
    head = ParallelMarginLinear(FEATURES, CLASSES)
    before = head.weight.detach().clone()
    said = refused(load_partial_fc, head, "nowhere" if head.shard.group.rank == broken_on else files)
    assert torch.equal(head.weight, before)
    return said


def test_files_that_lack_or_do_not_fit_are_refused_on_every_rank(tmp_path: Path) -> None:
    written(tmp_path, 4, "tensor")
    (tmp_path / "rank_2_softmax_weight.pt").rename(tmp_path / "kept")
    for said in run(2, refusal, str(tmp_path), None):
        assert "ranks [0, 1, 3]" in said
    (tmp_path / "kept").rename(tmp_path / "rank_2_softmax_weight.pt")
    first, second = run(2, refusal, str(tmp_path), 1)
    assert "another rank" in first
    assert "none" in second
    torch.save(torch.zeros(3, FEATURES), tmp_path / "rank_4_softmax_weight.pt")
    assert "11 classes of 3 elements" in run(2, refusal, str(tmp_path), None)[0]
    torch.save({"epoch": 3}, tmp_path / "rank_4_softmax_weight.pt")
    assert "no matrix of class vectors" in run(2, refusal, str(tmp_path), None)[1]
    torch.save(torch.zeros(3, FEATURES), tmp_path / "checkpoint_gpu_4.pt")
    assert "both of rank 4" in run(1, refusal, str(tmp_path), None)[0]
