"""For extensions: their base class, the hooks of a rank, an agent and the master, and the parts that they use.

An extension derives from `Extension` (entry-point group ``rolemesh.extensions``), and a job lists it under
``plugins.extensions``. Of a `Rank` it uses `ctx`, `workload`, `job`, `waits`, `record`, `open_channel` and
`tell_master`. Of a `RankRecord` it uses `launch.ref` and `launch.start`, and of an `AgentProcess` `config`, `folder`,
`logs`, `environ` and `send`. The other attributes, and those of `MasterParts`, belong to the engine's own extensions
and change without notice.

The parts of an extension send each other messages. Those between ranks go over a channel (`open_channel`). Those
between a rank and the master are of classes that derive from `ExtensionMessage`: `Rank.tell_master` and
`MasterExtension.says` send them, and `heard` of the other part takes them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rolemesh_durable.api import importer, names

if TYPE_CHECKING:
    from rolemesh_durable.extensions import Extension as Extension
    from rolemesh_durable.extensions.phases import PHASES as PHASES
    from rolemesh_durable.extensions.totals import Outgoing as Outgoing
    from rolemesh_durable.extensions.totals import Totals as Totals
    from rolemesh_durable.extensions.totals import edges_of as edges_of
    from rolemesh_durable.extensions.totals import totals_of as totals_of
    from rolemesh_durable.protocol.agent.part import AgentPart as AgentPart
    from rolemesh_durable.protocol.agent.part import AgentProcess as AgentProcess
    from rolemesh_durable.protocol.extension_message import ExtensionMessage as ExtensionMessage
    from rolemesh_durable.protocol.extension_message import ToPart as ToPart
    from rolemesh_durable.protocol.master.extension import ExtensionRecord as ExtensionRecord
    from rolemesh_durable.protocol.master.extension import MasterExtension as MasterExtension
    from rolemesh_durable.protocol.master.extension import MasterParts as MasterParts
    from rolemesh_durable.protocol.master.extension import Slice as Slice
    from rolemesh_durable.protocol.master.shell import MasterShell as MasterShell
    from rolemesh_durable.protocol.master.shell import ShellPart as ShellPart
    from rolemesh_durable.protocol.master.state import AgentRecord as AgentRecord
    from rolemesh_durable.protocol.master.state import RankRecord as RankRecord
    from rolemesh_durable.protocol.messages import Report as Report
    from rolemesh_durable.protocol.rank.extension import RankExtension as RankExtension
    from rolemesh_durable.protocol.rank.page import AddedPhase as AddedPhase
    from rolemesh_durable.protocol.rank.page import add_phase as add_phase
    from rolemesh_durable.protocol.rank.shape import JobShape as JobShape
    from rolemesh_durable.protocol.rank.span import Span as Span
    from rolemesh_durable.rank.channel import Receive as Receive
    from rolemesh_durable.rank.channel import Send as Send
    from rolemesh_durable.rank.services import Rank as Rank
    from rolemesh_durable.rank.services import RankPlace as RankPlace

_HOMES = {
    "extensions": "Extension",
    "extensions.phases": "PHASES",
    "extensions.totals": "Outgoing Totals edges_of totals_of",
    "protocol.agent.part": "AgentPart AgentProcess",
    "protocol.extension_message": "ExtensionMessage ToPart",
    "protocol.master.extension": "ExtensionRecord MasterExtension MasterParts Slice",
    "protocol.master.shell": "MasterShell ShellPart",
    "protocol.master.state": "AgentRecord RankRecord",
    "protocol.messages": "Report",
    "protocol.rank.extension": "RankExtension",
    "protocol.rank.page": "AddedPhase add_phase",
    "protocol.rank.shape": "JobShape",
    "protocol.rank.span": "Span",
    "rank.channel": "Receive Send",
    "rank.services": "Rank RankPlace",
}
__all__ = names(_HOMES)
__getattr__ = importer(__name__, _HOMES)
