"""What strategies that shard must not get wrong: stale weights, half windows, overflows on one rank, files filled in shards."""

from __future__ import annotations

import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from restoke import FSDPConfig, OptimizerSpec, Session
from restoke.comm import barrier, broadcast_json
from restoke.configs import AMPConfig, DDPConfig
from restoke.errors import SpecError
from restoke.table import rows
from restoke.testing.training import trained
from tests import ranks
from tests.strategies.models import MODELS, Deep, Sometimes
from tests.strategies.test_models import FAR, ROWS, batches, by_hand, loss_of

SGD = OptimizerSpec(torch.optim.SGD, {"lr": 0.1, "momentum": 0.9})
SHARDED = [name for name in ROWS if rows()[name].blocks]
every_row = pytest.mark.parametrize("strategy", ROWS)
every_sharded_row = pytest.mark.parametrize("strategy", SHARDED)


def started(strategy: str, model: nn.Module, **axes: Any) -> Session:
    session = Session(strategy=strategy, device="cpu", **axes)
    session.prepare(model, SGD)
    return session


def one_step(session: Session, i: int, **how: Any) -> None:
    x, y = batches()[i]
    rank, size = session.world.data_rank, session.world.data_size
    session.backward(loss_of(session.forward(x[rank::size], **how), y[rank::size]))


def with_evaluations(strategy: str) -> dict[str, Any]:
    session = started(strategy, MODELS["blocks"].made(), clip=0.5)
    seen = []
    for i in range(4):
        one_step(session, i)
        with torch.no_grad():
            session.forward(batches()[0][0])  # leaves parameters gathered
        session.step()
        with torch.no_grad():
            seen.append(session.forward(batches()[0][0]).mean().item())
        session.forward(batches()[0][0])  # a graph that no backward goes through
    return {"seen": seen, **trained(session)}


@every_row
def test_what_a_forward_gathers_is_never_stale(strategy: str) -> None:
    found = ranks.run(2, with_evaluations, strategy)[0]
    assert len(set(found.pop("seen"))) == 4
    want = by_hand(MODELS["blocks"])
    assert max(float(np.abs(found[name] - want[name]).max()) for name in found) <= FAR


def unused(strategy: str) -> dict[str, Any]:
    settings = (DDPConfig(find_unused_parameters=True), FSDPConfig(find_unused_parameters=True))
    torch.manual_seed(3)
    session = started(strategy, Sometimes(), settings=settings)
    for i in range(2):
        one_step(session, i, extra=session.world.rank == 0)
        session.step()
    return trained(session)


@every_row
def test_ranks_may_use_different_parameters_where_that_is_declared(strategy: str) -> None:
    one, two = ranks.run(2, unused, strategy)
    torch.manual_seed(3)
    begun = Sometimes().state_dict()
    for name, value in one.items():
        assert np.array_equal(value, two[name])
        assert np.array_equal(value, begun[name].double().numpy()) == name.startswith("never")


def overflowing(strategy: str) -> tuple[bool, int, float]:
    torch.manual_seed(3)
    session = started(strategy, Deep(), precision="fp16", settings=(AMPConfig(init_scale=8.0),))
    x, y = batches()[0]
    bad = torch.full_like(x, float("inf")) if session.world.rank == 1 else x
    session.backward(loss_of(session.forward(bad), y))
    step = session.step()
    assert step is not None
    assert session.scaler is not None
    return step.skipped, session.skipped, session.scaler.torch.get_scale()


@every_row
def test_an_overflow_on_one_rank_is_skipped_on_all(strategy: str) -> None:
    assert ranks.run(2, overflowing, strategy) == [(True, 1, 4.0)] * 2


def filled(strategy: str, path: str, offload: str) -> dict[str, Any]:
    with torch.device("meta"):
        model = MODELS["tied blocks"].build()
    session = Session(strategy=strategy, device="cpu", offload=offload)
    session.prepare(model, SGD, weights=path)
    layers = session.parts.module.layers
    assert isinstance(layers, nn.ModuleList)
    begun = trained(session)
    one_step(session, 0)
    session.step()
    assert layers[0].up.weight is layers[2].up.weight  # type: ignore[union-attr]
    return {"begun": begun, "after": trained(session)}


@pytest.mark.parametrize("strategy", ["single", *ROWS])
def test_a_model_of_the_meta_device_is_filled_from_a_file(strategy: str, tmp_path: Path) -> None:
    model = MODELS["tied blocks"].made()
    tensors = {name: value for name, value in model.state_dict().items() if name != "layers.2.up.weight"}
    save_file(tensors, tmp_path / "model.safetensors")
    x, y = batches()[0]
    loss_of(model(x), y).backward()  # type: ignore[no-untyped-call]
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    for offload in rows()[strategy].offload:
        for found in ranks.run(
            1 if strategy == "single" else 2, filled, strategy, str(tmp_path / "model.safetensors"), offload
        ):
            for name, value in tensors.items():
                assert np.array_equal(found["begun"][name], value.double().numpy()) or name in dict(model.named_parameters())
            for name, value in model.state_dict().items():
                assert float(np.abs(found["after"][name] - value.detach().double().numpy()).max()) <= FAR


def unfilled(strategy: str) -> list[str]:
    said = []
    with torch.device("meta"):
        models = [Deep(), nn.BatchNorm1d(3)]
    models[1].register_buffer("own", torch.zeros(2, device="meta"), persistent=False)
    for model, weights in zip(models, (None, "nowhere.safetensors"), strict=True):
        with pytest.raises(SpecError) as refused:
            Session(strategy=strategy, device="cpu").prepare(model, SGD, weights=weights)
        said.append(str(refused.value))
    return said


