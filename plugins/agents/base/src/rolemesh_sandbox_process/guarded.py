"""The base class of sandboxes whose commands a guard starts."""

from __future__ import annotations

import os
import sys
import tempfile
import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from socket import socket
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, Field

from rolemesh_agents import AgentError, Limits, Result, Sandbox, SandboxLostError
from rolemesh_sandbox_process.archive import pack, unpack
from rolemesh_sandbox_process.client import PACKAGE, GuardProcess
from rolemesh_sandbox_process.guard.emptying import empty, remove

__all__ = ["HELP", "GuardedOptions", "GuardedSandbox", "Isolation"]

HELP = "allow namespaces (sysctl kernel.unprivileged_userns_clone=1, docker --security-opt seccomp=unconfined …)"
_OWN = ("/", "/dev", "/proc", "/run", "/tmp", "/tmp/sandbox")
_PATH = "/usr/local/bin:/usr/bin:/bin"
_COARSE_CLOCK = 5
"""CLOCK_REALTIME_COARSE of Linux, for which Python has no name."""


class GuardedOptions(BaseModel, extra="forbid"):
    """Options of all sandboxes with a guard."""

    python: str = Field("", description="Python interpreter of `cell`, and `python` of commands; empty: the job's own")
    shell: str = Field("/bin/sh", description="shell that runs command lines, with `-c`")
    env: dict[str, str] = Field(
        default_factory=dict, description="environment variables of commands, beyond the few standard ones"
    )


@dataclass(frozen=True)
class Isolation:
    """How the guard starts a command.

    - `kind`: "namespaces", "none", or "prefix": below the program and arguments in `prefix`, which must run the rest of
      its command line as a child or in its own place, and pass on descriptor 9.
    - `inside`: path of the folder as commands see it.
    - `root`: for "namespaces": the folder whose files commands see instead of the machine's.
    - `private`: whether commands have a /tmp of their own there. Otherwise they get a folder for temporary files.
    - `own_users`: whether the kernel counts the processes of commands alone, because of a namespace of users.
    - `user`: number of the user that commands run as; 0: that of this process.
    - `unenforced`: see `Sandbox.unenforced`.
    - `reason`: why commands are plain processes, if they are.
    """

    kind: Literal["namespaces", "prefix", "none"]
    inside: str
    private: bool
    prefix: Sequence[str] = ()
    root: str = ""
    own_users: bool = False
    user: int = 0
    unenforced: Sequence[str] = field(default_factory=tuple)
    reason: str = ""


