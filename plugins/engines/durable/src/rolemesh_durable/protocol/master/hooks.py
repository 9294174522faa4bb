"""The hooks of a master's extensions, in their order: the core calls these, and names no extension."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from rolemesh_durable.protocol import messages as m
from rolemesh_durable.protocol.extension_message import ExtensionMessage, Sealed, tag_of
from rolemesh_durable.protocol.master.state import AgentRecord, RankRecord

__all__ = ["Handler", "Hooks"]

Handler = Callable[[Any], None]

NAMES: tuple[str, ...] = ("begin", "turn", "tick", "warnings", "agent_reported", "rank_reported")
NAMES += ("limit", "holds", "commands", "says", "make_room")


class Hooks:
    """One tuple of bound methods per hook, from the extensions that override it.

    `MasterExtension` describes each hook. Most tuples are empty, so a hook that no extension overrides costs nothing.
    """

    begin: tuple[Callable[[], None], ...] = ()
    turn: tuple[Callable[[], None], ...] = ()
    tick: tuple[Callable[[], None], ...] = ()
    warnings: tuple[Callable[[], Iterable[str]], ...] = ()
    agent_reported: tuple[Callable[[AgentRecord, m.Report], None], ...] = ()
    rank_reported: tuple[Callable[[RankRecord, m.RankReport | None, m.RankReport], None], ...] = ()
    limit: tuple[Callable[[], int], ...] = ()
    holds: tuple[Callable[[AgentRecord], bool], ...] = ()
    commands: tuple[Callable[[AgentRecord, Collection[RankRecord]], Iterable[m.MasterToAgent]], ...] = ()
    says: tuple[Callable[[RankRecord], Iterable[ExtensionMessage]], ...] = ()
    make_room: tuple[Callable[[], bool], ...] = ()

    def __init__(self) -> None:
        self.handlers: dict[type, tuple[Handler, ...]] = {}
        """The handlers of each event, and of each message of an agent, that extensions take."""
        self._kinds: dict[str, type] = {}
        """The types of `handlers` that have a tag."""
        self.heard: dict[str, tuple[type[ExtensionMessage], Callable[[RankRecord, Any], None]]] = {}
        """The class and the handler of each message of ranks, by the message's name."""
        self.words: dict[str, str] = {}
        """The sentence to show when a restart under this word fails."""

    def add(self, extension: Any, base: type[Any]) -> None:
        """Add the hooks that `extension` overrides, compared with `base`, after those that are there."""
        for name in NAMES:
            if getattr(type(extension), name) is not getattr(base, name):
                setattr(self, name, (*getattr(self, name), getattr(extension, name)))
        taken: Mapping[type, Handler] = extension.handlers()
        for kind, handler in taken.items():
            self.handlers[kind] = (*self.handlers.get(kind, ()), handler)
            self._kinds[tag_of(kind)] = kind
        self.heard |= {kind.name(): (kind, extension.heard) for kind in extension.messages}
        self.words |= extension.words

    def hear(self, rank: RankRecord, before: m.RankReport | None, seen: m.RankReport) -> None:
        """Pass the messages of a rank's report on to the extensions: those that differ from the ones `before`."""
        same = before is not None and before.generation == seen.generation
        known = before.says if before is not None and same else ()
        for sealed in seen.says:
            if sealed not in known and sealed.name in self.heard:
                kind, heard = self.heard[sealed.name]
                heard(rank, sealed.opened(kind))

    def handle(self, item: object) -> None:
        """Pass an event or a message to the extensions that handle it."""
        for handler in self.handlers.get(type(item), ()):
            handler(item)

    def from_part(self, message: Sealed) -> None:
        """Pass the message of a part in an agent to the extension that handles its kind; drop it if none does."""
        if (kind := self._kinds.get(message.name)) is not None:
            self.handle(message.opened(kind))
