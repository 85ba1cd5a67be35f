"""What a loader cannot be asked for is refused with the axis, what it got, why, and what to do."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.data import DistributedSampler, IterDataPipe

from restoke.data import BucketedDistributedSampler, make_loader
from restoke.errors import DataError
from tests.data.loading import Numbers, Shuffling, Stream, world


class Unsized:
    def __getitem__(self, index: int) -> int:
        return index


class Pipe(IterDataPipe[int]):
    pass


def rank_5_of_8() -> Stream:
    stream: Any = Stream(4)
    stream.num_replicas, stream.rank = 8, 5
    return stream


ORDER = [0, 1]
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"batch_size": 0}, "batch_size=0: .*at least one sample.*Instead: a whole number from 1 on"),
    ({"batch_size": -1}, "batch_size=-1"),
    ({"batch_size": 2.0}, "batch_size=2.0"),
    ({"batch_size": True}, "batch_size=True"),
    ({"batch_size": "2"}, "batch_size='2'"),
    ({"batch_size": None, "drop_last": True}, "drop_last=True: there are no batches"),
    ({"num_workers": -1}, "num_workers=-1"),
    ({"seed": -3}, "seed=-3"),
    ({"shuffle": True, "sampler": ORDER}, "shuffle=True: sampler makes the order"),
    ({"shuffle": True, "batch_sampler": [ORDER]}, "shuffle=True: batch_sampler makes the order"),
    ({"sampler": ORDER, "batch_sampler": [ORDER]}, r"sampler=\[0, 1\]: batch_sampler makes the order"),
    ({"batch_sampler": [ORDER], "drop_last": True}, "drop_last=True: the batch_sampler makes the batches"),
    ({"dataset": Stream(4), "shuffle": True}, "shuffle=True: Stream is an IterableDataset"),
    ({"dataset": Stream(4), "sampler": ORDER}, "sampler=.*Stream is an IterableDataset"),
    ({"dataset": Stream(4), "batch_sampler": [ORDER]}, "batch_sampler=.*Stream is an IterableDataset"),
    ({"dataset": Unsized()}, "dataset='Unsized': it has neither __len__"),
    ({"dataset": iter([1])}, "dataset='list_iterator'"),
    ({"dataset": Pipe(), "world": world(0, 2)}, "dataset='Pipe'.*rank_aware = True"),
    ({"dataset": rank_5_of_8(), "world": world(0, 2)}, "dataset=.*num_replicas=8, rank=5.*data rank 0 of 2"),
    ({"prefetch_factor": 2}, "prefetch_factor=2: there are no workers"),
    ({"persistent_workers": True}, "persistent_workers=True: there are no workers"),
    ({"timeout": 3}, "timeout=3: there are no workers"),
    ({"multiprocessing_context": "spawn"}, "multiprocessing_context='spawn': there are no workers"),
    ({"sampler": DistributedSampler(Numbers(4), 4, 1)}, r"sampler='DistributedSampler\(num_replicas=4, rank=1\)'.*rank 0 of 1"),
    ({"batch_sampler": DistributedSampler(Numbers(4), 2, 0)}, "batch_sampler='DistributedSampler"),
    (
        {"sampler": BucketedDistributedSampler(None, 1, 2, lengths=[1, 2], num_replicas=1, rank=0), "batch_size": 4},
        "batch_size=4: the bucketed sampler makes batches of 2",
    ),
]


@pytest.mark.parametrize(("options", "says"), REFUSED, ids=lambda value: value if isinstance(value, str) else "")
def test_it_is_refused(options: dict[str, Any], says: str) -> None:
    options = {"dataset": Numbers(4), "world": world()} | options
    with pytest.raises(DataError, match=says):
        make_loader(options.pop("dataset"), **options)


def test_every_reason_is_named_at_once() -> None:
    with pytest.raises(DataError) as caught:
        make_loader(Numbers(4), world=world(), batch_size=0, prefetch_factor=2, shuffle=True, sampler=ORDER)
    assert [problem.axis for problem in caught.value.problems] == ["batch_size", "shuffle", "prefetch_factor"]


@pytest.mark.parametrize(
    "loader", [make_loader(Stream(3), world=world()), make_loader(Numbers(3), world=world(), sampler=Shuffling(3))]
)
def test_an_unknown_length_is_a_type_error_that_says_why(loader: Any) -> None:
    with pytest.raises(TypeError, match=r"len=.*unknown until they are over.*Instead"):
        len(loader)
    assert len(list(loader)) == 3


def test_what_stoke_crashed_on_works() -> None:
    """Its defects B49 (prefetch_factor without workers) and B50 (batch samplers, streams)."""
    assert len(list(make_loader(Numbers(4), world=world(), batch_size=2, num_workers=0, prefetch_factor=None))) == 2
    batches = make_loader(Numbers(4), world=world(), batch_size=32, batch_sampler=[[0, 1], [2], [3]])
    assert [batch.tolist() for batch in batches] == [[0, 1], [2], [3]]
    assert len(list(make_loader(Stream(4), world=world(0, 2), batch_size=2))) == 1


def test_an_empty_dataset_gives_no_batch() -> None:
    for size in (1, 2):
        for shuffle in (False, True):
            loader = make_loader(Numbers(0), world=world(0, size), shuffle=shuffle)
            assert (list(loader), len(loader)) == ([], 0)


def test_memory_is_pinned_only_for_a_device_that_reads_from_it() -> None:
    for asked, device, pinned in ((None, "cuda", True), (False, "cuda", False), (True, "cpu", False), (None, "cpu", False)):
        loader = make_loader(Numbers(2), world=world(device=torch.device(device)), pin_memory=asked)
        assert loader.pin_memory is pinned
