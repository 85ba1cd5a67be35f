"""`restoke checkpoint ...`: what it prints, its exit codes, and one message without a traceback for what cannot be."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from restoke.cli import main
from tests import ranks
from tests.checkpoint import on_ranks
from tests.checkpoint.states import save
from tests.checkpoint.weight_files import Tied, saved

FILE = "rank-00000-of-00001.safetensors"


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Exit code, stdout and stderr of `restoke checkpoint WORDS`."""

    def said(*words: object) -> tuple[int, str, str]:
        code = main(["checkpoint", *map(str, words)])
        out, err = capsys.readouterr()
        assert "Traceback" not in out + err
        return code, out, err

    return said


Said = Callable[..., tuple[int, str, str]]


@pytest.fixture
def three(tmp_path: Path) -> Path:
    for i, tag in enumerate("abc"):
        save(tmp_path / "runs", tag, float(i))
    return tmp_path / "runs"


def rows(out: str) -> list[list[str]]:
    return [line.split() for line in out.splitlines()]


def test_inspect_lists_the_checkpoints_and_tells_of_the_newest(said: Said, three: Path) -> None:
    (three / "a" / FILE).write_bytes(b"")
    code, out, err = said("inspect", three)
    assert (code, err) == (0, "")
    assert f"{three}: 3 checkpoints, newest first" in out
    table = [row for row in rows(out) if row[-1:] == ["complete"] or "damaged:" in row]
    assert [row[:2] for row in table] == [["*", "c"], ["b", "2"], ["a", "1"]]
    assert f"damaged: {FILE} has 0 of" in out
    assert ["model", "3", "18", "66", "B", "bfloat16,", "float32"] in rows(out)
    assert ["optimizer/step", "1", "1", "4", "B", "float32"] in rows(out)
    assert "model/weight" not in out


def test_inspect_lists_checkpoints_of_which_no_manifest_can_be_read(said: Said, three: Path) -> None:
    for tag in "abc":
        (three / tag / "manifest.json").unlink()
    code, out, _ = said("inspect", three)
    assert code == 0
    assert out.count("damaged: manifest.json is missing") == 3
    assert json.loads(said("inspect", three, "--json")[1])["checkpoint"] is None


def test_tensors_are_listed_in_columns_and_fast(said: Said) -> None:
    import time

    from restoke.cli.checkpoint_tables import aligned

    assert list(aligned([("a", "long", "x"), ("bcd", "s", "")])) == ["a    long  x\n", "bcd  s\n"]
    begin = time.process_time()
    assert sum(1 for _ in aligned([("", f"tensor {i}", "4 x 4") for i in range(100_000)])) == 100_000
    assert time.process_time() - begin < 5


def test_inspect_tells_more_or_less_of_another_one(said: Said, three: Path) -> None:
    out = said("inspect", three, "--detail", "list")[1]
    assert "optimizer/step" not in out
    out = said("inspect", three, "--tag", "a", "--detail", "tensors", "--match", "model/*")[1]
    assert ["*", "a"] in [row[:2] for row in rows(out)]
    assert ["model/weight", "5", "x", "3", "float32", "60", "B", "1:", "of", "rank", "0"] in rows(out)
    assert "optimizer/" not in out


def test_inspect_tells_which_rank_wrote_which_chunk(said: Said, tmp_path: Path) -> None:
    ranks.run(2, on_ranks.save, tmp_path / "r", "a", 1.0)
    out = said("inspect", tmp_path / "r", "--detail", "chunks", "--match", "model/w")[1]
    assert ["4", "x", "4", "rank", "0", "from", "the", "start"] in rows(out)
    assert ["3", "x", "4", "rank", "1", "from", "4,", "0"] in rows(out)


def test_inspect_as_json_has_these_fields(said: Said, three: Path) -> None:
    code, out, _ = said("inspect", three, "--json", "--detail", "chunks")
    told = json.loads(out)
    assert code == 0
    assert list(told) == ["format", "folder", "checkpoints", "checkpoint"]
    assert (told["format"], told["folder"]) == (1, str(three))
    row = ["tag", "generation", "created", "world_size", "steps", "bytes", "fault"]
    assert [list(item) for item in told["checkpoints"]] == [row] * 3
    assert [item["tag"] for item in told["checkpoints"]] == ["c", "b", "a"]
    one = told["checkpoint"]
    assert list(one) == [*row, "meta", "optimizer", "kinds", "tensors"]
    assert one["kinds"]["model"] == {"tensors": 3, "bytes": 66}
    chunk = {"rank": 0, "offsets": [0, 0], "shape": [5, 3]}
    assert one["tensors"]["model/weight"] == {"shape": [5, 3], "dtype": "float32", "bytes": 60, "chunks": [chunk]}
    assert "tensors" not in json.loads(said("inspect", three, "--json")[1])["checkpoint"]
    assert "checkpoint" not in json.loads(said("inspect", three, "--json", "--detail", "list")[1])


