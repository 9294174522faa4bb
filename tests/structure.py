"""The numbers that the architecture promises: code lines, files, folders, and what importing the kernel loads.

``python -m tests.structure`` prints them and fails where one is above its limit; ``make lint`` runs it. A code line is
one that is neither blank, nor a comment, nor part of a docstring.
"""

from __future__ import annotations

import ast
import io
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

__all__ = ["Limit", "code_lines", "limits"]

ROOT = Path(__file__).resolve().parents[1]
KERNEL = ROOT / "core/rolemesh"
ENGINE = ROOT / "plugins/engines/durable/src/rolemesh_durable"
DATAPLANE = ROOT / "plugins/engines/dataplane/src/rolemesh_dataplane"
CHECKPOINT = ROOT / "plugins/engines/dataplane/src/rolemesh_checkpoint"
ENGINES = (ENGINE, ROOT / "plugins/engines/inline/src")
DELIVERY = ENGINE / "protocol/delivery"
KINDS = frozenset({"Balanced", "Broadcast", "Partial", "Sharded", "Split", "AtMost"})
"""The partitions, and the bounded lag. The engine asks a delivery instead of the kind."""
PORTS = frozenset(
    {"InPort", "ChoosingPort", "NewestPort", "ItemsPort", "FirstPort", "OutPort", "VersionPort", "GroupPort"}
)
"""The ends of edges in a rank."""
HEAVY = ("socket", "threading", "multiprocessing", "subprocess", "sqlite3", "sqlalchemy", "zmq", "ray", "torch")


class Limit(NamedTuple):
    """A number, and what it must not be above. `goal`: what it is to come down to."""

    what: str
    found: int
    most: int
    goal: int


def code_lines(path: Path) -> int:
    """The code lines of one Python file."""
    source = path.read_text(encoding="utf-8")
    docs: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        for statement in getattr(node, "body", ()) if isinstance(getattr(node, "body", None), list) else ():
            value = getattr(statement, "value", None)
            if isinstance(statement, ast.Expr) and isinstance(value, ast.Constant) and isinstance(value.value, str):
                docs.update(range(statement.lineno, (statement.end_lineno or statement.lineno) + 1))
    skipped = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in skipped:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines - docs)


def files(*folders: Path) -> Iterator[Path]:
    """The Python files below `folders`, without the templates."""
    for folder in folders:
        yield from (path for path in sorted(folder.rglob("*.py")) if "_templates" not in path.parts)


def shapes(*paths: Path) -> tuple[list[int], list[int]]:
    """The lines of every function in `paths`, and the parameters of every constructor without `self`."""
    lines: list[int] = []
    parameters: list[int] = []
    for path in paths:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines.append((node.end_lineno or node.lineno) - node.lineno + 1)
                if node.name == "__init__":
                    given = node.args
                    parameters.append(len([*given.posonlyargs, *given.args, *given.kwonlyargs]) - 1)
    return lines, parameters


def asks_for_a_kind(path: Path) -> int:
    """The number of places in a file that look at the class of a partition or of an edge's port."""
    found = 0
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "isinstance":
            named = {each.id for each in ast.walk(node.args[1]) if isinstance(each, ast.Name)}
            found += bool(named & (KINDS | PORTS))
        if isinstance(node, ast.MatchClass) and isinstance(node.cls, ast.Name):
            found += node.cls.id in KINDS
    return found


def foreign_assignments(*paths: Path) -> Iterator[str]:
    """Yield each assignment to an attribute of another object in `paths`, as ``file:line target``.

    Attributes that a class of the same file has are its own business. ``x.n += 1`` does not count: meters count so. Nor
    does ``sys.breakpointhook``: Python's hooks are set so.
    """
    for path in paths:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        targets = [target for node in ast.walk(tree) for target in _targets(node)]
        own = {target.attr for target in targets if _is_self(target.value)}
        for target in targets:
            if target.attr not in own and not _is_self(target.value) and ast.unparse(target.value) != "sys":
                yield f"{path.name}:{target.lineno} {ast.unparse(target)}"


