"""Fills .venv with a group of requirements/lock.txt and the plugins of that group, editable.

``.venv/bin/python requirements/install.py GROUP``, run by requirements/install.sh. Stdlib only: nothing is installed
yet. uv installs, told what pip is configured to do; where it cannot, or is not to be had, pip does. The build of torch
is chosen (torch_build.py) from what the indexes answer, before anything large is downloaded.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote, urlsplit

sys.path.insert(0, str(Path(__file__).parent))

import groups
import pip_settings
import progress
import torch_build
from torch_build import Choice, Offer, Probe, Refusal

ROOT = Path(__file__).resolve().parents[1]
REQUIREMENTS = ROOT / "requirements"
COMMAND = os.environ.get("ROLEMESH_COMMAND") or "make install"
DRIVER = ("/proc/driver/nvidia/version", "/dev/nvidiactl")


class Failure(Exception):
    """What ends the installation: a sentence, and the command that helps."""

    def __init__(self, reason: str, remedy: str = "") -> None:
        super().__init__(f"error: {reason}" + (f"\n  → {remedy}" if remedy else ""))


@dataclass
class Installer:
    """pip of this environment, or uv with pip's settings."""

    uv: str | None
    arguments: Sequence[str] = ()
    variables: Mapping[str, str] = field(default_factory=dict)

    def only(self, index: str) -> Installer:
        """The same, asking this index instead of the configured ones."""
        if self.uv is None:
            return Installer(None, ["--index-url", index])
        pairs = zip(self.arguments[::2], self.arguments[1::2], strict=True)
        kept = [part for pair in pairs for part in pair if pair[0] not in pip_settings.SOURCES]
        return Installer(self.uv, [*kept, "--default-index", index], self.variables)

    def run(self, *arguments: str, stdin: str = "", quick: bool = False) -> subprocess.CompletedProcess[str]:
        """A subcommand of uv, with what both said; `quick` gives up early on an index that does not answer."""
        environ = {**os.environ, **self.variables}
        if quick:
            environ |= {"UV_HTTP_RETRIES": "1", "UV_HTTP_TIMEOUT": "20", "UV_HTTP_CONNECT_TIMEOUT": "5"}
        command = [self.uv or "", "pip", *arguments, "--python", sys.executable, *self.arguments]
        return subprocess.run(command, input=stdin, capture_output=True, text=True, env=environ, check=False)

    def install(self, requirements: Sequence[str], *options: str, compiled: bool = False) -> None:
        """Install these, without what they require. Raises Failure, with what the installer said."""
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
            file.write("\n".join(requirements))
            file.flush()
            common = [*self.arguments, "--no-deps", "--no-build-isolation", *options, "--requirement", file.name]
            if self.uv is None:
                command = pip("install", "--no-input", "--progress-bar", "off", *common)
            else:
                command = [self.uv, "pip", "install", "--color", "never", "--python", sys.executable, *common]
                command += ["--compile-bytecode"] if compiled else []
            environ = {**os.environ, **self.variables}
            names = {_name(each) for each in requirements}
            code = progress.run(command, environ, len(names), lambda: _there(names), pip=self.uv is None)
        if code:
            raise Failure(
                f"{'pip' if self.uv is None else 'uv'} ended with exit code {code}; its message is above",
                f"{COMMAND}    (goes on where this stopped)",
            )

    def uninstall(self, names: Sequence[str]) -> None:
        """Remove those of them that are installed."""
        here = [name for name in names if _installed(name)]
        if here and self.uv:
            subprocess.run([self.uv, "pip", "uninstall", "-q", "--python", sys.executable, *here], check=True)
        elif here:
            subprocess.run(pip("uninstall", "--quiet", "--yes", *here), check=True)


def pip(*arguments: str) -> list[str]:
    """A command line of this environment's pip, or of the pip that made it."""
    base = os.environ.get("ROLEMESH_PIP")
    own = [base, "-m", "pip", "--python", sys.executable] if base else [sys.executable, "-m", "pip"]
    return [*own, "--disable-pip-version-check", *arguments]


