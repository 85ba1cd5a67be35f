"""Checkpoints as tables on a terminal."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape as markup
from rich.table import Table

from restoke.checkpoint.manifest import TensorEntry
from restoke.checkpoint.overview import Overview, aliases_of, by_kind, listed, matching, size_of
from restoke.checkpoint.sizes import shown_size
from restoke.checkpoint.tiling import Box

if TYPE_CHECKING:
    from restoke.checkpoint.weights import Weights

WIDE = 240  # columns where the output is no terminal: a line is a row then, which other programs can search


def console() -> Console:
    out = Console(highlight=False, soft_wrap=False)
    return out if out.is_terminal else Console(highlight=False, width=WIDE)


def clean(text: str) -> str:
    """The text without what a terminal would obey."""
    return "".join(sign if sign.isprintable() else "\N{REPLACEMENT CHARACTER}" for sign in text)


def escape(text: str) -> str:
    """The text as it is, for rich: no markup, and nothing that a terminal would obey."""
    return markup(clean(text))


def show(folder: Path, found: Sequence[Overview], chosen: Overview | None, detail: str, match: str) -> None:
    """Print the checkpoints, and one of them as far as `detail` says."""
    out = console()
    many = "1 checkpoint" if len(found) == 1 else f"{len(found)} checkpoints, newest first"
    out.print(f"{escape(str(folder))}: {many}")
    out.print(_generations(found, chosen))
    if detail == "list" or chosen is None or chosen.manifest is None:
        return
    tensors = matching(chosen.manifest, match)
    for line in _summary(chosen):
        out.print(line)
    out.print(_kinds(tensors))
    if detail != "summary":
        sys.stdout.writelines(aligned(_tensors(tensors, detail == "chunks")))


def show_weights(weights: Weights, match: str) -> None:
    """Print the tensors of files of weights."""
    out = console()
    found = listed(weights, match)
    elements = sum(math.prod(item.shape) for item in found)
    total = f"{len(found)} tensors, {elements:,} elements, {shown_size(sum(item.bytes for item in found))}"
    out.print(f"{escape(str(weights.path))}: {total}")
    for note in weights.notes:
        out.print(escape(note))
    rows = [(clean(item.name), _shape(item.shape), item.dtype, shown_size(item.bytes)) for item in found]
    tied = [(clean(alias), clean(f"is {owner}"), "", "") for alias, owner in aliases_of(weights, match).items()]
    sys.stdout.writelines(aligned([("tensor", "shape", "dtype", "size"), *rows, *tied]))


def aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Lines with the rows' cells below each other. There may be a hundred thousand, for which rich would take minutes."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() + "\n"


def _table(*columns: str, right: Sequence[str] = ()) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in columns:
        table.add_column(name, justify="right" if name in right else "left", overflow="fold", no_wrap=name in right)
    return table


def _generations(found: Sequence[Overview], chosen: Overview | None) -> Table:
    table = _table(
        "", "tag", "generation", "saved", "ranks", "steps", "size", "state", right=("generation", "ranks", "steps", "size")
    )
    for item in found:
        mark, manifest = ("*" if item is chosen else ""), item.manifest
        state = f"[red]damaged: {escape(item.fault)}[/red]" if item.fault else "complete"
        if manifest is None:
            table.add_row(mark, escape(item.tag), "", "", "", "", "", state)
            continue
        cells = (manifest.created[:19].replace("T", " "), str(manifest.world_size), str(item.meta.get("steps", "")))
        table.add_row(mark, escape(item.tag), str(manifest.generation), *cells, shown_size(manifest.bytes), state)
    return table


def _summary(item: Overview) -> list[str]:
    lines = ["", f"[bold]{escape(item.tag)}[/bold]"]
    lines += [escape(f"{name}: {_words(value)}") for name, value in item.meta.items()]
    if item.optimizer is not None:
        groups = item.optimizer["groups"]
        lines.append(escape(f"optimizer: {item.optimizer['class']}, {len(groups)} group{'s' if len(groups) != 1 else ''}"))
        lines += [escape(f"  {number}: {_group(group)}") for number, group in enumerate(groups)]
    return [*lines, ""]


def _words(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name}={inner}" for name, inner in value.items()) or "nothing"
    return str(value)


def _group(group: Mapping[str, Any]) -> str:
    options = {name: value for name, value in group.items() if name != "params" and value not in (None, False)}
    return f"{len(group['params'])} parameters, {_words(options)}"


def _kinds(tensors: Mapping[str, TensorEntry]) -> Table:
    table = _table("kind", "tensors", "elements", "size", "dtypes", right=("tensors", "elements", "size"))
    kinds = by_kind(tensors)
    for kind, entries in kinds.items():
        table.add_row(escape(kind), *_counts(entries), ", ".join(sorted({entry.dtype for entry in entries})))
    table.add_row("total", *_counts(list(tensors.values())), "")
    return table


def _counts(entries: Sequence[TensorEntry]) -> tuple[str, str, str]:
    elements = sum(math.prod(entry.shape) for entry in entries)
    return str(len(entries)), f"{elements:,}", shown_size(sum(map(size_of, entries)))


def _tensors(tensors: Mapping[str, TensorEntry], chunks: bool) -> list[Sequence[str]]:
    rows: list[Sequence[str]] = [("", "tensor", "shape", "dtype", "size", "chunks")]
    for key, entry in tensors.items():
        ranks = ", ".join(str(piece.rank) for piece in entry.pieces[:8]) + (", ..." if len(entry.pieces) > 8 else "")
        told = f"{len(entry.pieces)}: of rank {ranks}" if entry.pieces else "0"
        rows.append(("", clean(key), _shape(entry.shape), entry.dtype, shown_size(size_of(entry)), told))
        pieces = entry.pieces if chunks else ()
        rows += [("", "", _shape(piece.box.shape), "", "", f"rank {piece.rank} {_place(piece.box)}") for piece in pieces]
    return rows


def _shape(shape: Sequence[int]) -> str:
    return " x ".join(map(str, shape)) or "scalar"


def _place(box: Box) -> str:
    return f"from {', '.join(map(str, box.offsets))}" if any(box.offsets) else "from the start"
