"""Every name of TorchShard's is here, takes its arguments, and is found under its own modules' names."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from restoke.errors import SpecError
from restoke.facades import torchshard as face
from restoke.launch.alias import Alias

OPTIONS = "padding_idx max_norm norm_type scale_grad_by_freq sparse"
ARGUMENTS = {
    "set_attribute": "tensor value order_type",
    "collect_state_dict": "model state_dict prefix",
    "relocate_state_dict": "model state_dict prefix",
    "register_ddp_parameters_to_ignore": "module",
    "get_parallel_dim": "tensor",
    "register_parallel_dim": "tensor value",
    "register_parallel_attribute": "param value order_type",
    "slice": "tensor num_partitions dim contiguous",
    "nn.ParallelLinear": "in_features out_features bias dim",
    "nn.ParallelLinear.convert_parallel_linear": "module dim",
    "nn.RegisterParallelDim": "dim",
    "nn.ParallelEmbedding": f"num_embeddings embedding_dim {OPTIONS} _weight dim",
    "nn.ParallelEmbedding.convert_parallel_embedding": "module dim",
    "nn.ParallelCrossEntropyLoss": "weight size_average ignore_index reduce reduction",
    "nn.functional.parallel_linear": "input weight bias dim",
    "nn.functional.parallel_cross_entropy": "input target weight size_average ignore_index reduce reduction",
    "nn.functional.ParallelCrossEntropy.apply": "input target weight size_average ignore_index reduce reduction",
    "nn.functional.parallel_embedding": f"input weight {OPTIONS} num_embeddings dim",
    "nn.init.shard_init_helper_": "init_method tensor kwargs",
    "distributed.init_process_group": "group_size",
    "distributed.is_initialized": "",
    "distributed.destroy_process_group": "",
    "distributed.get_group": "",
    "distributed.get_group_size": "",
    "distributed.get_rank": "",
    "distributed.get_world_size": "",
    "distributed.scatter": "input dim",
    "distributed.gather": "input dim",
    "distributed.reduce": "input",
    "distributed.copy": "input",
    "utils.divide": "numerator denominator",
    "utils.check_divisibility": "numerator denominator",
    "utils.VocabUtility.vocab_range_from_per_partition_vocab_size": "per_partition_vocab_size rank world_size",
    "utils.VocabUtility.vocab_range_from_global_vocab_size": "global_vocab_size rank world_size",
}


@pytest.fixture
def ts() -> Iterator[Any]:
    """`import torchshard as ts`."""
    finder = Alias(face.MODULES)
    sys.meta_path.insert(0, finder)
    yield importlib.import_module("torchshard")
    sys.meta_path.remove(finder)
    for module in [module for module in sys.modules if module.split(".")[0] == "torchshard"]:
        del sys.modules[module]


@pytest.mark.parametrize("name", ARGUMENTS)
def test_a_name_takes_torchshards_arguments_first_and_asks_for_no_other(name: str, ts: Any) -> None:
    found = ts
    for part in name.split("."):
        found = getattr(found, part)
    parameters = list(inspect.signature(found).parameters.values())
    expected = ARGUMENTS[name].split()
    assert [parameter.name for parameter in parameters[: len(expected)]] == expected
    assert all(parameter.default is not parameter.empty for parameter in parameters[len(expected) :])


def test_submodules_are_found_however_they_are_imported(ts: Any) -> None:
    space: dict[str, Any] = {}
    lines = [
        "import torchshard",
        "import torchshard.nn.functional as F",
        "from torchshard import nn, distributed, utils",
        "from torchshard.nn import ParallelLinear, init",
        "from torchshard.nn.modules import ParallelEmbedding",
        "from torchshard.distributed import *",
        "from torchshard.overrides import register_parallel_dim",
        "from torchshard.serialization import collect_state_dict",
    ]
    exec("\n".join(lines), space)
    assert space["ParallelLinear"] is space["nn"].ParallelLinear is ts.nn.ParallelLinear
    assert space["F"].parallel_linear is space["nn"].functional.parallel_linear
    assert space["init_process_group"] is ts.distributed.init_process_group
    assert space["get_group_size"] is ts.distributed.get_group_size
    assert (ts._PARALLEL_DIM, ts._ORDER_ATTR) == ("parallel_dim", "order_type")
    assert ts.TORCH_VERSION >= (2, 10)
    assert set(dir(face)) >= {name.split(".")[0] for name in ARGUMENTS}
    with pytest.raises(AttributeError, match="no 'ParallelDropout'"):
        ts.ParallelDropout  # noqa: B018


def test_sizes_that_cannot_be_divided_are_refused_and_vocabularies_are_cut_as_layers_are(ts: Any) -> None:
    assert ts.utils.divide(12, 4) == 3
    for denominator in (5, 0):
        with pytest.raises(SpecError, match="no multiple of"):
            ts.utils.divide(12, denominator)
    with pytest.raises(ValueError, match="no multiple of"):
        ts.utils.check_divisibility(85742, 8)
    assert ts.utils.VocabUtility.vocab_range_from_per_partition_vocab_size(3, 2, 4) == (6, 9)
    ranges = [ts.utils.VocabUtility.vocab_range_from_global_vocab_size(10, rank, 4) for rank in range(4)]
    assert ranges == [(0, 3), (3, 6), (6, 8), (8, 10)]
