"""Images of ranks' snapshots as files: the parts of an image, and the images that an agent keeps for others.

An image is all that a rank needs to continue after a step: its state, its log, and the slots of the log. Kept images
are in ``replicas/<role>-<rank>/step-<s>/`` in the agent's folder in shared memory, complete or not at all.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from typing import TypeAlias

import msgspec

from rolemesh.api.rank_ref import OfRank, RankRef
from rolemesh.runs.jsonl import UNDECODABLE
from rolemesh_checkpoint.memory import MemorySnapshots
from rolemesh_checkpoint.send_log import SendLog
from rolemesh_dataplane.shm import named
from rolemesh_durable.protocol.messages import Stored

__all__ = ["KEPT", "Image", "ImageFile", "ReplicaStore", "Stamp", "describe"]

KEPT = 2
"""Number of images of each rank that are kept: the newest ones."""
STATE = "state"
_HEAD = "image"
_FOLDER = re.compile(r"([A-Za-z_]\w*)-(\d+)")
_STEP = re.compile(r"step-(-?\d+)")

Stamp: TypeAlias = tuple[int, int, int]
"""Distinguishes images of one step: timeline, the rank's generation, and the snapshot's serial in its memory."""


class ImageFile(msgspec.Struct, frozen=True):
    """A file of an image. Files of equal `name` and `key` are equal, unless `key` is negative."""

    name: str
    size: int
    key: int = -1


class Image(OfRank, frozen=True):
    """A snapshot as it is copied.

    `log` is the rank's position in its log. A stateless rank's image has no part "state".
    """

    step: int
    log: int
    parts: tuple[ImageFile, ...]
    stamp: Stamp = (0, 0, 0)


def describe(
    shm: Path, role: str, rank: int, step: int, stamp: Stamp = (0, 0, 0)
) -> tuple[Image, dict[str, Path]] | None:
    """Return the image of a snapshot in this node's memory, and the paths of its parts; None if it is gone.

    Hold the snapshot while the parts are being read.
    """
    memory = MemorySnapshots(shm, role, rank)
    try:
        found = memory.image(step)
    finally:
        memory.close()
    if found is None:
        return None
    parts: list[ImageFile] = []
    paths: dict[str, Path] = {}

    def add(name: str, path: Path, size: int | None = None, key: int = -1) -> None:
        try:
            parts.append(ImageFile(name, path.stat().st_size if size is None else size, key))
            paths[name] = path
        except FileNotFoundError:
            pass  # freed meanwhile, so no rank can need it

    if found.path is not None:
        add(STATE, found.path, found.size)
    slots = {slot: record.payload for record in SendLog.read(shm, role, rank) for slot in record.slots}
    for slot, payload in slots.items():
        if payload < found.log:  # the slots before the log, which then covers all writes to them
            add(slot, shm / slot, key=payload)
    for path in named(shm, f"log-{role}-{rank}-"):
        add(path.name, path)
    return Image(role, rank, step, found.log, tuple(parts), stamp), paths


class ReplicaStore:
    """The images that an agent keeps: the newest two of each rank."""

    def __init__(self, shm: Path) -> None:
        """Take over the images that an earlier incarnation has kept."""
        self._shm = shm
        self._folder = shm / "replicas"
        self._images: dict[RankRef, dict[int, Image]] = {}
        found = []
        for path in self._folder.glob("*/*"):
            owner, step = _FOLDER.fullmatch(path.parent.name), _STEP.fullmatch(path.name)
            image = self._read(path) if owner and step else None
            if image is None:
                shutil.rmtree(path, ignore_errors=True)
            else:
                found.append(image)
        for image in sorted(found, key=lambda image: image.stamp):  # in which they came; a folder has no order
            self._images.setdefault(image.ref, {})[image.step] = image

    def held(self) -> list[Stored]:
        """Return the kept images, by rank."""
        return [
            Stored(role, rank, tuple(sorted(steps)), copy=True) for (role, rank), steps in self._images.items() if steps
        ]

    def image(self, role: str, rank: int, step: int) -> Image | None:
        """Return a kept image; None if it is not kept."""
        return self._images.get(RankRef(role, rank), {}).get(step)

    def path(self, image: Image, part: str) -> Path:
        """Return the path of a part of a kept image."""
        return self._path(image) / part

    def begin(self, image: Image) -> tuple[Path, list[ImageFile]]:
        """Return an empty folder for a new image, and the parts that it lacks: the others are in kept images."""
        folder = self._path(image).with_name(f"incoming-{image.step}")
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(mode=0o700, parents=True)
        lacking = []
        for part in image.parts:
            source = self._same(image, part)
            if source is None:
                lacking.append(part)
            else:
                os.link(source, folder / part.name)
        return folder, lacking

    def finish(self, image: Image, folder: Path) -> None:
        """Keep the image in the folder of `begin`, which has all parts, and drop the oldest one."""
        (folder / _HEAD).write_bytes(msgspec.msgpack.encode(image))
        target = self._path(image)
        shutil.rmtree(target, ignore_errors=True)
        folder.rename(target)
        kept = self._images.setdefault(image.ref, {})
        kept.pop(image.step, None)
        kept[image.step] = image
        for step in list(kept)[:-KEPT]:  # by arrival: a group that went back takes earlier steps again
            shutil.rmtree(self._path(kept.pop(step)), ignore_errors=True)

    def went_back(self, role: str, rank: int, restarts: tuple[tuple[int, int], ...]) -> None:
        """Drop the images from before a restart: with each of these generations, the rank went back to a step."""
        kept = self._images.get(RankRef(role, rank), {})
        for image in list(kept.values()):
            if any(image.step > step and image.stamp[1] < generation for generation, step in restarts):
                shutil.rmtree(self._path(kept.pop(image.step)), ignore_errors=True)

    def install(self, image: Image) -> None:
        """Turn a kept image into this node's own snapshot of the rank, as if the rank had written it here.

        The rank must not be running here. Raises `OSError` if there is no room for it; then the image is still kept.
        """
        memory = MemorySnapshots(self._shm, image.role, image.rank)
        memory.clear()
        SendLog.remove(self._shm, image.role, image.rank)
        for part in image.parts:
            if part.name != STATE:
                _link(self.path(image, part.name), self._shm / part.name)
        state = next((part for part in image.parts if part.name == STATE), None)
        source = None
        if state is not None:
            source = self._path(image) / "installing"
            _link(self.path(image, STATE), source)
        memory.adopt(image.step, source, 0 if state is None else state.size, image.log)
        memory.close()
        self.drop(image.role, image.rank)

    def drop(self, role: str, rank: int) -> None:
        """Drop all images of this rank."""
        self._images.pop(RankRef(role, rank), None)
        shutil.rmtree(self._folder / f"{role}-{rank}", ignore_errors=True)

    def clear(self) -> None:
        """Drop all images."""
        self._images.clear()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _path(self, image: Image) -> Path:
        return self._folder / f"{image.role}-{image.rank}" / f"step-{image.step}"

    def _same(self, image: Image, part: ImageFile) -> Path | None:
        for other in self._images.get(image.ref, {}).values() if part.key >= 0 else ():
            if part in other.parts:
                return self.path(other, part.name)
        return None

    def _read(self, path: Path) -> Image | None:
        try:
            return msgspec.msgpack.decode((path / _HEAD).read_bytes(), type=Image)
        except (OSError, *UNDECODABLE):
            return None


def _link(source: Path, target: Path) -> None:
    target.unlink(missing_ok=True)
    os.link(source, target)
