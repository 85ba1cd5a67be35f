"""The command line as a whole. Commands are imported when they are called, so that help stays fast."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from cyclopts import App, CycloptsError

from restoke._version import __version__
from restoke.errors import RestokeError

REFUSED = 2
ALONE = ("--memory",)  # the flags of `launch` that have no value

app = App(
    "restoke",
    help="Declare what you want; keep your own PyTorch code; find out what it really does.",
    version=__version__,
    help_format="plaintext",  # anything else would import a Markdown parser
    result_action="return_value",
)
app.command(
    "restoke.cli.commands:launch",
    name="launch",
    help="Start a script under a declaration.",
    usage="restoke launch [FLAGS] script.py ARGS... | -m module ARGS...",
)
app.command("restoke.cli.commands:check", name="check", help="Say what a declaration means here, or why it cannot run.")

app.command(
    "restoke.cli.checkpoint:app",
    name="checkpoint",
    help="Look into checkpoints, check them, and write their weights for other programs.",
)


def run(tokens: Sequence[str]) -> int:
    """The exit code of a command line: 2, and a message, for what is refused."""
    try:
        return app(_script_apart(list(tokens)), exit_on_error=False, print_error=False) or 0
    except (CycloptsError, RestokeError) as error:
        sys.stderr.write(f"restoke: {str(error).strip()}\n")
        return REFUSED


def _script_apart(tokens: list[str]) -> list[str]:
    """A `--` before the script of `launch`: what follows it is the script's, whatever it looks like."""
    if tokens[:1] != ["launch"]:
        return tokens
    at = 1
    while at < len(tokens) and tokens[at].startswith("-") and tokens[at] not in ("-m", "--"):
        at += 1 if "=" in tokens[at] or tokens[at] in ALONE else 2
    if tokens[at : at + 1] == ["--"]:
        return tokens
    return [*tokens[:at], "--", *tokens[at:]]
