"""State dicts of whole tensors, collected from the ranks and handed out to them, at any number of ranks."""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from restoke.distributed import group_of, pieces
from restoke.nn import (
    ParallelEmbedding,
    ParallelLinear,
    collect_state_dict,
    register_ddp_parameters_to_ignore,
    relocate_state_dict,
)
from tests.nn.joined import refused, run


def whole_model() -> nn.Module:
    torch.manual_seed(6)
    head = nn.Sequential(nn.Embedding(7, 3), nn.Linear(3, 10), nn.Linear(10, 2))
    return nn.ModuleDict({"backbone": nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)), "head": head})


def parted_model(size: int | None) -> nn.Module:
    group = group_of(size)
    head = nn.Sequential(
        ParallelEmbedding(7, 3, dim=1, group=group),
        ParallelLinear(3, 10, dim=1, group=group),
        ParallelLinear(10, 2, dim=0, group=group),
    )
    return nn.ModuleDict({"backbone": nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)), "head": head})


def wrapped(model: nn.Module) -> nn.Module:
    register_ddp_parameters_to_ignore(model)
    return nn.parallel.DistributedDataParallel(model)


def first() -> bool:
    return not dist.is_initialized() or dist.get_rank() == 0


def there_and_back(given: str, ddp: bool, size: int | None, piece: int) -> list[Any]:
    usual, pieces.PIECE = pieces.PIECE, piece
    try:
        expected = whole_model().state_dict()
        model = parted_model(size)
        outer = wrapped(model) if ddp else model
        parts = relocate_state_dict(outer, expected if given == "everywhere" or first() else None)
        assert all(each.device.type == "cpu" for each in parts.values())
        outer.load_state_dict(parts)
        collected = collect_state_dict(outer, outer.state_dict() if given == "everywhere" else None)
        begin = "module." if ddp else ""
        assert list(collected) == ([begin + name for name in expected] if first() else [])
        same = all(torch.equal(collected[begin + name], value) for name, value in expected.items()) if first() else True
        return [same, tuple(model["head"][1].weight.shape)]
    finally:
        pieces.PIECE = usual


@pytest.mark.parametrize(
    ("given", "ddp"), [("everywhere", False), ("on rank 0", False), ("on rank 0", True), ("everywhere", True)]
)
def test_what_is_handed_out_is_collected_again(given: str, ddp: bool) -> None:
    assert run(2, there_and_back, given, ddp, None, 4) == [[True, (5, 3)]] * 2


def test_alone_and_on_three_ranks_and_in_two_groups_of_two() -> None:
    assert run(1, there_and_back, "on rank 0", False, None, 4) == [[True, (10, 3)]]
    assert [each[0] for each in run(3, there_and_back, "on rank 0", False, None, 1 << 20)] == [True] * 3
    assert run(4, there_and_back, "on rank 0", False, 2, 4) == [[True, (5, 3)]] * 4


def resaved(n_classes: int) -> bytes:
    model = ParallelLinear(2, n_classes, dim=1)
    with torch.no_grad():
        model.weight.copy_(model.shards["weight"].of(torch.arange(2.0 * n_classes).view(n_classes, 2)))
    file = io.BytesIO()
    torch.save(collect_state_dict(model), file)
    return file.getvalue() if first() else b""


def loaded(file: bytes, n_classes: int) -> list[Any]:
    state = torch.load(io.BytesIO(file), weights_only=True) if first() else None
    model = ParallelLinear(2, n_classes, dim=1)
    model.load_state_dict(relocate_state_dict(model, state))
    return model.weight.tolist()


def test_saved_by_four_ranks_loaded_by_one_two_and_three() -> None:
    file = run(4, resaved, 10)[0]
    whole = torch.arange(20.0).view(10, 2).tolist()
    for n in (1, 2, 3):
        assert [row for part in run(n, loaded, file, 10) for row in part] == whole


def prefixed() -> list[Any]:
    model = parted_model(None)
    whole = whole_model().state_dict()
    head = relocate_state_dict(model["head"], whole if first() else None, prefix="head.")
    model["head"].load_state_dict(head)
    names = list(collect_state_dict(model["head"], prefix="head."))
    from_ddp = relocate_state_dict(model["head"], {f"module.{name}": value for name, value in whole.items()}, "head.")
    return [list(head), names, all(torch.equal(from_ddp[name], head[name]) for name in head)]


def test_the_prefix_chooses_a_part_of_the_state() -> None:
    names = ["0.weight", "1.weight", "1.bias", "2.weight", "2.bias"]
    ranks = run(2, prefixed)
    assert [rank[0] for rank in ranks] == [names] * 2
    assert ranks[0][1] == [f"head.{name}" for name in names]
    assert [rank[2] for rank in ranks] == [True] * 2