def test_a_model_of_the_meta_device_that_nothing_fills_is_refused() -> None:
    for said in ranks.run(2, unfilled, "fsdp"):
        assert said[0].startswith("model='stem.weight': it is on the meta device and has no values. Instead: prepare(")
        assert said[1].startswith("model='own': it is on the meta device, and no file has it")


def anonymous_megabytes() -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) / 1024
    raise AssertionError("the kernel tells no RssAnon")


def big(width: int) -> nn.Module:
    return nn.Sequential(*(nn.Sequential(nn.Linear(width, width), nn.ReLU()) for _ in range(4)))


def growth(path: str, width: int) -> float:
    with torch.device("meta"):
        model = big(width)
    session = Session(strategy="fsdp", device="cpu")
    before = anonymous_megabytes()
    session.prepare(model, OptimizerSpec(torch.optim.SGD, {"lr": 0.1}), weights=path)
    return anonymous_megabytes() - before


def test_no_rank_ever_holds_the_whole_model_while_it_is_filled(tmp_path: Path) -> None:
    width = 2000
    whole = 4 * width * width * 4 / 2**20
    save_file(big(width).state_dict(), tmp_path / "model.safetensors")
    for grown in ranks.run(4, growth, str(tmp_path / "model.safetensors"), width):
        assert grown < whole / 2, f"{grown:.0f} MiB for a quarter of {whole:.0f} MiB"


def one_half_window(strategy: str, folder: str, resume: bool) -> dict[str, Any]:
    session = started(strategy, MODELS["blocks"].made(), accumulate=2)
    if not resume:
        for i in range(3):
            one_step(session, i)
            session.step()
        session.save(folder, "half")
    session.load(folder)
    one_step(session, 3)
    assert session.step() is not None
    return trained(session)


@every_row
def test_a_half_window_is_saved_with_its_gradients(strategy: str, tmp_path: Path) -> None:
    straight = ranks.run(2, one_half_window, strategy, str(tmp_path), False)
    resumed = ranks.run(2, one_half_window, strategy, str(tmp_path), True)
    elsewhere = ranks.run(2, one_half_window, "ddp", str(tmp_path), True)
    for name, want in straight[0].items():
        assert np.array_equal(resumed[0][name], want)
        assert float(np.abs(elsewhere[0][name] - want).max()) <= FAR


def dropped(strategy: str) -> dict[str, Any]:
    """A window begun anew three times: by `zero_grads`, after an exception, and by loading."""
    session = started(strategy, MODELS["blocks"].made(), accumulate=2)
    with tempfile.TemporaryDirectory() as folder:
        shared = broadcast_json(folder, session.world)
        session.save(shared, "begun")
        one_step(session, 2)
        session.step()
        session.zero_grads()
        one_step(session, 3)
        session.step()
        with suppress(TypeError):
            session.forward(batches()[0][0], nothing=True)
        session.zero_grads()
        one_step(session, 2)
        session.step()
        session.load(shared)
        barrier(session.world)
    for i in (0, 1):
        one_step(session, i)
        session.step()
    return trained(session)


def undisturbed(strategy: str) -> dict[str, Any]:
    session = started(strategy, MODELS["blocks"].made(), accumulate=2)
    for i in (0, 1):
        one_step(session, i)
        session.step()
    return trained(session)


@every_row
def test_gradients_that_were_dropped_are_gone(strategy: str) -> None:
    want, got = ranks.run(2, undisturbed, strategy)[0], ranks.run(2, dropped, strategy)[0]
    for name, value in want.items():
        assert np.array_equal(got[name], value), name


def declared(axes: dict[str, Any]) -> str:
    with pytest.raises(SpecError) as refused:
        started("fsdp", Deep(), **axes)
    return str(refused.value)


def test_what_sharding_cannot_do_is_refused() -> None:
    for said in ranks.run(2, declared, {"settings": {"fsdp": {"replicas": 2}}}):
        assert said.startswith("FSDPConfig.replicas=2: fsdp holds one copy over all ranks. Instead: strategy=hsdp")
    for said in ranks.run(2, declared, {"blocks": "nolayer*"}):
        assert said.startswith("blocks='nolayer*': no module of the model has such a name")


def optimizer_refused() -> str:
    class Normed(torch.optim.SGD):
        """Scales each step by the parameter's norm, as LAMB does."""

        def step(self, closure: Any = None) -> Any:
            for group in self.param_groups:
                for p in group["params"]:
                    p.grad = p.grad * p.detach().norm()
            return super().step(closure)

    session = Session(strategy="zero1", device="cpu")
    with pytest.raises(SpecError) as refused:
        session.prepare(Deep(), OptimizerSpec(Normed, {"lr": 0.1}))
    return str(refused.value)


def test_zero1_refuses_an_optimizer_that_is_not_element_wise() -> None:
    for said in ranks.run(2, optimizer_refused):
        assert said.startswith("optimizer='Normed': what it does to an element depends on the others")


def with_adagrad(strategy: str) -> dict[str, Any]:
    """Adagrad begins with a state, of the parameters that it was built on."""
    session = Session(strategy=strategy, device="cpu")
    optimizer = OptimizerSpec(torch.optim.Adagrad, {"lr": 0.1, "initial_accumulator_value": 0.3})
    session.prepare(MODELS["blocks"].made(), optimizer)
    for i in range(3):
        one_step(session, i)
        session.step()
    return trained(session)


def test_zero1_cuts_the_state_that_an_optimizer_begins_with() -> None:
    wanted = ranks.run(2, with_adagrad, "ddp")[0]
    for name, value in ranks.run(2, with_adagrad, "zero1")[0].items():
        np.testing.assert_allclose(value, wanted[name], atol=1e-7, err_msg=name)