class GuardedSandbox(Sandbox):
    """Runs commands below a guard, a small process that enforces the limits and ends when the rank ends.

    A subclass says in `isolation` how commands start. Its `Options` derive from `GuardedOptions`.
    """

    Options: ClassVar[type[BaseModel]] = GuardedOptions
    options: GuardedOptions

    def __init__(self, options: Any) -> None:
        super().__init__(options)
        self._setup: dict[str, Any] = {}
        self._guards: dict[str, GuardProcess] = {}
        self._unenforced: Sequence[str] = ()
        self._used_cells = False
        self._shown: tuple[str, ...] = ()
        self._limits = Limits()
        self._begun: list[int] = []
        """The times in ns at which the folder was opened or restored, and at which commands began."""
        self._changing = threading.Lock()
        """Held by `close`, and while a guard starts: a client allows `close` in another thread."""

    @abstractmethod
    def isolation(self, folder: Path, limits: Limits) -> Isolation:
        """Return how commands start on this machine. Raises `AgentError` if they cannot."""

    def open(self, folder: Path, limits: Limits) -> None:
        """See `Sandbox`."""
        found, self._limits = self.isolation(folder, limits), limits
        self._unenforced = found.unenforced
        self._setup, self._begun = self.setup(folder, limits, found), [_now()]

    def refusal(self, folder: Path, limits: Limits, isolation: Isolation) -> str:
        """Return why a command cannot start in this way here, or an empty text. Each process tries it once."""
        key = (os.getpid(), type(self), isolation.kind, isolation.root, limits.network, self.options.model_dump_json())
        if key not in _TRIED:
            guard = GuardProcess(self.setup(folder, limits, isolation))
            try:
                found = guard.ask({"run": self.trial, "stdin": "", "seconds": 30.0})
            finally:
                guard.close()
            told = f"{found['output'].strip()} (exit status {found['code']})"
            _TRIED[key] = found["error"] or ("" if found["code"] == 0 else told)
        return _TRIED[key]

    def setup(self, folder: Path, limits: Limits, isolation: Isolation) -> dict[str, Any]:
        """Return the settings of a guard."""
        temporary = "" if isolation.private else tempfile.mkdtemp(prefix="rolemesh-sandbox-")
        return {
            "owner": os.getpid(),
            "package": PACKAGE,
            "isolation": isolation.kind,
            "prefix": list(isolation.prefix),
            "root": isolation.root,
            "user": isolation.user,
            "alone": isolation.own_users or isolation.user != 0,
            "folder": str(folder.resolve()),
            "inside": isolation.inside,
            "tmp": temporary,
            "keep": self.visible(limits),
            "limits": limits.model_dump(),
            "env": self.environment(isolation.inside, temporary or "/tmp"),
            "python": self.python,
            "port": 0,
            "remove": False,
        }

    @property
    def python(self) -> str:
        """Path of the interpreter."""
        return self.options.python or sys.executable

    @property
    def trial(self) -> list[str]:
        """A command that every sandbox of this class can run."""
        return [self.python, "-I", "-S", "-c", ""]

    def visible(self, limits: Limits) -> list[str]:
        """Return the paths of Python and of this package, which commands need wherever they are. With a network, the
        file with the name servers, too.
        """
        paths = {PACKAGE, sys.prefix, sys.base_prefix, *self._shown}
        for python in (self.python, os.path.realpath(self.python), os.path.realpath(sys.executable)):
            paths.add(os.path.dirname(os.path.dirname(python)))
        if limits.network:
            paths.add(os.path.realpath("/etc/resolv.conf"))
        return sorted(path for path in paths if path not in ("/", "/usr") and os.path.exists(path))

    def environment(self, home: str, temporary: str) -> Mapping[str, str]:
        """Return all environment variables of commands: none of this process, which may have secrets."""
        fixed = {
            "PATH": f"{os.path.dirname(self.python)}:{_PATH}",
            "HOME": home,
            "TMPDIR": temporary,
            "LANG": "C.UTF-8",
            "TZ": "UTC",
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONHASHSEED": "0",
        }
        return fixed | self.options.env

    def run(self, command: str | Sequence[str], *, stdin: str = "", seconds: float | None = None) -> Result:
        """See `Sandbox`."""
        arguments = [self.options.shell, "-c", command] if isinstance(command, str) else list(command)
        return self._ask("run", {"run": arguments, "stdin": stdin}, seconds)

    def run_client(
        self,
        command: Sequence[str],
        on_listen: Callable[[socket], None],
        *,
        port: int,
        env: Mapping[str, str],
        stdin: str = "",
        visible: Sequence[Path] = (),
    ) -> Result:
        """See `Sandbox`. If the rank is killed meanwhile, the guard removes the folder."""
        self._shown = tuple(map(_visible, visible))
        setup = self._client_setup(port)
        setup["env"] = {**setup["env"], **env}
        request = {"client": list(command), "stdin": stdin, "seconds": self._limits.seconds}
        self._begun.append(_next_tick())
        guard = self._guard("client", setup)
        try:
            found = guard.ask_client(request, on_listen)
        finally:
            guard.close()
            self._guards.pop("client", None)
        if found["error"]:
            what = f"the sandbox cannot start a client: {found['error']}"
            raise AgentError(what, remedy="let the sandbox have a network of its own with a loopback interface")
        return self._result(found)

    def _client_setup(self, port: int) -> dict[str, Any]:
        """Return the settings of the guard of a client. Raises `AgentError` if it would have no network of its own."""
        folder = Path(self._open_setup()["folder"])
        found = self.isolation(folder, self._limits)
        if found.kind == "none":
            what = f"a client needs a network of its own, and plain processes have none ({found.reason})"
            raise AgentError(what, remedy=f"{HELP}, and do not write isolation: none")
        if self._limits.network:
            what = "a client has a network of its own, and the limits of the sandbox allow that of the machine"
            raise AgentError(what, remedy="write network: false in the limits of the sandbox")
        return {**self.setup(folder, self._limits, found), "port": port, "remove": True}

    def cell(self, code: str, *, seconds: float | None = None) -> Result:
        """See `Sandbox`."""
        self._used_cells = True
        return self._ask("cell", {"cell": code}, seconds)

    def snapshot(self) -> bytes | None:
        """Return a tar archive of the folder. None after a cell, since variables cannot be stored, and for a folder
        that is too large or too deep: a model's mistake is no failure.
        """
        if self._used_cells:
            return None
        try:
            return pack(Path(self._setup["folder"]), self._setup["limits"]["disk_mb"], self._begun)
        except OSError as error:
            raise AgentError(f"the folder of the sandbox cannot be stored: {error}") from error

    def restore(self, state: bytes) -> None:
        """See `Sandbox`."""
        unpack(state, Path(self._setup["folder"]))
        self._begun = [_now()]

    def unenforced(self) -> Sequence[str]:
        """See `Sandbox`."""
        return self._unenforced

    def close(self) -> None:
        """End all processes, and empty the folder, since commands may have made it hard to remove."""
        with self._changing:
            for which in list(self._guards):
                if guard := self._guards.pop(which, None):
                    guard.close()
            if not self._setup:
                return
            for each, end in ((self._setup["folder"], empty), (self._setup["tmp"], remove)):
                if each and os.path.isdir(each):
                    end(each)
            self._setup = {}

    def _ask(self, which: str, request: dict[str, Any], seconds: float | None) -> Result:
        guard = self._guard(which, self._open_setup())
        limit = self._limits.seconds
        self._begun.append(_next_tick())
        try:
            return self._result(guard.ask({**request, "seconds": min(seconds or limit, limit)}))
        except SandboxLostError:
            self._guards.pop(which, None)
            raise

    def _guard(self, which: str, setup: Mapping[str, Any]) -> GuardProcess:
        with self._changing:
            self._open_setup()
            if which not in self._guards:
                self._guards[which] = GuardProcess(setup)
            return self._guards[which]

    def _open_setup(self) -> dict[str, Any]:
        if not self._setup:
            raise AgentError("the sandbox is not open", remedy="call open first, and nothing after close")
        return self._setup

    def _result(self, found: dict[str, Any]) -> Result:
        if error := found.pop("error"):
            where = f"folder {self._setup.get('folder', 'closed')}"
            raise AgentError(f"the sandbox cannot start commands: {error}", where=where)
        return Result(**found)


def _now() -> int:
    """Return the time that Linux writes on a file that changes now, in ns."""
    return time.clock_gettime_ns(_COARSE_CLOCK)


def _next_tick() -> int:
    """Wait until files get another time of change than before, at most some milliseconds. Return it, in ns."""
    before = _now()
    while (now := _now()) == before:
        time.sleep(0.0005)
    return now


def _visible(path: Path) -> str:
    """Return a path that a client may read. Raises `AgentError` if there is none, or commands have one of their own."""
    found = str(path.resolve())
    if not os.path.exists(found) or found in _OWN:
        what = "a client cannot read this folder: it does not exist, or commands have one of their own at its place"
        raise AgentError(what, where=found, remedy=f"use a folder that exists, other than {', '.join(_OWN)}")
    return found


_TRIED: dict[tuple[Any, ...], str] = {}
"""The ways that this process has tried, and why each failed: an empty text if it did not."""