def test_inspect_reads_files_of_weights_too(said: Said, tmp_path: Path) -> None:
    torch.save({"module." + name: tensor for name, tensor in Tied().state_dict().items()}, tmp_path / "x.pt")
    code, out, _ = said("inspect", tmp_path / "x.pt", "--match", "*e*.weight")
    assert code == 0
    assert "'module.' (of a wrapper such as DDP) was removed" in out
    assert ["embed.weight", "20", "x", "6", "float32", "480", "B"] in rows(out)
    assert ["head.weight", "is", "embed.weight"] in rows(out)
    told = json.loads(said("inspect", tmp_path, "--json", "--match", "norm.*")[1])
    assert list(told) == ["format", "file", "notes", "aliases", "tensors"]
    assert told["tensors"]["norm.bias"] == {"shape": [6], "dtype": "float32", "bytes": 24}
    assert told["aliases"] == {}


def test_names_that_look_like_markup_are_printed_as_they_are(said: Said, tmp_path: Path) -> None:
    save(tmp_path, "[red]", 1.0)
    for command in (["inspect", tmp_path, "--detail", "tensors"], ["verify", tmp_path]):
        assert "[red]" in said(*command)[1]


def test_verify_says_good_of_each_and_exits_with_0(said: Said, three: Path) -> None:
    code, out, err = said("verify", three)
    assert (code, err) == (0, "")
    assert [line.split(" (")[0] for line in out.splitlines()] == ["c: good", "b: good", "a: good"]


def test_verify_names_the_damaged_file_and_exits_with_1(said: Said, three: Path) -> None:
    data = bytearray((three / "b" / FILE).read_bytes())
    data[-1] ^= 1
    (three / "b" / FILE).write_bytes(data)
    (three / ".tmp-1").mkdir()
    code, out, _ = said("verify", three)
    assert code == 1
    assert f"b: DAMAGED: {FILE} does not match its checksum" in out
    assert ".tmp-1: a save is at work there, or died at it" in out
    assert said("verify", three, "--tag", "a")[0] == 0
    code, out, _ = said("verify", three, "--json")
    told = json.loads(out)
    assert code == 1
    assert list(told) == ["format", "folder", "good", "checkpoints", "unfinished"]
    assert (told["good"], told["unfinished"]) == (False, [".tmp-1"])
    bad = {"tag": "b", "generation": 2, "files": 1, "bytes": len(data), "good": False}
    assert told["checkpoints"][1] == bad | {"faults": [f"{FILE} does not match its checksum"]}
    assert [item["good"] for item in told["checkpoints"]] == [True, False, True]


def test_export_writes_the_weights_and_says_where(said: Said, tmp_path: Path) -> None:
    model = Tied()
    saved(tmp_path / "runs", model)
    code, out, err = said("export", tmp_path / "runs", tmp_path / "out", "--dtype", "bfloat16", "--shard-size", "500B")
    assert (code, err) == (0, "")
    assert out.startswith("28 tensors, 1.22 KB, in 4 files")
    assert [line.strip() for line in out.splitlines()[1:]] == sorted(map(str, (tmp_path / "out").iterdir()))
    for word in ("--tied", "--force"):
        code, out, _ = said("export", tmp_path / "runs", tmp_path / f"{word}.safetensors", word, "--json")
        told = json.loads(out)
        assert list(told) == ["format", "files", "tensors", "bytes", "notes"]
        assert ("head.weight" in load_file(told["files"][0])) == (word == "--tied")


def test_notes_of_an_export_are_said_on_stderr(said: Said, tmp_path: Path) -> None:
    torch.save({"model": {"w": torch.ones(1)}}, tmp_path / "x.pt")
    code, out, err = said("export", tmp_path / "x.pt", tmp_path / "x.safetensors", "--json")
    assert code == 0
    assert err.startswith("restoke: the weights are taken from 'model'")
    assert json.loads(out)["notes"] == [err.removeprefix("restoke: ").strip()]


