"""The sandbox `container`."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from pydantic import BaseModel, Field

from rolemesh_agents import AgentError, Limits
from rolemesh_sandbox_container.images import Image, find_image, inside_of
from rolemesh_sandbox_process import INSIDE, GuardedOptions, GuardedSandbox, Isolation
from rolemesh_sandbox_process.guard.watch import folder_size
from rolemesh_sandbox_process.guarded import HELP

__all__ = ["ContainerOptions", "ContainerSandbox"]


class ContainerOptions(GuardedOptions, extra="forbid"):
    """Options of the sandbox `container`."""

    image: str = Field(
        description="the image of tasks that name none: a name for podman or docker, or the path of a root file system"
    )
    engine: str = Field("", description="podman or docker: a name on the path, or a path; empty: the first one found")
    folder: str = Field(
        "",
        description="path of the sandbox's folder inside, which begins with what the image has there; empty: the "
        "image's working directory",
    )
    python: str = Field("python3", description="the image's interpreter, of `cell`")


class ContainerSandbox(GuardedSandbox):
    """Runs commands in namespaces of the kernel, with the files of a container image. They see no files of the machine.

    The image's files are read-only, except those in the sandbox's folder. No daemon takes part: podman or docker only
    fetches and unpacks the image, once per machine. Commands run as the job's user, whatever the image says.
    """

    Options: ClassVar[type[BaseModel]] = ContainerOptions
    options: ContainerOptions
    _image: Image | None = None
    _name: str = ""

    def use_image(self, image: str) -> None:
        """See `Sandbox`."""
        self._name = image

    def open(self, folder: Path, limits: Limits) -> None:
        """See `Sandbox`. The folder begins with what the image has at its place."""
        self._check_place()
        self._image = find_image(self._name or self.options.image, self.options.engine, _cache())
        content, limit = inside_of(self._image.root, self.inside), int(limits.disk_mb * 1e6)
        if content is not None and (size := folder_size(str(content), limit)) > limit:
            what = f"the image has more than {limits.disk_mb} MB in {self.inside}, at least {size / 1e6:.0f}"
            raise AgentError(what, remedy="raise disk_mb in the limits of the sandbox")
        super().open(folder, limits)
        try:
            if content is not None:
                shutil.copytree(content, folder, symlinks=True, dirs_exist_ok=True)
        except OSError as error:  # of a whole tree, `args` has them all
            told = error.args[0][0][-1] if isinstance(error, shutil.Error) else error.strerror
            raise AgentError(f"{self.inside} of the image cannot be copied: {told}", where=str(folder)) from error

    def _check_place(self) -> None:
        """A task comes from a data set, which shall not choose what commands see of this machine."""
        parents = [os.path.dirname(os.path.realpath(each)) for each in (self._name, self.options.image)]
        if os.path.isabs(self._name) and (not os.path.isabs(self.options.image) or parents[0] != parents[1]):
            what, remedy = "the image of a task is a folder of this machine", "put it beside that of the option image"
            raise AgentError(what, where=self._name, remedy=remedy)

    @property
    def inside(self) -> str:
        """Path of the folder as commands see it."""
        found = self.options.folder or (self._image.folder if self._image else "")
        return INSIDE if found in ("", "/") else os.path.normpath(found)

    def isolation(self, folder: Path, limits: Limits) -> Isolation:
        """Return namespaces with the root of the image. Raises `AgentError` if the kernel refuses them."""
        assert self._image is not None
        found = Isolation("namespaces", self.inside, private=True, root=str(self._image.root), own_users=True)
        if refusal := self.refusal(folder, limits, found):
            raise AgentError(f"commands cannot start with the files of the image: {refusal}", remedy=HELP)
        return found

    def visible(self, limits: Limits) -> list[str]:
        """Return what a client may read of the machine, and with a network the file with the name servers."""
        return sorted({*self._shown, *(["/etc/resolv.conf"] if limits.network else ())})

    def environment(self, home: str, temporary: str) -> Mapping[str, str]:
        """Return the standard variables, those of the image, and those of the options."""
        fixed = {**super().environment(home, temporary), "PATH": _PATH}
        return fixed | (dict(self._image.env) if self._image else {}) | {"HOME": home} | self.options.env

    @property
    def python(self) -> str:
        """The image's interpreter."""
        return self.options.python

    @property
    def trial(self) -> list[str]:
        """See `GuardedSandbox`."""
        return [self.options.shell, "-c", ""]


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rolemesh" / "images"


_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
