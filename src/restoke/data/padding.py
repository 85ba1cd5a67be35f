"""How much of every padded batch is padding: random batches of the same size beside bucketed ones."""

from __future__ import annotations

from typing import Any, final

import numpy as np
import numpy.typing as npt
from attrs import frozen

from restoke.data.bucket_plan import Ints


@final
@frozen
class PaddingReport:
    """`tokens` are the real ones of an epoch over all replicas; `padded_tokens_*` is what batches, each padded to its longest
    sample, hold beyond them: `before` in random batches of the same samples, `after` in the bucketed ones, where entries that
    repeat a sample count as padding too. Units are those of the lengths.
    """

    tokens: float
    padded_tokens_before: float
    padded_tokens_after: float
    buckets: int

    @property
    def ratio_before(self) -> float:
        """Padding per real token in random batches."""
        return self.padded_tokens_before / self.tokens if self.tokens else 0.0

    @property
    def ratio_after(self) -> float:
        """Padding per real token in bucketed batches."""
        return self.padded_tokens_after / self.tokens if self.tokens else 0.0

    def __str__(self) -> str:
        before, after = f"{self.ratio_before:.1%}", f"{self.ratio_after:.1%}"
        return f"padding {before} of {self.tokens:,} tokens in random batches -> {after} with {self.buckets} buckets"


def padding_report(lengths: npt.NDArray[Any], batches: Ints, buckets: int, stream: np.random.Generator) -> PaddingReport:
    """The report for `batches`, (steps, batch_size, replicas) entries of `lengths`."""
    values = lengths.astype(np.float64 if lengths.dtype.kind == "f" else np.int64)
    used = np.zeros(len(values), dtype=bool)
    used[batches.ravel()] = True
    batch_size = batches.shape[1]
    seen = values[used]
    tokens = seen.sum().item()
    after = values[batches].max(axis=1).sum().item() * batch_size
    return PaddingReport(tokens, _random_batches(stream.permutation(seen), batch_size) - tokens, after - tokens, buckets)


def _random_batches(lengths: npt.NDArray[Any], batch_size: int) -> float:
    """Tokens, padding included, in consecutive batches; the last may be short."""
    edge = len(lengths) // batch_size * batch_size
    total: float = lengths[:edge].reshape(-1, batch_size).max(axis=1).sum().item() * batch_size
    rest = lengths[edge:]
    return total + (rest.max().item() * len(rest) if len(rest) else 0)
