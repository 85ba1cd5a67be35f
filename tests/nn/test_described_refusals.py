"""What would be done to one rank's part alone, where the whole was meant: refused, and nothing else is."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from restoke.errors import SpecError
from restoke.nn import describe, plain
from tests.nn.test_described import ROWS, Op, part_of, ranks, whole

target = torch.zeros(ROWS, dtype=torch.int64)
LOCAL: dict[str, Op] = {
    "softmax": lambda x: x.softmax(-1),
    "softmax, from the front": lambda x: torch.softmax(x, 1),
    "log_softmax": lambda x: F.log_softmax(x, dim=-1),
    "logsumexp": lambda x: x.logsumexp((0, 1)),
    "argmax": lambda x: x.argmax(1),
    "argmax of all": lambda x: x.argmax(),
    "max": lambda x: x.max(1),
    "min": lambda x: x.min(dim=-1),
    "amax": lambda x: x.amax(-1),
    "topk": lambda x: x.topk(2),
    "topk of max": lambda x: torch.topk(x, 2, 1),
    "sort": lambda x: x.sort(),
    "sort descending": lambda x: x.sort(descending=True),
    "cumsum": lambda x: x.cumsum(-1),
    "cumsum in place": lambda x: x.clone().cumsum_(-1),
    "median": lambda x: x.median(-1),
    "kthvalue": lambda x: x.kthvalue(1),
    "mean": lambda x: x.mean(),
    "mean along": lambda x: x.mean(-1),
    "mean by axis": lambda x: torch.mean(x, axis=1),
    "accuracy of labels": lambda x: ((x > 0.5) == (x > 0.6)).double().mean(),
    "std": lambda x: x.std(),
    "std of bool": lambda x: x.std(False),
    "norm along": lambda x: x.norm(2, -1),
    "vector norm": lambda x: torch.linalg.vector_norm(x, 2, -1),
    "normalize": F.normalize,
    "normalize by 2": lambda x: F.normalize(x, 2, 1),
    "layer_norm": lambda x: F.layer_norm(x, (x.shape[-1],)),
    "rms_norm": lambda x: F.rms_norm(x, (x.shape[-1],)),
    "multinomial of 2": lambda x: x.multinomial(2),
    "gumbel": lambda x: F.gumbel_softmax(x, 1),
    "glu": lambda x: F.glu(x, -1),
    "cosine": lambda x: F.cosine_similarity(x, x),
    "cross_entropy": lambda x: F.cross_entropy(x, target),
    "cross_entropy none": lambda x: F.cross_entropy(x, target, reduction="none"),
    "module": lambda x: nn.CrossEntropyLoss()(x, target),
    "nll": lambda x: F.nll_loss(x, target),
    "mse": lambda x: F.mse_loss(x, x),
    "bce": lambda x: F.binary_cross_entropy_with_logits(x, x),
    "soft margin": lambda x: nn.MultiLabelSoftMarginLoss()(x, x),
    "kl": lambda x: F.kl_div(x, x, reduction="batchmean"),
    "loss after gelu": lambda x: F.cross_entropy(F.gelu(x), target),
}


@pytest.mark.parametrize("what", LOCAL)
def test_what_would_see_this_rank_s_part_alone_is_refused(what: str) -> None:
    with pytest.raises(SpecError, match="would see those alone"):
        LOCAL[what](part_of(whole((ROWS, 8)), ranks(2, size=8)[0]))
    LOCAL[what](describe(whole((ROWS, 8)), ranks(1, size=8)[0]))


@pytest.mark.parametrize("loss", [F.cross_entropy, F.nll_loss])
def test_a_loss_of_what_lost_its_description_is_refused_too(loss: Any) -> None:
    with pytest.raises(SpecError, match="it was made by flip"):
        loss(part_of(whole((ROWS, 8)), ranks(2, size=8)[0]).flip(-1), target)


@pytest.mark.parametrize(
    "op",
    [
        lambda x: x.softmax(0),
        lambda x: x.max(0).values,
        lambda x: x.mean(0),
        lambda x: x.norm(2, 0),
        lambda x: F.normalize(x, dim=0),
        lambda x: x.t().softmax(-1),
        lambda x: x.sum(),
        lambda x: x.max(),
        lambda x: x.norm(),
        lambda x: x.std((0,)),
    ],
)
def test_along_what_is_whole_anything_may_be_done(op: Op) -> None:
    x = whole()
    for shard in ranks(3):
        out, expected = plain(op(part_of(x, shard))), op(shard.of(x).clone())
        assert torch.equal(out, expected)


def test_a_norm_over_what_was_not_cut_is_allowed() -> None:
    sequence = part_of(whole((6, 2, 4)), ranks(2, 0, 6)[0])
    assert F.layer_norm(sequence, (4,)).shape == (3, 2, 4)
