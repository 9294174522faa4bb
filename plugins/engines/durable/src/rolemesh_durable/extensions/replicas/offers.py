"""The copies that another agent gets from this one: offers of its ranks' newest snapshots, and pieces of images.

This agent holds an offered snapshot until the next agent has pulled it. A failure concerns one offer: the agent reports
it, and repeats the offer after a pause.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple, TypeAlias

import msgspec

from rolemesh.api.rank_ref import RankRef
from rolemesh_checkpoint.memory import MemorySnapshots
from rolemesh_checkpoint.persisting import shared_by_mates
from rolemesh_durable.extensions.replicas import frames as r
from rolemesh_durable.extensions.replicas.store import KEPT, Image, ReplicaStore, Stamp, describe

__all__ = ["Offers"]

RESTARTS = 32
"""Maximum number of a rank's restarts in an offer: copies from before those are long gone."""
_HOLDER = "replicas"

_Ack: TypeAlias = tuple[str, int, int, Stamp]
_Refusal: TypeAlias = tuple[str, int, int, Stamp, str]
_Asked: TypeAlias = tuple[str, int, int, Stamp | None]
_AskedPiece: TypeAlias = tuple[str, int, int, Stamp | None, str, int, int]
_decode = msgspec.msgpack.decode


class _Copy(NamedTuple):
    """A copy of a rank's snapshot that the next agent may have; `there`: it has confirmed it."""

    step: int
    stamp: Stamp
    there: bool


class _Held:
    """A snapshot that this agent has offered, held until the next agent has pulled it."""

    def __init__(self, step: int, stamp: Stamp, now: float) -> None:
        self.step, self.stamp = step, stamp
        self.said = float("-inf")
        self.heard = now