def _targets(node: ast.AST) -> Iterator[ast.Attribute]:
    """The attributes that a statement assigns to."""
    found = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    for target in found:
        for each in target.elts if isinstance(target, ast.Tuple) else [target]:
            if isinstance(each, ast.Attribute):
                yield each


def _is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id in ("self", "cls")


def loaded() -> list[str]:
    """The modules that ``import rolemesh`` loads and must not."""
    code = f"import sys, rolemesh; print(*[name for name in {HEAVY!r} if name in sys.modules])"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()


def limits() -> Iterator[Limit]:
    """Every number."""
    kernel = {path: code_lines(path) for path in files(KERNEL)}
    engine = {path: code_lines(path) for path in files(ENGINE)}
    bodies, parameters = shapes(*kernel)
    folders = {
        path.relative_to(KERNEL).parts[0] for path in KERNEL.glob("*/**/*") if path.suffix != ".pyc" and path.is_file()
    }
    rooms = [path.parent for path in ENGINE.glob("*/**/__init__.py") if path.parents[1].name != "extensions"]
    yield Limit("code lines of the kernel", sum(kernel.values()), 6_410, 6_410)
    yield Limit("code lines of the longest file of the kernel", max(kernel.values()), 300, 300)
    yield Limit("lines of the longest function of the kernel", max(bodies), 60, 60)
    yield Limit("parameters of a constructor of the kernel", max(parameters), 8, 8)
    yield Limit("code lines of the longest file of the engine", max(engine.values()), 300, 300)
    core = sum(lines for path, lines in engine.items() if "extensions" not in path.relative_to(ENGINE).parts)
    engine_bodies, engine_parameters = shapes(*engine)
    yield Limit("code lines of the engine without extensions", core, 15_500, 15_500)
    yield Limit("functions of the engine with more than 60 lines", sum(n > 60 for n in engine_bodies), 0, 0)
    yield Limit("parameters of a constructor of the engine", max(engine_parameters), 8, 8)
    moving = {path: code_lines(path) for path in files(DATAPLANE)}
    yield Limit("code lines of the data plane", sum(moving.values()), 1_480, 1_480)
    yield Limit("code lines of the longest file of the data plane", max(moving.values()), 300, 300)
    yield Limit("lines of the longest function of the data plane", max(shapes(*moving)[0]), 60, 60)
    kept = {path: code_lines(path) for path in files(CHECKPOINT)}
    yield Limit("code lines of the files of state", sum(kept.values()), 1_850, 1_850)
    yield Limit("code lines of the longest file of the files of state", max(kept.values()), 300, 300)
    yield Limit("lines of the longest function of the files of state", max(shapes(*kept)[0]), 60, 60)
    yield Limit("folders of the kernel", len(folders), 9, 9)
    yield Limit(
        "files at the kernel's root, besides __main__", len({*KERNEL.glob("*.py")} - {KERNEL / "__main__.py"}), 3, 3
    )
    asking = [path for path in files(*ENGINES) if DELIVERY not in path.parents]
    yield Limit("rooms of the engine, without those of single extensions", len(rooms), 14, 14)
    yield Limit(
        "questions for the class of a partition or port, outside deliveries", sum(map(asks_for_a_kind, asking)), 0, 0
    )
    wired = [*foreign_assignments(*files(ENGINE / "rank"))]
    yield Limit("assignments to attributes of other objects in rank/", len(wired), 0, 0)
    yield Limit("modules that `import rolemesh` must not load", len(loaded()), 0, 0)


def main() -> int:
    """Print the table; 1 if a number is above its limit."""
    failed = 0
    for limit in limits():
        over = limit.found > limit.most
        failed += over
        to = f", to become {limit.goal:,}" if limit.goal != limit.most else ""
        print(f"{'✘' if over else '✔'} {limit.what}: {limit.found:,} (at most {limit.most:,}{to})")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