def made(tmp_path: Path) -> dict[str, Path]:
    save(tmp_path / "runs", "a", 1.0)
    (tmp_path / "empty").mkdir()
    (tmp_path / "text").write_text("text")
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign/notes.txt").touch()
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken/model.safetensors").write_bytes(b"broken")
    save_file({"w": torch.ones(1)}, tmp_path / "w.safetensors")
    return {path.name: path for path in tmp_path.iterdir()} | {"out": tmp_path / "out", "nowhere": tmp_path / "nowhere"}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("inspect nowhere", "there is no such folder"),
        ("inspect empty", "it is empty"),
        ("inspect text", "it is no whole safetensors file"),
        ("inspect foreign", "it holds no checkpoint of restoke, but notes.txt"),
        ("inspect broken", "it is no whole safetensors file"),
        ("inspect runs --tag b", "has no such checkpoint"),
        ("inspect runs --detail all", "--detail"),
        ("inspect runs --depth 3", "--depth"),
        ("inspect", "PATH requires an argument"),
        ("inspect runs text", "text"),
        ("verify nowhere", "there is no such folder"),
        ("verify empty", "it is empty"),
        ("verify text", "it is a single file"),
        ("verify w.safetensors", "it is a single file"),
        ("verify runs --tag ../runs", "tag='../runs'"),
        ("export runs", "OUT requires an argument"),
        ("export nowhere out", "there is no such file"),
        ("export empty out", "it holds no file of weights"),
        ("export broken out", "it is no whole safetensors file"),
        ("export runs text", "it is a file"),
        ("export runs w.safetensors", "w.safetensors is there already. Instead: another place, or --force"),
        ("export runs runs/a", "it is a checkpoint of restoke"),
        ("export runs out --dtype int4", "weights are not cast to it"),
        ("export runs out --shard-size big", "it is no size in bytes"),
        ("export runs out --ema", "a has no averaged weights"),
        ("export runs out --tag b", "has no such checkpoint"),
        ("export w.safetensors out --tag a", "is no checkpoint of restoke"),
        ("exprt runs out", 'Did you mean "export"?'),
    ],
)
def test_what_cannot_be_is_refused_in_one_message(said: Said, tmp_path: Path, words: str, message: str) -> None:
    places = made(tmp_path)
    code, out, err = said(
        *(places.get(word, tmp_path / word if "/" in word and ".." not in word else word) for word in words.split())
    )
    assert (code, out) == (2, "")
    assert err.startswith("restoke: ")
    assert message in err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("command", ["inspect", "verify", "export"])
@pytest.mark.parametrize("path", ["x" * 5000, "", "\n", "/dev/null", "/proc/self/mem"])
def test_odd_paths_are_refused(said: Said, tmp_path: Path, command: str, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    more = ["out"] if command == "export" else []
    code, out, err = said(command, path, *more)
    assert (code, out) == (2, "")
    assert err.startswith("restoke: ")


@pytest.mark.parametrize("text", ["--help", "inspect --help", "inspect PATH", "inspect PATH --json --detail chunks"])
def test_a_folder_is_inspected_without_torch(three: Path, text: str) -> None:
    words = ["checkpoint", *(str(three) if word == "PATH" else word for word in text.split())]
    code = f"import os, sys; from restoke.cli import main; os._exit(main({words}) * 10 + ('torch' in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], stdout=subprocess.DEVNULL, timeout=60, check=False).returncode == 0


@pytest.mark.parametrize("words", [[], ["inspect"], ["verify"], ["export"]])
def test_help_is_there_for_each(said: Said, words: list[str]) -> None:
    code, out, err = said(*words, "--help")
    assert (code, err) == (0, "")
    assert "Usage: restoke checkpoint" in out


def test_a_hostile_manifest_is_shown_or_refused_without_a_traceback(said: Said, three: Path) -> None:
    from attrs import evolve

    from restoke.checkpoint.manifest import NAME, dump, parse, read_body

    manifest = parse(read_body(three / "c"))
    odd: list[Any] = [
        None,
        3,
        [],
        {"steps": {"a": "[bold]"}, "x\x1b[31m": 1},
        {"$tuple": 3},
        {"optimizer": {"groups": [{"params": []}]}},
    ]
    for value in odd:
        (three / "c" / NAME).write_bytes(dump(evolve(manifest, meta=value, values=value)))
        for words in (["inspect", three], ["inspect", three, "--json"], ["verify", three]):
            code, out, _ = said(*words)
            assert code in (0, 1)
            assert "\x1b" not in out
