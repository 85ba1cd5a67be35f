"""One process: what a signal does after `resume`, what it did before, and everything that `resume` refuses."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import restoke
from restoke import OptimizerSpec, Session, Stoke, StokeOptimizer
from restoke.errors import CheckpointError, SessionError
from restoke.stopping import RESUME, Stopped, end, signals
from tests.stopping.on_ranks import EPOCHS, killer, prepared, run

SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)


@pytest.fixture(autouse=True)
def given_back() -> Iterator[None]:
    before = [signal.getsignal(number) for number in SIGNALS]
    yield
    end()
    assert [signal.getsignal(number) for number in SIGNALS] == before


def one_step(session: Session) -> None:
    session.backward(session.forward(torch.ones(4, 4)).mean())
    session.step()


def alone() -> Session:
    session = Session(device="cpu", seed=1)
    session.prepare(nn.Linear(4, 1), OptimizerSpec(torch.optim.SGD, {"lr": 0.1}))
    return session


@pytest.mark.parametrize("at", [1, 18, 32, 33, 64])
def test_a_stopped_run_goes_on_bit_for_bit_wherever_in_an_epoch_it_stood(at: int, tmp_path: Path) -> None:
    whole = run(None)
    stopped = run(tmp_path, killer(at, own_thread=False))
    assert stopped.stopped == -(-at // 4)  # at the end of the window of four
    resumed = run(tmp_path)
    assert (resumed.stopped, resumed.epoch) == (None, EPOCHS)
    assert (resumed.weights, resumed.buffers) == (whole.weights, whole.buffers)


def test_it_ends_as_a_process_does_that_says_start_me_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    session = alone()
    session.resume(tmp_path / "new", extras=lambda: {"best": 0.5})
    one_step(session)
    os.kill(os.getpid(), signal.SIGUSR1)
    with pytest.raises(SystemExit) as left:
        one_step(session)
    assert left.value.code == RESUME == 75
    assert isinstance(left.value, Stopped)
    assert (left.value.step, left.value.tag) == (2, "step-2")
    line = f"restoke: stopped at step 2 and saved step-2 in {tmp_path}/new: the same command goes on from there\n"
    assert capsys.readouterr().err == line
    end()
    assert alone().resume(tmp_path / "new") == {"best": 0.5}


def test_a_script_that_catches_it_is_stopped_again_and_saves_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    session, saved = alone(), []
    save = session.save
    monkeypatch.setattr(session, "save", lambda *args: saved.append(args) or save(*args))
    session.resume(tmp_path)
    os.kill(os.getpid(), signal.SIGTERM)
    for _ in range(2):
        with pytest.raises(Stopped):
            one_step(session)
    assert len(saved) == 1


def test_who_does_not_ask_for_it_pays_nothing_and_who_does_one_call(tmp_path: Path) -> None:
    session = alone()
    bare = session.step.__qualname__
    session.resume(tmp_path)
    assert session.step.__qualname__ != bare
    end()
    assert session.step.__qualname__ == bare


def test_a_flush_is_a_boundary_too(tmp_path: Path) -> None:
    session = prepared()
    session.resume(tmp_path)
    os.kill(os.getpid(), signal.SIGTERM)
    session.backward(session.forward(torch.ones(4, 4)).mean())
    assert session.step() is None  # within the window of four
    with pytest.raises(Stopped):
        session.flush()


def test_ctrl_c_stays_what_it_is_unless_it_is_listed(tmp_path: Path) -> None:
    session = alone()
    before = signal.getsignal(signal.SIGINT)  # a shell's background job has it ignored
    session.resume(tmp_path)
    assert signal.getsignal(signal.SIGINT) is before
    end()
    session.resume(tmp_path, signals=["SIGTERM", signal.SIGINT])
    os.kill(os.getpid(), signal.SIGINT)
    with pytest.raises(Stopped):
        one_step(session)


def test_a_second_signal_is_an_echo_at_first_and_then_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    session = alone()
    session.resume(tmp_path, signals="SIGINT")
    os.kill(os.getpid(), signal.SIGINT)
    os.kill(os.getpid(), signal.SIGINT)
    monkeypatch.setattr(signals, "ECHO", 0)
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)
    signal.signal(signal.SIGINT, signal.default_int_handler)


def test_a_forked_child_is_no_part_of_it(tmp_path: Path) -> None:
    alone().resume(tmp_path)
    if not (child := os.fork()):
        os._exit(0 if signal.getsignal(signal.SIGTERM) == signal.SIG_DFL else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert signal.getsignal(signal.SIGTERM) != signal.SIG_DFL


def test_other_things_in_the_folder_are_no_checkpoint_and_a_damaged_one_is_no_fresh_start(tmp_path: Path) -> None:
    (tmp_path / "log.txt").touch()
    session = alone()
    assert session.resume(tmp_path) == {}
    end()
    (session_file,) = (tmp_path / session.save(tmp_path)).glob("*.safetensors")
    session_file.write_bytes(b"")
    with pytest.raises(CheckpointError, match="none of its checkpoints can be loaded"):
        session.resume(tmp_path)


def test_the_epoch_whose_last_step_was_the_last_one_is_ended_after_the_restart(tmp_path: Path) -> None:
    """So that what a script does at the end of an epoch is done."""
    stopped = run(tmp_path, killer(32, own_thread=False))
    assert (stopped.stopped, stopped.epoch) == (8, 1)
    session, seen = prepared(), []
    loader = session.loader(torch.utils.data.TensorDataset(torch.zeros(64, 4), torch.zeros(64, 1)), 2, shuffle=True)
    session.resume(tmp_path)
    for epoch in range(loader.epoch, EPOCHS):
        seen.append((epoch, len(list(loader))))
    assert seen == [(0, 0), (1, 32)]


REFUSED: dict[str, tuple[Callable[[Session], Any], str]] = {
    "nothing to count by": (lambda s: s.resume("x", every=0), "every=0: it counts from one"),
    "a number that is none": (lambda s: s.resume("x", keep=True), "keep=True"),
    "values in place of a function": (lambda s: s.resume("x", extras={"a": 1}), "must be a function"),  # type: ignore[arg-type]
    "a signal that is none": (lambda s: s.resume("x", signals=["SIGTREM"]), "did you mean 'SIGTERM'"),
    "a signal that nobody can handle": (lambda s: s.resume("x", signals=["SIGKILL"]), "lets nobody handle it"),
    "no session": (lambda s: restoke.resume("x", {}), "names no session"),
    "a session's name that is none": (lambda s: restoke.resume("x", {"a/b": s}), "cannot begin the names"),
    "a session's name that is kept": (lambda s: restoke.resume("x", {"values": s}), "cannot begin the names"),
    "something else": (lambda s: restoke.resume("x", {"a": s.world}), "a World is no Session"),  # type: ignore[dict-item]
    "no model": (lambda s: Session(device="cpu").resume("x"), "prepare was not called"),
}


@pytest.mark.parametrize(("call", "message"), REFUSED.values(), ids=REFUSED)
def test_refused_with_its_reason_and_nothing_is_changed(
    call: Callable[[Session], Any], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    session = alone()
    step = session.step
    with pytest.raises(SessionError, match=message):
        call(session)
    assert session.step is step
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_it_saves_where_it_was_called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    session = alone()
    session.resume("run", every=1)
    os.chdir("elsewhere")
    one_step(session)
    assert (tmp_path / "run" / "step-1").is_dir()


def test_a_second_resume_is_refused_until_the_first_is_over(tmp_path: Path) -> None:
    first, second = alone(), alone()
    first.resume(tmp_path)
    with pytest.raises(SessionError, match="can stop at one place only"):
        second.resume(tmp_path)
    end()
    second.resume(tmp_path)


def test_a_handler_of_the_scripts_own_is_not_replaced(tmp_path: Path) -> None:
    before = signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        with pytest.raises(SessionError, match="SIGTERM.*the script handles it itself"):
            alone().resume(tmp_path)
    finally:
        signal.signal(signal.SIGTERM, before)


def test_outside_the_main_thread_it_is_refused(tmp_path: Path) -> None:
    said: list[str] = []

    def call() -> None:
        try:
            alone().resume(tmp_path)
        except SessionError as error:
            said.append(str(error))

    thread = threading.Thread(target=call)
    thread.start()
    thread.join()
    assert "main thread alone" in said[0]


def test_a_checkpoint_of_other_sessions_is_refused(tmp_path: Path) -> None:
    one, other = alone(), alone()
    restoke.resume(tmp_path / "two", {"one": one, "other": other}, every=1)
    one_step(one)
    assert not (tmp_path / "two").exists()
    one_step(other)
    assert (tmp_path / "two" / "step-1").is_dir()
    end()
    with pytest.raises(CheckpointError, match="one, other"):
        restoke.resume(tmp_path / "two", {"one": one})
    with pytest.raises(CheckpointError, match="one, other.: it holds no single session"):
        one.resume(tmp_path / "two")
    one.save(tmp_path / "one")
    with pytest.raises(CheckpointError, match="one session"):
        restoke.resume(tmp_path / "one", {"one": one})


def stoke() -> Stoke:
    made = StokeOptimizer(optimizer=torch.optim.SGD, optimizer_kwargs={"lr": 0.1})
    return Stoke(nn.Linear(4, 1), made, nn.functional.mse_loss, 2, grad_accum_steps=2, seed=1, device="cpu", verbose=False)


def micro_batches(object_: Stoke, numbers: range) -> None:
    for number in numbers:
        x = torch.full((2, 4), float(number))
        object_.backward(object_.loss(object_.model(x), torch.zeros(2, 1)))
        object_.step()


def test_stokes_verbs_stop_and_go_on_with_their_losses(tmp_path: Path) -> None:
    whole = stoke()
    micro_batches(whole, range(7))
    stopped = stoke()
    stopped.resume(tmp_path)
    micro_batches(stopped, range(2))
    os.kill(os.getpid(), signal.SIGTERM)
    with pytest.raises(Stopped):
        micro_batches(stopped, range(2, 5))
    end()
    resumed = stoke()
    resumed.resume(tmp_path)
    assert (resumed.backward_steps, resumed.optimizer_steps) == (4, 2)
    micro_batches(resumed, range(4, 7))
    assert resumed.ema_loss == whole.ema_loss
    assert resumed.step_loss == whole.step_loss
    assert torch.equal(resumed.model_access.weight, whole.model_access.weight)
