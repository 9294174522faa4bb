"""The order of our distributions: lists, dependencies, private names, readers of runs, folders and limits of tests.

``python -m tests.house`` prints what is wrong, and fails then; ``make lint`` runs it. The contracts of
``[tool.importlinter]`` say which distribution may import which. This module checks that they name all of them.
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, TypeGuard

__all__ = ["Distribution", "Use", "distributions", "private_uses", "problems"]

ROOT = Path(__file__).resolve().parents[1]
PUBLIC = ("api", "backends", "checks", "content", "scalers", "stores")
"""The modules of the engine that other distributions may import."""
ENGINE = "rolemesh_durable"
MIRRORS = {"tests/unit/kernel": "rolemesh", "tests/unit/engine": ENGINE}
"""A folder of tests, and the package whose rooms its folders mirror."""
LAYERS = "distributions depend downwards"
"""The name of the contract that has a layer for each distribution."""
READERS = {"jobs", "facts", "recorder", "queries", "report", "top", "trace", "view", "debug", "tracking"}
"""Packages, without ``rolemesh_``, of which every module reads runs that another user may have written."""
READING = ("checkpoint.disk", "checkpoint.in_flight", "checkpoint.reading", "checkpoint.trust", "durable.control",
           "durable.journal.paging", "durable.runs", "runtime.claim")  # fmt: skip
"""Other modules, and packages of modules, that do so."""
OPENING = {"read_text", "read_bytes", "iterdir", "glob", "rglob", "scandir", "listdir", "walk"}
READ_OTHERWISE = {
    "jobs.checkpoint:_files": "the folder that the verb has just written",
    "jobs.clean:command": "the runs folder itself",
    "durable.runs:list_runs": "the runs folder itself",
    "view.viewed:paths": "the runs folder itself",
    "view.viewed:closed": "the runs folder itself",
    "facts.finding:_content": "names only, to say which of them this user may not read",
    "facts.finding:_files": "kinds of files only, to name a pipe",
    "debug.failed_calls:make_room": "the rank writes its own run",
    "recorder.rows:write": "the rank writes its own run",
    "recorder.node_record:_write": "the agent writes its own run",
    "recorder.node_counters:cores_used": "/proc and /sys",
    "recorder.node_counters:memory_used": "/proc and /sys",
    "recorder.node_counters:network_bytes": "/proc",
    "recorder.node_counters:_named": "/proc and /sys",
    "recorder.node_counters:_groups": "/proc and /sys",
    "recorder.node_counters:_limit": "/proc and /sys",
    "checkpoint.disk:_files": "the master completes a checkpoint of its own run",
    "checkpoint.disk:_sha256": "the master completes a checkpoint of its own run",
    "debug.process_facts:look": "/proc",
    "debug.process_facts:_pss": "/proc",
    "debug.process_facts:_open_files": "/proc",
    "debug.living_ranks:_is_ours": "/proc",
}
"""Functions of these modules that open something else than a run of others, and what."""
_OWN = ("self", "cls")
_REFLECTION = ("delattr", "getattr", "hasattr", "setattr")


@dataclass(frozen=True)
class Distribution:
    """One of ours: its name, the folders of its packages, and those of ours that it depends on, by name."""

    name: str
    packages: Mapping[str, Path]
    needs: frozenset[str]

    @cached_property
    def modules(self) -> dict[str, ast.Module]:
        """The parsed modules by dotted name, without templates and the files of new jobs."""
        return {
            _dotted(path, folder.parent): ast.parse(path.read_text(encoding="utf-8"))
            for folder in self.packages.values()
            for path in sorted(folder.rglob("*.py"))
            if not {"_templates", "_jobs"} & {*path.parts}
        }

    @cached_property
    def attributes(self) -> set[str]:
        """The private attributes that classes of the distribution define."""
        return set().union(*map(_attributes, self.modules.values()))


class Use(NamedTuple):
    """A line that uses a private name of another distribution."""

    module: str
    line: int
    code: str
    name: str

    def __str__(self) -> str:
        return f"{self.module}:{self.line}: {self.code} uses the private name {self.name} of another distribution"


def distributions(root: Path) -> dict[str, Distribution]:
    """All distributions below `root`, by name: the kernel, and each folder of plugins with a ``pyproject.toml``."""
    found = {}
    for project in [root / "pyproject.toml", *sorted(root.glob("plugins/*/*/pyproject.toml"))]:
        told = tomllib.loads(project.read_text(encoding="utf-8"))["project"]
        source = root / "core" if project.parent == root else project.parent / "src"
        packages = {path.parent.name: path.parent for path in sorted(source.glob("*/__init__.py"))}
        names = {re.split(r"[\[<>=~! ]", need, maxsplit=1)[0] for need in told.get("dependencies", ())}
        needs = frozenset(name for name in names if name.startswith("rolemesh"))
        found[told["name"]] = Distribution(told["name"], packages, needs)
    return found


def problems(root: Path) -> Iterator[str]:
    """Yield everything that is wrong."""
    ours = distributions(root)
    linter = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]
    yield from _unlisted(ours, linter)
    yield from _unprotected(ours, linter)
    yield from _misnamed(ours)
    yield from _undeclared(ours)
    yield from map(str, private_uses(ours))
    yield from _careless(ours)
    yield from _unmirrored(root, ours)
    yield from _limited(root)


def private_uses(ours: Mapping[str, Distribution]) -> Iterator[Use]:
    """Yield each use of another distribution's private name.

    An attribute ``x._name`` belongs to another distribution if classes of one that this distribution depends on define
    ``_name``, unless a class in the same module defines it too. The type of ``x`` is not known, so a name that both
    distributions define must be accessed in the module that defines it. For ``self`` and ``cls`` it is enough that the
    own distribution defines the name.
    """
    packages = _packages(ours).keys()
    for each in ours.values():
        foreign = set().union(*(other.attributes for other in _closure(each, ours)))
        for module, tree in each.modules.items():
            here = _attributes(tree)
            for node in ast.walk(tree):
                for line, code, name in _imported(node, packages - each.packages.keys()):
                    yield Use(module, line, code, name)
                name, own = _accessed(node)
                known = each.attributes if own else here
                if name in foreign - known:
                    yield Use(module, node.lineno, ast.unparse(node), name)  # type: ignore[attr-defined]


WAITS = ["acquire", "create_connection", "join", "result", "settimeout", "timeout", "wait", "wait_for"]
"""Names of calls whose numbers from `PATIENCE_S` on are seconds after which a test gives up."""
PATIENCE_S = range(5, 1000)


def _limited(root: Path) -> Iterator[str]:
    """Yield each wait of a test, and each process, that ends after a number of seconds: a busy machine would fail it.
    Tests end what hangs after `tests.waiting.HANG_S`. Files that name TimeoutExpired expect it."""
    for path in [*root.glob("tests/**/*.py"), *root.glob("plugins/**/tests/**/*.py")]:
        code = path.read_text(encoding="utf-8")
        if "TimeoutExpired" in code or not any(name in code for name in WAITS):
            continue
        for call in (node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Call)):
            function, given = ast.unparse(call.func), {each.arg: each.value for each in call.keywords}
            limits = [given["timeout"]] if "timeout" in given else []
            process = function.endswith(("subprocess.run", ".communicate"))
            of, _, name = function.rpartition(".")
            if of and name in WAITS and of != "pytest.mark":
                limits += call.args
            numbers = [each.value for each in limits if isinstance(each, ast.Constant)]
            if (process and limits) or any(isinstance(n, int | float) and int(n) in PATIENCE_S for n in numbers):
                remedy = "leave timeout out" if process else "wait for HANG_S of tests.waiting"
                yield f"{path.relative_to(root)}:{call.lineno}: a busy machine takes longer: {remedy}"


def _unlisted(ours: Mapping[str, Distribution], linter: Mapping[str, Any]) -> Iterator[str]:
    packages = _packages(ours).keys()
    (layers,) = (each["layers"] for each in linter["contracts"] if each["name"] == LAYERS)
    for what, listed in (
        ("root_packages", linter["root_packages"]),
        ("the layers of distributions", [name for layer in layers for name in layer.split(" | ")]),
    ):
        for package in sorted(packages ^ set(listed)):
            yield f"pyproject.toml: {what} of [tool.importlinter] and the distributions differ by {package}"


def _unprotected(ours: Mapping[str, Distribution], linter: Mapping[str, Any]) -> Iterator[str]:
    (contract,) = (each for each in linter["contracts"] if each["type"] == "protected")
    (engine,) = (each for each in ours.values() if ENGINE in each.packages)
    rooms = {name.split(".")[1] for name in engine.modules if "." in name}
    wanted = {f"{ENGINE}.{room}" for room in rooms - set(PUBLIC)}
    for module in sorted(wanted.symmetric_difference(contract["protected_modules"])):
        yield f"pyproject.toml: the protected modules of the engine and its modules differ by {module}"
    yield from (f"tests/house.py: the engine has no module {name}" for name in PUBLIC if name not in rooms)


def _misnamed(ours: Mapping[str, Distribution]) -> Iterator[str]:
    """Yield each plugin folder whose distribution has another name than its own, or for ``base`` than its kind's."""
    for each in ours.values():
        *_, kind, name, _, _ = next(iter(each.packages.values())).parts
        wanted = f"rolemesh-{kind}" if name == "base" else f"-{name}"
        if each.name != "rolemesh" and not each.name.endswith(wanted):
            yield f"plugins/{kind}/{name}: the name of the distribution is {each.name} and does not end with {wanted}"


