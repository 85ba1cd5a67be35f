"""The rules of the architecture, each a function from a source tree to the places that break it."""

from __future__ import annotations

import ast
import statistics
from collections.abc import Collection, Iterator
from functools import cached_property
from pathlib import Path
from typing import Protocol, cast

from attrs import define, frozen

LAYERS: tuple[tuple[str, ...], ...] = (
    tuple("_version errors said stopped spec held prepared table rows rules rules_passes facts plugins ranks configs".split()),
    ("comm", "world", "optim", "seeds", "settle", "meshes", "distributed"),
    tuple(
        "parts steppers state optimizer_state sharding shardable sparse empty precision passes nn blocks replicas ema packed"
        " averaging clipping mixing".split()
    ),
    ("strategies",),
    (
        "session",
        "session_loaders",
        "session_state",
        "undoing",
        "whole",
        "filling",
        "verbs",
        "windows",
        "data",
        "checkpoint",
        "stopping",
        "memory",
    ),
    ("launch", "playground", "facades", "testing", "trackers"),
    ("cli", "__main__"),
)
LAYER = {name: number for number, names in enumerate(LAYERS) for name in names}
ENGINES = {"deepspeed", "fairscale", "horovod", "apex", "torch_xla"}
VAGUE_NAMES = {"util", "utils", "helper", "helpers", "manager", "managers", "base", "common", "misc"}
MAX_FILE, MAX_MEDIAN, MAX_BODY, USUAL_BODY, MAX_DOCSTRINGS = 300, 120, 60, 40, 0.25
Function = ast.FunctionDef | ast.AsyncFunctionDef
Documented = ast.Module | ast.ClassDef | Function


@frozen
class Import:
    """`target` is a module's dotted name, as far as the tree knows it."""

    target: str
    line: int
    for_types: bool = False  # under `if TYPE_CHECKING:`, so never run


@define
class Module:
    """One file of the tree, by its dotted name."""

    name: str
    path: Path
    tree: ast.Module
    text: str

    @property
    def part(self) -> str:
        """What the layers are made of: `data` for `restoke.data.sampler`, and nothing for the package itself."""
        return self.name.split(".")[1] if "." in self.name else ""

    def at(self, line: int, what: str) -> str:
        return f"{self.name}:{line}: {what}"


@define(slots=False)
class Tree:
    """A package's source."""

    root: Path

    @cached_property
    def modules(self) -> dict[str, Module]:
        return {module.name: module for module in map(self._read, sorted(self.root.rglob("*.py")))}

    def _read(self, path: Path) -> Module:
        parts = path.relative_to(self.root.parent).with_suffix("").parts
        text = path.read_text(encoding="utf-8")
        return Module(".".join(parts).removesuffix(".__init__"), path, ast.parse(text), text)

    def imports(self, module: Module) -> Iterator[Import]:
        """Everything it imports anywhere: at the top, inside functions, and through `import_module("...")`."""
        for_types = {id(node) for guard in ast.walk(module.tree) if _is_type_guard(guard) for node in ast.walk(guard)}
        for node in ast.walk(module.tree):
            for target in self._targets(node):
                yield Import(target, node.lineno, id(node) in for_types)  # type: ignore[attr-defined]

    def _targets(self, node: ast.AST) -> set[str]:
        if isinstance(node, ast.Import):
            return {alias.name for alias in node.names}
        if isinstance(node, ast.ImportFrom):
            return {self._module_of(f"{node.module}.{alias.name}") for alias in node.names}
        return set(_strings(node.args[:1])) if _called(node) in {"import_module", "__import__"} else set()  # type: ignore[attr-defined]

    def _module_of(self, dotted: str) -> str:
        """`from a import b` may mean the module a.b or the name b of a."""
        return dotted if dotted in self.modules else dotted.rpartition(".")[0]


class Rule(Protocol):
    __name__: str

    def __call__(self, tree: Tree, /) -> Iterator[str]: ...


def _called(node: ast.AST) -> str:
    if not isinstance(node, ast.Call):
        return ""
    return node.func.attr if isinstance(node.func, ast.Attribute) else node.func.id if isinstance(node.func, ast.Name) else ""


