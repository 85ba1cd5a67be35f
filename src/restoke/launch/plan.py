"""From what was declared to a job: how many processes, started by what; or every reason why not, before anything starts."""

from __future__ import annotations

import importlib.util
import os
import pkgutil
from collections.abc import Mapping
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

import attrs

from restoke.errors import LaunchError, nearest
from restoke.facts import Facts
from restoke.launch.job import GRACE, LOGS, Job, Nodes, Target
from restoke.launch.machine import machine
from restoke.rows import Row
from restoke.spec import Spec
from restoke.table import check, row_of


def overlay(*mappings: Mapping[str, Any]) -> dict[str, Any]:
    """Partial specs as one, the later ones winning: settings field by field, everything else as a whole."""
    merged: dict[str, Any] = {}
    for mapping in mappings:
        settings, more = merged.get("settings"), mapping.get("settings")
        merged |= mapping
        if isinstance(settings, Mapping) and isinstance(more, Mapping):
            merged["settings"] = {**settings, **{key: {**(settings.get(key) or {}), **(more[key] or {})} for key in more}}
    return merged


def plan(
    target: Target,
    outside: Mapping[str, Any],
    *,
    nodes: Nodes | None = None,
    facade: str | None = None,
    logs: Path = LOGS,
    memory: bool = False,
    grace: float = GRACE,
) -> Job:
    """The job for a target under a partial spec.

    Raises:
        LaunchError: the script, module or facade is not there, the number of processes cannot be told, or there is no grace.
        SpecError: the spec cannot run here.
    """
    check_target(target)
    check_facade(facade)
    if not grace > 0:
        raise LaunchError.of("grace", grace, "ranks that save and leave need some time", "--grace SECONDS, more than 0")
    nodes = nodes or Nodes()
    spec, facts = place(outside, nodes)
    return Job(
        target=target,
        spec=spec,
        processes=facts.processes,
        agent=facts.launched,
        outside=outside,
        nodes=nodes,
        facade=facade,
        logs=logs,
        memory=memory,
        grace=grace,
    )


def place(outside: Mapping[str, Any], nodes: Nodes) -> tuple[Spec, Facts]:
    """The resolved spec, and the facts that it was judged by. Raises as `plan` does."""
    check_nodes(nodes)
    spec = Spec.of(outside, "what was declared")
    row = row_of(spec.strategy)
    wants_agent = nodes.count > 1 or (spec.processes or 0) > 1 or (row is not None and row.processes == "many" and row.usable())
    here = machine(spec.device, torch_comes=wants_agent)
    processes = count(spec, row, here, nodes)
    if processes % nodes.count:
        raise LaunchError.of("processes", processes, f"{nodes.count} nodes cannot share them evenly", "a multiple of --nodes")
    agent = wants_agent or processes > 1
    facts = attrs.evolve(here, processes=processes, per_node=processes // nodes.count, launched=agent)
    return check(spec, facts), facts


def count(spec: Spec, row: Row | None, here: Facts, nodes: Nodes) -> int:
    """The processes of the whole job: as declared, else one for each accelerator, never a silent 1 where many are meant."""
    if spec.processes is not None:
        return spec.processes
    found = here.accelerators * nodes.count
    if spec.strategy == "auto" and nodes.count == 1:
        return max(found, 1)
    if spec.strategy != "auto" and (row is None or row.processes == "one" or not row.usable()):
        return nodes.count  # enough for the table to say what is wrong, if anything is
    if found == 0:
        who = f"{spec.strategy} runs in several" if nodes.count == 1 else f"there are {nodes.count} nodes"
        raise LaunchError.of("processes", None, f"{who}, and there is no accelerator here to count", "--processes N")
    return found


def check_nodes(nodes: Nodes) -> None:
    """Raises LaunchError where the nodes could not find each other."""
    if nodes.count < 1:
        raise LaunchError.of("nodes", nodes.count, "a job runs on at least one", "--nodes 1 or more")
    if not 0 <= nodes.rank < nodes.count:
        raise LaunchError.of("node-rank", nodes.rank, f"there are {nodes.count} nodes", f"a number from 0 to {nodes.count - 1}")
    if nodes.count == 1 and nodes.endpoint:
        raise LaunchError.of(
            "rdzv-endpoint", nodes.endpoint, "one node has nobody to meet", "--nodes N as well, or leave it out"
        )
    host, _, port = nodes.endpoint.rpartition(":")
    if nodes.count > 1 and not (host and port.isdigit()):
        why = "the nodes must know where to meet"
        raise LaunchError.of("rdzv-endpoint", nodes.endpoint or None, why, "--rdzv-endpoint HOST:PORT of node 0")


def check_target(target: Target) -> None:
    """Raises LaunchError where there is nothing to run."""
    if target.is_module:
        top = target.name.partition(".")[0]
        if importlib.util.find_spec(top) is None and PathFinder.find_spec(top, [os.getcwd()]) is None:
            raise LaunchError.of("-m", target.name, f"there is no module {top!r}", "one that is installed or in this directory")
        return
    path = Path(target.name)
    try:
        path.stat()
    except FileNotFoundError:
        pass  # is told below
    except (OSError, ValueError) as error:
        why = f"it cannot be read ({error})"
        raise LaunchError.of("script", target.name, why, "the path of a Python script") from error
    if path.is_dir():
        raise LaunchError.of("script", target.name, "it is a directory", "the path of a Python script, or -m MODULE")
    if not path.is_file():
        beside = [other.name for other in path.parent.glob("*.py")]
        instead = nearest(path.name, beside) if beside else "the path of a Python script"
        raise LaunchError.of("script", target.name, "there is no such file", instead)


def check_facade(facade: str | None) -> None:
    """Raises LaunchError for a library whose name restoke cannot answer to."""
    import restoke.facades

    known = [module.name for module in pkgutil.iter_modules(restoke.facades.__path__)]
    if facade is not None and facade not in known:
        raise LaunchError.of("as", facade, "restoke has no face of this name", nearest(facade, known))
