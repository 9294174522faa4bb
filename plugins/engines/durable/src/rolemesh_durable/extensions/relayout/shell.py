"""The parts of resizes and drains in the master's process: they answer the requests of clients."""

from __future__ import annotations

from collections.abc import Mapping

from rolemesh_durable.extensions.relayout.draining import Draining
from rolemesh_durable.extensions.relayout.records import DrainWanted, ResizeTried, ResizeWanted
from rolemesh_durable.extensions.relayout.requests import LOOKING, DrainNode, ResizeJob, TryResize
from rolemesh_durable.extensions.relayout.resizing import Resizing
from rolemesh_durable.protocol.master.shell import Answer, ShellPart

__all__ = ["DrainRequests", "ResizeRequests"]


class ResizeRequests(ShellPart):
    """Refuses impossible resizes, and passes the others to the machine."""

    def requests(self) -> Mapping[type, Answer]:
        """The requests of `rolemesh scale`."""
        return {ResizeJob: self._resize, TryResize: self._try_resize}

    def _resize(self, request: ResizeJob) -> str:
        why = self._shell.machine().extension(Resizing).refusal(request.sizes)
        if not why:
            self._shell.put(ResizeWanted(request.sizes, request.reason))
        return why

    def _try_resize(self, request: TryResize) -> str:
        why = self._shell.machine().extension(Resizing).tried(request.sizes)
        if why is None:
            self._shell.put(ResizeTried(request.sizes))
        return LOOKING if why is None else why


class DrainRequests(ShellPart):
    """Refuses impossible drains, and passes the others to the machine."""

    def requests(self) -> Mapping[type, Answer]:
        """The request of `rolemesh drain`."""
        return {DrainNode: self._drain}

    def _drain(self, request: DrainNode) -> str:
        why = self._shell.machine().extension(Draining).refusal(request.node, back=request.back)
        if not why:
            self._shell.put(DrainWanted(request.node, request.reason, request.notice_s, request.back))
        return why
