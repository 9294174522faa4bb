"""The sandbox: each command in namespaces of its own, which the program ``unshare`` of util-linux makes."""

import shutil
from pathlib import Path
from typing import ClassVar

from pydantic import BaseModel, Field
from rolemesh_agents import AgentError, Limits
from rolemesh_sandbox_process import GuardedOptions, GuardedSandbox, Isolation

__all__ = ["{{ cookiecutter.__class }}"]


class UnshareOptions(GuardedOptions, extra="forbid"):
    """Options in the job file."""

    unshare: str = Field("unshare", description="The program: a name on the path, or a path.")


class {{ cookiecutter.__class }}(GuardedSandbox):
    """Runs commands without a network and without other processes. The guard enforces the limits.

    Commands can write all files of this user: add what your machine has against that.
    """

    Options: ClassVar[type[BaseModel]] = UnshareOptions
    options: UnshareOptions

    def isolation(self, folder: Path, limits: Limits) -> Isolation:
        """Return the program and arguments before each command, and what they do not protect against."""
        program = shutil.which(self.options.unshare)
        if program is None:
            raise AgentError(f"there is no program {self.options.unshare}", remedy="install util-linux")
        prefix = [program, "--user", "--map-current-user", "--mount-proc", "--pid", "--fork", "--kill-child"]
        prefix += [] if limits.network else ["--net"]
        gaps = (
            "Commands can read and write all files of this user.",
            "Outputs contain the real path of the folder, so they differ from sandbox to sandbox.",
        )
        inside = str(folder.resolve())
        found = Isolation("prefix", inside, private=False, prefix=[*prefix, "--"], own_users=True, unenforced=gaps)
        if refusal := self.refusal(folder, limits, found):
            raise AgentError(f"{program} cannot start commands: {refusal}", remedy="allow namespaces of users")
        return found
