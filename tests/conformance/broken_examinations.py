"""Examinations that each do one thing wrong, and the standard tests that find it."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterable
from typing import Any

from pydantic import BaseModel, Field

from rolemesh_doctor import Examination, Finding

__all__ = ["BROKEN", "Sound"]

FINE = Finding("licence", "ok", "the licence is valid")


class Sound(Examination):
    """Looks for a licence."""

    def examine(self) -> Iterable[Finding]:
        yield FINE


class Where(BaseModel, extra="forbid"):
    """Options that nobody gives."""

    path: str = Field(description="The licence's file.")


class Asking(Sound):
    """An examination that requires a file."""

    Options = Where


class Silent(Sound):
    """Says nothing where all is well."""

    def examine(self) -> Iterable[Finding]:
        return []


class Wordy(Sound):
    """Gives texts."""

    def examine(self) -> Iterable[Any]:
        return ["fine"]


class Helpless(Sound):
    """Does not say what to do where there is no home."""

    def examine(self) -> Iterable[Finding]:
        yield FINE if "PATH" in os.environ else Finding("licence", "error", "there is no licence")


class Slow(Sound):
    """Asks a server that does not answer."""

    def examine(self) -> Iterable[Finding]:
        time.sleep(1.1)
        return [FINE]


class Leaving(Sound):
    """Does not wait for what it has started."""

    def examine(self) -> Iterable[Finding]:
        subprocess.Popen(["sleep", "0.5"])
        return [FINE]


BROKEN: dict[type[Examination], set[str]] = {
    Asking: {"test_it_is_made_without_options"},
    Silent: {"test_its_findings_are_sentences_under_a_name"},
    Wordy: {"test_its_findings_are_sentences_under_a_name"},
    Helpless: {"test_a_problem_has_a_remedy"},
    Slow: {"test_it_ends_in_time"},
    Leaving: {"test_it_leaves_nothing_running"},
}