def bootstrap(setuptools: str) -> Installer:
    """setuptools and uv, by pip. Raises Failure within seconds where no index answers."""
    uv = re.findall(r"^uv==\S+$", (REQUIREMENTS / "installer.txt").read_text(), flags=re.MULTILINE)
    get = pip("install", "--quiet", "--no-deps", "--retries", "1")
    done = subprocess.run([*get, setuptools], capture_output=True, text=True, check=False)
    if done.returncode:
        broken = re.findall(r"connection broken by '(.*)'", done.stderr)
        said = [broken[-1].rsplit(": ", 1)[-1].rstrip("')")] if broken else done.stderr.splitlines()
        said += [line.removeprefix("ERROR: ").strip() for line in done.stderr.splitlines() if line.startswith("ERROR")]
        raise Failure(
            f"pip could not install {setuptools}: {'; '.join(dict.fromkeys(said[:1] + said[-1:]))}",
            f"{COMMAND} PIP_INDEX_URL=https://…    (an index that answers; behind a proxy: HTTPS_PROXY=http://…)",
        )
    own = Path(sys.executable).with_name("uv")
    if subprocess.run([*get, *uv], capture_output=True, check=False).returncode or not own.exists():
        print("the package index has no uv, so pip installs, which takes some minutes longer")
        return Installer(None)
    listed = subprocess.run(pip("config", "list"), capture_output=True, text=True, check=False).stdout
    told = pip_settings.translate(pip_settings.settings(listed), os.environ)
    if told.unknown:
        print(f"uv has no word for pip's setting {', '.join(told.unknown)}, so pip installs")
        return Installer(None)
    if "UV_CACHE_DIR" not in os.environ and not _cacheable():
        told.variables["UV_NO_CACHE"] = "true"
    return Installer(str(own), told.arguments, told.variables)


def _cacheable() -> bool:
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "uv"
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return os.access(folder, os.W_OK)


def ask(installer: Installer, probe: Probe) -> Offer | None:
    """What an index has, without downloading it; None if it has no such torch or does not answer."""
    if installer.uv is None:
        return _ask_pip(probe)
    if probe.index:
        installer = installer.only(probe.index)
    alone = ["--no-deps"] if "+" in probe.requirement else []  # the label says which build it is
    compiled = ("compile", "-", "--quiet", "--no-header", "--no-annotate", *alone)
    done = installer.run(*compiled, stdin=probe.requirement, quick=True)
    pinned = dict(re.findall(r"^([\w.-]+)={2,3}([^\s;]+)", done.stdout, flags=re.MULTILINE))
    if done.returncode or "torch" not in pinned:
        return None
    return Offer(pinned["torch"], torch_build.build_of(pinned["torch"], pinned))


def _ask_pip(probe: Probe) -> Offer | None:
    """Ask pip for the versions. A version without a label counts as the CUDA build, which PyPI has."""
    index = ["--index-url", probe.index] if probe.index else []
    done = subprocess.run(
        pip("index", "versions", "torch", "--retries", "1", "--timeout", "20", *index),
        capture_output=True,
        text=True,
        check=False,
    )
    versions = re.findall(r"[^\s,]+", (re.findall(r"^Available versions: (.*)$", done.stdout, re.MULTILINE) or [""])[0])
    plain = probe.requirement.replace("===", "==").removeprefix("torch==")
    for version in versions:
        if version == plain or ("===" not in probe.requirement and version.split("+")[0] == plain):
            return Offer(version, torch_build.build_of(version, ["nvidia"]))
    return None


def choose(installer: Installer, want: str, version: str) -> Choice | Refusal:
    """Ask the indexes until the choice is made."""
    index = os.environ.get("ROLEMESH_TORCH_INDEX") or torch_build.CPU_INDEX
    answers: dict[Probe, Offer | None] = {}
    while isinstance(step := torch_build.decide(want, version, answers, index), Probe):
        answers[step] = ask(installer, step)
    return step


