"""Runs the kit in a process of its own, against an installed plugin or a plugin's folder, and returns certificates."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from importlib.metadata import EntryPoint
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import unquote, urlparse

import msgspec

from rolemesh.api.import_ref import ImportRef
from rolemesh.errors import PluginError
from rolemesh.kinds import kind_named, kinds
from rolemesh.kinds.installed import distribution, entry_points, version
from rolemesh.plugins.discovery import PluginRecord
from rolemesh_testing.kinds.declared import KINDS

__all__ = ["GROUP", "Certificate", "Checked", "check_class", "check_folder", "check_plugin"]

GROUP = "rolemesh.conformance"
"""Entry-point group in which a distribution may name the conformance class of a plugin, under the plugin's name."""

Progress: TypeAlias = Callable[[str], None]


def _silent(line: str) -> None:
    """Ignore progress reports."""


class Checked(msgspec.Struct, frozen=True):
    """A standard test: its outcome, and the reason if it failed, was skipped or was replaced."""

    test: str
    outcome: str
    message: str = ""
    reason: str = ""
    seconds: float = 0.0


class Certificate(msgspec.Struct, frozen=True):
    """The kit's results for one plugin. `requires` is the range of kernels that its distribution requires.

    `bare` is true if no test class of the plugin's own was found. Then only the tests that need no details ran.
    """

    kind: str
    name: str
    distribution: str
    version: str
    requires: str
    kernel: str
    fits: bool
    tests: tuple[Checked, ...]
    bare: bool = False

    def count(self, outcome: str) -> int:
        """Return the number of tests with this outcome: passed, failed, overridden or skipped."""
        return sum(test.outcome == outcome for test in self.tests)

    @property
    def passed(self) -> bool:
        """True if at least one test ran and none failed."""
        return self.fits and not self.count("failed") and bool(self.count("passed"))


def check_plugin(record: PluginRecord, progress: Progress = _silent) -> list[Certificate]:
    """Run the kit against an installed plugin, or against the declaration of a kind (see `declared`).

    The function calls `progress` after each test.

    The plugin's distribution names the conformance class in `GROUP`. If it names none, the class in the tests of the
    plugin's folder counts (``pip install -e``). If there is none either, the bare class of the kind runs. It cannot
    call a workload's operators. A kind without a class gets the tests that hold for all kinds.

    Raises `PluginError` if the kit is not installed, or if the tests cannot be run.
    """
    _check_kit()
    for point in _named(record):
        module, _, name = point.value.partition(":")
        found = _run_class(f"from {module} import {name} as Base", "pass", progress, "--conformance-kind", record.kind)
        if found:
            return _certificates(found, (record,))
    folder = _editable(record)
    if folder is not None:
        only = ["--conformance-plugin", record.name, "--conformance-kind", record.kind]
        if found := _run([str(folder), *only], progress):
            return _certificates(found, (record,))
    start, body = _bare(record)
    results = _run_class(start, f"{body}plugin = {record.distribution + ':' + record.name!r}", progress)
    return [msgspec.structs.replace(one, bare=True) for one in _certificates(results, (record,))]


def _named(record: PluginRecord) -> list[EntryPoint]:
    """Return the entry points in which the distribution names conformance classes. Their names begin with the kind:
    ``<kind>.<name>``.
    """
    names = (f"{record.kind}.{record.name}", record.name)
    found = [point for point in entry_points() if point.group == GROUP and point.name in names and point.dist]
    ours = [point for point in found if point.dist is not None and point.dist.name == record.distribution]
    return sorted(ours, key=lambda point: names.index(point.name))


def _bare(record: PluginRecord) -> tuple[str, str]:
    """Return the import of the kind's class and the first lines of its body. A kind without a class gets the class for
    all kinds.
    """
    kit = "rolemesh_testing:KindConformance" if record.kind == KINDS else kind_named(record.kind).conformance
    if kit:
        module, _, name = kit.partition(":")
        return f"from {module} import {name} as Base", ""
    return "from rolemesh_testing import PluginConformance as Base", f"kind = {record.kind!r}\n    "