def _undeclared(ours: Mapping[str, Distribution]) -> Iterator[str]:
    owners = {package: each.name for each in ours.values() for package in each.packages}
    for each in ours.values():
        for module, tree in each.modules.items():
            for node in ast.walk(tree):
                for name in _modules_imported(node):
                    owner = owners.get(name.split(".")[0], each.name)
                    if owner != each.name and owner not in each.needs:
                        yield f"{module} imports {name}, and {each.name} does not depend on {owner}"


def _careless(ours: Mapping[str, Distribution]) -> Iterator[str]:
    """Yield each place at which a reader of runs opens a file without `rolemesh_runtime.run_files`."""
    for each in ours.values():
        for module, tree in each.modules.items():
            name = module.removeprefix("rolemesh_")
            if name.split(".")[0] in READERS or any(f"{name}.".startswith(f"{each}.") for each in READING):
                for function in ast.walk(tree):
                    if isinstance(function, ast.FunctionDef) and f"{name}:{function.name}" not in READ_OTHERWISE:
                        for node in filter(_opens, ast.walk(function)):
                            yield (
                                f"{module}:{node.lineno}: {ast.unparse(node)[:60]} opens what may be another user's; "
                                "use rolemesh_runtime.run_files, or give the reason in READ_OTHERWISE of tests/house.py"
                            )


