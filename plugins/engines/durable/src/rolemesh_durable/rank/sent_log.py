"""The log of sent payloads."""

from __future__ import annotations

from rolemesh_checkpoint.send_log import SendLog
from rolemesh_dataplane.payload import Payload

__all__ = ["SentLog"]


class SentLog(SendLog):
    """`rolemesh_durable.protocol.rank.effects.Log` of a process."""

    def chunk_of(
        self, item: Payload | None, edge: int, step: int, chunk: int, last: bool, hold: int, consumers: tuple[int, ...]
    ) -> None:
        """Append a chunk (None: the mark that no more come) that is about to be sent."""
        if item is None:
            self.end(edge, step, chunk, hold, consumers)
            return
        body, hlen, count, first = item.body, item.hlen, len(item.sizes), item.log
        at = self.chunk(edge, step, chunk, last, hold, consumers, body, hlen, count, payload=first, place=item.place)
        if first < 0:
            item.begins_at(at)
