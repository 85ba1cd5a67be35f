"""The tracker's peak is what a calculation by hand and torch's own tracker say, and it leaves no trace."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed._tools.mem_tracker import MemTracker
from torch.utils._python_dispatch import _get_current_dispatch_mode

from restoke.errors import SessionError
from restoke.memory.measure import Memory, measure_memory
from restoke.memory.tracker import Tracker
from restoke.optim import OptimizerSpec
from restoke.session import Session
from tests.memory.training import SGD, batch, net, session, train, vars_of

PARAMETERS, HIDDEN, OUTPUT, INPUT, SCALAR = 4 * (4 * 8 + 8 + 8 * 2 + 2), 4 * 16 * 8, 4 * 16 * 2, 4 * 16 * 4, 4


def two_layers() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2))


def test_the_peak_of_two_layers_is_what_it_is_by_hand() -> None:
    one = session(two_layers(), SGD)
    with measure_memory(one) as memory:
        train(one, 2, torch.ones(16, 4))
    # while the second layer runs back: the saved hidden layer and its gradient, the loss and its gradient of 1
    activations = 2 * HIDDEN + 2 * SCALAR
    second_layer = 4 * (8 * 2 + 2)
    found = {"parameters": PARAMETERS, "gradients": second_layer, "activations": activations, "other": INPUT}
    assert {kind: nbytes for kind, nbytes in vars_of(memory.at_peak).items() if nbytes} == found
    assert memory.peak == sum(found.values())


def test_an_evaluation_that_is_the_peak_is_seen() -> None:
    one = session(two_layers(), SGD)
    with measure_memory(one) as memory, torch.no_grad():
        one.forward(torch.ones(16, 4))
    assert memory.peak == PARAMETERS + INPUT + HIDDEN + OUTPUT


def test_gradients_of_a_window_add_to_the_peak_of_its_later_micro_batches() -> None:
    peaks = []
    for accumulate in (1, 2):
        one = session(two_layers(), SGD, accumulate=accumulate)
        with measure_memory(one) as memory:
            train(one, 2, torch.ones(16, 4))
        peaks.append(memory.peak)
    # all gradients are there already while the second micro-batch's are made; the loss, divided, is a scalar more
    first_layer = 4 * (4 * 8 + 8)
    assert peaks[1] - peaks[0] >= first_layer


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "mlp": (lambda: nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.LayerNorm(128), nn.Linear(128, 4)), (16, 64)),
    "convolutions": (lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten()), (4, 3, 9, 9)),
    "encoder": (lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, 0.1, batch_first=True), 2), (4, 8, 16)),
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.AdamW])
def test_the_peak_is_that_of_torch_s_own_tracker(name: str, optimizer: type[torch.optim.Optimizer]) -> None:
    build, shape = MODELS[name]
    one, x = session(build(), OptimizerSpec(optimizer, {"lr": 0.01})), torch.ones(shape)
    with measure_memory(one) as memory:
        train(one, 3, x)
    model = build()
    by_hand = optimizer(model.parameters(), lr=0.01)  # type: ignore[call-arg]
    theirs = MemTracker()
    theirs.track_external(model, by_hand, x)
    with theirs:
        for _ in range(3):
            model(x).float().sum().backward()
            by_hand.step()
            by_hand.zero_grad()
            theirs.reset_mod_stats()
    assert memory.peak == theirs.get_tracker_snapshot("peak")[torch.device("cpu")]["Total"]


def weights(measured: bool) -> list[Tensor]:
    torch.manual_seed(1)
    one = session(nn.Sequential(nn.Linear(3, 8), nn.Dropout(), nn.BatchNorm1d(8), nn.Linear(8, 1)), accumulate=2, clip=1.0)
    if measured:
        with measure_memory(one):
            train(one, 10, torch.randn(4, 3))
    else:
        train(one, 10, torch.randn(4, 3))
    return [*one.parts.module.state_dict().values(), torch.rand(1)]


def test_numbers_are_the_same_to_the_last_bit_while_it_follows() -> None:
    assert all(torch.equal(a, b) for a, b in zip(weights(True), weights(False), strict=True))


def hooks(one: Session) -> list[Any]:
    model, optimizer = one.parts.model, one.parts.optimizer
    found = (model._forward_pre_hooks, model._forward_hooks, optimizer._optimizer_step_pre_hooks)
    return [*map(list, found), list(optimizer._optimizer_step_post_hooks)]


def patched() -> Any:
    return vars(torch.UntypedStorage).get("resize_")


def interrupted(one: Session, before: tuple[Any, Any]) -> Memory:
    with suppress(ZeroDivisionError), measure_memory(one) as memory:
        assert hooks(one) != before[0]
        assert patched() != before[1]
        train(one, 1)
        raise ZeroDivisionError
    return memory


def test_nothing_is_patched_or_hooked_once_it_is_left_even_by_an_error() -> None:
    one = session()
    before = hooks(one), patched()
    memory = interrupted(one, before)
    assert (hooks(one), patched()) == before
    assert _get_current_dispatch_mode() is None
    epochs = memory.epochs
    train(one, 3)
    assert memory.epochs == epochs


def test_one_that_was_entered_within_must_be_left_first() -> None:
    one, other, before = session(), Tracker("cpu"), patched()
    with pytest.raises(SessionError, match="dispatch mode"), measure_memory(one) as memory:
        other.start()
    assert other.stop()
    memory.close()
    assert (patched(), _get_current_dispatch_mode()) == (before, None)


def test_storages_that_are_resized_count_with_their_new_size() -> None:
    tracker = Tracker("cpu")
    tracker.start()
    x = torch.zeros(100)
    x.untyped_storage().resize_(0)
    assert tracker.fold().total == 0
    x.untyped_storage().resize_(800)
    del x
    assert tracker.fold().total == 0
    tracker.stop()
    assert tracker.peak.nbytes == 800


def test_what_was_made_before_or_elsewhere_counts_once_it_is_used() -> None:
    x, tracker = torch.zeros(100), Tracker("cpu")
    tracker.start()
    x.sum()
    tracker.stop()
    tracker.fold()
    assert tracker.peak.nbytes == 400 + 4


def test_what_is_made_in_another_mode_s_imagination_does_not_count() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    tracker = Tracker("cpu")
    tracker.start()
    with FakeTensorMode():
        torch.zeros(1000).add(1)
    torch.zeros(1000, device="meta").add(1)
    tracker.stop()
    tracker.fold()
    assert tracker.peak.nbytes == 0


class Squares(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x).square()


def test_compiled_code_stays_compiled_and_its_insides_are_said_to_be_missing() -> None:
    ran = []

    def backend(graph: Any, _: Any) -> Callable[..., Any]:
        return lambda *args: ran.append(1) or graph.forward(*args)

    one = session(Squares())
    one.parts.module.compile(backend=backend)
    with measure_memory(one) as memory:
        train(one, 2)
        assert memory.record.source == "tracked storages, those within compiled code left out"
    train(one, 2)
    assert len(ran) == 4
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()


def test_recomputed_activations_do_not_count_while_they_are_gone() -> None:
    peaks = {}
    for remat in ("none", "blocks"):
        torch.manual_seed(0)
        blocks = [nn.Sequential(nn.Linear(8, 64), nn.GELU(), nn.Linear(64, 8)) for _ in range(6)]
        one = session(nn.Sequential(*blocks), SGD, remat=remat)
        with measure_memory(one) as memory:
            train(one, 2, torch.ones(64, 8))
        peaks[remat] = memory.at_peak.activations
    # each of six blocks saves 64 x 64 values twice; recomputed, one block at a time has them
    assert peaks["blocks"] < peaks["none"] / 2


def test_a_small_net_is_followed_under_every_precision_of_a_cpu() -> None:
    for precision in ("fp32", "bf16", "fp16", "bf16-true"):
        one = session(net(), precision=precision)
        with measure_memory(one) as memory:
            train(one, 12, batch())  # the scale of fp16 falls until a step is taken
        assert memory.held["after the step"].optimizer > 0
