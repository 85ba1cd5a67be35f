"""The commands on checkpoints: what each takes from its command line. Their work is imported when they are called."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, Parameter

app = App(
    "checkpoint",
    help="Look into checkpoints, check them, and write their weights for other programs.",
    help_format="plaintext",
    result_action="return_value",
    version_flags=(),
)
Where = Annotated[Path, Parameter(name="PATH", help="The folder that was saved into, or one checkpoint in it.")]
Weighty = Annotated[
    Path, Parameter(name="PATH", help="The folder that was saved into, one checkpoint in it, or a file of weights.")
]
Tag = Annotated[str | None, Parameter(name="--tag", help="One checkpoint of the folder; else the newest.")]
One = Annotated[str | None, Parameter(name="--tag", help="One checkpoint of the folder; else each of them.")]
Json = Annotated[bool, Parameter(name="--json", help="Print JSON, for programs.", negative=())]


@app.command
def inspect(
    path: Weighty,
    /,
    *,
    tag: Tag = None,
    detail: Annotated[
        Literal["list", "summary", "tensors", "chunks"],
        Parameter(help="The checkpoints alone; and one's summary; and its tensors; and which rank wrote which chunk."),
    ] = "summary",
    match: Annotated[str, Parameter(help="The tensors whose key this pattern fits, as in 'model/*.weight'.")] = "*",
    json: Json = False,
) -> int:
    """Say what is in a folder of checkpoints. Reads no tensors, and takes no checksums of them."""
    from restoke.checkpoint.places import readable
    from restoke.cli.checkpoint_inspect import run

    with readable(path):
        return run(path, tag, detail, match, json)


@app.command
def verify(path: Where, /, *, tag: One = None, json: Json = False) -> int:
    """Read every byte and compare every checksum. Exit code 1 where something is damaged, and its file is named."""
    from restoke.checkpoint.places import readable
    from restoke.cli.checkpoint_verify import run

    with readable(path):
        return run(path, tag, json)


@app.command
def export(
    path: Weighty,
    out: Annotated[Path, Parameter(name="OUT", help="A folder for model.safetensors, or a file that ends so.")],
    /,
    *,
    tag: Tag = None,
    shard_size: Annotated[str | None, Parameter(help="The most bytes in one file, such as 5GB: shards with an index.")] = None,
    dtype: Annotated[str | None, Parameter(help="Cast floating-point weights: bfloat16, float16, float32, float64.")] = None,
    ema: Annotated[bool, Parameter(help="The averaged weights.", negative=())] = False,
    tied: Annotated[bool, Parameter(help="Write tied tensors under each of their names, not once.", negative=())] = False,
    force: Annotated[bool, Parameter(help="Replace an export that is there.", negative=())] = False,
    json: Json = False,
) -> int:
    """Write the weights as safetensors, under the model's own names."""
    from restoke.cli.checkpoint_export import run

    return run(path, out, json, tag=tag, shard_size=shard_size, dtype=dtype, ema=ema, tied=tied, force=force)
