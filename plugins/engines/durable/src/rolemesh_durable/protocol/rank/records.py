"""The records that a restarted rank reads: of its send log, and of persisted snapshots."""

from __future__ import annotations

from typing import Any, Protocol

from rolemesh_checkpoint.log_kinds import RecordKind

__all__ = ["FormerRecord", "InFlight", "StoredRecord"]


class StoredRecord(Protocol):
    """A chunk of a value, the mark that no chunk follows, or a decision."""

    @property
    def kind(self) -> RecordKind:
        """Its kind. The fields that do not belong to its kind have no meaning."""

    @property
    def step(self) -> int:
        """The step of the value, or of the decision."""

    @property
    def edge(self) -> int:
        """The edge of a chunk."""

    @property
    def chunk(self) -> int:
        """The number of the chunk."""

    @property
    def last(self) -> bool:
        """True if no chunk of the step follows."""

    @property
    def consumers(self) -> tuple[int, ...]:
        """The ranks that the chunk is for."""

    @property
    def scope(self) -> str:
        """The scope of a decision."""

    @property
    def body(self) -> bytes:
        """The content of a record that is no chunk."""


class FormerRecord(StoredRecord, Protocol):
    """A record that a former generation has written to the send log."""

    @property
    def generation(self) -> int:
        """The generation that has written it."""

    @property
    def call(self) -> int:
        """The operator call of which the log has all."""


class InFlight(StoredRecord, Protocol):
    """A record of a persisted snapshot: a chunk that was in flight, or a decision."""

    @property
    def hold(self) -> int:
        """A restart may need the decision until step ``step + hold`` is committed."""

    def value(self) -> Any:
        """Return the value of the chunk."""
