"""Copies of snapshots in another node's memory, as logic without sockets, threads or clocks.

The agents' names, sorted, make a ring. Who is offered an image pulls it, piece by piece, from who has it, as does who
fetches one before it starts a lost rank. Requests are repeated and answers are checked, so nothing depends on a message
that is lost. What fails, for whatever reason, is one offer or one pull: it is said, and tried again after a pause.

An offer and its acknowledgement name the image: its timeline, its rank's generation, its serial there. So a copy of
what a rank had before it went back counts neither as one of what it has now, nor is it kept. As each copy takes the
place of an older one, that one counts no more from when the new one may have come, whether or not it is acknowledged.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import msgspec

from rolemesh_durable.agent.replica_pull import DONE, IMAGE, OFFER, PIECE, REFUSED, Offer, Pull
from rolemesh_durable.agent.replica_store import KEPT, Image, ReplicaStore, Stamp, describe
from rolemesh_durable.checkpoint.memory import MemorySnapshots
from rolemesh_durable.protocol.messages import Stored

__all__ = ["Replication"]

log = logging.getLogger("rolemesh_durable.agent")

REPEAT_S = 1.0
GIVE_UP_S = 10.0
PAUSE_S = 2.0
"""After what has failed, until it is tried again."""
RESTARTS = 32
"""So many of a rank's restarts are told with an offer: copies of what it had before those are long gone."""
_HOLDER = "replicas"

RankKey: TypeAlias = tuple[str, int]
Send: TypeAlias = Callable[[str, bytes, Any], None]
"""Address, kind, what is encoded as the body."""

_Ack: TypeAlias = tuple[str, int, int, Stamp]
_Refusal: TypeAlias = tuple[str, int, int, Stamp, str]
_Asked: TypeAlias = tuple[str, int, int, Stamp | None]
_AskedPiece: TypeAlias = tuple[str, int, int, Stamp | None, str, int, int]
_decode = msgspec.msgpack.decode


class _Copy(NamedTuple):
    """A copy of a rank's snapshot that the next agent may have; `there`: it has said so."""

    step: int
    stamp: Stamp
    there: bool


class _Held:
    """A snapshot that the next agent has been offered, held until it has pulled it."""

    def __init__(self, step: int, stamp: Stamp, now: float) -> None:
        self.step, self.stamp = step, stamp
        self.said = float("-inf")
        self.heard = now


