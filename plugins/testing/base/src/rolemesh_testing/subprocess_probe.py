"""Asks a plugin in another process, so that nothing in this process influences the answer."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec

from rolemesh.plugins.discovery import PluginRecord
from rolemesh_testing.hanging import Hung, communicated
from rolemesh_testing.leftovers import adopt_orphans

__all__ = ["Subject", "ask_elsewhere"]

_MAIN = """
import sys
sys.path[:] = {path!r}
from rolemesh_testing.subprocess_probe import _answer
_answer({module!r}, {name!r})
"""


class Subject(msgspec.Struct, frozen=True):
    """A plugin that another process can load: its record, its options as in a job file, and the job file's folder."""

    record: PluginRecord
    options: dict[str, Any]
    base: str

    def loaded(self) -> tuple[type[Any], Any]:
        """Return the plugin's class and its checked options."""
        found: type[Any] = self.record.entry_point.load()
        return found, found.Options.model_validate(self.options, context={"base": self.base})


class _Question(msgspec.Struct):
    subject: Subject
    payload: bytes


def ask_elsewhere(
    function: Callable[[Subject, bytes], bytes],
    subject: Subject,
    payload: bytes = b"",
    *,
    hash_seed: int = 0,
    cwd: str | Path | None = None,
    timeout_s: float = 120.0,
) -> bytes:
    """Return the result of a module's function in a fresh process with the hash seed `hash_seed`, in the folder `cwd`.

    Raises `AssertionError` with the process's output if it fails; `Hung` if it takes longer than `timeout_s` seconds.
    """
    main = _MAIN.format(path=[*filter(None, sys.path)], module=function.__module__, name=function.__qualname__)
    process = subprocess.Popen(
        [sys.executable, "-c", main],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=cwd,
        env={**os.environ, "PYTHONHASHSEED": str(hash_seed), "PYTHONDONTWRITEBYTECODE": "1"},
    )
    try:
        answer, said = communicated(process, timeout_s, msgspec.msgpack.encode(_Question(subject, payload)))
    except subprocess.TimeoutExpired as late:
        what = f"a process with the plugin does not end within {timeout_s:g} s"
        raise Hung(f"{what}; {_tail(late.stderr or b'')}") from None
    assert process.returncode == 0, f"a process with the plugin ends with {process.returncode}; {_tail(said)}"
    return answer


def _tail(said: bytes) -> str:
    text = said.decode(errors="replace").strip()
    return f"it said: {text[-2000:]}" if text else "it said nothing"


def _answer(module: str, name: str) -> None:
    """Run as the other process. The plugin's output goes to stderr, since stdout carries the answer."""
    adopt_orphans()
    answers = os.dup(1)
    os.dup2(2, 1)
    question = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=_Question)
    answer = getattr(import_module(module), name)(question.subject, question.payload)
    with os.fdopen(answers, "wb") as file:
        file.write(answer)
    os._exit(0)  # also if the plugin has left a thread that would not end
