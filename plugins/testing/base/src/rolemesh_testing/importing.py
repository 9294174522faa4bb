"""Observes the effects of an import in a fresh process, once for all tests that need it."""

from __future__ import annotations

import json
from functools import cache

import msgspec

from rolemesh_testing.hanging import IMPORT_S, Hung, fresh_python

__all__ = ["Imported", "imported"]

_CODE = """
import importlib, json, sys, threading, traceback
error = ""
try:
    importlib.import_module({module!r})
except BaseException as raised:
    error = "".join(traceback.format_exception_only(raised)).strip()
modules, threads = sorted({{name.partition(".")[0] for name in sys.modules}}), threading.active_count() - 1
import psutil
print()
print(json.dumps([error, modules, threads, len(psutil.Process().children())]))
"""


class Imported(msgspec.Struct, frozen=True):
    """The effects of importing a module: its error ("" if none), loaded top-level modules, threads, processes and
    output.
    """

    error: str
    modules: frozenset[str]
    threads: int
    children: int
    printed: str


def imported(target: str, limit_s: float = IMPORT_S) -> Imported:
    """Import the module of ``module:Class`` in a fresh process.

    Raises `AssertionError` if the import ends the process, `Hung` if it does not end within `limit_s` seconds.
    """
    found = _imported(target.partition(":")[0], min(limit_s, IMPORT_S))
    if isinstance(found, AssertionError):
        raise found
    return found


@cache
def _imported(module: str, limit_s: float) -> Imported | AssertionError:
    try:
        done = fresh_python(_CODE.format(module=module), limit_s)
    except Hung:
        return Hung(f"import {module} has not ended within {limit_s:g} s")
    if done.returncode != 0:
        return AssertionError(f"import {module} ends the process, with {done.returncode}: {done.stderr[-2000:]}")
    printed, _, last = done.stdout.rstrip("\n").rpartition("\n")
    error, modules, threads, children = json.loads(last)
    return Imported(error, frozenset(modules), threads, children, printed.strip())
