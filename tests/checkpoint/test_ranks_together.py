"""Several real ranks save and load one checkpoint, and fail together."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path

import pytest
from safetensors import safe_open

from restoke.checkpoint.manifest import parse, read_body
from tests import ranks
from tests.checkpoint import on_ranks
from tests.checkpoint.on_ranks import COLUMNS, WHOLE, Full, rows_of
from tests.checkpoint.states import files_of, load


@pytest.mark.parametrize("size", [1, 2, 3])
def test_each_rank_reads_back_its_rows_and_the_values_of_rank_0(tmp_path: Path, size: int) -> None:
    ranks.run(size, on_ranks.save, tmp_path, "a", 1.0)
    for rank, seen in enumerate(ranks.run(size, on_ranks.load, tmp_path)):
        start, count = rows_of(rank, size)
        assert seen["rows"] == (WHOLE + 1)[start : start + count].tolist()
        assert seen["whole"] == (WHOLE + 1).tolist()
        assert seen["columns"] == (WHOLE + 1)[2:6, 1:3].tolist()
        assert (seen["b"], seen["extras"]) == ([1.0] * 6, {"from": 0, "mark": 1.0})
        assert seen["own"] == [[f"rank {other}", [other + 1.0] * 3] for other in range(size)]
        assert (seen["tag"], seen["notes"], seen["first"]) == ("a", [], [0.0])


@pytest.mark.parametrize("sizes", [(2, 1, 2), (1, 2, 3), (3, 2, 1)])
def test_a_state_goes_through_other_world_sizes_unchanged(tmp_path: Path, sizes: tuple[int, ...]) -> None:
    ranks.run(sizes[0], on_ranks.save, tmp_path / "0", "a", 5.0)
    for step, size in enumerate(sizes[1:]):
        ranks.run(size, on_ranks.resave, tmp_path / str(step), tmp_path / str(step + 1))
    saved = load(tmp_path / str(len(sizes) - 1))
    assert saved.read("model/w").equal(WHOLE + 5)
    assert saved.read("optimizer/w/step").item() == 5.0
    assert saved.values["extras"] == {"from": 0, "mark": 5.0}
    assert saved.world_size == sizes[-1]


def test_copies_are_written_once_and_the_bytes_are_shared_out(tmp_path: Path) -> None:
    (path, _) = ranks.run(2, on_ranks.save, tmp_path, "a")
    manifest = parse(read_body(path))
    held = []
    for rank in range(2):
        with safe_open(path / f"rank-{rank:05d}-of-00002.safetensors", "pt") as file:
            held.append(set(file.keys()))
    written = Counter(key for keys in held for key in keys)
    assert written["model/w"] == 2
    assert all(count == 1 for key, count in written.items() if key != "model/w")
    loads = [sum(box.volume for box in manifest.keys_of(rank).values()) for rank in range(2)]
    assert loads[0] == 40 + 4 * COLUMNS + 3  # the values of rank 0, its rows, its own; so that the copies go to ...
    assert loads[1] == 3 * COLUMNS + 3 + 6 + 5 + 1  # ... rank 1


def test_the_ranks_share_the_work_of_verifying(tmp_path: Path) -> None:
    ranks.run(3, on_ranks.save, tmp_path, "a")
    assert ranks.run(2, on_ranks.files_verified, tmp_path) == [[0, 2], [1]]


DATA, MAIN = ".safetensors", "manifest.json"
FULL = [Full(who, operation, DATA) for who in ([1], [0], [0, 1]) for operation in ("create", "write", "sync")]
FULL += [Full([0], operation, MAIN) for operation in ("create", "write", "sync")]
FULL += [Full([0], "rename", "/a", once=True), Full([0], "rename", "/.old-a")]


@pytest.fixture(scope="module")
def refused(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[list[str]]]:
    """Every case of a full disk, each over a good checkpoint of mark 1: the folders, and what the ranks said."""
    folder = tmp_path_factory.mktemp("full")
    ranks.run(2, on_ranks.save, folder / "0", "a", 1.0)
    for i in range(1, len(FULL) + 1):
        shutil.copytree(folder / "0", folder / str(i))
    return folder, ranks.run(2, on_ranks.save_without_room, folder, FULL)


@pytest.mark.parametrize("i", range(len(FULL)), ids=map(str, FULL))
def test_a_full_disk_is_one_message_on_all_ranks_and_the_old_state_loads(refused: tuple[Path, list[list[str]]], i: int) -> None:
    folder, (one, other) = refused
    assert one[i] == other[i]
    assert "No space left on device" in one[i]
    assert "free some space; what was saved before is untouched" in one[i]
    assert [f"rank {rank}: " in one[i] for rank in range(2)] == [FULL[i].ranks == [rank] for rank in range(2)]
    assert files_of(folder / str(i) / "a") == files_of(folder / str(len(FULL)) / "a")
    assert {path.name for path in (folder / str(i)).iterdir()} == {"a", ".lock"}
    assert load(folder / str(i)).meta["mark"] == 1.0


def test_where_the_old_state_cannot_even_be_moved_back_it_loads_from_where_it_is(tmp_path: Path) -> None:
    ranks.run(2, on_ranks.save, tmp_path / "0", "a", 1.0)
    (one, _) = ranks.run(2, on_ranks.save_without_room, tmp_path, [Full([0], "rename", "/a", once=False)])
    assert "rank 0: No space left on device" in one[0]
    assert not (tmp_path / "0" / "a").exists()
    assert load(tmp_path / "0").tag == "a"
    assert load(tmp_path / "0", "a").meta["mark"] == 1.0


def test_what_one_rank_cannot_save_is_refused_on_all(tmp_path: Path) -> None:
    one, other = ranks.run(2, on_ranks.save_what_one_rank_cannot, tmp_path / "run")
    assert one == other
    assert one.startswith("bad.fn=")
    assert "rank 1: a builtins.builtin_function_or_method is no plain value" in one
    assert not (tmp_path / "run").exists()


def test_ranks_that_disagree_on_the_tag_are_refused(tmp_path: Path) -> None:
    one, other = ranks.run(2, on_ranks.save_under_two_tags, tmp_path / "run")
    assert one == other
    assert "the ranks disagree" in one


def test_a_folder_that_the_ranks_do_not_share_is_named(tmp_path: Path) -> None:
    one, other = ranks.run(2, on_ranks.save_in_two_folders, tmp_path)
    assert one == other
    assert "rank 1: No such file or directory" in one
    assert "choose a folder that all ranks share" in one


def test_ranks_that_see_different_checkpoints_are_refused(tmp_path: Path) -> None:
    for rank in range(2):
        ranks.run(1, on_ranks.save, tmp_path / str(rank), "a", float(rank))
    one, other = ranks.run(2, on_ranks.load_from_two_folders, tmp_path)
    assert "rank 1 sees another one than rank 0: the folder is not shared" in one
    assert one.replace("/0'", "/1'") == other


def test_a_damaged_file_is_refused_on_all_ranks_and_without_a_tag_the_older_is_loaded(tmp_path: Path) -> None:
    for mark in (1.0, 2.0):
        ranks.run(2, on_ranks.save, tmp_path, f"step-{mark:.0f}", mark)
    bad = tmp_path / "step-2" / "rank-00001-of-00002.safetensors"
    bad.write_bytes(bad.read_bytes()[:-4] + b"\0\0\0\1")
    one, other = ranks.run(2, on_ranks.load_refused, tmp_path, "step-2")
    assert one == other
    assert "rank-00001-of-00002.safetensors does not match its checksum" in one
    for seen in ranks.run(2, on_ranks.load, tmp_path):
        assert seen["extras"]["mark"] == 1.0
        (note,) = seen["notes"]
        assert note.startswith("loaded step-1, the newest checkpoint that can be: step-2 cannot (rank-00001")


def test_a_missing_checkpoint_is_refused_on_all_ranks(tmp_path: Path) -> None:
    one, other = ranks.run(2, on_ranks.load_refused, tmp_path)
    assert one == other
    assert "it is empty" in one
