"""Saving beside training: what was there when `save` returned is written, errors surface, and nobody waits for ever."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from restoke.checkpoint import background, disk, messages
from restoke.checkpoint.background import Saver
from restoke.checkpoint.container import DTYPES
from restoke.checkpoint.messages import StoreMessages, Watch
from restoke.checkpoint.snapshot import Snapshot
from restoke.errors import CheckpointError
from tests import ranks
from tests.checkpoint import beside
from tests.checkpoint.beside import contents
from tests.checkpoint.states import ONE, bits, filled, load, mark_of
from tests.faults import saves, warm
from tests.faults.forks import in_forks
from tests.faults.saves import NEW, OLD
from tests.faults.trials import Trial, killed


@pytest.mark.parametrize(("strategy", "size"), [("single", 1), ("ddp", 2), ("ddp", 3)])
def test_training_may_go_on_at_once_and_the_bytes_are_those_of_a_save_that_was_waited_for(
    tmp_path: Path, strategy: str, size: int
) -> None:
    assert ranks.run(size, beside.train_on_while_saving, tmp_path, strategy) == [["0", "1"]] * size
    for turn in ("0", "1"):
        assert contents(tmp_path / "waited" / turn) == contents(tmp_path / "beside" / turn)
    assert contents(tmp_path / "beside" / "0") != contents(tmp_path / "beside" / "1")


def test_a_load_finds_the_save_that_was_just_begun(tmp_path: Path) -> None:
    assert ranks.run(2, beside.load_what_is_being_saved, tmp_path) == [True, True]


def test_it_is_written_where_it_was_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    saver = Saver(ONE)
    moving = disk.Disk(lambda operation, path: os.chdir(tmp_path / "elsewhere"))
    saver.start("run", "a", filled(1.0), meta={"mark": 1.0}, disk=moving)
    saver.wait()
    assert mark_of(load(tmp_path / "run")) == 1.0
    assert not (tmp_path / "elsewhere" / "run").exists()


def test_a_second_save_waits_for_the_first(tmp_path: Path) -> None:
    for seen, last in ranks.run(2, beside.save_twice, tmp_path):
        assert "1" in seen
        assert last == ["2"]


def test_saves_of_two_sessions_are_written_in_the_order_they_were_begun(tmp_path: Path) -> None:
    assert ranks.run(2, beside.save_from_two_sessions, tmp_path) == [(False, ["2", "1"])] * 2


def test_what_fails_is_told_once_on_all_ranks_and_the_old_state_loads(tmp_path: Path) -> None:
    one, other = ranks.run(2, beside.fail, tmp_path)
    assert one == other
    told, nothing = one[:8:2], one[1:6:2]
    assert len(told) == 4
    for text in (*told[:3], one[6], one[7]):
        assert "rank 1: No space left on device" in text
        assert "what was saved before is untouched" in text
    assert nothing == ["it was not refused"] * 3
    assert one[8:] == ["waited", "good", "waited"]


def test_a_copy_for_which_there_is_no_memory_is_told_on_all_ranks(tmp_path: Path) -> None:
    one, other = ranks.run(2, beside.fail_to_copy, tmp_path)
    assert one == other
    assert "rank 1: RuntimeError: not enough memory" in one


def test_what_cannot_be_saved_is_refused_before_save_returns(tmp_path: Path) -> None:
    one, other = ranks.run(2, beside.refuse_at_once, tmp_path / "run")
    assert one == other
    assert "rank 1: a builtins.builtin_function_or_method is no plain value" in one
    assert not (tmp_path / "run").exists()


def test_a_rank_that_gives_no_sign_of_life_is_named_and_not_waited_for(tmp_path: Path) -> None:
    one, other = ranks.run(2, beside.lose_a_rank, tmp_path)
    assert "there was no sign of life from rank 1 for 1 s" in one
    assert "there was no sign of life from rank 0" in other
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize("ranks_", [1, 2])
def test_killed_before_any_operation_of_the_thread_the_old_or_the_new_generation_loads(tmp_path: Path, ranks_: int) -> None:
    trial = Trial(saves.save_alone, partial(beside.save_beside, tag="old", keep=1), saves.look, ranks_)
    outcomes = warm.call(killed, trial, tmp_path)
    for outcome in outcomes:
        assert outcome.seen.newest in ({OLD}, {NEW}), str(outcome)
        assert not any(end.hung for end in outcome.ends), str(outcome)
        assert outcome.operation is None or outcome.ends[outcome.point.rank].killed, str(outcome)
    assert {min(outcome.seen.newest) for outcome in outcomes} == {OLD, NEW}
    assert len(outcomes) > 13


def check_end(folder: Path, code: int, said: str) -> None:
    assert code == 0
    assert mark_of(load(folder)) == 5.0
    (line,) = said.splitlines()
    assert line.startswith(f"restoke: {folder / 'taken'} was not saved: tag='taken': something is there")


def test_a_process_ends_when_the_save_is_done_and_says_what_failed(tmp_path: Path) -> None:
    code = "import sys; from pathlib import Path; from tests.checkpoint import beside; beside.save_and_end(Path(sys.argv[1]))"
    command = [sys.executable, "-c", code, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, cwd=Path(__file__).parents[2])
    check_end(tmp_path, done.returncode, done.stderr)


def test_a_rank_leaves_when_the_save_is_done_and_says_what_failed(tmp_path: Path) -> None:
    (end,) = warm.call(in_forks, [partial(beside.save_and_leave, tmp_path)])
    check_end(tmp_path, end.code, (tmp_path / "said").read_text())


def test_what_was_raised_is_not_said_again_at_exit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a").mkdir()
    saver = Saver(ONE)
    saver.start(tmp_path, "a", filled(1.0), meta={})
    saver.join()
    background._tell()
    assert "was not saved" in capsys.readouterr().err
    with pytest.raises(CheckpointError, match="would be lost"):
        saver.wait()
    background._tell()
    assert capsys.readouterr().err == ""


def test_a_saver_that_is_dropped_still_saves(tmp_path: Path) -> None:
    with beside.held_back():
        Saver(ONE).start(tmp_path, "a", filled(4.0), meta={"mark": 4.0})
        gc.collect()
    background._LATEST[0].join()
    assert mark_of(load(tmp_path)) == 4.0


@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")  # the child only waits
def test_a_loader_that_was_forked_during_a_save_does_not_keep_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk, "PATIENCE", 0.1)
    waits, ends = os.pipe()
    with disk.sole_writer(tmp_path):
        child = os.fork()
        if not child:
            os.read(waits, 1)
            os._exit(0)
    try:
        with disk.sole_writer(tmp_path) as alone:
            assert alone
    finally:
        os.write(ends, b"x")
        os.waitpid(child, 0)
        os.close(waits)
        os.close(ends)


def test_a_snapshot_keeps_every_dtype_and_layout_and_its_memory() -> None:
    snapshot = Snapshot()
    tensors = {n: torch.randint(0, 2, (3, 32), dtype=torch.uint8).view(dtype) for n, dtype in DTYPES.items()}
    tensors |= {"transposed": torch.randn(5, 3).t(), "strided": torch.randn(9)[::2], "scalar": torch.tensor(3.0)}
    tensors |= {"conjugate": torch.randn(3, dtype=torch.complex64).conj(), "empty": torch.empty(0, 4)}
    tensors |= {"expanded": torch.randn(1, 3).expand(4, 3), "graph": torch.randn(3, requires_grad=True)}
    before = {key: bits(tensor) for key, tensor in tensors.items()}
    copies = snapshot.take(tensors)
    for key, tensor in tensors.items():
        if key not in ("expanded", "conjugate", "graph"):
            tensor.view(torch.uint8 if tensor.element_size() == 1 else tensor.dtype).zero_()
        assert (copies[key].dtype, copies[key].shape) == (tensor.dtype, tensor.shape)
        assert bits(copies[key]) == before[key], key
        assert not copies[key].requires_grad
    memory = snapshot._buffer.data_ptr()
    snapshot.take({"small": torch.ones(3)})
    assert snapshot._buffer.data_ptr() == memory
    assert snapshot.take({"large": torch.ones(10_000)})["large"].sum() == 10_000


def of_three(store: dist.Store) -> list[StoreMessages]:
    return [StoreMessages(store, "m", rank, 3) for rank in range(3)]


def test_messages_by_the_store_are_heard_by_all_and_leave_nothing() -> None:
    store, heard = dist.HashStore(), {}
    all_ = of_three(store)

    def talk(mine: StoreMessages, rank: int) -> None:
        heard[rank] = [mine.gather({"from": rank}, ONE), mine.broadcast([rank], ONE), mine.gather(rank, ONE)]
        mine.close()

    threads = [threading.Thread(target=talk, args=(mine, rank)) for rank, mine in enumerate(all_)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()
    assert heard == {rank: [[{"from": 0}, {"from": 1}, {"from": 2}], [0], [0, 1, 2]] for rank in range(3)}
    assert store.num_keys() > 12
    for mine in all_:
        mine.forget()
    assert store.num_keys() == 0


def test_rank_0_parts_last() -> None:
    first, second, third = of_three(dist.HashStore())
    parting = threading.Thread(target=first.close)
    parting.start()
    second.close()
    parting.join(0.3)
    assert parting.is_alive()
    third.close()
    parting.join(20)
    assert not parting.is_alive()


def test_a_store_that_is_gone_is_told() -> None:
    server = dist.TCPStore("127.0.0.1", 0, 1, is_master=True, wait_for_workers=False)
    client = dist.TCPStore("127.0.0.1", server.port, is_master=False)
    mine = StoreMessages(client, "m", 1, 2)
    del server
    gc.collect()
    with pytest.raises(CheckpointError, match="the job's store does not answer"):
        mine.gather(1, ONE)
    mine.close()


def test_a_rank_is_given_up_when_its_sign_has_been_the_same_for_too_long() -> None:
    watch = Watch()
    assert watch.silent({0: b"1", 1: b""}, 0.0) == []
    assert watch.silent({0: b"2", 1: b""}, messages.SILENCE) == []
    assert watch.silent({0: b"3", 1: b"", 2: b""}, messages.SILENCE + 1) == [1]
    assert watch.silent({0: b"3", 2: b""}, 3 * messages.SILENCE) == [0, 2]
