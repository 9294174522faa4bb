"""Says every few seconds how far uv or pip is, from the lines that they print. Stdlib only."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TextIO

EVERY_S = {True: 2.0, False: 10.0}
"""Seconds between two reports, on a terminal (one line, which changes) and elsewhere (a line each)."""
NAMED = 3
"""Number of downloads that a report names."""
LOUD = re.compile(
    r"\s*([-+~] \S+==|Using |Resolved |Prepared |Installed |Uninstalled |Audited |Bytecode compiled |Building |Built )"
)
"""Lines of uv that say what goes well."""
UNITS = {"B": 1e-6, "KiB": 1.024e-3, "MiB": 1.048576, "GiB": 1073.741824}


class Installed(NamedTuple):
    """What lies in the environment: how many of the wanted packages, how many Python files, how many compiled ones."""

    packages: int
    modules: int
    compiled: int


class Heard:
    """What the lines of uv or pip tell."""

    def __init__(self) -> None:
        self.sizes: dict[str, float] = {}
        """Size in MB of each large package that uv downloads, or has downloaded."""
        self.here: set[str] = set()
        """Those of them that are there."""
        self.collected = 0
        """Number of packages that pip has downloaded, or has begun to."""
        self.doing = "asking the package index"

    def line(self, text: str) -> str:
        """Note a line; return it if it is neither progress nor success."""
        if found := re.match(r"\s*Downloading (\S+) \(([\d.]+)([KMG]?i?B)\)", text):
            self.doing = "downloading"
            self.sizes[found[1]] = float(found[2]) * UNITS.get(found[3], 0)
        elif found := re.match(r"\s*Downloaded (\S+)", text):
            self.here.add(found[1])
        elif not LOUD.match(text):
            return text
        elif text.startswith("Resolved"):
            self.doing = "downloading"
        elif text.startswith("Prepared"):
            self.doing = "installing"
        elif text.startswith("Installed"):
            self.doing = "compiling"
        return ""

    def pip(self, text: str) -> None:
        """Note a line of pip's output. Its errors go elsewhere."""
        if text.startswith(("Collecting ", "Processing ", "Requirement already satisfied")):
            self.doing, self.collected = "downloading", self.collected + 1
        elif text.startswith("Installing collected"):
            self.doing = "installing"

    def report(self, wanted: int, there: Callable[[], Installed]) -> str:
        """Return what to say of `wanted` packages, of which some are `there`."""
        if self.doing == "installing":
            return f"installed {min(there().packages, wanted)} of {wanted} packages"
        if self.doing == "compiling":
            found = there()
            return f"compiled {min(found.compiled, found.modules):,} of {found.modules:,} files to bytecode"
        if self.doing == "downloading" and self.collected:
            return f"downloaded {self.collected} of {wanted} packages"
        if self.doing == "downloading" and self.sizes:
            missing = sorted(set(self.sizes) - self.here, key=lambda name: -self.sizes[name])
            names = ", ".join(f"{name} ({self.sizes[name]:.0f} MB)" for name in missing[:NAMED])
            more = f" and {len(missing) - NAMED} more" if len(missing) > NAMED else ""
            total, done = sum(self.sizes.values()), sum(self.sizes[name] for name in self.here & self.sizes.keys())
            rest = f"; {names}{more} to come" if missing else ""
            return f"downloaded {done:.0f} of {total:.0f} MB in large packages{rest}"
        return self.doing


def run(
    command: Sequence[str], environ: Mapping[str, str], wanted: int, there: Callable[[], Installed], *, pip: bool
) -> int:
    """Run an installer of `wanted` packages, say how far it is, and return its exit code.

    `there` looks into the environment.
    On a terminal, the report is one line, which changes. What the installer says beside its progress goes to stderr.
    """
    terminal = sys.stdout.isatty()
    heard, began = Heard(), time.monotonic()
    process = subprocess.Popen(
        command, env=dict(environ), text=True, errors="replace", stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE if pip else None, stderr=None if pip else subprocess.PIPE,
    )  # fmt: skip
    stream = process.stdout if pip else process.stderr
    assert stream is not None
    hear = heard.pip if pip else lambda text: _pass_on(heard.line(text), terminal)
    ears = threading.Thread(target=_listen, args=(stream, hear), daemon=True)
    ears.start()
    while (code := _code(process, EVERY_S[terminal])) is None:
        text = f"  {_clock(time.monotonic() - began)}  {heard.report(wanted, there)}"
        if terminal:
            text = f"\r\033[K{text[: shutil.get_terminal_size().columns - 1]}"
        print(text, end="" if terminal else "\n", flush=True)
    ears.join()
    if terminal:
        print("\r\033[K", end="", flush=True)
    return code


def _code(process: subprocess.Popen[str], seconds: float) -> int | None:
    """Wait for a process; return its exit code, or None if it runs on. Whoever interrupts the wait ends the process."""
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        return None
    except BaseException:
        process.terminate()
        process.wait()
        raise


def _listen(stream: TextIO, hear: Callable[[str], object]) -> None:
    for line in stream:
        hear(line.rstrip("\n"))


def _pass_on(text: str, terminal: bool) -> None:
    if text:
        print(f"\r\033[K{text}" if terminal else text, file=sys.stderr, flush=True)


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"
