"""What the bucketed sampler costs and saves: CPU time to index an epoch, and padding on lengths with a heavy tail.

    python benchmarks/bucketed_sampler.py --samples 10000000 --json bucketed.json

Times are CPU seconds of this process, the best of `--repeats`. `DistributedSampler` is torch's, which knows no lengths.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch.utils.data import DistributedSampler

from restoke.data.bucketed import BucketedDistributedSampler

BUDGET_S = 2.0  # for 1e7 lengths: made, and the first epoch in order


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=10_000_000)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--replicas", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    lengths = heavy_tail(args.samples)
    result = {
        "samples": args.samples,
        "batch_size": args.batch_size,
        "replicas": args.replicas,
        "lengths": {name: float(np.quantile(lengths, q)) for name, q in (("median", 0.5), ("p99", 0.99), ("max", 1.0))},
        "times": times(lengths, args),
        "padding": padding(lengths, args),
        "torch": torch.__version__,
        "numpy": np.__version__,
    }
    show(result)
    if args.json is not None:
        args.json.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


def heavy_tail(samples: int) -> np.ndarray:
    """Document lengths in tokens: log-normal, median 200, cut at 32,768."""
    return np.random.default_rng(0).lognormal(np.log(200), 1.2, samples).astype(np.int64).clip(1, 32_768)


def sampler_of(args: argparse.Namespace, buckets: int = 100, **given: Any) -> BucketedDistributedSampler:
    return BucketedDistributedSampler(
        None, min(buckets, args.samples), args.batch_size, num_replicas=args.replicas, rank=0, **given
    )


def ordered(sampler: BucketedDistributedSampler) -> BucketedDistributedSampler:
    """With the order of its first epoch made: an iterator has its order when it begins."""
    next(iter(sampler))
    return sampler


def times(lengths: np.ndarray, args: argparse.Namespace) -> dict[str, float]:
    """CPU seconds of each thing that a training script waits for."""
    ready = sampler_of(args, lengths=lengths)
    reference = DistributedSampler(range(len(lengths)), args.replicas, 0)  # type: ignore[arg-type]  # only its length is read
    work: dict[str, Callable[[], object]] = {
        "from lengths: construct": lambda: sampler_of(args, lengths=lengths),
        "from lengths: construct + first epoch's order": lambda: ordered(sampler_of(args, lengths=lengths)),
        "from sorted_idx: construct + first epoch's order": lambda: ordered(
            sampler_of(args, sorted_idx=ready.sorted_n_samples)
        ),
        "from random 40-bit lengths: construct + first epoch's order": lambda: ordered(sampler_of(args, lengths=wide)),
        "first epoch's order with 100,000 buckets": lambda: ordered(sampler_of(args, 100_000, lengths=lengths)),
        "every index of one replica": lambda: exhaust(ready),
        "torch DistributedSampler: every index of one replica": lambda: exhaust(reference),
        "torch DistributedSampler: list of one replica": lambda: list(reference),
    }
    wide = np.random.default_rng(1).integers(0, 2**40, len(lengths))
    ordered(ready)
    return {name: best(call, args.repeats) for name, call in work.items()}


def exhaust(indices: Iterable[int]) -> None:
    for _ in indices:
        pass


def best(call: Callable[[], object], repeats: int) -> float:
    taken = []
    for _ in range(repeats):
        start = time.process_time()
        call()
        taken.append(time.process_time() - start)
    return min(taken)


def padding(lengths: np.ndarray, args: argparse.Namespace) -> list[dict[str, float]]:
    """Padding per real token, for more and more buckets."""
    rows = []
    for buckets in (1, 8, 32, 100, 1000):
        for overlap in (False, True):
            sampler = sampler_of(args, buckets, lengths=lengths, allow_bucket_overlap=overlap)
            report = sampler.padding(lengths)
            rows.append(
                {
                    "buckets": buckets,
                    "overlap": overlap,
                    "before": report.ratio_before,
                    "after": report.ratio_after,
                    "repeated": sampler.padded,
                }
            )
    return rows


def show(result: dict[str, Any]) -> None:
    console = Console()
    shape = f"{result['samples']:,} lengths, batches of {result['batch_size']} on {result['replicas']} replicas"
    table = Table("", "CPU s", title=shape)
    for name, seconds in result["times"].items():
        table.add_row(name, f"{seconds:.3f}")
    console.print(table, f"Budget for 1e7 lengths, constructed and in order: {BUDGET_S} s.")
    table = Table("buckets", "overlap", "random batches", "bucketed", "repeated samples", title="padding per real token")
    for row in result["padding"]:
        overlap = "yes" if row["overlap"] else "no"
        table.add_row(str(row["buckets"]), overlap, f"{row['before']:.1%}", f"{row['after']:.1%}", f"{row['repeated']:,}")
    console.print(table)


if __name__ == "__main__":
    main()