class Told(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = ParallelLinear(2, 4, dim=1)

    def get_extra_state(self) -> str:
        return "more"

    def set_extra_state(self, state: Any) -> None:
        assert state == "more"


def refusals(which: str) -> str:
    model: nn.Module = parted_model(None)
    whole: dict[str, Any] = dict(whole_model().state_dict())
    part = dict(model.state_dict())
    mine = whole if first() else None
    tampered = {
        "typo": {**whole, "head.1.wieght": whole["head.1.weight"]},
        "a part": {**whole, "head.1.weight": part["head.1.weight"]},
        "other classes": {**whole, "head.1.weight": torch.ones(11, 3)},
    }
    if which in tampered:
        return refused(relocate_state_dict, model, tampered[which] if first() else None)
    bad = {
        "nobody": lambda: relocate_state_dict(model, None),
        "not rank 0": lambda: relocate_state_dict(model, None if first() else whole),
        "prefix": lambda: relocate_state_dict(model, mine, "haed."),
        "collect typo": lambda: collect_state_dict(model, {**part, "x": torch.ones(1)}),
        "collect whole": lambda: collect_state_dict(model, {**part, "head.1.weight": torch.ones(10, 3)}),
        "one rank's typo": lambda: collect_state_dict(model, part if first() else {**part, "x": torch.ones(1)}),
        "extra": lambda: relocate_state_dict(Told(), {"head.bias": torch.ones(4), "_extra_state": "more"} if first() else None),
    }
    return refused(bad[which])


@pytest.mark.parametrize(
    ("which", "words"),
    [
        ("typo", "head.1.wieght is no name of the model (did you mean 'head.1.weight')"),
        ("a part", "head.1.weight has the shape (5, 3), and the whole (10, 3)"),
        ("other classes", "head.1.weight has the shape (11, 3), and the whole (10, 3)"),
        ("nobody", "rank 0 has no state"),
        ("not rank 0", "rank 0 has no state"),
        ("prefix", "no name has that prefix"),
        ("collect typo", "x is no name of the model"),
        ("collect whole", "head.1.weight has the shape (10, 3), not that of this rank's part"),
        ("one rank's typo", ""),
        ("extra", "_extra_state is no tensor, and so each rank must be given it"),
    ],
)
def test_what_does_not_fit_is_refused_on_every_rank(which: str, words: str) -> None:
    told = run(2, refusals, which)
    assert all("CheckpointError" in message and words in message for message in told)


def extra_state() -> list[Any]:
    model = Told()
    state = collect_state_dict(model)
    parts = relocate_state_dict(model, {"head.weight": torch.ones(4, 2), "head.bias": torch.ones(4), "_extra_state": "more"})
    model.load_state_dict(parts)
    return [state.get("_extra_state"), parts["_extra_state"]]


def test_what_is_no_tensor_goes_along_where_each_rank_has_it() -> None:
    assert run(2, extra_state) == [["more", "more"], [None, "more"]]


def most_sent() -> list[int]:
    sent: list[int] = []
    real = dist.send

    def send(tensor: Tensor, *args: Any, **named: Any) -> Any:
        sent.append(tensor.numel())
        return real(tensor, *args, **named)

    usual, pieces.PIECE, dist.send = pieces.PIECE, 64, send
    try:
        model = ParallelLinear(8, 100, bias=False, dim=1)
        collected = collect_state_dict(model)
        relocate_state_dict(model, collected if first() else None)
    finally:
        pieces.PIECE, dist.send = usual, real
    return sent


def test_no_message_is_larger_than_a_piece() -> None:
    first_sent, second_sent = run(2, most_sent)
    assert max(first_sent + second_sent) == 64
    assert sum(first_sent) == sum(second_sent) == 400


def tied_names() -> list[Any]:
    model = nn.ModuleDict({"a": ParallelEmbedding(6, 2, dim=0), "b": ParallelLinear(2, 6, bias=False, dim=1)})
    model["b"].weight = model["a"].weight
    state = collect_state_dict(model)
    return [list(state), [tuple(value.shape) for value in state.values()]]


def test_tied_shards_are_whole_under_both_names() -> None:
    assert run(2, tied_names)[0] == [["a.weight", "b.weight"], [(6, 2), (6, 2)]]


def handed_back() -> bool:
    model = parted_model(None)
    own = {name: value.clone() for name, value in model.state_dict().items()}
    back = relocate_state_dict(model, collect_state_dict(model))
    return own.keys() == back.keys() and all(torch.equal(own[name], value) for name, value in back.items())


def test_what_was_collected_is_handed_out_as_it_is() -> None:
    assert run(2, handed_back) == [True, True]