class Replication:
    """One agent's end of the ring. Every method is for one thread; `address` is where others reach this agent."""

    def __init__(self, shm: Path, address: str, send: Send, timeline: int = 0) -> None:
        self.address, self._shm, self._send, self.timeline = address, shm, send, timeline
        self._store = ReplicaStore(shm)
        self._copies: dict[RankKey, tuple[_Copy, ...]] = {}
        """What the next agent's store has at most of each rank, in the order in which it came there."""
        self.ended: list[tuple[str, int, str]] = []
        """Fetches that have ended: role, rank, and "" or what went wrong."""
        self._next = ""
        self._newest: dict[RankKey, int] = {}
        self._restarts: dict[RankKey, tuple[tuple[int, int], ...]] = {}
        self._offers: dict[RankKey, _Held] = {}
        self._described: dict[RankKey, tuple[Image, dict[str, Path]]] = {}
        self._pulls: dict[RankKey, Pull] = {}
        self._seen: dict[RankKey, int] = {}
        self._not_before: dict[tuple[str, RankKey], float] = {}
        self._unkept: dict[RankKey, tuple[str, float]] = {}
        self._uncopied: dict[RankKey, str] = {}

    @property
    def held(self) -> list[Stored]:
        """What this agent keeps for others."""
        return self._store.held()

    @property
    def trouble(self) -> str:
        """What is wrong with copies, here and where they go; empty once it is over."""
        found = []
        for (role, rank), why in list(self._uncopied.items())[:1]:
            found.append(f"the snapshot of {role}/{rank} has no copy on another node, and commits wait for it: {why}")
        for (role, rank), (why, _) in list(self._unkept.items())[:1]:
            found.append(f"no copy of {role}/{rank} can be kept here: {why}; it is tried again")
        return "; ".join(found)

    # ----------------------------------------------------------------------------------------------- the agent's loop

    def connect(self, address: str) -> None:
        """The agent at `address` gets the copies from now on; "" for none."""
        if address != self._next:
            self._next = address
            self._copies.clear()  # what the other one had may be lost with it
            self._uncopied.clear()
            for key in list(self._offers):
                self._end_offer(key)

    def offer(self, role: str, rank: int, step: int) -> None:
        """The rank's newest snapshot is that of `step`; of several that wait, only the newest is copied."""
        self._newest[role, rank] = step

    def restarted(self, role: str, rank: int, step: int, generation: int) -> None:
        """A rank starts again after `step`, as `generation`: copies of what it had later are void."""
        key = role, rank
        # A later restart to an earlier step voids all that those before it did.
        before = [each for each in self._restarts.get(key, ()) if each[1] < step]
        self._restarts[key] = (*before[-RESTARTS:], (generation, step))
        self._newest.pop(key, None)
        self._uncopied.pop(key, None)
        self._copies[key] = tuple(copy for copy in self._copies.get(key, ()) if copy.step <= step)
        if key in self._offers:
            self._end_offer(key)

    def copied(self, role: str, rank: int, timeline: int, generation: int, resume: int) -> int:
        """The newest step of which another agent has a copy that holds for `generation`, restored to `resume`."""
        valid = [
            step
            for step, (of_timeline, of_generation, _), there in self._copies.get((role, rank), ())
            if there and of_timeline == timeline and (of_generation == generation or step <= resume)
        ]
        return max(valid, default=-1)

    def fetch(self, address: str, role: str, rank: int, step: int, now: float) -> None:
        """Bring the rank's snapshot of `step` from the agent at `address`, or from here, into this node's memory."""
        key = role, rank
        try:
            self._drop_pull(key)
            image = self._store.image(role, rank, step)
            if image is not None:
                self._install(image)
            elif address == self.address:
                self.ended.append((role, rank, f"this agent has no copy of {role}/{rank} at step {step}"))
            else:
                self._begin_pull(Offer(role, rank, step, (0, 0, 0), (), address), now, install=True)
        except Exception as error:
            self._drop_pull(key)
            self.ended.append((role, rank, f"the copy cannot be fetched: {_reason(error)}"))

    def forget(self, timeline: int) -> None:
        """Everything in memory is void; what comes is of `timeline`."""
        self.timeline = timeline
        for key in list(self._offers):
            self._end_offer(key)
        for key in list(self._pulls):
            self._drop_pull(key)
        self._copies.clear()
        self._newest.clear()
        self._described.clear()
        self._not_before.clear()
        self._unkept.clear()
        self._uncopied.clear()
        self._store.clear()

    def close(self) -> None:
        """Hold nothing any more. What is kept stays in its files."""
        for key in list(self._offers):
            self._end_offer(key)

    def tick(self, now: float) -> None:
        """Offer what is new, say again what was not answered, and give up what never is."""
        for key, held in list(self._offers.items()):
            if now - held.heard > GIVE_UP_S:
                self._uncopied[key] = f"the agent at {self._next} does not take it"
                self._end_offer(key)
        for key, step in list(self._newest.items()) if self._next else ():
            copied = max((each.step for each in self._copies.get(key, ()) if each.there), default=-1)
            if key not in self._offers and step > copied and self._may("offer", key, now):
                try:
                    self._begin_offer(key, step, now)
                except Exception as error:
                    self._uncopyable(key, _reason(error), now)
        for key, held in self._offers.items():
            if now - held.said > REPEAT_S:
                held.said = now
                restarts = self._restarts.get(key, ())
                self._send(self._next, OFFER, Offer(*key, held.step, held.stamp, restarts, self.address))
        for key, pull in list(self._pulls.items()):
            if now - pull.heard > GIVE_UP_S:
                self._end_pull(key, f"the agent at {pull.address} does not answer")
            elif now - pull.said > REPEAT_S:
                pull.repeat(now)
        for key, (_, since) in list(self._unkept.items()):
            if now - since > GIVE_UP_S:
                del self._unkept[key]  # it is not offered any more

    # ------------------------------------------------------------------------------------------- who has an image

    def asked(self, kind: bytes, body: bytes, now: float) -> bytes | None:
        """Another agent's message, and the answer to it, if it gets one."""
        try:
            return self._answer(kind, body, now)
        except msgspec.MsgspecError as error:
            _unexpected(error)
            return None
        except Exception as error:
            role, rank = _decode(body)[:2]
            self._uncopyable((role, rank), _reason(error), now)
            return None

    def _answer(self, kind: bytes, body: bytes, now: float) -> bytes | None:
        if kind == OFFER:
            self._be_offered(_decode(body, type=Offer), now)
        elif kind == DONE:
            role, rank, step, stamp = _decode(body, type=_Ack)
            held = self._offers.get((role, rank))
            if held is not None and (held.step, held.stamp) == (step, stamp):
                self._comes((role, rank), _Copy(step, stamp, there=True))
                self._uncopied.pop((role, rank), None)
                self._end_offer((role, rank))
        elif kind == REFUSED:
            role, rank, step, stamp, why = _decode(body, type=_Refusal)
            held = self._offers.get((role, rank))
            if held is not None and (held.step, held.stamp) == (step, stamp):
                if why:
                    self._goes((role, rank), step)
                self._uncopyable((role, rank), f"the agent at {self._next} says: {why}" if why else "", now)
        elif kind == IMAGE:
            role, rank, step, of = _decode(body, type=_Asked)
            held = self._offers.get((role, rank))
            if held is not None and (held.step, held.stamp) == (step, of):
                self._comes((role, rank), _Copy(step, held.stamp, there=False))  # its acknowledgement may be lost
            return msgspec.msgpack.encode(self._image(role, rank, step, of, now))
        elif kind == PIECE:
            role, rank, step, of, name, start, size = _decode(body, type=_AskedPiece)
            return self._piece(self._image(role, rank, step, of, now), name, start, size)
        return None

    def _comes(self, key: RankKey, copy: _Copy) -> None:
        """The next agent gets a copy, instead of another one of its step, and of the oldest."""
        others = (each for each in self._copies.get(key, ()) if each.step != copy.step)
        self._copies[key] = (*others, copy)[-KEPT:]

    def _goes(self, key: RankKey, step: int) -> None:
        """The next agent has no copy of this step."""
        self._copies[key] = tuple(copy for copy in self._copies.get(key, ()) if copy.step != step)

    def _piece(self, image: Image | None, name: str, start: int, size: int) -> bytes:
        if image is None or not any(part.name == name for part in image.parts):
            return b""
        data = _read(self._path(image, name), start, size)
        if len(data) < size and image.name in self._offers:
            self._end_offer(image.name)  # freed meanwhile: the next one is described from scratch
        return data

    def _begin_offer(self, key: RankKey, step: int, now: float) -> None:
        memory = MemorySnapshots(self._shm, *key)
        try:
            for old in memory.steps():
                memory.release(old, _HOLDER)  # an earlier incarnation may have died holding it
            self._described.pop(key, None)
            if memory.hold(step, _HOLDER):
                image = memory.image(step)
                generation = self._restarts.get(key, ((0, -1),))[-1][0]
                if image is not None:
                    self._offers[key] = _Held(step, (self.timeline, generation, image.serial), now)
        finally:
            memory.close()

    def _uncopyable(self, key: RankKey, why: str, now: float) -> None:
        """Its newest snapshot cannot be copied now. Without a reason: it need not be, the rank lives elsewhere."""
        self._not_before["offer", key] = now + PAUSE_S
        if why:
            self._uncopied[key] = why
        if key in self._offers:
            self._end_offer(key)

    def _end_offer(self, key: RankKey) -> None:
        offer = self._offers.pop(key)
        self._described.pop(key, None)
        try:
            memory = MemorySnapshots(self._shm, *key)
            memory.release(offer.step, _HOLDER)
            memory.close()
        except Exception as error:
            _unexpected(error)

    def _image(self, role: str, rank: int, step: int, stamp: Stamp | None, now: float) -> Image | None:
        """A kept image, or one of a snapshot in this node's own memory."""
        key = role, rank
        held = self._offers.get(key)
        if held is not None and held.step == step and stamp in (None, held.stamp):
            held.heard = now
            stamp = held.stamp
        elif stamp is not None:
            return None  # offered before, and void or overtaken
        else:
            kept = self._store.image(role, rank, step)
            if kept is not None:
                return kept
        known = self._described.get(key)
        if known is None or known[0].step != step or (stamp is not None and known[0].stamp != stamp):
            known = describe(self._shm, role, rank, step, stamp or (self.timeline, 0, 0))
            if known is None:
                if held is not None and held.step == step:
                    self._end_offer(key)  # freed meanwhile: who was offered it would ask for it for ever
                return None
            self._described[key] = known
        return known[0]

    def _path(self, image: Image, name: str) -> Path:
        known = self._described.get(image.name)
        return known[1][name] if known is not None and known[0] is image else self._store.path(image, name)

    # ------------------------------------------------------------------------------------------- who wants an image

    def _be_offered(self, offer: Offer, now: float) -> None:
        key = offer.role, offer.rank
        timeline, generation, _ = offer.stamp
        if timeline != self.timeline:
            return  # from before the job went back, or the word of it has not come here yet
        if generation < self._seen.get(key, 0):
            self._send(offer.address, REFUSED, (*key, offer.step, offer.stamp, ""))
            return  # of an agent that does not have the rank any more
        self._seen[key] = generation
        self._store.went_back(*key, offer.restarts)
        kept = self._store.image(*key, offer.step)
        pull = self._pulls.get(key)
        if kept is not None and kept.stamp == offer.stamp:
            self._send(offer.address, DONE, (*key, offer.step, offer.stamp))
        elif not self._may("pull", key, now):
            if key in self._unkept:
                why, _ = self._unkept[key]
                self._unkept[key] = why, now
                self._send(offer.address, REFUSED, (*key, offer.step, offer.stamp, why))
        elif pull is None or (pull.stamp != offer.stamp and not pull.install):
            self._drop_pull(key)
            self._begin_pull(offer, now, install=False)

    def _begin_pull(self, offer: Offer, now: float, *, install: bool) -> None:
        def send(kind: bytes, body: Any) -> None:
            self._send(offer.address, kind, body)

        stamp = None if install else offer.stamp
        pull = Pull(
            self._store, send, offer.address, offer.role, offer.rank, offer.step, stamp, install=install, now=now
        )
        self._pulls[offer.role, offer.rank] = pull
        pull.repeat(now)

    def answered(self, kind: bytes, body: bytes, data: bytes, now: float) -> None:
        """The answer of another agent to what this one has asked."""
        try:
            role, rank, step, stamp = _decode(body)[:4]
            key = role, rank
            pull = self._pulls.get(key)
        except Exception as error:
            _unexpected(error)
            return
        if pull is None or pull.step != step or pull.stamp != (tuple(stamp) if stamp is not None else None):
            return
        try:
            problem = pull.hear(kind, body, data, now)
            if problem:
                self._end_pull(key, problem)  # it is not there any more, which is nobody's fault: a newer one is
            elif pull.complete:
                self._pulled(pull)
        except Exception as error:
            self._unkeepable(pull, _reason(error), now)

    def _pulled(self, pull: Pull) -> None:
        image = pull.finish()
        del self._pulls[image.name]
        self._unkept.pop(image.name, None)
        if pull.install:
            self._install(image)
        else:
            self._send(pull.address, DONE, (image.role, image.rank, image.step, image.stamp))

    def _install(self, image: Image) -> None:
        try:
            self._store.install(image)
        except Exception as error:
            self.ended.append((image.role, image.rank, f"the copy cannot be put in place: {_reason(error)}"))
        else:
            self.ended.append((image.role, image.rank, ""))

    def _drop_pull(self, key: RankKey) -> None:
        pull = self._pulls.pop(key, None)
        if pull is not None:
            pull.close()

    def _end_pull(self, key: RankKey, problem: str) -> None:
        pull = self._pulls.pop(key, None)
        if pull is not None:
            pull.close()
            if pull.install:
                self.ended.append((*key, problem))

    def _unkeepable(self, pull: Pull, why: str, now: float) -> None:
        """There is no place for a copy here. Who has offered it is told, and may offer it again after a pause."""
        key = pull.role, pull.rank
        self._end_pull(key, why)
        if pull.stamp is not None:
            self._unkept[key] = why, now
            self._not_before["pull", key] = now + PAUSE_S
            self._send(pull.address, REFUSED, (*key, pull.step, pull.stamp, why))

    def _may(self, what: str, key: RankKey, now: float) -> bool:
        return now >= self._not_before.get((what, key), float("-inf"))


def _reason(error: Exception) -> str:
    if not isinstance(error, OSError):
        _unexpected(error)
    return (error.strerror if isinstance(error, OSError) else "") or str(error) or type(error).__name__


def _unexpected(error: Exception) -> None:
    log.warning("copying snapshots goes on after an error", exc_info=error)


def _read(path: Path, start: int, size: int) -> bytes:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return b""
    try:
        return os.pread(fd, size, start)
    finally:
        os.close(fd)
