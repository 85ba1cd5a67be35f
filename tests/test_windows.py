"""Windows of micro-batches: what loaders that nest, end or are left mean for them."""

from __future__ import annotations

from restoke.windows import Windows


def lengths(windows: Windows, epoch: int, loader: object) -> list[int]:
    """The lengths of the windows that an epoch of so many batches is cut into."""
    found = []
    windows.begin(loader)
    for i in range(epoch):
        windows.batch(loader, epoch - i, i + 1 == epoch)
        if windows.ending:
            found.append(windows.done + 1)
            windows.close()
        else:
            windows.done += 1
    windows.end(loader)
    return found


def test_an_epoch_ends_with_a_short_window() -> None:
    assert lengths(Windows(4), 10, "train") == [4, 4, 2]
    assert lengths(Windows(4), 8, "train") == [4, 4]
    assert lengths(Windows(4), 3, "train") == [3]
    assert lengths(Windows(1), 3, "train") == [1, 1, 1]


def test_a_known_end_is_known_when_the_window_begins() -> None:
    windows = Windows(4)
    windows.begin("train")
    windows.batch("train", 2, last=False)
    assert windows.length == 2


def test_an_unknown_end_ends_the_window_all_the_same() -> None:
    windows = Windows(4)
    windows.begin("train")
    windows.batch("train", None, last=False)
    assert (windows.length, windows.ending) == (4, False)
    windows.done += 1
    windows.batch("train", None, last=True)
    assert (windows.length, windows.ending) == (4, True)


def test_validation_within_an_epoch_leaves_the_training_window_as_it_was() -> None:
    windows = Windows(4)
    windows.begin("train")
    windows.batch("train", 9, last=False)
    for done in (0, 1):
        windows.done = done
        windows.begin("validate")
        windows.batch("validate", 1, last=True)
        windows.end("validate")
        assert (windows.length, windows.ending) == (4, False)


def test_a_loader_that_was_left_early_does_not_linger() -> None:
    windows = Windows(4)
    windows.begin("train")
    windows.batch("train", 1, last=True)
    windows.end("train")
    assert (windows.length, windows.ending) == (4, False)


def test_without_a_loader_a_window_carries_over_the_epoch() -> None:
    windows = Windows(4)
    windows.done = 2
    windows.begin("other")
    windows.end("other")
    assert windows.done == 2


def test_a_loader_that_is_held_half_way_no_longer_decides() -> None:
    windows = Windows(2)
    windows.begin("train")
    windows.batch("train", 9, last=False)
    windows.begin("validate")
    windows.batch("validate", 1, last=True)
    windows.batch("train", 8, last=False)
    assert (windows.length, windows.ending) == (2, False)
    windows.end("validate")
    assert (windows.length, windows.ending) == (2, False)
