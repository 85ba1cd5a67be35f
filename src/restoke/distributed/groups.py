"""Groups of ranks that share layers: which ranks they are, and the ranks that hold the same shards in the other groups."""

from __future__ import annotations

from typing import Any, final

import torch.distributed as dist
from attrs import field, frozen

from restoke.errors import WorldError


@final
@frozen(eq=False)
class Group:
    """The ranks that hold one shard each, in order; `rank` is this process's place among them.

    A world of `size * replicas` ranks has `replicas` such groups, of neighbouring ranks. `peers` are this rank's counterparts:
    the ranks of the other groups that hold the same shards.
    """

    ranks: tuple[int, ...]
    rank: int
    handle: Any = field(default=None, repr=False)  # torch's process group; None where this rank is alone
    peers: Group | None = field(default=None, repr=False)  # None where no other group holds the same shards

    @property
    def size(self) -> int:
        return len(self.ranks)

    @property
    def replicas(self) -> int:
        """How many groups there are."""
        return 1 if self.peers is None else self.peers.size

    def __deepcopy__(self, memo: dict[int, Any]) -> Group:
        """Ranks are not copied with a model."""
        return self

    def __reduce_ex__(self, protocol: Any) -> Any:
        if self.handle is None:
            return super().__reduce_ex__(protocol)
        why = "what is pickled of a layer that ranks share does not know its ranks"
        raise WorldError.of("group", f"ranks {self.ranks}", why, "model.state_dict(), or session.save(folder)")


ALONE = Group((0,), 0)
_MADE: dict[tuple[Any, int], Group] = {}  # groups are never freed, so those of one size are shared
_DEFAULT: list[Group] = []


def group_of(size: int | None = None) -> Group:
    """This rank's group of `size` neighbouring ranks; None: all ranks. Every rank of the job calls this, in the same order.

    Raises:
        WorldError: there is no process group, or its ranks cannot be divided so.
    """
    if not (dist.is_available() and dist.is_initialized()):
        if size in (None, 1):
            return ALONE
        why = "there is no process group yet"
        instead = "torch.distributed.init_process_group, or a Session of many processes, first"
        raise WorldError.of("group_size", size, why, instead)
    world = dist.get_world_size()
    each = world if size is None else size
    if type(each) is not int or each < 1 or world % each:
        why = f"{world} ranks cannot be divided into groups of that size"
        divisors = [n for n in range(1, world + 1) if world % n == 0]
        raise WorldError.of("group_size", size, why, f"one of {', '.join(map(str, divisors))}")
    key = (dist.group.WORLD, each)
    if key not in _MADE:
        _MADE[key] = _make(world, each)
    return _MADE[key]


def _make(world: int, each: int) -> Group:
    columns = [tuple(range(first, world, each)) for first in range(each)]
    rows = [tuple(range(first, first + each)) for first in range(0, world, each)]
    peers = _mine(columns) if each < world else None
    own = _mine(rows)
    return Group(own.ranks, own.rank, own.handle, peers)


def _mine(groups: list[tuple[int, ...]]) -> Group:
    """Every rank takes part in making each group; the one with this rank is returned."""
    handles = [None if len(ranks) == 1 else dist.new_group(list(ranks)) for ranks in groups]
    rank = dist.get_rank()
    for ranks, handle in zip(groups, handles, strict=True):
        if rank in ranks:
            return Group(ranks, ranks.index(rank), handle)
    raise AssertionError(rank)


def default_group() -> Group:
    """What a layer without a `group` is sharded over: what `init_process_group` chose, else all ranks."""
    return _DEFAULT[0] if _DEFAULT else group_of()


def init_process_group(group_size: int | None = None) -> Group:
    """Make groups of `group_size` neighbouring ranks the default of layers that are given none. Every rank calls this.

    Raises:
        WorldError: there is no process group, its ranks cannot be divided so, or another default was chosen before.
    """
    group = group_of(group_size)
    if _DEFAULT and _DEFAULT[0] is not group:
        why = f"groups of {_DEFAULT[0].size} were chosen before"
        raise WorldError.of("group_size", group.size, why, "destroy_process_group() first, or give layers a group of their own")
    _DEFAULT[:] = [group]
    return group


def destroy_process_group() -> None:
    """Forget the default; torch's groups stay, since layers hold them."""
    _DEFAULT.clear()


def is_initialized() -> bool:
    """Whether a default was chosen."""
    return bool(_DEFAULT)


def get_group(group: Group | None = None) -> Group:
    """The group itself; None: the default."""
    return default_group() if group is None else group


def get_world_size(group: Group | None = None) -> int:
    """How many ranks share a layer."""
    return get_group(group).size


def get_rank(group: Group | None = None) -> int:
    """This rank's place in its group."""
    return get_group(group).rank
