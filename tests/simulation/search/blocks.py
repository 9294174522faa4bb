"""Which blocks of the engine a schedule executes, and how often: the compiler of their modules counts.

A block is what runs on one outcome of a branch: the body of an `if`, its `else` (also the one that is not written), a
loop, a handler, a case, a function. `install` must come before the modules are imported.
"""

from __future__ import annotations

import ast
import importlib.machinery
import sys
from collections.abc import Sequence
from types import CodeType
from typing import Any, NamedTuple, cast

__all__ = ["BLOCKS", "Block", "features", "install", "reset"]

MEASURED = (
    "rolemesh_durable.protocol",
    "rolemesh_durable.extensions",
    "rolemesh_durable.rank",
    "rolemesh_durable.journal",
    "rolemesh_checkpoint",
)
COUNTER = "_rolemesh_counts"


class Block(NamedTuple):
    """A block: its module, its first line and the number of its own statements (0: an `else` that is not written)."""

    module: str
    line: int
    statements: int


BLOCKS: list[Block] = []
_counts: list[int] = []


def features() -> frozenset[tuple[str, int, int]]:
    """Return what was executed since `reset`: module, line, and the order of magnitude of how often (base 4)."""
    return frozenset(
        (block.module, block.line, (count.bit_length() + 1) // 2)
        for block, count in zip(BLOCKS, _counts, strict=True)
        if count
    )


def reset() -> None:
    """Count from 0."""
    _counts[:] = [0] * len(_counts)


def install() -> None:
    """Let the measured modules count, from their import on."""
    imported = sorted(name for name in sys.modules if name.startswith(MEASURED))
    assert not imported, f"{imported} cannot count: they are imported"
    sys.meta_path.insert(0, _Finder())


class _Finder:
    """Finds measured modules as Python does, with a loader that counts."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """See `importlib.abc.MetaPathFinder`."""
        if not name.startswith(MEASURED):
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and isinstance(spec.loader, importlib.machinery.SourceFileLoader):
            spec.loader = _Loader(name, spec.loader.path)
        return spec


class _Loader(importlib.machinery.SourceFileLoader):
    def get_code(self, fullname: str) -> CodeType:
        """Compile the module, which is never cached."""
        path = self.get_filename(fullname)
        tree = cast("ast.Module", _Counting(fullname).visit(ast.parse(self.get_data(path))))
        code: CodeType = compile(ast.fix_missing_locations(tree), path, "exec", dont_inherit=True)
        return code

    def exec_module(self, module: Any) -> None:
        """Execute it."""
        setattr(module, COUNTER, _counts)
        super().exec_module(module)


class _Counting(ast.NodeTransformer):
    """Begins each block of a function with a statement that counts it."""

    def __init__(self, module: str) -> None:
        self.module = module
        self._functions = 0

    def visit(self, node: ast.AST) -> ast.AST:
        """Visit a node, and count what is within it."""
        function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        self._functions += function
        self.generic_visit(node)
        if self._functions:
            if function or isinstance(node, ast.For | ast.While | ast.If | ast.ExceptHandler | ast.match_case):
                node.body = self._counted(node.body)  # type: ignore[attr-defined]
            if isinstance(node, ast.If):
                node.orelse = self._counted(node.orelse, node.body[-1])
        self._functions -= function
        return node

    def _counted(self, body: Sequence[ast.stmt], before: ast.stmt | None = None) -> list[ast.stmt]:
        at = body[0] if body else before
        assert at is not None
        line = at.lineno if body else (at.end_lineno or at.lineno) + 1
        BLOCKS.append(Block(self.module, line, sum(not _is_text(each) for each in body)))
        _counts.append(0)
        count = ast.parse(f"{COUNTER}[{len(_counts) - 1}] += 1").body[0]
        for each in ast.walk(count):
            ast.copy_location(each, at)
        first = list(body[:1]) if body and _is_text(body[0]) else []
        return [*first, count, *body[len(first) :]]


def _is_text(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
