"""Output of verbs: errors for people, JSON for programs, tables."""

from __future__ import annotations

import codecs
import json
import os
import sys
from collections.abc import Iterable, Sequence
from io import TextIOWrapper
from typing import Any

from rolemesh.errors import Problems, RolemeshError

_CONTROLS = (*range(9), *range(11, 32), *range(127, 160), *range(8234, 8239), *range(8294, 8298))
CONTROLS = {code: ascii(chr(code))[1:-1] for code in _CONTROLS}
"""Escapes of the characters that steer a terminal or turn the direction of text."""


_STRICT = "strict", "surrogateescape"


def printable(text: str) -> str:
    """Return a text of a job with escapes such as ``\\x1b`` for controls of a terminal."""
    return text.translate(CONTROLS)


def prepare_streams() -> None:
    """Let stdout and stderr print ``\\u2713`` for a character that their encoding lacks, in JSON,
    too. An error handler that the user has chosen stays.

    A stream that the shell has closed (``>&-``) becomes the null device. Else the next file that
    the process opens would get its number, and what others print there.
    """
    codecs.register_error("rolemesh", _escaped)
    for name in ("stdin", "stdout", "stderr"):
        if (stream := getattr(sys, name)) is None:
            setattr(sys, name, open(os.devnull, "r+"))  # noqa: SIM115 - open as long as the process
        elif name != "stdin" and isinstance(stream, TextIOWrapper) and stream.errors in _STRICT:
            stream.reconfigure(errors="rolemesh")


def _escaped(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError)
    lacking = error.object[error.start : error.end].encode("utf-16-be", "surrogatepass")
    return "\\u" + lacking.hex(" ", 2).replace(" ", "\\u"), error.end


def print_text(text: str, *, err: bool = False) -> None:
    """Print `text` as `printable` returns it, at once; on stderr if `err`."""
    print(printable(text), file=sys.stderr if err else sys.stdout, flush=True)


def print_error(error: RolemeshError) -> None:
    """Print each problem on stderr: the place, the cause, and the remedy indented. Colours are used
    only on a terminal."""
    colours = "\033[1;31m", "\033[36m", "\033[0m"
    bold, dim, plain = colours if sys.stderr.isatty() else ("", "", "")
    for each in error.errors if isinstance(error, Problems) else (error,):
        place = f"{each.where}: " if each.where else ""
        print(f"{bold}error:{plain} {printable(place + each.what)}", file=sys.stderr)
        if each.remedy:
            print(f"{dim}  → {printable(each.remedy)}{plain}", file=sys.stderr)


def error_records(error: RolemeshError) -> list[dict[str, str | None]]:
    """Return the problems as JSON values: ``kind``, ``what``, ``where``, ``remedy``."""
    errors = error.errors if isinstance(error, Problems) else (error,)
    fields = "what", "where", "remedy"
    return [
        {"kind": type(e).__name__} | {name: getattr(e, name) for name in fields} for e in errors
    ]


def print_json(value: Any) -> None:
    """Print `value` on stdout, indented."""
    print(json.dumps(value, indent=2, ensure_ascii=False, default=str))


def print_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print aligned columns on stdout, unwrapped, so that other tools can cut and search them."""
    lines = [tuple(header), *(tuple(map(printable, row)) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    for line in lines:
        cells = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        print("  ".join(cells).rstrip())
