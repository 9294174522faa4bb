"""The features that the core of the engine does not name. Each has a folder, and `shipped` lists them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from rolemesh.api.plugin import Plugin
from rolemesh.kinds import Kind

if TYPE_CHECKING:
    from rolemesh_durable.protocol.agent.part import AgentPart, AgentProcess
    from rolemesh_durable.protocol.master.extension import MasterExtension, MasterParts
    from rolemesh_durable.protocol.master.shell import MasterShell, ShellPart
    from rolemesh_durable.protocol.rank.extension import RankExtension
    from rolemesh_durable.rank.services import Rank, RankPlace

__all__ = ["KIND", "Extension"]

KIND = Kind(
    "extensions",
    "extension",
    "rolemesh_durable.extensions:Extension",
    ("master", "agent", "rank"),
    conformance="rolemesh_testing:ExtensionConformance",
)


class Extension(Plugin):
    """Base of extensions (entry-point group ``rolemesh.extensions``).

    The master, each agent and each rank have an own instance.

    A job lists extensions of other distributions under ``plugins.extensions``. Their hooks run behind those of the
    shipped extensions, in the job file's order.
    """

    preload: ClassVar[Sequence[str]] = ()
    """Modules that the zygotes import before they fork ranks, such as those that `in_rank` imports."""
    cold: ClassVar[bool] = False
    """True: agents import nothing for ranks before the first one starts, because the extension measures their
    nodes."""

    def started(self, place: RankPlace) -> None:
        """The process of a rank has started. The rank knows no peers yet."""

    def before_setup(self, place: RankPlace) -> None:
        """A rank sets its workload up next. The hook may wait."""

    def in_rank(self, rank: Rank) -> RankExtension | None:
        """Return the extension's part in a rank whose workload is set up; None if it has none there."""
        return None

    def in_master(self, parts: MasterParts) -> MasterExtension | None:
        """Return the extension's part in the master's machine; None if it has none there.

        A new master calls this again. The journal brings the part's records and slice to where they were.
        """
        return None

    def in_shell(self, shell: MasterShell) -> ShellPart | None:
        """Return the extension's part in the master's process, which does I/O; None if it has none there."""
        return None

    def in_agent(self, process: AgentProcess) -> AgentPart | None:
        """Return the extension's part in the process of an agent; None if it has none there.

        The agent's next incarnation calls this again.
        """
        return None