def _is_type_guard(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def _strings(nodes: Collection[ast.AST]) -> Iterator[str]:
    """The string literals in these nodes, also those inside a tuple, list or set."""
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
        elif isinstance(node, ast.Tuple | ast.List | ast.Set):
            yield from _strings(node.elts)


def every_part_has_a_layer(tree: Tree) -> Iterator[str]:
    for module in tree.modules.values():
        if module.part and module.part not in LAYER:
            yield module.at(1, f"put {module.part!r} into LAYERS")


def imports_come_from_lower_layers(tree: Tree) -> Iterator[str]:
    package = tree.root.name
    for module in tree.modules.values():
        layer = LAYER.get(module.part)
        for found in tree.imports(module):
            head, _, rest = found.target.partition(".")
            if layer is not None and head == package and LAYER.get(rest.split(".")[0], len(LAYERS)) > layer:
                yield module.at(found.line, f"layer {layer} imports {found.target}")


def the_lowest_layer_imports_no_torch(tree: Tree) -> Iterator[str]:
    for module in tree.modules.values():
        if module.part in ("", *LAYERS[0]):
            for found in tree.imports(module):
                if found.target.split(".")[0] == "torch":
                    yield module.at(found.line, f"imports {found.target}")


def strategies_do_not_import_each_other(tree: Tree) -> Iterator[str]:
    home = f"{tree.root.name}.strategies"
    for module in tree.modules.values():
        for found in tree.imports(module) if module.part == "strategies" else ():
            if found.target.startswith(home) and found.target != module.name:
                yield module.at(found.line, f"imports {found.target}")


def imports_make_no_cycle(tree: Tree) -> Iterator[str]:
    edges = {
        name: {i.target for i in tree.imports(module) if not i.for_types} & tree.modules.keys()
        for name, module in tree.modules.items()
    }
    finished: set[str] = set()

    def visit(name: str, path: tuple[str, ...]) -> Iterator[str]:
        if name in path:
            yield " -> ".join((*path[path.index(name) :], name))
        elif name not in finished:
            for target in sorted(edges[name]):
                yield from visit(target, (*path, name))
            finished.add(name)

    for name in edges:
        yield from visit(name, ())


def engines_are_imported_by_strategies_only(tree: Tree) -> Iterator[str]:
    for module in tree.modules.values():
        for found in tree.imports(module) if module.part != "strategies" else ():
            if found.target.split(".")[0] in ENGINES:
                yield module.at(found.line, f"imports {found.target}")


def files_are_short(tree: Tree) -> Iterator[str]:
    for module in tree.modules.values():
        if (lines := len(module.text.splitlines())) > MAX_FILE:
            yield module.at(lines, f"{lines} lines; at most {MAX_FILE}")


def the_median_file_is_short(tree: Tree) -> Iterator[str]:
    median = statistics.median(len(module.text.splitlines()) for module in tree.modules.values())
    if median > MAX_MEDIAN:
        yield f"{tree.root.name}: the median file has {median} lines; at most {MAX_MEDIAN}"


def functions_are_short(tree: Tree) -> Iterator[str]:
    lengths = []
    for module in tree.modules.values():
        for node in ast.walk(module.tree):
            if isinstance(node, Function):
                lengths.append(length := _body_length(node))
                if length > MAX_BODY:
                    yield module.at(node.lineno, f"{node.name} has {length} lines; at most {MAX_BODY}")
    long = sum(length > USUAL_BODY for length in lengths)
    if long > len(lengths) / 50:
        yield f"{tree.root.name}: {long} of {len(lengths)} functions are longer than {USUAL_BODY} lines; at most 2 %"


def _body_length(node: Function) -> int:
    body = node.body[1:] if ast.get_docstring(node) is not None else node.body
    return (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0


def docstrings_are_a_small_share(tree: Tree) -> Iterator[str]:
    lines = sum(len(module.text.splitlines()) for module in tree.modules.values())
    told = sum(_docstring_lines(node) for module in tree.modules.values() for node in ast.walk(module.tree))
    if told > MAX_DOCSTRINGS * lines:
        yield f"{tree.root.name}: {told} of {lines} lines are docstrings; at most {MAX_DOCSTRINGS:.0%}"


def _docstring_lines(node: ast.AST) -> int:
    if not isinstance(node, Documented) or ast.get_docstring(node) is None:
        return 0
    return (node.body[0].end_lineno or 0) - node.body[0].lineno + 1


def modules_begin_with_a_sentence(tree: Tree) -> Iterator[str]:
    for module in tree.modules.values():
        first = (ast.get_docstring(module.tree) or "").partition("\n")[0]
        if module.text and not first.endswith((".", ":")):
            yield module.at(1, "the first line is no sentence on what the module is for")


def names_say_something(tree: Tree) -> Iterator[str]:
    for module in tree.modules.values():
        if vague := VAGUE_NAMES & set(module.name.split(".")):
            yield module.at(1, f"a file or folder is named {vague.pop()}")


def nothing_asks_hasattr(tree: Tree) -> Iterator[str]:
    for module in tree.modules.values():
        yield from (module.at(node.lineno, "hasattr") for node in ast.walk(module.tree) if _called(node) == "hasattr")  # type: ignore[attr-defined]


def complexity_is_not_waved_through(tree: Tree) -> Iterator[str]:
    for module in tree.modules.values():
        for number, line in enumerate(module.text.splitlines(), 1):
            if "noqa" in line and "C901" in line:
                yield module.at(number, "C901 is silenced")


def no_condition_names_a(strategies: Collection[str]) -> Rule:
    """The rule for these names. Conditions are comparisons, `match` cases, and startswith or endswith."""

    def rule(tree: Tree) -> Iterator[str]:
        for module in tree.modules.values():
            if module.part in ("strategies", "configs", "table"):
                continue
            for node in ast.walk(module.tree):
                for name in _compared(node):
                    if name in strategies:
                        yield module.at(node.lineno, f"a condition names {name!r}")  # type: ignore[attr-defined]

    rule.__name__ = "no_condition_names_a_strategy"
    return cast(Rule, rule)


def _compared(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Compare):
        yield from _strings([node.left, *node.comparators])
    elif isinstance(node, ast.MatchValue):
        yield from _strings([node.value])
    elif _called(node) in {"startswith", "endswith"}:
        yield from _strings(node.args)  # type: ignore[attr-defined]


EVERYWHERE: tuple[Rule, ...] = (files_are_short, functions_are_short, modules_begin_with_a_sentence, names_say_something)
IN_SOURCE: tuple[Rule, ...] = (
    every_part_has_a_layer,
    imports_come_from_lower_layers,
    the_lowest_layer_imports_no_torch,
    strategies_do_not_import_each_other,
    imports_make_no_cycle,
    engines_are_imported_by_strategies_only,
    the_median_file_is_short,
    docstrings_are_a_small_share,
    nothing_asks_hasattr,
    complexity_is_not_waved_through,
    *EVERYWHERE,
)