def driver() -> bool:
    """Whether this machine has an NVIDIA driver."""
    listed = False
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        done = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=20, check=False)
        listed = done.returncode == 0 and "GPU" in done.stdout
    return torch_build.has_driver(listed, [os.path.exists(path) for path in DRIVER])


def editables(installer: Installer, folders: Sequence[str]) -> None:
    """Install these folders editable. Raises Failure where one cannot be built."""
    purelib = Path(sysconfig.get_path("purelib"))
    with tempfile.TemporaryDirectory() as work:
        alone, out = Path(work, "setuptools"), Path(work, "wheels")
        alone.mkdir()
        out.mkdir()
        for found in (*purelib.glob("setuptools*"), purelib / "pkg_resources", purelib / "_distutils_hack"):
            (alone / found.name).symlink_to(found)
        script = str(REQUIREMENTS / "editable.py")
        done = subprocess.run([sys.executable, "-S", script, alone, out, *folders], cwd=ROOT, check=False)
        if done.returncode:
            raise Failure("a distribution of this checkout could not be built; setuptools' message is above")
        wheels = sorted(out.glob("*.whl"))
        force = "--force-reinstall" if installer.uv is None else "--reinstall"
        installer.install([wheel.as_uri() for wheel in wheels], force)
    sources = {_project(ROOT / folder): (ROOT / folder).resolve() for folder in folders}
    for name, source in sources.items():  # the wheel is gone; what is installed is the folder (PEP 610)
        (info,) = purelib.glob(f"{name.replace('-', '_')}-[0-9]*.dist-info")
        (info / "direct_url.json").write_text(json.dumps({"url": source.as_uri(), "dir_info": {"editable": True}}))


def left_behind() -> list[str]:
    """The editable distributions of rolemesh whose folder is gone, or has another one by now."""
    found = []
    for file in Path(sysconfig.get_path("purelib")).glob("rolemesh*.dist-info/direct_url.json"):
        told, name = json.loads(file.read_text()), file.parent.name.partition("-")[0].replace("_", "-")
        folder = Path(unquote(urlsplit(told["url"]).path))
        if "dir_info" in told and not ((folder / "pyproject.toml").is_file() and _project(folder) == name):
            found.append(name)
    return sorted(found)


def _project(folder: Path) -> str:
    return re.findall(r'^name = "([^"]+)"$', (folder / "pyproject.toml").read_text(), flags=re.MULTILINE)[0]


def _name(requirement: str) -> str:
    """The distribution of a line ``name==version``, or of a wheel's address."""
    return groups.canonical(
        requirement.rsplit("/", 1)[-1].split("-")[0] if "://" in requirement else groups.name_of(requirement)
    )


def _there(names: Collection[str]) -> progress.Installed:
    """What lies in the environment, or is about to: how many of these distributions, and how many files."""
    packages, modules, compiled = set(), 0, 0
    for _, folders, files in os.walk(sysconfig.get_path("purelib")):
        packages.update(groups.canonical(each.split("-")[0]) for each in folders if each.endswith(".dist-info"))
        modules += sum(each.endswith(".py") for each in files)
        compiled += sum(each.endswith(".pyc") for each in files)
    return progress.Installed(len(packages.intersection(names)), modules, compiled)


def _installed(name: str) -> bool:
    return any(Path(sysconfig.get_path("purelib")).glob(f"{name.replace('-', '[-_.]')}-[0-9]*.dist-info"))


def pycosat(installer: Installer) -> None:
    """Build what needs a C compiler, or put its stand-in there."""
    line = re.findall(r"^pycosat==\S+$", (REQUIREMENTS / "compiled.txt").read_text(), flags=re.MULTILINE)
    if _installed("pycosat"):
        return
    options = ["--no-deps", "--no-build-isolation", "--quiet", *line]
    if installer.uv is None:
        done = subprocess.run(pip("install", *options), capture_output=True, check=False)
    else:
        done = installer.run("install", *options)
    if done.returncode:
        print(
            "warning: no C compiler or Python headers here, so pycosat could not be built: reasoning-gym's task "
            "zebra_puzzles will not work, everything else does",
            file=sys.stderr,
        )
        shutil.copy(REQUIREMENTS / "stand_ins" / "pycosat.py", sysconfig.get_path("purelib"))


