"""The commands: what each takes from its command line, and which part of restoke answers."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import attrs
from cyclopts import Group, Parameter

from restoke.cli.flags import Flags, declared
from restoke.launch.job import GRACE, LOGS, Nodes, Target
from restoke.spec import Spec, outside_spec, read_mapping

WHAT = Group("What to run", sort_key=1)
WHERE = Group("Where to run", sort_key=2)


def _option(name: str, help_: str, group: Group = WHERE, **more: Any) -> Parameter:
    return Parameter(name=name, help=help_, group=group, **more)


SpecFile = Annotated[Path | None, _option("--spec", "A YAML file of settings; flags win over it.", WHAT)]
Assignments = Annotated[
    list[str] | None,
    _option(
        "--set",
        "A setting: KEY.FIELD=VALUE, as in ddp.bucket_cap_mb=50; repeatable.",
        WHAT,
        negative=(),
    ),
]
Axes = Annotated[Flags, Parameter(name="*")]  # type: ignore[valid-type] # a class made of Spec's fields
Count = Annotated[int, _option("--nodes", "Machines; start the same command on each.")]
NodeRank = Annotated[int, _option("--node-rank", "Which of them this is, from 0.")]
Endpoint = Annotated[str, _option("--rdzv-endpoint", "HOST:PORT of node 0, where they meet.", show_default=False)]
LogDir = Annotated[Path, _option("--log-dir", "Every rank's output goes to a new folder here; the last ten are kept.")]
Grace = Annotated[float, _option("--grace", "Seconds for ranks that save and leave (session.resume), after a signal.")]
As = Annotated[str | None, _option("--as", "Stand in for this library: a script that says `import stoke` runs as it is.", WHAT)]
Memory = Annotated[bool, _option("--memory", "Measure memory by class, and show it at the end.", WHAT, negative=())]
Words = Annotated[str, Parameter(name="SCRIPT", help="script.py ARGS..., or -m module ARGS...")]

UNTOUCHED = Flags()


def launch(
    *words: Words,
    flags: Axes = UNTOUCHED,
    spec: SpecFile = None,
    assignments: Assignments = None,
    facade: As = None,
    nodes: Count = 1,
    node_rank: NodeRank = 0,
    rdzv_endpoint: Endpoint = "",
    log_dir: LogDir = LOGS,
    memory: Memory = False,
    grace: Grace = GRACE,
) -> int:
    """Start a script under a declaration: one process, or torchrun's agent with several.

    What follows the script is the script's own, even where it looks like a flag of restoke.
    """
    from restoke.launch.local import start
    from restoke.launch.plan import plan

    where = Nodes(count=nodes, rank=node_rank, endpoint=rdzv_endpoint)
    outside = _outside(spec, flags, assignments)
    return start(plan(_target(words), outside, nodes=where, facade=facade, logs=log_dir, memory=memory, grace=grace))


def check(*, flags: Axes = UNTOUCHED, spec: SpecFile = None, assignments: Assignments = None) -> int:
    """Print what a declaration means on this machine, or every reason why it cannot run here. Starts nothing."""
    import yaml

    from restoke.launch.plan import place

    resolved, facts = place(_outside(spec, flags, assignments), Nodes())
    plain = {axis.name: getattr(resolved, axis.name) for axis in attrs.fields(Spec)}
    shown = plain | {"clip": None, "settings": {}} | resolved.declared() | {"processes": facts.processes}
    sys.stdout.write(yaml.safe_dump(shown, sort_keys=False))
    return 0


def _outside(file: Path | None, flags: Any, assignments: Sequence[str] | None) -> Mapping[str, Any]:
    """Flags win over the environment, and that over the file; each is checked by itself, so that an error names its place."""
    from restoke.launch.plan import overlay

    from_file = {} if file is None else read_mapping(file)
    Spec.of(from_file, str(file))
    return overlay(from_file, outside_spec(), declared(flags, assignments or ()))


def _target(words: Sequence[str]) -> Target:
    from restoke.errors import LaunchError

    is_module = words[:1] == ("-m",)
    name, *arguments = words[is_module:] or ("",)
    if not name:
        what = "a module" if is_module else "a script"
        raise LaunchError.of("script", None, f"{what} to run is missing", "restoke launch [FLAGS] script.py, or -m module")
    return Target(name, tuple(arguments), is_module)
