"""`restoke checkpoint inspect`: a folder of checkpoints from its manifests alone, or a file of weights from its header."""

from __future__ import annotations

import sys
from pathlib import Path

from restoke.checkpoint.overview import overviews
from restoke.checkpoint.places import holds_checkpoints, placed
from restoke.cli import checkpoint_json, checkpoint_tables


def run(path: Path, tag: str | None, detail: str, match: str, json: bool) -> int:
    """Print it, as tables or as JSON."""
    if tag is None and _is_plain(path):
        _weights(path, match, json)
        return 0
    folder, found, chosen = overviews(path, tag)
    if json:
        sys.stdout.write(checkpoint_json.inspected(folder, found, chosen, detail, match))
    else:
        checkpoint_tables.show(folder, found, chosen, detail, match)
    return 0


def _is_plain(path: Path) -> bool:
    """Whether it holds weights, but no checkpoint of restoke."""
    folder, _ = placed(path, None)
    if holds_checkpoints(folder):
        return False
    from restoke.checkpoint.weights_index import holds_weights

    return holds_weights(path)


def _weights(path: Path, match: str, json: bool) -> None:
    from restoke.checkpoint.weights import open_weights

    weights = open_weights(path)
    if json:
        sys.stdout.write(checkpoint_json.weighed(weights, match))
    else:
        checkpoint_tables.show_weights(weights, match)
