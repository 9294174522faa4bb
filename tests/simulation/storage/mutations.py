"""Faults put into the real code, each of which an invariant must catch: that shows that the simulation bites.

Most are what the code once did.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any
from unittest.mock import patch

import msgspec
from tests.simulation.patches import all_of, method
from tests.simulation.seeds import Mutation

from rolemesh_checkpoint import disk
from rolemesh_durable.agent import copy_attempt
from rolemesh_durable.agent.persister import Persister
from rolemesh_durable.extensions.replicas.frames import DONE
from rolemesh_durable.extensions.replicas.offers import Offers
from rolemesh_durable.extensions.replicas.replication import Replication
from rolemesh_durable.extensions.replicas.store import ReplicaStore
from rolemesh_runtime import syncing

__all__ = ["MUTATIONS"]


def _only_the_newest_on_its_way(original: Any) -> Any:
    def prune(run_dir: Path, keep: int, job_id: str | None = None) -> list[int]:
        gone: list[int] = original(run_dir, keep, job_id)
        found = disk.find_checkpoints(run_dir)
        newest = max((each.step for each in found if each.manifest is not None), default=-1)
        for each in [each for each in found if each.manifest is None and each.step > newest][1:]:
            shutil.rmtree(each.path, ignore_errors=True)
        return gone

    return prune


def _keeps_what_is_void(original: Any) -> Any:
    def restarted(self: Any, role: str, rank: int, step: int, generation: int) -> None:
        self._generations[role, rank] = generation

    return restarted


def _any_copy_of_the_step_will_do(original: Any) -> Any:
    def be_offered(self: Any, offer: Any, now: float) -> None:
        if self._store.image(offer.role, offer.rank, offer.step) is not None:
            self._send(offer.address, DONE, (offer.role, offer.rank, offer.step, offer.stamp))
        else:
            original(self, offer, now)

    return be_offered


def _old_acknowledgements_count(original: Any) -> Any:
    def restarted(self: Any, role: str, rank: int, step: int, generation: int) -> None:
        known = self._copies.get((role, rank), ())
        original(self, role, rank, step, generation)
        # As by the step alone, cut to where the rank went back.
        self._copies[role, rank] = tuple(
            copy._replace(step=min(copy.step, step), stamp=(copy.stamp[0], generation, copy.stamp[2])) for copy in known
        )

    return restarted


def _raises(original: Any) -> Any:
    def unkeepable(self: Any, pull: Any, why: str, now: float) -> None:
        raise OSError(why)

    return unkeepable


def _offered_once(original: Any) -> Any:
    def uncopyable(self: Any, key: Any, why: str, now: float) -> None:
        original(self, key, why, float("inf"))

    return uncopyable


def _gives_up_its_thread(original: Any) -> Any:
    def give_up(self: Any, job: Any, why: str) -> None:
        raise OSError(why)

    return give_up


def _one_a_turn(original: Any) -> Any:
    def write(self: Any, job: Any, written: Any) -> None:
        original(self, job, written)
        self._step = job.key[2]

    return write


def _no_sync(original: Any) -> Any:
    def sync(self: Any, synced: Any) -> None:
        while self._open:
            os.close(self._open.pop())
        original(self, synced)

    return sync


def _unfenced_message(original: Any) -> Any:
    def results(self: Any) -> Any:
        return [msgspec.structs.replace(each, generation=10**6) for each in original(self)]

    return results


MUTATIONS: tuple[Mutation, ...] = (
    Mutation("all but the newest checkpoint on its way are removed",
             ("nothing wedges", "a complete checkpoint is intact"),
             method(disk, "prune", _only_the_newest_on_its_way)),
    Mutation("attempts write under the names of the checkpoint",
             ("a complete checkpoint is intact", "a complete checkpoint is of one history"),
             lambda: patch.object(disk, "attempt_file", lambda name, attempt: name)),
    Mutation("an attempt that began before its rank went back counts", ("a complete checkpoint is of one history",),
             method(Persister, "restarted", _keeps_what_is_void), first=43),
    Mutation("a copy of the step is acknowledged, whichever it is", ("what is claimed to be replicated is there",),
             lambda: all_of(method(Replication, "_be_offered", _any_copy_of_the_step_will_do)(),
                          patch.object(ReplicaStore, "went_back", lambda self, *arguments: None)), first=23),
    Mutation("acknowledgements count by the step alone", ("what is claimed to be replicated is there",),
             method(Offers, "restarted", _old_acknowledgements_count)),
    Mutation("a copy that finds no room ends the thread", ("nothing ends a thread",),
             method(Replication, "_unkeepable", _raises)),
    Mutation("a copy that was refused is never offered again", ("nothing wedges",),
             method(Offers, "uncopyable", _offered_once), first=10),
    Mutation("a part that cannot be written ends the thread", ("nothing ends a thread",),
             method(Persister, "_give_up", _gives_up_its_thread)),
    Mutation("a slow disk's turns go to snapshots that are gone", ("nothing wedges",),
             method(Persister, "_write", _one_a_turn)),
    Mutation("parts are not synced", ("a checkpoint that was completed survives", "a complete checkpoint is intact"),
             method(copy_attempt.CopyAttempt, "sync", _no_sync)),
    Mutation("folders are not synced", ("a checkpoint that was completed survives", "a complete checkpoint is intact"),
             lambda: patch.object(syncing, "sync_folder", lambda folder: None)),
    Mutation("parts are reported as of another generation", ("nothing wedges",),
             method(Persister, "results", _unfenced_message)),
)  # fmt: skip
