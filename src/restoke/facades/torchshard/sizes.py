"""`torchshard.utils`: sizes that are divided, and which part of a vocabulary is whose."""

from __future__ import annotations

from typing import final

from restoke.distributed.shards import cut
from restoke.errors import SpecError

__all__ = ["VocabUtility", "check_divisibility", "divide"]


def check_divisibility(numerator: int, denominator: int) -> None:
    """Raises SpecError where the one is no multiple of the other."""
    if denominator < 1 or numerator % denominator:
        why = f"it is no multiple of {denominator}"
        raise SpecError.of("numerator", numerator, why, "restoke.nn.slice, or a layer, which cut any size")


def divide(numerator: int, denominator: int) -> int:
    """The quotient, where it leaves no rest. Raises SpecError where it does."""
    check_divisibility(numerator, denominator)
    return numerator // denominator


@final
class VocabUtility:
    """The first index of a rank's part of a vocabulary, and the one behind its last."""

    @staticmethod
    def vocab_range_from_per_partition_vocab_size(per_partition_vocab_size: int, rank: int, world_size: int) -> tuple[int, int]:
        """Where all parts are of this size."""
        first = rank * per_partition_vocab_size
        return first, first + per_partition_vocab_size

    @staticmethod
    def vocab_range_from_global_vocab_size(global_vocab_size: int, rank: int, world_size: int) -> tuple[int, int]:
        """As the layers cut it: the first ranks have one more where it does not divide."""
        first, length = cut(global_vocab_size, world_size, rank)
        return first, first + length
