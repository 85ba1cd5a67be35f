"""What ranks hold is what their row's formula says, to the byte, padding and ranks without a row among it."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from restoke.configs import DDPConfig
from restoke.held import MOMENTS, Held, Place, Sizes, Weight, replicated, sharded, sharded_copies, whole
from restoke.memory.records import sizes_of
from restoke.spec import Spec
from restoke.table import rows, usable
from tests.memory.training import on_a_rank, place, records
from tests.ranks import run

COUNTED = [name for name in usable() if rows()[name].memory is not None]
POINTS = [(name, n) for name in COUNTED for n in (rows()[name].tried or ((1, 2) if rows()[name].processes == "many" else (1,)))]
AXES: list[dict[str, Any]] = [
    {},
    {"accumulate": 2},
    {"precision": "bf16"},
    {"precision": "bf16-true"},
    {"settings": {"ddp": {"gradient_as_bucket_view": True}}},
]


@pytest.mark.parametrize(
    ("name", "n", "axes"),
    [(*point, axes) for point in POINTS for axes in AXES if axes.get("settings", {}).keys() <= {rows()[point[0]].settings}],
)
def test_ranks_hold_what_their_row_s_formula_says(name: str, n: int, axes: dict[str, Any]) -> None:
    formula = rows()[name].memory
    assert formula is not None
    spec = {"strategy": name, "device": "cpu", **axes}
    arguments = (spec, 3 * axes.get("accumulate", 1))
    ran = records(run(n, on_a_rank, *arguments) if rows()[name].processes == "many" else [on_a_rank(*arguments)])
    for rank in ran:
        for moment in MOMENTS:
            seen = attrs.evolve(rank.epochs[-1].held[moment], activations=0, other=0)
            assert seen == formula(sizes_of(ran, 0), place(rank), moment), (rank.rank, moment)


def test_every_strategy_of_restoke_s_own_has_a_formula() -> None:
    assert [name for name in usable() if rows()[name].package == "restoke" and rows()[name].memory is None] == []


ADAM = Sizes([Weight((3, 5)), Weight((5,)), Weight((1,), trained=False), Weight(())], buffers=7, per_element=8, per_parameter=4)


def test_a_whole_copy_is_counted_by_hand() -> None:
    parameters, trained = (15 + 5 + 1 + 1) * 4, (15 + 5 + 1) * 4
    optimizer = 21 * 8 + 3 * 4
    assert whole(ADAM, Place(Spec()), "before forward") == Held(parameters, 0, optimizer, buffers=7)
    assert whole(ADAM, Place(Spec()), "end of backward") == Held(parameters, trained, optimizer, buffers=7)


def test_buckets_are_there_beside_the_gradients_or_under_them() -> None:
    views = Spec(settings=[DDPConfig(gradient_as_bucket_view=True)])
    both = [replicated(ADAM, Place(spec), "after the step") for spec in (Spec(), views)]
    assert [(held.gradients, held.buckets) for held in both] == [(84, 84), (84, 0)]
    assert replicated(ADAM, Place(views), "before forward").buckets == 84


def test_shards_are_rows_padded_and_the_last_may_be_empty() -> None:
    by_rank = [sharded(ADAM, Place(Spec(), rank, 4), "after the step") for rank in range(4)]
    # of 3 rows of 5 one each; of 5 values two each, the last rank none; of 1 value one, padded; the scalar is whole
    assert {held.parameters for held in by_rank} == {(5 + 2 + 1 + 1) * 4}
    assert {held.gradients for held in by_rank} == {(5 + 2 + 1) * 4}
    assert [held.optimizer for held in by_rank] == [8 * n + 3 * 4 for n in (5 + 2 + 1, 5 + 2 + 1, 5 + 1 + 1, 0 + 0 + 1)]


def test_copies_are_sharded_among_neighbours() -> None:
    four = [sharded_copies(ADAM, Place(Spec(), rank, 4, 4), "after the step") for rank in range(4)]
    two = [sharded(ADAM, Place(Spec(), rank, 2), "after the step") for rank in range(2)]
    assert four == two * 2