def check_class(reference: str, kind: str | None, progress: Progress = _silent) -> list[Certificate]:
    """Run the bare class of the kind against a job's own class: ``file.py:Class``, or ``module:Class``.

    If `kind` is not given, the base class decides the kind. Raises `PluginError` if the class does not exist or is no
    plugin.
    """
    _check_kit()
    module, _, name = reference.rpartition(":")
    target = f"{Path(module).resolve()}:{name}" if module.endswith(".py") else reference
    try:
        (code := ImportRef(target)).check()
        found = code.resolve()
    except (Exception, SystemExit) as error:
        what = f"{reference} cannot be imported: {type(error).__name__}: {error}"
        raise PluginError(what, remedy="correct it; the path of a file is relative to the working folder") from error
    of = [each.name for each in kinds().values() if isinstance(found, type) and issubclass(found, each.base_class())]
    if kind is None and len(of) != 1:
        remedy = f"derive it from the base class of one, or say --kind, one of {', '.join(kinds())}"
        raise PluginError(f"{reference} is a plugin of no kind", remedy=remedy)
    start, body = _bare(PluginRecord(kind or of[0], name, "", "", target))
    load = f"from rolemesh.api.import_ref import ImportRef\n\nPlugin = ImportRef({target!r}).resolve()"
    results = _run_class(f"{start}\n{load}", f"{body}plugin = Plugin", progress)
    return [msgspec.structs.replace(one, bare=True) for one in _certificates(results, ())]


def check_folder(path: Path, records: Sequence[PluginRecord], progress: Progress = _silent) -> list[Certificate]:
    """Run the conformance classes in the tests below `path`. `records` are the installed plugins.

    Raises `PluginError` if there are none, or if pytest cannot collect them.
    """
    _check_kit()
    found = _run([str(path), "--conformance-only"], progress)
    if not found:
        raise PluginError(
            "there is no conformance class in its tests",
            where=str(path),
            remedy="subclass one of rolemesh_testing, e.g. class TestMine(WorkloadConformance): plugin = 'mine'",
        )
    return _certificates(found, records)


def _check_kit() -> None:
    if find_spec("pytest") is None or find_spec("hypothesis") is None:
        raise PluginError("the conformance kit needs pytest and hypothesis", remedy="pip install 'rolemesh[test]'")


def _editable(record: PluginRecord) -> Path | None:
    """Return the project's folder if the distribution is installed from one (PEP 610). The kernel has its own tests."""
    told = distribution(record.distribution).read_text("direct_url.json")
    about = json.loads(told) if told else {}
    if not about.get("dir_info", {}).get("editable") or record.distribution == "rolemesh":
        return None
    folder = Path(unquote(urlparse(about["url"]).path))
    return folder if folder.is_dir() else None


def _run_class(start: str, body: str, progress: Progress, *arguments: str) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory(prefix="rolemesh-check-") as folder:
        test = Path(folder, "test_conformance.py")
        test.write_text(f"{start}\n\n\nclass TestConformance(Base):\n    {body}\n", encoding="utf-8")
        return _run([str(test), "--rootdir", folder, "--conformance-only", *arguments], progress)


def _run(arguments: Sequence[str], progress: Progress) -> list[dict[str, Any]]:
    """Run pytest in a process of its own, and return the report of the kit's pytest plugin."""
    with tempfile.TemporaryDirectory(prefix="rolemesh-check-") as folder:
        report = Path(folder, "report.json")
        command = [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", f"--conformance-report={report}"]
        environ = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
        lines = []
        with subprocess.Popen(
            [*command, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environ
        ) as process:
            for line in process.stdout or ():
                lines.append(line.rstrip())
                if "::" in line and line.rstrip().endswith("%]"):
                    progress(line.partition(" ")[0].rpartition("::")[2])
        results: list[dict[str, Any]] = json.loads(report.read_text()) if report.exists() else []
    if process.returncode not in (0, 1, 5) or (not results and process.returncode != 5):
        raise PluginError(
            "the conformance tests could not be run:\n" + "\n".join(lines[-25:]),
            where=arguments[0],
            remedy="run pytest on them, and mend what it says",
        )
    return results


def _certificates(results: Sequence[dict[str, Any]], records: Sequence[PluginRecord]) -> list[Certificate]:
    """Return a certificate for each plugin that has results, in the order of the first results."""
    by_plugin: dict[tuple[str, str], list[Checked]] = {}
    for result in results:
        test = Checked(result["test"], result["outcome"], result["message"], result["reason"], result["seconds"])
        by_plugin.setdefault((result["kind"], result["plugin"]), []).append(test)
    return [_certificate(kind, name, tests, records) for (kind, name), tests in by_plugin.items()]


def _certificate(kind: str, name: str, tests: Sequence[Checked], records: Sequence[PluginRecord]) -> Certificate:
    from packaging.specifiers import SpecifierSet

    from rolemesh_testing.kernel_requirement import kernel_requirements

    record = next((r for r in records if r.kind == kind and r.name == name), None)
    kernel, requires = version("rolemesh"), ""
    if record is not None and record.distribution != "rolemesh":
        requires = ",".join(str(need.specifier) for need in kernel_requirements(record.distribution))
    elif record is not None:
        requires = f"=={kernel}"
    return Certificate(
        kind,
        name,
        record.distribution if record is not None else "",
        record.version if record is not None else "",
        requires,
        kernel,
        SpecifierSet(requires).contains(kernel, prereleases=True),
        tuple(tests),
    )
