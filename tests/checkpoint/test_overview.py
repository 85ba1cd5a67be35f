"""A folder is told from its manifests: in order, with what is wrong, and without reading a tensor."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from restoke import OptimizerSpec, Session
from restoke.checkpoint import generations
from restoke.checkpoint.overview import by_kind, kind_of, matching, overviews, plain, size_of
from restoke.checkpoint.plain import to_json
from restoke.errors import CheckpointError
from tests.checkpoint.states import save
from tests.checkpoint.weight_files import of_tensors

FILE = "rank-00000-of-00001.safetensors"


@pytest.fixture
def three(tmp_path: Path) -> Path:
    for i, tag in enumerate("cab"):
        save(tmp_path, tag, float(i))
    return tmp_path


def test_checkpoints_are_listed_newest_first_and_the_newest_is_chosen(three: Path) -> None:
    folder, found, chosen = overviews(three, None)
    assert folder == three
    assert [(item.tag, item.generation, item.fault) for item in found] == [("b", 3, ""), ("a", 2, ""), ("c", 1, "")]
    assert chosen is found[0]
    assert overviews(three, "a")[2] is not None
    assert overviews(three, "a")[2].tag == "a"  # type: ignore[union-attr]
    assert [overviews(three / "c", tag)[2].tag for tag in (None, "c")] == ["c", "c"]  # type: ignore[union-attr]


def test_what_sizes_and_manifests_tell_is_told_and_the_newest_readable_one_is_chosen(three: Path) -> None:
    (three / "b" / "manifest.json").write_text("{}")
    (three / "a" / FILE).write_bytes(b"123")
    (three / "c" / FILE).unlink()
    _, found, chosen = overviews(three, None)
    assert [item.tag for item in found] == ["a", "c", "b"]
    assert [item.fault.split()[0] for item in found] == [FILE, FILE, "manifest.json"]
    assert chosen is found[0]
    with pytest.raises(CheckpointError, match="foreign, damaged or cut off"):
        overviews(three, "b")


def test_where_no_manifest_can_be_read_none_is_chosen(three: Path) -> None:
    for tag in "abc":
        (three / tag / "manifest.json").unlink()
    _, found, chosen = overviews(three, None)
    assert [(item.tag, item.fault) for item in found] == [(tag, "manifest.json is missing") for tag in "abc"]
    assert chosen is None


def test_no_tensor_is_read_and_no_checksum_taken(three: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any) -> None:
        raise AssertionError("a file was read")

    monkeypatch.setattr(generations, "checksum", refused)
    monkeypatch.setattr(generations, "safe_open", refused)
    assert overviews(three, None)[2] is not None


def test_a_session_s_checkpoint_tells_its_spec_steps_and_optimizer(tmp_path: Path) -> None:
    session = Session(seed=1, accumulate=1)
    model = torch.nn.Linear(3, 2)
    session.prepare(model, OptimizerSpec(torch.optim.AdamW, {"lr": 0.5, "betas": (0.5, 0.25)}))
    session.backward(session.forward(torch.ones(1, 3)).sum())
    session.step()
    session.save(tmp_path)
    _, _, chosen = overviews(tmp_path, None)
    assert chosen is not None
    assert chosen.manifest is not None
    assert (chosen.meta["steps"], chosen.meta["torch"], chosen.meta["spec"]["seed"]) == (1, torch.__version__, 1)
    assert chosen.optimizer is not None
    assert chosen.optimizer["class"] == "AdamW"
    (group,) = chosen.optimizer["groups"]
    assert (group["params"], group["lr"], group["betas"]) == (["weight", "bias"], 0.5, [0.5, 0.25])
    kinds = {kind: (len(held), sum(map(size_of, held))) for kind, held in by_kind(chosen.manifest.tensors).items()}
    eight = 8 * 4
    assert kinds.pop("values")[0] > 0
    assert kinds == {
        "model": (2, eight),
        "optimizer/exp_avg": (2, eight),
        "optimizer/exp_avg_sq": (2, eight),
        "optimizer/step": (2, 8),
    }
    assert next(iter(by_kind(chosen.manifest.tensors))) == "model"
    assert set(matching(chosen.manifest, "model/*")) == {"model/weight", "model/bias"}
    assert matching(chosen.manifest, "nothing") == {}


def test_tensors_are_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    of_tensors(tmp_path, {f"layers.{i}.w": torch.ones(1) for i in range(12)})
    _, _, chosen = overviews(tmp_path, None)
    assert chosen is not None
    assert chosen.manifest is not None
    assert list(matching(chosen.manifest, "*")) == [f"model/layers.{i}.w" for i in range(12)]


@pytest.mark.parametrize(
    ("key", "kind"),
    [
        ("model/a.b", "model"),
        ("optimizer/a.b/step", "optimizer/step"),
        ("gradient/0/a", "gradient"),
        ("odd", "odd"),
        ("optimizer/x", "optimizer"),
    ],
)
def test_a_kind_is_what_a_tensor_is_for(key: str, kind: str) -> None:
    assert kind_of(key) == kind


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ((1, 2.5, None, "x"), [1, 2.5, None, "x"]),
        ({"a": (1, {"b": {2}})}, {"a": [1, {"b": [2]}]}),
        (math.inf, "inf"),
        (math.nan, "nan"),
        (1 << 60, hex(1 << 60)),
        (torch.float16, "dtype float16"),
        (b"x", "bytes eA=="),
    ],
)
def test_values_are_shown_as_json_has_them(value: Any, shown: Any) -> None:
    assert plain(to_json(value, {}, "x")) == shown


@pytest.mark.parametrize("value", [{"$float": 3}, {"$tuple": 3}, {"$x": {"$y": []}}, {"$float": "z" * 16}, {"$": None}, {}, []])
def test_malformed_values_are_shown_all_the_same(value: Any) -> None:
    plain(value)


def test_values_nested_without_end_are_cut() -> None:
    value: Any = 1
    for _ in range(900):
        value = [value]
    assert "..." in str(plain(value))


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"optimizer": None},
        {"optimizer": {"groups": 3}},
        {"optimizer": {"groups": [1]}},
        {"optimizer": {"groups": [{"params": 1}]}},
        [1],
        None,
    ],
)
def test_an_optimizer_that_is_not_described_is_none(three: Path, values: Any) -> None:
    from attrs import evolve

    _, _, chosen = overviews(three, None)
    assert chosen is not None
    assert chosen.manifest is not None
    odd = evolve(chosen, manifest=evolve(chosen.manifest, values=values, meta=values))
    assert odd.optimizer is None
    assert isinstance(odd.meta, dict)
