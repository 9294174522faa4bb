"""Copies of snapshots in another node's memory, as logic without sockets, threads or clocks.

The agents' names, sorted, make a ring. An agent that gets an offer pulls the image piece by piece from the offering
agent. An agent that must start a lost rank pulls its image in the same way. Requests are repeated and answers are
checked, so a lost message does no harm. A failure, for whatever reason, concerns one offer or one pull: the agent
reports it, and tries again after a pause.

An offer and its acknowledgement name the image: its timeline, its rank's generation, its serial there. So a copy from
before a rank went back does not count as a present one, and is not kept. Each copy replaces an older one. The older one
stops counting once the new one may have come, acknowledged or not.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from rolemesh.api.rank_ref import RankRef
from rolemesh.runs.jsonl import UNDECODABLE
from rolemesh_durable.extensions.replicas import frames as r
from rolemesh_durable.extensions.replicas.offers import Offers
from rolemesh_durable.extensions.replicas.pull import Pull
from rolemesh_durable.extensions.replicas.store import Image, ReplicaStore
from rolemesh_durable.protocol.messages import Stored

__all__ = ["Replication"]

_decode = msgspec.msgpack.decode


class Replication:
    """One agent's end of the ring. Every method is for one thread. `address` is this agent's address for others."""

    def __init__(self, shm: Path, address: str, send: r.Send, timeline: int = 0) -> None:
        self.address, self._send, self.timeline = address, send, timeline
        self._store = ReplicaStore(shm)
        self.offers = Offers(shm, self._store, address, send, timeline)
        """The snapshots of this agent, for the next one."""
        self.ended: list[tuple[str, int, str]] = []
        """Fetches that have ended: role, rank, and "" or the error."""
        self._pulls: dict[RankRef, Pull] = {}
        self._seen: dict[RankRef, int] = {}
        self._not_before: dict[RankRef, float] = {}
        self._unkept: dict[RankRef, tuple[str, float]] = {}

    @property
    def held(self) -> list[Stored]:
        """Return the images that this agent keeps for others."""
        return self._store.held()

    @property
    def warning(self) -> str:
        """The problems with copies, here and at the next agent; "" once they are over."""
        found = [self.offers.warning]
        for ref, (why, _) in list(self._unkept.items())[:1]:
            found.append(f"no copy of {ref} can be kept here: {why}; it is tried again")
        return "; ".join(filter(None, found))

    def fetch(self, address: str, role: str, rank: int, step: int, now: float) -> None:
        """Bring the rank's snapshot of `step` from the agent at `address`, or from here, into this node's memory."""
        key = RankRef(role, rank)
        try:
            self._drop_pull(key)
            image = self._store.image(role, rank, step)
            if image is not None:
                self._install(image)
            elif address == self.address:
                self.ended.append((role, rank, f"this agent has no copy of {key} at step {step}"))
            else:
                self._begin_pull(r.Offer(role, rank, step, (0, 0, 0), (), address), now, install=True)
        except Exception as error:
            self._drop_pull(key)
            self.ended.append((role, rank, f"the copy cannot be fetched: {r.reason(error)}"))

    def forget(self, timeline: int) -> None:
        """Forget everything in memory. New snapshots are of `timeline`."""
        self.timeline = timeline
        self.offers.forget(timeline)
        for key in list(self._pulls):
            self._drop_pull(key)
        self._not_before.clear()
        self._unkept.clear()
        self._store.clear()

    def tick(self, now: float) -> None:
        """Repeat unanswered messages, and give up those that are never answered."""
        self.offers.tick(now)
        for key, pull in list(self._pulls.items()):
            if now - pull.heard > r.GIVE_UP_S:
                self._end_pull(key, f"the agent at {pull.address} does not answer")
            elif now - pull.said > r.REPEAT_S:
                pull.repeat(now)
        for key, (_, since) in list(self._unkept.items()):
            if now - since > r.GIVE_UP_S:
                del self._unkept[key]  # it is not offered any more

    def asked(self, kind: bytes, body: bytes, now: float) -> bytes | None:
        """Handle another agent's message. Return the answer, if it gets one."""
        try:
            if kind != r.OFFER:
                return self.offers.answer(kind, body, now)
            self._be_offered(_decode(body, type=r.Offer), now)
        except UNDECODABLE as error:
            r.unexpected(error)
        except Exception as error:
            role, rank = _decode(body)[:2]
            self.offers.uncopyable(RankRef(role, rank), r.reason(error), now)
        return None

    def _be_offered(self, offer: r.Offer, now: float) -> None:
        key = offer.ref
        timeline, generation, _ = offer.stamp
        if timeline != self.timeline:
            return  # from before the job went back, or the word of it has not come here yet
        if generation < self._seen.get(key, 0):
            self._send(offer.address, r.REFUSED, (*key, offer.step, offer.stamp, ""))
            return  # of an agent that does not have the rank any more
        self._seen[key] = generation
        self._store.went_back(*key, offer.restarts)
        kept = self._store.image(*key, offer.step)
        pull = self._pulls.get(key)
        if kept is not None and kept.stamp == offer.stamp:
            self._send(offer.address, r.DONE, (*key, offer.step, offer.stamp))
        elif now < self._not_before.get(key, now):
            if key in self._unkept:
                why, _ = self._unkept[key]
                self._unkept[key] = why, now
                self._send(offer.address, r.REFUSED, (*key, offer.step, offer.stamp, why))
        elif pull is None or (pull.stamp != offer.stamp and not pull.install):
            self._drop_pull(key)
            self._begin_pull(offer, now, install=False)

    def _begin_pull(self, offer: r.Offer, now: float, *, install: bool) -> None:
        def send(kind: bytes, body: Any) -> None:
            self._send(offer.address, kind, body)

        stamp = None if install else offer.stamp
        pull = Pull(self._store, send, offer.address, offer.ref, offer.step, stamp, install=install, now=now)
        self._pulls[offer.ref] = pull
        pull.repeat(now)

    def answered(self, kind: bytes, body: bytes, data: bytes, now: float) -> None:
        """Handle another agent's answer to a message of this one."""
        try:
            role, rank, step, stamp = _decode(body)[:4]
            key = RankRef(role, rank)
            pull = self._pulls.get(key)
        except Exception as error:
            r.unexpected(error)
            return
        if pull is None or pull.step != step or pull.stamp != (tuple(stamp) if isinstance(stamp, list) else None):
            return
        try:
            problem = pull.hear(kind, body, data, now)
            if problem:
                self._end_pull(key, problem)  # it is gone because there is a newer one
            elif pull.complete:
                self._pulled(pull)
        except Exception as error:
            self._unkeepable(pull, r.reason(error), now)

    def _pulled(self, pull: Pull) -> None:
        image = pull.finish()
        del self._pulls[image.ref]
        self._unkept.pop(image.ref, None)
        if pull.install:
            self._install(image)
        else:
            self._send(pull.address, r.DONE, (image.role, image.rank, image.step, image.stamp))

    def _install(self, image: Image) -> None:
        try:
            self._store.install(image)
        except Exception as error:
            self.ended.append((image.role, image.rank, f"the copy cannot be put in place: {r.reason(error)}"))
        else:
            self.ended.append((image.role, image.rank, ""))

    def _drop_pull(self, key: RankRef) -> None:
        pull = self._pulls.pop(key, None)
        if pull is not None:
            pull.close()

    def _end_pull(self, key: RankRef, problem: str) -> None:
        pull = self._pulls.pop(key, None)
        if pull is not None:
            pull.close()
            if pull.install:
                self.ended.append((*key, problem))

    def _unkeepable(self, pull: Pull, why: str, now: float) -> None:
        """Note that there is no place for a copy here.

        The offering agent learns it, and may offer again after a pause.
        """
        key = pull.ref
        self._end_pull(key, why)
        if pull.stamp is not None:
            self._unkept[key] = why, now
            self._not_before[key] = now + r.PAUSE_S
            self._send(pull.address, r.REFUSED, (*key, pull.step, pull.stamp, why))
