"""The sampler that draws every batch from samples of like length, alike on all replicas, and resumes within an epoch."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Any, final

import numpy as np
import xxhash
from torch.utils.data import Sampler

from restoke.data.bucket_input import as_array, check_lengths, flag, length_order, whole
from restoke.data.bucket_plan import Ints, Leg, Plan, Rule, bucket_sizes, count, plan_epoch
from restoke.data.bucket_state import check_settings, read_legs
from restoke.data.padding import PaddingReport, padding_report
from restoke.errors import DataError
from restoke.world import ranks_here

CHUNK = 1 << 16  # samples turned into Python ints at a time
LOG = logging.getLogger("restoke.data")


@final
class BucketedDistributedSampler(Sampler[int]):
    """Samples sorted by length are cut into `buckets`; each batch, `batch_size` consecutive indices, comes from one of them.

    At every step all replicas take the same bucket: `slice_size` = batch_size * num_replicas samples of it. The order inside
    buckets and the order of the slices are shuffled per seed and epoch. Each sample is drawn once an epoch over all replicas;
    then, for what does not fill a slice:

    - `drop_last=False`: every bucket's last slice is filled up with samples of that bucket (`padded` entries repeat one).
    - `drop_last=True`: it is left out (`dropped` samples).
    - `allow_bucket_overlap=True`: the leftovers of all buckets, in length order, are cut into shared slices first, so that
      less than one slice in all is padded or dropped.

    `sorted_idx` are the sample indices by length, or `lengths` (samples,) those lengths themselves; `dataset` only gives
    their number and may be None. `num_replicas` and `rank` are those of the data (tensor-parallel peers share them); by default
    those of the process group, or of the launcher. `backend` is taken for Stoke's scripts and not needed. `info_rank`
    logs one line ("restoke.data", INFO).

    A checkpoint holds `state_dict()`; with another `slice_size` the samples not yet consumed are cut anew, each in its bucket.

    Raises:
        DataError: a setting is impossible, or drop_last would leave no batch.
    """

    def __init__(
        self,
        dataset: object,
        buckets: int,
        batch_size: int,
        sorted_idx: object = None,
        backend: object = None,
        allow_bucket_overlap: bool = False,
        num_replicas: int | None = None,
        rank: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
        info_rank: int = 0,
        *,
        lengths: object = None,
    ) -> None:
        super().__init__()
        self.sorted_n_samples = length_order(dataset, sorted_idx, lengths)
        samples = len(self.sorted_n_samples)
        self.buckets = whole("buckets", buckets, 1, samples + 1, f"{samples} samples cannot fill them", f"1 to {samples}")
        self.batch_size = whole("batch_size", batch_size, 1, None, "a batch holds at least one sample", "1 or more")
        self.num_replicas, self.rank = _replica(num_replicas, rank)
        self.slice_size = self.batch_size * self.num_replicas
        self.allow_bucket_overlap = flag("allow_bucket_overlap", allow_bucket_overlap)
        self.shuffle, self.drop_last = flag("shuffle", shuffle), flag("drop_last", drop_last)
        self.seed = whole("seed", seed, -(2**63), 2**64, "it has more than 64 bits", "a whole number of at most 64 bits")
        self._rule = Rule(self.slice_size, self.allow_bucket_overlap, self.drop_last)
        self._sizes = bucket_sizes(samples, self.buckets)
        self._full = count(self._sizes, self._rule)
        self._check_any()
        self._epoch, self._legs, self._start, self._taken = 0, tuple[Leg, ...](), 0, 0
        self._made: Plan | None = None
        if self.rank == info_rank:
            LOG.info("%s", self)

    @property
    def epoch(self) -> int:
        """The epoch whose order is drawn; see `set_epoch`."""
        return self._epoch

    @property
    def position(self) -> int:
        """Entries of the running epoch that all replicas together have consumed, padding included."""
        return sum(leg.taken for leg in self._legs) + self._taken * self.slice_size

    @property
    def padded(self) -> int:
        """Entries that repeat a sample, over all replicas, in one epoch (or in the part of it that was cut anew)."""
        return self._plan().tally.padded if self._legs else self._full.padded

    @property
    def dropped(self) -> int:
        """Samples that one epoch (or the part of it that was cut anew) leaves out."""
        return self._plan().tally.dropped if self._legs else self._full.dropped

    @property
    def bucket_idx(self) -> list[Ints]:
        """The sample indices of every bucket, shortest first."""
        return np.array_split(self.sorted_n_samples, self.buckets)

    @property
    def rounded_num_samples_per_replica(self) -> int:
        """What each replica draws in a whole epoch."""
        return self._full.slices * self.batch_size

    def __len__(self) -> int:
        """Samples per replica that an iteration yields: of the epoch, or after a restored state of what is left of it."""
        return (self._slices() - self._start) * self.batch_size

    def __iter__(self) -> Iterator[int]:
        """This replica's indices, from the start of the epoch or the restored position. It changes and counts nothing."""
        return self._draw(self._plan().table[self._start :, self.rank :: self.num_replicas])

    def __repr__(self) -> str:
        counts = f"{len(self.sorted_n_samples)} samples, {len(self)} per replica, {self.padded} padded, {self.dropped} dropped"
        shape = f"{self.buckets} buckets, batches of {self.batch_size} on {self.num_replicas} replicas"
        return f"BucketedDistributedSampler({counts}; {shape})"

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch: a new one from its first sample, the same one from where its iteration starts."""
        epoch = whole("epoch", epoch, 0, None, "epochs count from 0", "0 or more")
        if epoch != self._epoch:
            self._epoch, self._legs, self._start, self._made = epoch, (), 0, None
        self._taken = self._start

    def advance(self, batches: int) -> None:
        """Count `batches` more per replica as consumed: by whoever consumes them, since workers draw ahead of that."""
        left = self._slices() - self._taken
        why = f"{left} are left of this epoch"
        self._taken += whole("advance", batches, 0, left + 1, why, f"0 to {left}, and set_epoch before the next epoch")

    def state_dict(self) -> dict[str, Any]:
        """The position in the epoch and what its order depends on, as JSON; alike on all replicas."""
        legs = (*self._legs, Leg(self.slice_size, self._taken * self.slice_size))
        return {
            **self._settings(),
            "epoch": self._epoch,
            "position": self.position,
            "legs": [[leg.slice_size, leg.taken] for leg in legs],
            "fingerprint": self._fingerprint(self._plan()),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state` was taken: the same sequence where `slice_size` is the same; else every sample that was not
        consumed yet, the dropped ones among them, is drawn once, by the rules of a whole epoch.

        Raises:
            DataError: the state is of other samples, seed or settings, or damaged; nothing is changed then.
        """
        check_settings(state, self._settings())
        epoch, legs = read_legs(state)
        same = bool(legs) and legs[-1].slice_size == self.slice_size
        earlier, taken = (legs[:-1], legs[-1].taken // self.slice_size) if same else (legs, 0)
        plan = self._plan_of(epoch, earlier)
        if state["fingerprint"] != self._fingerprint(plan):
            why = "the samples are in another order: other lengths, or a NumPy release that shuffles otherwise"
            instead = "the lengths it was taken with, or set_epoch to begin with a whole epoch"
            raise DataError.of("fingerprint", state["fingerprint"], why, instead)
        if taken > len(plan.table):
            raise DataError.of("legs", state["legs"], "it lies beyond the end of the epoch", "an undamaged state")
        self._epoch, self._legs, self._start, self._taken, self._made = epoch, earlier, taken, taken, plan

    def padding(self, lengths: object) -> PaddingReport:
        """How much of an epoch's batches is padding, beside random batches of the same size and samples.

        `lengths` are (samples,), in the order of the dataset, in any unit.
        """
        values = check_lengths(as_array("lengths", lengths))
        if len(values) != len(self.sorted_n_samples):
            why = f"there are {len(self.sorted_n_samples)} samples"
            raise DataError.of("lengths", f"{len(values)} entries", why, "one entry for each sample")
        batches = self._plan().table.reshape(-1, self.batch_size, self.num_replicas)
        return padding_report(values[self.sorted_n_samples], batches, self.buckets, np.random.default_rng(self.seed % 2**64))

    def _draw(self, rows: Ints) -> Iterator[int]:
        step = -(-CHUNK // self.batch_size)
        for first in range(0, len(rows), step):
            yield from self.sorted_n_samples[rows[first : first + step].ravel()].tolist()

    def _slices(self) -> int:
        return self._plan().tally.slices if self._legs else self._full.slices

    def _plan(self) -> Plan:
        if self._made is None:
            self._made = self._plan_of(self._epoch, self._legs)
        return self._made

    def _plan_of(self, epoch: int, legs: tuple[Leg, ...]) -> Plan:
        def stream(number: int) -> np.random.Generator | None:
            return self._generator(epoch, number) if self.shuffle else None

        return plan_epoch(self._sizes, self._rule, stream, legs)

    def _generator(self, epoch: int, stream: int) -> np.random.Generator:
        return np.random.Generator(np.random.Philox(np.random.SeedSequence(self.seed % 2**64, spawn_key=(epoch, stream))))

    def _settings(self) -> dict[str, int | bool]:
        return {
            "samples": len(self.sorted_n_samples),
            "buckets": self.buckets,
            "allow_bucket_overlap": self.allow_bucket_overlap,
            "drop_last": self.drop_last,
            "shuffle": self.shuffle,
            "seed": self.seed,
        }

    def _fingerprint(self, plan: Plan) -> str:
        digest = xxhash.xxh3_64(self.sorted_n_samples.data)
        digest.update(plan.digest)
        return digest.hexdigest()

    def _check_any(self) -> None:
        if self._full.slices:
            return
        have = (
            f"of all {self._sizes.sum()} samples"
            if self.allow_bucket_overlap
            else f"of the {self._sizes[0]} in the largest bucket"
        )
        why = f"no batch would be left {have}: one takes batch_size * num_replicas = {self.slice_size}"
        raise DataError.of("drop_last", True, why, "drop_last=False, a smaller batch_size, or fewer buckets")


def _replica(num_replicas: int | None, rank: int | None) -> tuple[int, int]:
    """How many replicas there are and which this is; what is not given comes from the process group or the launcher."""
    found = ranks_here() if num_replicas is None or rank is None else None
    size = found.size if num_replicas is None and found is not None else num_replicas
    size = whole("num_replicas", size, 1, None, "there is at least this one", "1 or more")
    own = found.rank if rank is None and found is not None else rank
    return size, whole("rank", own, 0, size, f"there are {size} replicas", f"0 to {size - 1}")
