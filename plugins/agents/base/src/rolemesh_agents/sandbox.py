"""The API of a sandbox: a place where commands that a model wrote may run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from socket import socket

import msgspec
from pydantic import BaseModel, Field

from rolemesh.api.plugin import Plugin
from rolemesh_agents.errors import AgentError

__all__ = ["Limits", "Result", "Sandbox"]


class Limits(BaseModel, extra="forbid", frozen=True):
    """Limits of the commands in a sandbox."""

    seconds: float = Field(
        default=10.0, gt=0, description="time of one command; the sandbox then kills all its processes"
    )
    memory_mb: int = Field(default=512, gt=0, description="memory of one process, in 10^6 bytes")
    processes: int = Field(default=32, gt=0, description="processes at the same time")
    output_kb: int = Field(default=64, gt=0, description="kept output of one command, in 10^3 bytes; the rest is cut")
    disk_mb: int = Field(
        default=64,
        gt=0,
        description="size of the folder, in 10^6 bytes; folders in folders of 3,500 characters are too large, too",
    )
    network: bool = Field(default=False, description="whether commands may reach the network")


class Result(msgspec.Struct, frozen=True):
    """The end of a command.

    - `code`: the exit status; negative for a signal; None if the sandbox ended it.
    - `output`: stdout and stderr in the order of their lines, at most `Limits.output_kb`.
    - `ended`: the limit that ended the command (``seconds``, ``memory_mb``, ``disk_mb``, ``processes``), or "".
    - `cut`: number of bytes of the output that are missing.
    - `errors`: stderr, if it is not part of `output`; at most `Limits.output_kb`. Only `Sandbox.run_client` fills it.
    """

    code: int | None
    output: str
    ended: str = ""
    cut: int = 0
    errors: str = ""


class Sandbox(Plugin, ABC):
    """Base of sandboxes (entry-point group ``rolemesh.sandboxes``). One object is one sandbox with its own folder.

    `open` comes first and `close` last. Nothing that a command started outlives `close`, and nothing of it remains on
    the disk outside the folder. No two methods run at the same time, and all but `close` in one thread. `run_client`
    allows `close` meanwhile, in another thread.
    """

    def use_image(self, image: str) -> None:
        """Let commands see the files of this container image from `open` on, instead of the sandbox's own one."""
        what = f"a task needs the image {image}, and the sandbox {type(self).__name__} has no images"
        raise AgentError(what, remedy="choose the sandbox container")

    @abstractmethod
    def open(self, folder: Path, limits: Limits) -> None:
        """Prepare the sandbox. `folder` exists and is empty; rolemesh removes it after `close`.

        Raises `AgentError` if the sandbox cannot work on this machine, with the remedy.
        """

    @abstractmethod
    def run(self, command: str | Sequence[str], *, stdin: str = "", seconds: float | None = None) -> Result:
        """Run a shell's command line, or a program with arguments, in the folder, and wait for its end.

        `seconds` lowers the limit. Processes that the command leaves behind are ended, too.
        """

    @abstractmethod
    def cell(self, code: str, *, seconds: float | None = None) -> Result:
        """Run Python code in the interpreter of this sandbox, which keeps its variables from cell to cell.

        The value of a last expression is printed as in a notebook. After a limit ended a cell, the next one begins with
        a new interpreter, and its output says so.
        """

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
        """Run a program whose only network is one server of the caller: 127.0.0.1 and `port`. Wait for its end.

        - `on_listen`: takes the socket that listens there. The caller accepts the program's connections, and closes the
          socket. The sandbox calls it in this thread, at most once.
        - `env`: environment variables beyond those of `run`.
        - `visible`: files and folders that the program can read at their own paths.

        `Limits.seconds` ends the program. So does `close` in another thread: this method then raises an `AgentError`.
        It also raises one if the sandbox has no such network on this machine.
        """
        what = f"the sandbox {type(self).__name__} runs no client of a server outside of it"
        raise AgentError(what, remedy="choose the sandbox guarded or bubblewrap; its class lacks the method run_client")

    def snapshot(self) -> bytes | None:
        """Return the content of the folder, if nothing else has to be restored. None: the sandbox cannot; its commands
        are repeated."""
        return None

    def restore(self, state: bytes) -> None:
        """Fill the folder from a value of `snapshot`, after `open`."""
        raise NotImplementedError

    def unenforced(self) -> Sequence[str]:
        """Return what this sandbox cannot enforce on this machine, one sentence each. Called after `open`."""
        return ()

    @abstractmethod
    def close(self) -> None:
        """End all processes of the sandbox. It may be called twice."""