def main(group: str) -> None:
    """Install the group. Raises Failure."""
    lock, cuda = ((REQUIREMENTS / name).read_text() for name in ("lock.txt", "lock-cuda.txt"))
    kept = Path(sys.prefix, ".rolemesh-torch")
    try:
        want = torch_build.wanted(
            os.environ.get("ROLEMESH_TORCH"), kept.read_text().strip() if kept.exists() else None, driver()
        )
    except ValueError as error:
        raise Failure(str(error), f"{COMMAND} ROLEMESH_TORCH=cpu") from None
    pins = {groups.name_of(line): line for _, line in groups.sections(lock)}
    installer = bootstrap(pins["setuptools"])
    choice = None
    if group != groups.GROUPS[0]:
        version = pins["torch"].removeprefix("torch==")
        print(f"asking the package index which builds of torch {version} it has", flush=True)
        choice = choose(installer, want, version)
        if isinstance(choice, Refusal) and installer.uv is not None:  # where pip can get what uv cannot, pip installs
            by_pip = choose(Installer(None), want, version)
            if isinstance(by_pip, Choice) and by_pip.build == want:
                choice, installer = by_pip, Installer(None)
        if isinstance(choice, Refusal):
            size = {"any": "    (the CUDA build, 3 GB, computes on the CPU as well)"}.get(choice.instead or "", "")
            raise Failure(
                choice.reason,
                f"{COMMAND} ROLEMESH_TORCH={choice.instead}{size}"
                if choice.instead
                else f"{COMMAND} PIP_EXTRA_INDEX_URL=https://…    (an index that has torch {version})",
            )
    kept.write_text(want)
    cuda_torch = choice is not None and choice.build == "cuda"
    wanted = groups.lines(lock, cuda, group, want, cuda_torch)
    what = f", with torch's {choice.build.upper()} build" if choice else ""
    print(f"installing the {len(wanted)} packages of the group {group}{what}", flush=True)
    either = {groups.name_of(line) for text in (lock, cuda) for _, line in groups.sections(text)}
    of_build = {groups.name_of(line) for line in groups.lines(lock, cuda, groups.GROUPS[-1], want, cuda_torch)}
    installer.uninstall(sorted(either - of_build))  # of another build, which lay here before
    rest = [line for line in wanted if groups.name_of(line) != "torch"]
    if choice and choice.index:
        installer.only(choice.index).install([choice.requirement])
    elif choice:
        rest.append(choice.requirement)
    installer.install(rest, compiled=group == groups.GROUPS[-1])
    if choice:
        pycosat(installer)
    present = [str(path.parent.relative_to(ROOT / "plugins")) for path in ROOT.glob("plugins/*/*/pyproject.toml")]
    folders = [".", *(f"plugins/{each}" for each in groups.plugins(present, group))]
    print(f"installing rolemesh and {len(folders) - 1} plugins of plugins/, editable", flush=True)
    installer.uninstall(left_behind())  # what an earlier commit had would offer its plugins a second time
    editables(installer, folders)
    check = [sys.executable, str(REQUIREMENTS / "check.py")]
    if subprocess.run(check, input="\n".join(wanted), text=True, check=False).returncode:
        raise Failure("the environment is not what requirements/lock.txt says", f"make clean; {COMMAND}")


if __name__ == "__main__":
    try:
        with tempfile.TemporaryDirectory() as scratch:  # uv leaves the locks of its builds behind
            os.environ["TMPDIR"] = scratch
            main(sys.argv[1])
    except Failure as failure:
        sys.exit(str(failure))
    except KeyboardInterrupt:
        print(f"\nerror: interrupted\n  → {COMMAND}    (goes on where this stopped)", file=sys.stderr)
        sys.exit(130)
