"""The time before a command line starts its work: ``import rolemesh``, and listing 50 installed plugins."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from importlib.metadata import distributions
from pathlib import Path

from tests.wheels import write_wheel

from benchmarks.report import Report, ratios
from benchmarks.running import BenchmarkError

KINDS = {
    "workloads": ("Workload", ""),
    "schedulers": ("Scheduler", "place(self, request, cluster, plan)"),
    "failover": ("FailoverLevel", "recover(self, failure, view)"),
    "observers": ("Observer", "event(self, event)"),
    "diagnosers": ("Diagnoser", "diagnose(self, failure, view)"),
}
PLUGIN = """
import numpy as np
from pydantic import BaseModel, Field

from rolemesh import {base}, hookimpl


class Plugin({base}):
    class Options(BaseModel, extra="forbid"):
        size: int = Field(default=1, ge=1, description="How much of it.")
{hook}"""
HOOK = """
    @hookimpl
    def {hook}:
        return None
"""
COMMANDS: Mapping[str, Sequence[str]] = {
    "python -c pass": ("-c", "pass"),
    "import rolemesh": ("-c", "import rolemesh"),
    "rolemesh plugins list": ("-m", "rolemesh.cli", "plugins", "list"),
    "pip list": ("-m", "pip", "--disable-pip-version-check", "list"),
}


def measure(quick: bool) -> Report:
    """``import rolemesh`` takes ≤ 4 × an empty process, and the list of 50 plugins no longer than ``pip list``."""
    report = Report("imports", "new processes: import rolemesh, and the list of 50 installed plugins", quick)
    rounds, plugins = (1, 5) if quick else (15, 50)
    found: dict[str, list[float]] = {title: [] for title in COMMANDS}
    with tempfile.TemporaryDirectory(prefix="rolemesh-bench-") as folder:
        site = install(Path(folder), plugins)
        environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(site), *_path()])}
        check(environ, folder, plugins)
        for number in range(rounds + 1):
            for title, arguments in COMMANDS.items():
                seconds = timed(arguments, environ, folder)
                if number:  # the first round writes what Python caches of the modules
                    found[title].append(seconds * 1000)
    for title, samples in found.items():
        report.row(title, "ms", samples)
    listed = found["rolemesh plugins list"]
    share = ratios(found["import rolemesh"], found["python -c pass"])
    report.claim("import rolemesh / an empty process", share, at_most=4)
    report.claim(f"rolemesh plugins list, {plugins} plugins / pip list", ratios(listed, found["pip list"]), at_most=1)
    report.settings = {"plugins": plugins, "other distributions": sum(1 for _ in distributions()), "rounds": rounds}
    report.notes.append(
        "every sample is a process of its own, from its start to its end, after a round that is not counted; each "
        "plugin is a wheel that pip has installed, with one entry point; both lists read the metadata of every "
        "distribution there is"
    )
    return report


def install(folder: Path, count: int) -> Path:
    """The folder in which `count` plugins of all kinds are installed, each a distribution of its own."""
    wheels = []
    for number in range(count):
        kind = list(KINDS)[number % len(KINDS)]
        base, hook = KINDS[kind]
        source = PLUGIN.format(base=base, hook=HOOK.format(hook=hook) if hook else "")
        name = f"rolemesh-tiny-{number}"
        points = f"[rolemesh.{kind}]\ntiny-{number} = {name.replace('-', '_')}:Plugin\n"
        wheels.append(write_wheel(folder / "wheels", "0.1.0", name, source=source, entry_points=points))
    site = folder / "site"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*pip, "--target", str(site), *map(str, wheels)], check=True, capture_output=True)
    return site


def check(environ: Mapping[str, str], folder: str, plugins: int) -> None:
    """Raise `BenchmarkError` unless the list has the plugins, and they are in order."""
    command = [sys.executable, *COMMANDS["rolemesh plugins list"], "--json"]
    done = subprocess.run(command, env=environ, cwd=folder, capture_output=True, text=True, check=True)
    ours = [row for row in json.loads(done.stdout) if row["distribution"].startswith("rolemesh-tiny-")]
    if len(ours) != plugins or any(row["status"] != "available" for row in ours):
        raise BenchmarkError(f"{plugins} plugins were installed, and listed were {ours}")


def timed(arguments: Sequence[str], environ: Mapping[str, str], folder: str) -> float:
    """Seconds from the start of a new Python to its end."""
    began = time.perf_counter()
    subprocess.run([sys.executable, *arguments], env=environ, cwd=folder, stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - began


def _path() -> list[str]:
    return [each for each in os.environ.get("PYTHONPATH", "").split(os.pathsep) if each]
