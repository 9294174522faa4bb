"""The shipped extensions and the parts that each of them has: one list, in whose order a process calls their hooks.

An extension names its parts, because a process imports only those that it runs. The part of scaling in a driver is not
here (`scaling/growth.py`): no other extension has one.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, Literal, cast

from rolemesh_durable.extensions import Extension

if TYPE_CHECKING:
    from rolemesh_durable.extensions.turns.rank import Beginning
    from rolemesh_durable.protocol.agent.part import AgentPart, AgentProcess
    from rolemesh_durable.protocol.job import JobConfig
    from rolemesh_durable.protocol.master.extension import MasterExtension, MasterParts
    from rolemesh_durable.protocol.master.shell import MasterShell, ShellPart
    from rolemesh_durable.protocol.rank.extension import RankExtension
    from rolemesh_durable.rank.services import Rank, RankPlace

__all__ = ["SHIPPED", "Hangs", "Replicas", "Shipped", "extensions_of", "imported"]


class Shipped(Extension):
    """Base of shipped extensions. Each part is ``module:name`` below this package; "" if the extension has none."""

    rank: ClassVar[str] = ""
    """Function that returns the part in a rank, or None."""
    master: ClassVar[str] = ""
    """Class of the part in the master's machine."""
    shell: ClassVar[str] = ""
    """Class of the part in the master's process."""
    agent: ClassVar[str] = ""
    """Class of the part in an agent."""

    def in_rank(self, rank: Rank) -> RankExtension | None:
        """Return the part in a rank."""
        return cast("RankExtension | None", _made(self.rank, rank))

    def in_master(self, parts: MasterParts) -> MasterExtension | None:
        """Return the part in the master's machine."""
        return cast("MasterExtension | None", _made(self.master, parts))

    def in_shell(self, shell: MasterShell) -> ShellPart | None:
        """Return the part in the master's process."""
        return cast("ShellPart | None", _made(self.shell, shell))

    def in_agent(self, process: AgentProcess) -> AgentPart | None:
        """Return the part in an agent."""
        return cast("AgentPart | None", _made(self.agent, process))


class Sharing(Shipped):
    """Rows by demand: each rank of a role makes the items of a call that it has time for."""

    rank = "sharing.rank:part_of"


class Turns(Shipped):
    """Turns: ranks that share a slot run one after the other, and a collective group begins its calls together."""

    rank = "turns.rank:Beginning"
    agent = "turns.agent:TurnPages"

    def __init__(self, options: Any) -> None:
        super().__init__(options)
        self._beginning: Beginning | None = None

    def started(self, place: RankPlace) -> None:
        """Open the page of the slot."""
        self._beginning = cast("Beginning", _made(self.rank, place))

    def before_setup(self, place: RankPlace) -> None:
        """Take a turn for the setup."""
        if self._beginning is not None:
            self._beginning.take()

    def in_rank(self, rank: Rank) -> RankExtension | None:
        """Return the part in a rank."""
        return self._beginning.part_of(rank) if self._beginning is not None else None


class Calls(Shipped):
    """Calls between roles: an operator of one role calls a service of another."""

    rank = "calls.rank:part_of"


class Checks(Shipped):
    """Checks of nodes: a node is measured before ranks start there, and an unfit one is a failure."""

    master = "checks.master:Checks"
    agent = "checks.agent:NodeChecks"


class Resizing(Shipped):
    """Resizes: roles get other numbers of ranks while the job runs."""

    master = "relayout.resizing:Resizing"
    shell = "relayout.shell:ResizeRequests"


class Draining(Shipped):
    """Drains: ranks leave nodes that are going to leave."""

    master = "relayout.draining:Draining"
    shell = "relayout.shell:DrainRequests"


class Scaling(Shipped):
    """Scaling: plugins of the kind `scalers` choose how many ranks roles should have, by the load of the job."""

    master = "scaling.master:Scaling"
    shell = "scaling.shell:Scalers"


class Hangs(Shipped):
    """Hang detection: it names the rank that all others wait for, takes its stacks, and reports a failure."""

    master = "hangs.master:HangWatch"
    agent = "hangs.agent:StackTaker"


class Stragglers(Shipped):
    """Stragglers: ranks that are slower than the others of their role, for long enough to matter."""

    master = "stragglers.master:Stragglers"


class Rehearsal(Shipped):
    """Rehearsals: a test injects failures into a job, and limits how far its ranks run before each of them."""

    master = "rehearsal.master:Rehearsal"
    shell = "rehearsal.shell:Injector"
    agent = "rehearsal.agent:AgentInjector"


class Replicas(Shipped):
    """Copies of snapshots in the memory of another node, so that a job survives the loss of a node."""

    master = "replicas.master:Ring"
    agent = "replicas.agent:NodeCopies"


class Signals(Shipped):
    """Signals for ranks whose own code handles them: all ranks get one at once when the job stops."""

    master = "signals.master:Signals"
    shell = "signals.shell:SignalRequests"
    agent = "signals.agent:Signaller"


class Bans(Shipped):
    """Bans of nodes: no rank is placed on them for a time, whatever moves it. Failover levels ask for them."""

    master = "bans.master:Bans"


SHIPPED: tuple[type[Shipped], ...] = (
    Sharing, Turns, Calls, Checks, Resizing, Draining, Scaling, Hangs, Stragglers, Rehearsal, Replicas, Signals, Bans,
)  # fmt: skip
"""The order is fixed: with another one, a repeated step of a rank could have another result. `Sharing` wraps an
operator innermost. An extension comes after those that its part in the master calls."""


def imported(*parts: Literal["rank", "master", "shell", "agent"]) -> list[Any]:
    """Import all shipped parts of these kinds, and return what makes them. A process that is forked later has them."""
    return [_named(name) for part in parts for each in SHIPPED if (name := getattr(each, part))]


def extensions_of(job: JobConfig) -> list[Extension]:
    """Return new instances of the shipped extensions, and behind them of those that the job lists, in order.

    Raises `PluginError` for one that the job lists.
    """
    from rolemesh_durable.plugin_calls import created  # with the plugin manager, which no rank needs

    shipped = [extension(None) for extension in SHIPPED]
    if not (uses := job.plugins.get("extensions", {})):
        return [*shipped]
    listed = created(uses.values(), job.base)
    return [*shipped, *(listed.instance(name) for name in listed.names)]


def _named(name: str) -> Any:
    module, _, attribute = name.partition(":")
    return getattr(import_module(f"{__package__}.{module}"), attribute)


def _made(name: str, place: object) -> object:
    return _named(name)(place) if name else None
