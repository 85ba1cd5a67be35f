"""Samplers are told the epoch, and the user is followed."""

from __future__ import annotations

from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
)

from restoke.data import make_loader
from tests.data.loading import Numbers, SizedStream, flat, world


def test_samplers_are_told_the_epoch_and_the_user_is_followed() -> None:
    sampler = DistributedSampler(Numbers(8), 1, 0)
    loader = make_loader(Numbers(8), world=world(), sampler=sampler)

    def order(epoch: int) -> list[int]:
        mine = DistributedSampler(Numbers(8), 1, 0)
        mine.set_epoch(epoch)
        return list(mine)

    assert [flat(loader), flat(loader)] == [order(0), order(1)]
    sampler.set_epoch(7)
    assert (loader.epoch, flat(loader), flat(loader)) == (7, order(7), order(8))
    sampler.set_epoch(8)  # again, though it was just done
    assert flat(loader) == order(8)
    loader.set_epoch(3)
    assert (sampler.epoch, flat(loader), loader.epoch) == (3, order(3), 4)
    for batch in loader:
        assert (int(batch), loader.epoch) == (order(4)[0], 4)
        break
    assert (loader.epoch, flat(loader)) == (5, order(5))


def test_a_sampler_inside_a_batch_sampler_and_a_stream_are_told_the_epoch_too() -> None:
    class Told(SizedStream):
        epochs: list[int] = []  # noqa: RUF012 - one list for the test

        def set_epoch(self, epoch: int) -> None:
            self.epochs.append(epoch)

    inner = DistributedSampler(Numbers(8), 1, 0)
    loader = make_loader(Numbers(8), world=world(), batch_sampler=BatchSampler(inner, 2, False))
    assert (flat(loader) != flat(loader), inner.epoch) == (True, 2)
    list(make_loader(Told(3), world=world()))
    assert Told.epochs == [0, 1]
