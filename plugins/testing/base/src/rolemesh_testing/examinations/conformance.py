"""Conformance of an examination of `rolemesh doctor`: it returns useful findings in time on every machine."""

from __future__ import annotations

import os
import time
from typing import Any

import msgspec
import pytest
from pydantic import BaseModel

from rolemesh.plugins.discovery import PluginRecord
from rolemesh_doctor import Examination, Finding
from rolemesh_testing.conformance import PluginConformance, once
from rolemesh_testing.leftovers import still_running
from rolemesh_testing.subprocess_probe import Subject, ask_elsewhere

__all__ = ["ExaminationConformance"]

LIMIT_S = 5.0
"""Seconds after which `rolemesh doctor` kills an examination."""


class _Found(msgspec.Struct):
    findings: list[Finding]
    raised: str
    seconds: float
    threads: tuple[str, ...]
    children: tuple[str, ...]


class ExaminationConformance(PluginConformance):
    """Subclass it with `plugin`. The examination looks at this machine, once as it is and once with an empty
    environment.
    """

    kind = "doctor"

    @pytest.fixture
    def subject(self, record: PluginRecord, checked_options: BaseModel) -> Subject:
        """The examination, for another process."""
        return Subject(record, dict(self.options), "")

    @pytest.fixture
    def examined(self, subject: Subject, request: pytest.FixtureRequest) -> _Found:
        """The findings on this machine."""
        return once(request, "it does not examine this machine", lambda: self.examine(subject, "as it is"))

    def examine(self, subject: Subject, how: str) -> _Found:
        """Run the examination in a process of its own. Raises `AssertionError` if the examination raises."""
        answer = ask_elsewhere(_examine_there, subject, how.encode(), timeout_s=self.timeout_s)
        found = msgspec.json.decode(answer, type=_Found)
        assert not found.raised, f"examine() raises {found.raised} {how}; a finding says what is wrong and what to do"
        return found

    def test_it_is_made_without_options(self, cls: type[Examination]) -> None:
        """The user cannot give options: `rolemesh doctor` runs every installed examination."""
        required = [name for name, field in cls.Options.model_fields.items() if field.is_required()]
        assert not required, f"nobody gives {', '.join(required)}; read it from the environment"

    def test_its_findings_are_sentences_under_a_name(self, examined: _Found) -> None:
        """There is at least one finding, even if all is well. It shows the user what was examined."""
        assert examined.findings, "examine() found nothing; say with the status ok what it has looked at"
        for finding in examined.findings:
            assert finding.name.strip(), f"{finding} has no name"
            assert finding.what.strip(), f"{finding} does not say what is the case"
            assert finding.status in ("ok", "warning", "error"), f"{finding} has the status {finding.status!r}"

    def test_a_problem_has_a_remedy(self, examined: _Found, subject: Subject) -> None:
        """Every finding other than ``ok`` has a remedy, with a command if there is one."""
        bare = self.examine(subject, "with an empty environment")
        for finding in (*examined.findings, *bare.findings):
            assert finding.status == "ok" or finding.remedy.strip(), f"{finding.name}: {finding.what}: no remedy"

    def test_it_ends_in_time(self, examined: _Found) -> None:
        """After five seconds `rolemesh doctor` kills the examination, and its findings are lost."""
        assert examined.seconds < LIMIT_S, f"it took {examined.seconds:.1f} s of {LIMIT_S:g} s"

    def test_it_leaves_nothing_running(self, examined: _Found) -> None:
        """The examination leaves no process and no thread, and changes nothing on the machine."""
        assert not examined.threads, f"after examine() the threads {', '.join(examined.threads)} run on"
        assert not examined.children, f"after examine() the processes {', '.join(examined.children)} run on"


def _examine_there(subject: Subject, how: bytes) -> bytes:
    cls, options = subject.loaded()
    if how == b"with an empty environment":
        os.environ.clear()
    began = time.monotonic()
    try:
        findings, raised = _told(list(cls(options).examine())), ""
    except Exception as error:
        findings, raised = [], f"{type(error).__name__}: {error}"
    return msgspec.json.encode(_Found(findings, raised, time.monotonic() - began, *still_running()))


def _told(findings: list[Any]) -> list[Finding]:
    for each in findings:
        if not isinstance(each, Finding):
            raise TypeError(f"it gives {each!r}, which is no rolemesh_doctor.Finding")
    return findings
