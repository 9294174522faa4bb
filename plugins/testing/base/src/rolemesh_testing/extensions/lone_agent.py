"""An agent without ranks or a master, for one extension: it calls the hooks of the extension's part in an agent."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from rolemesh_durable.api.extensions import AgentPart, AgentProcess, Extension
from rolemesh_durable.api.testing import RankLaunch

__all__ = ["LoneAgent"]

LOOKS = 3


class LoneAgent:
    """One agent of a job. `untagged` are the types of the part's messages and reports that have no tag."""

    def __init__(self, folder: Path) -> None:
        self.untagged: list[type] = []
        unused: Any = None
        nothing: Callable[..., Any] = lambda *arguments: None  # noqa: E731
        job = SimpleNamespace(name="lone", job_id="lone", seed=0, run_dir=str(folder), base=str(folder))
        config: Any = SimpleNamespace(agent="agent", node="node", host="127.0.0.1", job=job, incarnation=0)
        self._process = AgentProcess(
            config, folder, folder, {}, nothing, unused, lambda ref: 0, nothing, nothing, nothing
        )

    def live(self, extension: Extension) -> object:
        """Call the hooks of one life with one rank; return what `in_agent` returned."""
        part: object = extension.in_agent(self._process)
        if not isinstance(part, AgentPart):
            return part
        launch = RankLaunch("worker", 0, 1, 0, 1, 0)
        self._tagged(*part.messages())
        part.adopted([])
        part.starting(launch)
        for _ in range(LOOKS):
            told = part.report()
            self._tagged(*([type(told)] if told is not None else []))
        part.gone(launch.start)
        part.close()
        return part

    def _tagged(self, *kinds: type) -> None:
        tags = {kind: getattr(getattr(kind, "__struct_config__", None), "tag", None) for kind in kinds}
        self.untagged += [kind for kind, tag in tags.items() if tag is None]
