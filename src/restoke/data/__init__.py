"""Data: each data rank's share of any dataset, batch by batch, on its device, resumable anywhere."""

from restoke.data.agreement import synchronize_rng
from restoke.data.batch_share import BatchShare
from restoke.data.bucketed import BucketedDistributedSampler
from restoke.data.dealing import Dealing
from restoke.data.group_sampler import DistributedGroupSampler
from restoke.data.loader import Loader
from restoke.data.make import make_loader, take_loader
from restoke.data.place import place
from restoke.data.protocols import Watcher
from restoke.data.seedable import SeedableRandomSampler
from restoke.data.shard import ShardedBatchSampler, ShardedSampler
from restoke.data.skip import Skipped, skip_first_batches
from restoke.data.stream_share import StreamShare

__all__ = [
    "BatchShare",
    "BucketedDistributedSampler",
    "Dealing",
    "DistributedGroupSampler",
    "Loader",
    "SeedableRandomSampler",
    "ShardedBatchSampler",
    "ShardedSampler",
    "Skipped",
    "StreamShare",
    "Watcher",
    "make_loader",
    "place",
    "skip_first_batches",
    "synchronize_rng",
    "take_loader",
]
