"""The sampler of M x N ranks: each of M groups draws its own samples, and the N ranks of a group draw the same."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sized
from typing import Any, final

import torch
import torch.distributed as dist
from attrs import evolve
from torch.utils.data import Sampler

from restoke.data.bucket_input import flag, whole
from restoke.data.protocols import nested
from restoke.data.shard import deal_at_once, share
from restoke.distributed.groups import Group, default_group, is_initialized
from restoke.errors import DataError, Problem
from restoke.world import World


@final
class DistributedGroupSampler(Sampler[int]):
    """torch's DistributedSampler where groups of ranks take the place of ranks: same order, same padding, same signature.

    Ranks of a group, which share layers, see the same samples; groups see different ones. Each sample is drawn once an epoch
    over all groups. For what does not divide, `drop_last=False` repeats samples from the start of the order, and True leaves
    the rest out.

    A checkpoint holds `state_dict()`, which is alike on all ranks; at another number of groups what was not drawn yet is
    dealt anew, each sample once. `restoke.data.Loader` counts by itself; with any other, tell it by `count`.

    Args:
        dataset: its length is used.
        num_replicas: of groups. None: as there are. rank: this rank's group among them. None: as it is.
        group: the ranks that share layers; None: the default group.

    Raises:
        DataError: a setting is impossible.
    """

    def __init__(
        self,
        dataset: Sized,
        num_replicas: int | None = None,
        rank: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
        *,
        group: Group | None = None,
    ) -> None:
        super().__init__()
        self.dataset = dataset
        self.num_replicas, self.rank, self.group_size = _place(num_replicas, rank, group)
        self.shuffle, self.drop_last = flag("shuffle", shuffle), flag("drop_last", drop_last)
        self.seed = whole("seed", seed, 0, 2**63, "torch's generators take no other", "a whole number from 0 on")
        self._epoch, self._start, self._counted, self._skip = 0, 0, 0, 0

    @property
    def epoch(self) -> int:
        """The epoch whose order is drawn; see `set_epoch`."""
        return self._epoch

    @property
    def position(self) -> int:
        """Entries of the epoch that all groups together have consumed, padding included."""
        return self._start + self._counted * self.num_replicas

    def __len__(self) -> int:
        """What an iteration yields on each rank: of the epoch, or after a restored state of what is left of it."""
        return self.left(0)

    def __iter__(self) -> Iterator[int]:
        """This group's indices, from the start of the epoch or the restored position. It counts nothing."""
        start, self._skip = self._start + self._skip, 0
        return deal_at_once(self._order(), self.num_replicas, self.rank, drop_last=self.drop_last, start=start)

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch: a new one from its first sample, the same one from where its iteration starts."""
        epoch = whole("epoch", epoch, 0, None, "epochs count from 0", "0 or more")
        if epoch != self._epoch:
            self._epoch, self._start = epoch, 0
        self._counted = 0

    def count(self, samples: int) -> None:
        """So many more of this rank's samples are consumed: said by whoever consumes them, since workers draw ahead of that."""
        left = self.left(0) - self._counted
        why = f"{left} are left of this epoch"
        self._counted += whole("count", samples, 0, left + 1, why, f"0 to {left}, and set_epoch before the next epoch")

    def state_dict(self) -> dict[str, Any]:
        """The position in the epoch and what its order depends on, as JSON; alike on all ranks."""
        return {**self._settings(), "epoch": self._epoch, "position": self.position}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state` was taken, at any number of groups.

        Raises:
            DataError: the state is of other samples or settings, or damaged; nothing is changed then.
        """
        missing = [name for name in (*self._settings(), "epoch", "position") if name not in state]
        if missing:
            raise DataError.of("state", sorted(state), f"it lacks {', '.join(missing)}", "what state_dict returned")
        problems = [
            Problem(name, own, f"the state was taken with {state[name]!r}", f"the same {name}, or set_epoch for a whole epoch")
            for name, own in self._settings().items()
            if state[name] != own
        ]
        if problems:
            raise DataError(*problems)
        damaged = ("it is no place in an epoch", "what state_dict returned")
        epoch, position = (whole(name, state[name], 0, None, *damaged) for name in ("epoch", "position"))
        self._epoch, self._start, self._counted = epoch, position, 0

    def left(self, start: int) -> int:
        """This rank's entries from place `start` on, which all groups' entries count, behind the restored position."""
        return share(len(self.dataset), self.num_replicas, drop_last=self.drop_last, start=self._start + start)

    def due(self) -> int:
        """The entries of the whole order that the next iteration deals out to all groups."""
        return max(len(self.dataset) - self._start - self._skip, 0)

    def begin_at(self, start: int) -> None:
        """The next iteration leaves out so many entries of all groups."""
        self._skip = start

    def _order(self) -> range | torch.Tensor:
        samples = len(self.dataset)
        if not self.shuffle:
            return range(samples)
        return torch.randperm(samples, generator=torch.Generator().manual_seed(self.seed + self._epoch))

    def _settings(self) -> dict[str, int | bool]:
        return {"samples": len(self.dataset), "shuffle": self.shuffle, "seed": self.seed, "drop_last": self.drop_last}


def among_groups(world: World, *samplers: object) -> World:
    """The world as samplers of groups see it: the ranks of a group share the data, as those of a tensor axis do.

    Raises:
        DataError: their groups do not divide the data ranks.
    """
    for sampler in samplers:
        for item in nested(sampler):
            if isinstance(item, DistributedGroupSampler) and item.group_size != world.tensor:
                return evolve(world, tensor=_shared(world, item.group_size))
    return world


def _shared(world: World, size: int) -> int:
    if world.tensor > 1 or world.size % size:
        why = f"of {world.size} ranks {world.tensor} share each layer, and so the data"
        raise DataError.of("sampler", f"groups of {size} ranks", why, f"tensor={size}, and groups that divide the ranks")
    return size


def _place(num_replicas: int | None, rank: int | None, group: Group | None) -> tuple[int, int, int]:
    """How many groups there are, which is this, and how many ranks each has."""
    given = num_replicas is None or rank is None
    known = group if group is not None else default_group() if given or is_initialized() else None
    if known is None:
        groups = whole("num_replicas", num_replicas, 1, None, "there is at least this one", "1 or more")
        ranks = dist.get_world_size() if dist.is_available() and dist.is_initialized() else groups
        size = ranks // groups
    else:
        groups, size = known.replicas, known.size
        if num_replicas not in (None, groups):
            why = f"it counts groups, and there are {groups} of {size} ranks"
            raise DataError.of("num_replicas", num_replicas, why, f"{groups}, or leave it out")
        rank = (0 if known.peers is None else known.peers.rank) if rank is None else rank
    return groups, whole("rank", rank, 0, groups, f"there are {groups} groups", f"0 to {groups - 1}"), size
