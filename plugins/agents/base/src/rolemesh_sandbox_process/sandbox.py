"""The sandbox `guarded`: commands in namespaces of the kernel, or as plain processes if the kernel refuses them."""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import BaseModel, Field

from rolemesh_agents import AgentError, Limits
from rolemesh_sandbox_process.guard.namespaces import INSIDE
from rolemesh_sandbox_process.guarded import HELP, GuardedOptions, GuardedSandbox, Isolation

__all__ = ["ProcessOptions", "ProcessSandbox"]

_NAMESPACES = Isolation("namespaces", INSIDE, private=True, own_users=True)


class ProcessOptions(GuardedOptions, extra="forbid"):
    """Options of the sandbox `guarded`."""

    isolation: Literal["auto", "namespaces", "none"] = Field(
        "auto",
        description="`namespaces`: refuse to work without them; `none`: plain processes; `auto`: try namespaces first",
    )


class ProcessSandbox(GuardedSandbox):
    """Runs commands with limits, without the rank's environment variables, and without a network.

    If the kernel has namespaces for this user, commands see no other processes, and can write only in their folder.
    """

    Options: ClassVar[type[BaseModel]] = ProcessOptions
    options: ProcessOptions

    def isolation(self, folder: Path, limits: Limits) -> Isolation:
        """Return namespaces if the kernel allows them."""
        wanted = self.options.isolation
        refusal = "" if wanted == "none" else self.refusal(folder, limits, _NAMESPACES)
        if wanted == "namespaces" and refusal:
            what = f"the kernel refuses namespaces: {refusal}"
            raise AgentError(what, remedy=f"{HELP}, or write isolation: auto, which works with fewer guarantees")
        if wanted != "none" and not refusal:
            return _NAMESPACES
        return self._plain(folder, limits, refusal or "isolation: none")

    def _plain(self, folder: Path, limits: Limits, why: str) -> Isolation:
        """Return plain processes. As root, commands run as a user without rights, who exists only for this sandbox."""
        root = os.getuid() == 0
        user = _USERS + secrets.randbelow(_USERS) if root else 0
        gaps = _plain_gaps(why, root=root)
        plain = Isolation("none", str(folder.resolve()), False, user=user, unenforced=gaps, reason=why)
        if refusal := self.refusal(folder, limits, plain):
            remedy = f"{HELP}. Without them, {'a user without rights' if root else 'commands'} must be able to run it"
            raise AgentError(f"commands cannot run as plain processes: {refusal}", remedy=remedy)
        return plain


def _plain_gaps(why: str, *, root: bool) -> tuple[str, ...]:
    others = "all files that every user may" if root else "all files of this user"
    remain = "" if root else ", and remain"
    gaps = [
        f"Commands can read and write {others} ({why}).",
        f"Commands can see other processes ({why}).",
        f"Files outside of the folder, as in /dev/shm, do not count for `disk_mb`{remain} ({why}).",
        "Outputs contain the real path of the folder, so they differ from sandbox to sandbox.",
    ]
    if not root:
        gaps.append(f"Commands can signal and read other processes of this user, and end their own guard ({why}).")
    return tuple(gaps)


_USERS = 1_000_000_000
"""First number of the users that exist only for one sandbox."""