class Offers:
    """Offers to the agent at `next`, "" for none. `address` is this agent's address for the other one."""

    def __init__(self, shm: Path, store: ReplicaStore, address: str, send: r.Send, timeline: int) -> None:
        self.address, self._shm, self._send, self.timeline = address, shm, send, timeline
        self._store = store
        self._copies: dict[RankRef, tuple[_Copy, ...]] = {}
        """The copies of each rank that the next agent's store may have, in the order in which they came there."""
        self.next = ""
        self._newest: dict[RankRef, int] = {}
        self._mates: dict[str, set[RankRef]] = {}
        """The local ranks of each collective role. They can only continue together, from a step that all have."""
        self._restarts: dict[RankRef, tuple[tuple[int, int], ...]] = {}
        self._offers: dict[RankRef, _Held] = {}
        self._described: dict[RankRef, tuple[Image, dict[str, Path]]] = {}
        self._not_before: dict[RankRef, float] = {}
        self._uncopied: dict[RankRef, str] = {}

    @property
    def warning(self) -> str:
        """The snapshot without a copy, and the reason; "" once it is over."""
        for ref, why in list(self._uncopied.items())[:1]:
            return f"the snapshot of {ref} has no copy on another node, and commits wait for it: {why}"
        return ""

    def connect(self, address: str) -> None:
        """Copy to the agent at `address` from now on; "" for none."""
        if address != self.next:
            self.next = address
            self._copies.clear()  # the other agent's copies may be lost with it
            self._uncopied.clear()
            for key in list(self._offers):
                self._end_offer(key)

    def offer(self, role: str, rank: int, step: int) -> None:
        """Note that the rank's newest snapshot is that of `step`. Of several that wait, only the newest is copied."""
        self._newest[RankRef(role, rank)] = step

    def restarted(self, role: str, rank: int, step: int, generation: int, *, collective: bool = False) -> None:
        """Note that a rank starts again after `step`, as `generation`: copies of its later steps do not count."""
        key = RankRef(role, rank)
        if collective:
            self._mates.setdefault(role, set()).add(key)
        # A later restart to an earlier step includes the effect of those before it.
        before = [each for each in self._restarts.get(key, ()) if each[1] < step]
        self._restarts[key] = (*before[-RESTARTS:], (generation, step))
        self._newest.pop(key, None)
        self._uncopied.pop(key, None)
        self._copies[key] = tuple(copy for copy in self._copies.get(key, ()) if copy.step <= step)
        if key in self._offers:
            self._end_offer(key)

    def gone(self, role: str, rank: int) -> None:
        """Note that a rank has no process here any more. Its snapshot is copied all the same."""
        self._mates.get(role, set()).discard((role, rank))

    def copied(self, role: str, rank: int, timeline: int, generation: int, resume: int) -> int:
        """Return the newest step whose copy on another agent is valid for `generation`, restored to `resume`."""
        valid = [
            step
            for step, (of_timeline, of_generation, _), there in self._copies.get(RankRef(role, rank), ())
            if there and of_timeline == timeline and (of_generation == generation or step <= resume)
        ]
        return max(valid, default=-1)

    def forget(self, timeline: int) -> None:
        """Forget everything in memory. New snapshots are of `timeline`."""
        self.timeline = timeline
        self.close()
        self._copies.clear()
        self._newest.clear()
        self._described.clear()
        self._not_before.clear()
        self._uncopied.clear()

    def close(self) -> None:
        """Release all held snapshots."""
        for key in list(self._offers):
            self._end_offer(key)

    def tick(self, now: float) -> None:
        """Offer new snapshots, repeat unanswered messages, and give up those that are never answered."""
        for key, held in list(self._offers.items()):
            if now - held.heard > r.GIVE_UP_S:
                self._uncopied[key] = f"the agent at {self.next} does not take it"
                self._end_offer(key)
        for key, step in self._round().items() if self.next else ():
            copied = max((each.step for each in self._copies.get(key, ()) if each.there), default=-1)
            if step > copied and now >= self._not_before.get(key, now):
                try:
                    self._begin_offer(key, step, now)
                except Exception as error:
                    self.uncopyable(key, r.reason(error), now)
        for key, held in self._offers.items():
            if now - held.said > r.REPEAT_S:
                held.said = now
                restarts = self._restarts.get(key, ())
                self._send(self.next, r.OFFER, r.Offer(*key, held.step, held.stamp, restarts, self.address))

    def _round(self) -> dict[RankRef, int]:
        """Return the step to offer of each rank without an offer: its newest, or in a group the newest that all have.

        A group's ranks are offered together, so that there are copies of one step of all, however slow copying is.
        """
        steps = {key: step for key, step in self._newest.items() if key not in self._offers}
        for mates in self._mates.values():
            together = shared_by_mates(self._newest.get(key, -1) for key in mates)
            for key in mates:
                if together < 0 or any(mate in self._offers for mate in mates):
                    steps.pop(key, None)
                else:
                    steps[key] = together
        return steps

    def answer(self, kind: bytes, body: bytes, now: float) -> bytes | None:
        """Handle a message of an agent that copies from here. Return the answer, if it gets one."""
        if kind == r.DONE:
            role, rank, step, stamp = _decode(body, type=_Ack)
            held = self._offers.get(RankRef(role, rank))
            if held is not None and (held.step, held.stamp) == (step, stamp):
                self._comes(RankRef(role, rank), _Copy(step, stamp, there=True))
                self._uncopied.pop(RankRef(role, rank), None)
                self._end_offer(RankRef(role, rank))
        elif kind == r.REFUSED:
            role, rank, step, stamp, why = _decode(body, type=_Refusal)
            held = self._offers.get(RankRef(role, rank))
            if held is not None and (held.step, held.stamp) == (step, stamp):
                if why:
                    self._goes(RankRef(role, rank), step)
                self.uncopyable(RankRef(role, rank), f"the agent at {self.next} says: {why}" if why else "", now)
        elif kind == r.IMAGE:
            role, rank, step, of = _decode(body, type=_Asked)
            held = self._offers.get(RankRef(role, rank))
            if held is not None and (held.step, held.stamp) == (step, of):
                # The acknowledgement may be lost.
                self._comes(RankRef(role, rank), _Copy(step, held.stamp, there=False))
            return msgspec.msgpack.encode(self._image(role, rank, step, of, now))
        elif kind == r.PIECE:
            role, rank, step, of, name, start, size = _decode(body, type=_AskedPiece)
            return self._piece(self._image(role, rank, step, of, now), name, start, size)
        return None

    def _comes(self, key: RankRef, copy: _Copy) -> None:
        """Note that the next agent gets a copy, which replaces another one of its step, and the oldest."""
        others = (each for each in self._copies.get(key, ()) if each.step != copy.step)
        self._copies[key] = (*others, copy)[-KEPT:]

    def _goes(self, key: RankRef, step: int) -> None:
        """Note that the next agent has no copy of this step."""
        self._copies[key] = tuple(copy for copy in self._copies.get(key, ()) if copy.step != step)

    def _piece(self, image: Image | None, name: str, start: int, size: int) -> bytes:
        if image is None or not any(part.name == name for part in image.parts):
            return b""
        data = _read(self._path(image, name), start, size)
        if len(data) < size and image.ref in self._offers:
            self._end_offer(image.ref)  # freed meanwhile: the next one is described from scratch
        return data

    def _begin_offer(self, key: RankRef, step: int, now: float) -> None:
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

    def uncopyable(self, key: RankRef, why: str, now: float) -> None:
        """Note why the newest snapshot cannot be copied now.

        Without a reason it need not be: the rank lives elsewhere.
        """
        self._not_before[key] = now + r.PAUSE_S
        if why:
            self._uncopied[key] = why
        if key in self._offers:
            self._end_offer(key)

    def _end_offer(self, key: RankRef) -> None:
        offer = self._offers.pop(key)
        self._described.pop(key, None)
        try:
            memory = MemorySnapshots(self._shm, *key)
            memory.release(offer.step, _HOLDER)
            memory.close()
        except Exception as error:
            r.unexpected(error)

    def _image(self, role: str, rank: int, step: int, stamp: Stamp | None, now: float) -> Image | None:
        """Return a kept image, or one of a snapshot in this node's own memory."""
        key = RankRef(role, rank)
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
                    self._end_offer(key)  # freed meanwhile: the other agent would ask for it forever
                return None
            self._described[key] = known
        return known[0]

    def _path(self, image: Image, name: str) -> Path:
        known = self._described.get(image.ref)
        return known[1][name] if known is not None and known[0] is image else self._store.path(image, name)


def _read(path: Path, start: int, size: int) -> bytes:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return b""
    try:
        return os.pread(fd, size, start)
    finally:
        os.close(fd)
