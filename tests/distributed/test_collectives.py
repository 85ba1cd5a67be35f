"""Collectives equal what one process computes on all ranks' tensors, and so do their gradients; no input is changed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from restoke.distributed import copy, gather, group_of, reduce, scatter
from restoke.distributed.collectives import all_gather, all_reduce, exchange_lengths
from restoke.distributed.shards import cut
from tests.nn.joined import refused, run

F64 = torch.float64


def rank_tensor(rank: int, shape: tuple[int, ...], seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed * 100 + rank), dtype=F64)


def laid(tensor: Tensor, strided: bool) -> Tensor:
    """The same values, with other strides."""
    return tensor.transpose(0, -1).contiguous().transpose(0, -1) if strided else tensor


def back(out: Tensor, grad: Tensor, x: Tensor, before: Tensor) -> list[Any]:
    given = grad.clone()
    out.backward(grad)
    assert torch.equal(x.detach(), before)
    assert torch.equal(grad, given)
    return [out.detach(), x.grad]


def one(which: str, size: int | None, strided: bool, dim: int) -> float:
    """The largest difference to the sums and pieces that a loop over the ranks gives."""
    group = group_of(size)
    n, me = group.size, group.rank
    firsts = [rank_tensor(rank, (5, 3)) for rank in group.ranks]
    alike = rank_tensor(77, (5, 3))
    width = alike.shape[dim]
    pieces = [alike.narrow(dim, *cut(width, n, rank)) for rank in range(n)]
    inputs = {"copy": alike, "reduce": firsts[me], "scatter": alike, "gather": pieces[me]}
    x = laid(inputs[which].clone(), strided).requires_grad_()
    grads = {
        "copy": [rank_tensor(rank, (5, 3), 1) for rank in range(n)],  # each rank used the tensor for something of its own
        "reduce": [rank_tensor(5, (5, 3), 1)] * n,
        "scatter": [rank_tensor(5, (5, 3), 1).narrow(dim, *cut(width, n, rank)) for rank in range(n)],
        "gather": [rank_tensor(5, (5, 3), 1)] * n,
    }[which]
    if which in ("copy", "reduce"):
        out = (copy if which == "copy" else reduce)(x, group)
    else:
        out = scatter(x, dim, group) if which == "scatter" else gather(x, dim, group, width if strided else None)
    expected_out = {"copy": alike, "reduce": torch.stack(firsts).sum(0), "scatter": pieces[me], "gather": alike}[which]
    expected_grad = {
        "copy": torch.stack(grads).sum(0) if which == "copy" else None,
        "reduce": grads[0],
        "scatter": rank_tensor(5, (5, 3), 1),
        "gather": rank_tensor(5, (5, 3), 1).narrow(dim, *cut(width, n, me)),
    }[which]
    found, found_grad = back(out, laid(grads[me].clone(), strided), x, inputs[which])
    errors = [found - expected_out, found_grad - expected_grad]
    return max(float(error.abs().max()) if error.numel() else 0.0 for error in errors)


@pytest.mark.parametrize("strided", [False, True])
@pytest.mark.parametrize("dim", [0, 1, -1])
@pytest.mark.parametrize("which", ["copy", "reduce", "scatter", "gather"])
def test_each_is_the_adjoint_that_it_should_be(which: str, dim: int, strided: bool) -> None:
    for n in (1, 2):
        assert max(run(n, one, which, None, strided, dim)) <= 1e-14


@pytest.mark.parametrize("which", ["copy", "reduce", "scatter", "gather"])
def test_within_groups_of_two_and_with_empty_parts(which: str) -> None:
    for size in (2, 4):
        assert max(run(4, one, which, size, False, 1)) <= 1e-14


def plain_ones() -> list[Any]:
    group = group_of()
    x = torch.ones(group.rank, 2)
    lengths = exchange_lengths(group.rank, x.device, group)
    whole = all_gather(x, 0, lengths, group)
    half = torch.full((3,), 1.5, dtype=torch.bfloat16)
    return [lengths, tuple(whole.shape), all_reduce(half, group).tolist(), half.tolist(), reduce(half, group).dtype]


def test_plain_ones_take_unlike_lengths_and_bfloat16() -> None:
    assert run(3, plain_ones) == [[[0, 1, 2], (3, 2), [4.5] * 3, [4.5] * 3, torch.bfloat16]] * 3


def frozen() -> bool:
    x = torch.ones(2, 2)
    group = group_of()
    return any(out.requires_grad for out in (copy(x, group), reduce(x, group), scatter(x, 0, group), gather(x, 0, group)))


def test_what_asks_for_no_gradient_gets_none() -> None:
    assert run(2, frozen) == [False, False]


def wrong_part() -> str:
    return refused(gather, torch.ones(4, 4), 0, group_of(), 6)


def test_a_part_of_another_length_is_refused_on_every_rank() -> None:
    assert all("of 6 elements along dimension 0" in message for message in run(2, wrong_part))


def twice() -> list[str]:
    said = []
    group = group_of()
    for op in (
        lambda x: copy(x, group),
        lambda x: reduce(x, group),
        lambda x: scatter(x, 0, group),
        lambda x: gather(x, 0, group),
    ):
        x = torch.ones(2, requires_grad=True)
        (grad,) = torch.autograd.grad((op(x) ** 3).sum(), x, create_graph=True)
        try:
            grad.sum().backward()
            said.append("")
        except RuntimeError as error:
            said.append(str(error))
    return said


def test_a_second_derivative_is_refused_and_not_wrong() -> None:
    for said in run(2, twice):
        assert all("once_differentiable" in message for message in said)
