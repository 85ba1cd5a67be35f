"""Data: each data rank's share of any dataset, batch by batch, on its device, resumable anywhere."""

from restoke.data.bucketed import BucketedDistributedSampler
from restoke.data.loader import Loader, Watcher, make_loader
from restoke.data.place import place
from restoke.data.shard import ShardedBatchSampler, ShardedSampler

__all__ = ["BucketedDistributedSampler", "Loader", "ShardedBatchSampler", "ShardedSampler", "Watcher", "make_loader", "place"]
