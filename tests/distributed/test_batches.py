"""From the ranks' own rows to a shared head and back, with gradients that an average over the ranks makes the right ones."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from restoke.distributed import gather_rows, group_of, own_rows
from tests.nn.joined import refused, run

F64 = torch.float64


def rows_of(rank: int, lengths: list[int]) -> Tensor:
    return torch.randn(lengths[rank], 3, generator=torch.Generator().manual_seed(rank), dtype=F64)


def weight() -> Tensor:
    return torch.linspace(-1, 1, 6, dtype=F64).view(3, 2).requires_grad_()


def averaged(tensor: Tensor) -> Tensor:
    dist.all_reduce(total := tensor.clone())
    return total / dist.get_world_size()


def one_loss(lengths: list[int], told: bool) -> float:
    """A backbone, here one weight, of each rank's rows; a loss over all rows, alike on each."""
    group, ours = group_of(), weight()
    x = rows_of(group.rank, lengths)
    whole = gather_rows((x @ ours).tanh(), group, lengths if told else None)
    (whole**2).mean().backward()
    alone = weight()
    everything = torch.cat([rows_of(rank, lengths) for rank in range(group.size)])
    expected = (everything @ alone).tanh()
    (expected**2).mean().backward()
    return float(torch.cat([(whole - expected).flatten(), (averaged(ours.grad) - alone.grad).flatten()]).abs().max())


@pytest.mark.parametrize("told", [False, True])
@pytest.mark.parametrize("lengths", [[4, 4], [1, 5], [0, 3], [2, 0, 1]])
def test_a_loss_over_all_rows_trains_as_one_process_does(lengths: list[int], told: bool) -> None:
    assert max(run(len(lengths), one_loss, lengths, told)) <= 1e-14


def own_losses(lengths: list[int]) -> float:
    """Each rank's loss of its own rows, through a head that all share: what is trained is the average of the ranks' losses."""
    group, ours, head = group_of(), weight(), torch.tensor([0.3, -2.0], dtype=F64, requires_grad=True)
    whole = gather_rows((rows_of(group.rank, lengths) @ ours).tanh(), group, lengths)
    own = own_rows((whole @ head) ** 2, group, lengths)
    own.mean().backward()
    alone, alone_head = weight(), head.detach().clone().requires_grad_()
    losses = [(((rows_of(rank, lengths) @ alone).tanh() @ alone_head) ** 2).mean() for rank in range(group.size)]
    (sum(losses) / group.size).backward()
    assert torch.allclose(own.mean(), losses[group.rank], rtol=0, atol=1e-14)
    errors = [averaged(ours.grad) - alone.grad, (head.grad - alone_head.grad)]
    return max(float(error.abs().max()) for error in errors)


@pytest.mark.parametrize("lengths", [[4, 4], [1, 5], [3, 1, 2]])
def test_each_rank_s_own_loss_trains_as_ddp_does(lengths: list[int]) -> None:
    assert max(run(len(lengths), own_losses, lengths)) <= 1e-14


def integers() -> list[Any]:
    group = group_of()
    labels = gather_rows(torch.tensor([10 + group.rank] * (group.rank + 1)), group)
    strided = gather_rows(torch.arange(6.0).view(2, 3).t(), group)
    return [
        labels.tolist(),
        strided[:3].tolist(),
        own_rows(labels, group, [1, 2]).tolist(),
        gather_rows(labels.half(), group).dtype,
    ]


def test_labels_and_strided_rows_and_halves_are_gathered_too() -> None:
    first, second = run(2, integers)
    same = [[10, 11, 11], [[0.0, 3.0], [1.0, 4.0], [2.0, 5.0]]]
    assert first == [*same, [10], torch.float16]
    assert second == [*same, [11, 11], torch.float16]


def alone() -> bool:
    x = torch.ones(2, 2)
    return gather_rows(x, group_of(1)) is x and own_rows(x, group_of(1), [2]) is x


def test_alone_there_is_nothing_to_gather() -> None:
    assert run(1, alone) == [True]


def wrong() -> list[str]:
    group, x = group_of(), torch.ones(2, 3)
    calls = [
        (gather_rows, x, group, [3, 3]),
        (gather_rows, x, group, [2]),
        (own_rows, x, group, [2, 2]),
        (own_rows, x, group, [2]),
    ]
    return [refused(*call) for call in calls]


def test_numbers_of_rows_that_are_not_so_are_refused_on_every_rank() -> None:
    for messages in run(2, wrong):
        assert all("SpecError: lengths=" in message for message in messages)