def _opens(node: ast.AST) -> TypeGuard[ast.Call]:
    """Return whether the node is a call that opens a file for reading, or lists a folder."""
    match node:
        case ast.Call(func=ast.Attribute(attr="connect", value=ast.Name(id="sqlite3"))):
            return True
        case ast.Call(func=ast.Attribute(attr=name)) if name in OPENING:
            return True
        case ast.Call(func=ast.Attribute(attr="open", value=ast.Name(id="os")), args=[_, flags, *_]):
            return "O_WRONLY" not in ast.unparse(flags)
        case (
            ast.Call(func=ast.Name(id="open"), args=[_, mode, *_])
            | ast.Call(func=ast.Attribute(attr="open"), args=[ast.Constant(value=str()) as mode, *_])
        ):
            return isinstance(mode, ast.Constant) and not set("wax") & set(str(mode.value))
        case ast.Call(func=ast.Name(id="open"), args=[_]) | ast.Call(func=ast.Attribute(attr="open"), args=[]):
            return True
    return False


def _unmirrored(root: Path, ours: Mapping[str, Distribution]) -> Iterator[str]:
    """Yield each folder of unit tests that has no room of the same name in its package."""
    packages = _packages(ours)
    for mirror, package in MIRRORS.items():
        folder = root / mirror
        for test in sorted(folder.rglob("*.py")):
            room = test.parent.relative_to(folder)
            if not (packages[package] / room / "__init__.py").is_file():
                yield f"{mirror}/{room}: {package} has no room {room}; move {test.name} to the room that it tests"


def _packages(ours: Mapping[str, Distribution]) -> dict[str, Path]:
    """The folder of each package."""
    return {package: folder for each in ours.values() for package, folder in each.packages.items()}


def _closure(each: Distribution, ours: Mapping[str, Distribution]) -> list[Distribution]:
    """The distributions of ours that this one depends on, at first or second hand."""
    found: dict[str, Distribution] = {}
    open_ = list(each.needs)
    while open_:
        name = open_.pop()
        if name in ours and name not in found:
            found[name] = ours[name]
            open_ += ours[name].needs
    return list(found.values())


def _attributes(tree: ast.Module) -> set[str]:
    """The private attributes that the classes of a module define: in their bodies, or by assignment to ``self``."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            for statement in node.body:
                if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                    found.add(statement.name)
                elif isinstance(statement, ast.Assign | ast.AnnAssign):
                    targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
                    found |= {part.id for each in targets for part in ast.walk(each) if isinstance(part, ast.Name)}
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and _is_own(node.value):
            found.add(node.attr)
    return {name for name in found if _is_private(name)}


def _accessed(node: ast.AST) -> tuple[str, bool]:
    """The private attribute that a node accesses, "" for none, and whether on ``self``, ``cls`` or ``super()``."""
    match node:
        case ast.Attribute(value=value, attr=name) if _is_private(name):
            return name, _is_own(value)
        case ast.Call(func=ast.Name(id=function), args=[value, ast.Constant(value=str(name)), *_]):
            if function in _REFLECTION and _is_private(name):
                return name, _is_own(value)
    return "", False


def _is_own(value: ast.expr) -> bool:
    if isinstance(value, ast.Call):
        return isinstance(value.func, ast.Name) and value.func.id == "super"
    return isinstance(value, ast.Name) and value.id in _OWN


def _imported(node: ast.AST, others: Set[str]) -> Iterator[tuple[int, str, str]]:
    """Yield line, code and name of each private name, or module, that an import takes from these packages."""
    if not isinstance(node, ast.Import | ast.ImportFrom):
        return
    names = {alias.name for alias in node.names}
    for module in _modules_imported(node):
        if module.split(".")[0] in others:
            parts = {*module.split("."), *(names if isinstance(node, ast.ImportFrom) else ())}
            yield from ((node.lineno, ast.unparse(node), name) for name in sorted(parts) if _is_private(name))


def _modules_imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    return [node.module] if isinstance(node, ast.ImportFrom) and node.module and not node.level else []


def _is_private(name: str) -> bool:
    return name.startswith("_") and name.strip("_") != "" and not (name.startswith("__") and name.endswith("__"))


def _dotted(path: Path, root: Path) -> str:
    return ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")


def main() -> int:
    """Print the problems; 1 if there are any."""
    found = list(problems(ROOT))
    print(*found, sep="\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
