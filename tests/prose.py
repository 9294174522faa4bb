"""Reads prose out of documents and Python files, for `tests.language` and `tests.readability`."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

__all__ = [
    "GENERATED",
    "ROOT",
    "Text",
    "documents",
    "in_document",
    "in_python",
    "paragraphs",
    "sentences",
    "without_code",
]

ROOT = Path(__file__).resolve().parents[1]
GENERATED = ("docs/reference/",)
"""Documents that `docs/generator` makes from the code; their sentences are checked where they are written."""
_FENCE = re.compile(r"^(```|~~~).*?^\1[ ]*$", re.MULTILINE | re.DOTALL)
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
_ITEM = re.compile(r"^\s*(?:[-*]|\d+\.)\s+")
_END = re.compile(r"(?<=[.!?])[\"')*]*\s+(?=[\"'(*`]*[A-Z0-9`\[])")


class Text(NamedTuple):
    """A paragraph, a docstring or the name of a test.

    `line` is the number of its first line. `kind` is "document", "docstring" (of a module, class or function),
    "attribute" (the string after an assignment) or "test" (a name, with spaces for the underscores).
    """

    line: int
    kind: str
    words: str


def without_code(document: str) -> str:
    """Return a document without its code blocks."""
    return _FENCE.sub("", document)


def documents() -> list[Path]:
    """Return the hand-written documents: README, CONTRIBUTING, SECURITY and ``docs/``."""
    found = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [path for path in found if not path.relative_to(ROOT).as_posix().startswith(GENERATED)]


def in_document(text: str) -> Iterator[Text]:
    """Yield the paragraphs, list items and table rows of a Markdown document, without code blocks and comments."""
    plain = _FENCE.sub(lambda found: "\n" * found[0].count("\n"), text)
    plain = _COMMENT.sub(lambda found: "\n" * found[0].count("\n"), plain)
    begin, lines = 1, list[str]()
    for number, line in enumerate([*plain.splitlines(), ""], start=1):
        alone = line.startswith(("#", "|", "!["))
        if lines and (not line.strip() or alone or _ITEM.match(line)):
            yield Text(begin, "document", " ".join(lines))
            lines = []
        if alone:
            yield Text(number, "document", line)
        elif line.strip():
            begin = begin if lines else number
            lines.append(_ITEM.sub("", line).strip())


def in_python(source: str) -> Iterator[Text]:
    """Yield every docstring of a Python file, those of attributes included, and the names of its tests."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            yield Text(node.lineno, "test", node.name.removeprefix("test_").replace("_", " "))
        body = getattr(node, "body", None)
        if not isinstance(body, list):
            continue
        for number, statement in enumerate(body):
            if not (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)):
                continue
            if not isinstance(words := statement.value.value, str):
                continue
            if number and isinstance(body[number - 1], ast.Assign | ast.AnnAssign):
                yield Text(statement.lineno, "attribute", words)
            elif not number and isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                yield Text(statement.lineno, "docstring", words)


def paragraphs(text: str) -> list[str]:
    """Return what a reader reads as sentences: no headings, tables, pictures or code; a code span is one word."""
    found = []
    for each in in_document(text):
        if each.words.startswith(("#", "|", "![")):
            continue
        words = re.sub(r"!\[[^]]*\]\([^)]*\)", "", each.words)
        words = re.sub(r"`[^`]+`", "code", words)
        words = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", words)
        words = re.sub(r"[*_]{1,2}(?=\S)|(?<=\S)[*_]{1,2}", "", words).strip()
        if len(words.split()) > 2:
            found.append(words)
    return found


def sentences(text: str) -> list[str]:
    """Split each paragraph of a Markdown document into its sentences."""
    return [part for words in paragraphs(text) for part in _END.split(words) if part.strip()]
